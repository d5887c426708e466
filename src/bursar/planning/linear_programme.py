"""
Solves linear programmes for bounds; rows are added when a solution breaks one.

A bound holds to within one part in 10^6 (what the solver lets pass), which is taken off.
"""

import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import coo_array, csr_array

from bursar.planning.kernels.availability import BoolArray, FloatArray, IntArray

ROUNDS = 40
"""How often broken rows are added to the relaxed programme at most."""


MARGIN = 1e-6
"""Share that is taken off demands and bounds: more than the solver lets pass."""


NODES = 200
"""Limit on the nodes of a search tree, so that bounds seldom depend on the machine's speed."""


TREES = 4
"""Limit on search trees, for the same reason."""


_QUIET = Lock()


@dataclass(slots=True, eq=False)
class LinearProgramme:
    """
    A linear programme over columns from 0 to ``upper`` that minimises the sum of prices.

    Parameters
    ----------
    prices
        Price of one unit of each column, shape ``(n,)``.
    upper
        Greatest value of each column, shape ``(n,)``; the least is 0.
    whole
        Whether each column is a whole number, shape ``(n,)``.
    """

    prices: FloatArray
    upper: FloatArray
    whole: BoolArray
    _rows: list[csr_array] = field(default_factory=list)
    _least: list[FloatArray] = field(default_factory=list)

    def add(self, row: IntArray, column: IntArray, value: FloatArray, least: FloatArray) -> None:
        """
        Add rows that bound sums of value times column from below.

        Each row is divided by its greatest value: the solver's tolerance is absolute.

        Parameters
        ----------
        row, column, value
            Entries other than zero; rows count from 0 within this call.
        least
            Least value of each row.
        """
        shape = (len(least), len(self.prices))
        scale = np.zeros(len(least))
        np.maximum.at(scale, row, np.abs(value))
        scale[scale == 0] = 1.0
        self._rows.append(csr_array(coo_array((value / scale[row], (row, column)), shape=shape)))
        self._least.append(least / scale)

    @property
    def matrix(self) -> csr_array:
        """Coefficients of all rows, shape ``(rows, n)``."""
        parts = [coo_array(part) for part in self._rows]
        heights = np.cumsum([0, *(part.shape[0] for part in parts)])
        rows = [part.coords[0] + at for part, at in zip(parts, heights[:-1], strict=True)]
        columns = [part.coords[1] for part in parts]
        values = [part.data for part in parts]
        where = (np.concatenate(rows), np.concatenate(columns))
        return csr_array(
            coo_array((np.concatenate(values), where), shape=(heights[-1], len(self.prices)))
        )

    @property
    def least(self) -> FloatArray:
        """Least value of each row, shape ``(rows,)``."""
        return np.concatenate(self._least)

    def solve_relaxed(self, seconds: float) -> tuple[float, FloatArray | None]:
        """
        Return a bound with all columns continuous, and the solution where one was found.

        The bound is the value of the dual solution, which is a bound even if the solver
        stopped early. It is infinite when no solution exists.
        """
        matrix, least = self.matrix, self.least
        scale = self.prices.max(initial=0.0) or 1.0
        prices = self.prices / scale
        answer = linprog(
            prices,
            A_ub=-matrix,
            b_ub=-least,
            bounds=np.column_stack((np.zeros(len(prices)), self.upper)),
            method="highs",
            options={"time_limit": max(seconds, 0.01)},
        )
        if answer.status == 2:
            return np.inf, None
        if answer.status != 0:
            return 0.0, None
        dual = np.maximum(-answer.ineqlin.marginals, 0.0)
        # Weak duality with upper bounds of the columns: any non-negative dual gives a bound,
        # however exact the solver was.
        reduced = np.minimum(prices - matrix.T @ dual, 0.0)
        return float(dual @ least + reduced @ self.upper) * scale, np.asarray(answer.x)

    def solve(self, seconds: float) -> tuple[float, FloatArray | None]:
        """
        Return a bound with whole columns whole, and the best solution found in time.

        When the search is stopped early, the bound is what the search tree has proven.
        """
        scale = self.prices.max(initial=0.0) or 1.0
        with _silence_output():
            answer = milp(
                # Tolerances of the solver are absolute: prices are brought to a scale on which
                # they mean little.
                self.prices / scale * 1000,
                constraints=LinearConstraint(self.matrix, self.least, np.inf),
                integrality=self.whole.astype(np.int64),
                bounds=Bounds(np.zeros(len(self.prices)), self.upper),
                options={
                    "time_limit": max(seconds, 0.01),
                    "node_limit": NODES,
                    "mip_rel_gap": 1e-4,
                },
            )
        if answer.status == 2:
            return np.inf, None
        bound = answer.mip_dual_bound
        solution = None if answer.x is None else np.asarray(answer.x)
        if bound is None or not np.isfinite(bound):
            return 0.0, solution
        return float(bound) * scale / 1000, solution

    def best_bound(self, add_broken: Callable[[FloatArray], int], until: float) -> float:
        """
        Return the best bound found by a moment of the monotonic clock.

        Parameters
        ----------
        add_broken
            Adds the rows that a solution breaks and returns how many.
        until
            Moment, seconds of :func:`time.monotonic`.
        """
        bound = 0.0
        # Relaxed solutions are cheap, so most rows are found by them before the first tree.
        steps = [(self.solve_relaxed, ROUNDS)]
        if self.whole.any():
            steps.append((self.solve, TREES))
        for solve, rounds in steps:
            for _ in range(rounds):
                # Between solutions, too: the solver's own limit holds for one call only.
                left = until - time.monotonic()
                if left <= 0:
                    return bound
                proven, solution = solve(left)
                bound = max(bound, proven * (1 - MARGIN))
                if solution is None or not add_broken(solution):
                    break
        return bound


@contextmanager
def _silence_output() -> Iterator[None]:
    """
    Keep what compiled code prints off standard output.

    HiGHS 1.12 prints a line even when told to be silent (its issue 2783), which would
    spoil the output of a command. The lock is needed since file descriptor 1 belongs to
    the whole process.
    """
    with _QUIET:
        sys.stdout.flush()
        c = ctypes.CDLL(None)
        c.fflush(None)
        kept = os.dup(1)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, 1)
            yield
        finally:
            c.fflush(None)
            os.dup2(kept, 1)
            os.close(kept)
            os.close(nowhere)
