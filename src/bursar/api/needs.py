"""
Budget and time that a run needs beyond the plan, and counter-offers that are tried first.

An offer is a printed time and a printed amount. Taken as deadline and budget, both are
enough whenever tasks take as long as stated: an offer includes the start of workers, the
money that is held ahead of the clock and at wall limits, and rounding.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from bursar.broker.estimates import start_up
from bursar.model.campaign import Goal
from bursar.model.money import from_micros
from bursar.model.plan import Plan
from bursar.model.site import SiteFacts
from bursar.model.task import Outcome, Status, Task
from bursar.planning.front import ParetoFront, PlanOption
from bursar.planning.plan_choice import GoalCounterOffer
from bursar.planning.trade_off_solver import plan_option
from bursar.report.tables import amount_above, span_above

if TYPE_CHECKING:
    from bursar.market.lease import Lease
    from bursar.model.allocation import Allocation

# Counter-offers, each tried with all margins before the offer is made.

HAND_OVER = 0.01
"""Seconds between two tasks of a processor, generously."""

SLOWER = 0.02
"""Share by which a task takes longer than stated, where tasks really run."""

GoalCheck = Callable[[Goal], bool]
"""Whether all that is offered is done by a deadline and within a budget."""


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

    more = least_share(lambda share: holds(at(share)))
    if more is None:
        return None
    found = at(more)
    assert found.deadline is not None
    return with_margins(offer, found.deadline, found.budget)


def least_share(holds: Callable[[float], bool]) -> float | None:
    """Return about the least share on top of a limit that holds; None: none of those tried does."""
    high = next((more for more in STEPS if holds(more)), None)
    if high is None:
        return None
    low = max((more for more in STEPS if more < high), default=high)
    # Each try may make a plan, so steps that double come first, and bisection within the last one.
    while high - low > _CLOSE_TO * (1 + high):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


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


STEPS = (0.0, 0.01, 0.03, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4)
"""Shares on top of a limit that are tried, one after the other."""

_CLOSE_TO = 0.02
"""How close an offer comes to the least that holds, as a share."""


# Budget and time that a run needs beyond the plan.


class PlanNeeds:
    """
    Finds the time and money that plans of a front need.

    The class is a :class:`bursar.planning.plan_choice.ExecutionMargins`.

    Simulated sites start their workers at once and hand tasks over in no time; there, only
    money that is held ahead, and rounding, are margins.

    Parameters
    ----------
    front
        Front with the options in question.
    goal
        Goal, whose actions at a share of the budget count.
    """

    def __init__(self, front: ParetoFront, goal: Goal) -> None:
        self._front = front
        self._tasks = front.workflow.tasks
        self._goal = goal
        self._sites = {site.name: site for site in front.sites}
        limits = [task.wall_limit for task in self._tasks if task.wall_limit is not None]
        self._longest_limit = max(limits, default=0.0)
        self._found: dict[int, tuple[float, float | None]] = {}

    def affords(self, option: PlanOption, budget: float) -> bool:
        """Whether the guard lets a plan finish with a budget."""
        # From above first: most plans are settled by it without a guard's whole course.
        most = self._most(option, option.makespan, len(self._tasks))
        if most is None or most <= budget or option.makespan is None:
            return True
        least = least_budget(plan_option(self._front, option), self._tasks, self._goal, self._sites)
        return least is None or least <= budget * (1 + _CLOSE)

    def seconds(self, option: PlanOption) -> float:
        """Return the time of a plan whose workers start late and whose tasks take longer."""
        return self._seconds(option, len(self._tasks))[0]

    def with_margins(self, option: PlanOption) -> tuple[float, float | None]:
        """Return time and budget of a plan whose workers start late and whose tasks take longer."""
        # Options are compared many times while a plan is chosen, and a guard's course takes long.
        key = id(option)
        if key not in self._found:
            seconds, late, slower = self._seconds(option, len(self._tasks))
            least = None
            if option.cost is not None:
                plan = plan_option(self._front, option)
                least = least_budget(
                    plan, self._tasks, self._goal, self._sites, late=late, slower=slower
                )
            self._found[key] = seconds, None if least is None else amount_above(least)
        return self._found[key]

    def with_margins_of_part(self, option: PlanOption, tasks: int) -> tuple[float, float | None]:
        """Return upper limits of time and budget for part of the tasks; leases never end early."""
        seconds, _, _ = self._seconds(option, tasks)
        most = self._most(option, seconds, tasks)
        return seconds, None if most is None else amount_above(most)

    def odds(self, option: PlanOption) -> float | None:
        """Return None: nothing but the stated run times is known here."""
        return None

    def _seconds(self, option: PlanOption, tasks: int) -> tuple[float, float, float]:
        """Return seconds with margins, seconds before the first task, and the share on top."""
        assert option.makespan is not None
        used = [self._sites[purchase.slot.site] for purchase in option.purchases]
        late = max((start_up(site) for site in used), default=0.0)
        # Simulated sites: their workers take no time to start.
        if not late:
            return span_above(option.makespan), 0.0, 0.0
        # Each processor hands over once per task that it runs, one after the other.
        rounds = math.ceil(tasks / max(1, option.processors))
        more = SLOWER * option.makespan + HAND_OVER * rounds
        slower = more / option.makespan if option.makespan else 0.0
        return span_above(late + option.makespan + more), late, slower

    def _most(self, option: PlanOption, seconds: float | None, tasks: int) -> float | None:
        """Return the most that a plan on these purchases needs, currency units; None: unknown."""
        if option.cost is None or seconds is None:
            return None
        from bursar.market.guard import LEAD  # late, as in least_budget

        total = _MICRO * (tasks + len(option.purchases))  # each lease is rounded up
        for purchase in option.purchases:
            slot = purchase.slot
            site = self._sites[slot.site]
            held = site.unwatched + _least_seconds(site)
            total += held * slot.processors * (slot.unit_price or 0.0)
            if slot.leased:
                held = slot.processors * (seconds + LEAD + self._longest_limit)
                total += held * (slot.unit_price or 0.0) + (slot.fixed_price or 0.0)
            else:
                total += purchase.cost or 0.0
        return total / _stopping(self._goal)


def least_budget(
    plan: Plan,
    tasks: Sequence[Task],
    goal: Goal,
    sites: Mapping[str, SiteFacts],
    *,
    late: float = 0.0,
    slower: float = 0.0,
) -> float | None:
    """
    Return the smallest budget, currency units, with which the guard lets a plan finish.

    The plan's leases are opened, and its tasks admitted and settled, by a guard of the kind
    that holds the money of runs; None where a price or a run time is unknown.

    Parameters
    ----------
    goal
        Goal, whose actions count: a share of the budget at which the run stops or drains is the
        limit.
    sites
        Sites of the plan by name: a batch queue has a least time for which processors are asked
        for, and its pilots may go on for a while when no process watches them.
    late
        Seconds by which the first tasks start later than planned, on leases that are open.
    slower
        Share by which all takes longer than planned.
    """
    if plan.cost is None or plan.makespan is None:
        return None
    # Late: a plan without a budget needs neither pilots nor the guard.
    from bursar.broker.pilot_plan import plan_pilots
    from bursar.market.guard import BudgetGuard

    pilots = {pilot.name: pilot for pilot in plan_pilots(plan, tasks)}
    # The guard of live runs itself, so that a forecast and what is allowed later cannot drift
    # apart.
    guard = BudgetGuard(None, limit_of=lambda task: tasks[task].wall_limit)
    for pilot in pilots.values():
        guard.open(_lease(pilot, plan.currency, sites[pilot.site]), 0.0)
    least = sum(_agreed(pilot, sites[pilot.site]) for pilot in pilots.values())
    where = {task: pilot.name for pilot in pilots.values() for task in pilot.tasks}
    left = {name: len(pilot.tasks) for name, pilot in pilots.items()}
    moments = []
    for placement in plan.placements:
        if placement.task in where:
            start = late + placement.start * (1 + slower)
            finish = late + placement.finish * (1 + slower)
            # Leases that end free money for those that begin at the same time.
            # Sorted by time, then 0 for an end, 1 for a start, 2 for a task without duration.
            moments += [(start, 1, placement.task, finish), (finish, 0, placement.task, finish)]
            if finish <= start:
                # Its end must not be settled before its start is admitted at the same moment.
                moments[-1] = (finish, 2, placement.task, finish)
    for now, kind, task, finish in sorted(moments):
        lease = where[task]
        if kind == 1:
            least = max(least, guard.least_budget(task, lease, now, finish - now))
            guard.admit(task, lease, now)
            # For all tasks that run side by side: with only the largest limit of a lease counted, a
            # run on such an offer was stopped with no task done.
            limit = tasks[task].wall_limit
            if limit is not None:  # without a budget a guard encumbers nothing
                guard.encumber(task, lease, now + limit)
            continue
        outcome = Outcome(task=task, attempt=1, status=Status.SUCCEEDED, start=now, end=now)
        guard.settle([outcome], now)
        left[lease] -= 1
        if not left[lease]:
            guard.charges.close(lease, now)
    # An action at a share of the budget stops the run when that much is spent, so all of the cost
    # must lie below the share.
    return max(from_micros(least), from_micros(guard.spent(plan.makespan)) / _stopping(goal))


def _stopping(goal: Goal) -> float:
    """Return the share of the budget from which on the run stops or drains."""
    return min((share for share, action in goal.on_budget.items() if action != "warn"), default=1.0)


def _agreed(pilot: "Allocation", site: SiteFacts) -> int:
    """Return the micro-units that a pilot needs set aside at the begin."""
    lease = _lease(pilot, "", site)
    seconds = 0.0 if lease.until is None else lease.until - lease.start
    return lease.charge(lease.processors * (seconds + lease.unwatched))


def _least_seconds(site: SiteFacts) -> float:
    """Return the seconds for which processors of a site are requested at least."""
    return 0.0 if site.batch is None else site.acquiring.shortest


def _lease(pilot: "Allocation", currency: str, site: SiteFacts) -> "Lease":
    """
    Return the lease of a pilot of a plan, on the plan's clock.

    A pilot whose slot another one pays whole costs nothing itself. A pilot without a known start
    begins at 0; ``until`` is None when the pilot has no set end.
    """
    from bursar.market.lease import lease_of

    start = pilot.start or 0.0
    until = max(pilot.latest_end, start + _least_seconds(site))
    # A run that is killed may leave its pilots behind for so long; a budget that cannot hold this
    # starts nothing.
    return lease_of(pilot, start, currency=currency, until=until, unwatched=site.unwatched)


_CLOSE = 1e-9
_MICRO = 1e-6
