"""
Holds values of many ads as arrays, and applies operators to whole columns.

Numbers are held as reals, so integers here are those below 2^53; a row that leaves them,
or holds what has no array, is said to be *odd* and is left to the compiled functions.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bursar.classad.operators import COMPARISONS, ERROR, UNDEFINED, lower

Kinds = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

UNDEFINED_KIND, ERROR_KIND, BOOL, INT, REAL, STRING, LIST, ODD = range(8)

EXACT = 2.0**53
"""Integers below this are exact as reals."""


class StringPool:
    """
    Strings by number, so that equal ones are equal numbers.

    Lists are kept as well, beside the strings.
    """

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._lists: dict[object, int] = {}
        self._strings: list[str] = []
        self._order: Codes | None = None

    def code(self, value: str) -> int:
        """The number of a string."""
        found = self._codes.get(value)
        if found is None:
            found = self._codes[value] = len(self._strings)
            self._strings.append(value)
            # A new string may come between others.
            self._order = None
        return found

    def list_code(self, value: tuple[Any, ...]) -> int:
        """A number for a list; lists whose items differ in kind alone have others."""
        plain = all(type(item) is str for item in value)
        # Python takes 1, 1.0 and True for equal; their texts differ.
        return self._lists.setdefault(value if plain else repr(value), len(self._lists))

    @property
    def order(self) -> Codes:
        """Place of each string among all when upper and lower case are the same."""
        if self._order is None:
            folded = [lower(text) for text in self._strings]
            places = {text: place for place, text in enumerate(sorted(set(folded)))}
            self._order = np.array([places[text] for text in folded], dtype=np.int64)
        return self._order


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """
    One value for each ad; arrays of one element stand for the same value everywhere.

    Parameters
    ----------
    kinds
        Kind of each value.
    numbers
        Number of each value; 0 or 1 for a boolean.
    codes
        Number in the pool, for strings and lists.
    kind
        The kind of all, where they are of one; None otherwise.
    """

    kinds: Kinds
    numbers: Numbers
    codes: Codes
    kind: int | None = None

    def is_kind(self, *kinds: int) -> bool:
        """Whether all values are of one of these kinds, as far as is known at once."""
        return self.kind is not None and self.kind in kinds


_NO_CODES = np.zeros(1, dtype=np.int64)


def booleans(values: Mask) -> Column:
    """A column of truth values."""
    return Column(np.full(1, BOOL, dtype=np.uint8), values.astype(np.float64), _NO_CODES, BOOL)


def encoded(values: Iterable[Any], pool: StringPool) -> Column:
    """Return values as a column; one that has no array, as a nested ad, gets the kind ``ODD``."""
    kinds, numbers, codes = [], [], []
    for value in values:
        kind, number, code = _encoded(value, pool)
        kinds.append(kind)
        numbers.append(number)
        codes.append(code)
    column = np.array(kinds, dtype=np.uint8)
    only = kinds[0] if kinds and (column == kinds[0]).all() else None
    return Column(column, np.array(numbers), np.array(codes, dtype=np.int64), only)


def _encoded(value: Any, pool: StringPool) -> tuple[int, float, int]:
    kind = type(value)
    if kind is str:
        return STRING, 0.0, pool.code(value)
    if kind is bool:
        return BOOL, float(value), 0
    if kind is int:
        return (INT, float(value), 0) if abs(value) < EXACT else (ODD, 0.0, 0)
    if kind is float:
        return REAL, value, 0
    if kind is tuple:
        return LIST, 0.0, pool.list_code(value)
    if value is UNDEFINED:
        return UNDEFINED_KIND, 0.0, 0
    return (ERROR_KIND, 0.0, 0) if value is ERROR else (ODD, 0.0, 0)


def _numeric(kinds: Kinds) -> Mask:
    found: Mask = (kinds >= BOOL) & (kinds <= REAL)
    return found


def _strict(left: Kinds, right: Kinds) -> Kinds:
    """Return the kind of a strict operator's result for operands that do not fit."""
    error = (left == ERROR_KIND) | (right == ERROR_KIND)
    missing = (left == UNDEFINED_KIND) | (right == UNDEFINED_KIND)
    return np.where(~error & missing, UNDEFINED_KIND, ERROR_KIND).astype(np.uint8)


