"""
Which plan the goal picks, why, and what could be had where none will do.

- A deadline alone, or with a budget: the cheapest plan that meets both.
- A budget alone: the fastest plan within it.
- A trade-off a: among the plans that meet deadline and budget, the least
  a cost + (1 - a) makespan, both scaled to run from 0 at the least of the whole
  curve to 1 at its greatest (HPDC'07 equations 7 and 8). A cost that is unknown
  counts as the greatest.
- Nothing: the fastest plan.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from bursar.model.goal import Goal
from bursar.model.plan import Plan
from bursar.planning.front import Front, Option

SLACK = 1e-9
"""Relative; a plan this little past a deadline or budget meets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterOffer:
    """
    What could be had instead of a goal out of reach.

    Parameters
    ----------
    kind
        ``"time"``: the shortest makespan at this budget. ``"budget"``: the
        least cost at this deadline. ``"share"``: so many of the tasks at both.
    makespan
        Seconds.
    cost
        Currency units; None when a price is unknown.
    tasks
        How many run.
    share
        Of the tasks, in [0, 1].
    """

    kind: Literal["time", "budget", "share"]
    makespan: float
    cost: float | None
    tasks: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """
    Parameters
    ----------
    option
        The point of the curve that is picked; None when the goal is out of reach.
    plan
        The same with the place of every task.
    reason
        Why, one line.
    counter_offers
        What could be had instead; empty when the goal can be met.
    """

    option: Option | None
    plan: Plan | None = field(repr=False)
    reason: str
    counter_offers: tuple[CounterOffer, ...] = ()

    @property
    def infeasible(self) -> bool:
        """Whether no plan meets the goal."""
        return self.option is None


def choose(front: Front, goal: Goal) -> Choice:
    """
    The plan of the curve that the goal picks.

    What is not known cannot rule a plan out: with unknown runtimes or prices
    the reason says what could not be checked.
    """
    meeting = [o for o in front.options if _meets(o, goal)]
    if not meeting:
        return Choice(
            option=None,
            plan=None,
            reason=_why_not(front, goal),
            counter_offers=tuple(_counter_offers(front, goal)),
        )
    option, reason = _pick(meeting, front, goal)
    unchecked = _unchecked(option, goal)
    if unchecked:
        reason += f"; {unchecked}"
    return Choice(option=option, plan=front.plan(option), reason=reason)


def best_effort(front: Front, goal: Goal) -> Option:
    """
    What to run when the goal is out of reach and it shall start all the same.

    The fastest within the budget; where the budget is out of reach too, the
    cheapest.
    """
    within = [o for o in front.options if _meets_budget(o, goal)]
    if within:
        return min(within, key=_by_time)
    return min(front.options, key=_by_cost)


def _pick(meeting: Sequence[Option], front: Front, goal: Goal) -> tuple[Option, str]:
    if goal.trade_off is not None:
        weight = goal.trade_off
        option = min(meeting, key=_weighted(front, weight))
        return option, f"the best trade-off at weight {weight:g} of cost against time"
    if goal.deadline is not None:
        both = " and the budget" if goal.budget is not None else ""
        return min(meeting, key=_by_cost), f"the cheapest plan that meets the deadline{both}"
    if goal.budget is not None:
        return min(meeting, key=_by_time), "the fastest plan within the budget"
    return min(meeting, key=_by_time), "the fastest plan; no deadline, budget or trade-off is given"


def _meets(option: Option, goal: Goal) -> bool:
    return _meets_budget(option, goal) and _meets_deadline(option, goal)


def _meets_deadline(option: Option, goal: Goal) -> bool:
    if goal.deadline is None or option.makespan is None:
        return True
    return option.makespan <= goal.deadline * (1 + SLACK)


def _meets_budget(option: Option, goal: Goal) -> bool:
    if goal.budget is None or option.cost is None:
        return True
    return option.cost <= goal.budget * (1 + SLACK)


