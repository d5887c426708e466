"""
Picks the plan for a goal, says why, and makes counter-offers where no plan will do.

- A deadline alone, or with a budget: the cheapest plan that meets both.
- A budget alone: the fastest plan within it.
- A trade-off a: among the plans that meet deadline and budget, the least
  a cost + (1 - a) makespan, both scaled to run from 0 at the least of the whole curve to 1 at its
  greatest (HPDC'07 equations 7 and 8). A cost that is unknown counts as the greatest.
- Nothing: the fastest plan.

Where only a share of the tasks fits the goal, a share that can be run by itself is offered:
with each task, all its parents. Tasks join in order of their work, least first, parents before
children, so the count is large; a share is the first so many of that order, and it counts only
once it has been planned and its plan meets the goal.
"""

import functools
import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol

from bursar.model.campaign import Goal, odds_in_words
from bursar.model.plan import Plan
from bursar.planning.front import ParetoFront, PlanOption
from bursar.planning.policy import ScheduleRecipe

if TYPE_CHECKING:
    from bursar.planning.kernels.availability import IntArray
    from bursar.planning.problem import PlanningProblem

# Finds how many tasks fit a deadline and a budget that are too tight for all tasks.


def largest_share(
    front: ParetoFront, meets: Callable[[PlanOption], bool], miss: Callable[[PlanOption], float]
) -> tuple[int, PlanOption] | None:
    """
    Return the most tasks that a purchase of the front can do within the goal, and the option.

    Each purchase first has to beat the best share so far by one task; how far it
    then gets is found by halving. That takes a longer share to need no less time
    and money, as it does up to what a list scheduler gains by accident.

    Parameters
    ----------
    meets
        Whether an option meets the goal.
    miss
        How far an option is from the goal; the nearest purchases are tried first.

    Returns
    -------
    tuple or None
        None when not one task can be done within the goal, or a runtime is unknown.
    """
    # What they need takes time to load.
    from bursar.planning.trade_off_solver import evaluate_recipe, problem_of

    problem = problem_of(front)
    if not problem.known.all():
        return None
    order = least_work_first(front, problem)
    part = functools.lru_cache(maxsize=4)(lambda count: problem.restricted(order[:count]))

    def planned(count: int, caps: tuple[int, ...]) -> PlanOption | None:
        option = evaluate_recipe(part(count), ScheduleRecipe(caps=caps))
        return option if option is not None and meets(option) else None

    best: tuple[int, PlanOption] | None = None
    for caps in dict.fromkeys(o.recipe.caps for o in sorted(front.options, key=miss)):
        low = best[0] if best else 0
        high = problem.n_tasks - 1
        step = low + 1
        while low < high:
            option = planned(step, caps)
            if option is not None:
                low, best = step, (step, option)
            # Not one task more than the best so far: the purchase is done with after one schedule.
            # Without this test, 100,000 tasks took over a minute instead of a few seconds.
            elif step == low + 1:
                break
            else:
                high = step - 1
            step = (low + high + 1) // 2
    return best


def tasks_left_out(front: ParetoFront, count: int) -> frozenset[str]:
    """Return the ids of the tasks that an offer of ``count`` tasks leaves out."""
    from bursar.planning.trade_off_solver import problem_of

    order = least_work_first(front, problem_of(front))
    return frozenset(front.workflow.tasks[int(i)].id for i in order[count:])


def least_work_first(front: ParetoFront, problem: "PlanningProblem") -> "IntArray":
    """
    Return the tasks by work, least first, parents before children, shape ``(n_tasks,)``.

    Work is the runtime on the fastest site times the width, processor-seconds. Of tasks with
    equal work the one listed first in the workflow goes first.

    Parameters
    ----------
    front
        Front of the same workflow, of which only the dependencies are read.
    problem
        Tells runtimes, all of them known, and widths.
    """
    work = (problem.runtimes.min(axis=1) * problem.widths).tolist()
    parents, children = front.workflow.parents, front.workflow.children
    missing = [len(p) for p in parents]
    ready = [(work[i], i) for i, n in enumerate(missing) if not n]
    heapq.heapify(ready)
    order = []
    while ready:
        _, task = heapq.heappop(ready)
        order.append(task)
        for child in children[task]:
            missing[child] -= 1
            if not missing[child]:
                heapq.heappush(ready, (work[child], child))
    import numpy as np

    return np.array(order, dtype=np.int64)


