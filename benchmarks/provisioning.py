"""
The pool: what it costs to decide, and how many workers it can take in.

Tables:

deciding
    One decision with 100 allocations at 5 sites: nothing to do, and 50 processors more to be
    asked for, by every policy; median of many.

joining
    10,000 workers that join within 100 s of virtual time, in requests of every policy, on a site
    with room for all: the pool is asked every second, told of everything, and shown everything.
    Seconds of the processor for all of it, and the slowest decision.

Use::

    python benchmarks/provisioning.py [--quick]

Times are of the processor: the machine may be doing other things.
"""

import statistics
import time
from dataclasses import dataclass, field, replace

from figures import Benchmark, Table

from bursar.model.allocation import Allocation, AllocationLoad, AllocationRequest
from bursar.model.provisioning import ACQUISITIONS, Acquisition, AcquisitionPolicy, ProcessorDemand
from bursar.model.slot import Slot
from bursar.provisioning.pool import PilotPool
from bursar.provisioning.pool_snapshot import PoolSite, PoolSnapshot

WORKERS = 10_000
SECONDS = 100
JOIN_AIM = 5.0
"""Seconds for all of them."""
HELD = 100
SITES = 5
DECIDE_AIM = 1e-3
"""Seconds of one decision."""


# Deciding.


def decide(table: Table, acquisition: Acquisition, rounds: int) -> None:
    """Add a line of the table."""
    idle = [_decided(acquisition, more=0) for _ in range(rounds)]
    asking = [_decided(acquisition, more=50) for _ in range(rounds)]
    made = asking[0][1]
    quiet, busy = (1000 * statistics.median(t for t, _ in all_) for all_ in (idle, asking))
    table.add(acquisition, quiet, made, busy, max(quiet, busy) < 1000 * DECIDE_AIM)


def _decided(acquisition: Acquisition, more: int) -> tuple[float, int]:
    """Seconds of one decision, and what was decided."""
    names = [f"site-{i}" for i in range(SITES)]
    rules = AcquisitionPolicy(acquisition=acquisition)
    sites = {
        name: PoolSite(
            name=name,
            rules=rules,
            processors=96,
            per_node=12,
            unit_price=1.0,
            free=8,
            backfill_windows=tuple(
                Slot(start=60.0 * i, duration=900.0, processors=4) for i in range(20)
            ),
            arrays=True,
            node_ranges=True,
        )
        for name in names
    }
    held = tuple(
        Allocation(
            name=f"a{i}",
            site=names[i % SITES],
            processors=1,
            asked=0.0,
            duration=3600.0,
            granted=1.0,
            until=3601.0,
            workload=AllocationLoad(ready=1, busy=1),
        )
        for i in range(HELD)
    )
    demand = ProcessorDemand(
        tasks=more, processors=more, widest=1, work=60.0 * more, longest=60.0, running=HELD
    )
    pool, view = PilotPool(), PoolSnapshot(now=100.0, demand=demand, allocations=held, sites=sites)
    before = time.perf_counter()
    decisions = pool.decide(view)
    return time.perf_counter() - before, len(decisions)


# Joining.


@dataclass(slots=True)
class _Site:
    """Requests begin in their order, evenly over the time."""

    workers: int
    allocations: dict[str, Allocation] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)
    free: int = 0

    def take(self, ask: AllocationRequest, now: float) -> str:
        name = f"a{len(self.allocations)}"
        self.allocations[name] = Allocation(
            name=name,
            site="site",
            processors=ask.processors,
            asked=now,
            duration=ask.duration,
            bundle=ask.bundle,
        )
        self.waiting.append(name)
        return name

    def begin(self, processors: int, now: float) -> list[str]:
        """Those of so many processors more, whole requests only."""
        begun = []
        self.free += processors
        while self.waiting and self.allocations[self.waiting[0]].processors <= self.free:
            name = self.waiting.pop(0)
            a = self.allocations[name]
            self.free -= a.processors
            self.allocations[name] = replace(
                a,
                granted=now,
                until=now + a.duration,
                workload=AllocationLoad(ready=a.processors, busy=a.processors),
            )
            begun.append(name)
        return begun


def join(table: Table, acquisition: Acquisition, workers: int) -> None:
    """Add a line of the table."""
    rules = AcquisitionPolicy(acquisition=acquisition, most=workers, max_pending=workers)
    told = PoolSite(
        name="site",
        rules=rules,
        processors=2 * workers,
        per_node=64,
        free=2 * workers,
        backfill_windows=(Slot(start=0.0, duration=86_400.0, processors=2 * workers),),
        arrays=True,
        node_ranges=True,
    )
    pool, site = PilotPool(), _Site(workers)
    slowest, began = 0.0, time.process_time()
    for second in range(SECONDS + 1):
        now = float(second)
        for name in site.begin(-(-workers // SECONDS) if second else 0, now):
            pool.began(name, now)
        running = sum(a.workload.ready for a in site.allocations.values())
        left = 10 * workers - running
        view = PoolSnapshot(
            now=now,
            demand=ProcessorDemand(
                tasks=left,
                processors=left,
                widest=1,
                work=60.0 * left,
                longest=60.0,
                running=running,
            ),
            allocations=tuple(site.allocations.values()),
            sites={"site": told},
        )
        before = time.process_time()
        decisions = pool.decide(view)
        slowest = max(slowest, time.process_time() - before)
        for decision in decisions:
            if isinstance(decision, AllocationRequest):
                pool.asked(site.take(decision, now), decision, now)
    took = time.process_time() - began
    held = sum(a.workload.ready for a in site.allocations.values())
    table.add(acquisition, held, len(site.allocations), took, 1000 * slowest, took <= JOIN_AIM)


def main() -> None:
    """Measure both tables."""
    bench = Benchmark(__file__, __doc__)
    rounds = bench.of(200, 20, 2)
    workers = bench.of(WORKERS, WORKERS // 10, 100)
    table = bench.table(
        f"deciding: {HELD} allocations, {SITES} sites, aim {1000 * DECIDE_AIM:g} ms",
        *("policy", "nothing to ask, ms", "decisions", "asking, ms", "met"),
    )
    for acquisition in ACQUISITIONS:
        decide(table, acquisition, rounds)
    table = bench.table(
        f"joining: {workers:,} workers, aim {JOIN_AIM:g} s",
        *("policy", "workers", "requests", "s", "slowest decision, ms", "met"),
    )
    for acquisition in ACQUISITIONS:
        join(table, acquisition, workers)
    bench.write()


if __name__ == "__main__":
    main()
