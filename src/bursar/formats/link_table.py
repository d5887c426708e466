"""A link between sites as files write it, and the link that is meant."""

import math
import re
from typing import Annotated

import msgspec
from msgspec import Meta

from bursar.formats.slot_table import at_field
from bursar.formats.tables import Duration
from bursar.formats.units import parse_duration
from bursar.model.errors import InputError
from bursar.model.link import Link

Bandwidth = Annotated[
    str | int | float,
    Meta(description='"100 MB/s", "1 Gbit/s", or bytes per second. Not 0.'),
]


class LinkTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How data pass between two sites."""

    from_: Annotated[str, Meta(description="Name of a site.")] = msgspec.field(name="from")
    to: Annotated[str, Meta(description="Name of another.")]
    latency: Annotated[Duration, Meta(description="Until the first byte is there.")] = 0
    bandwidth: Annotated[Bandwidth | None, Meta(description="Without it sizes do not matter.")] = (
        None
    )
    one_way: Annotated[bool, Meta(description="In this direction only; else in both alike.")] = (
        False
    )


def link_of(table: LinkTable) -> Link:
    """
    The link.

    Raises
    ------
    InputError
        At the field.
    """
    latency = at_field("latency", parse_duration, table.latency)
    if table.bandwidth is None:
        return Link(latency)
    return Link(latency, at_field("bandwidth", parse_bandwidth, table.bandwidth))


_RATE = re.compile(
    r"((?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*"
    r"(?:(?:([kKMGTP])(i?))?(B|bit)\s*/\s*s)?",
    re.ASCII,
)


def parse_bandwidth(value: object) -> float:
    """
    Bytes per second in ``"100 MB/s"`` (10^8), ``"1 Gbit/s"`` or ``1e8``.

    ``B`` is a byte and ``bit`` is a bit; a lone ``b`` could be either and is refused.

    Raises
    ------
    InputError
        When it is none of these, not finite, or not positive.
    """
    expected = 'expected a bandwidth such as "100 MB/s", "1 Gbit/s" or bytes per second'
    try:
        rate = _rate(value)
    except OverflowError:
        rate = math.inf
    if rate is None or not math.isfinite(rate):
        shown = "".join(c if c.isprintable() else "?" for c in str(value)[:60])
        raise InputError(f'{expected}, got "{shown}"')
    if not rate > 0:
        raise InputError(f"must be positive, got {value}")
    return rate


def _rate(value: object) -> float | None:
    if isinstance(value, int | float):
        return float(value)
    match = _RATE.fullmatch(str(value).strip())
    if match is None:
        return None
    number, prefix, binary, unit = match.groups()
    base = 1024.0 if binary else 1000.0
    scale = base ** (1 + "KMGTP".index(prefix.upper())) if prefix else 1.0
    return float(number) * scale / (8 if unit == "bit" else 1)
