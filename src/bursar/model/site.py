"""What is known of a site that offers processors."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from bursar.model.link import Link
from bursar.model.slot import Slot


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
    slots
        What it advertises; None: all its processors, from 0 on, without end, to
        be leased.
    links
        How data pass from here to other sites, by their names. Sites without a
        link between them share their files.
    """

    name: str
    kind: str = "local"
    processors: int = 1
    speed: float = 1.0
    unit_price: float | None = None
    fixed_price: float | None = 0.0
    currency: str = "SU"
    memory: int | None = None
    slots: tuple[Slot, ...] | None = None
    links: Mapping[str, Link] = field(default_factory=dict)

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
        for slot in self.slots or ():
            if slot.site != self.name:
                raise ValueError(f'a slot of "{slot.site}" is not one of "{self.name}"')

    @property
    def offers(self) -> tuple[Slot, ...]:
        """What can be bought of it."""
        if self.slots is not None:
            return self.slots
        return (
            Slot(
                site=self.name,
                start=0.0,
                duration=math.inf,
                processors=self.processors,
                unit_price=self.unit_price,
                fixed_price=self.fixed_price,
                leased=True,
            ),
        )
