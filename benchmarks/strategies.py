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

import argparse
import heapq
import math
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from bursar.broker.adaptive import AdaptiveAdviser
from bursar.broker.adviser import Adviser, Position, Situation, StatedAdviser
from bursar.broker.backlog import Backlog
from bursar.broker.economy import Economy
from bursar.broker.estimates import Estimates
from bursar.broker.outlook import look_ahead
from bursar.broker.strategies import Strategy
from bursar.broker.supply import Past
from bursar.model.goal import Goal
from bursar.model.outcome import Outcome, Status
from bursar.model.site import SiteFacts
from bursar.model.task import Task

SITES, PROCESSORS = 100, 20
JOBS = 10_000
AIM = 0.05
"""Seconds of a decision for so many jobs."""
GROWTH = (10_000, 100_000, 1_000_000)
STATED: tuple[Strategy, ...] = ("time", "cost", "none", "cost-time", "conservative-time")
ADVISERS: dict[str, Adviser] = {name: StatedAdviser(name) for name in STATED} | {
    "adaptive, cheapest": AdaptiveAdviser(Goal(trade_off=1.0)),
    "adaptive, fastest": AdaptiveAdviser(Goal(trade_off=0.0)),
    "adaptive, between": AdaptiveAdviser(Goal(trade_off=0.5)),
}


def main() -> None:
    """All tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="up to 100,000 jobs only")
    quick = parser.parse_args().quick
    show_decisions()
    show_growth(GROWTH[:2] if quick else GROWTH)
    show_events(JOBS // 10 if quick else JOBS)


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


def situation(sizes: list[float], *, by_size: bool) -> Situation:
    """Half the processors busy; limits that half of the sites would do for."""
    rng = np.random.default_rng(2)
    prices, speeds = rng.integers(1, 30, SITES), rng.uniform(0.5, 2.0, SITES)
    estimates = Estimates({f"s{i}": float(speeds[i]) for i in range(SITES)}, known=True)
    for i in range(SITES):
        for ratio in rng.normal(1.0, 0.1, 5):
            seconds = max(0.1, ratio) / speeds[i]
            estimates.learn(f"s{i}", 1.0, seconds, seconds)
    backlog = Backlog(sizes, by_size=by_size)
    for job in range(len(sizes)):
        backlog.add(job)
    work = sum(sizes)
    budget = work * float(np.median(prices / speeds))
    return Situation(
        sites=[
            Position(
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


def show_decisions() -> None:
    """Every strategy, for jobs of one size and of many."""
    print(f"one decision, {JOBS:,} jobs over {SITES} sites of {PROCESSORS} processors, ms")
    print(f"{'':22}{'one size':>10}{'many sizes':>12}{'aim':>6}")
    for name, adviser in ADVISERS.items():
        taken = []
        for alike in (True, False):
            at = situation(sizes_of(JOBS, alike=alike), by_size=adviser.by_size)
            assert sum(map(sum, adviser.advise(at).given)) == JOBS or name == "time"
            taken.append(least(lambda adviser=adviser, at=at: adviser.advise(at)))
        verdict = "met" if max(taken) <= AIM else "MISSED"
        print(f"{name:22}{1e3 * taken[0]:10.1f}{1e3 * taken[1]:12.1f}{1e3 * AIM:6.0f}   {verdict}")
    at = situation(sizes_of(JOBS, alike=False), by_size=True)
    poor = replace(at, money_left=at.money_left / 3, time_left=at.time_left / 2)
    print(f"{'outlook':22}{'':10}{1e3 * least(lambda: look_ahead(at)):12.1f}")
    print(f"{'outlook, out of reach':22}{'':10}{1e3 * least(lambda: look_ahead(poor)):12.1f}")


def show_growth(counts: tuple[int, ...]) -> None:
    """From a list of sizes to the advice, over a sort of as many numbers."""
    print("\nfrom sizes to advice, seconds; over a sort of as many numbers, in brackets")
    print(f"{'jobs':22}" + "".join(f"{n:>19,}" for n in counts))
    sorting = []
    for n in counts:
        numbers = np.random.default_rng(3).random(n).tolist()
        sorting.append(least(lambda numbers=numbers: sorted(numbers), 3))
    print(f"{'sort':22}" + "".join(f"{seconds:11.4f}        " for seconds in sorting))
    for name, adviser in ADVISERS.items():
        line = f"{name:22}"
        for n, sort in zip(counts, sorting, strict=True):
            sizes = sizes_of(n, alike=False)
            seconds = least(
                lambda adviser=adviser, sizes=sizes: adviser.advise(
                    situation(sizes, by_size=adviser.by_size)
                ),
                1 if n > JOBS else 3,
            )
            line += f"{seconds:11.3f} ({seconds / sort:5.1f})"
        print(line)


def show_events(jobs: int) -> None:
    """A whole campaign, decision by decision."""
    print(f"\na campaign of {jobs:,} jobs on these sites, deciding alone")
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
        economy = Economy(tasks, sites, goal, name)
        began = time.process_time()
        done = carried_out(economy, {site.name: site.speed for site in sites}, sizes, noise)
        took = time.process_time() - began
        print(f"{name:22}{took:9.2f} s{1e3 * took / jobs:9.3f} ms a job   {done:,} done")


def carried_out(
    economy: Economy, speeds: dict[str, float], sizes: list[float], noise: list[float]
) -> int:
    """Every job ends after its time, off by some noise; how many there were."""
    now = 0.0
    running: list[tuple[float, float, int]] = []
    free_at: dict[str, float] = {}
    done = 0
    past = Past(
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
        economy.news()
        now, begin, task = heapq.heappop(running)
        done += 1
        outcome = Outcome(task=task, attempt=1, status=Status.SUCCEEDED, start=begin, end=now)
        asked = economy.ended([(outcome, True)])
    return done


if __name__ == "__main__":
    main()
