"""
The functions of the language, on values that have been evaluated.

Differences from HTCondor are in ``docs/reference/classad.md``; mostly they are places
where HTCondor returns an integer that has overflowed, and these return an error.
"""

import functools
import math
import operator
import re
from collections.abc import Callable
from typing import Any

from bursar.classad.operators import (
    BINARY,
    ERROR,
    UNDEFINED,
    Value,
    fits,
    is_same,
    lower,
    misfit,
    real,
    truth,
    upper,
)
from bursar.classad.patterns import matched, text_of

# Functions of strings that hold lists, as ``"atlas, cms"``.

SEPARATORS = " ,"

SEPARATORS_OF_TWO = " ,\t\r\n"
"""Separators, unless others are given, where two texts are held against each other."""


def _items(text: str, separators: str = SEPARATORS) -> list[str]:
    """Return the non-empty parts between separators, stripped of spaces."""
    parts = re.split(f"[{re.escape(separators)}]", text) if separators else [text]
    return [part for part in (part.strip() for part in parts) if part]


def _split(text: Value, separators: Value = SEPARATORS) -> Value:
    """Split a text at separators; empty parts are dropped."""
    if type(text) is not str or type(separators) is not str:
        return ERROR
    return tuple(_items(text, separators))


def _are_strings(*values: Value) -> bool:
    return all(type(value) is str for value in values)


def _of_two_lists(decide: Callable[[str, str, str], bool]) -> Callable[..., Value]:
    """
    Make a function of two strings and separators, where undefined stands for the empty string.

    Undefined separators are the usual ones. Two undefined strings make undefined, and anything
    else that is no string an error.
    """

    def apply(one: Value, other: Value, separators: Value = UNDEFINED) -> Value:
        if any(type(v) is not str and v is not UNDEFINED for v in (one, other, separators)):
            return ERROR
        if one is UNDEFINED and other is UNDEFINED:
            return UNDEFINED
        return decide(
            "" if one is UNDEFINED else one,
            "" if other is UNDEFINED else other,
            SEPARATORS_OF_TWO if separators is UNDEFINED else separators,
        )

    return apply


def _is_member(change: Callable[[str], str]) -> Callable[..., Value]:
    def decide(value: str, items: str, separators: str) -> bool:
        return change(value) in map(change, _items(items, separators))

    return _of_two_lists(decide)


def _is_subset(change: Callable[[str], str]) -> Callable[..., Value]:
    """Nothing at all is a subset of every list; blanks and separators alone are of none."""

    def decide(some: str, items: str, separators: str) -> bool:
        parts = _items(some, separators)
        there = {change(item) for item in _items(items, separators)}
        return not some or (bool(parts) and all(change(part) in there for part in parts))

    return _of_two_lists(decide)


def _meet(one: Value, other: Value, separators: Value = SEPARATORS) -> Value:
    given = (one, other, separators)
    if not _are_strings(*given):
        return UNDEFINED if UNDEFINED in given and ERROR not in given else ERROR
    return not {*_items(one, separators)}.isdisjoint(_items(other, separators))


def _string_list_size(items: Value, separators: Value = SEPARATORS) -> Value:
    return len(_items(items, separators)) if _are_strings(items, separators) else ERROR


def _of_numbers_in_string(reduce: Callable[[list[Any]], Value]) -> Callable[..., Value]:
    """A function of the list's numbers: integers if all are, else reals."""

    def apply(items: Value, separators: Value = SEPARATORS) -> Value:
        if not _are_strings(items, separators):
            return ERROR
        parts = _items(items, separators)
        try:
            numbers = [float(part) for part in parts]
        except ValueError:
            return ERROR
        found = reduce(numbers)
        whole = all(re.fullmatch(r"[+-]?\d{1,15}", part, re.ASCII) for part in parts)
        return int(found) if parts and whole and found is not ERROR else found

    return apply


def _string_list_average(numbers: list[Any]) -> Value:
    return real(sum(numbers) / len(numbers)) if numbers else 0.0


