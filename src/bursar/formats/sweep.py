"""
Parameter sweeps: axes of values, and how they combine to points.

An *axis* is what one entry of ``[parameters]`` says: rows of values for one
parameter, or, from a CSV table, for several that move together. ``combine``
joins the axes: every row with every row (``*``) or row by row (``+``, or a
comma in brackets).
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bursar.model.errors import InputError, spelling_hint
from bursar.model.task import Value

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
    parameters
        Their names.
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
