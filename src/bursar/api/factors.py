"""Deadlines and budgets relative to what is possible (the D- and B-factors of Buyya et al.)."""

import math
from collections.abc import Sequence
from dataclasses import replace

from bursar.api.planning import plan
from bursar.broker.estimates import sizes_of
from bursar.broker.packing import JobPacking, JobSizeClasses, ResourcePool
from bursar.model.campaign import Campaign, Goal
from bursar.model.errors import InputError
from bursar.model.site import SiteFacts


def with_factors(
    campaign: Campaign,
    sites: Sequence[SiteFacts],
    *,
    deadline_factor: float | None = None,
    budget_factor: float | None = None,
) -> Campaign:
    """
    The campaign with a deadline and a budget between the least and the most that make sense.

    ``D = Tmin + Df (Tmax - Tmin)``: from all processors, the fastest first, to the slowest one
    alone. ``B = Cmin + Bf (Cmax - Cmin)``: from the cheapest to the dearest processors, within
    the deadline. Below 0 nothing is feasible, from 1 on everything is.

    Parameters
    ----------
    deadline_factor, budget_factor
        Df and Bf; None: the goal's own deadline or budget stays.

    Raises
    ------
    InputError
        When a factor is not a number, it leads to a limit that is not positive, or runtimes or
        prices are unknown.
    """
    for name, factor in (("deadline", deadline_factor), ("budget", budget_factor)):
        if factor is not None and not math.isfinite(factor):
            raise InputError(f"expected a number, got {factor}", where=f"{name}-factor")
    tasks = campaign.workflow.tasks
    for task in tasks:
        if task.runtime is None:
            raise InputError(
                f'the runtime of task "{task.id}" is unknown, and a factor needs it',
                where="deadline-factor" if budget_factor is None else "budget-factor",
                hint="give it a runtime, or one for all with --runtime",
            )
    goal = campaign.goal
    possible = (
        _BagLimits(campaign, sites) if campaign.workflow.is_bag else _PlanLimits(campaign, sites)
    )
    if deadline_factor is not None:
        fastest, slowest = possible.times()
        goal = _limited(goal, deadline=fastest + deadline_factor * (slowest - fastest))
    if budget_factor is not None:
        for site in sites:
            if site.unit_price is None:
                raise InputError("is unknown", where=f"site.{site.name}.unit_price")
        # With the new deadline, as in Buyya's definition: the budget is between the least and the
        # most within it.
        cheapest, dearest = possible.costs(goal.deadline)
        goal = _limited(goal, budget=cheapest + budget_factor * (dearest - cheapest))
    return replace(campaign, goal=goal)


class _BagLimits:
    """Independent tasks of one processor each."""

    def __init__(self, campaign: Campaign, sites: Sequence[SiteFacts]) -> None:
        self._sites = sites
        self._sizes = JobSizeClasses.of(
            sizes_of(task.runtime for task in campaign.workflow.tasks)[0]
        )

    def times(self) -> tuple[float, float]:
        fastest = self._filling(1).earliest(math.inf)
        assert fastest is not None
        # The paper's Tmax: all jobs one after the other on the slowest processor.
        return fastest, self._sizes.work / min(site.speed for site in self._sites)

    def costs(self, deadline: float | None) -> tuple[float, float]:
        by = math.inf if deadline is None else deadline
        cheap, dear = self._filling(1).by(by), self._filling(-1).by(by)
        # No filling does all jobs by then, so that there is no cheapest one.
        if not cheap.is_whole:
            raise InputError(
                f"is out of reach on these sites: {by:.6g} s", where="deadline", hint="allow more"
            )
        return cheap.cost, max(cheap.cost, -dear.cost if dear.is_whole else cheap.cost)

    def _filling(self, sign: int) -> JobPacking:
        pools = [
            ResourcePool(
                seconds=1.0 / site.speed,
                # The dearest filling is the cheapest one with the signs of all prices turned round.
                cost=sign * (site.unit_price or 0.0) / site.speed,
                fixed=sign * (site.fixed_price or 0.0),
                free_at=(0.0,) * site.processors,
            )
            for site in self._sites
        ]
        return JobPacking(pools, self._sizes)


class _PlanLimits:
    """Limits of other campaigns, from the plans of the front."""

    def __init__(self, campaign: Campaign, sites: Sequence[SiteFacts]) -> None:
        self._slowest = min(site.speed for site in sites)
        self._work = sum(task.runtime or 0.0 for task in campaign.workflow.tasks)
        # Without the goal, whose limits are what is asked for.
        self._options = plan(replace(campaign, goal=Goal()), tuple(sites)).front.options

    def times(self) -> tuple[float, float]:
        fastest = min(option.makespan for option in self._options if option.makespan is not None)
        return fastest, max(fastest, self._work / self._slowest)

    def costs(self, deadline: float | None) -> tuple[float, float]:
        """
        Return the least and the greatest cost of the front's plans that meet a deadline.

        Parameters
        ----------
        deadline
            Seconds from the start of the campaign; None: all plans of known length count.

        Raises
        ------
        InputError
            When no plan of known cost meets the deadline.
        """
        by = math.inf if deadline is None else deadline
        costs = [
            option.cost
            for option in self._options
            if option.cost is not None and option.makespan is not None and option.makespan <= by
        ]
        if not costs:
            raise InputError(f"no plan meets {by:.6g} s", where="deadline", hint="allow more")
        return min(costs), max(costs)


def _limited(goal: Goal, **limits: float) -> Goal:
    try:
        return replace(goal, **limits)  # type: ignore[arg-type]
    except ValueError as error:
        name = next(iter(limits))
        raise InputError(f"leads to a {error}", where=f"{name}-factor") from None
