"""
Periods as people write them: a year, a month, a day, or from one to another. In UTC.
"""

import calendar
import re
from dataclasses import dataclass

from bursar.model.errors import InputError

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
        First second after it. Beyond ``begin``.
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
    The period that a text names. Both ends of ``A..B`` belong to it.

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
        raise InputError(f'a period ends after it begins, got "{_shown(text)}"')
    return Period(begin=begin, end=end)


def _ends(date: str, text: str) -> tuple[float, float]:
    """First second of a year, month or day, and the first one after it."""
    match = _DATE.fullmatch(date.strip())
    if match is None:
        raise InputError(f'{_EXPECTED}, got "{_shown(text)}"')
    year, month, day = (int(part) if part else None for part in match.groups())
    assert year is not None
    if not _FIRST <= year <= _LAST:
        raise InputError(f'a year is from {_FIRST} to {_LAST}, got "{_shown(text)}"')
    if month is None:
        return _second(year, 1, 1), _second(year + 1, 1, 1)
    if not 1 <= month <= 12:
        raise InputError(f'there is no month {month}, in "{_shown(text)}"')
    days = calendar.monthrange(year, month)[1]
    if day is None:
        return _second(year, month, 1), _second(year, month, days) + 86400
    if not 1 <= day <= days:
        raise InputError(f'{year}-{month:02} has {days} days, in "{_shown(text)}"')
    return _second(year, month, day), _second(year, month, day) + 86400


def _second(year: int, month: int, day: int) -> float:
    return float(calendar.timegm((year, month, day, 0, 0, 0)))


def _shown(text: str) -> str:
    """On one line of bearable length."""
    line = "".join(c if c.isprintable() else "?" for c in text)
    return line if len(line) <= 60 else line[:57] + "..."
