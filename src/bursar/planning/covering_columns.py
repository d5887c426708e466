"""Columns of the covering programme, and the linear programmes that bound its cost."""

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

from bursar.planning.energetic_bound import TaskWindows
from bursar.planning.kernels.availability import BoolArray, FloatArray, IntArray
from bursar.planning.problem import PlanningProblem


@dataclass(frozen=True, slots=True, eq=False)
class CoveringColumns:
    """
    Holds the columns of one makespan: for each slot a share, and the parts paid beside the share.

    Parameters
    ----------
    slots
        Index of each slot that a task can use, shape ``(n,)``; the other arrays describe
        these slots.
    begin, end
        Time that is paid with the slot's share, seconds; empty where none is.
    part_begin, part_end
        Time of which only the part used is paid, seconds; empty where there is none.
    part_from
        When the rectangle that is paid for begins, seconds; minus infinity where only
        the processor time in use is paid.
    processors
        Processors of each slot.
    speed
        Speed of each slot's site.
    volume
        Processor-seconds that can be paid in addition to the share.
    leased
        Whether the slot is paid as a rectangle as wide as the tasks in it.
    price, part_price
        Price of the share and price of the whole volume, currency units.
    whole
        Whether the share is bought, 0 or 1; otherwise it costs nothing.
    """

    slots: IntArray
    begin: FloatArray
    end: FloatArray
    part_begin: FloatArray
    part_end: FloatArray
    part_from: FloatArray
    processors: IntArray
    speed: FloatArray
    volume: FloatArray
    leased: BoolArray
    price: FloatArray
    part_price: FloatArray
    whole: BoolArray

    @classmethod
    def of(
        cls, problem: PlanningProblem, windows: TaskWindows, makespan: float
    ) -> "CoveringColumns":
        """Return what can be bought of the slots in which some task can run by the makespan."""
        slots = problem.offers.arrays
        shortest = np.where(windows.possible & (problem.runtimes > 0), problem.runtimes, np.inf)
        room = np.minimum(slots.last, makespan) - slots.begin
        useful = np.flatnonzero(room > 0.999999 * shortest.min(axis=0)[slots.site])
        start, begin = slots.start[useful], slots.begin[useful]
        end = slots.end[useful]
        last = np.minimum(slots.last[useful], makespan)
        divisible, leased = slots.divisible[useful], slots.leased[useful]
        processors = slots.processors[useful]
        unit = np.nan_to_num(slots.unit_price[useful], nan=0.0)
        fixed = np.nan_to_num(slots.fixed_price[useful], nan=0.0)
        part_begin = np.where(divisible, begin, np.maximum(end, begin))
        part_from = np.where(leased, start, np.where(divisible, -np.inf, end))
        length = last - np.where(divisible & ~leased, begin, np.where(leased, start, end))
        volume = processors * np.maximum(length, 0.0)
        span = np.where(divisible, 0.0, end - start)
        return cls(
            slots=useful,
            begin=begin,
            end=np.where(divisible, begin, np.minimum(end, makespan)),
            part_begin=part_begin,
            part_end=np.maximum(last, part_begin),
            part_from=part_from,
            processors=processors,
            speed=problem.speeds[slots.site[useful]],
            volume=volume,
            leased=leased,
            price=fixed + processors * span * unit,
            part_price=volume * unit,
            whole=~divisible | (fixed > 0),
        )

    def __len__(self) -> int:
        return len(self.slots)

    def gives(self, opens: float, closes: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """
        Return processor-seconds that each slot gives within a window, shape ``(n,)`` each.

        The first are those of the time that the share pays; the second bound those of the
        part; the third bound them when the whole volume is paid.
        """
        whole = np.minimum(closes, self.end) - np.maximum(opens, self.begin)
        close = np.minimum(closes, self.part_end)
        part = np.maximum(close - np.maximum(opens, self.part_begin), 0.0)
        # A rectangle ending within the window is best when it ends at its close.
        length = np.where(np.isfinite(self.part_from) & (part > 0), close - self.part_from, 1.0)
        share = np.where(np.isfinite(self.part_from), part / length, part > 0)
        return (
            np.maximum(whole, 0.0) * self.processors,
            part * self.processors,
            share * self.volume,
        )


# Solves linear programmes for bounds; rows are added when a solution breaks one.

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

    HiGHS 1.12 prints a line even when told to be silent (its issue 2783), which would spoil the
    output of a command. The lock is needed since file descriptor 1 belongs to the whole process.
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
