"""Sites files: the processors one may use, and what they cost."""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from bursar.formats.reading import at_line, decode_table, joined, parse_toml, read_text
from bursar.formats.tables import Size
from bursar.formats.units import parse_amount, parse_price, parse_size
from bursar.model.errors import InputError
from bursar.model.site import SiteFacts

CURRENCY = "SU"
"""Of prices that name none."""


class SiteTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A site. A unit price that is not given is unknown, never 0."""

    name: Annotated[str | None, Meta(description="For [[site]]; unique among the sites.")] = None
    kind: Annotated[Literal["local"], Meta(description='What provides it: "local".')] = "local"
    processors: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="How many it offers; a local site: all that Bursar may use."),
    ] = None
    speed: Annotated[
        float,
        Meta(description="Relative to the machine the runtime estimates hold for.", gt=0),
    ] = 1.0
    unit_price: Annotated[
        str | int | float | None,
        Meta(description='"0.05 EUR/core-hour", or a number per processor-second.'),
    ] = None
    fixed_price: Annotated[
        str | int | float | None,
        Meta(description='For each slot bought, 2 or "2 EUR"; without it, none.'),
    ] = None
    currency: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="Of both prices, where they name none; SU."),
    ] = None
    memory: Annotated[Size | None, Meta(description="What it has.")] = None


class SitesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sites file: [site.NAME] tables, or [[site]] tables with names."""

    site: Annotated[dict[str, Any] | list[Any] | None, Meta(description="The sites.")] = None


def read_sites(path: Path) -> tuple[SiteFacts, ...]:
    """
    The sites in a TOML file, in its order.

    Raises
    ------
    InputError
        With the file, the line where it can be told, and the field. Also when
        the sites count in different currencies: nothing here converts them.
    """
    path = Path(path)
    text = read_text(path)
    try:
        return _sites(parse_toml(text))
    except InputError as error:
        raise at_line(error, text, path) from None


def _sites(document: dict[str, Any]) -> tuple[SiteFacts, ...]:
    file = decode_table(document, SitesFile, "")
    if not file.site:
        raise InputError("has no site, expected [site.NAME] or [[site]]")
    sites: list[SiteFacts] = []
    for place, name, raw in _tables(file.site):
        facts = _facts(name, decode_table(raw, SiteTable, place), place)
        if any(other.name == facts.name for other in sites):
            raise InputError(f'duplicate site "{facts.name}"', where=place)
        if sites and facts.currency != sites[0].currency:
            raise InputError(
                f'counts in {facts.currency} and "{sites[0].name}" in {sites[0].currency}, '
                "expected one currency for all sites",
                where=joined(place, "currency"),
            )
        sites.append(facts)
    return tuple(sites)


def _tables(raw: dict[str, Any] | list[Any]) -> Iterator[tuple[str, str | None, object]]:
    if isinstance(raw, dict):
        yield from ((joined("site", name), name, table) for name, table in raw.items())
    else:
        yield from ((joined("site", i), None, table) for i, table in enumerate(raw))


def _facts(name: str | None, table: SiteTable, place: str) -> SiteFacts:
    if name is not None and table.name is not None:
        raise InputError("the table's heading is the name already", where=joined(place, "name"))
    name = table.name if name is None else name
    if not name:
        raise InputError("expected a name", where=joined(place, "name"))
    if not name.isprintable():
        raise InputError("expected printable characters", where=joined(place, "name"))
    if not math.isfinite(table.speed):
        raise InputError(f"expected a positive number, got {table.speed}", where=f"{place}.speed")
    try:
        unit_price, unit_currency = (
            (None, None) if table.unit_price is None else parse_price(table.unit_price)
        )
    except InputError as error:
        raise error.within(joined(place, "unit_price")) from None
    try:
        fixed_price, fixed_currency = (
            (0.0, None) if table.fixed_price is None else parse_amount(table.fixed_price)
        )
    except InputError as error:
        raise error.within(joined(place, "fixed_price")) from None
    try:
        memory = None if table.memory is None else parse_size(table.memory)
    except InputError as error:
        raise error.within(joined(place, "memory")) from None
    named = {c: None for c in (table.currency, unit_currency, fixed_currency) if c}
    if len(named) > 1:
        raise InputError(
            f"names several currencies: {', '.join(named)}; expected one",
            where=joined(place, "currency"),
        )
    return SiteFacts(
        name=name,
        kind=table.kind,
        processors=_own_processors() if table.processors is None else table.processors,
        speed=float(table.speed),
        unit_price=unit_price,
        fixed_price=fixed_price,
        currency=next(iter(named), CURRENCY),
        memory=memory,
    )


def _own_processors() -> int:
    """Processors of this machine that this process may use."""
    return len(os.sched_getaffinity(0))
