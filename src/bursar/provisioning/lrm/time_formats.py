"""Parse times and durations as schedulers print them."""

import calendar
import re
import time

UTC = {"TZ": "UTC0", "LC_ALL": "C"}
"""Variables that make commands print times in UTC and speak English: many leave out the zone."""

_ENDLESS = re.compile(r"(infinity|inf|unlimited|none|undefined|-+)?", re.IGNORECASE)


def parse_moment(text: str, *formats: str) -> float | None:
    """
    Parse a time in UTC to seconds since the epoch; None when no format fits.

    Parameters
    ----------
    text
        Time as printed under :data:`UTC`.
    formats
        Formats of :func:`time.strptime`.
    """
    for form in formats:
        try:
            return float(calendar.timegm(time.strptime(" ".join(text.split()), form)))
        except ValueError:
            continue
    return None


def seconds(text: str) -> float | None:
    """
    Seconds of ``[[[days:]hours:]minutes:]seconds``; None where there is no limit.

    Raises
    ------
    ValueError
        When it is neither.
    """
    if _ENDLESS.fullmatch(text.strip()):
        return None
    total = 0.0
    for part, unit in zip(reversed(text.strip().split(":")), (1, 60, 3600, 86400), strict=False):
        total += float(part) * unit
    if text.count(":") > 3 or not 0 <= total < float("inf"):
        raise ValueError(f"no duration: {text!r}")
    return total


def format_walltime(duration: float) -> str:
    """``HH:MM:SS`` of at least so many seconds."""
    whole = int(duration) + (duration > int(duration))
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"