def _regexp_member(
    pattern: Value, items: Value, separators: Value = SEPARATORS, options: Value = ""
) -> Value:
    if not _are_strings(pattern, items, separators, options):
        return ERROR
    if matched(pattern, "", options) is None:
        return ERROR
    parts = _items(items, separators)
    return any(matched(pattern, part, options) for part in parts) if parts else UNDEFINED


STRING_LISTS: dict[str, Callable[..., Value]] = {
    "split": _split,
    "stringlistmember": _is_member(str),
    "stringlistimember": _is_member(lower),
    "stringlistsize": _string_list_size,
    "stringlistsum": _of_numbers_in_string(lambda numbers: real(float(sum(numbers)))),
    "stringlistavg": _of_numbers_in_string(_string_list_average),
    "stringlistmin": _of_numbers_in_string(lambda numbers: min(numbers, default=UNDEFINED)),
    "stringlistmax": _of_numbers_in_string(lambda numbers: max(numbers, default=UNDEFINED)),
    "stringlistsintersect": _meet,
    "stringlistsubsetmatch": _is_subset(str),
    "stringlistisubsetmatch": _is_subset(lower),
    "stringlist_regexpmember": _regexp_member,
}
"""Functions by name, in lower case."""


Function = Callable[..., Value]

_equal = BINARY["=="]
_NUMBERS = (bool, int, float)


def _is(*kinds: type) -> Function:
    return lambda value: type(value) in kinds


def _if_then_else(test: Value, then: Value, otherwise: Value) -> Value:
    chosen = truth(test)
    return then if chosen is True else otherwise if chosen is False else chosen


def member(value: Value, items: Value) -> Value:
    """Whether ``==`` holds between the value and one of the items."""
    if value is UNDEFINED or items is UNDEFINED:
        return UNDEFINED
    if type(items) is not tuple or type(value) not in (bool, int, float, str):
        return ERROR
    if type(value) is str:
        return lower(value) in folded(items)
    return any(_equal(value, item) is True for item in items)


@functools.lru_cache(maxsize=65_536)
def folded(items: tuple[Value, ...]) -> frozenset[str]:
    """The strings of a list in lower case. Remembered: sites publish the same lists."""
    return frozenset(lower(item) for item in items if type(item) is str)


def _identical_member(value: Value, items: Value) -> Value:
    if items is UNDEFINED:
        return UNDEFINED
    if type(items) is not tuple or type(value) is tuple or _is_ad(value):
        return ERROR
    return any(is_same(value, item) is True for item in items)


def _compared(decided: bool) -> Function:
    """
    Make ``anyCompare`` (``decided`` true) or ``allCompare`` (false) of a sign, a list and a value.

    The first item whose comparison with the value decides, or is an error, gives the result.
    """

    def apply(sign: Value, items: Value, value: Value) -> Value:
        if type(sign) is not str:
            return misfit(sign, sign)
        if sign not in _COMPARING:
            return ERROR
        if type(items) is not tuple:
            return misfit(items, items)
        compare = BINARY[{"is": "=?=", "isnt": "=!="}.get(sign, sign)]
        for item in items:
            found = compare(item, value)
            if found is ERROR:
                return ERROR
            if (found is True) is decided:
                return decided
        return not decided

    return apply


_COMPARING = ("<", "<=", "==", "!=", ">=", ">", "is", "isnt")


def _size(value: Value) -> Value:
    if type(value) in (tuple, str):
        return len(value)
    return len(value.ad) if _is_ad(value) else misfit(value, value)


def _is_ad(value: Value) -> bool:
    return hasattr(value, "ad")


def _of_numbers(reduce: Callable[[list[Any]], Value]) -> Function:
    """A function of a list's numbers; undefined items are left out."""

    def apply(items: Value) -> Value:
        if type(items) is not tuple:
            return misfit(items, items)
        numbers = [item for item in items if item is not UNDEFINED]
        return reduce(numbers) if all(type(x) in _NUMBERS for x in numbers) else ERROR

    return apply


