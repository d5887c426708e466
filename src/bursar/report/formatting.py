"""Formats figures for people: three digits, and a word for unknown values."""

import math

UNKNOWN = "unknown"


def span(seconds: float | None) -> str:
    """
    Format a length of time.

    >>> span(0.00123), span(36.3), span(75.2), span(7265)
    ('1.23 ms', '36.3 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds is None:
        return UNKNOWN
    if seconds < 1:
        return "0 s" if seconds <= 0 else f"{seconds * 1e3:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h"


def amount(cost: float | None, currency: str) -> str:
    """Format money to four digits; only a bill gives all digits."""
    return UNKNOWN if cost is None else f"{cost:.4g} {currency}"


def span_above(seconds: float) -> float:
    """
    Return the shortest time not below ``seconds`` that :func:`span` prints exactly.

    >>> span_above(8.001), span(span_above(8.001)), span_above(75.2)
    (8.01, '8.01 s', 76)
    """
    if seconds <= 0:
        return 0.0
    if seconds < 1:
        return _rounded_up(seconds * 1e3, 3) / 1e3
    if seconds < 60:
        return _rounded_up(seconds, 3)
    for unit, limit in ((1, 3600), (60, 48 * 3600)):
        above = math.ceil(seconds / unit - _EXACT) * unit
        if above < limit:
            return above
    return math.ceil(seconds / 3600 - _EXACT) * 3600


def amount_above(cost: float) -> float:
    """
    Return the least amount not below ``cost`` that :func:`amount` prints exactly.

    >>> amount_above(0.00444441), amount(amount_above(0.00444441), "SU")
    (0.004445, '0.004445 SU')
    """
    return _rounded_up(cost, 4) if cost > 0 else 0.0


def _rounded_up(value: float, digits: int) -> float:
    """Round up to significant digits; what floats lose does not count as more."""
    unit = digits - 1 - math.floor(math.log10(value))
    # Through text, as multiplying by a power of ten would bring back digits that were rounded away.
    return float(f"{math.ceil(round(value * 10.0**unit, 9) - _EXACT)}e{-unit}")


_EXACT = 1e-9


def share(value: float | None) -> str:
    """Format a part of a whole in per cent."""
    return UNKNOWN if value is None else f"{value:.0%}"


def plain(text: str) -> str:
    """Return foreign text as one line without characters that move a cursor."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
