"""
Copies of tasks that take long, on held and on bought processors: paired campaigns with and without.

Campaigns of 40 to 120 tasks of one to three kinds on 8 to 24 processors of two sites (speeds 1 and
1.5). One task in five is a straggler. Either its attempt is slow, and a copy takes the usual time;
or the task itself is slow, and a copy takes as long. Nothing is known of earlier runs. Both runs of
a pair have the same run times; the copies are those of ``choose_copies``, looked for as often as in
a run. The deadline is 1.2 to 3 times the end that the campaign would have without stragglers.

A processor is paid until its last use: idle processors that get no copy count as given back, those
that get one as held until then. Where leases are held until the run ends in any case, the ratio of
costs is that of the ends.

In the second table no held processor is ever idle for a copy: what has no task is given back at
once. Processors are bought for copies at both sites as a run buys them (``judge_copies`` on the
draws of the run's own forecast, asked for as often as by a run without a deadline), are there
after up to five seconds, and cost as much as the others from the purchase until the race is
decided. There is no queue and no budget.
With a deadline, one is bought only while the deadline is less certain than 90 %.

Use::

    python benchmarks/copies.py [--quick]
"""

import heapq
import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from figures import Benchmark

from bursar.forecasts.stragglers import (
    CopyChoice,
    IdleWorker,
    RunningTask,
    choose_copies,
    copy_chance,
    expected_time,
)
from bursar.model.campaign import Campaign, Goal, Workflow
from bursar.model.plan import Purchase
from bursar.model.provisioning import AT_ONCE, WorkerStarts
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.model.task import Status, Task
from bursar.runs.forecasting.copy_offers import CopyOffer, judge_copies
from bursar.runs.forecasting.live_forecast import PAUSE, STILL
from bursar.runs.forecasting.standing import (
    EndedAttempt,
    RunningAttempt,
    RunStanding,
    StandingCopy,
)
from bursar.runs.forecasting.standing_forecast import StandingForecaster
from bursar.runs.forecasting.straggler_watch import LOOKS

SEED = 25
SPEEDS = {"a": 1.0, "b": 1.5}
STRAGGLERS = 0.2
OPENING = 5.0
"""Seconds until a processor that was bought takes a task, at most."""


@dataclass(frozen=True, slots=True)
class Case:
    """A campaign: kinds, times at speed 1 of first attempts and copies, processors' sites."""

    kind: np.ndarray
    usual: np.ndarray
    first: np.ndarray
    again: np.ndarray
    sites: tuple[str, ...]
    deadline: float


def draw_case(random: np.random.Generator, least: float, most: float, of_task: bool) -> Case:
    """Draw a campaign whose stragglers take ``least`` to ``most`` times as long."""
    kinds, count = int(random.integers(1, 4)), int(random.integers(40, 121))
    kind = random.integers(0, kinds, count)
    level, within = random.normal(4.0, 0.8, kinds), random.uniform(0.05, 0.3, kinds)
    usual = np.exp(level[kind] + within[kind] * random.normal(size=count))
    fresh = np.exp(level[kind] + within[kind] * random.normal(size=count))
    slow = random.random(count) < STRAGGLERS
    first = np.where(slow, usual * random.uniform(least, most, count), usual)
    sites = tuple(random.choice(list(SPEEDS), int(random.integers(8, 25))).tolist())
    again = first if of_task else fresh
    case = Case(kind, usual, first, again, sites, float("inf"))
    ideal, _, _ = run(Case(kind, usual, usual, usual, sites, float("inf")), copies=False)
    deadline = ideal * float(random.uniform(1.2, 3.0))
    return Case(case.kind, usual, first, again, sites, deadline)


def _slot(site: str, start: float) -> Slot:
    """Return one processor, at a price of 1 for each second."""
    return Slot(
        site=site,
        start=start,
        duration=math.inf,
        processors=1,
        unit_price=1.0,
        divisible=True,
        leased=True,
    )


