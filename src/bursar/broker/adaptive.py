"""
Our own strategy meets the goal by a small optimisation, solved anew as estimates sharpen.

It begins with what is believed: estimated runtimes and the sites' speeds. Where there is
nothing to believe, a few real jobs are sent first, counted as part of the plan. What it keeps
free before the deadline and of the budget follows from the spread that was observed.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from bursar.broker.adviser import (
    BookingRequest,
    PriceInterval,
    ScheduleAdvice,
    SchedulingSnapshot,
    SiteSnapshot,
    bookable_processors,
    price_intervals,
)
from bursar.broker.backlog import first_jobs
from bursar.broker.packing import JobPacking, PackingResult
from bursar.model.campaign import Goal

POINTS = 12
"""Moments tried between the fastest and the cheapest way, for a trade-off between them."""

SOONEST = 0.01
"""Least seconds until the next wake: shares of the time left to a deadline would otherwise shrink
without end."""

DIFFERENT = 0.1
"""Relative spread of the sites' means over the expected ones from which an untried site is worth
a probing job."""


_Way = tuple[Sequence[PriceInterval], JobPacking, PackingResult]
"""Price intervals that can be bought, and the packing of jobs into these intervals."""


PROBED = 0.05
"""Greatest share of the jobs that are sent only to learn runtimes; one job in any case."""
PROBED_BUDGET = 0.02
"""Greatest share of the budget for such jobs, where a job takes its even share of the budget."""


def probes_left(situation: SchedulingSnapshot) -> float:
    """Return how many jobs may still be sent only to learn runtimes, outside the plan."""
    share = PROBED if math.isinf(situation.budget) else min(PROBED, PROBED_BUDGET)
    return max(1.0, math.floor(share * situation.jobs)) - situation.probes


class AdaptiveScheduleAdviser:
    """
    Advises by the best way to the goal that a small optimisation finds.

    Which way is best follows from the goal as for plans (:mod:`bursar.planning.plan_choice`): by
    its trade-off between cost and time; without one, a deadline asks for the cheapest way,
    and anything else for the fastest.

    Parameters
    ----------
    goal
        Goal whose trade-off and deadline say which way is best; the limits come with each
        situation.
    """

    by_size = True

    def __init__(self, goal: Goal) -> None:
        self._weight = goal.trade_off
        if self._weight is None:
            self._weight = 0.0 if goal.deadline is None else 1.0

    def advise(self, situation: SchedulingSnapshot) -> ScheduleAdvice:
        """
        Assign jobs to sites by the best packing for the goal, or first jobs while runtimes are
        unknown.
        """
        if not situation.estimates.is_known:
            return self._first(situation)
        situation = _with_failures(situation)
        time, money, owed = self._margins(situation)
        # First with the margins for the observed spread, then without: a campaign that can only
        # just be done is still done.
        found = self._found(situation, situation.time_left - time, situation.money_left - money)
        cut = found is None
        # What running jobs may still need comes before any job that has not been sent: a job
        # that is stopped for want of money has cost all it took, and brings nothing.
        free = max(0.0, situation.money_left - owed)
        if found is None and (time or money > owed):
            found = self._found(situation, situation.time_left, free)
        parts, _, filled = self._most(situation, free) if found is None else found
        given = [[0] * len(situation.sizes.size) for _ in situation.sites]
        begins = [math.inf] * len(situation.sites)
        booked = [0] * len(situation.sites)
        bookings: list[BookingRequest] = []
        wake = math.inf
        for part, column in zip(parts, filled.given.T, strict=True):
            if part.lead > 0:
                booked[part.site] += int(column.sum())
                due, later = _due(situation, part, column.tolist())
                bookings += due
                wake = min(wake, later)
            # Jobs of a later price interval are not sent: until it begins they may still go
            # elsewhere.
            elif column.any():
                begins[part.site] = min(begins[part.site], part.begin)
                if part.begin <= 0:
                    given[part.site] = [
                        before + more
                        for before, more in zip(given[part.site], column.tolist(), strict=True)
                    ]
        advice = ScheduleAdvice(
            given=given,
            now=[begin <= 0 for begin in begins],
            wake=min([wake, *(b for b in begins if 0 < b < math.inf)]),
            reasons={
                site.name: self._reason(
                    situation, site, sum(given[i]), booked[i], begins[i], filled
                )
                for i, site in enumerate(situation.sites)
            },
            feasible=not cut,
            bookings=bookings,
        )
        if not cut:
            advice.cost = filled.cost
            left = situation.money_left - money - filled.cost
            self._explore(situation, advice, situation.time_left - time, left)
        return advice

    def _found(self, situation: SchedulingSnapshot, time: float, money: float) -> _Way | None:
        """
        Return the preferred way to do all jobs, booked ahead as far as bookings are cheaper.

        How many processors buy at once what would end in the time that could be booked is
        searched: all that book leave the least cost, all that buy the most time.
        """
        most = bookable_processors(situation)
        tried: dict[int, _Way | None] = {}

        def way(at_once: int) -> _Way | None:
            if at_once not in tried:
                parts = price_intervals(
                    situation, overdue=situation.estimates.spread, at_once=at_once
                )
                filling = JobPacking([part.pool for part in parts], situation.sizes)
                filled = self._best(filling, time, money)
                tried[at_once] = None if filled is None else (parts, filling, filled)
            return tried[at_once]

        if not most:
            return way(0)
        # A packing for every number of processors would be too slow: five numbers, then a bisection
        # between what is too late and what is in time.
        for share in range(_SHARES + 1):
            way(most * share // _SHARES)
        if tried[0] is None and tried[most] is not None:
            low, high = 0, most
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if way(middle) is not None else (middle, high)
        found = [each for _, each in sorted(tried.items()) if each is not None]
        return min(found, key=self._badness(found), default=None)

    def _most(self, situation: SchedulingSnapshot, money: float) -> _Way:
        """Return the way that does the most jobs within the time and the money."""
        ways: list[_Way] = []
        for at_once in sorted({0, bookable_processors(situation)}):
            parts = price_intervals(situation, overdue=situation.estimates.spread, at_once=at_once)
            filling = JobPacking([part.pool for part in parts], situation.sizes)
            filled = filling.within(situation.time_left, money)
            ways.append((parts, filling, filled))
        return max(ways, key=lambda way: int(way[2].given.sum()))

    def _badness(self, ways: Sequence[_Way]) -> Callable[[_Way], tuple[float, float]]:
        """Return a sort key of ways: the goal's trade-off of cost and time, then their sum."""
        weight = self._weight
        assert weight is not None
        cost = max((filled.cost for _, _, filled in ways), default=0.0) or 1.0
        time = max((filling.ends(filled) for _, filling, filled in ways), default=0.0) or 1.0

        def order(way: _Way) -> tuple[float, float]:
            _, filling, filled = way
            dear, long = filled.cost / cost, filling.ends(filled) / time
            value = weight * dear + (1 - weight) * long
            # Values that differ by rounding errors only count as equal, or the second key never
            # decides.
            return round(value / _CLOSE) * _CLOSE, dear + long

        return order

    def _best(self, filling: JobPacking, time: float, money: float) -> PackingResult | None:
        """Return the preferred packing of all jobs; None where none fits."""
        weight = self._weight
        assert weight is not None
        if weight == 0:
            moment = filling.earliest(money, time)
            return None if moment is None else filling.by(moment)
        cheapest = filling.by(time)
        if not cheapest.is_whole or cheapest.cost > money * (1 + _CLOSE) + _CLOSE:
            return None
        # Of the ways that cost as little, the fastest.
        last = filling.earliest(cheapest.cost, time)
        if last is None:
            return cheapest
        if weight == 1:
            return filling.by(last)
        first = filling.earliest(money, last)
        if first is None or last - first <= _CLOSE * last:
            return filling.by(last)
        dearest = filling.by(first).cost
        # Both sides of the trade-off are scaled to 0..1 between the fastest and the cheapest way.
        range_of_cost = max(dearest - cheapest.cost, _CLOSE)
        ways = []
        for i in range(POINTS + 1):
            moment = first + (last - first) * i / POINTS
            filled = filling.by(moment)
            value = weight * (filled.cost - cheapest.cost) / range_of_cost
            value += (1 - weight) * (moment - first) / (last - first)
            ways.append((value, i, filled))
        return min(ways, key=lambda way: way[:2])[2]

    def _margins(self, situation: SchedulingSnapshot) -> tuple[float, float, float]:
        """
        Return seconds, money for all jobs, and money for those that run, to be kept free.

        The end of a processor's last job is as uncertain as a job is; that of all work, shared
        by the processors, as the sum of all jobs. Jobs of a class differ by what is known.
        """
        estimates, jobs = situation.estimates, situation.sizes.jobs
        # So many standard deviations from the mean, as a share of the mean.
        away = estimates.quantile * estimates.spread
        processors = sum(site.processors for site in situation.sites)
        if not jobs or not processors:
            return 0.0, 0.0, 0.0
        takes = [estimates.takes(site.name) for site in situation.sites]
        within = situation.sizes.within * max(takes)  # jobs count as their class's mean
        costs = [situation.paid(site) * site.price for site in situation.sites]
        mean = situation.mean
        overdue = squares = 0.0
        running = 0
        for site, each, cost in zip(situation.sites, takes, costs, strict=True):
            for size, age in site.running:
                running += 1
                squares += (size * cost) ** 2
                if age >= size * each:  # nothing is promised for it any more
                    overdue += estimates.spread * size * cost
        time = (
            away * mean * (sum(takes) / len(takes)) * (1 + math.sqrt(jobs + running) / processors)
        )
        waiting = jobs * (mean * sum(costs) / len(costs)) ** 2
        money = overdue + away * math.sqrt(squares + waiting)
        return time + within, money, overdue + away * math.sqrt(squares)

    def _first(self, situation: SchedulingSnapshot) -> ScheduleAdvice:
        """Send first jobs while the runtime of jobs is unknown."""
        assert self._weight is not None
        jobs, wake = first_jobs(situation, self._best, self._weight)
        given = [[0] * len(situation.sizes.size) for _ in situation.sites]
        reasons = {
            site.name: "nothing is known yet of how long jobs take" for site in situation.sites
        }
        for site, sent, classes in zip(situation.sites, jobs, given, strict=True):
            if sent:
                classes[_typical_class(situation)] = sent
                reasons[site.name] = "a first job, to learn how long they take"
        return ScheduleAdvice(
            given=given,
            now=[True] * len(given),
            wake=max(wake, SOONEST),
            reasons=reasons,
        )

    def _explore(
        self, situation: SchedulingSnapshot, advice: ScheduleAdvice, time: float, money: float
    ) -> None:
        """
        Send a job to an untried site, where sites differ from what was expected.

        Only spare time and money are used for the job.
        """
        estimates = situation.estimates
        if estimates.between <= DIFFERENT or probes_left(situation) < 1:
            return
        for i, site in enumerate(situation.sites):
            seconds = estimates.takes(site.name) * situation.mean
            cost = situation.paid(site) * situation.mean * site.price + site.fixed
            if site.probed or any(advice.given[i]) or seconds > time or cost > money:
                continue
            advice.given[i][_typical_class(situation)] = 1
            advice.now[i] = True
            advice.probes = {site.name: 1}
            advice.reasons[site.name] = "a job to learn from: sites are not as expected"
            return

    def _reason(
        self,
        situation: SchedulingSnapshot,
        site: SiteSnapshot,
        count: int,
        booked: int,
        begin: float,
        filled: PackingResult,
    ) -> str:
        estimates, mean = situation.estimates, situation.mean
        seconds = estimates.takes(site.name) * mean
        cost = situation.paid(site) * mean * site.price + site.fixed
        each = f"{cost:.6g} and {seconds:.4g} s each"
        if booked:
            at_once = f"{count} jobs now, " if count and begin <= 0 else ""
            return f"{at_once}{booked} booked ahead for a lower price: {each} now"
        if count and begin <= 0:
            return f"{count} jobs of the {self._way}: {each}"
        if 0 < begin < math.inf:
            return f"jobs wait {begin:.4g} s for a lower price: {each} now"
        if seconds > situation.time_left:
            return f"a job takes {seconds:.4g} s, {max(0.0, situation.time_left):.4g} s are left"
        if cost > situation.money_left:
            return f"a job costs {cost:.6g}, {max(0.0, situation.money_left):.6g} are left"
        if not filled.is_whole:
            return f"the money that is left does more jobs elsewhere: {each} here"
        return f"not needed: others are in the {self._way}; {each} here"

    @property
    def _way(self) -> str:
        return {0.0: "fastest way", 1.0: "cheapest way"}.get(self._weight or 0.0, "best trade-off")


