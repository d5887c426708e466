"""
Parameter sweeps: the parameters and their combinations, and the templates that these fill.

An *axis* is what one entry of ``[parameters]`` says: rows of values for one parameter, or, from a
CSV table, for several that move together. ``combine`` joins the axes: every row with every row
(``*``) or row by row (``+``, or a comma in brackets).

``{{`` and ``}}`` stand for braces. ``{x:03d}`` formats a number as Python does; ``{path.name}`` and
``{path.stem}`` are a path's last part, with and without its ending. In a line for the shell every
value is quoted for the place it stands in, so that it arrives as it is: between words, within
``'...'`` or within ``"..."``.
"""

import itertools
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from bursar.model.errors import InputError, errors_within, spelling_hint
from bursar.model.task import Value

# Parameter sweeps: axes of values, and how they combine to points.

MOST_POINTS = 10_000_000
"""Most points of a sweep; larger sweeps are refused before expansion."""

DEEPEST = 50
"""Brackets within brackets in a combination."""


@dataclass(frozen=True, slots=True)
class Axis:
    """
    Rows of values.

    Parameters
    ----------
    name
        Key in ``[parameters]``, by which ``combine`` refers to the axis.
    parameters
        Names of the parameters to which each row gives a value.
    rows
        One tuple for each row, as long as ``parameters``. At least one.
    """

    name: str
    parameters: tuple[str, ...]
    rows: Sequence[tuple[Value, ...]]


@dataclass(frozen=True, slots=True)
class AxisCombination:
    """
    Axes joined; a tree.

    Parameters
    ----------
    side_by_side
        True when the parts go row by row, False when every row meets every row.
    parts
        At least one. The last varies fastest.
    """

    side_by_side: bool
    parts: tuple["AxisCombination | Axis", ...]


@dataclass(frozen=True, slots=True)
class Sweep:
    """
    All points of some parameters.

    Parameters
    ----------
    points
        Values of each point, in the order of ``parameters``.
    """

    parameters: tuple[str, ...]
    points: Sequence[tuple[Value, ...]]

    def over(self, wanted: Sequence[str]) -> "Sweep":
        """Return the projection onto some parameters: each distinct point once, in order."""
        if tuple(wanted) == self.parameters:
            return self
        at = [self.parameters.index(name) for name in wanted]
        # A dictionary keeps the order of first occurrence.
        seen = dict.fromkeys(tuple(point[i] for i in at) for point in self.points)
        return Sweep(tuple(wanted), list(seen))


ONE_POINT = Sweep((), ((),))
"""The sweep of a task without parameters: one point without values."""


def combine(axes: Mapping[str, Axis], how: str) -> Sweep:
    """
    Combine axes to the points of a sweep.

    Parameters
    ----------
    axes
        Axes by name, in the order of the file; at least one.
    how
        ``"product"``, ``"zip"``, or an expression over the axes' names: see
        :func:`parse_combination`.

    Raises
    ------
    InputError
        When the expression is wrong, axes side by side differ in length, two
        axes give the same parameter, or there would be too many points.
    """
    tree: AxisCombination | Axis
    if how in ("product", "zip"):
        tree = AxisCombination(how == "zip", tuple(axes.values()))
    else:
        tree = parse_combination(how, axes)
    # Multiplied before anything is expanded.
    count = _count(tree)
    if count > MOST_POINTS:
        raise InputError(f"gives {count:,} points, expected at most {MOST_POINTS:,}")
    parameters = _parameters(tree)
    for name in parameters:
        if parameters.count(name) > 1:
            raise InputError(f'parameter "{name}" is given twice')
    return Sweep(parameters, list(_points(tree)))


def _count(tree: AxisCombination | Axis) -> int:
    if isinstance(tree, Axis):
        return len(tree.rows)
    counts = [_count(part) for part in tree.parts]
    if not tree.side_by_side:
        product = 1
        for count in counts:
            product *= count
        return product
    for part, count in zip(tree.parts, counts, strict=True):
        if count != counts[0]:
            raise InputError(
                f"{_name(tree.parts[0])} has {counts[0]:,} values and {_name(part)} has "
                f"{count:,}, expected as many where they go side by side"
            )
    return counts[0]


def _name(tree: AxisCombination | Axis) -> str:
    if isinstance(tree, Axis):
        return f'"{tree.name}"'
    sign = " + " if tree.side_by_side else " * "
    return "(" + sign.join(_name(part) for part in tree.parts) + ")"


