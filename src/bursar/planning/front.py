"""
The trade-off between makespan and cost: options, bounds, and plans that no other beats.

Differences below one part in 10^9 do not count: they are a float's own error.
"""

import bisect
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bursar.model.campaign import Workflow
from bursar.model.plan import Purchase
from bursar.model.site import SiteFacts
from bursar.planning.policy import Method, Scheduler, ScheduleRecipe

if TYPE_CHECKING:
    from bursar.planning.kernels.availability import FloatArray

# The trade-off between makespan and allocation cost: options, bounds and the front of both.


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
        No plan on the slots bought is shorter, seconds; None when no runtime is known.
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
        On the makespan, with all processors bought, seconds; None when no runtime is known.
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
        Those that no other beats in makespan and cost, fastest first; one of each kind. Options of
        unknown cost are kept unless they would be beaten whatever the unknown prices are. When
        runtimes are unknown: the cheapest site, the two cheapest, and so on, with as many
        processors as the tasks can use.
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


# Plans that no other beats in both makespan and cost.


@dataclass(frozen=True, slots=True, eq=False)
class EvaluatedPlan:
    """A plan that was tried: makespan, seconds; cost, currency units; how to make it."""

    makespan: float
    cost: float
    recipe: ScheduleRecipe


class ParetoArchive:
    """
    Keeps the plans found so far that no other beats, fastest first.

    Of equal plans the first found stays.
    """

    def __init__(self) -> None:
        self._makespans: list[float] = []
        self._found: list[EvaluatedPlan] = []

    def __iter__(self) -> Iterator[EvaluatedPlan]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, index: int) -> EvaluatedPlan:
        return self._found[index]

    @property
    def points(self) -> "FloatArray":
        """Makespan and cost of each plan, shape ``(n, 2)``."""
        import numpy as np

        return np.array([(f.makespan, f.cost) for f in self._found]).reshape(-1, 2)

    def would_keep(self, makespan: float, cost: float) -> bool:
        """Whether no plan here is as fast and as cheap."""
        # Kept plans get cheaper as they get slower, so the slowest that is no slower is the
        # cheapest of these: one comparison decides.
        at = bisect.bisect_right(self._makespans, rounded(makespan))
        return at == 0 or rounded(self._found[at - 1].cost) > rounded(cost)

    def add(self, found: EvaluatedPlan) -> bool:
        """Keep an unbeaten plan and drop the plans beaten by this one; False when not kept."""
        if not math.isfinite(found.makespan) or not self.would_keep(found.makespan, found.cost):
            return False
        makespan, cost = rounded(found.makespan), rounded(found.cost)
        at = bisect.bisect_left(self._makespans, makespan)
        end = at
        # For the same reason the plans beaten are neighbours.
        while end < len(self._found) and rounded(self._found[end].cost) >= cost:
            end += 1
        self._found[at:end] = [found]
        self._makespans[at:end] = [makespan]
        return True


def rounded(value: float) -> float:
    """Nine digits, so that a float's own error decides nothing."""
    return float(f"{value:.9e}")
