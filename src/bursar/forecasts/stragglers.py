"""
Which tasks that take long get a copy, and whether processors are bought for it: pure decisions.

How long a task takes that has run for some time already follows from the times of its kind that are
longer. The longest time that was seen is no bound: among ``n`` seen times and the next one, each is
as likely to be the longest, so that the next one exceeds all with a probability of ``1 / (n + 1)``;
beyond, times are taken to follow a Pareto law whose mean is twice the least (index 2). So a task
that has run for longer than all before it is expected to take as long again.
"""

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WORTH = 1.25
"""Expected rest of an attempt over the expected time of a copy, from which a copy is worth it."""

LEAST_SEEN = 5
"""Times of a kind that must be known before any of its tasks gets a copy."""

ENOUGH = 20
"""Times of one execution from which on earlier executions are not looked at."""

SHARE = 0.1
"""Part of the running tasks that may have a copy at one time; at least one may."""

BEYOND = 2.0
"""Mean of the times beyond the longest that was seen, over that one."""

LEAST_ODDS = 0.02
"""Rise of the probability of the deadline from which processors are bought for a copy."""

LEAST_GAIN = 0.05
"""
Part of the expected time left by which a copy must bring the end forward, where there is no
deadline, from which processors are bought for it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTask:
    """
    A task that runs and may have a copy.

    Parameters
    ----------
    worker
        Name of the worker that runs it.
    kind
        Kind whose times say how long it takes.
    scale
        Seconds at speed 1 that stand for 1 in these times; positive.
    elapsed
        Seconds for which the attempt has run.
    speed
        Work per second where it runs; positive.
    processors
        Processors that it holds.
    sites
        Names of the sites where a copy may run; None: all.
    """

    task: int
    worker: str
    kind: str
    scale: float
    elapsed: float
    speed: float = 1.0
    processors: int = 1
    sites: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleWorker:
    """
    A worker with processors that are held, paid and not used.

    Parameters
    ----------
    name, site
        Names of the worker and of its site.
    free
        Processors that no task holds.
    speed
        Work per second; positive.
    time_left
        Seconds until its processors are taken away.
    """

    name: str
    site: str
    free: int
    speed: float = 1.0
    time_left: float = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyChoice:
    """
    A copy that is worth it.

    Parameters
    ----------
    task, worker
        Number of the task, and name of the worker that is to run the copy.
    left, fresh
        Seconds that the attempt which runs is expected to take yet, and that the copy is.
    """

    task: int
    worker: str
    left: float
    fresh: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutlook:
    """
    What is expected of a run, with a copy or without one.

    Parameters
    ----------
    odds
        Probability that the deadline is kept; 1 without one.
    paid
        Probability that the budget is enough; 1 without one.
    end
        Expected end, seconds since the run's begin.
    cost
        Expected cost, currency units; infinite where a price is unknown.
    """

    odds: float = 1.0
    paid: float = 1.0
    end: float
    cost: float


def copy_chance(faster: int, slower: int) -> float:
    """
    Return the probability that a copy is not as slow as the first attempt of its task.

    By the rule of succession: one half before any race is decided, and nearer to 0 the more copies
    were outrun. Where tasks are slow, and not their attempts, no processors are bought before long.

    Parameters
    ----------
    faster, slower
        Races of the run that were won by the copy, and by the first attempt.
    """
    return (1 + faster) / (2 + faster + slower)


def choose_purchase(
    without: RunOutlook,
    offers: Sequence[RunOutlook],
    *,
    now: float,
    confidence: float,
    has_deadline: bool,
) -> int | None:
    """
    Choose the copy, by its place among the offers, for which processors are bought; None: none.

    With a deadline, nothing is bought while its probability is no less than the confidence asked
    for. Under that, the cheapest copy is bought of those with which the confidence is reached, and
    else the one that raises the probability most. Without a deadline it is the one with the
    earliest expected end. None makes it less likely that the budget is enough, unless that is still
    as certain as the confidence.

    Parameters
    ----------
    without, offers
        What is expected without another copy, and with each one that is possible.
    now
        Seconds since the run's begin.
    """
    certain = min(confidence, without.paid)
    able = [(one, at) for at, one in enumerate(offers) if one.paid >= certain]
    if has_deadline:
        if without.odds >= confidence:
            return None
        better = [(one, at) for one, at in able if one.odds >= without.odds + LEAST_ODDS]
        enough = [(one, at) for one, at in better if one.odds >= confidence]
        ranked = sorted(
            enough or better,
            key=lambda entry: (0.0 if enough else -entry[0].odds, entry[0].cost, entry[1]),
        )
    else:
        least = LEAST_GAIN * max(without.end - now, 0.0)
        better = [(one, at) for one, at in able if without.end - one.end > least]
        ranked = sorted(better, key=lambda entry: (entry[0].end, entry[0].cost, entry[1]))
    return ranked[0][1] if ranked else None


def expected_time(seen: Sequence[float]) -> float:
    """
    Return the expected time of the next task.

    Parameters
    ----------
    seen
        Times of its kind, ascending, at least one.
    """
    return (sum(seen) + BEYOND * seen[-1]) / (len(seen) + 1)


def expected_rest(seen: Sequence[float], elapsed: float) -> float:
    """
    Return the expected time that a task takes yet.

    Parameters
    ----------
    seen
        Times of its kind, ascending, at least one.
    elapsed
        Time for which it has run, in the same unit.
    """
    longer = seen[bisect.bisect_right(seen, elapsed) :]
    beyond = BEYOND * max(seen[-1], elapsed) - elapsed
    return (sum(longer) - len(longer) * elapsed + beyond) / (len(longer) + 1)


def blend_times(own: Sequence[float], earlier: Sequence[float]) -> Sequence[float]:
    """
    Return the times to go by: this execution's, with those of earlier ones while they are few.

    Earlier times are moved to the median of the own ones, since executions differ as wholes.

    Parameters
    ----------
    own, earlier
        Times of one kind, ascending.
    """
    if not earlier or len(own) >= ENOUGH:
        return own
    factor = 1.0
    if len(own) >= LEAST_SEEN:
        factor = own[len(own) // 2] / max(earlier[len(earlier) // 2], 1e-9)
    return sorted([*own, *(time * factor for time in earlier)])


def choose_copies(
    running: Sequence[RunningTask],
    idle: Sequence[IdleWorker],
    seen: Mapping[str, Sequence[float]],
    *,
    tasks: int,
    copies: int = 0,
) -> list[CopyChoice]:
    """
    Choose the tasks that get a copy, those that gain most first.

    Parameters
    ----------
    running
        Tasks without a copy so far.
    idle
        Workers for whose processors no task waits.
    seen
        Times of each kind, ascending, as multiples of the tasks' scale.
    tasks
        Number of tasks that run.
    copies
        Number of copies that run.
    """
    most = max(1, int(SHARE * tasks)) - copies
    if most <= 0 or not idle:
        return []
    found: list[tuple[float, RunningTask, float, float]] = []
    fresh_of = {kind: expected_time(times) for kind, times in seen.items() if times}
    for one in running:
        times = seen.get(one.kind, ())
        if len(times) < LEAST_SEEN:
            continue
        rest = expected_rest(times, one.elapsed * one.speed / one.scale)
        left, work = rest * one.scale / one.speed, fresh_of[one.kind] * one.scale
        found.append((left - work / max(worker.speed for worker in idle), one, left, work))
    found.sort(key=lambda entry: (-entry[0], entry[1].task))
    free = {worker.name: worker.free for worker in idle}
    chosen: list[CopyChoice] = []
    for _, one, left, work in found:
        fitting = [
            worker
            for worker in idle
            if free[worker.name] >= one.processors
            and (one.sites is None or worker.site in one.sites)
            and work / worker.speed <= worker.time_left
            and left > WORTH * work / worker.speed
        ]
        if len(chosen) == most:
            break
        if fitting:
            # Elsewhere, where that is as fast: what slows the attempt may be its machine.
            worker = max(fitting, key=lambda w: (w.speed, w.name != one.worker))
            free[worker.name] -= one.processors
            chosen.append(
                CopyChoice(task=one.task, worker=worker.name, left=left, fresh=work / worker.speed)
            )
    return chosen
