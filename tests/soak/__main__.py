"""The command ``python -m tests.soak``: rounds of live faults, one JSON line for each."""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from tests.forked import start_forked
from tests.soak.campaigns import LocalRuns
from tests.soak.clusters import ClusterRuns, GridEngineDaemons, SlurmDaemons
from tests.soak.rounds import RoundResult, Target, run_rounds
from tests.soak.services import Services


def targets() -> dict[str, Target]:
    """Return every target by its name."""
    start = start_forked
    return {
        target.name: target
        for target in (
            LocalRuns(start),
            Services(start),
            ClusterRuns(SlurmDaemons, start),
            ClusterRuns(GridEngineDaemons, start),
        )
    }


def done_before(path: Path | None, target: str, seed: int) -> set[int]:
    """Return the numbers of the rounds that a file holds already."""
    if path is None or not path.exists():
        return set()
    lines = path.read_bytes().splitlines()
    rows = (msgspec.json.decode(line, type=RoundResult) for line in lines)
    return {row.number for row in rows if (row.target, row.seed) == (target, seed)}


def main(words: list[str] | None = None) -> int:
    """Carry out the rounds that were asked for; return 1 when something did not hold."""
    every = targets()
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak",
        description="Kills real processes at random moments, and holds what is left to promises.",
    )
    parser.add_argument("target", choices=every)
    parser.add_argument("--rounds", type=int, default=10, help="how many (default 10)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="this round alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a line for each round;"
                        " rounds that the file holds are not run again")  # fmt: skip
    parser.add_argument("--keep", type=Path, metavar="DIR", help="folders of failed rounds go"
                        " here; below the temporary folder by default")  # fmt: skip
    parser.add_argument("--minutes", type=float, help="begin no further round after so long")
    given = parser.parse_args(words)
    if given.only is not None:
        numbers = [given.only]
    else:
        before = done_before(given.json, given.target, given.seed)
        wanted = range(given.first, given.first + given.rounds)
        numbers = [number for number in wanted if number not in before]
    folder = given.keep or Path(tempfile.mkdtemp(prefix="soak-"))
    began, failed = time.monotonic(), 0
    for done, row in enumerate(
        run_rounds(every[given.target], folder, seed=given.seed, numbers=numbers), start=1
    ):
        line = msgspec.json.encode(row).decode()
        if given.json is not None:
            with given.json.open("a") as file:
                file.write(line + "\n")
        else:
            print(line, flush=True)
        failed += bool(row.broken)
        print(
            f"{row.target} {row.number}: {sum(row.kills.values())} kills, {row.seconds:.1f} s,"
            f" {'; '.join(row.broken) or 'all held'}   [{done}/{len(numbers)}, {failed} failed]",
            file=sys.stderr,
            flush=True,
        )
        if given.minutes is not None and time.monotonic() - began > 60 * given.minutes:
            break
    if failed:
        print(f"folders of failed rounds: {folder}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
