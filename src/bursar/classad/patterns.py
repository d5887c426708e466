r"""
Regular expressions of ClassAds, matched by RE2, and values as text for ``string()``.

Patterns come from users and from sites. One such as ``(a+)+$`` keeps a backtracking matcher,
Python's and Perl's, busy for ever; RE2 takes time in proportion to the text, whatever the
pattern [1]_. This module writes a pattern of Perl's in RE2's syntax. Where the two differ, the
meaning is Perl's: ``$`` also stands before a newline that ends the text, ``\s`` includes the
vertical tab, and the option ``x`` exists.

References
----------
.. [1] Cox (2010). Regular expression matching in the wild. https://swtch.com/~rsc/regexp/
"""

import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from bursar.classad.ad import name_written, quoted, written
from bursar.classad.operators import Exceptional, Value

if TYPE_CHECKING:
    import re2


# Regular expressions of ClassAds, matched by RE2.

MEMORY = 1 << 20
"""Bytes that RE2 may use for one pattern."""

LONGEST = 4096
"""Characters of a pattern; RE2 reads nested groups in quadratic time."""

# RE2's only test for "before a newline" is `$` with the flag `m`, true before every newline. Perl's
# `$` without that flag is true before the last one only. So newlines within a text are replaced by
# NUL, which no ClassAd string may hold, and patterns take it wherever they take a newline.
_INNER_NEWLINE = "\0"
_NEWLINES = r"\n\x00"

_SPACES = rf"\t-\r {_NEWLINES}"
_NO_SPACES = r"\x01-\x08\x0e-\x1f!-\x{10FFFF}"
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "e": "\x1b"}

_OUTSIDE_SETS = {
    r"\d": r"\d",
    r"\D": r"\D",
    r"\w": r"\w",
    r"\W": r"\W",
    r"\s": f"[{_SPACES}]",
    r"\S": f"[{_NO_SPACES}]",
    r"\b": r"\b",
    r"\B": r"\B",
    r"\A": r"\A",
    r"\z": r"\z",
}
_IN_SETS = {
    r"\d": r"\d",
    r"\D": r"\D",
    r"\w": r"\w",
    r"\W": r"\W",
    r"\s": _SPACES,
    r"\S": _NO_SPACES,
    "[:space:]": _SPACES,
    "[:^space:]": _NO_SPACES,
} | {
    f"[:{negation}{name}:]": f"[:{negation}{name}:]"
    for name in ("alpha", "digit", "alnum", "upper", "lower", "punct", "xdigit")
    for negation in ("", "^")
}

_TOKEN = re.compile(
    r"""
      (?P<set> \[ (?P<negation>\^?) (?P<items> \]?+ (?: \[:\^?\w+:\] | \\. | [^\]\\] )*+ ) \] )
    | (?P<escape> \\. )
    | (?P<group> \( (?:\?:?)? )
    | (?P<space> \s+ )
    | (?P<other> [^\[\\\s] )
    """,
    re.DOTALL | re.VERBOSE,
)
_ITEM = re.compile(
    r"""
      (?P<class> \[:\^?\w+:\] | \\[dDwWsS] )
    | (?P<first> \\. | . ) (?: - (?P<last> \\. | . ) )?
    """,
    re.DOTALL | re.VERBOSE,
)
_FLAGS_AT_START = re.compile(r"\(\?([imsx]+)\)")


class _NoPatternError(Exception):
    """The text is no pattern, or one that is not supported."""


class Pattern(NamedTuple):
    """
    A compiled pattern.

    Parameters
    ----------
    regexp
        Pattern in RE2's syntax.
    by_line
        Whether ``^`` and ``$`` stand at every line.
    """

    regexp: "re2._Regexp"
    by_line: bool

    def is_found(self, text: str) -> bool:
        """Return whether the pattern matches anywhere in a text."""
        if not self.by_line and "\n" in text:
            text = text[:-1].replace("\n", _INNER_NEWLINE) + text[-1:]
        # Text as bytes saves RE2's wrapper the way back from offsets to characters.
        return self.regexp.search(text.encode("utf-8", "replace")) is not None


