"""Writes values as text for ``string()``, and matches regular expressions."""

import math
from functools import lru_cache

from bursar.classad.operators import Value
from bursar.classad.patterns import Pattern, compile_pattern
from bursar.classad.printing import name_written, quoted, written
from bursar.classad.values import Exceptional


def text_of(value: Value) -> str:
    """Return the text of a value as in HTCondor: reals in scientific form, lists in braces."""
    return value if type(value) is str else _nested(value)


def _nested(value: Value) -> str:
    """Return the text of a value within a list or an ad, where strings are quoted."""
    if type(value) is str:
        return quoted(value)
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is float:
        return _real(value)
    if isinstance(value, Exceptional):
        return value.word
    if type(value) is tuple:
        return "{ " + ",".join(_nested(item) for item in value) + " }"
    if type(value) is int:
        return str(value)
    fields = value.ad.values_by_key.items()
    inside = "; ".join(
        f"{name_written(name)} = {_field(stored)}"
        for name, (_, stored) in zip(value.ad, fields, strict=True)
    )
    return f"[ {inside} ]"


def _field(stored: Value) -> str:
    """Return the text of an attribute; an expression is printed unevaluated."""
    if hasattr(stored, "root"):
        return written(stored.root)
    return str(stored) if hasattr(stored, "values_by_key") else _nested(stored)


def _real(value: float) -> str:
    if math.isfinite(value):
        return f"{value:.15E}" if value else ("-0.0" if math.copysign(1, value) < 0 else "0.0")
    return 'real("NaN")' if math.isnan(value) else f'real("{"-" if value < 0 else ""}INF")'


@lru_cache(maxsize=65_536)
def matched(pattern: str, text: str, options: str) -> bool | None:
    """
    Return whether a regular expression is found somewhere in a text.

    Answers are remembered, as most of many sites publish the same values.

    Parameters
    ----------
    options
        ``i``: upper and lower case are the same; ``m``: ``^`` and ``$`` also stand at the
        lines; ``s``: ``.`` is also a newline; ``x``: spaces in the pattern do not count.
        Other letters are ignored.

    Returns
    -------
    bool or None
        None when the pattern is malformed or not supported.
    """
    # Options in one order and without others, so that the same pattern is compiled once however
    # they are written.
    compiled = _compiled(pattern, "".join(sorted({*options} & {*"imsx"})))
    return None if compiled is None else compiled.is_found(text)


@lru_cache(maxsize=256)  # each takes up to patterns.MEMORY
def _compiled(pattern: str, options: str) -> Pattern | None:
    return compile_pattern(pattern, options)
