"""
Types of quantities in files: times, sizes, amounts of money, prices, shares, bandwidths.

A field of such a type takes a number, or text with a unit; the reader decodes what the file holds
into a plain number. Each type brings the JSON Schema of what may be written.
"""

import datetime
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from bursar.formats.units import (
    DEAREST,
    LARGEST,
    LONGEST,
    parse_amount,
    parse_bandwidth,
    parse_data_price,
    parse_deadline,
    parse_duration,
    parse_price,
    parse_share,
    parse_size,
    parse_use,
)
from bursar.model.errors import InputError
from bursar.model.money import CURRENCY, check_currency

Schema = dict[str, Any]

_NUMBER = r"(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?"
_CLOCK = r"(\d+-)?\d+:[0-5]\d(:[0-5]\d(\.\d+)?)?"
_TIME_UNIT = (
    "([sSmMhHdDwW]|[mM][sS]|[sS]ecs?|[sS]econds?|[mM]ins?|[mM]inutes?|[hH]rs?|[hH]ours?"
    "|[dD]ays?|[wW]eeks?)"
)
_TIME = rf"^\s*({_NUMBER}|{_CLOCK}|({_NUMBER}\s*{_TIME_UNIT}\s*)+)\s*$"
_SIZE = rf"^\s*{_NUMBER}\s*([bB]|[bB]ytes?|[kKmMgGtTpP][iI]?[bB])?\s*$"
SHARE_PATTERN = rf"^\s*{_NUMBER}\s*%?\s*$"
_PROCESSOR_TIME = r"([cC]ore|[pP]rocessor|[cC][pP][uU])-(second|minute|hour|day)"
_TEMPLATE = r"\{"  # the value of text with a {parameter} is known, and checked, later


class Quantity(type):
    """
    Metaclass of the types.

    Everything counts as an instance, because what the parser returns is a plain number, and
    msgspec would refuse it otherwise.
    """

    parse: Callable[[object], Any]
    schema: Schema

    def __instancecheck__(cls, value: object) -> bool:
        return True


def parse_quantity(kind: Any, value: object) -> Any:
    """
    Parse the value of a field, as ``dec_hook`` of msgspec.

    Raises
    ------
    InputError
        When the value is no quantity of this kind.
    """
    return kind.parse(value)


def decoded_type(name: str, parse: Callable[[object], Any], schema: Schema) -> Quantity:
    """
    Return a type for fields of tables.

    Parameters
    ----------
    name
        Name of the definition in JSON Schemas.
    parse
        Makes the field's value of what the file holds, or raises an :class:`InputError`.
    schema
        What the file may hold.
    """
    return Quantity(name, (), {"parse": staticmethod(parse), "schema": schema})


def _number_or_text(description: str, pattern: str, **bounds: float) -> Schema:
    return {
        "description": description,
        "anyOf": [{"type": "string", "pattern": pattern}, {"type": "number", **bounds}],
    }


def _unless_template(parse: Callable[[object], Any]) -> Callable[[object], Any]:
    """Return a parser that leaves text with a {parameter} unparsed."""

    def parse_or_keep(value: object) -> Any:
        return value if isinstance(value, str) and ("{" in value or "}" in value) else parse(value)

    return parse_or_keep


