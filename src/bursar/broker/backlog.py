"""
Jobs that have not been sent, by size, and those that our own strategy sends first.

The goal itself says something: a deadline and a budget that can be kept bound the run time from
above. The jobs are laid out for the longest run time that the goal allows and for shorter ones,
and each processor that some layout uses from the start gets a first job, so that none stands idle
which turns out to be needed. Two limits hold this back: the goal must stay within reach, and the
cheapest way to the goal must not become much dearer by first jobs on dear processors.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from bursar.broker.adviser import SchedulingSnapshot, SiteSnapshot, price_intervals
from bursar.broker.estimates import RuntimeEstimates
from bursar.broker.packing import JobPacking, JobSizeClasses, PackingResult

# The backlog keeps the jobs that have not been sent, by size.


class Backlog:
    """
    Keeps jobs in classes of like size; the first of a class is found and put back in log n.

    Parameters
    ----------
    sizes
        Size of every job of the campaign.
    by_size
        Whether jobs of different sizes are told apart; otherwise they come as they are listed.
    """

    def __init__(self, sizes: Sequence[float], *, by_size: bool) -> None:
        self._sizes = sizes
        self._by_size = by_size
        classes = JobSizeClasses.of(sizes)
        self._size, self._within = classes.size, classes.within
        self._class = np.zeros(len(sizes), dtype=np.int64)
        order = np.argsort(-np.asarray(sizes, dtype=np.float64), kind="stable")
        # Ranks by size, ties by number: the classes of JobSizeClasses in the jobs' own order.
        self._class[order] = np.repeat(np.arange(len(classes.size)), classes.count)
        self._count = np.zeros(len(classes.size), dtype=np.int64)
        self._heaps: list[list[int]] = [[] for _ in (self._size if by_size else (0,))]
        self._work = 0.0
        self.jobs = 0
        self._later: list[tuple[float, int]] = []  # when jobs that failed are sent again

    def add(self, task: int) -> None:
        """Add a job that is to be sent, or sent again."""
        heapq.heappush(self._heaps[self._class[task] if self._by_size else 0], task)
        self._count[self._class[task]] += 1
        self._work += self._sizes[task]
        self.jobs += 1

    def add_later(self, task: int, when: float) -> None:
        """Have :meth:`take_up` add a job from a moment on."""
        heapq.heappush(self._later, (when, task))

    def take_up(self, now: float) -> None:
        """Add the jobs whose moment has come."""
        while self._later and self._later[0][0] <= now:
            self.add(heapq.heappop(self._later)[1])

    @property
    def next_up(self) -> float:
        """Time at which :meth:`take_up` has something to do next; infinite for never."""
        return self._later[0][0] if self._later else math.inf

    def take(self, size_class: int = 0) -> int:
        """
        Remove and return the first job of a class; of all jobs where sizes are not told apart.
        """
        task = heapq.heappop(self._heaps[size_class])
        self._count[self._class[task]] -= 1
        self._work -= self._sizes[task]
        self.jobs -= 1
        return task

    def has(self, size_class: int) -> bool:
        """Whether a job of a class is left."""
        return bool(self._heaps[size_class])

    def next_class(self, given: list[int]) -> int | None:
        """Return the first class of which a site gets jobs; set classes without jobs to 0."""
        for k, count in enumerate(given):
            if count > 0:
                if self.has(k):
                    return k
                given[k] = 0
        return None

    @property
    def mean(self) -> float:
        """Mean size of the jobs left; of all jobs where none is left."""
        if self.jobs:
            return max(self._work / self.jobs, 1e-9)
        return float(np.mean(self._sizes)) if len(self._sizes) else 1.0

    @property
    def sizes(self) -> JobSizeClasses:
        """Size classes for the optimisation, including those without a job."""
        return JobSizeClasses(self._size, self._count.copy(), self._within)


# Our own strategy sends first jobs while the runtime of jobs is unknown.

PREMIUM = 0.1
"""Share by which first jobs may raise the cheapest bill, where cost alone counts."""

SURE = 0.9
"""
Share of the longest run time that the goal allows at which first jobs must leave the goal within
reach. At the longest itself the cheapest way is the only one, and no job can be spared.
"""

LADDER = (1.0, 0.5, 0.25, 0.125)
"""Shares of the longest run time for which the jobs are laid out."""

HALVINGS = 32
"""Steps in which the longest run time is found."""

FIRST_CHECK = 32.0
"""Part of the longest run time after which jobs that have not ended are looked at again."""

Prefer = Callable[[JobPacking, float, float], PackingResult | None]
"""Packs all jobs within a time (seconds) and a cost (currency units); None if the jobs do not
fit."""


def first_jobs(
    situation: SchedulingSnapshot, prefer: Prefer, weight: float
) -> tuple[list[int], float]:
    """
    Choose the sites that get first jobs.

    Parameters
    ----------
    situation
        Sites, jobs and limits; all jobs count as size 1, and none has ended.
    prefer
        The layout that the goal prefers.
    weight
        Weight of cost against time: 0 if time alone counts, 1 if cost alone counts.

    Returns
    -------
    tuple
        Jobs to be sent to each site now, shape ``(n_sites,)``; and seconds until the question
        is to be asked again if no job has ended by then, infinite for never.
    """
    sites, speeds = situation.sites, situation.estimates.speeds
    idle = [max(0, site.processors - len(site.running)) for site in sites]
    ages = [age * speeds[site.name] for site in sites for _, age in site.running]
    age = max(ages, default=0.0)  # no job is shorter than the oldest that still runs
    longest = _longest_runtime(situation, age)
    if longest is None:
        # The goal is out of reach. Where a job shows it by its age, as many as fit are sent.
        given = [0] * len(sites)
        if ages:
            given = _used_at(situation, max(2 * age, _SHORTEST), _as_many_as_fit, idle)
        return (given if ages else _one_where_cheapest(situation, idle)), math.inf

    unlimited = math.isinf(longest)
    if unlimited:  # every run time asks for the same
        longest = max(1.0, age)
    needed = [0] * len(sites)
    if age > 0:
        needed = _used_at(situation, min(longest, 2 * age), prefer, idle)
    useful = needed
    for share in LADDER:
        if share * longest >= age:
            laid_out = _used_at(situation, share * longest, prefer, idle)
            useful = [max(pair) for pair in zip(useful, laid_out, strict=True)]
    given = _within_premium(situation, needed, useful, weight)
    if not ages and not any(given):
        given = _one_where_cheapest(situation, idle)
    given = _within_reach(situation, given, SURE * longest, age)
    if unlimited or given == idle:
        return given, math.inf
    return given, max(age, longest / FIRST_CHECK)


def _longest_runtime(situation: SchedulingSnapshot, age: float) -> float | None:
    """
    Find the longest run time, seconds at speed 1, at which all jobs fit into the limits.

    None if there is none at or above ``age``; infinite without a limit.
    """
    jobs = max(1, situation.sizes.jobs)
    bounds = []
    if math.isfinite(situation.time_left):
        speeds = situation.estimates.speeds
        speed = sum(site.processors * speeds[site.name] for site in situation.sites)
        bounds.append(max(0.0, situation.time_left) * speed / jobs)
    least = min(_rates(situation), default=0.0)
    if math.isfinite(situation.money_left) and least > 0:
        bounds.append(max(0.0, situation.money_left) / (least * jobs))
    if not bounds:
        return math.inf
    high = min(bounds)
    low = max(age, high / 2.0**HALVINGS)
    if low <= 0 or not _fits(situation, low):
        return None
    if low >= high or _fits(situation, high):
        return max(low, high)
    for _ in range(HALVINGS):
        # Geometric bisection: run times may lie anywhere between milliseconds and days.
        middle = math.sqrt(low * high)
        if _fits(situation, middle):
            low = middle
        else:
            high = middle
    return low


def _as_if(situation: SchedulingSnapshot, seconds: float) -> SchedulingSnapshot:
    """Return the situation as if every job took a given time, seconds at speed 1."""
    sizes = situation.sizes
    return replace(
        situation,
        sites=[
            replace(site, running=tuple((size * seconds, age) for size, age in site.running))
            for site in situation.sites
        ],
        sizes=replace(sizes, size=sizes.size * seconds),
        estimates=RuntimeEstimates(dict(situation.estimates.speeds), known=True),
    )


def _fits(situation: SchedulingSnapshot, seconds: float) -> bool:
    """Whether all jobs can be done within the limits if each takes so many seconds."""
    trial = _as_if(situation, seconds)
    cheapest = JobPacking([part.pool for part in price_intervals(trial)], trial.sizes).by(
        trial.time_left
    )
    return cheapest.is_whole and cheapest.cost <= trial.money_left * (1 + _CLOSE)


def _used_at(
    situation: SchedulingSnapshot, seconds: float, lay_out: Prefer, idle: Sequence[int]
) -> list[int]:
    """Count each site's idle processors that a layout uses at once, for a given run time."""
    trial = _as_if(situation, seconds)
    parts = price_intervals(trial)
    filling = JobPacking([part.pool for part in parts], trial.sizes)
    filled = lay_out(filling, trial.time_left, trial.money_left)
    used = [0] * len(idle)
    if filled is not None:
        for part, column in zip(parts, filled.given.T, strict=True):
            if part.begin <= 0:
                used[part.site] = min(idle[part.site], int(column.sum()))
    return used


