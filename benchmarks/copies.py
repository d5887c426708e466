"""
Copies of tasks that take long, on processors that a run holds: paired campaigns with and without.

Campaigns of 40 to 120 tasks of one to three kinds on 8 to 24 processors of two sites (speeds 1 and
1.5). One task in five is a straggler. Either its attempt is slow, and a copy takes the usual time;
or the task itself is slow, and a copy takes as long. Nothing is known of earlier runs. Both runs of
a pair have the same run times; the copies are those of ``choose_copies``, looked for as often as in
a run. The deadline is 1.2 to 3 times the end that the campaign would have without stragglers.

A processor is paid until its last use: idle processors that get no copy count as given back, those
that get one as held until then. Where leases are held until the run ends in any case, the ratio of
costs is that of the ends. No processors are bought for copies.

Use::

    python benchmarks/copies.py [--quick]
"""

import heapq
from bisect import insort
from dataclasses import dataclass

import numpy as np
from figures import Benchmark

from bursar.forecasts.stragglers import IdleWorker, RunningTask, choose_copies, expected_time
from bursar.runs.forecasting.straggler_watch import LOOKS

SEED = 25
SPEEDS = {"a": 1.0, "b": 1.5}
STRAGGLERS = 0.2


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


def main() -> None:
    """Measure, and print the table."""
    bench = Benchmark(__file__, __doc__)
    count = bench.of(1000, 200, 4)
    table = bench.table(
        f"{count} pairs of campaigns for each row, 20 % stragglers, seed {SEED}",
        "slow is",
        "by",
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
    for of_task in (False, True):
        for least, most in ((2.0, 4.0), (5.0, 10.0)):
            random = np.random.default_rng(SEED)
            cases = [draw_case(random, least, most, of_task) for _ in range(count)]
            without = np.array([run(case, copies=False) for case in cases])
            found = np.array([run(case, copies=True) for case in cases])
            deadlines = np.array([case.deadline for case in cases])
            kept, before = found[:, 0] <= deadlines, without[:, 0] <= deadlines
            apart = kept.astype(float) - before
            table.add(
                "the task" if of_task else "the attempt",
                f"{least:g} to {most:g}",
                float(found[:, 2].mean()),
                *geometric(found[:, 0] / without[:, 0]),
                float(before.mean()),
                float(kept.mean()),
                1.96 * float(apart.std(ddof=1)) / count**0.5,
                *geometric(found[:, 1] / without[:, 1]),
            )
    bench.write()


if __name__ == "__main__":
    main()
