"""The trade-off between makespan and allocation cost: options, bounds and the front of both."""

from dataclasses import dataclass, field

from bursar.model.plan import Purchase
from bursar.model.site import SiteFacts
from bursar.model.workflow import Workflow
from bursar.planning.policy import Method, Scheduler, ScheduleRecipe


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOption:
    """
    A purchase and the resulting figures: a point of the trade-off curve.

    Parameters
    ----------
    makespan
        Seconds; None when a runtime is unknown.
    cost
        Allocation cost, currency units; None when a price or runtime is unknown.
    currency
        Currency of the cost.
    purchases
        Purchases, slot by slot.
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
        """Share by which the makespan exceeds the proven bound; None when unknown."""
        if self.makespan is None or not self.bound:
            return None
        return max(0.0, self.makespan / self.bound - 1)

    @property
    def cost_gap(self) -> float | None:
        """Share by which the cost exceeds the proven bound; None when unknown."""
        if self.cost is None or not self.cost_bound:
            return None
        return max(0.0, self.cost / self.cost_bound - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBounds:
    """
    Lower bounds over every purchase from the sites.

    Parameters
    ----------
    critical_path, work, energetic
        On the makespan, with all processors bought, seconds; None when no
        runtime is known.
    cost
        On the allocation cost over the sites of known price, currency units;
        None when no runtime or price is known, or a task fits on no priced site.
    exact
        On the makespan, proven by CP-SAT, seconds; None when it was not asked.
    currency
        Currency of the cost.
    tasks, unknown_tasks
        How many there are, and how many of unknown runtime count as nothing.
    unpriced_sites
        Names of the sites that the cost bound does not speak of.
    """

    critical_path: float | None
    work: float | None
    energetic: float | None
    cost: float | None
    currency: str
    tasks: int
    exact: float | None = None
    unknown_tasks: int = 0
    unpriced_sites: tuple[str, ...] = ()

    @property
    def makespan(self) -> float | None:
        """The strongest bound on the makespan, seconds; None when no runtime is known."""
        if self.critical_path is None or self.work is None or self.energetic is None:
            return None
        return max(self.critical_path, self.work, self.energetic, self.exact or 0.0)


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
        Proven bounds that no plan can beat.
    notes
        Unknown figures and their consequences, in plain words.
    workflow, sites
        Workflow and sites of the request; the sites cheapest first.
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
    bounds: PlanBounds
    notes: tuple[str, ...] = ()
    workflow: Workflow = field(repr=False)
    sites: tuple[SiteFacts, ...] = field(repr=False)
    method: Method = "auto"
    scheduler: Scheduler = "heft"
    overhead: float = 0.0
    whole: bool = False

    @property
    def currency(self) -> str:
        """Currency of all costs of the front."""
        return self.sites[0].currency
