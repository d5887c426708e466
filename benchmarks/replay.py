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
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from figures import Benchmark

import bursar
from bursar.formats.recorded_tasks import replay as replayed

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
    campaign = replayed(recorded, scale=case.scale, size_scale=case.size_scale)
    with tempfile.TemporaryDirectory(prefix="bursar-replay-") as folder:
        result = bursar.run(campaign, runs=folder)
        if not result.succeeded:
            raise RuntimeError(f"{case.file}: tasks failed")
        summary = result.to_dict()
    planned = summary["predicted_makespan_s"]
    return planned, summary["makespan_s"] / planned - 1


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("BURSAR_DATA", DATA)))
    parser.add_argument("--rounds", type=int)


def main() -> None:
    """Read the command line, replay, write the table."""
    bench = Benchmark(__file__, __doc__, _options)
    given = bench.given
    if not given.data.is_dir():
        bench.skip(f"recorded workflows: no reference data at {given.data}")
        bench.write()
        return
    smallest = (replace(CASES[0], scale=0.0002, size_scale=0.01),)
    table = bench.table(
        "recorded workflows, replayed",
        *("workflow", "runtimes, times", "sizes, times", "planned, s", "longer by, %, median"),
        *("least, %", "most, %", "met"),
    )
    for case in bench.of(CASES, CASES[:2], smallest):
        rounds = given.rounds or bench.of(3, 1, 1)
        found = [deviation(case, given.data) for _ in range(rounds)]
        shares = [100 * share for _, share in found]
        middle = statistics.median(shares)
        table.add(
            Path(case.file).name.split(".")[0],
            case.scale,
            case.size_scale,
            found[0][0],
            middle,
            min(shares),
            max(shares),
            abs(middle) <= 100 * AIM,
        )
    bench.write()


if __name__ == "__main__":
    main()
