"""Check that a status that a site reports can be true, before it is used."""

import math
import re
from collections.abc import Mapping

from bursar.model.money import Refusal
from bursar.model.status import SiteStatus

LARGEST = 2**53
"""Largest count or number of bytes; up to here floating-point numbers are exact, too."""

LONGEST = 1000
"""Most characters of a text."""

MOST = 256
"""Most attributes of a site."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def validate_status(
    status: object, *, site: str, now: float, processors: int | None = None
) -> SiteStatus | Refusal:
    """
    Return a site's reported status if the values can be true, else a refusal.

    Parameters
    ----------
    status
        Object of any type.
    site
        Name of the site that was asked.
    now
        Seconds on the reader's clock.
    processors
        Number of processors of the site; None where unknown.

    Returns
    -------
    SiteStatus or Refusal
        The status, or a refusal of a wrong type, a number that is nan, negative or out of range,
        another site's name, or a future time.
    """
    if not isinstance(status, SiteStatus):
        what = "nothing" if status is None else f"a {type(status).__name__}"
        return Refusal(f"said {what}, where a status is expected", final=False)
    problem = (
        _of_identity(status, site, now)
        or _of_numbers(status, processors)
        or (status.attributes and _of_attributes(status.attributes))
    )
    return Refusal(problem, final=False) if problem else status


def _of_identity(status: SiteStatus, site: str, now: float) -> str:
    if status.site != site:
        return f"speaks for {_shown(status.site)}"
    if not _is_finite(status.at):
        return f"names no moment, but {_shown(status.at)}"
    if status.at > now:
        return f"speaks of a time {status.at - now:g} s ahead"
    if not isinstance(status.state, str) or len(status.state) > LONGEST:
        return f"state: expected a text, got {_shown(status.state)}"
    return ""


def _of_numbers(status: SiteStatus, processors: int | None) -> str:
    for name, count in (
        ("free_processors", status.free_processors),
        ("running", status.running),
        ("waiting", status.waiting),
    ):
        if not _is_count(count):
            return f"{name}: expected a count, got {_shown(count)}"
    if processors is not None and status.free_processors > processors:
        return f"free_processors: it has {processors}, got {status.free_processors}"
    wait = status.traversal_time
    if wait is not None and not (_is_finite(wait) and wait >= 0):
        return f"traversal_time: expected seconds, got {_shown(wait)}"
    if status.free_memory is not None and not _is_count(status.free_memory):
        return f"free_memory: expected bytes, got {_shown(status.free_memory)}"
    return ""


def _of_attributes(attributes: object) -> str:
    if not isinstance(attributes, Mapping):
        return f"attributes: expected names and values, got {_shown(attributes)}"
    if len(attributes) > MOST:
        return f"attributes: expected at most {MOST}, got {len(attributes)}"
    seen = set()
    for name, value in attributes.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > LONGEST:
            return f"attributes: {_shown(name)} is not a name"
        if name.lower() in seen:
            return f"attributes: {_shown(name)} is there twice, whatever its case"
        seen.add(name.lower())
        if not _is_fact(value):
            return f"attributes.{name[:40]}: expected a finite value, got {_shown(value)}"
    return ""


def _is_count(value: object) -> bool:
    # Not isinstance: True would pass for a count.
    return type(value) is int and 0 <= value <= LARGEST


def _is_finite(value: object) -> bool:
    # A whole number may be too large to be compared as a floating-point one.
    if type(value) is int:
        return abs(value) <= LARGEST
    return isinstance(value, float) and math.isfinite(value)


def _is_fact(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= LONGEST
    return isinstance(value, bool) or _is_finite(value)


def _shown(value: object) -> str:
    """Format a value, short enough for one line."""
    if type(value) is int and abs(value) > LARGEST:
        return "a number too large"
    text = ascii(value) if isinstance(value, str | int | float) else f"a {type(value).__name__}"
    return text if len(text) <= 40 else f"{text[:40]}…"
