"""Figures as people read them: three digits, and a word for what is not known."""

UNKNOWN = "unknown"


def span(seconds: float | None) -> str:
    """
    A length of time.

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
    """Money, to four digits; a bill gives them all."""
    return UNKNOWN if cost is None else f"{cost:.4g} {currency}"


def share(value: float | None) -> str:
    """A part of a whole, in per cent."""
    return UNKNOWN if value is None else f"{value:.0%}"


def plain(text: str) -> str:
    """What others wrote, in one line, without what would move a cursor."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
