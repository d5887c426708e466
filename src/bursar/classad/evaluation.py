"""
Evaluates expressions, and finds the attributes that an expression refers to.

This is the plain interpreter. It knows every part of the language, and says what
:mod:`bursar.classad.compiling` and :mod:`bursar.classad.table` must agree with.

A name is looked up in the ad that the expression stands in, then in those around it; a
bare one that is in none of them, in the other ad of the match. ``MY``, ``TARGET``
(``other`` to EDG), ``SELF`` and ``PARENT`` are ads, unless there is an attribute of that
name. An attribute that is needed for its own value is undefined.
"""

from collections.abc import Callable, Container
from typing import Any
from typing import Literal as PyLiteral

from bursar.classad.ad import (
    PLAIN,
    Ad,
    AttributeReference,
    BinaryOperation,
    ConditionalOperation,
    Expression,
    ExpressionList,
    ExpressionNode,
    FunctionCall,
    Literal,
    LogicalChain,
    NestedAd,
    SubscriptOperation,
    UnaryOperation,
    as_node,
)
from bursar.classad.functions import FUNCTIONS
from bursar.classad.operators import BINARY, ERROR, UNARY, UNDEFINED, Value, lower, misfit, truth

# Finds the attributes that an expression refers to, without evaluation.

EVERYTHING = "*"
"""Stands for all attributes, where an expression takes the other ad as a whole."""

OTHER = ("target", "other")
"""Names of the other ad of a match."""

OWN = ("my", "self", "parent")
"""Names of the own ad, or of one within it or around it."""

SCOPES = (*OWN, *OTHER)


def home_of(node: AttributeReference, mine: Container[str]) -> PyLiteral["own", "other", "odd"]:
    """
    Tell in which ad a name certainly stands, for code that treats the plain cases itself.

    Parameters
    ----------
    mine
        Keys of the ad's own attributes, in lower case.

    Returns
    -------
    str
        ``"own"``, ``"other"`` (of the match), or ``"odd"``: only the interpreter can tell.
    """
    key = lower(node.name)
    of = node.of
    if of is None:
        return "own" if key in mine else "odd" if key in SCOPES else "other"
    if isinstance(of, AttributeReference) and of.of is None and lower(of.name) not in mine:
        word = lower(of.name)
        if word in ("my", "self") and key in mine:
            return "own"
        if word in OTHER and key not in SCOPES:
            return "other"
    return "odd"


def references(expression: Expression, my: Ad) -> frozenset[str]:
    """
    Return the attributes of the other ad that an expression may read.

    Parameters
    ----------
    my
        Ad to which the expression belongs; attributes of this ad are followed.

    Returns
    -------
    frozenset of str
        Names in lower case; ``"*"`` among them where the other ad is taken as a whole (``other``,
        ``other["name"]``). What the other ad's own expressions read is not among them.
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


# Evaluates expressions of one ad against another.

MOST_FOLLOWED = 1000
"""Attributes that one evaluation follows into expressions; beyond, the value is an error."""

DEEPEST_FOLLOWED = 120
"""
Levels of nested expressions that are followed; beyond, the value is an error.

