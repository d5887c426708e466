"""
Text templates with ``{parameter}`` places.

``{{`` and ``}}`` stand for braces. ``{x:03d}`` formats a number as Python
does; ``{path.name}`` and ``{path.stem}`` are a path's last part, with and
without its ending. In a line for the shell every value is quoted for the
place it stands in, so that it arrives as it is: between words, within
``'...'`` or within ``"..."``.
"""

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from bursar.model.errors import InputError, spelling_hint
from bursar.model.task import Value

Quoting = Literal["none", "bare", "single", "double"]
"""How a value is written: as it is, or for a place in a shell line."""

_HOLE = re.compile(
    r"\{(?P<name>[A-Za-z_][A-Za-z0-9_-]*)(?:\.(?P<part>name|stem))?"
    r"(?::(?P<format>[<>^]?[-+ ]?0?\d{0,2}(?:\.\d{1,2})?[deEfgGsxXo]?))?\}"
)


@dataclass(frozen=True, slots=True)
class _Placeholder:
    name: str
    part: str | None
    format: str
    quoting: Quoting


@dataclass(frozen=True, slots=True)
class Template:
    """
    A text split at the places for values.

    Parameters
    ----------
    text
        Text as written in the file.
    pieces
        Literal text and holes, in order.
    """

    text: str
    pieces: tuple[str | _Placeholder, ...]

    @property
    def names(self) -> set[str]:
        """Return the names of the values that the template needs."""
        return {piece.name for piece in self.pieces if isinstance(piece, _Placeholder)}

    @property
    def only_name(self) -> str | None:
        """Return the name of which the template consists and nothing else, or None."""
        if len(self.pieces) == 1 and isinstance(self.pieces[0], _Placeholder):
            return self.pieces[0].name
        return None

    def check(self, known: Collection[str]) -> None:
        """
        Check that every value that the template needs is known.

        Raises
        ------
        InputError
            When it needs a value that is not known.
        """
        for piece in self.pieces:
            if isinstance(piece, _Placeholder) and piece.name not in known:
                raise InputError(
                    f'unknown parameter "{piece.name}" in {{{piece.name}}}'
                    + (f", expected one of {_listed(known)}" if known else ""),
                    hint=spelling_hint(piece.name, known)
                    or f"write {{{{{piece.name}}}}} for the text in braces itself",
                )

    def render(self, values: Mapping[str, Value | tuple[str, ...]]) -> str:
        """
        Replace the parameters by values.

        Raises
        ------
        InputError
            When a value cannot be formatted as asked.
        """
        return "".join(
            piece if isinstance(piece, str) else _written(piece, values[piece.name])
            for piece in self.pieces
        )


def _listed(known: Collection[str]) -> str:
    names = sorted(known)
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")


def parse_template(text: str, *, shell: bool = False) -> Template:
    """
    Parse a text into a template.

    Parameters
    ----------
    text
        Text as the user wrote it, with places for values.
    shell
        True for a line that a shell will read: values are then quoted.

    Raises
    ------
    InputError
        When a brace stands alone, or a NUL is in it, or in a line for the
        shell a value stands where it cannot be quoted.
    """
    if "\0" in text:
        raise InputError("must not hold the character NUL")
    pieces: list[str | _Placeholder] = []
    state = _ShellState() if shell else None
    literal: list[str] = []
    i = 0
    while i < len(text):
        c = text[i]
        if c not in "{}":
            end = _next_brace(text, i)
            literal.append(text[i:end])
            i = end
        elif text.startswith(c * 2, i):
            literal.append(c)
            i += 2
        else:
            hole = _HOLE.match(text, i)
            if hole is None:
                raise _lone_brace(text, i)
            if literal:
                pieces.append("".join(literal))
                literal.clear()
                if state:
                    state.feed(str(pieces[-1]))
            quoting = state.quoting() if state else "none"
            pieces.append(_Placeholder(hole["name"], hole["part"], hole["format"] or "", quoting))
            i = hole.end()
    if literal:
        pieces.append("".join(literal))
    return Template(text, tuple(pieces))


