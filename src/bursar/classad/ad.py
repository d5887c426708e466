"""Expressions and ads: their syntax tree, their text, and what evaluation is given."""

import math
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bursar.classad.operators import ERROR, MOST, UNDEFINED, Exceptional, fits, lower

# Nodes of the syntax tree of an expression.

DEEPEST = 100
"""Levels of nesting in an expression; the parser refuses deeper ones."""

Constant = bool | int | float | str | Exceptional


@dataclass(frozen=True, slots=True)
class ExpressionNode:
    """
    A part of an expression.

    Attributes
    ----------
    depth
        Levels of parts within it, its own included.
    """

    depth: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        depth = 1 + max((part.depth for part in self.parts), default=0)
        object.__setattr__(self, "depth", depth)

    @property
    def parts(self) -> "tuple[ExpressionNode, ...]":
        """Child nodes, in order."""
        return ()


@dataclass(frozen=True, slots=True)
class Literal(ExpressionNode):
    """A constant."""

    value: Constant


@dataclass(frozen=True, slots=True)
class AttributeReference(ExpressionNode):
    """An attribute: ``name``, or ``of.name``."""

    name: str
    of: ExpressionNode | None = None

    @property
    def parts(self) -> tuple[ExpressionNode, ...]:
        return () if self.of is None else (self.of,)


@dataclass(frozen=True, slots=True)
class UnaryOperation(ExpressionNode):
    """``-a``, ``+a``, ``!a``, ``~a``."""

    sign: str
    operand: ExpressionNode

    @property
    def parts(self) -> tuple[ExpressionNode, ...]:
        return (self.operand,)


@dataclass(frozen=True, slots=True)
class BinaryOperation(ExpressionNode):
    """Two operands, both always evaluated."""

    sign: str
    left: ExpressionNode
    right: ExpressionNode

    @property
    def parts(self) -> tuple[ExpressionNode, ...]:
        return (self.left, self.right)


@dataclass(frozen=True, slots=True)
class LogicalChain(ExpressionNode):
    """``a && b && c`` or ``a || b || c``: evaluated in order, as far as it matters."""

    sign: str
    operands: tuple[ExpressionNode, ...]

    @property
    def parts(self) -> tuple[ExpressionNode, ...]:
        return self.operands


@dataclass(frozen=True, slots=True)
class ConditionalOperation(ExpressionNode):
    """``test ? then : otherwise``; without ``then``, ``test ?: otherwise``."""

    test: ExpressionNode
    then: ExpressionNode | None
    otherwise: ExpressionNode

    @property
    def parts(self) -> tuple[ExpressionNode, ...]:
        return tuple(part for part in (self.test, self.then, self.otherwise) if part is not None)


@dataclass(frozen=True, slots=True)
class FunctionCall(ExpressionNode):
    """A function with arguments; ``name`` in the user's spelling."""

    name: str
    arguments: tuple[ExpressionNode, ...]

    @property
    def parts(self) -> tuple[ExpressionNode, ...]:
        return self.arguments


@dataclass(frozen=True, slots=True)
class ExpressionList(ExpressionNode):
    """``{ a, b }``."""

    items: tuple[ExpressionNode, ...]

    @property
    def parts(self) -> tuple[ExpressionNode, ...]:
        return self.items


@dataclass(frozen=True, slots=True)
class NestedAd(ExpressionNode):
    """
    ``[ a = 1; b = a ]``.

    Parameters
    ----------
    fields
        Names as written, with what stands after their ``=``.
    places
        Line and column of each name, where it was parsed.
    """

    fields: tuple[tuple[str, ExpressionNode], ...]
    places: tuple[tuple[int, int], ...] = field(default=(), compare=False)

    @property
    def parts(self) -> tuple[ExpressionNode, ...]:
        return tuple(part for _, part in self.fields)


@dataclass(frozen=True, slots=True)
class SubscriptOperation(ExpressionNode):
    """``of[index]``."""

    of: ExpressionNode
    index: ExpressionNode

    @property
    def parts(self) -> tuple[ExpressionNode, ...]:
        return (self.of, self.index)


# Expressions and values as text that parses back.

RESERVED = frozenset({"true", "false", "undefined", "error", "is", "isnt"})
"""Words that name no attribute, unless quoted."""

