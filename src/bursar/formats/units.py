"""
Quantities in people's notation: times, sizes, amounts of money, shares, prices, periods.

Each parser takes text or a plain number and returns the unit the model uses
(seconds, bytes, currency units). Sums are done in decimal, so that what
``format_`` writes, ``parse_`` reads back as the very same number.
"""

import calendar
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import NoReturn, TypeVar

from bursar.model.errors import InputError, spelling_hint
from bursar.model.money import CURRENCY

T = TypeVar("T")
V = TypeVar("V")

LONGEST = 1e12
"""Longest time, seconds (some 30,000 years)."""

LARGEST = 2**63 - 1
"""Largest size, bytes."""

DEAREST = 9e12
"""Largest amount, currency units: the ledger counts its millionths in 64 bits."""

_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?"
_PART = re.compile(rf"\s*({_NUMBER})\s*([A-Za-z]+)", re.ASCII)
_CLOCK = re.compile(r"(?:(\d{1,9})-)?(\d{1,9}):(\d{2})(?::(\d{2}(?:\.\d+)?))?", re.ASCII)
_PLAIN = re.compile(_NUMBER, re.ASCII)
_QUANTITY = re.compile(rf"({_NUMBER})\s*([A-Za-z]*)", re.ASCII)
_SHARE = re.compile(rf"({_NUMBER})\s*(%?)", re.ASCII)
_AMOUNT = re.compile(rf"({_NUMBER})\s*({CURRENCY})?", re.ASCII)
_DATA_PRICE = re.compile(rf"({_NUMBER})\s*({CURRENCY})?\s*/\s*([A-Za-z]+)", re.ASCII)
_PRICE = re.compile(rf"({_NUMBER})\s*({CURRENCY})?\s*/\s*([A-Za-z-]+)", re.ASCII)

# A lone "b" is no unit here: people write it for bits and for bytes, a factor of eight.
_RATE = re.compile(
    r"((?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*"
    r"(?:(?:([kKMGTP])(i?))?(B|bit)\s*/\s*s)?",
    re.ASCII,
)

_USE = re.compile(r"(.*?)\s*(?:core|processor|cpu)-(second|minute|hour|day)s?", re.ASCII | re.I)

_SECONDS = {
    name: seconds
    for names, seconds in (
        (("s", "sec", "secs", "second", "seconds"), Decimal(1)),
        (("ms",), Decimal("0.001")),
        (("m", "min", "mins", "minute", "minutes"), Decimal(60)),
        (("h", "hr", "hrs", "hour", "hours"), Decimal(3600)),
        (("d", "day", "days"), Decimal(86400)),
        (("w", "week", "weeks"), Decimal(604800)),
    )
    for name in names
}
_DECIMAL_SIZES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}
_BINARY_SIZES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}
_SIZES = {**_DECIMAL_SIZES, **_BINARY_SIZES}
_SIZE_BY_WORD = {
    "": 1,
    "byte": 1,
    "bytes": 1,
    **{unit.lower(): size for unit, size in _SIZES.items()},
}
_PROCESSOR_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
_PER = {
    f"{what}-{time}": seconds
    for what in ("core", "processor", "cpu")
    for time, seconds in _PROCESSOR_SECONDS.items()
}


def parse_duration(value: object) -> float:
    """
    Parse a time into seconds: ``"33m"``, ``"1h30m"``, ``"01:30:00"``, ``"1-02:00:00"``, ``90``.

    A number is in seconds. With colons it is ``hours:minutes`` or
    ``hours:minutes:seconds``, days before a dash.

    Raises
    ------
    InputError
        When it is none of these, negative, not finite or above ``LONGEST``.
    """
    expected = 'expected a time such as 90, "33m", "1h30m" or "01:30:00"'
    if isinstance(value, str):
        seconds = float(_seconds_in(value.strip(), expected))
    else:
        seconds = _number(value, expected)
    if seconds > LONGEST:
        raise InputError(f"{_shown(value)} is longer than {LONGEST:.0e} seconds")
    return seconds