def _unchecked(option: Option, goal: Goal) -> str:
    unchecked = []
    if goal.deadline is not None and option.makespan is None:
        unchecked.append("the deadline could not be checked: the makespan is unknown")
    if goal.budget is not None and option.cost is None:
        unchecked.append("the budget could not be checked: the cost is unknown")
    if goal.trade_off is not None and (option.makespan is None or option.cost is None):
        what = "cost" if option.cost is None else "makespan"
        unchecked.append(f"the trade-off could not be weighed in full: the {what} is unknown")
    return "; ".join(unchecked)


def _by_time(option: Option) -> tuple[float, float, int]:
    # Unknown makespans come together, the widest purchase first.
    makespan = math.inf if option.makespan is None else option.makespan
    width = -option.processors if option.makespan is None else option.processors
    return (makespan, _cost(option), width)


def _by_cost(option: Option) -> tuple[float, float, int]:
    return (_cost(option), *_by_time(option)[::2])


def _cost(option: Option) -> float:
    return math.inf if option.cost is None else option.cost


def _weighted(front: Front, weight: float) -> Callable[[Option], tuple[float, ...]]:
    """Order of the options by HPDC'07 equation 8, ties by time."""
    cost = _scale([o.cost for o in front.options])
    makespan = _scale([o.makespan for o in front.options])

    def value(option: Option) -> tuple[float, ...]:
        weighted = weight * cost(option.cost) + (1 - weight) * makespan(option.makespan)
        return (round(weighted, 12), *_by_time(option))

    return value


def _scale(values: Sequence[float | None]) -> Callable[[float | None], float]:
    """
    HPDC'07 equation 7: 0 at the least of the values, 1 at the greatest.

    Unknown is 1; everything known is 0 where the least is the greatest.
    """
    known = [value for value in values if value is not None]
    least, greatest = min(known, default=0.0), max(known, default=0.0)

    def scaled(value: float | None) -> float:
        if value is None:
            return 1.0
        return (value - least) / (greatest - least) if greatest > least else 0.0

    return scaled


def _why_not(front: Front, goal: Goal) -> str:
    no_deadline = not any(_meets_deadline(o, goal) for o in front.options)
    no_budget = not any(_meets_budget(o, goal) for o in front.options)
    if no_deadline and no_budget:
        return "neither the deadline nor the budget is within reach of any plan"
    if no_deadline:
        return "no plan meets the deadline"
    if no_budget:
        return "no plan is within the budget"
    return "no plan meets the deadline within the budget"


def _counter_offers(front: Front, goal: Goal) -> list[CounterOffer]:
    tasks = len(front.workflow.tasks)
    offers = []
    if goal.deadline is not None:
        within = [o for o in front.options if _meets_budget(o, goal) and o.makespan is not None]
        if within:
            offers.append(_offer("time", min(within, key=_by_time), tasks))
    if goal.budget is not None:
        in_time = [o for o in front.options if _meets_deadline(o, goal) and o.makespan is not None]
        if in_time:
            offers.append(_offer("budget", min(in_time, key=_by_cost), tasks))
    share = _largest_share(front, goal)
    if share is not None:
        offers.append(share)
    return offers


def _offer(kind: Literal["time", "budget"], option: Option, tasks: int) -> CounterOffer:
    assert option.makespan is not None
    return CounterOffer(
        kind=kind, makespan=option.makespan, cost=option.cost, tasks=tasks, share=1.0
    )


def _largest_share(front: Front, goal: Goal) -> CounterOffer | None:
    # Late: it brings the kernels, and whoever only names a Choice does not need them.
    from bursar.planning.share import largest_share

    found = largest_share(front, lambda o: _meets(o, goal), lambda o: _miss(o, goal))
    if found is None:
        return None
    count, option = found
    assert option.makespan is not None
    tasks = len(front.workflow.tasks)
    return CounterOffer(
        kind="share",
        makespan=option.makespan,
        cost=option.cost,
        tasks=count,
        share=count / tasks,
    )


def _miss(option: Option, goal: Goal) -> float:
    """How many times over the goal, at the worse of deadline and budget."""
    late = dear = 0.0
    if goal.deadline is not None and option.makespan is not None:
        late = option.makespan / goal.deadline
    if goal.budget is not None and option.cost is not None:
        dear = option.cost / goal.budget if goal.budget else math.inf
    return max(late, dear)
