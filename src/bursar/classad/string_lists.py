"""Functions of strings that hold lists, as ``"atlas, cms"``."""

import re
from collections.abc import Callable
from typing import Any

from bursar.classad.operators import Value, misfit, real
from bursar.classad.text import matched
from bursar.classad.values import ERROR, UNDEFINED, lower

SEPARATORS = " ,"


def _items(text: str, separators: str = SEPARATORS) -> list[str]:
    """The parts between separators, without spaces around them; empty ones are none."""
    parts = re.split(f"[{re.escape(separators)}]", text) if separators else [text]
    return [part for part in (part.strip() for part in parts) if part]


def _split(text: Value, separators: Value = SEPARATORS) -> Value:
    """A run of separators is one; only a comma twice, or the like, has nothing between it."""
    if type(text) is not str or type(separators) is not str:
        return ERROR
    return tuple(_items(text, separators))


def _are_strings(*values: Value) -> bool:
    return all(type(value) is str for value in values)


def _nothing_there(value: Value, items: Value) -> Value:
    """What is undefined is in no list, and a list that is undefined has nothing."""
    if value is UNDEFINED and items is UNDEFINED:
        return UNDEFINED
    fits = all(type(part) is str or part is UNDEFINED for part in (value, items))
    return False if fits else ERROR


def _is_member(change: Callable[[str], str]) -> Callable[..., Value]:
    def apply(value: Value, items: Value, separators: Value = SEPARATORS) -> Value:
        if not _are_strings(value, items, separators):
            return _nothing_there(value, items)
        wanted = change(value)
        return any(change(item) == wanted for item in _items(items, separators))

    return apply


def _is_subset(change: Callable[[str], str]) -> Callable[..., Value]:
    def apply(some: Value, items: Value, separators: Value = SEPARATORS) -> Value:
        if not _are_strings(some, items, separators):
            return _nothing_there(some, items)
        there = {change(item) for item in _items(items, separators)}
        return all(change(item) in there for item in _items(some, separators))

    return apply


def _meet(one: Value, other: Value, separators: Value = SEPARATORS) -> Value:
    if not _are_strings(one, other, separators):
        return misfit(misfit(one, other), separators)
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
    result: Value = False
    for item in _items(items, separators):
        found = matched(pattern, item, options)
        if found is not False:
            return ERROR if found is None else True
    return result


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
"""Each function by its name in lower case."""