@dataclass(slots=True)
class Buyer:
    """
    Decides which copies processors are bought for, as a run does.

    Parameters
    ----------
    goal
        With a deadline or without one.
    """

    case: Case
    goal: Goal
    ended: dict[int, EndedAttempt] = field(default_factory=dict)
    won: list[bool] = field(default_factory=list)
    forecaster: StandingForecaster = field(init=False)
    _asked: float = PAUSE
    _last: float = -math.inf
    _seen: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        """Learn what is known, which is nothing."""
        tasks = tuple(Task(id=f"t{n}", name=f"k{k}") for n, k in enumerate(self.case.kind))
        sites = [
            SiteFacts(name=name, kind="simulated", processors=len(tasks), speed=speed)
            for name, speed in SPEEDS.items()
        ]
        campaign = Campaign(name="c", workflow=Workflow(tasks), root=Path(), goal=self.goal)
        self.forecaster = StandingForecaster(campaign, sites, None, "")

    def choose(
        self,
        now: float,
        running: Sequence[RunningTask],
        copies: Sequence[StandingCopy],
        seen: dict[str, list[float]],
    ) -> CopyChoice | None:
        """Return the copy to buy a processor for, with its site as the worker; None: none now."""
        choices = [
            choice
            for site, speed in SPEEDS.items()
            for choice in choose_copies(
                [one for one in running if one.task not in {c.task for c in copies}],
                [IdleWorker(name=site, site=site, free=len(running), speed=speed)],
                seen,
                tasks=len(running),
                copies=len(copies),
            )
        ]
        stragglers = frozenset(choice.task for choice in choices)
        if not stragglers <= self._seen:
            self._asked = PAUSE
        self._seen = stragglers
        if not stragglers or now - self._last < self._asked:
            return None
        held = {str(p): _slot(site, -1.0) for p, site in enumerate(self.case.sites)}
        standing = RunStanding(
            now=now,
            moment=now,
            ended=frozenset(self.ended),
            running=[
                RunningAttempt(one.task, self.case.sites[int(one.worker)], one.worker, one.elapsed)
                for one in running
            ],
            attempts=list(self.ended.values()),
            spent=0.0,
            leases={name: Purchase(slot=slot) for name, slot in held.items()},
            queued={},
            opening={},
            held={},
            lease_of={},
            plan=None,
            goal=self.goal,
            copies=copies,
            stragglers=stragglers,
            fresh=copy_chance(sum(self.won), len(self.won) - sum(self.won)),
        )
        self._last, self._asked = now, min(2 * self._asked, STILL)
        forecast = self.forecaster.forecast(standing, ((), ()))
        if forecast is None:
            return None
        offers = [
            CopyOffer(
                choice=choice,
                copy=StandingCopy(
                    task=choice.task,
                    site=choice.worker,
                    comes=now,
                    opening=WorkerStarts(0.0, OPENING),
                    bought=_slot(choice.worker, 0.0),
                ),
            )
            for choice in choices
        ]
        chosen = judge_copies(standing, forecast, offers, self.forecaster.again)
        return None if chosen is None else chosen.offer.choice


