"""How tasks are placed on a purchase, and how far a search for purchases goes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from bursar.planning.schedule import Schedule


# Describes how tasks are placed on a purchase, and the recipe that repeats a schedule.

Scheduler = Literal["heft", "greedy", "minmin", "maxmin", "list", "list-cost"]
SCHEDULERS: tuple[Scheduler, ...] = get_args(Scheduler)

Method = Literal["auto", "heft", "minmin", "ga", "moga", "nsga2"]
METHODS: tuple[Method, ...] = get_args(Method)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementPolicy:
    """
    How tasks are placed on a purchase.

    Parameters
    ----------
    scheduler
        Which list scheduler; see :mod:`bursar.planning.schedulers`.
    weight
        Weight of the allocation cost in the total cost, in [0, 1] (alpha of e-Science'06
        equation 5); of ``list-cost``.
    worth
        Currency units that a second of makespan is worth (psi of that equation).
    """

    scheduler: Scheduler = "heft"
    weight: float = 0.5
    worth: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRecipe:
    """
    Holds all inputs of a schedule, so that the same schedule can be made again.

    Parameters
    ----------
    caps
        Processors of each slot that may be used; the scheduler may have left some.
    policy
        How the tasks are placed.
    priority
        Order of the tasks, shape ``(n_tasks,)``; None: the policy's.
    schedule
        The schedule itself, where no list scheduler makes it.
    """

    caps: tuple[int, ...]
    policy: PlacementPolicy = field(default_factory=PlacementPolicy)
    priority: tuple[int, ...] | None = field(default=None, repr=False)
    schedule: "Schedule | None" = field(default=None, repr=False, compare=False)


# Limits and progress of a search.


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchLimits:
    """
    Limits how far a search goes.

    Parameters
    ----------
    population, generations
        Individuals and generations of the genetic algorithms; None: each method's own.
    evaluations
        Schedules that ``auto`` makes; None: by the size of the problem.
    time_limit
        Seconds after which no new schedules are begun; None: none. What a search
        that ran into it has found depends on the machine.
    exact
        Seconds that CP-SAT may spend on the front afterwards; 0: it is not asked.
    seed
        Seed of all random choices.
    crossover_points
        Cuts of the crossover of ``moga`` and ``nsga2``.
    """

    population: int | None = None
    generations: int | None = None
    evaluations: int | None = None
    time_limit: float | None = None
    exact: float = 0.0
    seed: int = 0
    crossover_points: int = 2


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """
    How far a search is.

    Parameters
    ----------
    done, total
        Schedules made, and how many it will be.
    front
        Makespan, seconds, and cost, currency units, of the best plans so far, fastest first.
    """

    done: int
    total: int
    front: tuple[tuple[float, float], ...]


OnProgress = Callable[[SearchProgress], None]