def _due(
    situation: SchedulingSnapshot, part: PriceInterval, column: Sequence[int]
) -> tuple[list[BookingRequest], float]:
    """
    Return the jobs of a part that must be booked now, and the time of the next booking.

    Each processor takes the next job, the largest first, when the one before it ends; a job
    is booked no earlier than its price asks, so that until then it may still go elsewhere.
    """
    free = list(part.pool.free_at)
    heapq.heapify(free)
    due, wake = [], math.inf
    for size_class, count in enumerate(column):
        for _ in range(count):
            begin = heapq.heappop(free)
            heapq.heappush(
                free, begin + part.pool.seconds * float(situation.sizes.size[size_class])
            )
            if begin <= part.lead + _CLOSE * max(1.0, part.lead):
                due.append(BookingRequest(part.site, size_class, begin))
            else:
                wake = min(wake, begin - part.lead)
    return due, wake


def _with_failures(situation: SchedulingSnapshot) -> SchedulingSnapshot:
    """Lengthen the jobs by the attempts that are expected to fail."""
    share = situation.estimates.failures
    if not share:
        return situation
    sizes = situation.sizes
    # Attempts until a success are geometric: 1 / (1 - share) on average.
    more = min(1.0 / (1.0 - share), _MOST) if share < 1 else _MOST
    return replace(situation, sizes=replace(sizes, size=sizes.size * more))


def _typical_class(situation: SchedulingSnapshot) -> int:
    """Return the median size class of the jobs that are left."""
    there: Sequence[int] = [k for k, n in enumerate(situation.sizes.count) if n]
    return there[len(there) // 2]


_MOST = 10.0
_SHARES = 4  # of the processors that may book, at which the way is tried
_CLOSE = 1e-9
