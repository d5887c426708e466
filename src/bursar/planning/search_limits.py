"""Limits and progress of a search."""

from collections.abc import Callable
from dataclasses import dataclass


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
        Makespan, seconds, and cost, currency units, of the best plans so far,
        fastest first.
    """

    done: int
    total: int
    front: tuple[tuple[float, float], ...]


OnProgress = Callable[[SearchProgress], None]
