"""Sites files: the processors one may use, what they cost, and how data pass between them."""

import math
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from bursar.formats.batch_table import acquiring_of, batch_of, kind_of
from bursar.formats.dask_table import dask_of
from bursar.formats.link_table import Bandwidth, LinkTable, link_of, parse_bandwidth
from bursar.formats.pricing_table import pricing_of
from bursar.formats.remote_table import remote_of
from bursar.formats.slot_table import (
    MOST_PROCESSORS,
    Price,
    SlotPrices,
    SlotTable,
    at_field,
    parse_prices,
    slot_of,
)
from bursar.formats.slots_csv import read_slots
from bursar.formats.tables import Duration, Size
from bursar.formats.toml_reading import at_line, decode_table, joined, parse_toml, read_text
from bursar.formats.units import parse_duration, parse_size
from bursar.model.errors import InputError, spelling_hint
from bursar.model.link import Link
from bursar.model.money import CURRENCY, check_currency
from bursar.model.overlap import find_oversubscription, peak_offered_processors
from bursar.model.pricing import Pricing
from bursar.model.remote import SealLevel, Trust
from bursar.model.site import BackgroundLoad, SiteFacts
from bursar.model.slot import Slot
from bursar.model.status import Fact

DEFAULT_CURRENCY = "SU"
"""Of prices that name none."""


class SiteTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A site. A unit price that is not given is unknown, never 0."""

    name: Annotated[str | None, Meta(description="For [[site]]; unique among the sites.")] = None
    kind: Annotated[
        Literal[
            "local",
            "advertised",
            "simulated",
            "remote",
            "dask",
            "slurm",
            "gridengine",
            "pbs",
            "lsf",
            "flux",
        ],
        Meta(
            description='What provides it: "local", this machine; "advertised", known by its '
            'slots only, to plan with; "simulated", a cluster with jobs of its own; "remote", '
            'another Bursar that serves; "dask", a Dask cluster that is there; or the batch '
            "scheduler that does."
        ),
    ] = "local"
    processors: Annotated[
        Annotated[int, Meta(ge=1, le=MOST_PROCESSORS)] | None,
        Meta(
            description="How many it has; a local site: all that Bursar may use, an advertised "
            "one: the most that its slots offer at once. Of a batch scheduler or another Bursar: "
            "the most that may be held there."
        ),
    ] = None
    speed: Annotated[
        float,
        Meta(description="Relative to the machine the runtime estimates hold for.", gt=0),
    ] = 1.0
    unit_price: Annotated[
        Price | None,
        Meta(description='"0.05 EUR/core-hour", or a number per processor-second.'),
    ] = None
    fixed_price: Annotated[
        Price | None,
        Meta(description='For each slot bought, 2 or "2 EUR"; without it, none.'),
    ] = None
    currency: Annotated[
        Annotated[str, Meta(extra_json_schema={"pattern": rf"^{CURRENCY}$"})] | None,
        Meta(description="Of all its prices, where they name none; SU."),
    ] = None
    price: Annotated[
        list[Any] | None,
        Meta(description="What changes its unit price, a rule for each; factors on it."),
    ] = None
    memory: Annotated[Size | None, Meta(description="What it has.")] = None
    attributes: Annotated[
        dict[str, str | int | float | bool] | None,
        Meta(description="Further ones that it publishes, for requirements and ranks."),
    ] = None
    storage: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="Where files that many tasks share are kept: a folder, relative to this "
            "file, or a URL."
        ),
    ] = None
    storage_limit: Annotated[
        Size | None, Meta(description="What files that are brought there may take; no limit.")
    ] = None
    storage_rate: Annotated[
        Bandwidth | None, Meta(description="At which tasks read from there; it takes no time.")
    ] = None
    slot: Annotated[
        list[Any] | None, Meta(description="What an advertised site offers, a table for each.")
    ] = None
    slots: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="The same in a CSV file, relative to this one."),
    ] = None
    trace: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="The log (SWF, also .gz or .xz) whose jobs a simulated site runs besides, "
            "relative to this file; none: no other jobs."
        ),
    ] = None
    at: Annotated[
        Duration | None,
        Meta(description="Moment of the log at which the simulation begins; its middle."),
    ] = None
    policy: Annotated[
        Literal["fcfs", "easy", "conservative"] | None,
        Meta(description="Of a simulated site's batch scheduler; conservative."),
    ] = None
    early: Annotated[
        Literal["keep", "compress"] | None,
        Meta(
            description="Whether a simulated site's waiting jobs stay where they are when one ends "
            "early, or move up; keep."
        ),
    ] = None
    looseness: Annotated[
        Annotated[float, Meta(ge=1)] | None,
        Meta(
            description="What the log's jobs ask for over what they take; none: what they asked "
            "for in the log."
        ),
    ] = None
    queue: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="Partition or queue of a batch scheduler; its default."),
    ] = None
    account: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="That its jobs are charged to; the user's default."),
    ] = None
    qos: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="Quality of service that its jobs run under; the user's default."),
    ] = None
    directives: Annotated[
        list[Annotated[str, Meta(min_length=1)]] | None,
        Meta(description="Further ones for its job scripts, without #SBATCH or the like."),
    ] = None
    setup: Annotated[
        list[str] | None, Meta(description="Lines of shell that its jobs run first.")
    ] = None
    environment: Annotated[
        dict[str, str] | None, Meta(description="Variables for the scheduler's commands.")
    ] = None
    ssh: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="Login node where the scheduler's commands are run; this machine."),
    ] = None
    python: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="Interpreter on the nodes that has Bursar; the one in use here."),
    ] = None
    folder: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="Where files of pilots lie, for this machine and the nodes alike; in the "
            "run's folder."
        ),
    ] = None
    reach: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="Host by which the nodes find this machine; its name."),
    ] = None
    scheduler: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="Address of a Dask cluster's scheduler: tcp://host:port, tls://host:port."
        ),
    ] = None
    ca: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="Authority that the other end's certificate is of, a PEM file."),
    ] = None
    certificate: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="Our own, a PEM file, relative to this one."),
    ] = None
    key: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="Of our certificate, a PEM file, relative to this one."),
    ] = None
    url: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="Address of another Bursar: https://host:port."),
    ] = None
    token_file: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="File of our token there, which nobody else may read."),
    ] = None
    fingerprint: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="SHA-256 of the other Bursar's certificate, hexadecimal."),
    ] = None
    seal: Annotated[
        SealLevel | bool | None,
        Meta(
            description="Tasks and results are sealed: the other Bursar cannot read them. By one "
            "key for all, which true stands for, or one for each."
        ),
    ] = None
    patience: Annotated[
        Duration | None,
        Meta(
            description="How long another Bursar may be out of reach before its processors count "
            "as lost; 30 s."
        ),
    ] = None
    trust: Annotated[
        Trust | None,
        Meta(
            description='Results of Python calls come back from another Bursar as "data", which '
            'can run no code here, or as "pickle", by which it can; data.'
        ),
    ] = None
    pool: Annotated[
        Any | None, Meta(description="How processors are acquired and released there.")
    ] = None


class CustomerTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who buys."""

    groups: Annotated[list[str], Meta(description="That the owners count the buyer among.")] = []


class SitesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sites file: [site.NAME] tables, or [[site]] tables with names."""

    site: Annotated[dict[str, Any] | list[Any] | None, Meta(description="The sites.")] = None
    customer: Annotated[
        CustomerTable | None, Meta(description="Who buys, for the owners' prices.")
    ] = None
    link: Annotated[
        list[Any] | None,
        Meta(description="Between which sites data take time; all others share their files."),
    ] = None


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
        sites = _sites(parse_toml(text), path.parent)
    except InputError as error:
        raise at_line(error, text, path) from None
    return tuple(replace(site, source=str(path.resolve())) for site in sites)


def site_of(raw: object, place: str, folder: Path, name: str) -> SiteFacts:
    """
    The site in one table, for files that hold just one.

    Parameters
    ----------
    raw
        What the document holds there.
    place
        Path of the table, for errors.
    folder
        That its relative paths are relative to.
    name
        Of the site.

    Raises
    ------
    InputError
        At the field.
    """
    return _facts(name, decode_table(raw, SiteTable, place), place, folder)


def _sites(document: dict[str, Any], folder: Path) -> tuple[SiteFacts, ...]:
    file = decode_table(document, SitesFile, "")
    if not file.site:
        raise InputError("has no site, expected [site.NAME] or [[site]]")
    sites: list[SiteFacts] = []
    for place, name, raw in _tables(file.site):
        facts = _facts(name, decode_table(raw, SiteTable, place), place, folder)
        if any(other.name == facts.name for other in sites):
            raise InputError(f'duplicate site "{facts.name}"', where=place)
        if sites and facts.currency != sites[0].currency:
            raise InputError(
                f'counts in {facts.currency} and "{sites[0].name}" in {sites[0].currency}, '
                "expected one currency for all sites",
                where=joined(place, "currency"),
            )
        sites.append(facts)
    links = _links(file.link or [], [site.name for site in sites])
    groups = frozenset(file.customer.groups if file.customer else ())
    return tuple(replace(site, links=links[site.name], groups=groups) for site in sites)


def _tables(raw: dict[str, Any] | list[Any]) -> Iterator[tuple[str, str | None, object]]:
    if isinstance(raw, dict):
        yield from ((joined("site", name), name, table) for name, table in raw.items())
    else:
        yield from ((joined("site", i), None, table) for i, table in enumerate(raw))


def _facts(name: str | None, table: SiteTable, place: str, folder: Path) -> SiteFacts:
    if name is not None and table.name is not None:
        raise InputError("the table's heading is the name already", where=joined(place, "name"))
    name = table.name if name is None else name
    if not name:
        raise InputError("expected a name", where=joined(place, "name"))
    if not name.isprintable():
        raise InputError("expected printable characters", where=joined(place, "name"))
    if not math.isfinite(table.speed):
        raise InputError(f"expected a positive number, got {table.speed}", where=f"{place}.speed")
    if table.currency is not None:
        try:
            check_currency(table.currency)
        except ValueError as error:
            raise InputError(str(error), where=joined(place, "currency")) from None
    try:
        prices = parse_prices(table.unit_price, table.fixed_price, SlotPrices())
        memory = None if table.memory is None else at_field("memory", parse_size, table.memory)
    except InputError as error:
        raise _at(place, error) from None
    named = dict.fromkeys(c for c in (table.currency, *prices.currencies) if c)
    slots = None
    pricing = None
    if table.price is not None:
        pricing = _pricing(table, prices, place)
    if table.kind == "advertised":
        slots, processors, currencies = _advertised(name, table, prices, place, folder)
        named |= dict.fromkeys(currencies)
    else:
        processors = _processors(table, place)
        if table.slot is not None or table.slots is not None:
            key = "slots" if table.slot is None else "slot[0]" if table.slot else "slot"
            raise InputError(
                "goes with an advertised site only",
                where=f"{place}.{key}",
                hint='set kind = "advertised"',
            )
    if len(named) > 1:
        raise InputError(
            f"names several currencies: {', '.join(named)}; expected one",
            where=joined(place, "currency"),
        )
    return SiteFacts(
        name=name,
        kind=kind_of(table.kind),
        processors=processors,
        speed=float(table.speed),
        unit_price=prices.unit,
        fixed_price=prices.fixed,
        currency=next(iter(named), DEFAULT_CURRENCY),
        memory=memory,
        slots=slots,
        background=_background(table, place, folder),
        pricing=pricing,
        attributes=_attributes(table, place),
        batch=batch_of(table, place, folder),
        acquiring=acquiring_of(table.pool, joined(place, "pool")),
        dask=dask_of(table, place, folder),
        remote=remote_of(table, place, folder),
        **_storage(table, place, folder),
    )


_ATTRIBUTE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def _attributes(table: SiteTable, place: str) -> dict[str, Fact]:
    here = joined(place, "attributes")
    seen: dict[str, str] = {}
    for name, value in (table.attributes or {}).items():
        if not _ATTRIBUTE.fullmatch(name):
            raise InputError("expected a name of letters, digits and _", where=joined(here, name))
        if name.lower() in seen:
            raise InputError(
                f'is "{seen[name.lower()]}" already: upper and lower case are one',
                where=joined(here, name),
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"expected a finite number, got {value}", where=joined(here, name))
        seen[name.lower()] = name
    return dict(table.attributes or {})


def _storage(table: SiteTable, place: str, folder: Path) -> dict[str, Any]:
    if table.storage is None:
        for key in ("storage_limit", "storage_rate"):
            if getattr(table, key) is not None:
                raise InputError("speaks of a storage, and there is none", where=f"{place}.{key}")
        return {}
    read: dict[str, Any] = {
        "storage": table.storage if "://" in table.storage else str(folder / table.storage)
    }
    try:
        if table.storage_limit is not None:
            read["storage_limit"] = at_field("storage_limit", parse_size, table.storage_limit)
        if table.storage_rate is not None:
            read["storage_rate"] = at_field("storage_rate", parse_bandwidth, table.storage_rate)
    except InputError as error:
        raise _at(place, error) from None
    return read


def _pricing(table: SiteTable, prices: SlotPrices, place: str) -> Pricing:
    here = joined(place, "price")
    if table.kind == "advertised":
        raise InputError("slots have their own prices", where=here)
    if prices.unit is None:
        raise InputError("changes a unit_price, and none is given", where=here)
    return pricing_of(table.price or [], prices.unit, here)


def _processors(table: SiteTable, place: str) -> int:
    if table.processors is not None:
        return table.processors
    if table.kind == "local":
        return _own_processors()
    if table.kind == "simulated":
        raise InputError("a simulated site needs processors", where=joined(place, "processors"))
    raise InputError(
        "how many processors may be held there at a time?", where=joined(place, "processors")
    )


_OF_BACKGROUND = ("trace", "at", "policy", "early", "looseness")


def _background(table: SiteTable, place: str, folder: Path) -> BackgroundLoad | None:
    given = {key: getattr(table, key) for key in _OF_BACKGROUND if getattr(table, key) is not None}
    if table.kind != "simulated":
        if given:
            raise InputError(
                "goes with a simulated site only",
                where=joined(place, next(iter(given))),
                hint='set kind = "simulated"',
            )
        return None
    if table.trace is None and ("at" in given or "looseness" in given):
        key = "at" if "at" in given else "looseness"
        raise InputError("speaks of a log, and there is no trace", where=joined(place, key))
    if table.at is not None:
        try:
            given["at"] = parse_duration(table.at)
        except InputError as error:
            raise error.within(joined(place, "at")) from None
    if table.trace is not None:
        path = folder / table.trace
        if not path.is_file():
            raise InputError(f"no file {path}", where=joined(place, "trace"))
        given["trace"] = str(path)
    return BackgroundLoad(**given)


def _advertised(
    name: str, table: SiteTable, prices: SlotPrices, place: str, folder: Path
) -> tuple[tuple[Slot, ...], int, list[str]]:
    """Slots and processors of an advertised site, and the currencies that its slots name."""
    if table.slot is not None and table.slots is not None:
        raise InputError(
            "expected slot tables or a file of slots, not both", where=joined(place, "slots")
        )
    if not table.slot and table.slots is None:
        raise InputError(
            "an advertised site needs slots",
            where=place,
            hint='give it slot tables, or slots = "slots.csv"',
        )
    slots: list[Slot] = []
    places: list[tuple[str, str]] = []
    currencies: list[str] = []
    for where, label, slot, named in _slots(name, table, prices, place, folder):
        places.append((where, label))
        slots.append(slot)
        currencies += named
    processors = peak_offered_processors(slots) if table.processors is None else table.processors
    crowd = find_oversubscription(slots, processors)
    if crowd is not None:
        moment, numbers = crowd
        latest = max(numbers, key=lambda i: (slots[i].start, i))
        others = [places[i][1] for i in numbers if i != latest]
        more = f" and {len(others) - 4} more" if len(others) > 4 else ""
        together = sum(slots[i].processors for i in numbers)
        what = f"overlaps {', '.join(others[:4])}{more}: " if others else ""
        raise InputError(
            f"{what}from {moment:g} s on {together} processors are offered, the site has "
            f"{processors}",
            where=places[latest][0],
        )
    return tuple(slots), processors, currencies


def _slots(
    name: str, table: SiteTable, prices: SlotPrices, place: str, folder: Path
) -> Iterator[tuple[str, str, Slot, tuple[str, ...]]]:
    """Where each slot stands, that in short, the slot, and the currencies that its prices name."""
    if table.slots is None:
        for i, raw in enumerate(table.slot or ()):
            here = joined(joined(place, "slot"), i)
            written = decode_table(raw, SlotTable, here)
            try:
                slot, named = slot_of(written, name, prices)
            except InputError as error:
                raise _at(here, error) from None
            yield here, f"slot[{i}]", slot, named
        return
    here = joined(place, "slots")
    if not table.slots.isprintable():
        raise InputError("expected the name of a file", where=here)
    file = folder / table.slots
    try:
        rows = read_slots(file)
    except InputError as error:
        raise error.within(here) from None
    for line, row in rows:
        try:
            slot, named = slot_of(row, name, prices)
        except InputError as error:
            raise error.within(f"{here}: {file}:{line}") from None
        yield f"{here}: {file}:{line}", f"line {line}", slot, named


def _links(tables: list[Any], names: list[str]) -> dict[str, dict[str, Link]]:
    """Links of each site, by the names of the sites they lead to."""
    links: dict[str, dict[str, Link]] = {name: {} for name in names}
    for i, raw in enumerate(tables):
        place = joined("link", i)
        table = decode_table(raw, LinkTable, place)
        for key, name in (("from", table.from_), ("to", table.to)):
            if name not in links:
                raise InputError(
                    f'unknown site "{_short(name)}"',
                    where=joined(place, key),
                    hint=spelling_hint(name, names),
                )
        if table.from_ == table.to:
            raise InputError("expected two different sites", where=joined(place, "to"))
        try:
            link = link_of(table)
        except InputError as error:
            raise _at(place, error) from None
        ways = [(table.from_, table.to), (table.to, table.from_)][: 1 if table.one_way else 2]
        for source, target in ways:
            if target in links[source]:
                raise InputError(f'duplicate link from "{source}" to "{target}"', where=place)
            links[source][target] = link
    return links


def _at(place: str, error: InputError) -> InputError:
    """An error at a field of the table at the place."""
    return InputError(error.message, where=joined(place, error.where), hint=error.hint)


def _short(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)[:60]


def _own_processors() -> int:
    """Processors of this machine that this process may use."""
    return len(os.sched_getaffinity(0))