def run_bought(case: Case, goal: Goal, random: np.random.Generator) -> tuple[float, float, int]:
    """Return end, cost and number of copies of a run that buys processors for copies."""
    count, buyer = len(case.kind), Buyer(case, goal)
    idle = sorted(range(len(case.sites)), key=lambda p: -SPEEDS[case.sites[p]])
    last_use = [0.0] * len(case.sites)
    events: list[tuple[float, int, bool]] = []  # time, task, whether it is the copy
    at: dict[int, tuple[int, float]] = {}  # processor and start of the first attempt
    bought: dict[int, tuple[str, float, float]] = {}  # site, purchase and begin of a copy
    copied, seen, now, waiting, look, paid = set[int](), dict[str, list[float]](), 0.0, 0, 0.0, 0.0
    while waiting < count or at:
        while idle and waiting < count:
            processor = idle.pop(0)
            at[waiting] = (processor, now)
            seconds = case.first[waiting] / SPEEDS[case.sites[processor]]
            heapq.heappush(events, (now + seconds, waiting, False))
            waiting += 1
        while events[0][1] not in at:
            heapq.heappop(events)  # the attempt was stopped
        if look <= events[0][0]:
            now = max(now, look)
            expected = [expected_time(seen[k]) for t in at if (k := f"k{case.kind[t]}") in seen]
            look = now + max(LOOKS * min(expected, default=1 / LOOKS), 0.1)
            running = [
                RunningTask(
                    task=task,
                    worker=str(processor),
                    kind=f"k{case.kind[task]}",
                    scale=1.0,
                    elapsed=now - start,
                    speed=SPEEDS[case.sites[processor]],
                )
                for task, (processor, start) in at.items()
                if now > start and (task in bought or task not in copied)
            ]
            copies = [
                StandingCopy(
                    task=task,
                    site=site,
                    seconds=max(now - begin, 0.0),
                    comes=purchase,
                    opening=WorkerStarts(0.0, OPENING) if now < begin else AT_ONCE,
                    bought=_slot(site, 0.0),
                )
                for task, (site, purchase, begin) in bought.items()
            ]
            choice = buyer.choose(now, running, copies, seen)
            if choice is not None:
                copied.add(choice.task)
                begin = now + OPENING * float(random.random())
                bought[choice.task] = (choice.worker, now, begin)
                seconds = case.again[choice.task] / SPEEDS[choice.worker]
                heapq.heappush(events, (begin + seconds, choice.task, True))
            continue
        now, task, is_copy = heapq.heappop(events)
        processor, start = at.pop(task)
        site, purchase, begin = bought.pop(task, (case.sites[processor], now, start))
        paid += now - purchase
        if task in copied:
            buyer.won.append(is_copy)
        where, since = (site, begin) if is_copy else (case.sites[processor], start)
        buyer.ended[task] = EndedAttempt(task, where, now - since, Status.SUCCEEDED, math.nan)
        insort(seen.setdefault(f"k{case.kind[task]}", []), (now - since) * SPEEDS[where])
        last_use[processor] = now
        idle.append(processor)
    return now, sum(last_use) + paid, len(copied)


def run(case: Case, *, copies: bool) -> tuple[float, float, int]:
    """Return end, cost (processor-seconds until each one's last use) and number of copies."""
    count = len(case.kind)
    idle = sorted(range(len(case.sites)), key=lambda p: -SPEEDS[case.sites[p]])
    last_use = [0.0] * len(case.sites)
    events: list[tuple[float, int, int, int]] = []  # time, attempt, task, processor
    at: dict[int, dict[int, tuple[int, float]]] = {}  # task: attempt: processor, start
    seen: dict[str, list[float]] = {}
    waiting, copied, now, serial, look = 0, set[int](), 0.0, 0, 0.0

    def begin(task: int, processor: int, seconds: float) -> None:
        nonlocal serial
        idle.remove(processor)
        serial += 1
        at.setdefault(task, {})[serial] = (processor, now)
        heapq.heappush(
            events, (now + seconds / SPEEDS[case.sites[processor]], serial, task, processor)
        )

    while waiting < count or at:
        while idle and waiting < count:
            begin(waiting, idle[0], case.first[waiting])
            waiting += 1
        while events and events[0][1] not in at.get(events[0][2], {}):
            heapq.heappop(events)  # the attempt was stopped
        if copies and idle and look <= events[0][0]:
            now = max(now, look)
            expected = [expected_time(seen[k]) for t in at if (k := f"k{case.kind[t]}") in seen]
            look = now + max(LOOKS * min(expected, default=1 / LOOKS), 0.1)
            running = [
                RunningTask(
                    task=task,
                    worker=str(processor),
                    kind=f"k{case.kind[task]}",
                    scale=1.0,
                    elapsed=now - start,
                    speed=SPEEDS[case.sites[processor]],
                )
                for task, attempts in at.items()
                for processor, start in [next(iter(attempts.values()))]
            ]
            workers = [
                IdleWorker(name=str(p), site=case.sites[p], free=1, speed=SPEEDS[case.sites[p]])
                for p in idle
            ]
            able = [one for one in running if one.task not in copied]
            open_copies = sum(len(attempts) - 1 for attempts in at.values())
            for one in choose_copies(able, workers, seen, tasks=len(running), copies=open_copies):
                copied.add(one.task)
                begin(one.task, int(one.worker), case.again[one.task])
            continue
        now, attempt, task, processor = heapq.heappop(events)
        seconds = (now - at[task][attempt][1]) * SPEEDS[case.sites[processor]]
        insort(seen.setdefault(f"k{case.kind[task]}", []), seconds)
        for used, _ in at.pop(task).values():
            last_use[used] = now
            idle.append(used)
    return now, sum(last_use), len(copied)