SLACK = 1e-9
"""Share by which a plan may exceed a deadline or budget and still meet the goal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalCounterOffer:
    """
    An offer in place of a goal that is out of reach.

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
        Share of the tasks, in [0, 1].
    margin_seconds, margin_cost
        Parts of makespan and cost beyond what the tasks themselves take: for the start of
        workers, the end of leases and the money that is held ahead.
    """

    kind: Literal["time", "budget", "share"]
    makespan: float
    cost: float | None
    tasks: int
    share: float
    margin_seconds: float = 0.0
    margin_cost: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChoice:
    """
    The plan that a goal picks, or what could be had instead.

    Parameters
    ----------
    option
        The point of the curve that is picked; None when the goal is out of reach.
    plan
        The same with the place of every task.
    reason
        Why, one line.
    counter_offers
        Counter-offers; empty when the goal can be met.
    """

    option: PlanOption | None
    plan: Plan | None = field(repr=False)
    reason: str
    counter_offers: tuple[GoalCounterOffer, ...] = ()

    @property
    def infeasible(self) -> bool:
        """Whether no plan meets the goal."""
        return self.option is None


class ExecutionMargins(Protocol):
    """Tells the time and money that carrying out a plan takes beyond the plan."""

    def affords(self, option: PlanOption, budget: float) -> bool:
        """Whether a budget lets a plan run to the end, if all goes as planned."""

    def seconds(self, option: PlanOption) -> float:
        """Return the time of :meth:`with_margins` alone, which is found sooner."""

    def with_margins(self, option: PlanOption) -> tuple[float, float | None]:
        """
        Return seconds and currency units, rounded up as printed, that are sure to suffice.

        Of an option whose makespan is known; the amount is None when a price is unknown.
        """

    def with_margins_of_part(self, option: PlanOption, tasks: int) -> tuple[float, float | None]:
        """Return the same for a plan of only so many of the tasks."""

    def odds(self, option: PlanOption) -> float | None:
        """Return the probability that a plan keeps the goal; None: nothing says how likely."""


class NoExecutionMargins:
    """Adds no margins: nothing is held ahead, and workers are there at once."""

    def affords(self, option: PlanOption, budget: float) -> bool:
        """Return True: a plan needs no more money than it costs."""
        return True

    def seconds(self, option: PlanOption) -> float:
        """Return the makespan of a plan as it is."""
        assert option.makespan is not None
        return option.makespan

    def with_margins(self, option: PlanOption) -> tuple[float, float | None]:
        """Return makespan and cost of a plan as they are."""
        return self.seconds(option), option.cost

    def with_margins_of_part(self, option: PlanOption, tasks: int) -> tuple[float, float | None]:
        """Return makespan and cost of a plan of part of the tasks as they are."""
        return self.with_margins(option)

    def odds(self, option: PlanOption) -> float | None:
        """Return None: run times are as stated."""
        return None


def choose_plan(
    front: ParetoFront, goal: Goal, needs: ExecutionMargins | None = None
) -> PlanChoice:
    """
    Return the plan of the curve that the goal picks.

    What is not known cannot rule a plan out: with unknown runtimes or prices
    the reason says what is not known. Plans that meet the goal with their margins
    come before plans that only just meet the goal; of these, where it is known how likely
    each keeps the goal, the likeliest is picked.

    Parameters
    ----------
    needs
        Time and money beyond the plan; None: no margins.
    """
    needs = needs or NoExecutionMargins()
    meeting = [o for o in front.options if _meets(o, goal) and _affords(o, goal, needs)]
    if not meeting:
        return PlanChoice(
            option=None,
            plan=None,
            reason=_why_not(front, goal, needs),
            counter_offers=tuple(_counter_offers(front, goal, needs)),
        )
    from bursar.planning.trade_off_solver import plan_option  # what it needs takes time to load

    meeting.sort(key=_preference(front, goal))
    # Plans that keep the goal with the start of workers and what is held ahead come first; one
    # that only just meets it is better than none. To judge a plan takes time: in order, until one
    # is sure.
    sure = next((o for o in meeting if _is_sure(o, goal, needs)), None)
    option = sure or _likeliest(meeting, needs)
    reason = _reason(option, goal)
    if goal.deadline is not None or goal.budget is not None:
        reason += _in_odds(option, meeting[0], goal, needs, is_sure=sure is not None)
    return PlanChoice(option=option, plan=plan_option(front, option), reason=reason)


def best_effort(front: ParetoFront, goal: Goal) -> PlanOption:
    """
    Choose the plan to run when the goal is out of reach and the run shall start all the same.

    The fastest within the budget; where the budget is out of reach too, the cheapest.
    """
    within = [o for o in front.options if _meets_budget(o, goal)]
    if within:
        return min(within, key=_by_time)
    return min(front.options, key=_by_cost)


def _preference(front: ParetoFront, goal: Goal) -> Callable[[PlanOption], tuple[float, ...]]:
    """Return a key that orders plans which meet a goal, the best first."""
    if goal.trade_off is not None:
        return _weighted(front, goal.trade_off)
    return _by_time if goal.deadline is None else _by_cost


def _likeliest(meeting: Sequence[PlanOption], needs: ExecutionMargins) -> PlanOption:
    """Return the plan that keeps the goal most probably; the first where that is not known."""
    odds = {id(option): needs.odds(option) for option in meeting}
    return max(meeting, key=lambda option: odds[id(option)] or 0.0)


def _in_odds(
    option: PlanOption,
    first: PlanOption,
    goal: Goal,
    needs: ExecutionMargins,
    *,
    is_sure: bool,
) -> str:
    """Return how likely a plan keeps the goal, and the price of the plan's margin, as words."""
    odds = needs.odds(option)
    if odds is None:
        return ""
    words = f", with a probability of {odds_in_words(odds)}"
    if not is_sure:
        return words + f": no plan reaches the {odds_in_words(goal.confidence)} asked for"
    words += f" ({odds_in_words(goal.confidence)} asked for)"
    if first is not option and option.cost is not None and first.cost is not None:
        other = needs.odds(first)
        assert other is not None
        words += (
            f"; a plan for {option.cost - first.cost:.4g} {option.currency} less would keep it "
            f"with {odds_in_words(other)}"
        )
    return words


