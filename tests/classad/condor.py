"""
HTCondor's answers where the documentation says that Bursar gives others.

Each function models one point of "Where it differs from HTCondor" in
``docs/reference/classad.md``. With all of them in place the interpreter must answer every
expression as HTCondor's library does, so a difference that is not documented fails a test.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from bursar.classad import ERROR, UNDEFINED, Expression, evaluation, functions
from bursar.classad.ad import Literal, SubscriptOperation
from bursar.classad.functions import FUNCTIONS, SEPARATORS
from bursar.classad.operators import BINARY, MOST, UNARY
from bursar.classad.patterns import matched, text_of

LEAST = -MOST - 1
"""What a processor makes of a real number that is no integer of 64 bits."""

FLT_MAX, FLT_MIN = 3.4028234663852886e38, 1.1754943508222875e-38

_NUMBER = re.compile(r"[+-]?(inf(inity)?|nan|0x[0-9a-f]+|(\d+\.?\d*|\.\d+)(e[+-]?\d+)?)", re.I)


class NotComparableError(Exception):
    """
    HTCondor's answer hangs on what our values do not tell.

    Its texts of lists and ads have the items unevaluated; to ``=?=`` a list that ``split`` gave
    is of another kind than one that is written; ``MY`` in an ad within an ad, or in what such
    an ad finds around it, is now one ad and now another.
    """


def put_in_place(patch: pytest.MonkeyPatch) -> None:
    """Let the interpreter answer as HTCondor does until the patch is undone."""
    for sign in "+-*":
        patch.setitem(BINARY, sign, _wrapped(BINARY[sign], sign))
    patch.setitem(BINARY, "/", _wrapped_quotient(BINARY["/"]))
    patch.setitem(UNARY, "-", _wrapped_negative(UNARY["-"]))
    for sign in ("<<", ">>", ">>>"):
        patch.setitem(BINARY, sign, _any_shift(BINARY[sign], sign))
    for name in ("floor", "ceil", "ceiling", "round", "int"):
        patch.setitem(FUNCTIONS, name, _always_whole(FUNCTIONS[name]))
    patch.setitem(FUNCTIONS, "pow", _rounded_power(FUNCTIONS["pow"]))
    patch.setitem(FUNCTIONS, "substr", _short_substr(FUNCTIONS["substr"]))
    patch.setitem(FUNCTIONS, "anycompare", _stopping(FUNCTIONS["anycompare"]))
    patch.setitem(FUNCTIONS, "regexpmember", _lenient(FUNCTIONS["regexpmember"]))
    patch.setitem(FUNCTIONS, "split", _split)
    for sign in ("=?=", "=!="):
        patch.setitem(BINARY, sign, _not_of_lists(BINARY[sign]))
    patch.setitem(FUNCTIONS, "stringlistsintersect", _meet)
    for name, reduce in _REDUCED.items():
        patch.setitem(FUNCTIONS, name, _of_parts(reduce))
    patch.setattr(functions, "text_of", _text_of)
    patch.setitem(evaluation._EVALUATORS, SubscriptOperation, _short_index)
    patch.setattr(evaluation, "_find", _without_inner_my(evaluation._find))


Function = Callable[..., Any]


def _signed(number: int) -> int:
    return (number - LEAST) % 2**64 + LEAST


def _wrapped(usual: Function, sign: str) -> Function:
    """Integers wrap round where they leave 64 bits."""

    def apply(left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            return _signed({"+": left + right, "-": left - right, "*": left * right}[sign])
        return usual(left, right)

    return apply


def _wrapped_quotient(usual: Function) -> Function:
    """The only quotient of integers that leaves 64 bits."""
    return lambda left, right: MOST if (left, right) == (LEAST, -1) else usual(left, right)


def _wrapped_negative(usual: Function) -> Function:
    return lambda value: _signed(-value) if type(value) is int else usual(value)


def _any_shift(usual: Function, sign: str) -> Function:
    """Shifts take the lowest 6 bits of their distance; ``>>>`` by 0 makes 0 of what is below."""

    def apply(left: Any, right: Any) -> Any:
        if type(left) is not int or type(right) is not int:
            return usual(left, right)
        if sign == ">>>" and right & 63 == 0 and left < 0:
            return 0
        return usual(left, right & 63)

    return apply


def _always_whole(usual: Function) -> Function:
    """Texts are read as reals; what has no integer becomes the least one."""

    def apply(value: Any) -> Any:
        number = functions._number(value)
        if type(number) is float and type(value) in (float, str):
            if not (math.isfinite(number) and LEAST <= number < -float(LEAST)):
                return LEAST
            return usual(number)
        return usual(value)

    return apply


def _rounded_power(usual: Function) -> Function:
    """Powers of integers are worked out as reals."""

    def apply(base: Any, exponent: Any) -> Any:
        if type(base) is int and type(exponent) is int and exponent >= 0:
            found = usual(float(base), exponent)
            return int(found) if LEAST <= found < -float(LEAST) else LEAST
        return usual(base, exponent)

    return apply


def _short_substr(usual: Function) -> Function:
    """Places in texts have 32 bits."""

    def apply(text: Any, *places: Any) -> Any:
        return usual(text, *(_short(p) if type(p) is int else p for p in places))

    return apply


def _short_index(node: SubscriptOperation, *place: Any) -> Any:
    """Places in lists have 32 bits, too."""
    index = evaluation.value_of(node.index, *place)
    short = Literal(_short(index)) if type(index) is int else node.index
    return evaluation._element(SubscriptOperation(node.of, short), *place)


def _short(number: int) -> int:
    return (number + 2**31) % 2**32 - 2**31


def _without_inner_my(usual: Function) -> Function:
    def find(scope: evaluation.AdScope, key: str, state: evaluation.EvaluationState) -> Any:
        around = scope.parent
        if around is not None and key not in scope.ad.values_by_key:
            if key == "my":
                raise NotComparableError
            while around is not None:
                if isinstance(around.ad.values_by_key.get(key), Expression):
                    raise NotComparableError
                around = around.parent
        return usual(scope, key, state)

    return find


def _stopping(usual: Function) -> Function:
    """The list ends where an item compares undefined."""

    def apply(sign: Any, items: Any, value: Any) -> Any:
        if type(items) is tuple and sign not in ("is", "isnt"):
            undefined = [i for i, x in enumerate(items) if UNDEFINED in (x, value) and x != ERROR]
            if undefined and value is not ERROR:
                return usual(sign, items[: undefined[0]], value)
        return usual(sign, items, value)

    return apply


def _lenient(usual: Function) -> Function:
    """A broken pattern is in no text."""

    def apply(pattern: Any, items: Any, options: Any = "") -> Any:
        if type(pattern) is str and type(options) is str and matched(pattern, "", options) is None:
            pattern = r"\A\z."
        return usual(pattern, items, options)

    return apply


def _not_of_lists(usual: Function) -> Function:
    def apply(left: Any, right: Any) -> Any:
        if type(left) is type(right) is tuple:
            raise NotComparableError
        return usual(left, right)

    return apply


def _split(text: Any, separators: Any = ", \t") -> Any:
    """Empty parts between two of the same separator, unless a space, are parts."""
    if type(text) is not str or type(separators) is not str:
        return ERROR
    parts, part, last = [], "", ""
    for character in text:
        if character not in separators:
            part += character
            continue
        if part or last == character:
            parts.append(part)
        part = ""
        if not character.isspace():
            last = character
    return tuple([*parts, part] if part else parts)


def _meet(one: Any, other: Any, separators: Any = SEPARATORS) -> Any:
    """Blank parts are parts, which two lists may share."""
    given = (one, other, separators)
    if not all(type(text) is str for text in given):
        return UNDEFINED if UNDEFINED in given and ERROR not in given else ERROR
    return not set(_parts(one, separators)).isdisjoint(_parts(other, separators))


def _parts(text: str, separators: str) -> list[str]:
    parts = re.split(f"[{re.escape(separators)}]", text) if separators else [text]
    return [part.strip() for part in parts if part]


def _of_parts(reduce: Callable[[list[float]], Any]) -> Function:
    """A part counts by the number it begins with."""

    def apply(items: Any, separators: Any = SEPARATORS) -> Any:
        if type(items) is not str or type(separators) is not str:
            return ERROR
        parts = [part for part in _parts(items, separators) if part]
        numbers = []
        for part in parts:
            start = _NUMBER.match(part)
            if start is None:
                return ERROR
            numbers.append(functions._number(start[0]))
        found = reduce(numbers)
        if not numbers or not all(re.fullmatch(r"[+-]?\d+", part) for part in parts):
            return found
        return int(found) if LEAST <= found < -float(LEAST) else LEAST

    return apply


def _least(numbers: list[float]) -> Any:
    """The search begins at the largest real of 32 bits, and passes over what is no number."""
    found = FLT_MAX
    for number in numbers:
        found = number if number < found else found
    return found if numbers else UNDEFINED


def _greatest(numbers: list[float]) -> Any:
    """The search begins at the least positive real of 32 bits."""
    found = FLT_MIN
    for number in numbers:
        found = number if number > found else found
    return found if numbers else UNDEFINED


_REDUCED: dict[str, Callable[[list[float]], Any]] = {
    "stringlistsum": lambda numbers: float(sum(numbers)),
    "stringlistavg": lambda numbers: sum(numbers) / len(numbers) if numbers else 0.0,
    "stringlistmin": _least,
    "stringlistmax": _greatest,
}


def _text_of(value: Any) -> str:
    if (type(value) is tuple and value) or hasattr(value, "ad"):
        raise NotComparableError
    return text_of(value)
