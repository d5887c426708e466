"""
How well a plan predicts the run: recorded workflows replayed on this machine.

Each is planned on the local site, run by stand-ins that occupy their
processors for the recorded runtimes times a scale and move files of the
recorded sizes times another, and its makespan is set beside the planned one.

Use::

    python benchmarks/replay.py [--data FOLDER] [--rounds N] [--quick]

The folder of reference data may also be named by ``BURSAR_DATA``.
"""

import argparse
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import bursar
from bursar.formats.replay import replay

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
AIM = 0.10
"""Share by which the makespan may differ from the planned one."""


@dataclass(frozen=True, slots=True)
class Case:
    """A recorded workflow and how it is scaled."""

    file: str
    scale: float
    size_scale: float


CASES = (
    Case("workflows/dax/Montage_100.xml", 0.02, 0.1),
    Case("workflows/dax/Montage_100.xml", 0.04, 0.1),
    Case("workflows/dax/Montage_100.xml", 0.04, 1.0),
    Case("workflows/dax/Montage_1000.xml.xz", 0.01, 0.1),
)


def deviation(case: Case, data: Path) -> tuple[float, float]:
    """
    Planned makespan in seconds, and by which share of it the run was longer.
    """
    recorded = bursar.read_campaign(data / case.file)
    campaign = replay(recorded, scale=case.scale, size_scale=case.size_scale)
    with tempfile.TemporaryDirectory(prefix="bursar-replay-") as folder:
        result = bursar.run(campaign, runs=folder)
        if not result.succeeded:
            raise RuntimeError(f"{case.file}: tasks failed")
        summary = result.to_dict()
    planned = summary["predicted_makespan_s"]
    return planned, summary["makespan_s"] / planned - 1


def main() -> None:
    """Reads the command line, replays, prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("BURSAR_DATA", DATA)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="the first two, once")
    given = parser.parse_args()
    if not given.data.is_dir():
        sys.exit(f"no reference data at {given.data}")
    cases = CASES[:2] if given.quick else CASES
    print(f"{'workflow':22}{'runtimes':>10}{'sizes':>8}{'planned':>10}{'longer by':>11}   range")
    for case in cases:
        rounds = 1 if given.quick else given.rounds
        found = [deviation(case, given.data) for _ in range(rounds)]
        shares = [share for _, share in found]
        middle = statistics.median(shares)
        verdict = "met" if abs(middle) <= AIM else "MISSED"
        print(
            f"{Path(case.file).name.split('.')[0]:22}{f'x {case.scale:g}':>10}"
            f"{f'x {case.size_scale:g}':>8}{found[0][0]:8.1f} s{middle:11.1%}"
            f"   {min(shares):.1%} to {max(shares):.1%}  {verdict}",
            flush=True,
        )


if __name__ == "__main__":
    main()
