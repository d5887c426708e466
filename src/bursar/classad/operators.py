"""
Values of the language, and what its operators make of them.

A list is a tuple here, an ad a :class:`~bursar.classad.evaluation.AdScope`: both fit no
operator but selection, subscript, ``=?=`` and ``=!=``. All other operators are strict:
an error makes an error, else undefined makes undefined.
"""

import math
import operator
import string
from collections.abc import Callable
from typing import Any, Final, final

# Values of the language, and how strings are compared.


@final
class Exceptional:
    """
    The two values that stand for no value: :data:`UNDEFINED` and :data:`ERROR`.

    Both are false in Python, so that ``if requirement(ad)`` holds for neither.
    """

    __slots__ = ("word",)

    def __init__(self, word: str) -> None:
        self.word = word

    def __repr__(self) -> str:
        return self.word.upper()

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> str:
        return self.word.upper()


UNDEFINED: Final = Exceptional("undefined")
"""Value of a missing attribute, and of operations on one."""

ERROR: Final = Exceptional("error")
"""Value of an operation on operands that do not fit, and of operations on an error."""

MOST = 2**63 - 1
"""Largest integer; the smallest is ``-MOST - 1``."""

_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_UPPER = str.maketrans(string.ascii_lowercase, string.ascii_uppercase)


def lower(text: str) -> str:
    """Return the text with A to Z in lower case and nothing else changed, as in C."""
    return text.lower() if text.isascii() else text.translate(_LOWER)


def upper(text: str) -> str:
    """The text with a to z in upper case, and nothing else changed."""
    return text.upper() if text.isascii() else text.translate(_UPPER)


def fits(number: int) -> bool:
    """Whether an integer is one of the language, which has 64 bits."""
    return -MOST - 1 <= number <= MOST


# Semantics of the operators.

Value = Any
"""A value of the language: a Python bool, int, float, str or tuple, a scope, or no value."""

Operator = Callable[[Value, Value], Value]

_NUMBERS = frozenset({bool, int, float})
_BITS = 64


def truth(value: Value) -> Value:
    """``True``, ``False``, ``UNDEFINED`` or ``ERROR``: what a test makes of a value."""
    # By identity, since 1 == True in Python.
    if value is True or value is False:
        return value
    if type(value) is int or type(value) is float:
        return value != 0
    return UNDEFINED if value is UNDEFINED else ERROR


def misfit(left: Value, right: Value) -> Value:
    """Return a strict operator's result for operands that are no values or do not fit it."""
    if left is ERROR or right is ERROR:
        return ERROR
    return UNDEFINED if left is UNDEFINED or right is UNDEFINED else ERROR


def real(value: float) -> Value:
    """Return a real result; positive infinity is an error, as in HTCondor."""
    return ERROR if value == math.inf else value


def divided(left: float, right: float) -> float:
    """Return the quotient of reals by the rules of IEEE 754."""
    if right != 0:
        return left / right
    if left == 0 or math.isnan(left):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1.0, right)


def _whole(number: int) -> Value:
    return number if fits(number) else ERROR


def _quotient(left: int, right: int) -> Value:
    """Divide integers, rounding towards zero as C does; by zero it is an error."""
    if right == 0:
        return ERROR
    # On absolute values: Python's // rounds down, C towards zero; and a detour over floats would
    # lose digits beyond 53 bits.
    quotient = abs(left) // abs(right)
    return _whole(quotient if (left < 0) == (right < 0) else -quotient)


def _remainder(left: int, right: int) -> Value:
    """Return the remainder with the sign of the left operand; an error for division by zero."""
    if right == 0:
        return ERROR
    remainder = abs(left) % abs(right)
    return -remainder if left < 0 else remainder


