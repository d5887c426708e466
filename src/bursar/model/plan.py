"""A plan: what is bought, and where each task goes."""

import math
from dataclasses import dataclass

from bursar.model.slot import Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Purchase:
    """
    A slot, or the part of one, that a plan buys.

    Parameters
    ----------
    slot
        Slot as bought: processors and times of the purchase.
    part
        Processor-seconds paid, where they are less than all that it spans: of a
        divisible slot only what tasks use is bought. None: all of it.
    """

    slot: Slot
    part: float | None = None

    @property
    def processor_seconds(self) -> float:
        """Processor time paid; infinite when no end is set."""
        return self.slot.processors * self.slot.duration if self.part is None else self.part

    @property
    def cost(self) -> float | None:
        """
        Currency units, n d c + f (HPDC'07 section 2).

        None when a price is unknown, or no end is set.
        """
        if self.slot.unit_price is None or self.slot.fixed_price is None:
            return None
        if math.isinf(self.processor_seconds):
            return None
        return self.processor_seconds * self.slot.unit_price + self.slot.fixed_price


@dataclass(frozen=True, slots=True)
class Placement:
    """
    Where and when one task runs.

    Parameters
    ----------
    task
        Index into the workflow's tasks.
    start, finish
        Seconds, on the plan's clock (0 is the campaign's start).
    processors
        Numbers of the processors held, ascending: those of the site's purchases
        are counted through, in the plan's order. Empty where nothing is held.
    """

    task: int
    site: str
    start: float
    finish: float
    processors: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """
    A plan: what is bought, and where each task goes.

    Parameters
    ----------
    placements
        One for each task, in order of start. Empty when runtimes are unknown.
    makespan
        Last finish less start, seconds; None when a runtime is unknown.
    cost
        Allocation cost, currency units; None when a price or runtime is unknown.
    currency
        Currency of the cost.
    utilisation
        Share of the bought processor time that tasks fill; None when unknown.
    algorithm
        Which scheduler made it.
    """

    purchases: tuple[Purchase, ...]
    placements: tuple[Placement, ...]
    makespan: float | None
    cost: float | None
    currency: str
    utilisation: float | None
    algorithm: str

    @classmethod
    def on_the_way(
        cls, currency: str, algorithm: str, makespan: float | None = None, cost: float | None = None
    ) -> "Plan":
        """Return the plan of a run that decides on the way: expectations, and no purchases."""
        return cls(
            purchases=(),
            placements=(),
            makespan=makespan,
            cost=cost,
            currency=currency,
            utilisation=None,
            algorithm=algorithm,
        )

    @property
    def processors(self) -> int:
        """Processors bought, over all purchases."""
        return sum(p.slot.processors for p in self.purchases)
