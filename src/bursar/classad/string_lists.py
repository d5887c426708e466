"""Functions of strings that hold lists, as ``"atlas, cms"``."""

import re
from collections.abc import Callable
from typing import Any

from bursar.classad.operators import Value, real
from bursar.classad.text import matched
from bursar.classad.values import ERROR, UNDEFINED, lower

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


def _size(items: Value, separators: Value = SEPARATORS) -> Value:
    return len(_items(items, separators)) if _are_strings(items, separators) else ERROR


def _of_numbers(reduce: Callable[[list[Any]], Value]) -> Callable[..., Value]:
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


def _average(numbers: list[Any]) -> Value:
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
    "stringlistsize": _size,
    "stringlistsum": _of_numbers(lambda numbers: real(float(sum(numbers)))),
    "stringlistavg": _of_numbers(_average),
    "stringlistmin": _of_numbers(lambda numbers: min(numbers, default=UNDEFINED)),
    "stringlistmax": _of_numbers(lambda numbers: max(numbers, default=UNDEFINED)),
    "stringlistsintersect": _meet,
    "stringlistsubsetmatch": _is_subset(str),
    "stringlistisubsetmatch": _is_subset(lower),
    "stringlist_regexpmember": _regexp_member,
}
"""Functions by name, in lower case."""