def _seconds_in(text: str, expected: str) -> Decimal:
    if _PLAIN.fullmatch(text):
        return Decimal(text)
    clock = _CLOCK.fullmatch(text)
    if clock:
        days, hours, minutes, seconds = clock.groups(default="0")
        if int(minutes) > 59 or Decimal(seconds) >= 60:
            _refuse(text, "minutes and seconds after a colon go up to 59")
        return (
            Decimal(days) * 86400 + Decimal(hours) * 3600 + Decimal(minutes) * 60 + Decimal(seconds)
        )
    total, end = Decimal(0), 0
    while end < len(text):
        part = _PART.match(text, end)
        if part is None:
            _refuse(text, expected)
        unit = _SECONDS.get(part[2].lower())
        if unit is None:
            _refuse(text, expected, hint=spelling_hint(part[2].lower(), _SECONDS))
        total += Decimal(part[1]) * unit
        end = part.end()
    if end == 0:
        _refuse(text, expected)
    return total


def parse_size(value: object) -> int:
    """
    Parse a size into bytes: ``"4 GB"`` (10^9), ``"10 MiB"`` (2^20) or ``123``.

    Raises
    ------
    InputError
        When it is no size, negative, no whole number of bytes or above 2^63.
    """
    expected = 'expected a size such as 123, "4 GB" or "10 MiB"'
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value.strip())
        if match is None:
            _refuse(value, expected)
        unit = _SIZE_BY_WORD.get(match[2].lower())
        if unit is None:
            _refuse(value, expected, hint=spelling_hint(match[2], _SIZES))
        exact = Decimal(match[1]) * unit
    else:
        _number(value, expected)
        assert isinstance(value, int | float)
        exact = Decimal(value)
    if exact > LARGEST:
        raise InputError(f"{_shown(value)} is larger than 2^63 bytes")
    if exact != exact.to_integral_value():
        raise InputError(f"{_shown(value)} is no whole number of bytes")
    return int(exact)


def format_size(size: int) -> str:
    """Write a size so that :func:`parse_size` reads it back exactly: ``"4 GB"``, ``"1.5 KiB"``."""
    if size < 0:
        raise InputError(f"a size must not be negative, got {size}")
    # The shortest of the exact forms; a unit whose rounding would lose bytes is not offered.
    texts = []
    for unit, scale in _SIZES.items():
        count = Decimal(size) / scale
        if count >= 1 and count * 1000 == int(count * 1000):
            texts.append(f"{count.normalize():f} {unit}")
    return min(texts, key=len, default=f"{size} B")


def rounded_size(size: float) -> str:
    """
    Write a size to three digits, for people.

    >>> rounded_size(512), rounded_size(81_920), rounded_size(3.2e9)
    ('512 B', '81.9 kB', '3.2 GB')
    """
    unit = 0
    names = list(_DECIMAL_SIZES)
    while size >= 999.5 and unit < len(names) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.3g} {names[unit]}"


def parse_amount(value: object) -> tuple[float, str | None]:
    """
    Parse an amount into currency units and the currency, where one is named.

    Amounts are written ``"40 SU"``, ``"12.5"`` or ``126000``.

    Raises
    ------
    InputError
        When it is no amount, negative, not finite or above ``DEAREST``.
    """
    expected = 'expected an amount such as 126000 or "40 SU"'
    currency = None
    if isinstance(value, str):
        match = _AMOUNT.fullmatch(value.strip())
        if match is None:
            _refuse(value, expected)
        amount, currency = float(match[1]), match[2]
    else:
        amount = _number(value, expected)
    if amount > DEAREST:
        raise InputError(f"{_shown(value)} is larger than {DEAREST:.0e}")
    return amount, currency


def parse_data_price(value: object) -> tuple[float, str | None]:
    """
    Parse currency units per GB (10^9 bytes), and the currency where one is named.

    Prices are written ``"0.09 USD/GB"``, ``"90 USD/TB"`` or ``0.09``.

    Raises
    ------
    InputError
        When it is no price, negative, not finite or above ``DEAREST``.
    """
    expected = 'expected a price of data such as "0.09 USD/GB", or a number per GB'
    if not isinstance(value, str):
        price, currency = _number(value, expected), None
    elif _PLAIN.fullmatch(value.strip()):
        price, currency = _finite(float(value), value, expected), None
    else:
        match = _DATA_PRICE.fullmatch(value.strip())
        scale = None if match is None else _SIZES.get(match[3])
        if match is None or scale is None:
            _refuse(value, expected)
        price = _finite(float(match[1]), value, expected) * (_SIZES["GB"] / scale)
        currency = match[2]
    if price > DEAREST:
        raise InputError(f"{_shown(value)} is larger than {DEAREST:.0e} per GB")
    return price, currency


