"""The trade-off between makespan and allocation cost, and how it is asked for."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bursar.model.goal import Goal
from bursar.model.plan import Plan, Purchase
from bursar.model.site import SiteFacts
from bursar.model.workflow import Workflow
from bursar.planning.policy import Method, Scheduler, ScheduleRecipe

if TYPE_CHECKING:
    from bursar.planning.bounds import PlanBounds
    from bursar.planning.search_limits import OnProgress, SearchLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOption:
    """
    One purchase and what it gives: a point of the trade-off curve.

    Parameters
    ----------
    makespan
        Seconds; None when a runtime is unknown.
    cost
        Allocation cost, currency units; None when a price or runtime is unknown.
    currency
        Of the cost.
    purchases
        What is bought.
    utilisation
        Share of the bought processor time that tasks fill; None when unknown.
    recipe
        How the schedule is made.
    bound
        No plan on the slots bought is shorter, seconds; None when no runtime is
        known.
    cost_bound
        No plan as fast is cheaper, currency units; None when that was not proven.
    """

    makespan: float | None
    cost: float | None
    currency: str
    purchases: tuple[Purchase, ...]
    utilisation: float | None
    recipe: ScheduleRecipe = field(repr=False)
    bound: float | None = None
    cost_bound: float | None = None

    @property
    def processors(self) -> int:
        """Processors bought, over all purchases."""
        return sum(p.slot.processors for p in self.purchases)

    @property
    def gap(self) -> float | None:
        """How far above its bound the makespan is, at most, as a share; None when unknown."""
        if self.makespan is None or not self.bound:
            return None
        return max(0.0, self.makespan / self.bound - 1)

    @property
    def cost_gap(self) -> float | None:
        """How far above its bound the cost is, at most, as a share; None when unknown."""
        if self.cost is None or not self.cost_bound:
            return None
        return max(0.0, self.cost / self.cost_bound - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoFront:
    """
    The options worth choosing from.

    Parameters
    ----------
    options
        Those that no other beats in makespan and cost, fastest first; one of
        each kind. Options of unknown cost are kept unless they would be beaten
        whatever the unknown prices are. When runtimes are unknown: the cheapest
        site, the two cheapest, and so on, with as many processors as the tasks
        can use.
    tried
        Makespan, seconds, and cost, currency units, of every feasible plan that
        was tried, the front included.
    evaluations
        Schedules made.
    bounds
        What no plan can beat.
    notes
        What is unknown and what follows from it, in plain words.
    workflow, sites
        What was asked; the sites cheapest first.
    method, scheduler
        How the plans were searched, and how tasks are placed on them.
    overhead
        Seconds added to each task.
    whole
        Whether slots that nothing runs in are paid.
    """

    options: tuple[PlanOption, ...]
    tried: tuple[tuple[float, float], ...] = field(repr=False)
    evaluations: int
    bounds: "PlanBounds"
    notes: tuple[str, ...] = ()
    workflow: Workflow = field(repr=False)
    sites: tuple[SiteFacts, ...] = field(repr=False)
    method: Method = "auto"
    scheduler: Scheduler = "heft"
    overhead: float = 0.0
    whole: bool = False

    @property
    def currency(self) -> str:
        """Of every cost in it."""
        return self.sites[0].currency

    def plan(self, option: PlanOption) -> Plan:
        """
        The option with the place of every task.

        The schedule is computed again, to the same result: keeping one for each
        option would hold every task as many times as there are options.
        """
        from bursar.planning.trade_off_solver import plan_option

        return plan_option(self, option)


def trade_off(
    workflow: Workflow,
    sites: Sequence[SiteFacts],
    *,
    method: Method = "auto",
    scheduler: Scheduler = "heft",
    goal: Goal | None = None,
    processors: Sequence[int] | None = None,
    currency: str | None = None,
    overhead: float = 0.0,
    whole: bool = False,
    worth: float | None = None,
    limits: "SearchLimits | None" = None,
    on_progress: "OnProgress | None" = None,
) -> ParetoFront:
    """
    Makespan against allocation cost, over what the sites offer.

    A task goes only where there are the processors and the memory it needs. Its
    requirements, an expression, are not looked at; ``notes`` says who does.

    Parameters
    ----------
    sites
        What can be bought, and where; names unique.
    method
        How to search (see :mod:`bursar.planning.methods`).
    scheduler
        How tasks are placed (see :mod:`bursar.planning.schedulers`); ``auto`` uses
        others as well.
    goal
        Its trade-off is the weight of the cost in a total cost (``ga``, ``minmin``
        and ``list-cost``; 0.5 where it has none); ``ga`` rejects plans that miss
        its deadline or budget.
    processors
        Numbers of processors to try of a leased slot; None: all of them up to some
        dozens, and beyond that ever wider steps.
    currency
        Use only the sites that ask this currency; None: they all ask the same.
    overhead
        Seconds added to each task for starting it and fetching its result. Not
        negative. A processor is held, and paid, for this time too.
    whole
        The accounting of HPDC'07: a slot of the plan is paid though nothing runs
        in it. False: it is not bought then, as in e-Science'06.
    worth
        Currency units that a second of makespan is worth in a total cost; None: as
        many as make the least cost and the least makespan weigh the same.
    limits
        How far to search.
    on_progress
        Told the front so far.

    Raises
    ------
    InputError
        When there is no site, two have one name, slots of one overlap, a task fits
        on no site, no plan holds every task, no number of ``processors`` is enough,
        the sites ask different currencies and none is chosen, the method or the
        scheduler is unknown, a price is unknown and the method needs it, or the
        overhead is negative.
    """
    from bursar.planning.trade_off_solver import solve_trade_off

    return solve_trade_off(
        workflow,
        sites,
        method=method,
        scheduler=scheduler,
        goal=goal or Goal(),
        processors=processors,
        currency=currency,
        overhead=overhead,
        whole=whole,
        worth=worth,
        limits=limits,
        on_progress=on_progress,
    )