# How tightly each operator binds; operators of one number group from the left.
_BINDING = {
    "?": 1,
    "||": 3,
    "&&": 4,
    "|": 5,
    "^": 6,
    "&": 7,
    **dict.fromkeys(("==", "!=", "=?=", "=!="), 8),
    **dict.fromkeys(("<", "<=", ">", ">="), 9),
    **dict.fromkeys(("<<", ">>", ">>>"), 10),
    **dict.fromkeys(("+", "-"), 11),
    **dict.fromkeys(("*", "/", "%"), 12),
}
_UNARY = 13
_ELVIS = 14
_POSTFIX = 15

_ESCAPES = {
    "\\": "\\\\",
    '"': '\\"',
    "\n": "\\n",
    "\t": "\\t",
    "\r": "\\r",
    "\b": "\\b",
    "\f": "\\f",
}


def written(node: ExpressionNode) -> str:
    """Return the text of an expression, with no more parentheses than needed."""
    return _within(node, 0)


def quoted(text: str) -> str:
    """A string in double quotes."""
    return f'"{_escaped(text)}"'


def name_written(name: str) -> str:
    """Return an attribute's name, in single quotes unless plain."""
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) and name.lower() not in RESERVED:
        return name
    return "'" + _escaped(name).replace('\\"', '"').replace("'", "\\'") + "'"


def _escaped(text: str) -> str:
    return "".join(
        _ESCAPES.get(c) or (f"\\{ord(c):03o}" if c < " " or c == "\x7f" else c) for c in text
    )


def _constant(value: Constant) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Exceptional):
        return value.word
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, int):
        # The smallest integer has no literal: the number after its minus is too large.
        return str(value) if value >= -MOST else f"({-MOST} - 1)"
    if math.isfinite(value):
        return repr(value)
    return 'real("NaN")' if math.isnan(value) else f'real("{"-" if value < 0 else ""}INF")'


def _within(node: ExpressionNode, binding: int) -> str:
    """Return the text of a node, in parentheses where the surroundings bind more tightly."""
    text, own = _text(node)
    return f"({text})" if own < binding else text


def _text(node: ExpressionNode) -> tuple[str, int]:
    """Return the text of a node, and how tightly the text binds."""
    match node:
        case Literal(value):
            text = _constant(value)
            return text, _UNARY if text.startswith("-") else _POSTFIX
        case AttributeReference(name, None):
            return name_written(name), _POSTFIX
        case AttributeReference(name, ExpressionNode() as of):
            return f"{_within(of, _POSTFIX)}.{name_written(name)}", _POSTFIX
        case SubscriptOperation(of, index):
            return f"{_within(of, _POSTFIX)}[{_within(index, 0)}]", _POSTFIX
        case UnaryOperation(sign, operand):
            inner = _within(operand, _UNARY)
            # "- 1" is an operator and its operand, "-1" a literal; "--" reads badly.
            gap = " " if sign in "+-" and inner[0] in "+-.0123456789" else ""
            return f"{sign}{gap}{inner}", _UNARY
        case LogicalChain(sign, operands):
            own = _BINDING[sign]
            return f" {sign} ".join(_within(part, own + 1) for part in operands), own
        case BinaryOperation(sign, left, right):
            own = _BINDING[sign]
            # Operators group to the left: a right operand of equal strength needs its
            # parentheses, a left one does not.
            return f"{_within(left, own)} {sign} {_within(right, own + 1)}", own
        case ConditionalOperation(test, None, otherwise):
            return f"{_within(test, _ELVIS)} ?: {_within(otherwise, _POSTFIX)}", _ELVIS
        case ConditionalOperation(test, ExpressionNode() as then, otherwise):
            own = _BINDING["?"]
            chosen = f"{_within(then, own)} : {_within(otherwise, own)}"
            return f"{_within(test, own + 1)} ? {chosen}", own
        case FunctionCall(name, arguments):
            return f"{name}({', '.join(_within(part, 0) for part in arguments)})", _POSTFIX
        case ExpressionList(items):
            inside = ", ".join(_within(part, 0) for part in items)
            return f"{{ {inside} }}" if inside else "{ }", _POSTFIX
        case NestedAd(fields):
            inside = "; ".join(f"{name_written(key)} = {_within(p, 0)}" for key, p in fields)
            return f"[ {inside} ]" if inside else "[ ]", _POSTFIX
    raise TypeError(f"no part of an expression: {node!r}")


# Expressions and ads: what is parsed, printed, hashed and handed to evaluation.


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
