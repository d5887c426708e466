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
        True when a part (fewer processors, a shorter time) may be bought.
    extensible
        True when it may be used past its end.

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

    def __post_init__(self) -> None:
        if not self.duration > 0:
            raise ValueError(f"duration must be positive, got {self.duration}")
        if self.processors < 1:
            raise ValueError(f"processors must be at least 1, got {self.processors}")
        for what, price in (("unit_price", self.unit_price), ("fixed_price", self.fixed_price)):
            if price is not None and not (0 <= price < math.inf):
                raise ValueError(f"{what} must not be negative, got {price}")
