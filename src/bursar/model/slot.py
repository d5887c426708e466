"""Slots, which are processors on offer, and how many processors several slots offer together."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bursar.model.resource_profile import ResourceProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """
    Processors that are free for one interval, and on offer where a price is set.

    This is the one record of free processors: what a site offers and a plan buys (HPDC'07
    section 2), what the schedule of a batch cluster leaves free, and what a pool may request by
    backfilling.

    Parameters
    ----------
    site
        Name of the site; empty where only one is meant.
    start
        First second, on the clock of whoever offers it: seconds from now, from the campaign's
        start, or since the epoch.
    duration
        Length, seconds. Positive; infinite when the site sets no end.
    processors
        How many. Positive.
    unit_price
        Currency units per processor-second; None when unknown.
    fixed_price
        Currency units charged once if any of it is bought; None when unknown.
    divisible
        True when a part may be bought: just the processors and times that are used.
    extensible
        True when it may be used, and is paid, past its end.
    leased
        True when what is bought of it is one rectangle: the most processors in use
        at once, from the slot's start to the last use, idle or not. A divisible
        slot's other way to be paid.

    Raises
    ------
    ValueError
        When a value is out of range.
    """

    site: str = ""
    start: float
    duration: float
    processors: int
    unit_price: float | None = None
    fixed_price: float | None = 0.0
    divisible: bool = True
    extensible: bool = False
    leased: bool = False

    def __post_init__(self) -> None:
        if not self.duration > 0:
            raise ValueError(f"duration must be positive, got {self.duration}")
        if not -math.inf < self.start < math.inf:
            raise ValueError(f"start must be finite, got {self.start}")
        if self.processors < 1:
            raise ValueError(f"processors must be at least 1, got {self.processors}")
        if self.leased and not self.divisible:
            raise ValueError("a leased slot is divisible")
        if self.duration == math.inf and not self.divisible:
            raise ValueError("a slot without an end is divisible")
        # One after the other, not in a loop: a busy cluster offers hundreds of slots at a time.
        if self.unit_price is not None and not 0 <= self.unit_price < math.inf:
            raise ValueError(f"unit_price must not be negative, got {self.unit_price}")
        if self.fixed_price is not None and not 0 <= self.fixed_price < math.inf:
            raise ValueError(f"fixed_price must not be negative, got {self.fixed_price}")

    @property
    def end(self) -> float:
        """First second after the slot; infinite when the site sets no end."""
        return self.start + self.duration


TOLERANCE = 1e-9
"""Relative. A slot that ends so little after another starts makes way for it."""


def peak_offered_processors(slots: Iterable[Slot]) -> int:
    """Return the most processors that slots of a site offer at the same moment; 0 without any."""
    return -_unoffered(slots).least_free(-math.inf, math.inf)


def find_oversubscription(slots: Sequence[Slot], processors: int) -> tuple[float, list[int]] | None:
    """
    Return where slots of a site are more together than the site has.

    An extensible slot counts to no end: its processors may be in use then.

    Returns
    -------
    tuple or None
        The first such moment, seconds, and the indices of the slots that are open
        then; None when there is no such moment.
    """
    for moment, _, left in _unoffered(slots, processors).steps():
        if left < 0:
            return moment, [i for i, slot in enumerate(slots) if slot.start <= moment < _last(slot)]
    return None


def _unoffered(slots: Iterable[Slot], processors: int = 0) -> ResourceProfile:
    """Return the processors of a site that slots leave, negative where they are more together."""
    return ResourceProfile.summed(
        ((slot.start, _last(slot), -slot.processors) for slot in slots), processors
    )


def limit_offers(offers: Iterable[Slot], most: int) -> list[Slot]:
    """
    Return slots that are at no moment more than ``most`` processors together.

    Earlier ones of the sequence keep their processors; later ones have what is left during all
    of their time, or are left out.
    """
    left = ResourceProfile(most)
    kept = []
    for slot in offers:
        processors = min(slot.processors, left.least_free(slot.start, slot.end))
        if processors > 0:
            left.change(slot.start, slot.end, -processors)
            fits = processors == slot.processors
            kept.append(slot if fits else replace(slot, processors=processors))
    return kept


def _last(slot: Slot) -> float:
    """Last moment of use, seconds, or a little before."""
    if slot.extensible:
        return math.inf
    return max(slot.start, slot.end - TOLERANCE * max(1.0, abs(slot.end)))