def geometric(ratios: np.ndarray) -> tuple[float, float, float]:
    """Return the geometric mean of ratios, with its 95 % interval."""
    logs = np.log(ratios)
    half = 1.96 * float(logs.std(ddof=1)) / len(logs) ** 0.5
    mean = float(logs.mean())
    return float(np.exp(mean)), float(np.exp(mean - half)), float(np.exp(mean + half))


COMPARED = (
    "copies",
    "end, ratio",
    "95 % from",
    "to",
    "kept without",
    "kept with",
    "difference +- 95 %",
    "cost, ratio",
    "from",
    "to (cost)",
)
"""Columns of :func:`compared`."""


def compared(found: np.ndarray, without: np.ndarray, deadlines: np.ndarray) -> list[float]:
    """
    Return what campaigns with copies come to beside the same without.

    Parameters
    ----------
    found, without
        End, cost and number of copies of each campaign, shape ``(n, 3)``.
    deadlines
        Shape ``(n,)``, seconds.
    """
    kept, before = found[:, 0] <= deadlines, without[:, 0] <= deadlines
    apart = kept.astype(float) - before
    return [
        float(found[:, 2].mean()),
        *geometric(found[:, 0] / without[:, 0]),
        float(before.mean()),
        float(kept.mean()),
        1.96 * float(apart.std(ddof=1)) / len(found) ** 0.5,
        *geometric(found[:, 1] / without[:, 1]),
    ]


def main() -> None:
    """Measure, and print the table."""
    bench = Benchmark(__file__, __doc__)
    count = bench.of(1000, 200, 4)
    table = bench.table(
        f"{count} pairs of campaigns for each row, 20 % stragglers, seed {SEED}",
        "slow is",
        "by",
        *COMPARED,
    )
    for of_task in (False, True):
        for least, most in ((2.0, 4.0), (5.0, 10.0)):
            random = np.random.default_rng(SEED)
            cases = [draw_case(random, least, most, of_task) for _ in range(count)]
            without = np.array([run(case, copies=False) for case in cases])
            found = np.array([run(case, copies=True) for case in cases])
            deadlines = np.array([case.deadline for case in cases])
            table.add(
                "the task" if of_task else "the attempt",
                f"{least:g} to {most:g}",
                *compared(found, without, deadlines),
            )
    measure_bought(bench)
    bench.write()


def measure_bought(bench: Benchmark) -> None:
    """Measure copies on processors that are bought for them."""
    table = bench.table(
        f"Bought copies, pairs of campaigns, 20 % stragglers, seed {SEED}",
        "pairs",
        "slow is",
        "by",
        "deadline",
        *COMPARED,
    )
    for of_task in (False, True):
        for least, most in ((2.0, 4.0), (5.0, 10.0)):
            count = bench.of(200, 4, 2)
            random = np.random.default_rng(SEED)
            cases = [draw_case(random, least, most, of_task) for _ in range(count)]
            deadlines = np.array([case.deadline for case in cases])
            without = np.array([run(case, copies=False) for case in cases])
            for has_deadline in (True, False):
                random = np.random.default_rng(SEED)
                found = np.array(
                    [
                        run_bought(
                            case, Goal(deadline=case.deadline if has_deadline else None), random
                        )
                        for case in cases
                    ]
                )
                table.add(
                    count,
                    "the task" if of_task else "the attempt",
                    f"{least:g} to {most:g}",
                    "as asked" if has_deadline else "none asked",
                    *compared(found, without, deadlines),
                )


if __name__ == "__main__":
    main()