def _reason(option: PlanOption, goal: Goal) -> str:
    """Say why a plan was picked by the goal, and what is not known of the plan."""
    if goal.trade_off is not None:
        reason = f"the best trade-off at weight {goal.trade_off:g} of cost against time"
        if option.makespan is None or option.cost is None:
            what = "cost" if option.cost is None else "makespan"
            reason += f", as far as is known: the {what} is not"
        return reason
    limits = []  # that the plan is known to keep
    unknown = []
    if goal.deadline is not None:
        if option.makespan is None:
            unknown.append("runtimes are unknown, and so is whether the deadline will be met")
        else:
            limits.append("the deadline")
    if goal.budget is not None:
        if option.cost is None:
            unknown.append("the cost is unknown, and so is whether the budget suffices")
        else:
            limits.append("the budget")
    if option.makespan is None:
        what = "the plan with the most processors"
    elif goal.deadline is not None and option.cost is not None:
        what = "the cheapest plan"
    else:
        what = "the fastest plan"
    reason = what
    if limits:
        keeps = "within" if limits == ["the budget"] else "that meets"
        reason += f" {keeps} {' and '.join(limits)}"
    if unknown:
        reason += f"; {', and '.join(unknown)}"
    if goal.deadline is None and goal.budget is None:
        reason += "; no deadline, budget or trade-off is given"
    return reason


def _meets(option: PlanOption, goal: Goal) -> bool:
    return _meets_budget(option, goal) and _meets_deadline(option, goal)


def _meets_deadline(option: PlanOption, goal: Goal) -> bool:
    if goal.deadline is None or option.makespan is None:
        return True
    return option.makespan <= goal.deadline * (1 + SLACK)


def _meets_budget(option: PlanOption, goal: Goal) -> bool:
    if goal.budget is None or option.cost is None:
        return True
    return option.cost <= goal.budget * (1 + SLACK)


def _by_time(option: PlanOption) -> tuple[float, float, int]:
    # Unknown makespans come together, the widest purchase first.
    makespan = math.inf if option.makespan is None else option.makespan
    width = -option.processors if option.makespan is None else option.processors
    return (makespan, _cost(option), width)


def _by_cost(option: PlanOption) -> tuple[float, float, int]:
    return (_cost(option), *_by_time(option)[::2])


def _cost(option: PlanOption) -> float:
    return math.inf if option.cost is None else option.cost


def _weighted(front: ParetoFront, weight: float) -> Callable[[PlanOption], tuple[float, ...]]:
    """Order of the options by HPDC'07 equation 8, ties by time."""
    cost = _scale([o.cost for o in front.options])
    makespan = _scale([o.makespan for o in front.options])

    def value(option: PlanOption) -> tuple[float, ...]:
        weighted = weight * cost(option.cost) + (1 - weight) * makespan(option.makespan)
        # Rounded, so that weighted sums that differ in their last bits only are ties and time
        # decides.
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