def _as_many_as_fit(filling: JobPacking, time: float, money: float) -> PackingResult:
    return filling.within(time, max(0.0, money))


def _within_premium(
    situation: SchedulingSnapshot, needed: Sequence[int], useful: Sequence[int], weight: float
) -> list[int]:
    """Choose the needed first jobs, and the cheapest useful ones up to the premium."""
    rates = _rates(situation)
    least = min(rates, default=0.0)
    jobs = situation.sizes.jobs + sum(len(site.running) for site in situation.sites)
    # The less cost weighs in the goal, the dearer first jobs may be.
    premium = math.inf if weight <= 0 else PREMIUM / weight * jobs * least
    given = list(needed)
    left = situation.sizes.jobs - sum(needed)
    for i in _cheapest_first(rates):
        more = max(0, min(useful[i] - given[i], left))
        dearer = rates[i] - least
        if dearer > 0 and math.isfinite(premium):
            more = min(more, math.floor(premium / dearer + _CLOSE))
            premium -= more * dearer
        given[i] += more
        left -= more
    return given


def _within_reach(
    situation: SchedulingSnapshot, given: Sequence[int], seconds: float, age: float
) -> list[int]:
    """
    Return as many first jobs, the cheapest first, as leave the goal within reach.

    It is to stay within reach for jobs of so many ``seconds`` at speed 1. They are known to take
    longer than their ``age``: a shorter run time asks for nothing.
    """
    order = _cheapest_first(_rates(situation))

    def cheapest(count: int) -> list[int]:
        taken = [0] * len(given)
        for i in order:
            taken[i] = min(given[i], count)
            count -= taken[i]
        return taken

    # At least one is always sent: without a first job nothing is ever learned.
    low, high = 1, sum(given)
    if seconds <= age or high <= 1:
        return list(given)
    while low < high:
        middle = (low + high + 1) // 2
        if _fits(_after(situation, cheapest(middle), seconds), seconds):
            low = middle
        else:
            high = middle - 1
    return cheapest(low)