def parse_share(value: object) -> float:
    """
    Parse a share between 0 and 1: ``"80%"``, ``"0.8"`` or ``0.8``.

    Raises
    ------
    InputError
        When it is none, or outside 0 to 1.
    """
    expected = 'expected a share such as "80%" or 0.8'
    if isinstance(value, str):
        match = _SHARE.fullmatch(value.strip())
        if match is None:
            _refuse(value, expected)
        # In decimal: 0.07 from "7%", not the float next to it.
        share = float(Decimal(match[1]) / 100) if match[2] else float(match[1])
    else:
        share = _number(value, expected)
    if share > 1:
        raise InputError(f"a share must be between 0% and 100%, got {_shown(value)}")
    return share


def parse_confidence(value: object) -> float:
    """
    Parse a probability above 0 and below 1: ``"90%"`` or ``0.9``.

    Raises
    ------
    InputError
        When it is none.
    """
    share = parse_share(value)
    if not 0 < share < 1:
        raise InputError(
            f"nothing is sure: expected more than 0% and less than 100%, got {share:.0%}"
        )
    return share


def parse_price(value: object) -> tuple[float, str | None]:
    """
    Parse currency units per processor-second, and the currency where one is named.

    Text says what it is for: ``"0.05 EUR/core-hour"``. A number is per processor-second.

    Raises
    ------
    InputError
        When it is no price, negative or not finite.
    """
    expected = 'expected a price such as "0.05 EUR/core-hour", or a number per processor-second'
    if not isinstance(value, str):
        return _number(value, expected), None
    text = value.strip()
    if _PLAIN.fullmatch(text):
        return _finite(float(text), value, expected), None
    match = _PRICE.fullmatch(text)
    if match is None:
        _refuse(value, expected)
    seconds = _PER.get(match[3].lower())
    if seconds is None:
        _refuse(value, expected, hint=spelling_hint(match[3].lower(), _PER))
    return _finite(float(match[1]), value, expected) / seconds, match[2]


