"""
Compiles an expression that is matched against many ads to a function of the other ad.

What depends on one's own ad alone is worked out once; what is left becomes closures, with
short ways for a plain attribute against a constant. Anything else is handed to
:mod:`bursar.classad.evaluation`, so that the language is defined in one place.
"""

from collections.abc import Callable
from typing import Any

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
    UnaryOperation,
)
from bursar.classad.evaluation import (
    EvaluationState,
    given,
    home_of,
    matched_scope,
    references,
    value_of,
)
from bursar.classad.functions import FUNCTIONS, folded
from bursar.classad.operators import (
    BINARY,
    COMPARISONS,
    ERROR,
    UNARY,
    UNDEFINED,
    Value,
    lower,
    truth,
)

Run = Callable[[Ad], Value]

_DEEPEST_INLINED = 100
_MOST_INLINED = 100

_SWAPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}


def compiled(expression: Expression, my: Ad) -> Callable[[Ad], Any]:
    """
    Compile an expression with the own ad bound; call the result with each other ad.

    Parameters
    ----------
    my
        Ad to which the expression belongs.

    Returns
    -------
    callable
        Gives what :func:`bursar.classad.evaluation.evaluate` gives.
    """
    part = ExpressionCompiler(my).compile(expression.root)
    # Nothing of the other ad is read: the value is worked out once for all ads.
    if part.is_constant:
        value = given(part.value)
        # A list is the caller's, to do with as he likes.
        return (lambda target: list(value)) if type(value) is list else (lambda target: value)
    run = part.run

    def apply(target: Ad) -> Any:
        value = run(target)
        return value if type(value) in _AS_IT_IS else given(value)

    return apply


_AS_IT_IS = PLAIN - {tuple}


class CompiledNode:
    """
    A compiled part: a constant, or a function of the other ad.

    Parameters
    ----------
    run
        Function that evaluates the part for the other ad.
    reads
        Key of the other ad's attribute when the part is that attribute alone; None otherwise.

    Attributes
    ----------
    is_constant
        Whether the value is the same for every other ad.
    value
        The constant; None has no meaning unless ``is_constant``.
    """

    __slots__ = ("is_constant", "reads", "run", "value")

    def __init__(self, run: Run, *, reads: str | None = None) -> None:
        self.run = run
        self.is_constant = False
        self.value: Value = None
        self.reads = reads


def _constant(value: Value) -> CompiledNode:
    part = CompiledNode(lambda target: value)
    part.is_constant = True
    part.value = value
    return part


