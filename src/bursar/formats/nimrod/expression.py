"""The arithmetic after ``compute``: parsed by the grammar, evaluated without ``eval``."""

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from lark import Token, Tree

from bursar.model.errors import InputError, spelling_hint
from bursar.model.task import Value

Number = int | float

LARGEST = 2**63
"""Results are smaller than this."""

FUNCTIONS: dict[str, tuple[Callable[..., Number], int, int | None]] = {
    "abs": (abs, 1, 1),
    "ceil": (math.ceil, 1, 1),
    "cos": (math.cos, 1, 1),
    "exp": (math.exp, 1, 1),
    "float": (float, 1, 1),
    "floor": (math.floor, 1, 1),
    "int": (int, 1, 1),
    "log": (math.log, 1, 1),
    "log10": (math.log10, 1, 1),
    "max": (max, 1, None),
    "min": (min, 1, None),
    "pow": (lambda a, b: _power(a, b), 2, 2),
    "round": (round, 1, 1),
    "sin": (math.sin, 1, 1),
    "sqrt": (math.sqrt, 1, 1),
    "tan": (math.tan, 1, 1),
}
"""Functions by name, with the fewest and the most arguments; None: no limit."""


def names_in(tree: "Tree[Token]") -> list[Token]:
    """Return the parameters that an expression uses."""
    return [name for node in tree.find_data("name") for name in _tokens(node)]


def check(tree: "Tree[Token]") -> None:
    """
    Refuses functions that do not exist or are given too few or many arguments.

    Raises
    ------
    InputError
        Naming the function.
    """
    for node in tree.find_data("call"):
        name = _function(node)
        if name not in FUNCTIONS:
            raise InputError(
                f'unknown function "{name}", expected one of {", ".join(FUNCTIONS)}',
                hint=spelling_hint(name, FUNCTIONS),
            )
        _, fewest, most = FUNCTIONS[name]
        given = len(node.children) - 1
        if given < fewest or (most is not None and given > most):
            raise InputError(f'"{name}" takes {fewest} argument(s), got {given}')


def evaluate(tree: "Tree[Token]", values: Mapping[str, Value]) -> Number:
    """
    Evaluate a checked expression.

    Parameters
    ----------
    tree
        Syntax tree made by the grammar's ``expression``.
    values
        Value of every parameter named in the expression.

    Raises
    ------
    InputError
        When a value is no number, or the result is none: a division by zero,
        a root of a negative number, an overflow.
    """
    try:
        result = _evaluate(tree, values)
    except (ArithmeticError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot be computed: {error}") from None
    except RecursionError:
        raise InputError("the expression is nested too deeply") from None
    if not -LARGEST < result < LARGEST:
        raise InputError("cannot be computed: the result is out of range")
    return result


def _evaluate(node: Any, values: Mapping[str, Value]) -> Number:
    match node.data:
        case "expression":
            return _evaluate(node.children[0], values)
        case "number":
            text = str(node.children[0])
            # Whole numbers stay whole, so that job indices and counts print without a point.
            return int(text) if text.isdigit() else float(text)
        case "name":
            return _value(node.children[0], values)
        case "negative":
            return -_evaluate(node.children[0], values)
        case "call":
            function = FUNCTIONS[_function(node)][0]
            return function(*[_evaluate(child, values) for child in node.children[1:]])
    left, right = (_evaluate(child, values) for child in node.children)
    return _OPERATORS[node.data](left, right)


def _value(name: str, values: Mapping[str, Value]) -> Number:
    value = values[name]
    if isinstance(value, str):
        raise InputError(f'"{name}" is the text "{value}", expected a number')
    return value


def _divide(left: Number, right: Number) -> Number:
    """Divide; two integers without a remainder give an integer, as ``6 / 2``."""
    if isinstance(left, int) and isinstance(right, int) and right and left % right == 0:
        return left // right
    return left / right


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and exponent >= 0:
        # Refused before it is computed: 10 ** 10 ** 10 takes all memory and time, and the result
        # could not pass LARGEST.
        if abs(base) > 1 and exponent > 64:
            raise OverflowError("the power is out of range")
        return int(base**exponent)
    return math.pow(base, exponent)


_OPERATORS: dict[str, Callable[[Number, Number], Number]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": _divide,
    "remainder": operator.mod,
    "power": _power,
}


def _function(call: Any) -> str:
    return str(call.children[0])[:-1].rstrip()


def _tokens(node: "Tree[Token]") -> list[Token]:
    return [child for child in node.children if isinstance(child, Token)]