def _sum(numbers: list[Any]) -> Value:
    return functools.reduce(BINARY["+"], numbers) if numbers else 0


def _average(numbers: list[Any]) -> Value:
    if not numbers:
        return 0
    # sum() begins at 0, to which -0.0 would add up as 0.0.
    return BINARY["/"](float(functools.reduce(operator.add, numbers)), len(numbers))


def _extreme(choose: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Value]:
    def reduce(numbers: list[Any]) -> Value:
        if not numbers:
            return UNDEFINED
        chosen = choose(numbers)
        if float in map(type, numbers):
            return float(chosen)
        return int(chosen) if len(numbers) > 1 else chosen

    return reduce


def _concatenated(*values: Value) -> Value:
    for value in values:
        if value is UNDEFINED or value is ERROR:
            return value
    return "".join(text_of(value) for value in values)


def _in_text(change: Callable[[str], str]) -> Function:
    def apply(value: Value) -> Value:
        return value if value is UNDEFINED or value is ERROR else change(text_of(value))

    return apply


def _ordered(change: Callable[[str], str]) -> Function:
    def apply(left: Value, right: Value) -> Value:
        if left is UNDEFINED or right is UNDEFINED:
            return UNDEFINED
        if left is ERROR or right is ERROR:
            return ERROR
        one, other = change(text_of(left)), change(text_of(right))
        return (one > other) - (one < other)

    return apply


def _part(text: Value, start: Value, length: Value = None) -> Value:
    """A negative start counts from the end; a negative length leaves so many at the end."""
    given = (text, start) if length is None else (text, start, length)
    if UNDEFINED in given:
        return UNDEFINED
    if type(text) is not str or any(type(number) is not int for number in given[1:]):
        return ERROR
    first = max(0, len(text) + start) if start < 0 else min(start, len(text))
    rest = len(text) - first
    if length is None:
        length = rest
    elif length < 0:
        length = max(0, rest + length)
    return text[first : first + length]


def _matches(pattern: Value, text: Value, options: Value = "") -> Value:
    if UNDEFINED in (pattern, text, options):
        return ERROR if ERROR in (pattern, text, options) else UNDEFINED
    if not all(type(part) is str for part in (pattern, text, options)):
        return ERROR
    found = matched(pattern, text, options)
    return ERROR if found is None else found


def _matches_any(pattern: Value, items: Value, options: Value = "") -> Value:
    given = (pattern, items, options)
    if ERROR in given or UNDEFINED in given:
        return ERROR if ERROR in given else UNDEFINED
    if type(items) is not tuple or type(pattern) is not str or type(options) is not str:
        return ERROR
    result: Value = False
    for item in items:
        found = _matches(pattern, item, options)
        if found is True or found is ERROR:
            return found
        result = UNDEFINED if found is UNDEFINED else result
    return result


_NUMBER_AT_START = re.compile(
    r"\s*([+-]?(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|inf(?:inity)?|nan))",
    re.IGNORECASE | re.ASCII,
)


def _number(value: Value) -> int | float | None:
    """A number, or the one a string begins with; None for anything else."""
    if type(value) is str:
        match = _NUMBER_AT_START.match(value)
        if match is None:
            return None
        text = match[1].lower()
        return _hexadecimal(text) if "0x" in text else float(text)
    if type(value) is bool:
        return int(value)
    return value if type(value) in (int, float) else None


def _hexadecimal(text: str) -> float:
    try:
        return float.fromhex(text)
    except OverflowError:
        return -math.inf if text.startswith("-") else math.inf


def _whole(number: float) -> Value:
    if not math.isfinite(number):
        return ERROR
    return int(number) if fits(int(number)) else ERROR