class ExpressionCompiler:
    """
    Compiles expressions of one ad into functions of the other ad.

    Parameters
    ----------
    my
        The ad that the expression belongs to.
    """

    def __init__(self, my: Ad) -> None:
        self._my = my
        self._within: tuple[str, ...] = ()  # attributes whose expressions we are in
        self._depth = 0
        self._inlined = 0

    def compile(self, node: ExpressionNode) -> CompiledNode:
        """Compile a node that stands directly in the own ad, not in a nested ad."""
        match node:
            case Literal(value):
                return _constant(value)
            case AttributeReference():
                return self._name(node)
            case UnaryOperation(sign, operand):
                return self._applied(UNARY[sign], [self.compile(operand)])
            case BinaryOperation(sign, left, right):
                return self._binary(sign, self.compile(left), self.compile(right))
            case LogicalChain(sign, operands):
                return self._chain(sign == "||", [self.compile(part) for part in operands])
            case ConditionalOperation(test, then, otherwise):
                return self._choice(test, then, otherwise)
            case FunctionCall(name, arguments):
                return self._call(lower(name), arguments)
            case ExpressionList(items):
                return self._applied(lambda *values: values, [self.compile(i) for i in items])
        return self._interpreted(node)

    def _interpreted(self, node: ExpressionNode) -> CompiledNode:
        my = self._my
        # The interpreter must know in whose expressions it begins: an attribute that leads back
        # to one of them is undefined, as if the whole had been interpreted.
        busy = frozenset((id(my), key) for key in self._within)
        if not references(Expression(node), my):
            return _constant(value_of(node, matched_scope(my, None), EvaluationState(busy)))
        return CompiledNode(
            lambda target: value_of(node, matched_scope(my, target), EvaluationState(busy))
        )

    def _name(self, node: AttributeReference) -> CompiledNode:
        key = lower(node.name)
        match home_of(node, self._my.values_by_key):
            case "own":
                return self._own(node, key)
            case "other":
                return self._read(node, key)
        return self._interpreted(node)

    def _own(self, node: AttributeReference, key: str) -> CompiledNode:
        """Compile an attribute of the own ad in place of the name."""
        stored = self._my.values_by_key[key]
        if type(stored) in PLAIN:
            return _constant(stored)
        if not isinstance(stored, Expression):
            return self._interpreted(node)
        if key in self._within:
            return _constant(UNDEFINED)
        depth = stored.root.depth
        self._inlined += 1
        # Attributes that name each other twice would double with every level; beyond these limits
        # the interpreter follows them, and counts.
        if self._depth + depth > _DEEPEST_INLINED or self._inlined > _MOST_INLINED:
            return self._interpreted(node)
        outside = self._within
        self._within = (*outside, key)
        self._depth += depth
        try:
            return self.compile(stored.root)
        finally:
            self._within = outside
            self._depth -= depth

    def _read(self, node: AttributeReference, key: str) -> CompiledNode:
        """Read an attribute of the other ad; evaluate the attribute if an expression."""
        evaluated = self._evaluated(node)

        def run(target: Ad) -> Value:
            value = target.values_by_key.get(key, UNDEFINED)
            # The other ad may hold an expression under this name, which only the interpreter can
            # tell in its scope.
            return value if type(value) in PLAIN else evaluated(target)

        return CompiledNode(run, reads=key)

    def _evaluated(self, node: ExpressionNode) -> Run:
        my = self._my
        busy = frozenset((id(my), key) for key in self._within)
        return lambda target: value_of(node, matched_scope(my, target), EvaluationState(busy))

    def _applied(self, function: Callable[..., Value], parts: list[CompiledNode]) -> CompiledNode:
        """Apply a function to compiled parts; at once, if all parts are constant."""
        if all(part.is_constant for part in parts):
            return _constant(function(*(part.value for part in parts)))
        runs = [part.run for part in parts]
        if len(runs) == 1:
            (only,) = runs
            return CompiledNode(lambda target: function(only(target)))
        if len(runs) == 2:
            one, other = runs
            return CompiledNode(lambda target: function(one(target), other(target)))
        return CompiledNode(lambda target: function(*[run(target) for run in runs]))

    def _binary(self, sign: str, left: CompiledNode, right: CompiledNode) -> CompiledNode:
        if sign in COMPARISONS:
            if right.is_constant and left.reads:
                return _compared(sign, left, right.value)
            if left.is_constant and right.reads:
                return _compared(_SWAPPED[sign], right, left.value)
        return self._applied(BINARY[sign], [left, right])

    def _chain(self, decisive: bool, parts: list[CompiledNode]) -> CompiledNode:
        # An operand that decides nothing may go, as long as one is left to be judged.
        kept = [p for p in parts if not (p.is_constant and truth(p.value) is not decisive
                                         and truth(p.value) in (True, False))]  # fmt: skip
        if not kept:
            return _constant(not decisive)
        if all(part.is_constant for part in kept):
            return _constant(_judged(decisive, (part.value for part in kept)))
        runs = tuple(part.run for part in kept)
        usual = not decisive

        def run(target: Ad) -> Value:
            result: Value = usual
            for operand in runs:
                found = operand(target)
                # Identity is enough, and fast: true and false are one object each; all else is
                # judged below.
                if found is usual:
                    continue
                if found is decisive:
                    return decisive
                found = truth(found)
                if found is decisive or found is ERROR:
                    return found
                if found is UNDEFINED:
                    result = UNDEFINED
            return result

        return CompiledNode(run)

    def _choice(
        self, test: ExpressionNode, then: ExpressionNode | None, otherwise: ExpressionNode
    ) -> CompiledNode:
        judged = self.compile(test)
        default = self.compile(otherwise)
        if then is None:
            if judged.is_constant:
                return default if judged.value is UNDEFINED else judged
            found_of, default_of = judged.run, default.run

            def elvis(target: Ad) -> Value:
                found = found_of(target)
                return default_of(target) if found is UNDEFINED else found

            return CompiledNode(elvis)
        chosen = self.compile(then)
        if judged.is_constant:
            found = truth(judged.value)
            return chosen if found is True else default if found is False else _constant(found)
        test_of, chosen_of, other_of = judged.run, chosen.run, default.run

        def run(target: Ad) -> Value:
            found = truth(test_of(target))
            if found is True:
                return chosen_of(target)
            return other_of(target) if found is False else found

        return CompiledNode(run)

    def _call(self, key: str, arguments: tuple[ExpressionNode, ...]) -> CompiledNode:
        if key == "ifthenelse":
            test, then, otherwise = arguments
            return self._choice(test, then, otherwise)
        parts = [self.compile(part) for part in arguments]
        if key == "member" and parts[0].is_constant and type(parts[0].value) is str:
            return _membership(parts[0].value, parts[1])
        return self._applied(FUNCTIONS[key], parts)


def _judged(decisive: bool, values: Any) -> Value:
    result: Value = not decisive
    for value in values:
        found = truth(value)
        if found is decisive or found is ERROR:
            return found
        if found is UNDEFINED:
            result = UNDEFINED
    return result


def _compared(sign: str, part: CompiledNode, constant: Value) -> CompiledNode:
    """
    Compile the comparison of an attribute of the other ad, on the left, with a constant.

    Strings (``==``), and numbers that need no conversion, are compared directly; everything
    else goes to the general operator, which is slower.
    """
    compare, slow, read = COMPARISONS[sign], BINARY[sign], part.run
    assert part.reads is not None
    key = part.reads
    kind = type(constant)
    if kind is str and sign == "==":
        wanted, length = lower(constant), len(constant)

        def run(target: Ad) -> Value:
            value = target.values_by_key.get(key, UNDEFINED)
            if type(value) is str:
                return value == constant or (len(value) == length and lower(value) == wanted)
            return slow(read(target), constant)

    elif kind is int or kind is float:
        as_real = float(constant)

        def run(target: Ad) -> Value:
            value = target.values_by_key.get(key, UNDEFINED)
            if type(value) is kind:
                return compare(value, constant)
            # An integer beside a real constant takes the slow way, which converts it as the
            # language says. A boolean does, too: `type` tells it from an integer, `isinstance`
            # would not.
            if type(value) is float:
                return compare(value, as_real)
            return slow(read(target), constant)

    else:

        def run(target: Ad) -> Value:
            return slow(read(target), constant)

    return CompiledNode(run)


def _membership(text: str, items: CompiledNode) -> CompiledNode:
    """Whether a constant string is in a list."""
    if items.is_constant:
        return _constant(FUNCTIONS["member"](text, items.value))
    wanted, slow, run_items = lower(text), FUNCTIONS["member"], items.run

    def run(target: Ad) -> Value:
        found = run_items(target)
        return wanted in folded(found) if type(found) is tuple else slow(text, found)

    return CompiledNode(run)