def _parameters(tree: AxisCombination | Axis) -> tuple[str, ...]:
    if isinstance(tree, Axis):
        return tree.parameters
    return tuple(itertools.chain.from_iterable(_parameters(part) for part in tree.parts))


def _points(tree: AxisCombination | Axis) -> Iterator[tuple[Value, ...]]:
    if isinstance(tree, Axis):
        return iter(tree.rows)
    parts = [_points(part) for part in tree.parts]
    rows = zip(*parts, strict=True) if tree.side_by_side else itertools.product(*parts)
    return (tuple(itertools.chain.from_iterable(row)) for row in rows)


_TOKEN = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_-]*|[*+,()])")


def parse_combination(text: str, axes: Mapping[str, Axis]) -> AxisCombination | Axis:
    """
    Parse an expression into a tree.

    ::

        sum     : product ("+" product)*        side by side
        product : atom ("*" atom)*              every row with every row
        atom    : NAME | ["zip"] "(" sum ("," sum)* ")"

    A comma means what ``+`` means. Every axis stands in it exactly once.

    Raises
    ------
    InputError
        Saying at which character, or which axis is unknown, doubled or missing.
    """
    parser = _CombinationParser(text, axes)
    tree = parser.parse_sum(0)
    parser.expect_end()
    missing = [name for name in axes if name not in parser.used]
    if missing:
        raise InputError(f'leaves out "{missing[0]}", expected every parameter once')
    return tree


class _CombinationParser:
    """Recursive descent over the tokens of one expression."""

    def __init__(self, text: str, axes: Mapping[str, Axis]) -> None:
        self._tokens: list[tuple[str, int]] = []
        self._axes = axes
        self._next = 0
        self.used: set[str] = set()
        end = len(text.rstrip())
        at = 0
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None:
                raise InputError(
                    f'"{text[at:].strip()[:1]}" at character {at + 1} means nothing, '
                    'expected names, "*", "+", "," and brackets'
                )
            self._tokens.append((match[1], match.start(1) + 1))
            at = match.end()
        self._tokens.append(("", end + 1))

    def parse_sum(self, depth: int, signs: tuple[str, ...] = ("+",)) -> AxisCombination | Axis:
        parts = [self._parse_product(depth)]
        while self._token in signs:
            self._next += 1
            parts.append(self._parse_product(depth))
        return parts[0] if len(parts) == 1 else AxisCombination(True, tuple(parts))

    def _parse_product(self, depth: int) -> AxisCombination | Axis:
        parts = [self._parse_atom(depth)]
        while self._token == "*":
            self._next += 1
            parts.append(self._parse_atom(depth))
        return parts[0] if len(parts) == 1 else AxisCombination(False, tuple(parts))

    def _parse_atom(self, depth: int) -> AxisCombination | Axis:
        if depth > DEEPEST:
            raise InputError(f"has more than {DEEPEST} brackets within each other")
        token, at = self._tokens[self._next]
        self._next += 1
        if token == "zip" and self._token == "(" and "zip" not in self._axes:
            self._next += 1
            token = "("
        if token == "(":
            inner = self.parse_sum(depth + 1, ("+", ","))
            if self._token != ")":
                raise self._unexpected('")"')
            self._next += 1
            return inner
        if not re.match(r"[A-Za-z_]", token):
            self._next -= 1
            raise self._unexpected("a parameter")
        if token not in self._axes:
            raise InputError(
                f'unknown parameter "{token}" at character {at}',
                hint=spelling_hint(token, self._axes),
            )
        if token in self.used:
            raise InputError(f'"{token}" stands in it twice, expected every parameter once')
        self.used.add(token)
        return self._axes[token]

    def expect_end(self) -> None:
        if self._token:
            raise self._unexpected('"*", "+" or the end')

    @property
    def _token(self) -> str:
        return self._tokens[self._next][0]

    def _unexpected(self, expected: str) -> InputError:
        token, at = self._tokens[self._next]
        found = f'"{token}"' if token else "the end"
        return InputError(f"expected {expected} at character {at}, got {found}")


# Text templates with ``{parameter}`` places.

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
            [
                piece if isinstance(piece, str) else _written(piece, values[piece.name])
                for piece in self.pieces
            ]
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
    with errors_within(place):
        return parse_template(text, shell=shell)


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
    # Most values are numbers as they are, and no number holds a character that a shell would heed.
    if type(value) in (int, float) and not hole.format and not hole.part:
        return str(value)
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