def _affords(option: PlanOption, goal: Goal, needs: ExecutionMargins) -> bool:
    return goal.budget is None or option.cost is None or needs.affords(option, goal.budget)


def _is_sure(option: PlanOption, goal: Goal, needs: ExecutionMargins) -> bool:
    """Whether an option meets the goal with margins, as far as the figures are known."""
    if option.makespan is None or (goal.deadline is None and goal.budget is None):
        return True
    if goal.budget is None:
        return _is_within((needs.seconds(option), None), goal)
    return _is_within(needs.with_margins(option), goal)


def _is_within(figures: tuple[float, float | None], goal: Goal) -> bool:
    seconds, cost = figures
    if goal.deadline is not None and seconds > goal.deadline * (1 + SLACK):
        return False
    return goal.budget is None or cost is None or cost <= goal.budget * (1 + SLACK)


def _why_not(front: ParetoFront, goal: Goal, needs: ExecutionMargins) -> str:
    no_deadline = not any(_meets_deadline(o, goal) for o in front.options)
    no_budget = not any(_meets_budget(o, goal) for o in front.options)
    if no_deadline and no_budget:
        return "neither the deadline nor the budget is within reach of any plan"
    if no_deadline:
        return "no plan meets the deadline"
    if no_budget:
        return "no plan is within the budget"
    if not any(_meets_budget(o, goal) and _affords(o, goal, needs) for o in front.options):
        return "no plan is within the budget with what must be held ahead"
    return "no plan meets the deadline within the budget"


def _counter_offers(
    front: ParetoFront, goal: Goal, needs: ExecutionMargins
) -> list[GoalCounterOffer]:
    tasks = len(front.workflow.tasks)
    offers = []
    known = [o for o in front.options if o.makespan is not None]
    if goal.deadline is not None:
        # An offer must hold when it is taken: it is judged with its margins, by the half of the
        # goal that stays.
        money = replace(goal, deadline=None)
        within = [o for o in known if _meets_budget(o, goal) and _is_sure(o, money, needs)]
        if within:
            offers.append(_offer("time", min(within, key=_by_time), tasks, needs))
    if goal.budget is not None:
        time = replace(goal, budget=None)
        in_time = [o for o in known if _meets_deadline(o, goal) and _is_sure(o, time, needs)]
        if in_time:
            offers.append(_offer("budget", min(in_time, key=_by_cost), tasks, needs))
    share = _largest_share(front, goal, needs)
    if share is not None:
        offers.append(share)
    return offers


def _offer(
    kind: Literal["time", "budget"], option: PlanOption, tasks: int, needs: ExecutionMargins
) -> GoalCounterOffer:
    return _made(kind, option, needs.with_margins(option), tasks, tasks)


def _made(
    kind: Literal["time", "budget", "share"],
    option: PlanOption,
    figures: tuple[float, float | None],
    count: int,
    tasks: int,
) -> GoalCounterOffer:
    """An offer of some tasks at the figures of an option with margins."""
    seconds, cost = figures
    assert option.makespan is not None
    return GoalCounterOffer(
        kind=kind,
        makespan=seconds,
        cost=cost,
        tasks=count,
        share=count / tasks,
        margin_seconds=seconds - option.makespan,
        margin_cost=0.0 if cost is None or option.cost is None else cost - option.cost,
    )


def _largest_share(
    front: ParetoFront, goal: Goal, needs: ExecutionMargins
) -> GoalCounterOffer | None:
    # Late: it brings the kernels, and whoever only names a Choice does not need them.

    tasks = len(front.workflow.tasks)

    def meets(option: PlanOption) -> bool:
        known = option.makespan is not None
        return known and _is_within(needs.with_margins_of_part(option, tasks), goal)

    found = largest_share(front, meets, lambda o: _miss(o, goal))
    if found is None:
        return None
    count, option = found
    return _made("share", option, needs.with_margins_of_part(option, tasks), count, tasks)


def _miss(option: PlanOption, goal: Goal) -> float:
    """How many times over the goal, at the worse of deadline and budget."""
    late = dear = 0.0
    if goal.deadline is not None and option.makespan is not None:
        late = option.makespan / goal.deadline
    if goal.budget is not None and option.cost is not None:
        dear = option.cost / goal.budget if goal.budget else math.inf
    return max(late, dear)
