"""
Empty Python calls, by ``bursar.Executor`` and by the standard library's executor.

Both have as many worker processes, make the same calls of a function that does nothing, and take
turns; a warm-up comes first. The time is from the first submission to the last result. Processor
time is told apart by process: the caller with the engine and the journal, the workers (none in the
standard library), and the processes that carry the calls out. Bursar journals each result before
the caller has it; the standard library keeps none.

    python benchmarks/python_calls.py [--quick | --smallest] [--json FILE]
"""

import math
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import Executor as AnyExecutor
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from figures import Benchmark, at_least

import bursar
from bursar.model.site import SiteFacts

WORKERS = 4

AIM = 9_000
"""Calls a second that Bursar is to make with four workers on two quiet processors."""

ROLES = ("caller", "workers", "callees")


@dataclass(frozen=True)
class Trial:
    """Seconds that the calls took, and seconds of processor time by role."""

    seconds: float
    busy: dict[str, float]


def nothing() -> None:
    """Do nothing."""


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process by the scheduler's clock, all threads together."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        total += int((thread / "schedstat").read_text().split()[0])
    return total * 1e-9


def roles() -> dict[int, str]:
    """Return the role of each process that descends from this one, this one included."""
    parents: dict[int, int] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                fields = (path / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            parents[int(path.name)] = int(fields[1])
    found = {os.getpid(): "caller"}
    for pid in parents:
        above, at = [], pid
        while at in parents and at != os.getpid():
            above.append(at)
            at = parents[at]
        if at == os.getpid() and pid != at:
            is_worker = b"bursar.worker.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
            found[pid] = "workers" if is_worker else "callees"
    return found


def busy() -> dict[str, float]:
    """Return the processor time of all processes by role."""
    total = dict.fromkeys(ROLES, 0.0)
    for pid, role in roles().items():
        total[role] += processor_seconds(pid)
    return total


def trial(make: Callable[[], AnyExecutor], calls: int) -> Trial:
    """Make the calls with a new executor."""
    with make() as executor:
        for call in [executor.submit(nothing) for _ in range(50 * WORKERS)]:
            call.result()
        before, began = busy(), time.perf_counter()
        for call in [executor.submit(nothing) for _ in range(calls)]:
            call.result()
        seconds, after = time.perf_counter() - began, busy()
    return Trial(seconds, {role: after[role] - before[role] for role in ROLES})


def main() -> None:
    """Measure both, in turns."""
    bench = Benchmark(__file__, __doc__)
    calls = bench.of(20_000, 5_000, 50)
    rounds = bench.of(9, 3, 1)
    here = SiteFacts(name="here", processors=WORKERS, unit_price=0.0, currency="EUR")
    contenders: dict[str, Callable[[], AnyExecutor]] = {
        "bursar": lambda: bursar.Executor(WORKERS, sites=here),
        "ProcessPoolExecutor": lambda: ProcessPoolExecutor(
            WORKERS, mp_context=get_context("forkserver")
        ),
    }
    made: dict[str, list[Trial]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, make in contenders.items():
            made[name].append(trial(make, calls))
    table = bench.table(
        f"{calls:,} empty calls, {WORKERS} workers, {rounds} rounds in turns",
        *("contender", "calls/s, median", "least", "most", "us a call", "caller", "workers"),
        "callees",
    )
    for name, trials in made.items():
        rates = [calls / one.seconds for one in trials]
        parts = [1e6 * statistics.median(t.busy[role] for t in trials) / calls for role in ROLES]
        table.add(name, statistics.median(rates), min(rates), max(rates), sum(parts), *parts)
    pairs = zip(*made.values(), strict=True)
    ratio = math.exp(statistics.mean(math.log(other.seconds / one.seconds) for one, other in pairs))
    bench.figures(
        "aims",
        [
            at_least("calls a second", calls / statistics.median(
                one.seconds for one in made["bursar"]
            ), AIM, "1/s"),
            at_least("rate / ProcessPoolExecutor", ratio, 1.0),
        ],
    )  # fmt: skip
    bench.write()


if __name__ == "__main__":
    main()
