"""
The schedule adviser: what one decision costs, and how it grows with the jobs.

Tables:

decisions
    One decision for 10,000 jobs over 100 sites of 20 processors, as every
    strategy takes it: among ready estimates, with a spread, a deadline and a
    budget that bind. Jobs of one size, and of 10,000 sizes.
growth
    The same for 10,000, 100,000 and 1,000,000 jobs, from the list of sizes to
    the advice, with a sort of as many random numbers in the same run as the
    yardstick of n log n.
events
    A campaign of 10,000 jobs on these sites, end by end in a world without a
    clock: seconds of deciding for each job.

Use::

    python benchmarks/strategies.py [--quick]

Times are of the processor, the least of some runs: the machine may be doing other things.
"""

import heapq
import math
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from figures import Benchmark

from bursar.broker.adaptive import AdaptiveScheduleAdviser
from bursar.broker.adviser import NimrodAdviser, ScheduleAdviser, SchedulingSnapshot, SiteSnapshot
from bursar.broker.backlog import Backlog
from bursar.broker.dynamic_scheduler import ResumeState
from bursar.broker.economy import EconomyScheduler
from bursar.broker.estimates import RuntimeEstimates
from bursar.broker.feasibility import assess_feasibility
from bursar.broker.strategies import Strategy
from bursar.model.campaign import Goal
from bursar.model.site import SiteFacts
from bursar.model.task import Outcome, Status, Task

SITES, PROCESSORS = 100, 20
JOBS = 10_000
AIM = 0.05
"""Seconds of a decision for so many jobs."""
GROWTH = (10_000, 100_000, 1_000_000)
STATED: tuple[Strategy, ...] = ("time", "cost", "none", "cost-time", "conservative-time")
ADVISERS: dict[str, ScheduleAdviser] = {name: NimrodAdviser(name) for name in STATED} | {
    "adaptive, cheapest": AdaptiveScheduleAdviser(Goal(trade_off=1.0)),
    "adaptive, fastest": AdaptiveScheduleAdviser(Goal(trade_off=0.0)),
    "adaptive, between": AdaptiveScheduleAdviser(Goal(trade_off=0.5)),
}


def least(call: Callable[[], object], times: int = 5) -> float:
    """Least processor seconds of so many calls."""
    found = []
    for _ in range(times):
        began = time.process_time()
        call()
        found.append(time.process_time() - began)
    return min(found)


def sizes_of(jobs: int, *, alike: bool) -> list[float]:
    """A minute and a half; or from seconds to hours."""
    if alike:
        return [90.0] * jobs
    return np.random.default_rng(1).lognormal(4.0, 1.0, jobs).tolist()


