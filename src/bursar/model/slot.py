"""Slots, which are processors on offer, and how many processors several slots offer together."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """
    Processors that a site offers for one interval (HPDC'07 section 2).

    Parameters
    ----------
    site
        Name of the site.
    start
        First second, on the loop's clock.
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

    site: str
    start: float
    duration: float
    processors: int
    unit_price: float | None
    fixed_price: float | None = 0.0
    divisible: bool = True
    extensible: bool = False
    leased: bool = False

    def __post_init__(self) -> None:
        if not self.duration > 0:
            raise ValueError(f"duration must be positive, got {self.duration}")
        if not math.isfinite(self.start):
            raise ValueError(f"start must be finite, got {self.start}")
        if self.processors < 1:
            raise ValueError(f"processors must be at least 1, got {self.processors}")
        if self.leased and not self.divisible:
            raise ValueError("a leased slot is divisible")
        if math.isinf(self.duration) and not self.divisible:
            raise ValueError("a slot without an end is divisible")
        for what, price in (("unit_price", self.unit_price), ("fixed_price", self.fixed_price)):
            if price is not None and not (0 <= price < math.inf):
                raise ValueError(f"{what} must not be negative, got {price}")

    @property
    def end(self) -> float:
        """First second after the slot; infinite when the site sets no end."""
        return self.start + self.duration


TOLERANCE = 1e-9
"""Relative. A slot that ends so little after another starts makes way for it."""


def peak_offered_processors(slots: Iterable[Slot]) -> int:
    """The most processors that slots of a site offer at the same moment; 0 without any."""
    return max((offered for _, offered in _offered(slots)), default=0)


def find_oversubscription(slots: Sequence[Slot], processors: int) -> tuple[float, list[int]] | None:
    """
    Where slots of a site are more together than the site has.

    An extensible slot counts to no end: its processors may be in use then.

    Returns
    -------
    tuple or None
        The first such moment, seconds, and the indices of the slots that are open
        then; None when there is no such moment.
    """
    for moment, offered in _offered(slots):
        if offered > processors:
            return moment, [i for i, slot in enumerate(slots) if slot.start <= moment < _last(slot)]
    return None


def _offered(slots: Iterable[Slot]) -> list[tuple[float, int]]:
    """Moments at which slots begin or end, in order, and the processors offered after each."""
    changes = []
    for slot in slots:
        changes += [(slot.start, slot.processors), (_last(slot), -slot.processors)]
    offered = 0
    steps: list[tuple[float, int]] = []
    for moment, change in sorted(changes):  # at one moment ends come first: they are negative
        offered += change
        steps.append((moment, offered))
    return steps


def _last(slot: Slot) -> float:
    """Last moment of use, seconds, or a little before."""
    if slot.extensible:
        return math.inf
    return max(slot.start, slot.end - TOLERANCE * max(1.0, abs(slot.end)))