def template_at(text: str, place: str, *, shell: bool = False) -> Template:
    """Parse a text into a template; errors name the place."""
    try:
        return parse_template(text, shell=shell)
    except InputError as error:
        raise error.within(place) from None


def rendered_at(
    template: Template, values: Mapping[str, Value | tuple[str, ...]], place: str
) -> str:
    """Put the values into a template; errors name the place."""
    try:
        return template.render(values)
    except InputError as error:
        raise error.within(place) from None


def _next_brace(text: str, start: int) -> int:
    ends = [at for at in (text.find("{", start), text.find("}", start)) if at >= 0]
    return min(ends, default=len(text))


def _lone_brace(text: str, at: int) -> InputError:
    """Return the error for the brace at index ``at``, which belongs to no parameter."""
    brace = text[at]
    around = "".join(c if c.isprintable() else " " for c in text[at : at + 24])
    return InputError(
        f'"{brace}" at character {at + 1} begins no {{parameter}}: {around}'
        if brace == "{"
        else f'"}}" at character {at + 1} ends no {{parameter}}',
        hint=f"write {brace * 2} for a brace of the text itself",
    )


def _written(hole: _Placeholder, value: Value | tuple[str, ...]) -> str:
    if isinstance(value, tuple):
        return " ".join(_quoted(word, hole.quoting) for word in value)
    return _quoted(_plain(hole, value), hole.quoting)


def _plain(hole: _Placeholder, value: Value) -> str:
    if hole.part and not hole.format:
        path = PurePosixPath(str(value))
        return path.name if hole.part == "name" else path.stem
    if hole.format:
        try:
            return format(value, hole.format)
        except ValueError:
            shown = value if isinstance(value, int | float) else f'"{value}"'
            raise InputError(
                f'{shown} cannot be written as "{{{hole.name}:{hole.format}}}"'
            ) from None
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def as_text(value: Value) -> str:
    """Write a value as ``{parameter}`` does: text as it is, ``true``, ``2.5``."""
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _quoted(text: str, quoting: Quoting) -> str:
    if quoting == "none":
        return text
    if quoting == "bare":
        return shlex.quote(text)
    if quoting == "single":
        return text.replace("'", "'\\''")
    return re.sub(r'([\\"$`])', r"\\\1", text)


class _ShellState:
    """
    State of the shell's quoting after the part of a line that was fed.

    Knows ``'``, ``"``, backslash, comments and ``$(...)``; here-documents are
    taken for ordinary words.
    """

    def __init__(self) -> None:
        self._stack: list[str] = []
        self._word = False
        self._comment = False
        self._escaped = False

    def quoting(self) -> Quoting:
        if self._escaped:
            raise InputError("a {parameter} must not follow a backslash")
        # Within backquotes a backslash quotes once more than outside, so no one way of quoting is
        # right.
        if "`" in self._stack:
            raise InputError("a {parameter} must not stand within `...`", hint="write $(...)")
        self._word = True
        top = self._stack[-1] if self._stack else ""
        return "single" if top == "'" else "double" if top == '"' else "bare"

    def feed(self, text: str) -> None:
        dollar = False
        for c in text:
            top = self._stack[-1] if self._stack else ""
            if self._comment:
                self._comment = c != "\n"
            elif self._escaped:
                self._escaped = False
                self._word = True
            elif top == "'":
                if c == "'":
                    self._stack.pop()
            elif c == "\\":
                self._escaped = True
            elif c == "`":
                self._toggle("`")
            elif c == '"':
                self._toggle('"')
            elif c == "(" and (dollar or top != '"'):
                self._stack.append("(")
                self._word = False
            elif top != '"':
                self._outside_quotes(c, top)
            dollar = c == "$" and not self._escaped

    def _outside_quotes(self, c: str, top: str) -> None:
        if c == "'":
            self._stack.append("'")
        elif c == ")" and top == "(":
            self._stack.pop()
        elif c == "#" and not self._word:
            self._comment = True
        self._word = not (c.isspace() or c in ";&|()<>")

    def _toggle(self, mark: str) -> None:
        if self._stack and self._stack[-1] == mark:
            self._stack.pop()
        else:
            self._stack.append(mark)
        self._word = True
