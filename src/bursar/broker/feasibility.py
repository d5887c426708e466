"""Check whether the rest of a campaign fits the goal, and compute the alternatives if not."""

import math
from dataclasses import dataclass, replace

from bursar.broker.adviser import SchedulingSnapshot, bookable_processors, price_intervals
from bursar.broker.packing import JobPacking, PackingResult
from bursar.planning.plan_choice import GoalCounterOffer


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalFeasibility:
    """
    The part of a goal that is still within reach.

    Parameters
    ----------
    left
        Number of jobs that have not been sent.
    fit
        Number of these that can be done in time and within the budget.
    cost
        The least that all of them cost in time, currency units; None: not all can be done
        in time.
    counter_offers
        Offers for the whole campaign instead; empty where all jobs fit.
    """

    left: int
    fit: int
    cost: float | None
    counter_offers: tuple[GoalCounterOffer, ...] = ()

    @property
    def feasible(self) -> bool:
        """Whether all jobs can be done."""
        return self.fit >= self.left

    def __str__(self) -> str:
        if self.feasible:
            return f"all {self.left} jobs left fit into the deadline and the budget"
        words = [f"{self.fit} of {self.left} jobs left fit into the deadline and the budget"]
        for offer in self.counter_offers:
            what = f"{offer.makespan:.6g} s for {offer.cost:.6g}"
            if offer.kind == "time":
                words.append(f"all in {what}")
            elif offer.kind == "budget":
                words.append(f"in time for {offer.cost:.6g}")
        return "; ".join(words)


def assess_feasibility(
    situation: SchedulingSnapshot, now: float = 0.0, paid: float = 0.0
) -> GoalFeasibility | None:
    """
    Assess what can still be done; None while job runtimes are unknown.

    No margin is kept: what is told to be out of reach is so unless jobs turn out shorter.

    Parameters
    ----------
    now
        Seconds since the begin, for the counter-offers.
    paid
        Currency units spent and promised for running jobs.
    """
    if not situation.estimates.is_known:
        return None
    sizes, time, money = situation.sizes, situation.time_left, situation.money_left
    filling = _filling(situation)
    whole = filling.by(time)
    if whole.is_whole and whole.cost <= money * (1 + _CLOSE) + _CLOSE:
        return GoalFeasibility(left=sizes.jobs, fit=sizes.jobs, cost=whole.cost)
    most = filling.within(time, max(0.0, money))
    if most.is_whole:  # small jobs first may cost less
        return GoalFeasibility(left=sizes.jobs, fit=sizes.jobs, cost=most.cost)
    fit, gone = int(most.given.sum()), situation.jobs - sizes.jobs
    offers = []

    def offer(kind: str, jobs: int, seconds: float, filled: PackingResult) -> None:
        offers.append(
            GoalCounterOffer(
                kind=kind,  # type: ignore[arg-type]
                makespan=now + seconds,
                cost=paid + filled.cost,
                tasks=gone + jobs,
                share=(gone + jobs) / max(1, situation.jobs),
            )
        )

    if not math.isinf(time):
        # More time may bring other prices, too.
        later = _filling(replace(situation, time_left=math.inf))
        seconds = later.earliest(money)
        if seconds is not None:
            offer("time", sizes.jobs, seconds, later.by(seconds))
    if whole.is_whole:
        soonest = filling.earliest(whole.cost, time)
        offer("budget", sizes.jobs, time if soonest is None else soonest, whole)
    if fit:
        offer("share", fit, min(time, filling.ends(most)), most)
    return GoalFeasibility(
        left=sizes.jobs,
        fit=fit,
        cost=whole.cost if whole.is_whole else None,
        counter_offers=tuple(offers),
    )


def _filling(situation: SchedulingSnapshot) -> JobPacking:
    """Return the packing with bookings, or without where only that meets the goal."""
    filling = JobPacking([part.pool for part in price_intervals(situation)], situation.sizes)
    most = bookable_processors(situation)
    if most and not _fits(filling.by(situation.time_left), situation):
        parts = price_intervals(situation, at_once=most)
        return JobPacking([part.pool for part in parts], situation.sizes)
    return filling


def _fits(filled: PackingResult, situation: SchedulingSnapshot) -> bool:
    return filled.is_whole and filled.cost <= situation.money_left * (1 + _CLOSE) + _CLOSE


_CLOSE = 1e-9
