"""The parts of an expression, as the parser puts them together."""

from dataclasses import dataclass, field

from bursar.classad.values import Exceptional

DEEPEST = 100
"""Levels of nesting in an expression; deeper ones are refused when they are read."""

Constant = bool | int | float | str | Exceptional


@dataclass(frozen=True, slots=True)
class Node:
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
    def parts(self) -> "tuple[Node, ...]":
        """Those directly within it, in order."""
        return ()


@dataclass(frozen=True, slots=True)
class Literal(Node):
    """A value as it is written."""

    value: Constant


@dataclass(frozen=True, slots=True)
class Name(Node):
    """An attribute: ``name``, or ``of.name``."""

    name: str
    of: Node | None = None

    @property
    def parts(self) -> tuple[Node, ...]:
        return () if self.of is None else (self.of,)


@dataclass(frozen=True, slots=True)
class Unary(Node):
    """``-a``, ``+a``, ``!a``, ``~a``."""

    sign: str
    operand: Node

    @property
    def parts(self) -> tuple[Node, ...]:
        return (self.operand,)


@dataclass(frozen=True, slots=True)
class Binary(Node):
    """Two operands, both always evaluated."""

    sign: str
    left: Node
    right: Node

    @property
    def parts(self) -> tuple[Node, ...]:
        return (self.left, self.right)


@dataclass(frozen=True, slots=True)
class Chain(Node):
    """``a && b && c`` or ``a || b || c``: evaluated in order, as far as it matters."""

    sign: str
    operands: tuple[Node, ...]

    @property
    def parts(self) -> tuple[Node, ...]:
        return self.operands


@dataclass(frozen=True, slots=True)
class Choice(Node):
    """``test ? then : otherwise``; without ``then``, ``test ?: otherwise``."""

    test: Node
    then: Node | None
    otherwise: Node

    @property
    def parts(self) -> tuple[Node, ...]:
        return tuple(part for part in (self.test, self.then, self.otherwise) if part is not None)


@dataclass(frozen=True, slots=True)
class Call(Node):
    """A function with its arguments; ``name`` as it is written."""

    name: str
    arguments: tuple[Node, ...]

    @property
    def parts(self) -> tuple[Node, ...]:
        return self.arguments


@dataclass(frozen=True, slots=True)
class ListOf(Node):
    """``{ a, b }``."""

    items: tuple[Node, ...]

    @property
    def parts(self) -> tuple[Node, ...]:
        return self.items


@dataclass(frozen=True, slots=True)
class AdOf(Node):
    """
    ``[ a = 1; b = a ]``.

    Parameters
    ----------
    fields
        Names as written, with what stands after their ``=``.
    places
        Line and column of each name, where it was parsed.
    """

    fields: tuple[tuple[str, Node], ...]
    places: tuple[tuple[int, int], ...] = field(default=(), compare=False)

    @property
    def parts(self) -> tuple[Node, ...]:
        return tuple(part for _, part in self.fields)


@dataclass(frozen=True, slots=True)
class Element(Node):
    """``of[index]``."""

    of: Node
    index: Node

    @property
    def parts(self) -> tuple[Node, ...]:
        return (self.of, self.index)