def parse_bandwidth(value: object) -> float:
    """
    Return the bytes per second in ``"100 MB/s"`` (10^8), ``"1 Gbit/s"`` or ``1e8``.

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
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    match = _RATE.fullmatch(str(value).strip())
    if match is None:
        return None
    number, prefix, binary, unit = match.groups()
    base = 1024.0 if binary else 1000.0
    scale = base ** (1 + "KMGTP".index(prefix.upper())) if prefix else 1.0
    return float(number) * scale / (8 if unit == "bit" else 1)


def parse_use(value: object) -> float:
    """
    Return the processor-seconds in ``"100 core-hours"`` or ``360000``.

    Raises
    ------
    InputError
        When it is none, negative or not finite.
    """
    expected = 'expected use such as "100 core-hours", or processor-seconds'
    unit = 1
    if isinstance(value, str):
        match = _USE.fullmatch(value.strip())
        if match is None:
            raise InputError(expected)
        value, unit = match[1], _PROCESSOR_SECONDS[match[2].lower()]
    try:
        number, currency = parse_amount(value)
    except InputError:
        raise InputError(expected) from None
    if currency is not None:
        raise InputError(expected)
    return number * unit


def at_field(name: str, parse: Callable[[V], T], value: V) -> T:
    """
    Parse the value of a field.

    Raises
    ------
    InputError
        At the field.
    """
    # Not by errors_within(), which costs more than many a cell of a table.
    try:
        return parse(value)
    except InputError as error:
        raise error.within(name) from None


def _number(value: object, expected: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse(value, expected)
    try:
        number = float(value)
    except OverflowError:
        _refuse(value, expected)
    if number < 0:
        raise InputError(f"must not be negative, got {_shown(value)}")
    return _finite(number, value, expected)


def _finite(number: float, value: object, expected: str) -> float:
    if not math.isfinite(number):
        _refuse(value, expected)
    return number


def _refuse(value: object, expected: str, hint: str | None = None) -> NoReturn:
    raise InputError(f"{expected}, got {_shown(value)}", hint=hint)


def _shown(value: object) -> str:
    """Return the value on one line of bearable length."""
    if isinstance(value, bool):
        return str(value).lower()
    # Python refuses to print integers of thousands of digits, which TOML can hold.
    if isinstance(value, int) and abs(value) >= 10**40:
        return "an enormous number"
    if not isinstance(value, str | int | float):
        return f"a {type(value).__name__}"
    text = f'"{value}"' if isinstance(value, str) else str(value)
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= 60 else text[:57] + "..."


def parse_moment(text: str, now: float) -> float:
    """
    Parse a time as seconds since the epoch: ``"6h"`` from now, or ``"2026-11-28T18:00"``.

    A date without a zone is in this machine's.

    Raises
    ------
    InputError
        When it is neither.
    """
    try:
        return now + parse_duration(text)
    except InputError:
        pass
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        raise InputError(
            f'expected a time from now such as "6h" or a date such as "2026-11-28T18:00", '
            f"got {_shown(text)}"
        ) from None


def parse_deadline(value: object, now: float, begin: float | None = None) -> float:
    """
    Parse a deadline into seconds from a begin: ``"2h"``, ``90``, or ``"2026-11-28 18:00"``.

    A date has a time of day, and is in this machine's zone unless it states one; it may be a
    date-time of TOML. Anything else is read as by :func:`parse_duration`.

    Parameters
    ----------
    now, begin
        Seconds since the epoch; a ``begin`` of None is now.

    Raises
    ------
    InputError
        When it is neither, or a date that has passed.
    """
    text = value.isoformat() if isinstance(value, date) else value
    if not isinstance(text, str) or not _DATED.match(text):
        return parse_duration(value)
    try:
        if len(text.strip()) <= len("2026-11-28"):
            raise ValueError("the day begins or ends at midnight")
        moment = datetime.fromisoformat(text.strip())
        seconds = moment.timestamp()
    except (OverflowError, OSError, ValueError):
        raise InputError(f"{_EXPECTED_MOMENT}, got {_shown(text)}") from None
    if seconds <= now:
        raise InputError(f"expected a moment to come, got {moment:%Y-%m-%d %H:%M}")
    return seconds - (now if begin is None else begin)


_DATED = re.compile(r"\s*\d{4}-\d{2}-\d{2}", re.ASCII)
_EXPECTED_MOMENT = 'expected a date with a time of day such as "2026-11-28 18:00"'

_DATE = re.compile(r"(\d{4})(?:-(\d{2})(?:-(\d{2}))?)?", re.ASCII)
_EXPECTED = 'expected a period such as "2026", "2026-11", "2026-11-21" or "2026-11-01..2026-11-15"'
_FIRST, _LAST = 1970, 9998  # the calendar of the library ends with 9999


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """
    A stretch of time.

    Parameters
    ----------
    begin
        First second, since the epoch.
    end
        First second after the interval; later than ``begin``.
    """

    begin: float
    end: float

    def __post_init__(self) -> None:
        if not self.begin < self.end:
            raise ValueError(f"a period must have a length, got {self.begin} to {self.end}")

    def __contains__(self, moment: float) -> bool:
        return self.begin <= moment < self.end


def parse_period(text: str) -> Period:
    """
    Parse the period that a text names; both ends of ``A..B`` belong to the period.

    Raises
    ------
    InputError
        When it names none.

    Examples
    --------
    >>> parse_period("1970-01-02")
    Period(begin=86400.0, end=172800.0)
    >>> parse_period("1970-01..1970-02-01") == parse_period("1970-01-01..1970-02-01")
    True
    """
    first, dots, last = text.strip().partition("..")
    begin, end = _ends(first, text)
    if dots:
        end = _ends(last, text)[1]
    if not begin < end:
        raise InputError(f"a period ends after it begins, got {_shown(text)}")
    return Period(begin=begin, end=end)


def _ends(date: str, text: str) -> tuple[float, float]:
    """Return the first second of a year, month or day, and the first second afterwards."""
    match = _DATE.fullmatch(date.strip())
    if match is None:
        raise InputError(f"{_EXPECTED}, got {_shown(text)}")
    year, month, day = (int(part) if part else None for part in match.groups())
    assert year is not None
    if not _FIRST <= year <= _LAST:
        raise InputError(f"a year is from {_FIRST} to {_LAST}, got {_shown(text)}")
    if month is None:
        return _second(year, 1, 1), _second(year + 1, 1, 1)
    if not 1 <= month <= 12:
        raise InputError(f"there is no month {month}, in {_shown(text)}")
    days = calendar.monthrange(year, month)[1]
    if day is None:
        return _second(year, month, 1), _second(year, month, days) + 86400
    if not 1 <= day <= days:
        raise InputError(f"{year}-{month:02} has {days} days, in {_shown(text)}")
    return _second(year, month, day), _second(year, month, day) + 86400


def _second(year: int, month: int, day: int) -> float:
    return float(calendar.timegm((year, month, day, 0, 0, 0)))
