"""A slot as files write it, and the slot that is meant."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from bursar.formats.tables import Duration
from bursar.formats.units import parse_amount, parse_duration, parse_price
from bursar.model.errors import InputError
from bursar.model.slot import Slot

T = TypeVar("T")

MOST_PROCESSORS = 10**9
"""Of a site or slot: sums of them are counted in 64 bits."""

Price = str | int | float


class SlotTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Processors that a site offers for one interval."""

    start: Annotated[Duration, Meta(description="From the campaign's start on.")]
    duration: Annotated[Duration, Meta(description="How long; not 0.")]
    processors: Annotated[int, Meta(description="How many.", ge=1, le=MOST_PROCESSORS)]
    unit_price: Annotated[
        Price | None,
        Meta(description='"0.05 EUR/core-hour", or a number per processor-second; the site\'s.'),
    ] = None
    fixed_price: Annotated[
        Price | None, Meta(description='Charged once, 2 or "2 EUR"; the site\'s.')
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


@dataclass(frozen=True, slots=True)
class SlotPrices:
    """
    Parameters
    ----------
    unit
        Currency units per processor-second; None when unknown.
    fixed
        Currency units for each slot bought.
    currencies
        That the prices name.
    """

    unit: float | None = None
    fixed: float = 0.0
    currencies: tuple[str, ...] = ()


def parse_prices(unit: Price | None, fixed: Price | None, default: SlotPrices) -> SlotPrices:
    """
    The prices in a table with ``unit_price`` and ``fixed_price``.

    Parameters
    ----------
    default
        Of what the table leaves out.

    Raises
    ------
    InputError
        At the field.
    """
    unit_price, unit_currency = default.unit, None
    if unit is not None:
        unit_price, unit_currency = at_field("unit_price", parse_price, unit)
    fixed_price, fixed_currency = default.fixed, None
    if fixed is not None:
        fixed_price, fixed_currency = at_field("fixed_price", parse_amount, fixed)
    named = tuple(dict.fromkeys(c for c in (unit_currency, fixed_currency) if c))
    return SlotPrices(unit_price, fixed_price, named)


def slot_of(table: SlotTable, site: str, prices: SlotPrices) -> tuple[Slot, tuple[str, ...]]:
    """
    The slot, and the currencies that its prices name.

    Parameters
    ----------
    site
        Its name.
    prices
        The site's, for what the table leaves out.

    Raises
    ------
    InputError
        At the field.
    """
    start = at_field("start", parse_duration, table.start)
    duration = at_field("duration", parse_duration, table.duration)
    if not start + duration > start:
        raise InputError(f"must be positive, got {duration:g} s", where="duration")
    if table.leased and table.divisible is False:
        raise InputError("a leased slot is divisible", where="divisible")
    own = parse_prices(table.unit_price, table.fixed_price, prices)
    slot = Slot(
        site=site,
        start=start,
        duration=duration,
        processors=table.processors,
        unit_price=own.unit,
        fixed_price=own.fixed,
        divisible=table.leased if table.divisible is None else table.divisible,
        extensible=table.extensible,
        leased=table.leased,
    )
    return slot, own.currencies


def at_field(name: str, parse: Callable[[object], T], value: object) -> T:
    """What the field holds; an error is told there."""
    try:
        return parse(value)
    except InputError as error:
        raise error.within(name) from None