def _arithmetic(
    whole: Callable[[int, int], Value], reals: Callable[[float, float], Value]
) -> Operator:
    """
    Make an operator on values: ``whole`` for integers, ``reals`` once one of the two is real.

    Booleans count as integers; of other kinds the result is that of :func:`misfit`.
    """

    def apply(left: Value, right: Value) -> Value:
        kinds = (type(left), type(right))
        if kinds == (float, float):
            return reals(left, right)
        if kinds[0] not in _NUMBERS or kinds[1] not in _NUMBERS:
            return misfit(left, right)
        if float in kinds:
            return reals(float(left), float(right))
        return whole(int(left), int(right))

    return apply


def _comparison(compare: Operator) -> Operator:
    def apply(left: Value, right: Value) -> Value:
        one, other = type(left), type(right)
        if one is str and other is str:
            return compare(lower(left), lower(right))
        if one not in _NUMBERS or other not in _NUMBERS:
            return misfit(left, right)
        if one is float or other is float:
            return compare(float(left), float(right))
        return compare(int(left), int(right))

    return apply


def _bitwise(combine: Callable[[int, int], Value]) -> Operator:
    def apply(left: Value, right: Value) -> Value:
        if type(left) is int and type(right) is int:
            return combine(left, right)
        return misfit(left, right)

    return apply


def _signed(number: int) -> int:
    """The lowest 64 bits as an integer with a sign."""
    number &= 2 * MOST + 1
    return number if number <= MOST else number - 2 * MOST - 2


def _shift(combine: Callable[[int, int], int]) -> Callable[[int, int], Value]:
    return lambda left, right: combine(left, right) if 0 <= right < _BITS else ERROR


def is_same(left: Value, right: Value) -> Value:
    """``=?=``: of one kind and the same; never undefined. Two lists, or two ads, are an error."""
    kind = type(left)
    if kind is not type(right):
        return False
    if kind is str or kind in _NUMBERS:
        return left == right
    return ERROR if left is not UNDEFINED and left is not ERROR else left is right


def _is_not_same(left: Value, right: Value) -> Value:
    same = is_same(left, right)
    return ERROR if same is ERROR else not same


def _remainder_of_reals(left: float, right: float) -> Value:
    return ERROR


COMPARISONS: dict[str, Operator] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
"""How each comparison compares two numbers, or two strings in lower case."""

BINARY: dict[str, Operator] = {
    **{sign: _comparison(compare) for sign, compare in COMPARISONS.items()},
    "=?=": is_same,
    "=!=": _is_not_same,
    "+": _arithmetic(lambda a, b: _whole(a + b), lambda a, b: real(a + b)),
    "-": _arithmetic(lambda a, b: _whole(a - b), lambda a, b: real(a - b)),
    "*": _arithmetic(lambda a, b: _whole(a * b), lambda a, b: real(a * b)),
    "/": _arithmetic(_quotient, lambda a, b: real(divided(a, b))),
    "%": _arithmetic(_remainder, _remainder_of_reals),
    # Booleans are no operands of these, other than of arithmetic.
    "&": _bitwise(operator.and_),
    "|": _bitwise(operator.or_),
    "^": _bitwise(operator.xor),
    "<<": _bitwise(_shift(lambda a, b: _signed(a << b))),
    ">>": _bitwise(_shift(operator.rshift)),
    ">>>": _bitwise(_shift(lambda a, b: _signed((a & (2 * MOST + 1)) >> b))),
}
"""The operators that evaluate both operands."""


def _negative(value: Value) -> Value:
    if type(value) is int:
        return _whole(-value)
    return -value if type(value) is float else misfit(value, value)


def _positive(value: Value) -> Value:
    return value if type(value) in (int, float) else misfit(value, value)


def _inverted(value: Value) -> Value:
    return ~value if type(value) is int else misfit(value, value)


def _negated(value: Value) -> Value:
    found = truth(value)
    return not found if found is True or found is False else found


UNARY: dict[str, Callable[[Value], Value]] = {
    "-": _negative,
    "+": _positive,
    "~": _inverted,
    "!": _negated,
}
"""The operators of one operand."""
