"""
What following a task's output costs: a run whose task prints, with a follower and without.

Pairs of runs in turns. The processor time is that of the run's process with its workers and
tasks, without the follower, whose own is told beside.

    python benchmarks/following.py [--quick | --smallest] [--json FILE]
"""

import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import Benchmark, Figure, at_most
from scipy import stats

TICK = 0.1
"""Seconds between two outputs of the task."""

PRINTED = 20_000
"""Bytes that it prints each time."""

TALK = """
[campaign]
name = "talk"
command = "i=0; while [ $i -lt {n} ]; do cat piece; sleep {tick}; i=$((i+1)); done"
[task]
inputs = ["piece"]
runtime = 10
"""


def started(folder: Path, *words: str) -> int:
    """Start a command there, and return its process."""
    return subprocess.Popen(
        [sys.executable, "-m", "bursar", *words],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "BURSAR_HISTORY": "none"},
    ).pid


def ended(process: int) -> float:
    """Wait for a process; return its processor time and that of its children, seconds."""
    _, status, used = os.wait4(process, 0)
    assert status == 0
    return used.ru_utime + used.ru_stime


def carried_out(folder: Path, name: str, *, followed: bool) -> tuple[float, float, float]:
    """Return seconds of a run, its processor time, and that of its follower."""
    began = time.perf_counter()
    run = started(folder, "run", "talk.toml", "--name", name, "--fresh")
    follower = 0.0
    if followed:
        journal = folder / "runs" / name / "journal.sqlite"
        while not journal.exists():
            time.sleep(0.02)
        follower = ended(started(folder, "logs", name, "0", "--follow"))
    used = ended(run)
    return time.perf_counter() - began, used, follower


def main() -> None:
    """Run pairs, one of which is followed."""
    bench = Benchmark(__file__, __doc__)
    ticks, rounds = bench.of((100, 12), (50, 5), (5, 1))
    table = bench.table(
        f"a task that prints {PRINTED / TICK / 1e6:g} MB a second",
        *("round", "s", "its processor time, s", "the follower's, s"),
    )
    found: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "piece").write_text(("x" * 79 + "\n") * (PRINTED // 80))
        (folder / "talk.toml").write_text(TALK.format(n=ticks, tick=TICK))
        for number in range(rounds):
            # Every other round the other way round, so that a load that grows falls on both alike.
            for followed in (False, True)[:: -1 if number % 2 else 1]:
                word = "followed" if followed else "alone"
                made = carried_out(folder, f"{word}-{number}", followed=followed)
                found[followed].append(made)
                table.add(f"{number + 1}, {word}", *made)
    pairs = list(zip(found[True], found[False], strict=True))
    more = [(with_one[1] - without[1]) / (ticks * TICK) for with_one, without in pairs]
    mean = statistics.mean(more)
    figures = [at_most("part of a processor that the run spends on it", mean, 0.05)]
    if rounds > 1:
        half = stats.t.ppf(0.975, rounds - 1) * statistics.stdev(more) / math.sqrt(rounds)
        figures += [
            Figure("the same, 95 % interval from", mean - half, ""),
            Figure("the same, 95 % interval to", mean + half, ""),
        ]
    ratio = math.exp(statistics.mean(math.log(a[1] / b[1]) for a, b in pairs))
    figures.append(Figure("the run's processor time with a follower / without", ratio, ""))
    bench.figures("one follower", figures)
    bench.write()


if __name__ == "__main__":
    main()