def compile_pattern(pattern: str, options: str) -> Pattern | None:
    """
    Compile a pattern; return None for a malformed, too large or unsupported one.

    Parameters
    ----------
    pattern
        Pattern as in Perl, without back references, looking ahead and looking behind.
    options
        Letters of ``imsx``, as in :func:`bursar.classad.patterns.matched`.
    """
    import re2  # only few commands match patterns; loading takes time

    if len(pattern) > LONGEST:
        return None
    flags = _FLAGS_AT_START.match(pattern)
    if flags:
        options += flags[1]
        pattern = pattern[flags.end() :]
    try:
        translated = "".join(_translated(pattern, options))
        return Pattern(re2.compile(translated, _re2_options("i" in options)), "m" in options)
    except (_NoPatternError, re2.error, UnicodeEncodeError):
        return None


@lru_cache(maxsize=2)
def _re2_options(ignore_case: bool) -> "re2.Options":
    import re2

    options = re2.Options()
    options.max_mem = MEMORY
    options.case_sensitive = not ignore_case
    # Only whether there is a match is asked for.
    options.never_capture = True
    # A bad pattern is a value of the language, no line on standard error.
    options.log_errors = False
    return options


def _translated(pattern: str, options: str) -> list[str]:
    """Return the parts of a pattern in RE2's syntax."""
    parts = []
    at = 0
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if token is None:  # a set without an end, or a backslash at the end
            raise _NoPatternError
        at = token.end()
        text = token[0]
        match token.lastgroup:
            case "set":
                parts.append(f"[{token['negation']}{_set_items(token['items'])}]")
            case "escape":
                parts.append(_escape(text, options))
            case "group" if text == "(?":  # looks around, names a group or sets flags
                raise _NoPatternError
            case "space":
                if "x" not in options:
                    parts += [_plain(character, options) for character in text]
            case "other" if text == "#" and "x" in options:
                line_end = pattern.find("\n", at)
                at = len(pattern) if line_end < 0 else line_end
            case _:
                parts.append(_plain(text, options))
    return parts


def _plain(text: str, options: str) -> str:
    match text:
        case "\n":
            return f"[{_NEWLINES}]"
        case ".":
            return "(?s:.)" if "s" in options else f"[^{_NEWLINES}]"
        case "^":
            return "(?m:^)" if "m" in options else r"\A"
        case "$":
            return "(?m:$)"
        case _:
            return text


def _escape(text: str, options: str) -> str:
    if text == r"\Z" and "m" not in options:
        return "(?m:$)"
    if text in _OUTSIDE_SETS:
        return _OUTSIDE_SETS[text]
    character = _character(text)
    return f"[{_NEWLINES}]" if character == "\n" else _written(character)


def _set_items(items: str) -> str:
    parts = []
    for item in _ITEM.finditer(items):
        if item["class"]:
            if item["class"] not in _IN_SETS:
                raise _NoPatternError
            parts.append(_IN_SETS[item["class"]])
            continue
        first = _character(item["first"], in_set=True)
        last = first if item["last"] is None else _character(item["last"], in_set=True)
        parts.append(f"{_written(first)}-{_written(last)}")
        # A range over the newline must also take what newlines within a text were replaced by.
        if first <= "\n" <= last:
            parts.append(_NEWLINES)
    return "".join(parts)


def _character(text: str, *, in_set: bool = False) -> str:
    """Return the character for which a plain or escaped character stands."""
    if text[0] != "\\":
        return text
    letter = text[1]
    if letter == "b" and in_set:
        return "\b"
    if letter in _CONTROL:
        return _CONTROL[letter]
    if letter.isascii() and letter.isalnum():  # a back reference, or an escape of other tools
        raise _NoPatternError
    return letter


def _written(character: str) -> str:
    return f"\\x{{{ord(character):X}}}"


# Writes values as text for ``string()``, and matches regular expressions.


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
