"""Processors on offer."""

import math
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
        """First second after it; infinite when the site sets no end."""
        return self.start + self.duration