def compared(sign: str, left: Column, right: Column, pool: StringPool) -> Column:
    """Evaluate one of ``==``, ``!=``, ``<``, ``<=``, ``>``, ``>=``."""
    compare = COMPARISONS[sign]
    if left.is_kind(BOOL, INT, REAL) and right.is_kind(BOOL, INT, REAL):
        return booleans(compare(left.numbers, right.numbers))
    if left.is_kind(STRING) and right.is_kind(STRING):
        return booleans(compare(pool.order[left.codes], pool.order[right.codes]))
    with_numbers = _numeric(left.kinds) & _numeric(right.kinds)
    with_strings = (left.kinds == STRING) & (right.kinds == STRING)
    found = compare(left.numbers, right.numbers)
    if with_strings.any():
        order = pool.order
        # Codes of lists are no strings; what they compare to is not used.
        one = order[np.minimum(left.codes, len(order) - 1)]
        other = order[np.minimum(right.codes, len(order) - 1)]
        found = np.where(with_strings, compare(one, other), found)
    fits = with_numbers | with_strings
    kinds = np.where(fits, BOOL, _strict(left.kinds, right.kinds)).astype(np.uint8)
    return Column(kinds, (found & fits).astype(np.float64), _NO_CODES)


def identical(left: Column, right: Column) -> tuple[Column, Mask]:
    """Evaluate ``=?=``; return the column, and the rows in error (two lists)."""
    same = (
        (left.kinds == right.kinds) & (left.numbers == right.numbers) & (left.codes == right.codes)
    )
    error = (left.kinds == right.kinds) & (left.kinds == LIST)
    kinds = np.where(error, ERROR_KIND, BOOL).astype(np.uint8)
    return Column(kinds, (same & ~error).astype(np.float64), _NO_CODES), error


def computed(sign: str, left: Column, right: Column) -> tuple[Column, Mask]:
    """Evaluate ``+``, ``-``, ``*``, ``/`` or ``%``; return the column and the odd rows."""
    kinds = np.maximum(left.kinds, right.kinds)
    kinds = np.maximum(kinds, INT)  # booleans count as integers
    fits = _numeric(left.kinds) & _numeric(right.kinds)
    whole = kinds == INT
    with np.errstate(all="ignore"):
        if sign in "+-*":
            found = {"+": np.add, "-": np.subtract, "*": np.multiply}[sign](
                left.numbers, right.numbers
            )
            odd = fits & whole & (np.abs(found) >= EXACT)
        else:
            found = np.divide(left.numbers, right.numbers)
            odd = np.zeros(1, dtype=bool)
            whole_found = _divided(sign, left.numbers, right.numbers)
            found = np.where(whole, whole_found, found)
            by_zero = whole & (right.numbers == 0)
            fits = fits & ~by_zero & (whole | (sign == "/"))
    fits = fits & ~(~whole & (found == np.inf))
    kinds = np.where(fits, kinds, _strict(left.kinds, right.kinds)).astype(np.uint8)
    # Adding zero makes 0 of minus zero, which integers do not have.
    found = np.where(whole, found + 0.0, found)
    return Column(kinds, np.where(fits, found, 0.0), _NO_CODES), odd


def _divided(sign: str, left: Numbers, right: Numbers) -> Numbers:
    """Quotient or remainder of integers below 2^53, towards zero."""
    remainder = np.fmod(left, np.where(right == 0, 1.0, right))
    if sign == "%":
        return remainder
    # What is left is a multiple, so the division is exact.
    return (left - remainder) / np.where(right == 0, 1.0, right)


def negated(column: Column) -> tuple[Column, Mask]:
    """Return the column with unary minus applied, and the odd rows, of which there are none."""
    fits = (column.kinds == INT) | (column.kinds == REAL)
    kinds = np.where(fits, column.kinds, _strict(column.kinds, column.kinds)).astype(np.uint8)
    # An integer has no minus zero, and what is no number has 0, by which errors are the same.
    found = np.where(column.kinds == INT, 0.0 - column.numbers, -column.numbers)
    found = np.where(fits, found, 0.0)
    kind = column.kind if column.is_kind(INT, REAL) else None
    return Column(kinds, found, _NO_CODES, kind), np.zeros(1, dtype=bool)


def judged(column: Column) -> tuple[Mask, Mask, Mask]:
    """Return the rows where a test is true, false and undefined; others are errors."""
    numeric = _numeric(column.kinds)
    holds = column.numbers != 0
    return numeric & holds, numeric & ~holds, column.kinds == UNDEFINED_KIND


def from_judgement(holds: Mask, fails: Mask, missing: Mask) -> Column:
    """Return a column of true, false and undefined; all other rows are errors."""
    kinds = np.where(holds | fails, BOOL, np.where(missing, UNDEFINED_KIND, ERROR_KIND)).astype(
        np.uint8
    )
    return Column(kinds, holds.astype(np.float64), _NO_CODES)


def chosen(where: Mask, one: Column, other: Column) -> Column:
    """Values of one column where a mask holds, else of the other."""
    return Column(
        np.where(where, one.kinds, other.kinds).astype(np.uint8),
        np.where(where, one.numbers, other.numbers),
        np.where(where, one.codes, other.codes),
        one.kind if one.kind == other.kind else None,
    )
