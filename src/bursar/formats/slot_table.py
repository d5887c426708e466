"""Slots as files write them."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from msgspec import Meta

from bursar.formats.decoding import TomlTable
from bursar.formats.quantities import Amount, Duration, Price, Schema
from bursar.model.errors import InputError
from bursar.model.slot import Slot

MOST_PROCESSORS = 10**9
"""Largest number of processors of a site or slot: sums of them are counted in 64 bits."""


@dataclass(frozen=True, slots=True)
class SlotPrices:
    """
    The prices of a slot or a site.

    Parameters
    ----------
    unit
        Currency units per processor-second; None when unknown.
    fixed
        Currency units for each slot bought.
    currencies
        Currencies that the prices name.
    """

    unit: float | None = None
    fixed: float = 0.0
    currencies: tuple[str, ...] = ()


def prices_of(unit: Price | None, fixed: Amount | None, default: SlotPrices) -> SlotPrices:
    """
    Return the prices that a table gives.

    Parameters
    ----------
    default
        Prices where the table gives none.
    """
    named = [pair[1] for pair in (unit, fixed) if pair is not None and pair[1]]
    return SlotPrices(
        default.unit if unit is None else unit[0],
        default.fixed if fixed is None else fixed[0],
        tuple(dict.fromkeys(named)),
    )


class SlotTable(TomlTable, frozen=True):
    """Processors that a site offers for one interval."""

    schema_rules: ClassVar[Schema] = {
        "if": {"required": ["leased"], "properties": {"leased": {"const": True}}},
        "then": {"properties": {"divisible": {"const": True}}},
    }

    start: Annotated[Duration, Meta(description="From the campaign's start on.")]
    duration: Annotated[
        Duration, Meta(description="How long; not 0.", extra_json_schema={"exclusiveMinimum": 0})
    ]
    processors: Annotated[int, Meta(description="How many.", ge=1, le=MOST_PROCESSORS)]
    unit_price: Annotated[
        Price | None,
        Meta(description='"0.05 EUR/core-hour", or a number per processor-second; the site\'s.'),
    ] = None
    fixed_price: Annotated[
        Amount | None, Meta(description='Charged once, 2 or "2 EUR"; the site\'s.')
    ] = None
    divisible: Annotated[
        bool | None,
        Meta(
            description="A part may be bought; false: it is paid whole. False, but true where "
            "it is leased."
        ),
    ] = None
    extensible: Annotated[bool, Meta(description="May be used, and is paid, past its end.")] = False
    leased: Annotated[
        bool,
        Meta(description="Paid from its start to the last use, for the most in use at once."),
    ] = False

    def __post_init__(self) -> None:
        if not self.start + self.duration > self.start:
            raise InputError(f"must be positive, got {self.duration:g} s", where="duration")
        if self.leased and self.divisible is False:
            raise InputError("a leased slot is divisible", where="divisible")

    def slot(self, site: str, prices: SlotPrices) -> tuple[Slot, tuple[str, ...]]:
        """
        Return the slot, and the currencies that its prices name.

        Parameters
        ----------
        site
            Name of the site.
        prices
            The site's prices, for what the table leaves out.
        """
        own = prices_of(self.unit_price, self.fixed_price, prices)
        slot = Slot(
            site=site,
            start=self.start,
            duration=self.duration,
            processors=self.processors,
            unit_price=own.unit,
            fixed_price=own.fixed,
            divisible=self.leased if self.divisible is None else self.divisible,
            extensible=self.extensible,
            leased=self.leased,
        )
        return slot, own.currencies
