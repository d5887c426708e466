"""
Counter-offers, each tried with all margins before the offer is made.

An offer is a printed time and a printed amount. Taken as deadline and budget, both are
enough whenever tasks take as long as stated: an offer includes the start of workers, the
money that is held ahead of the clock and at wall limits, and rounding.
"""

from collections.abc import Callable
from dataclasses import replace

from bursar.model.campaign import Goal
from bursar.model.site import SiteFacts
from bursar.planning.plan_choice import GoalCounterOffer
from bursar.report.formatting import amount_above, span_above

START_UP = {"local": 0.5, "batch": 5.0, "remote": 2.0, "dask": 2.0}
"""Seconds from when a site's processors are held until their workers take tasks, generously."""

HAND_OVER = 0.01
"""Seconds between two tasks of a processor, generously."""

SLOWER = 0.02
"""Share by which a task takes longer than stated, where tasks really run."""

GoalCheck = Callable[[Goal], bool]
"""Whether all that is offered is done by a deadline and within a budget."""


def start_up(site: SiteFacts) -> float:
    """Return the seconds of margin for the start of a site's workers; 0 for simulated sites."""
    return START_UP.get(site.kind, 0.0)


def firm_offer(
    offer: GoalCounterOffer, goal: Goal, holds: GoalCheck, lasting: float
) -> GoalCounterOffer | None:
    """
    Return an offer of all tasks with sufficient margins, or None where no margin is enough.

    Parameters
    ----------
    offer
        Time and amount without any margin.
    goal
        Limits that are out of reach together; the offer keeps to one of them.
    holds
        Tries a deadline and a budget; returns whether a plan exists.
    lasting
        Seconds that the offer is expected to last, start of workers included.
    """
    seconds, cost = max(offer.makespan, lasting), offer.cost

    def at(more: float) -> Goal:
        """Return the limits, rounded for print, that lie above the offer by a share."""
        # Rounded up to what is printed: an offer of the bare cost, printed to four digits, was
        # refused when it was taken up.
        later = span_above(seconds * (1 + more))
        dearer = None if cost is None else amount_above(cost * (1 + more))
        if offer.kind == "budget" and goal.deadline is not None:
            # The offer keeps the limit that was stated: only the other one may grow.
            later = min(later, goal.deadline)
        if offer.kind == "time" and dearer is not None and goal.budget is not None:
            dearer = min(dearer, goal.budget)
        return replace(goal, deadline=later, budget=dearer)

    high = next((more for more in _STEPS if holds(at(more))), None)
    if high is None:
        return None
    low = max((more for more in _STEPS if more < high), default=high)
    # Each try may make a plan, so steps that double come first, and bisection within the last one.
    while high - low > _CLOSE_TO * (1 + high):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(at(middle)) else (middle, high)
    found = at(high)
    assert found.deadline is not None
    return with_margins(offer, found.deadline, found.budget)


def with_margins(offer: GoalCounterOffer, seconds: float, cost: float | None) -> GoalCounterOffer:
    """Return the offer at another time and amount, with the parts that are margin."""
    more = 0.0 if cost is None or offer.cost is None else max(0.0, cost - offer.cost)
    return replace(
        offer,
        makespan=seconds,
        cost=cost,
        margin_seconds=max(0.0, seconds - offer.makespan),
        margin_cost=more,
    )


_STEPS = (0.0, 0.01, 0.03, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4)
_CLOSE_TO = 0.02
"""How close an offer comes to the least that holds, as a share."""
