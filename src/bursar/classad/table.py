"""
One expression against many ads at once.

Comparisons, arithmetic, logic and choices go over whole columns. A function, or any other
part that has no columns, is evaluated once for each combination of values that occurs:
most sites publish what others do. Rows whose attributes are expressions or ads are left
to the compiled function (:mod:`bursar.classad.compiling`), which gives the same.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bursar.classad.ad import (
    PLAIN,
    Ad,
    AttributeReference,
    BinaryOperation,
    ConditionalOperation,
    Expression,
    ExpressionNode,
    FunctionCall,
    Literal,
    LogicalChain,
    SubscriptOperation,
    UnaryOperation,
)
from bursar.classad.columns import (
    BOOL,
    ERROR_KIND,
    ODD,
    REAL,
    UNDEFINED_KIND,
    Codes,
    Column,
    Kinds,
    Mask,
    Numbers,
    StringPool,
    booleans,
    chosen,
    compared,
    computed,
    encoded,
    from_judgement,
    identical,
    judged,
    negated,
)
from bursar.classad.compiling import compiled
from bursar.classad.evaluation import EVERYTHING, followed, home_of, references
from bursar.classad.operators import COMPARISONS, UNDEFINED, Exceptional, lower


class Table:
    """
    Many ads, column by column.

    Columns are made when an expression first asks for their attribute, and kept.

    Parameters
    ----------
    ads
        In the order of the answers.
    """

    def __init__(self, ads: Sequence[Ad]) -> None:
        self._ads = list(ads)
        self._pool = StringPool()
        self._columns: dict[str, Column] = {}
        self._unique: dict[str, tuple[Codes, int]] = {}
        self._combined: dict[tuple[str, ...], tuple[Codes, Codes]] = {}
        self._results: dict[str, tuple[tuple[str, ...], Column]] = {}

    def __len__(self) -> int:
        return len(self._ads)

    @property
    def ads(self) -> Sequence[Ad]:
        """Ads with all changes made so far."""
        return self._ads

    def holds(self, expression: Expression, my: Ad) -> Mask:
        """
        Return where an expression is true.

        Parameters
        ----------
        my
            Ad to which the expression belongs.

        Returns
        -------
        ndarray of bool
            True where the value is ``true``; a number is not, nor is undefined.
        """
        column, odd = self._evaluated(_cheap_first(expression), my)
        found = np.broadcast_to((column.kinds == BOOL) & (column.numbers != 0), len(self)).copy()
        self._mend(found, odd, expression, my, lambda value: value is True)
        return found

    def values(self, expression: Expression, my: Ad) -> Numbers:
        """
        Return the value of an expression for each ad, as a number.

        Parameters
        ----------
        my
            Ad to which the expression belongs.

        Returns
        -------
        ndarray of float
            True is 1, false is 0; nan where the value is no number.
        """
        column, odd = self._evaluated(expression, my)
        numeric = (column.kinds >= BOOL) & (column.kinds <= REAL)
        found = np.broadcast_to(np.where(numeric, column.numbers, np.nan), len(self)).copy()
        self._mend(
            found, odd, expression, my,
            lambda v: float(v) if isinstance(v, bool | int | float) else np.nan,
        )  # fmt: skip
        return found

    def set(self, name: str, index: int, value: object) -> None:
        """
        Change one attribute of one ad.

        Parameters
        ----------
        name
            Name of the attribute, in any case.
        index
            Position of the ad in the table, from 0.
        value
            New value, of any type that :class:`Ad` accepts.
        """
        ad = self._ads[index] = self._ads[index].with_attribute(name, value)
        key = lower(name)
        column = self._columns.get(key)
        if column is None:
            return
        one = encoded([ad.values_by_key[key]], self._pool)
        column.kinds[index] = one.kinds[0]
        column.numbers[index] = one.numbers[0]
        column.codes[index] = one.codes[0]
        if one.kind != column.kind:
            # The column is of mixed kinds from now on, so the quick ways no longer apply.
            self._columns[key] = Column(column.kinds, column.numbers, column.codes)
        self._unique.pop(key, None)
        # Combinations are numbered by the values of all their attributes.
        self._combined = {k: v for k, v in self._combined.items() if key not in k}
        self._results = {k: v for k, v in self._results.items() if key not in v[0]}

    def column(self, key: str) -> Column:
        """Return the column of an attribute, named in lower case."""
        found = self._columns.get(key)
        if found is None:
            values = [ad.values_by_key.get(key, UNDEFINED) for ad in self._ads]
            found = self._columns[key] = encoded(values, self._pool)
        return found

    def _evaluated(self, expression: Expression, my: Ad) -> tuple[Column, Mask]:
        """Return the expression as a column, and the odd rows that the column does not cover."""
        if not self._ads:
            return booleans(np.zeros(1, dtype=bool)), np.zeros(0, dtype=bool)
        run = _TableEvaluation(self, my)
        column = run.column(expression.root)
        return column, np.broadcast_to(run.odd, len(self))

    def _mend(self, found: Any, odd: Mask, expression: Expression, my: Ad, convert: Any) -> None:
        rows = np.flatnonzero(odd)
        if len(rows):
            run = compiled(expression, my)
            for row in rows:
                found[row] = convert(run(self._ads[row]))

    def combinations(self, keys: tuple[str, ...]) -> tuple[Codes, Codes]:
        """
        The combinations of values that some attributes take; at least one attribute.

        Returns
        -------
        first
            For each combination, the first row that has it.
        which
            For each row, the number of its combination.
        """
        found = self._combined.get(keys)
        if found is None:
            which, count = self._numbered(keys[0])
            for key in keys[1:]:
                numbers, n = self._numbered(key)
                # Renumbered each time, so that products do not overflow.
                which, count = _renumbered(which * n + numbers)
            first = np.empty(count, dtype=np.int64)
            first[which[::-1]] = np.arange(len(self))[::-1]  # of several, the last one stays
            found = self._combined[keys] = first, which
        return found

    def results(self, node: ExpressionNode, keys: tuple[str, ...], count: int) -> Column:
        """
        Return the results so far of a part that reads nothing but attributes of the ads.

        Parameters
        ----------
        keys
            Attributes that the part reads, in lower case.
        count
            Number of combinations of their values.

        Returns
        -------
        Column
            Result for each combination, to be completed in place; kind ``NOT_EVALUATED``
            where there is none yet.
        """
        # The text of a node tells 1, 1.0 and true apart, which are equal in Python.
        name = repr(node)
        found = self._results.pop(name, None)
        if found is None:
            if len(self._results) >= _MOST_RESULTS:
                del self._results[next(iter(self._results))]
            found = (
                keys,
                Column(
                    np.full(count, NOT_EVALUATED, dtype=np.uint8),
                    np.zeros(count),
                    np.zeros(count, dtype=np.int64),
                ),
            )
        self._results[name] = found  # last, so that the first is the one used longest ago
        return found[1]

    def _numbered(self, key: str) -> tuple[Codes, int]:
        """The values of an attribute, numbered."""
        found = self._unique.get(key)
        if found is None:
            column = self.column(key)
            # By their bits: a NaN is then equal to itself, and 0.0 is not -0.0, by which
            # functions may differ.
            values, count = _renumbered(column.numbers.view(np.int64))
            codes = int(column.codes.max()) + 1
            mixed = (column.kinds * np.int64(count) + values) * codes + column.codes
            found = self._unique[key] = _renumbered(mixed)
        return found


def _renumbered(values: Codes) -> tuple[Codes, int]:
    """The same differences in numbers from 0 on, and how many there are."""
    unique, which = np.unique(values, return_inverse=True)
    return which.astype(np.int64), len(unique)


def _cheap_first(expression: Expression) -> Expression:
    """
    Reorder conjuncts so that whole columns come first; only where all are true is the same.

    The others are then evaluated only where these leave something open.
    """
    root = expression.root
    if not (isinstance(root, LogicalChain) and root.sign == "&&"):
        return expression
    return Expression(LogicalChain("&&", tuple(sorted(root.operands, key=_has_calls))))


def _has_calls(node: ExpressionNode) -> bool:
    return isinstance(node, FunctionCall | SubscriptOperation) or any(
        _has_calls(part) for part in node.parts
    )


_MOST_RESULTS = 64
"""Parts of expressions whose results are kept; each takes 17 bytes a combination."""

NOT_EVALUATED = 255

_MOST_INLINED = 100
_DEEPEST_INLINED = 100

_PARTS_WITHOUT_SCOPE = (
    Literal,
    FunctionCall,
    SubscriptOperation,
    UnaryOperation,
    BinaryOperation,
    LogicalChain,
    ConditionalOperation,
)
"""Nodes that name no attribute themselves and open no scope for names in their parts."""

_NOWHERE = np.zeros(1, dtype=bool)


class _TableEvaluation:
    """Evaluates one expression over a table."""

    def __init__(self, table: Table, my: Ad) -> None:
        self._table = table
        self._my = my
        self._within: tuple[str, ...] = ()  # own attributes whose expressions we are in
        self._inlined = 0
        self._depth = 0
        self._open: Mask | None = None  # rows that matter, where not all do
        self.odd: Mask = _NOWHERE

    def column(self, node: ExpressionNode) -> Column:
        """
        Return the values of a part of the expression for all ads of the table.

        What has no operator on whole columns is evaluated ad by ad. Rows that a column cannot
        hold are added to :attr:`odd`.
        """
        match node:
            case Literal(value):
                return self._constant(value)
            case AttributeReference():
                return self._name(node)
            case UnaryOperation("-", operand):
                column, odd = negated(self.column(operand))
                return self._noted(column, odd)
            case UnaryOperation("!", operand):
                holds, fails, missing = judged(self.column(operand))
                return from_judgement(fails, holds, missing)
            case BinaryOperation(sign, left, right) if sign in COMPARISONS:
                return compared(sign, self.column(left), self.column(right), self._table._pool)
            case BinaryOperation(sign, left, right) if sign in ("=?=", "=!="):
                column, error = identical(self.column(left), self.column(right))
                if sign == "=?=":
                    return column
                return from_judgement(
                    ~error & (column.numbers == 0), ~error & (column.numbers != 0), _NOWHERE
                )
            case BinaryOperation(sign, left, right) if sign in "+-*/%":
                column, odd = computed(sign, self.column(left), self.column(right))
                return self._noted(column, odd)
            case LogicalChain(sign, operands):
                return self._chain(sign == "||", operands)
            case ConditionalOperation(test, None, otherwise):
                first = self.column(test)
                return chosen(first.kinds != UNDEFINED_KIND, first, self.column(otherwise))
            case ConditionalOperation(test, ExpressionNode() as then, otherwise):
                return self._choice(test, then, otherwise)
            case FunctionCall(name, (test, then, otherwise)) if lower(name) == "ifthenelse":
                return self._choice(test, then, otherwise)
            case FunctionCall(name, (argument,)) if lower(name) == "isundefined":
                return booleans(self.column(argument).kinds == UNDEFINED_KIND)
            case FunctionCall(name, (argument,)) if lower(name) == "iserror":
                return booleans(self.column(argument).kinds == ERROR_KIND)
        return self._mapped(node)

    def _constant(self, value: bool | int | float | str | Exceptional) -> Column:
        column = encoded([value], self._table._pool)
        return self._noted(column, column.kinds == ODD)

    def _noted(self, column: Column, odd: Mask) -> Column:
        if odd.any():
            self.odd = self.odd | odd
        return column

    def _name(self, node: AttributeReference) -> Column:
        key = lower(node.name)
        match home_of(node, self._my.values_by_key):
            case "own":
                return self._own(node, key)
            case "other":
                return self._read(key)
        return self._mapped(node)

    def _read(self, key: str) -> Column:
        column = self._table.column(key)
        return column if column.is_kind(REAL) else self._noted(column, column.kinds == ODD)

    def _own(self, node: AttributeReference, key: str) -> Column:
        stored = self._my.values_by_key[key]
        if type(stored) in PLAIN and type(stored) is not tuple:
            return self._constant(stored)
        if not isinstance(stored, Expression) or key in self._within:
            return self._mapped(node)
        self._inlined += 1
        depth = stored.root.depth
        if self._inlined > _MOST_INLINED or self._depth + depth > _DEEPEST_INLINED:
            # Every row is odd, so that all are left to the compiled function, which has limits of
            # its own.
            return self._noted(self._constant(UNDEFINED), np.ones(len(self._table), dtype=bool))
        outside = self._within
        self._within = (*outside, key)
        self._depth += depth
        try:
            return self.column(stored.root)
        finally:
            self._within = outside
            self._depth -= depth

    def _chain(self, decisive: bool, operands: tuple[ExpressionNode, ...]) -> Column:
        decided: Mask = _NOWHERE
        failed: Mask = _NOWHERE
        missing: Mask = _NOWHERE
        outside = self._open
        for operand in operands:
            # What an operand says of rows that are decided does not count, and functions need not
            # be called for them.
            open_ = ~(decided | failed)
            self._open = open_ if outside is None else open_ & outside
            holds, fails, absent = judged(self.column(operand))
            decides, passes = (holds, fails) if decisive else (fails, holds)
            failed = failed | (open_ & ~(decides | passes | absent))
            missing = missing | (open_ & absent)
            decided = decided | (open_ & decides)
        self._open = outside
        left = ~(decided | failed)
        usual = left & ~missing
        holds, fails = (decided, usual) if decisive else (usual, decided)
        return from_judgement(holds, fails, left & missing)

    def _choice(
        self, test: ExpressionNode, then: ExpressionNode, otherwise: ExpressionNode
    ) -> Column:
        holds, fails, missing = judged(self.column(test))
        column = chosen(holds, self.column(then), self.column(otherwise))
        return chosen(holds | fails, column, from_judgement(_NOWHERE, _NOWHERE, missing))

    def _mapped(self, node: ExpressionNode) -> Column:
        """Evaluate a part without columns once for each combination of the values read."""
        expression = Expression(node)
        ads = self._table.ads
        if not followed(expression, self._my).isdisjoint(self._within):
            # It needs an attribute for that attribute's own value.
            return self._noted(self._constant(UNDEFINED), np.ones(len(ads), dtype=bool))
        keys = tuple(sorted(references(expression, self._my)))
        run = compiled(expression, self._my)
        if EVERYTHING in keys:
            return self._gathered([run(ad) for ad in ads])
        # Nothing of the other ads is read: one of them stands for all.
        if not keys:
            return self._gathered([run(ads[0])])
        for key in keys:
            self._read(key)
        first, which = self._table.combinations(keys)
        if self._is_about_ads_alone(node):
            return self._remembered(node, keys, run, first, which)
        if self._open is not None and not self._open.all():
            needed = np.zeros(len(first), dtype=bool)
            needed[which[np.broadcast_to(self._open, len(which))]] = True
            # All that is not needed is one combination more, evaluated or not.
            places = np.cumsum(needed) - 1
            places[~needed] = int(needed.sum())
            first, which = first[needed], places[which]
            return self._gathered([*(run(ads[row]) for row in first), UNDEFINED], which)
        return self._gathered([run(ads[row]) for row in first], which)

    def _is_about_ads_alone(self, node: ExpressionNode) -> bool:
        """Return whether a part has the same results whatever the own ad says."""
        if isinstance(node, AttributeReference):
            return home_of(node, self._my.values_by_key) == "other"
        return isinstance(node, _PARTS_WITHOUT_SCOPE) and all(
            self._is_about_ads_alone(part) for part in node.parts
        )

    def _remembered(
        self,
        node: ExpressionNode,
        keys: tuple[str, ...],
        run: Callable[[Ad], Any],
        first: Codes,
        which: Codes,
    ) -> Column:
        """Evaluate the combinations that matter and have no result in the table yet."""
        results = self._table.results(node, keys, len(first))
        missing = results.kinds == NOT_EVALUATED
        if self._open is not None and not self._open.all():
            needed = np.zeros(len(first), dtype=bool)
            needed[which[np.broadcast_to(self._open, len(which))]] = True
            missing &= needed
        places = np.flatnonzero(missing)
        if len(places):
            ads = self._table.ads
            values = [_as_stored(run(ads[row])) for row in first[places]]
            found = encoded(values, self._table._pool)
            results.kinds[places] = found.kinds
            results.numbers[places] = found.numbers
            results.codes[places] = found.codes
        kinds = results.kinds[which]
        # Rows that do not matter count as undefined.
        kinds[kinds == NOT_EVALUATED] = UNDEFINED_KIND
        column = Column(kinds, results.numbers[which], results.codes[which])
        return self._noted(column, kinds == ODD)

    def _gathered(self, values: list[Any], which: Codes | None = None) -> Column:
        column = encoded([_as_stored(value) for value in values], self._table._pool)
        odd: Mask = column.kinds == ODD
        if which is not None:
            kinds: Kinds = column.kinds[which]
            column = Column(kinds, column.numbers[which], column.codes[which], column.kind)
            odd = odd[which]
        return self._noted(column, odd)


def _as_stored(value: Any) -> Any:
    return tuple(_as_stored(item) for item in value) if type(value) is list else value
