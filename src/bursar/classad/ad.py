"""Expressions and ads: what is parsed, printed, hashed and handed to evaluation."""

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bursar.classad.printing import written
from bursar.classad.tree import ExpressionList, ExpressionNode, Literal, NestedAd
from bursar.classad.values import ERROR, UNDEFINED, Exceptional, fits, lower


class Expression:
    """
    A parsed expression. Immutable; equal to another that is written the same.

    ``str(expression)`` parses back to an equal one.

    Attributes
    ----------
    root
        Outermost node.
    """

    __slots__ = ("_text", "root")

    def __init__(self, root: ExpressionNode) -> None:
        self.root = root
        self._text: str | None = None

    def __str__(self) -> str:
        if self._text is None:
            self._text = written(self.root)
        return self._text

    def __repr__(self) -> str:
        return f"Expression({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


PLAIN = frozenset({bool, int, float, str, tuple, Exceptional})
"""Types of stored values that need no evaluation."""


class Ad(Mapping[str, Any]):
    """
    Attributes by name; names are the same in upper and lower case.

    Parameters
    ----------
    attributes
        Python's ``bool``, ``int``, ``float``, ``str``, lists or tuples of these,
        :class:`Ad`, :class:`Expression`, ``UNDEFINED``, ``ERROR``. An integer of more
        than 64 bits becomes a real number.

    Raises
    ------
    TypeError
        For a value of another type.
    """

    __slots__ = ("_names", "_places", "_text", "values_by_key")

    def __init__(self, attributes: Mapping[str, object] | None = None) -> None:
        self._names: dict[str, str] = {}
        self._places: Mapping[str, tuple[int, int]] = {}
        self._text: str | None = None
        self.values_by_key: dict[str, Any] = {}
        for name, value in (attributes or {}).items():
            key = lower(name)
            self._names[key] = name
            self.values_by_key[key] = _stored(value, name)

    @classmethod
    def of(cls, node: NestedAd) -> "Ad":
        """Return the ad for a nested ad of an expression."""
        ad = cls()
        for name, part in node.fields:
            key = lower(name)
            ad._names[key] = name
            ad.values_by_key[key] = _simple(part)
        if node.places:
            ad._places = dict(zip(ad._names, node.places, strict=True))
        return ad

    def place(self, name: str) -> tuple[int, int] | None:
        """Return line and column where an attribute was parsed; None if not parsed."""
        return self._places.get(lower(name))

    def with_attribute(self, name: str, value: object) -> "Ad":
        """Return a copy of the ad with one attribute changed."""
        ad = Ad()
        key = lower(name)
        ad._names = self._names | {key: name}
        ad.values_by_key = self.values_by_key | {key: _stored(value, name)}
        return ad

    def expression(self, name: str) -> Expression:
        """Return an attribute as an expression; undefined for an attribute that does not exist."""
        return Expression(as_node(self.values_by_key.get(lower(name), UNDEFINED)))

    def __getitem__(self, name: str) -> Any:
        if not isinstance(name, str):
            raise KeyError(name)
        return listed(self.values_by_key[lower(name)])

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and lower(name) in self.values_by_key

    def __iter__(self) -> Iterator[str]:
        return iter(self._names.values())

    def __len__(self) -> int:
        return len(self._names)

    def __str__(self) -> str:
        if self._text is None:
            self._text = written(as_node(self))
        return self._text

    def __repr__(self) -> str:
        return f"Ad({self})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ad) and self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self._parts())

    def _parts(self) -> frozenset[tuple[str, str]]:
        return frozenset((k, written(as_node(v))) for k, v in self.values_by_key.items())


def listed(value: Any) -> Any:
    """Convert a stored value to the form for callers: tuples become lists."""
    return [listed(item) for item in value] if type(value) is tuple else value


def as_node(value: Any) -> ExpressionNode:
    """Return the node that prints as a stored value."""
    if isinstance(value, Expression):
        return value.root
    if isinstance(value, Ad):
        names = value._names
        return NestedAd(tuple((names[k], as_node(v)) for k, v in value.values_by_key.items()))
    if isinstance(value, tuple):
        return ExpressionList(tuple(as_node(item) for item in value))
    return Literal(value)


def _simple(part: ExpressionNode) -> Any:
    """Return what an ad stores for a part: the value, where no evaluation is needed."""
    if isinstance(part, Literal):
        return part.value
    if isinstance(part, NestedAd):
        return Ad.of(part)
    if isinstance(part, ExpressionList):
        items = tuple(_simple(item) for item in part.items)
        if all(type(item) in PLAIN for item in items):
            return items
    return Expression(part)


def _stored(value: object, name: str) -> Any:
    if value is UNDEFINED or value is ERROR or type(value) in (bool, str, Ad, Expression):
        return value
    # A subclass, such as NumPy's float64, becomes a plain float: evaluation asks for the exact
    # type.
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str | Ad | Expression):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, Sequence):
        items = tuple(_stored(item, name) for item in value)
        if all(type(item) in PLAIN for item in items):
            return items
        return Expression(ExpressionList(tuple(as_node(item) for item in items)))
    if type(value).__name__ in ("bool_", "bool"):  # NumPy's, which is no bool and no integer
        return bool(value)
    try:
        # Integers of NumPy and the like, but no float that happens to be whole.
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name}: no value of an ad: {value!r}") from None
    if fits(number):
        return number
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf
