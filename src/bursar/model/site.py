"""What is known of a site that offers processors."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFacts:
    """
    Parameters
    ----------
    name
        Unique among the sites of a run.
    kind
        Which implementation of the Site protocol provides it (``"local"``).
    processors
        How many it offers. Positive.
    speed
        Work per second relative to the machine the runtime estimates hold
        for: a task of runtime r takes r / speed here. Positive.
    unit_price
        Currency units per processor-second; None when unknown.
    fixed_price
        Currency units per slot bought; None when unknown.
    currency
        Of both prices.
    memory
        Bytes; None when unknown.
    """

    name: str
    kind: str = "local"
    processors: int = 1
    speed: float = 1.0
    unit_price: float | None = None
    fixed_price: float | None = 0.0
    currency: str = "SU"
    memory: int | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name must not be empty")
        if self.processors < 1:
            raise ValueError(f"processors must be at least 1, got {self.processors}")
        if not (0 < self.speed < math.inf):
            raise ValueError(f"speed must be positive, got {self.speed}")
        for what, price in (("unit_price", self.unit_price), ("fixed_price", self.fixed_price)):
            if price is not None and not (0 <= price < math.inf):
                raise ValueError(f"{what} must not be negative, got {price}")