def situation(sizes: list[float], *, by_size: bool) -> SchedulingSnapshot:
    """Half the processors busy; limits that half of the sites would do for."""
    rng = np.random.default_rng(2)
    prices, speeds = rng.integers(1, 30, SITES), rng.uniform(0.5, 2.0, SITES)
    estimates = RuntimeEstimates({f"s{i}": float(speeds[i]) for i in range(SITES)}, known=True)
    for i in range(SITES):
        for ratio in rng.normal(1.0, 0.1, 5):
            seconds = max(0.1, ratio) / speeds[i]
            estimates.learn(f"s{i}", 1.0, seconds, seconds)
    backlog = Backlog(sizes, by_size=by_size)
    for job in range(len(sizes)):
        backlog.add(job)
    work = sum(sizes)
    budget = work * float(np.median(prices / speeds))
    return SchedulingSnapshot(
        sites=[
            SiteSnapshot(
                name=f"s{i}",
                processors=PROCESSORS,
                prices=((0.0, math.inf, float(prices[i])),),
                running=tuple((90.0, float(age)) for age in rng.uniform(0, 90, PROCESSORS // 2)),
                probed=True,
            )
            for i in range(SITES)
        ],
        sizes=backlog.sizes,
        jobs=len(sizes),
        estimates=estimates,
        time_left=200.0 + 2.0 * work / float(speeds.sum() * PROCESSORS),
        money_left=budget,
        budget=budget,
    )


def show_decisions(bench: Benchmark, jobs: int) -> None:
    """Every strategy, for jobs of one size and of many."""
    table = bench.table(
        f"one decision, {jobs:,} jobs over {SITES} sites of {PROCESSORS} processors",
        *("strategy", "one size, ms", "many sizes, ms", "aim, ms", "met"),
    )
    for name, adviser in ADVISERS.items():
        taken = []
        for alike in (True, False):
            at = situation(sizes_of(jobs, alike=alike), by_size=adviser.by_size)
            assert sum(map(sum, adviser.advise(at).given)) == jobs or name == "time"
            taken.append(least(lambda adviser=adviser, at=at: adviser.advise(at)))
        table.add(name, 1e3 * taken[0], 1e3 * taken[1], 1e3 * AIM, max(taken) <= AIM)
    at = situation(sizes_of(jobs, alike=False), by_size=True)
    poor = replace(at, money_left=at.money_left / 3, time_left=at.time_left / 2)
    for name, seen in (("outlook", at), ("outlook, out of reach", poor)):
        seconds = least(lambda seen=seen: assess_feasibility(seen))
        table.add(name, None, 1e3 * seconds, None, None)


def show_growth(bench: Benchmark, counts: tuple[int, ...]) -> None:
    """From a list of sizes to the advice, over a sort of as many numbers."""
    table = bench.table(
        "from sizes to advice, seconds, and times a sort of as many numbers",
        "strategy",
        *(name for n in counts for name in (f"{n:,} jobs, s", "of a sort")),
    )
    sorting = []
    for n in counts:
        numbers = np.random.default_rng(3).random(n).tolist()
        sorting.append(least(lambda numbers=numbers: sorted(numbers), 3))
    table.add("sort", *(cell for seconds in sorting for cell in (seconds, 1.0)))
    for name, adviser in ADVISERS.items():
        cells: list[float] = []
        for n, sort in zip(counts, sorting, strict=True):
            sizes = sizes_of(n, alike=False)
            seconds = least(
                lambda adviser=adviser, sizes=sizes: adviser.advise(
                    situation(sizes, by_size=adviser.by_size)
                ),
                1 if n > JOBS else 3,
            )
            cells += [seconds, seconds / sort]
        table.add(name, *cells)


def show_events(bench: Benchmark, jobs: int) -> None:
    """A whole campaign, decision by decision."""
    table = bench.table(
        f"a campaign of {jobs:,} jobs on these sites, deciding alone",
        *("strategy", "s", "ms a job", "jobs done"),
    )
    rng = np.random.default_rng(4)
    sizes = rng.lognormal(4.0, 1.0, jobs).tolist()
    sites = [
        SiteFacts(
            name=f"s{i}",
            kind="simulated",
            processors=PROCESSORS,
            unit_price=float(rng.integers(1, 30)),
            speed=float(rng.uniform(0.5, 2.0)),
        )
        for i in range(SITES)
    ]
    noise = rng.lognormal(0.0, 0.1, jobs).tolist()
    goal = Goal(deadline=3.0 * sum(sizes) / (SITES * PROCESSORS) + 5.0 * max(sizes))
    for name in ("adaptive", "cost"):
        tasks = [Task(id=str(i), runtime=size) for i, size in enumerate(sizes)]
        economy = EconomyScheduler(tasks, sites, goal, name)
        began = time.process_time()
        done = carried_out(economy, {site.name: site.speed for site in sites}, sizes, noise)
        took = time.process_time() - began
        table.add(name, took, 1e3 * took / jobs, done)


def carried_out(
    economy: EconomyScheduler, speeds: dict[str, float], sizes: list[float], noise: list[float]
) -> int:
    """Every job ends after its time, off by some noise; how many there were."""
    now = 0.0
    running: list[tuple[float, float, int]] = []
    free_at: dict[str, float] = {}
    done = 0
    past = ResumeState(
        ended=frozenset(),
        succeeded=frozenset(),
        attempts=(),
        pilots=0,
        clock=lambda: now,
        spent=lambda: 0.0,
    )
    asked = economy.begin(past)
    while asked or running:
        for pilot in asked:
            for task in pilot.tasks:
                begin = max(now, free_at.get(pilot.name, 0.0))
                end = begin + sizes[task] * noise[task] / speeds[pilot.site]
                free_at[pilot.name] = end
                heapq.heappush(running, (end, begin, task))
        economy.take_events()
        now, begin, task = heapq.heappop(running)
        done += 1
        outcome = Outcome(task=task, attempt=1, status=Status.SUCCEEDED, start=begin, end=now)
        asked = economy.ended([(outcome, True)])
    return done


def main() -> None:
    """Measure all tables."""
    bench = Benchmark(__file__, __doc__)
    show_decisions(bench, bench.of(JOBS, JOBS, 200))
    show_growth(bench, bench.of(GROWTH, GROWTH[:2], (100,)))
    show_events(bench, bench.of(JOBS, JOBS // 10, 50))
    bench.write()


if __name__ == "__main__":
    main()
