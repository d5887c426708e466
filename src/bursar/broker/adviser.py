"""
The schedule adviser decides where jobs go, by what is known at the time (Nimrod/G section 2).

It is asked anew whenever something has happened. The rules of the papers and our own
optimisation answer the same question in the same form.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from bursar.broker.estimates import RuntimeEstimates
from bursar.broker.packing import JobSizeClasses, ResourcePool
from bursar.broker.strategies import Strategy, StrategyResource, allocate_jobs
from bursar.broker.trading import Ahead, Period


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSnapshot:
    """
    State of a site at one time.

    Parameters
    ----------
    prices
        What a job costs that is bought when it begins: begin (seconds from now), end and
        currency units per processor-second; the first holds now, the last for ever.
    bookable
        What a job costs that is booked now for later; see
        :data:`bursar.broker.trading.Ahead`. Empty: nothing can be booked.
    booked
        Begin and end of each processor that is booked already, seconds from now.
    fixed
        Currency units that each job pays besides.
    running
        Size of each job sent to the site, and seconds since the sending.
    probed
        Whether a job has been sent there before.
    shared
        Whether a job waits there for its processor, and pays from its start; otherwise the
        processor is held, and paid, from when the job is sent.
    """

    name: str
    processors: int
    prices: tuple[Period, ...]
    bookable: tuple[Ahead, ...] = ()
    booked: tuple[tuple[float, float], ...] = ()
    fixed: float = 0.0
    running: tuple[tuple[float, float], ...] = ()
    probed: bool = False
    shared: bool = False

    @property
    def price(self) -> float:
        """Price that holds now, currency units per processor-second."""
        return self.prices[0][2]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingSnapshot:
    """
    State of the campaign on which a decision is made.

    Parameters
    ----------
    sizes
        Sizes of the jobs that have not been sent.
    jobs
        Number of all jobs of the campaign, sent or ended or not.
    time_left, money_left
        Seconds to the deadline; currency units of the budget after the costs that running jobs may
        reach.
    budget
        Budget of the campaign, currency units; infinite: none.
    probes
        Number of jobs sent so far only to learn from them.
    """

    sites: Sequence[SiteSnapshot]
    sizes: JobSizeClasses
    jobs: int
    estimates: RuntimeEstimates
    time_left: float
    money_left: float
    budget: float = math.inf
    probes: int = 0

    def paid(self, site: SiteSnapshot) -> float:
        """
        Seconds that are paid for a job of size 1 at a site.

        Raises
        ------
        ValueError
            When nothing is known of how long jobs take.
        """
        return self.estimates.runs(site.name) if site.shared else self.estimates.takes(site.name)

    def pays_to_wait(self, site: SiteSnapshot, seconds: float) -> bool:
        """Return whether a job of so many seconds could be had at a price asked later."""
        return any(
            begin + seconds <= self.time_left and price * seconds + site.fixed <= self.money_left
            for begin, _, price in site.prices[1:]
        )

    @property
    def mean(self) -> float:
        """Mean size of the jobs that have not been sent."""
        return self.sizes.work / self.sizes.jobs if self.sizes.jobs else 1.0

    def free_at(
        self, site: SiteSnapshot, seconds: float, overdue: float = 0.0
    ) -> tuple[float, ...]:
        """
        When each processor of a site is free, seconds from now.

        Parameters
        ----------
        seconds
            Time of a job of size 1 at the site.
        overdue
            Further time of an overdue job, as a share of its expected time.
        """
        busy = []
        for size, age in site.running:
            whole = size * seconds
            busy.append(whole - age if age < whole else overdue * whole)
        idle = max(0, site.processors - len(busy))
        return (*[0.0] * idle, *sorted(busy))


@dataclass(slots=True, kw_only=True)
class ScheduleAdvice:
    """
    Decision of a schedule adviser: the jobs of each site, and the reasons.

    Parameters
    ----------
    given
        Jobs of each class to each site, in the order in which they are best sent there.
    now
        Whether jobs may be sent to each site now; otherwise they wait for its price.
    wake
        Seconds from now at which to ask again though nothing has happened; infinite: never.
    reasons
        Reason for each site's share, by site name.
    feasible
        Whether all jobs are given, within the limits.
    cost
        Cost of all jobs; None where the adviser does not say.
    probes
        Number of a site's jobs that are sent only to learn from them, by site name.
    """

    given: list[list[int]]
    now: list[bool]
    wake: float = math.inf
    reasons: dict[str, str] = field(default_factory=dict)
    feasible: bool = False
    cost: float | None = None
    probes: dict[str, int] = field(default_factory=dict)
    bookings: list["BookingRequest"] = field(default_factory=list)

    @property
    def jobs(self) -> int:
        """Number of jobs that are given or booked."""
        return sum(map(sum, self.given)) + len(self.bookings)


@dataclass(frozen=True, slots=True)
class BookingRequest:
    """
    A job that is to be booked.

    Parameters
    ----------
    begin
        Start of the job, seconds from now.
    """

    site: int
    size_class: int
    begin: float


class ScheduleAdviser(Protocol):
    """Decides where jobs go."""

    by_size: bool
    """Whether the adviser tells jobs of different sizes apart."""

    def advise(self, situation: SchedulingSnapshot) -> ScheduleAdvice:
        """Divide the jobs that have not been sent among the sites."""


class NimrodAdviser:
    """
    Applies the rules of the papers, which know a site only by the jobs that have ended there: how
    long they took until they were completed, and what they cost by the time they ran.

    Each site gets one job first (the paper's initial spike).
    """

    by_size = False

    def __init__(self, strategy: Strategy) -> None:
        self._strategy: Strategy = strategy

    def advise(self, situation: SchedulingSnapshot) -> ScheduleAdvice:
        """Divide the jobs by what was measured; a site without a measurement gets one job."""
        estimates, mean = situation.estimates, situation.mean
        given = [0] * len(situation.sites)
        reasons: dict[str, str] = {}
        jobs = situation.sizes.jobs
        money = situation.money_left
        ready_sites: list[int] = []
        for i, site in enumerate(situation.sites):
            seconds = estimates.mean(site.name)
            if seconds is not None:
                ready_sites.append(i)
            elif site.probed:
                reasons[site.name] = "its first job has not ended"
            elif jobs:
                seconds = estimates.runs(site.name) * mean if estimates.known else 0.0
                cost = seconds * site.price + site.fixed
                if cost > money or seconds > situation.time_left:
                    reasons[site.name] = "a first job does not fit into what is left"
                else:
                    given[i] = 1
                    jobs -= 1
                    money -= cost
                    reasons[site.name] = "a first job, to learn how long they take there"
        for i, count in zip(ready_sites, self._shares(situation, ready_sites, jobs), strict=True):
            site = situation.sites[i]
            given[i] = count
            reasons[site.name] = self._reason(situation, site, count)
        return ScheduleAdvice(
            given=[[count] for count in given], now=[True] * len(given), reasons=reasons
        )

    def _shares(
        self, situation: SchedulingSnapshot, ready_sites: Sequence[int], jobs: int
    ) -> list[int]:
        if not ready_sites or not jobs:
            return [0] * len(ready_sites)
        resources = []
        for i in ready_sites:
            site = situation.sites[i]
            seconds, runs = _measured(situation, site)
            resources.append(
                StrategyResource(
                    seconds=seconds * situation.mean,
                    cost=runs * situation.mean * site.price + site.fixed,
                    free_at=situation.free_at(site, seconds),
                )
            )
        return allocate_jobs(
            self._strategy, resources, jobs, situation.time_left, situation.money_left
        )

    def _reason(self, situation: SchedulingSnapshot, site: SiteSnapshot, count: int) -> str:
        seconds, runs = (value * situation.mean for value in _measured(situation, site))
        cost = runs * site.price + site.fixed
        if count:
            return f"{count} jobs by the {self._strategy} rule: {cost:.6g} and {seconds:.4g} s each"
        if seconds > situation.time_left:
            return f"a job takes {seconds:.4g} s, {max(0.0, situation.time_left):.4g} s are left"
        per_job = situation.money_left / max(1, situation.sizes.jobs)
        if cost > per_job and self._strategy != "cost":
            return f"a job costs {cost:.6g}, the budget leaves {per_job:.6g} for each"
        if cost > situation.money_left:
            return f"a job costs {cost:.6g}, {max(0.0, situation.money_left):.6g} are left"
        return f"others come first by the {self._strategy} rule: {cost:.6g} for each job here"


@dataclass(frozen=True, slots=True)
class PriceInterval:
    """
    A site and the time for which one price holds there.

    Parameters
    ----------
    begin
        Start of the price, seconds from now; zero or negative: the price holds now.
    lead
        Seconds ahead of its start that a job must be booked for the price; 0: it is bought
        when it begins.
    """

    site: int
    begin: float
    pool: ResourcePool
    lead: float = 0.0


def price_intervals(
    situation: SchedulingSnapshot, *, overdue: float = 0.0, at_once: int = 0
) -> list[PriceInterval]:
    """
    List the sites, price by price.

    A job in a part ends before the part does. Where a lower price can be booked, that would
    leave no room for a job that is longer than the time until then, though it could be bought
    at once and run on; so some processors may put off what they book until it has ended.

    Parameters
    ----------
    overdue
        See :meth:`SchedulingSnapshot.free_at`.
    at_once
        Number of processors that put their bookings off, over all bookable sites in order.

    Raises
    ------
    ValueError
        When nothing is known of how long jobs take.
    """
    parts = []
    for i, site in enumerate(situation.sites):
        takes = situation.estimates.takes(site.name)
        paid = situation.paid(site)
        free = situation.free_at(site, takes, overdue)
        longest = takes * float(situation.sizes.size.max(initial=0.0))
        found: dict[tuple[float, Ahead], list[float]] = {}
        offers = _offers(site)
        for start, until in _gaps(free, site.booked):
            asked = offers
            if site.bookable and at_once > 0:
                at_once -= 1
                asked = _defer_bookings(offers, start, longest)
            for offer in asked:
                if offer[0] < min(situation.time_left, until):
                    found.setdefault((until, offer), []).append(start)
        for (until, (begin, end, price, lead)), starts in found.items():
            pool = ResourcePool(
                seconds=takes,
                cost=paid * price,
                fixed=site.fixed,
                free_at=tuple(starts if begin <= 0 else (max(begin, at) for at in starts)),
                until=min(end, until),
            )
            parts.append(PriceInterval(i, begin, pool, lead))
    return parts


def bookable_processors(situation: SchedulingSnapshot) -> int:
    """Count the processors of sites at which jobs can be booked."""
    return sum(site.processors for site in situation.sites if site.bookable)


def _offers(site: SiteSnapshot) -> list[Ahead]:
    """
    List the lowest price for each start from now on, with the lead time for booking that price.
    """
    if not site.bookable:
        return [(begin, end, price, 0.0) for begin, end, price in site.prices]
    bounds = sorted({begin for begin, *_ in (*site.prices, *site.bookable)})
    offers: list[Ahead] = []
    for begin, end in pairwise([*bounds, math.inf]):
        price, lead = [p for b, _, p in site.prices if b <= begin][-1], 0.0
        booked = [(p, ahead) for b, _, p, ahead in site.bookable if b <= begin]
        # On equal prices the job is not booked: until it begins it may still go elsewhere.
        if booked and booked[-1][0] < price * (1 - _CLOSE):
            price, lead = booked[-1]
        # Neighbours of one price are merged, or no job could run across their border.
        if offers and offers[-1][2:] == (price, lead):
            begin = offers.pop()[0]
        offers.append((begin, end, price, lead))
    return offers


def _defer_bookings(offers: Sequence[Ahead], free: float, longest: float) -> list[Ahead]:
    """Put a processor's bookings off until the jobs bought to start now have ended."""
    first = next((begin for begin, _, _, lead in offers if lead > 0), 0.0)
    if first <= free or longest <= 0:
        return list(offers)
    # Whole jobs of the longest kind up to the first bookable start: the last may run beyond it.
    until = free + math.ceil((first - free) / longest - _CLOSE) * longest
    kept: list[Ahead] = []
    for begin, end, price, lead in offers:
        if begin < first:
            kept.append((begin, until if end >= first else end, price, lead))
        elif end > until:
            kept.append((max(begin, until), end, price, lead))
    return kept


def _gaps(
    free: tuple[float, ...], booked: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """
    Gaps, with begin and end, between what is booked on free processors.

    Each booking goes to the processor that is free last before it.
    """
    left, gaps = list(free), []
    for begin, end in sorted(booked):
        if not left:
            break
        before = [at for at in left if at <= begin + _CLOSE]
        lane = max(before) if before else min(left)
        left.remove(lane)
        if lane < begin:
            gaps.append((lane, begin))
        left.append(max(lane, end))
    return sorted([*gaps, *((at, math.inf) for at in left)])


def _measured(situation: SchedulingSnapshot, site: SiteSnapshot) -> tuple[float, float]:
    """Return mean seconds to completion of a job of size 1 there, and mean seconds of running."""
    seconds = situation.estimates.mean(site.name)
    runs = situation.estimates.mean_run(site.name)
    assert seconds is not None
    assert runs is not None
    return max(seconds, 1e-9), runs


_CLOSE = 1e-9
"""Relative tolerance for rounding errors."""