def _as_integer(value: Value) -> Value:
    if type(value) is str and re.fullmatch(r"\s*[+-]?\d{1,18}", value, re.ASCII):
        return int(value)  # without the detour over a real, which has 53 bits
    number = _number(value)
    return misfit(value, value) if number is None else _whole(number)


def _as_real(value: Value) -> Value:
    number = _number(value)
    return misfit(value, value) if number is None else float(number)


def _as_text(value: Value) -> Value:
    return value if value is UNDEFINED or value is ERROR else text_of(value)


def _as_boolean(value: Value) -> Value:
    if type(value) is str:
        return {"true": True, "false": False}.get(lower(value), UNDEFINED)
    return truth(value)


def _rounded(change: Callable[[float], float]) -> Function:
    """Make a function that rounds numbers to integers; other values, also undefined, are errors."""

    def apply(value: Value) -> Value:
        number = _number(value)
        if number is None:
            return ERROR
        return number if type(number) is int else _finite(change, number)

    return apply


def _finite(change: Callable[[float], float], number: float) -> Value:
    return _whole(change(number)) if math.isfinite(number) else ERROR


def _power(base: Value, exponent: Value) -> Value:
    if type(base) is int and type(exponent) is int and exponent >= 0:
        # More than 64 doublings leave 64 bits; Python would go on for ever.
        if abs(base) > 1 and exponent > 64:
            return ERROR
        power = int(base**exponent)
        return power if fits(power) else ERROR
    x, y = _number(base), _number(exponent)
    if x is None or y is None:
        return ERROR
    try:
        return math.pow(x, y)
    except OverflowError:
        return -math.inf if x < 0 and y % 2 == 1 else math.inf
    except ValueError:
        return math.inf if x == 0 else math.nan


def _quantized(value: Value, step: Value) -> Value:
    """Return the next multiple of the step; for a list, the first item that is large enough."""
    least = _number(value)
    if least is None:
        return ERROR
    if type(step) is tuple:
        last: Value = None
        for item in step:
            size = _number(item)
            if size is None:
                return ERROR
            if size >= least:
                return item
            last = item
        if last is None:
            return value
        step = last
    size = _number(step)
    if size is None:
        return ERROR
    if size == 0:
        return value
    if type(value) is int and type(step) is int:
        up = BINARY["/"](BINARY["-"](BINARY["+"](value, step), 1), step)
        return BINARY["*"](up, step)
    share = float(least) / float(size)
    # C rounds up to a real, which keeps the sign of zero: ceil(-0.5) is -0.0.
    up = math.copysign(math.ceil(share), share) if math.isfinite(share) else share
    return up * float(size)


FUNCTIONS: dict[str, Function] = {
    "isundefined": lambda value: value is UNDEFINED,
    "iserror": lambda value: value is ERROR,
    "isstring": _is(str),
    "isinteger": _is(int),
    "isreal": _is(float),
    "isboolean": _is(bool),
    "islist": _is(tuple),
    "isclassad": _is_ad,
    "ifthenelse": _if_then_else,
    "member": member,
    "identicalmember": _identical_member,
    "anycompare": _compared(True),
    "allcompare": _compared(False),
    "size": _size,
    "sum": _of_numbers(_sum),
    "avg": _of_numbers(_average),
    "min": _of_numbers(_extreme(min)),
    "max": _of_numbers(_extreme(max)),
    "strcat": _concatenated,
    "substr": _part,
    "toupper": _in_text(upper),
    "tolower": _in_text(lower),
    "strcmp": _ordered(lambda text: text),
    "stricmp": _ordered(lower),
    "regexp": _matches,
    "regexpmember": _matches_any,
    "int": _as_integer,
    "real": _as_real,
    "string": _as_text,
    "bool": _as_boolean,
    "floor": _rounded(math.floor),
    "ceil": _rounded(math.ceil),
    "ceiling": _rounded(math.ceil),
    "round": _rounded(round),
    "pow": _power,
    "quantize": _quantized,
    **STRING_LISTS,
}
"""Functions by name, in lower case."""
