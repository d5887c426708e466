"""Finds the attributes that an expression refers to, without evaluation."""

from bursar.classad.ad import (
    Ad,
    AttributeReference,
    Expression,
    ExpressionNode,
    LogicalChain,
    as_node,
)
from bursar.classad.operators import lower

EVERYTHING = "*"
"""Stands for all attributes, where an expression takes the other ad as a whole."""

OTHER = ("target", "other")
"""Names of the other ad of a match."""

OWN = ("my", "self", "parent")
"""Names of the own ad, or of one within it or around it."""

SCOPES = (*OWN, *OTHER)


def references(expression: Expression, my: Ad) -> frozenset[str]:
    """
    Return the attributes of the other ad that an expression may read.

    Parameters
    ----------
    expression
        Parsed expression.
    my
        Ad to which the expression belongs; attributes of this ad are followed.

    Returns
    -------
    frozenset of str
        Names in lower case; ``"*"`` among them where the other ad is taken as a whole
        (``other``, ``other["name"]``). What the other ad's own expressions read is not
        among them.
    """
    reading = _ReferenceWalker(my)
    reading.look_at(expression.root)
    return frozenset(reading.found)


def followed(expression: Expression, my: Ad) -> frozenset[str]:
    """Return the attributes of the own ad that an expression may read, in lower case."""
    reading = _ReferenceWalker(my)
    reading.look_at(expression.root)
    return frozenset(reading.followed)


def clauses(expression: Expression) -> tuple[Expression, ...]:
    """Return the operands of ``&&`` at the top, nested groups included; else the whole."""
    return tuple(Expression(part) for part in _conjuncts(expression.root))


def _conjuncts(node: ExpressionNode) -> list[ExpressionNode]:
    if not (isinstance(node, LogicalChain) and node.sign == "&&"):
        return [node]
    return [part for operand in node.operands for part in _conjuncts(operand)]


class _ReferenceWalker:
    """Walks an expression and the own attributes that are named in the expression, each once."""

    def __init__(self, my: Ad) -> None:
        self._mine = my.values_by_key
        self.followed: set[str] = set()
        self.found: set[str] = set()

    def look_at(self, node: ExpressionNode) -> None:
        """Visit a node and all that follows from the node; a loop, as chains may be long."""
        waiting = [node]
        while waiting:
            part = waiting.pop()
            waiting += (
                self._bare_or_of(part) if isinstance(part, AttributeReference) else part.parts
            )

    def _bare_or_of(self, node: AttributeReference) -> list[ExpressionNode]:
        """
        Note which attribute a reference reads, and return the nodes to visit after it.

        A name that the own ad does not define is one of the other ad, as is ``target.name``. A
        name that the own ad defines leads to its expression there, unless already visited.
        """
        key = lower(node.name)
        if node.of is None:
            if key in self._mine:
                return self._follow(key)
            if key in OWN:  # all that can then be selected from it
                return [part for own in self._mine for part in self._follow(own)]
            self.found.add(EVERYTHING if key in OTHER else key)
            return []
        of = node.of
        if isinstance(of, AttributeReference) and of.of is None and key not in SCOPES:
            word = lower(of.name)
            if word not in self._mine and word in OTHER:
                self.found.add(key)
                return []
            if word not in self._mine and word in ("my", "self") and key in self._mine:
                return self._follow(key)
        # Selected from a nested ad. Such an ad looks up a missing name in the ads around it, so the
        # name may be one of the other ad as well as of the own.
        self.found.add(EVERYTHING if key in SCOPES else key)
        return [of, *(self._follow(key) if key in self._mine else [])]

    def _follow(self, key: str) -> list[ExpressionNode]:
        # Each attribute once, so that ads whose attributes name each other in a circle come to an
        # end.
        if key in self.followed:
            return []
        self.followed.add(key)
        return [as_node(self._mine[key])]