def _parse_count(value: object) -> int | str:
    """Return a number of processors, or text that has yet to give one."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        shown = str(value).lower() if isinstance(value, bool | float) else "something else"
        raise InputError(f"expected a whole number or text that gives one, got {shown}")
    return value


def _parse_date(value: object) -> datetime.date:
    """Return a day that TOML holds as a date or as text."""
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value
    try:
        return datetime.date.fromisoformat(value if isinstance(value, str) else "")
    except ValueError:
        raise InputError(f"expected a day such as 2026-11-01, got {value!r}") from None


def _parse_needed_share(value: object) -> float:
    """Return the share of its parents that a task needs; 0: one at least."""
    if value in ("all", "any"):
        return 1.0 if value == "all" else 0.0
    try:
        return parse_share(value)
    except InputError as error:
        raise InputError(f'{error.message}; or "all", or "any"', hint=error.hint) from None


def _parse_currency(value: object) -> str:
    try:
        return check_currency(value if isinstance(value, str) else "")
    except ValueError as error:
        raise InputError(str(error)) from None


def _parse_deadline(value: object) -> float:
    # A file that names a moment means something else at each reading.
    return parse_deadline(value, time.time())


if TYPE_CHECKING:
    CurrencyName: TypeAlias = str
    Deadline: TypeAlias = float
    Date: TypeAlias = datetime.date
    Duration: TypeAlias = float
    Size: TypeAlias = int
    Amount: TypeAlias = tuple[float, str | None]
    Credit: TypeAlias = float
    DataPrice: TypeAlias = tuple[float, str | None]
    Price: TypeAlias = tuple[float, str | None]
    Share: TypeAlias = float
    NeededShare: TypeAlias = float
    Use: TypeAlias = float
    Bandwidth: TypeAlias = float
    TaskDuration: TypeAlias = str | float
    TaskSize: TypeAlias = str | int
    Count: TypeAlias = str | int
else:
    CurrencyName = decoded_type(
        "CurrencyName",
        _parse_currency,
        {"type": "string", "pattern": rf"^{CURRENCY}$", "description": "A currency: SU, EUR, G$."},
    )
    """Name of a currency."""

    Date = decoded_type(
        "Date",
        _parse_date,
        {"type": "string", "format": "date", "description": "A day: 2026-11-01."},
    )
    """A day."""

    Duration = decoded_type(
        "Duration",
        parse_duration,
        _number_or_text(
            'A time: seconds, "33m", "1h30m", "01:30:00" or "1-02:00:00".',
            _TIME,
            minimum=0,
            maximum=LONGEST,
        ),
    )
    """Seconds."""

    Deadline = decoded_type(
        "Deadline",
        _parse_deadline,
        _number_or_text(
            'Seconds, "33m", "1h30m", or a moment: "2026-11-28 18:00".',
            rf"{_TIME}|^\s*\d{{4}}-\d{{2}}-\d{{2}}[ T]\d",
            minimum=0,
            maximum=LONGEST,
        ),
    )
    """Seconds from now."""

    Size = decoded_type(
        "Size",
        parse_size,
        _number_or_text(
            'A size: bytes, "4 GB" (10^9) or "10 MiB" (2^20).', _SIZE, minimum=0, maximum=LARGEST
        ),
    )
    """Bytes."""

    _amount = _number_or_text(
        'Currency units: 126000 or "40 SU".',
        rf"^\s*{_NUMBER}\s*({CURRENCY})?\s*$",
        minimum=0,
        maximum=DEAREST,
    )

    Amount = decoded_type("Amount", parse_amount, _amount)
    """Currency units, and the currency where the text names one."""

    Credit = decoded_type("Credit", lambda value: parse_amount(value)[0], _amount)
    """Currency units of the only currency that a service has."""

    Price = decoded_type(
        "Price",
        parse_price,
        _number_or_text(
            '"0.05 EUR/core-hour", or a number per processor-second.',
            rf"^\s*{_NUMBER}\s*(({CURRENCY})?\s*/\s*{_PROCESSOR_TIME})?\s*$",
            minimum=0,
        ),
    )
    """Currency units per processor-second, and the currency where the text names one."""

    DataPrice = decoded_type(
        "DataPrice",
        parse_data_price,
        _number_or_text(
            '"0.09 USD/GB", or a number per GB (10^9 bytes).',
            rf"^\s*{_NUMBER}\s*(({CURRENCY})?\s*/\s*([kMGTP]|[KMGTP]i)?B)?\s*$",
            minimum=0,
            maximum=DEAREST,
        ),
    )
    """Currency units per GB, and the currency where the text names one."""

    Share = decoded_type(
        "Share",
        parse_share,
        _number_or_text('A share: 0.8 or "80%".', SHARE_PATTERN, minimum=0, maximum=1),
    )
    """A number from 0 to 1."""

    NeededShare = decoded_type(
        "NeededShare",
        _parse_needed_share,
        _number_or_text(
            '"all", "any" (one at least), or a share: 0.95 or "95%".',
            rf"^all$|^any$|{SHARE_PATTERN}",
            minimum=0,
            maximum=1,
        ),
    )
    """A number from 0, which stands for one at least, to 1."""

    Use = decoded_type(
        "Use",
        parse_use,
        _number_or_text(
            'Use: processor-seconds, or "100 core-hours".',
            rf"^\s*{_NUMBER}\s*({_PROCESSOR_TIME}s?)?\s*$",
            minimum=0,
        ),
    )
    """Processor-seconds."""

    Bandwidth = decoded_type(
        "Bandwidth",
        parse_bandwidth,
        _number_or_text(
            '"100 MB/s", "1 Gbit/s", or bytes per second.',
            rf"^\s*{_NUMBER}\s*(([kKMGTP]i?)?(B|bit)\s*/\s*s)?\s*$",
            exclusiveMinimum=0,
        ),
    )
    """Bytes per second, more than 0."""

    TaskDuration = decoded_type(
        "TaskDuration",
        _unless_template(parse_duration),
        _number_or_text(
            "A time, or text with a {parameter} that gives one.",
            f"{_TIME}|{_TEMPLATE}",
            minimum=0,
            maximum=LONGEST,
        ),
    )
    """Seconds, or a template."""

    TaskSize = decoded_type(
        "TaskSize",
        _unless_template(parse_size),
        _number_or_text(
            "A size, or text with a {parameter} that gives one.",
            f"{_SIZE}|{_TEMPLATE}",
            minimum=0,
            maximum=LARGEST,
        ),
    )
    """Bytes, or a template."""

    Count = decoded_type(
        "Count",
        _parse_count,
        {
            "description": "A whole number, or text with a {parameter} that gives one.",
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "string", "pattern": rf"^\s*0*[1-9]\d*\s*$|{_TEMPLATE}"},
            ],
        },
    )
    """A number of processors, or text that gives one."""