Each level takes up to four calls of Python's, which allows a thousand.
"""


class AdScope:
    """
    An ad together with the surrounding ads: a value of the language.

    Parameters
    ----------
    ad
        Ad that holds the attributes.
    parent
        Scope of the surrounding ad; None for one of the two that are matched.

    Attributes
    ----------
    other
        The other of the two ads that are matched; None for an ad within one of these, and when an
        expression is evaluated without a match.
    """

    __slots__ = ("ad", "other", "parent")

    def __init__(self, ad: Ad, parent: "AdScope | None" = None) -> None:
        self.ad = ad
        self.parent = parent
        self.other: AdScope | None = None


class EvaluationState:
    """
    Counts what one evaluation has followed.

    Parameters
    ----------
    busy
        Attributes whose values are being worked out: the identity of their ad, their key.
    """

    __slots__ = ("busy", "depth", "followed")

    def __init__(self, busy: frozenset[tuple[int, str]] = frozenset()) -> None:
        self.busy = set(busy)
        self.depth = 0
        self.followed = 0


def evaluate(expression: Expression, my: Ad, target: Ad | None = None) -> Any:
    """
    Evaluate an expression.

    Parameters
    ----------
    my
        Ad to which the expression belongs.
    target
        Ad to match against; None: no ad, so that all references to the other ad are undefined.

    Returns
    -------
    bool, int, float, str, list, Ad, UNDEFINED or ERROR
        A list holds such values. An ad comes as it is written.
    """
    return given(value_of(expression.root, matched_scope(my, target), EvaluationState()))


def matched_scope(my: Ad, target: Ad | None) -> AdScope:
    """The scope of an expression in one ad, held against another."""
    scope = AdScope(my)
    if target is not None:
        scope.other = AdScope(target)
        scope.other.other = scope
    return scope


def given(value: Value) -> Any:
    """Convert a value to the form for callers: lists, and ads without scope."""
    if type(value) is tuple:
        return [given(item) for item in value]
    return value.ad if isinstance(value, AdScope) else value


def value_of(node: ExpressionNode, scope: AdScope, state: EvaluationState) -> Value:
    """The value of a part of an expression."""
    return _EVALUATORS[type(node)](node, scope, state)


def _literal(node: Literal, scope: AdScope, state: EvaluationState) -> Value:
    return node.value


def _name(node: AttributeReference, scope: AdScope, state: EvaluationState) -> Value:
    key = lower(node.name)
    if node.of is not None:
        return _selected(value_of(node.of, scope, state), key, state)
    found = _find(scope, key, state)
    # A bare name is looked up in the other ad only from the outermost level, never from an ad
    # within one.
    if found is None and scope.parent is None and scope.other is not None:
        found = _find(scope.other, key, state)
    return UNDEFINED if found is None else found[0]


def _selected(of: Value, key: str, state: EvaluationState) -> Value:
    if isinstance(of, AdScope):
        found = _find(of, key, state)
        return UNDEFINED if found is None else found[0]
    if type(of) is tuple:
        return tuple(_selected(item, key, state) for item in of)
    return misfit(of, of)


def _find(scope: AdScope, key: str, state: EvaluationState) -> tuple[Value] | None:
    """Return the value of a name in an ad or the surrounding ads; None where not found."""
    current = scope
    while True:
        if key in current.ad.values_by_key:
            return (_followed(current, key, state),)
        if key == "self":
            return (scope,)
        if key == "parent":
            return (UNDEFINED if scope.parent is None else scope.parent,)
        if current.parent is None:
            break
        current = current.parent
    if key == "my":
        return (current,)
    if key in OTHER:
        return (UNDEFINED if current.other is None else current.other,)
    return None


def _followed(scope: AdScope, key: str, state: EvaluationState) -> Value:
    """Return the value of an attribute that exists."""
    stored = scope.ad.values_by_key[key]
    if type(stored) in PLAIN:
        return stored
    if isinstance(stored, Ad):
        # Not evaluated: its attributes are, one by one, when they are selected.
        return AdScope(stored, scope)
    mark = (id(scope.ad), key)
    # An attribute that is needed for its own value, directly or round a circle of both ads.
    if mark in state.busy:
        return UNDEFINED
    depth = stored.root.depth
    state.followed += 1
    if state.followed > MOST_FOLLOWED or state.depth + depth > DEEPEST_FOLLOWED:
        return ERROR
    state.busy.add(mark)
    state.depth += depth
    try:
        return value_of(stored.root, scope, state)
    finally:
        state.depth -= depth
        # Only while it is being worked out: the same attribute may be read again beside itself,
        # as in a + a.
        state.busy.discard(mark)


def _unary(node: UnaryOperation, scope: AdScope, state: EvaluationState) -> Value:
    return UNARY[node.sign](value_of(node.operand, scope, state))


def _binary(node: BinaryOperation, scope: AdScope, state: EvaluationState) -> Value:
    left = value_of(node.left, scope, state)
    return BINARY[node.sign](left, value_of(node.right, scope, state))


def _chain(node: LogicalChain, scope: AdScope, state: EvaluationState) -> Value:
    decisive = node.sign == "||"
    result: Value = not decisive
    for operand in node.operands:
        found = truth(value_of(operand, scope, state))
        if found is decisive or found is ERROR:
            return found
        if found is UNDEFINED:
            result = UNDEFINED
    return result


def _choice(node: ConditionalOperation, scope: AdScope, state: EvaluationState) -> Value:
    test = value_of(node.test, scope, state)
    if node.then is None:
        return value_of(node.otherwise, scope, state) if test is UNDEFINED else test
    chosen = truth(test)
    if chosen is True:
        return value_of(node.then, scope, state)
    return value_of(node.otherwise, scope, state) if chosen is False else chosen


def _call(node: FunctionCall, scope: AdScope, state: EvaluationState) -> Value:
    key = lower(node.name)
    if key == "ifthenelse":
        return _choice(ConditionalOperation(*node.arguments), scope, state)
    return FUNCTIONS[key](*[value_of(part, scope, state) for part in node.arguments])


def _list(node: ExpressionList, scope: AdScope, state: EvaluationState) -> Value:
    return tuple([value_of(item, scope, state) for item in node.items])


def _ad(node: NestedAd, scope: AdScope, state: EvaluationState) -> Value:
    return AdScope(Ad.of(node), scope)


def _element(node: SubscriptOperation, scope: AdScope, state: EvaluationState) -> Value:
    of = value_of(node.of, scope, state)
    index = value_of(node.index, scope, state)
    if type(of) is tuple and type(index) is int:
        return of[index] if 0 <= index < len(of) else ERROR
    if isinstance(of, AdScope) and type(index) is str:
        key = lower(index)
        return _followed(of, key, state) if key in of.ad.values_by_key else UNDEFINED
    return misfit(of, index)


_EVALUATORS: dict[type[ExpressionNode], Callable[..., Value]] = {
    Literal: _literal,
    AttributeReference: _name,
    UnaryOperation: _unary,
    BinaryOperation: _binary,
    LogicalChain: _chain,
    ConditionalOperation: _choice,
    FunctionCall: _call,
    ExpressionList: _list,
    NestedAd: _ad,
    SubscriptOperation: _element,
}
