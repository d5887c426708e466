"""
The information index and the computing element: what reading, publishing and asking cost.

Each takes turns with the least that could do it in Python, so that whatever else the machine
does meets both alike; the ratio is the figure to trust, the rates are this machine's.

read
    An index of 10,000 sites, read while nothing changes, beside one dict lookup; ages of all
    sites as an array, beside a dict of them; a look after each message of a site.
publish
    170 sites publish in turns, beside storing in a dict; the same asked in rounds, and over
    three levels.
element
    Jobs through a busy element of 100 processors with a long queue, asked for its traversal
    time at each event, beside making the forecast anew; the last tenth beside the first.

Use::

    python benchmarks/directory.py [--quick]
"""

import gc
import heapq
import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from figures import Benchmark, Figure, Table

from bursar.broker.information_index import InformationIndex
from bursar.broker.status_feeds import IndexLevel, build_hierarchy
from bursar.cluster.element import ComputingElement
from bursar.model.matching import SiteStatus

SITES, FEW = 10_000, 170


class Clock:
    """Turned by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def said(number: int, at: float) -> SiteStatus:
    """As a site that is busy."""
    return SiteStatus(
        site=f"site-{number}", at=at, free_processors=number % 50, traversal_time=at % 977.0
    )


def rate(work: Callable[[], int]) -> float:
    """Pieces per second of one go."""
    gc.collect()
    began = time.perf_counter()
    pieces = work()
    return pieces / (time.perf_counter() - began)


def show(
    table: Table, what: str, ours: Callable[[], int], limit: Callable[[], int], rounds: int = 3
) -> None:
    """Add the best of some turns of both to a table."""
    found = [(rate(limit), rate(ours)) for _ in range(rounds)]
    bare, our = max(b for b, _ in found), max(o for _, o in found)
    table.add(what, 1e6 / our, 1e6 / bare, bare / our)


def repeat(call: Callable[[], object], times: int) -> int:
    """So often."""
    for _ in range(times):
        call()
    return times


def show_reading(table: Table, times: int) -> None:
    """Of an index of many sites."""
    clock = Clock()
    directory = InformationIndex(clock=clock)
    for number in range(SITES):
        directory.publish(said(number, 0.0))
    statuses = dict(directory.read().statuses)
    clock.now = 5.0
    show(
        table,
        f"read, {SITES:,} sites, one of them; a dict",
        lambda: repeat(lambda: directory.read()["site-77"], times),
        lambda: repeat(lambda: statuses["site-77"], times),
    )

    def changing() -> int:
        for number in range(times // 100):
            clock.now += 1e-3
            directory.publish(said(number % SITES, clock.now))
            directory.read()
        return times // 100

    show(
        table,
        "a message, then a look; a copy",
        changing,
        lambda: repeat(lambda: dict(statuses), 1000),
    )


def messages(count: int) -> Iterator[SiteStatus]:
    """Of few sites in turns."""
    return (said(i % FEW, float(i)) for i in range(count))


def show_publishing(table: Table, times: int) -> None:
    """By few sites, often."""
    clock = Clock()

    def publish() -> int:
        directory = InformationIndex(clock=clock)
        for status in messages(times):
            clock.now = status.at
            directory.publish(status)
        return times

    def store() -> int:
        known = {}
        for status in messages(times):
            known[status.site] = status
        return times

    show(table, f"publish, {FEW} sites; a dict", publish, store)

    def rounds(levels: int) -> int:
        sources = {f"site-{i}": lambda i=i: said(i, clock.now) for i in range(FEW)}
        clock.now = 0.0
        top = build_hierarchy(
            [IndexLevel(every=60.0, delay=1.0)] * levels, sources, clock=clock, expiry=1e9
        ).top
        for _ in range(times // FEW):
            clock.now = top.next_due
            top.refresh(clock.now)
        return times

    def ask() -> int:
        known = {}
        for i in range(times):
            known[i % FEW] = said(i % FEW, float(i))
        return times

    show(table, "asked in rounds; asked and stored", lambda: rounds(1), ask)
    show(table, "over three levels; asked and stored", lambda: rounds(3), ask)


def show_element(bench: Benchmark, table: Table, jobs: int) -> None:
    """Jobs as they come and go, the queue never empty."""
    rng = np.random.default_rng(1)
    seconds = rng.exponential(1000.0, jobs).tolist()
    spent: dict[str, list[float]] = {}

    def through(name: str, count: int, *, anew: bool) -> int:
        element = ComputingElement(100)
        ends: list[tuple[float, int]] = []
        now, asked = 0.0, 0
        marks = []
        for job in range(count):
            element.submit(job, 1, seconds[job], now)
            if job < 300:
                continue
            for key in element.startable():
                element.began(key, now)
                heapq.heappush(ends, (now + seconds[key], key))  # type: ignore[index]
            now, over = heapq.heappop(ends)
            element.ended(over, now)
            if anew:
                element._holds = False
            element.traversal_time(now)
            asked += 1
            if asked % (count // 10) == 1:
                marks.append(time.perf_counter())
        spent[name] = [b - a for a, b in itertools.pairwise(marks)]
        return count

    show(
        table,
        "a job through an element, asked; anew",
        partial(through, "kept", jobs, anew=False),
        partial(through, "anew", jobs // 20, anew=True),
    )
    first, *_, last = spent["kept"]
    growth = Figure(f"last tenth of {jobs:,} jobs / first", last / first, "")
    bench.figures("growth of the computing element", [growth])


def main() -> None:
    """Read the command line and measure."""
    bench = Benchmark(__file__, __doc__)
    times = bench.of(200_000, 20_000, 10_000)
    table = bench.table("a single operation", "what; its limit", "ours, us", "limit, us", "times")
    show_reading(table, times)
    show_publishing(table, times * 5 if bench.size != "smallest" else times)
    show_element(bench, table, times)
    bench.write()


if __name__ == "__main__":
    main()
