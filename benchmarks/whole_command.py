"""
A sweep of ``/bin/echo`` as one command: bursar run, beside xargs and GNU parallel.

Bursar's time is split at the first start and the last end of a task, by the results' own times:
before, the interpreter, the plan, the folder and the workers; the tasks; after, results, bill and
report. Xargs keeps no record of its tasks, GNU parallel keeps a joblog and the outputs. All use two
processors and take turns.

    python benchmarks/whole_command.py [--quick | --smallest] [--json FILE]
"""

import csv
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from figures import Benchmark, at_most

PROCESSORS = 2

CAMPAIGN = """
[campaign]
name = "echoes"
command = ["/bin/echo", "hello", "{n}"]
[parameters]
n = {from = 1, to = %d, step = 1}
[task]
runtime = "1 ms"
"""


class Split(NamedTuple):
    """Seconds before the first task started, of the tasks, and after the last task had ended."""

    before: float
    tasks: float
    after: float

    @property
    def around(self) -> float:
        """Seconds before and after the tasks."""
        return self.before + self.after

    @property
    def whole(self) -> float:
        """Seconds of the command."""
        return sum(self)


def environment() -> dict[str, str]:
    """Return this environment; byte code is kept, as it is where Bursar is installed."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def bursar(tasks: int) -> Split:
    """Run the campaign, and check that each task printed what it should."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "echoes.toml").write_text(CAMPAIGN % tasks)
        command = [sys.executable, "-m", "bursar", "run", "echoes.toml"]
        command += ["--processors", str(PROCESSORS)]
        began = time.time()
        subprocess.run(
            command, cwd=folder, env=environment(), check=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        ended = time.time()
        (results,) = folder.glob("runs/*/results.csv")
        with results.open(newline="") as file:
            rows = list(csv.DictReader(file))
    printed = sum(int(row["stdout_size"]) for row in rows)
    if printed != sum(len(f"hello {n}\n") for n in range(1, tasks + 1)):
        raise RuntimeError("output was lost")
    first = min(float(row["start"]) for row in rows)
    last = max(float(row["end"]) for row in rows)
    return Split(first - began, last - first, ended - last)


def piped(tasks: int, command: list[str], folder: Path) -> float:
    """Return seconds of a command that reads a number for each task from standard input."""
    numbers = "".join(f"{n}\n" for n in range(1, tasks + 1))
    with (folder / "output").open("wb") as output:
        began = time.perf_counter()
        subprocess.run(
            command, input=numbers.encode(), stdout=output, stderr=subprocess.DEVNULL, check=True
        )
        return time.perf_counter() - began


def xargs(tasks: int) -> float:
    """Return seconds of ``xargs -P2``."""
    with tempfile.TemporaryDirectory() as name:
        command = ["xargs", f"-P{PROCESSORS}", "-n1", "/bin/echo", "hello"]
        return piped(tasks, command, Path(name))


def parallel(tasks: int) -> float:
    """Return seconds of GNU parallel with a record of each job and its output in files."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = ["parallel", f"-j{PROCESSORS}", "--joblog", str(folder / "joblog")]
        command += ["--results", str(folder / "results"), "/bin/echo", "hello", "{}"]
        return piped(tasks, command, folder)


def measure_beside(bench: Benchmark, tasks: int, rounds: int) -> None:
    """Measure the whole command beside others, in turns."""
    others: dict[str, Callable[[int], float]] = {"xargs -P2": xargs}
    if shutil.which("parallel"):
        others["GNU parallel, joblog and results"] = parallel
    else:
        bench.skip("GNU parallel is not installed (Debian: apt-get install parallel)")
    splits: list[Split] = []
    took: dict[str, list[float]] = {name: [] for name in others}
    for _ in range(rounds):
        splits.append(bursar(tasks))
        for name, run in others.items():
            took[name].append(run(tasks))
    median = statistics.median
    wholes, around = [s.whole for s in splits], [s.around for s in splits]
    table = bench.table(
        f"{tasks:,} /bin/echo on {PROCESSORS} processors, {rounds} rounds",
        *("command", "s, median", "least", "most", "aim, s", "met"),
    )
    # Aims are of the full size.
    whole_aim, around_aim = (3.3, 0.8) if bench.size == "full" else (None, None)
    for title, seconds, aim in (
        ("bursar run", wholes, whole_aim),
        ("of it, before and after the tasks", around, around_aim),
        ("of it, before", [s.before for s in splits], None),
        ("of it, after", [s.after for s in splits], None),
        *((name, seconds, None) for name, seconds in took.items()),
    ):
        met = None if aim is None else at_most(title, median(seconds), aim).met
        table.add(title, median(seconds), min(seconds), max(seconds), aim, met)


def measure_growth(bench: Benchmark, sizes: tuple[int, ...]) -> None:
    """Measure how the parts grow with the number of tasks, each size once."""
    table = bench.table(
        "bursar run, by the number of tasks",
        *("tasks", "before, s", "tasks, s", "after, s", "around them, us a task"),
    )
    for tasks in sizes:
        split = bursar(tasks)
        table.add(f"{tasks:,}", split.before, split.tasks, split.after, 1e6 * split.around / tasks)


def main() -> None:
    """Measure one thing after the other."""
    bench = Benchmark(__file__, __doc__)
    bursar(4)  # warms caches of byte code and machine code
    measure_beside(bench, bench.of(5_000, 1_000, 10), bench.of(3, 3, 1))
    measure_growth(bench, bench.of((240, 5_000, 100_000), (24, 240, 2_400), (2, 20)))
    bench.write()


if __name__ == "__main__":
    main()
