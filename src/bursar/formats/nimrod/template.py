"""Templates: text of a plan file with references to parameters."""

import re
from collections.abc import Callable, Mapping, Sequence

from bursar.model.errors import InputError

_NAME = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})", re.ASCII)
_ESCAPE = re.compile(
    r"\\(?:\n|([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL
)
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_PLAIN = "\\\"'?$"


class ParameterName(str):
    """
    The name of a parameter whose value stands here.

    Attributes
    ----------
    written
        Whole reference as written, ``$name`` or ``${name}``.
    """

    __slots__ = ("written",)

    written: str


def _name(match: re.Match[str]) -> ParameterName:
    name = ParameterName(match[1] or match[2])
    name.written = match[0]
    return name


class NimrodTemplate:
    """
    A text of literal pieces and names of values.

    Parameters
    ----------
    parts
        Parts in order; a :class:`ParameterName` stands for the parameter's value.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[str]) -> None:
        self.parts = tuple(parts)

    @property
    def names(self) -> list[str]:
        """Return the names of the values that the template needs."""
        return [part for part in self.parts if isinstance(part, ParameterName)]

    def fill(self, values: Mapping[str, str]) -> str:
        """Return the text with every name replaced by the value."""
        return "".join([values[p] if isinstance(p, ParameterName) else p for p in self.parts])

    def keep_unknown(self, known: Callable[[str], bool]) -> "NimrodTemplate":
        """Return the template with unknown names as plain text: the shell may know them."""
        return NimrodTemplate(
            [p.written if isinstance(p, ParameterName) and not known(p) else p for p in self.parts]
        )


def parse_text(text: str) -> NimrodTemplate:
    """Parse raw text, in which ``$name`` and ``${name}`` are parameters."""
    parts: list[str] = []
    end = 0
    for match in _NAME.finditer(text):
        if match.start() > end:
            parts.append(text[end : match.start()])
        parts.append(_name(match))
        end = match.end()
    if end < len(text):
        parts.append(text[end:])
    return NimrodTemplate(parts)


def parse_string(quoted: str) -> NimrodTemplate:
    """
    Parse a string in double quotes, with C's escapes; parameters as in :func:`parse_text`.

    ``\\$`` is a dollar sign that begins no parameter, a backslash before the
    end of the line joins the lines, and one before any other character that
    C does not know stays with it.

    Raises
    ------
    InputError
        For a character that no text may hold.
    """
    parts: list[str] = []
    inner = quoted[1:-1]
    end = 0
    for match in _ESCAPE.finditer(inner):
        parts += parse_text(inner[end : match.start()]).parts
        parts.append(_unescaped(match))
        end = match.end()
    parts += parse_text(inner[end:]).parts
    return NimrodTemplate(parts)


def parse_word(word: str) -> NimrodTemplate:
    """Parse a word of a command: raw text and strings, without a space between them."""
    parts: list[str] = []
    for piece in re.split(r'("(?:[^"\\]|\\.)*")', word, flags=re.DOTALL):
        parts += (parse_string(piece) if piece.startswith('"') else parse_text(piece)).parts
    return NimrodTemplate(parts)


def _unescaped(match: re.Match[str]) -> str:
    octal, two, four, eight, other = match.groups()
    if other is not None:
        if other in _PLAIN:
            return other
        return _CONTROL.get(other, "\\" + other)
    digits, base = (octal, 8) if octal else (two or four or eight, 16)
    if digits is None:
        return ""  # the end of a line
    code = int(digits, base)
    # NUL ends an argument of a program, and surrogates cannot be encoded.
    if code == 0 or code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise InputError(f'"{match[0]}" is no character that a text may hold')
    return chr(code)
