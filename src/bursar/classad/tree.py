"""Nodes of the syntax tree of an expression."""

from dataclasses import dataclass, field

from bursar.classad.values import Exceptional

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
