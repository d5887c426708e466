"""
Counter-offers are made here; each is tried, with its margins, before it is made.

An offer is a time and an amount as they are printed. Taken as deadline and budget, they are
enough whenever tasks take what was said: they include the start of workers, the money that is
held ahead of the clock and at wall limits, and rounding.
"""

from collections.abc import Callable
from dataclasses import replace

from bursar.model.goal import Goal
from bursar.model.site import SiteFacts
from bursar.planning.plan_choice import GoalCounterOffer
from bursar.report.formatting import amount_above, span_above

START_UP = {"local": 0.5, "batch": 5.0, "remote": 2.0, "dask": 2.0}
"""Seconds from when a site's processors are held until their workers take tasks, generously."""

HAND_OVER = 0.01
"""Seconds between two tasks of a processor, generously."""

SLOWER = 0.02
"""Share by which a task takes longer than it was said to, where it is really run."""

GoalCheck = Callable[[Goal], bool]
"""Whether all that is offered is done by a deadline and within a budget."""


def start_up(site: SiteFacts) -> float:
    """Seconds of margin for the start of a site's workers; 0 where they are simulated."""
    return START_UP.get(site.kind, 0.0)


def firm_offer(
    offer: GoalCounterOffer, goal: Goal, holds: GoalCheck, lasting: float
) -> GoalCounterOffer | None:
    """
    Return an offer of all tasks with the margins it needs, or None where none is enough.

    Parameters
    ----------
    offer
        Time and amount without any margin.
    goal
        Limits that are out of reach together; the offer keeps to one of them.
    holds
        Tries a deadline and a budget.
    lasting
        Seconds that the offer is expected to last, start of workers included.
    """
    seconds, cost = max(offer.makespan, lasting), offer.cost

    def at(more: float) -> Goal:
        """Limits as they are printed, so much above the offer."""
        later = span_above(seconds * (1 + more))
        dearer = None if cost is None else amount_above(cost * (1 + more))
        if offer.kind == "budget" and goal.deadline is not None:
            later = min(later, goal.deadline)
        if offer.kind == "time" and dearer is not None and goal.budget is not None:
            dearer = min(dearer, goal.budget)
        return replace(goal, deadline=later, budget=dearer)

    high = next((more for more in _STEPS if holds(at(more))), None)
    if high is None:
        return None
    low = max((more for more in _STEPS if more < high), default=high)
    while high - low > _CLOSE_TO * (1 + high):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(at(middle)) else (middle, high)
    found = at(high)
    assert found.deadline is not None
    return with_margins(offer, found.deadline, found.budget)


def with_margins(offer: GoalCounterOffer, seconds: float, cost: float | None) -> GoalCounterOffer:
    """Return the offer at another time and amount, which say what of them is margin."""
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