def _after(
    situation: SchedulingSnapshot, given: Sequence[int], seconds: float
) -> SchedulingSnapshot:
    """Return the situation after first jobs of a given run time were sent."""
    rates, sizes = _rates(situation), situation.sizes
    cost = sum(
        count * (rate * seconds + site.fixed)
        for site, count, rate in zip(situation.sites, given, rates, strict=True)
    )
    return replace(
        situation,
        sites=[
            replace(site, running=(*site.running, *[(1.0, 0.0)] * count))
            for site, count in zip(situation.sites, given, strict=True)
        ],
        # Jobs of unknown run time are all of one class.
        sizes=replace(sizes, count=sizes.count - sum(given)),
        money_left=situation.money_left - cost,
    )


def _one_where_cheapest(situation: SchedulingSnapshot, idle: Sequence[int]) -> list[int]:
    """Give one job to the cheapest site with an idle processor, if there is one."""
    given = [0] * len(idle)
    for i in _cheapest_first(_rates(situation)):
        if idle[i] and situation.sizes.jobs:
            given[i] = 1
            break
    return given


def _rates(situation: SchedulingSnapshot) -> list[float]:
    """Return the present cost at each site of a second of work at speed 1."""

    def rate(site: SiteSnapshot) -> float:
        return site.price / situation.estimates.speeds[site.name]

    return [rate(site) for site in situation.sites]


def _cheapest_first(rates: Sequence[float]) -> list[int]:
    return sorted(range(len(rates)), key=lambda i: (rates[i], i))


_CLOSE = 1e-9
_SHORTEST = 1e-3
