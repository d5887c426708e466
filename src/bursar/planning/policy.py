"""Describes how tasks are placed on a purchase, and the recipe that repeats a schedule."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from bursar.planning.schedule import Schedule

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
    due
        Moments by which ``list-cost`` tries to finish tasks, shape ``(n_tasks,)``.
    schedule
        The schedule itself, where no list scheduler makes it.
    """

    caps: tuple[int, ...]
    policy: PlacementPolicy = field(default_factory=PlacementPolicy)
    priority: tuple[int, ...] | None = field(default=None, repr=False)
    due: tuple[float, ...] | None = field(default=None, repr=False)
    schedule: "Schedule | None" = field(default=None, repr=False, compare=False)
