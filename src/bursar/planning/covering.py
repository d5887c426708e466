"""
Lower bounds on the allocation cost of plans that meet a deadline.

Plans of one makespan are relaxed to a linear programme in what they buy. Each slot has the share
that is bought, 0 or 1, and what is paid in addition: for a divisible slot the processor time used,
for a lease its rectangle, for an extensible slot that is bought whole the rectangle after its end.

Covering programme
    Within every window tasks must do at least the work that none of their own windows lets them do
    outside, and what is bought can do no more than its processors in that time; of a rectangle that
    began before, only the later part. Rows are added as solutions break them.
Assignment programme
    In addition, each task takes shares of its processors from the slots of the sites
    where it fits, from one never more than the slot has; within every window a
    slot gives no more than it can. It is tried where tasks times slots are few.
Each alone
    Every task where its processor time is cheapest, and one fixed charge; any one task where it is
    cheapest with the fixed charge and with what a lease costs from its start to the earliest end.

Tasks may take processors from several slots of a site, so no row takes a slot for wider than it is;
transfers count in the windows. An unknown price counts as nothing, and so does an unknown runtime.
"""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array

from bursar.planning.covering_columns import MARGIN, CoveringColumns, LinearProgramme
from bursar.planning.energetic_bound import (
    TOLERANCE,
    EmptySlotCapacity,
    TaskWindows,
    evenly_spaced,
    makespan_bound,
)
from bursar.planning.kernels import capacity as kernels
from bursar.planning.kernels.availability import FloatArray, IntArray
from bursar.planning.problem import PlanningProblem

MAX_TASKS = 300
"""Tasks up to which the assignment programme is tried."""
MAX_PAIRS = 60_000
"""Pairs of task and slot up to which the assignment programme is tried."""
MAX_OVERLAPS = 30_000_000
"""Limit on the overlaps of tasks and windows that are computed for a deadline."""
MAX_WINDOWS = 256
"""Limit on the moments at which windows of a deadline open, and at which they close."""
SHARE_ROUNDS = 8
"""How often broken rows are added where a search asks only what a cheap purchase is like."""
ROWS = 24
"""Rows that are added at a time."""
ALONE = 256
"""Number of the largest, and of the latest, tasks whose cost alone is computed."""


def cost_bounds(
    problem: PlanningProblem, deadlines: FloatArray, *, time_limit: float = 10.0
) -> FloatArray:
    """
    Return allocation costs that no plans of these makespans can beat.

    Parameters
    ----------
    deadlines
        Greatest makespans, seconds; infinite for any. Shape ``(n,)``.
    time_limit
        Seconds for all deadlines together, about. The bounds are those proven by then.

    Returns
    -------
    ndarray
        Currency units, shape ``(n,)``; infinite where there is no such plan. Where a deadline is
        later it is no greater. A slot of unknown price is taken for free.
    """
    until = time.monotonic() + time_limit
    instants, where = np.unique(np.asarray(deadlines, dtype=np.float64), return_inverse=True)
    room = EmptySlotCapacity(problem)
    # No plan is faster than this, so for earlier deadlines no programme is solved.
    least = makespan_bound(problem) * (1 - TOLERANCE)
    bounds: FloatArray = np.where(instants < least, np.inf, 0.0)
    # The quick programmes of all deadlines first, then the slow ones.
    slow: list[tuple[int, _AssignmentProgramme]] = []
    open_ = np.flatnonzero(instants >= least)
    for done, k in enumerate(open_.tolist()):
        # A plan that ends after the horizon can end by then and costs no more, so later deadlines
        # prove nothing else.
        case = _MakespanCase.of(room, min(float(instants[k]), room.horizon))
        bounds[k] = case.quick_bound(_share(until, len(open_) - done))
        if np.isfinite(bounds[k]) and case.is_small:
            slow.append((k, _AssignmentProgramme(case)))
    for done, (k, assignment) in enumerate(slow):
        bounds[k] = max(bounds[k], assignment.solve(_share(until, len(slow) - done)))
    # What holds for a later deadline holds for an earlier one.
    bounds = np.maximum.accumulate(bounds[::-1])[::-1]
    return np.asarray(bounds[where.ravel()])


def relaxed_shares(problem: PlanningProblem, deadline: float) -> FloatArray | None:
    """
    Return the share of each slot that the relaxed covering programme buys, ``(n_slots,)``.

    A share is between 0 and 1. None where no plan meets the deadline, or the
    problem is larger than those for which the assignment programme is tried.
    """
    room = EmptySlotCapacity(problem)
    if deadline < makespan_bound(problem) * (1 - TOLERANCE):
        return None
    case = _MakespanCase.of(room, min(deadline, room.horizon))
    if case.windows.empty or not case.is_small:
        return None
    covering = _CoveringProgramme(case)
    solution = None
    for _ in range(SHARE_ROUNDS):
        _, found = covering.programme.solve_relaxed(math.inf)
        if found is None:
            break
        solution = found
        if not covering.add_broken(solution):
            break
    if solution is None:
        return None
    n = len(case.candidates)
    shares = np.zeros(problem.n_slots)
    shares[case.candidates.slots] = np.maximum(solution[:n] * case.candidates.whole, solution[n:])
    return shares


def _share(until: float, among: int) -> float:
    """Return when the first of several programmes has used a fair part of the time left."""
    now = time.monotonic()
    return now + (until - now) / among


@dataclass(slots=True, eq=False)
class _MakespanCase:
    """
    Holds what is known of the plans of one makespan.

    Parameters
    ----------
    room, makespan, windows
        Empty slots, makespan in seconds, and the time windows that follow for the tasks.
    busy
        Tasks that hold processors wherever they run.
    """

    room: EmptySlotCapacity
    makespan: float
    windows: TaskWindows
    candidates: CoveringColumns
    busy: IntArray
    covering: "_CoveringProgramme | None" = None

    @classmethod
    def of(cls, room: EmptySlotCapacity, makespan: float) -> "_MakespanCase":
        """Return the windows and columns of a makespan, seconds."""
        windows = room.windows(makespan)
        has_work = (room.problem.runtimes > 0) | ~windows.possible
        candidates = CoveringColumns.of(room.problem, windows, makespan)
        return cls(room, makespan, windows, candidates, np.flatnonzero(has_work.all(axis=1)))

    @property
    def is_small(self) -> bool:
        """Whether the assignment programme is tried."""
        return (
            0 < len(self.busy) <= MAX_TASKS and len(self.busy) * len(self.candidates) <= MAX_PAIRS
        )

    def quick_bound(self, until: float) -> float:
        """Return the best bound other than the assignment's, found by a monotonic moment."""
        if self.windows.empty:
            return float(np.inf)
        if not len(self.busy):
            return 0.0
        alone = _each_alone(self.room.problem, self.windows, self.candidates, self.busy)
        self.covering = _CoveringProgramme(self)
        return max(alone, self.covering.solve(until))


def _each_alone(
    problem: PlanningProblem, windows: TaskWindows, candidates: CoveringColumns, busy: IntArray
) -> float:
    """
    Return a lower bound on the cost, currency units; infinite without candidate slots.

    It is the greater of two bounds: all tasks at the lowest unit price with the lowest fixed
    price once, and what the dearest single task costs in the slot that is cheapest for it.
    """
    if not len(candidates):
        return float(np.inf)
    slots = problem.offers.arrays
    unit = np.nan_to_num(slots.unit_price, nan=0.0)
    fixed = np.nan_to_num(slots.fixed_price, nan=0.0)
    site = slots.site[candidates.slots]
    least = np.full(problem.n_sites, np.inf)
    np.minimum.at(least, site, unit[candidates.slots])
    may = windows.possible[busy] & np.isfinite(least)
    runtimes = np.where(may, problem.runtimes[busy], 0.0)
    used = problem.widths[busy, None] * runtimes
    cheapest = np.where(may, used * np.where(np.isfinite(least), least, 0.0), np.inf).min(axis=1)
    bound = cheapest.sum() + fixed[candidates.slots].min()

    # The dearest is likely a large or a late one. Only some are tried: the bound holds for any.
    latest = np.where(may, windows.starts[busy] + runtimes, np.inf).min(axis=1)
    tried = np.union1d(np.argsort(-cheapest)[:ALONE], np.argsort(-latest)[:ALONE])
    alone = np.full(len(tried), np.inf)
    for slot in candidates.slots:
        s = slots.site[slot]
        held = runtimes[tried, s]
        if slots.leased[slot]:
            held = held + np.maximum(windows.starts[busy[tried], s], slots.begin[slot])
            held = np.where(may[tried, s], held - slots.start[slot], 0.0)
        price = problem.widths[busy[tried]] * held * unit[slot] + fixed[slot]
        alone = np.where(may[tried, s], np.minimum(alone, price), alone)
    return float(max(bound, alone.max())) * (1 - TOLERANCE)


class _CoveringProgramme:
    """Holds the covering programme of one makespan, whose rows the assignment programme shares."""

    def __init__(self, case: _MakespanCase) -> None:
        room, windows, candidates = case.room, case.windows, case.candidates
        n = len(candidates)
        self.candidates = candidates
        self.programme = LinearProgramme(
            prices=np.concatenate((candidates.price, candidates.part_price)),
            upper=np.ones(2 * n),
            whole=np.concatenate((candidates.whole, np.zeros(n, dtype=np.bool_))),
        )
        both = np.flatnonzero(candidates.whole & (candidates.volume > 0))
        self.programme.add(
            np.tile(np.arange(len(both)), 2),
            np.concatenate((both, n + both)),
            np.repeat([1.0, -1.0], len(both)),
            np.zeros(len(both)),
        )
        self.opens, self.closes = _moments(room.problem, windows, case.makespan)
        rates = room.problem.widths[:, None] * room.problem.speeds
        self.demands = kernels.window_demands(
            self.opens,
            self.closes,
            windows.starts,
            windows.finishes,
            room.problem.runtimes,
            rates,
            windows.possible,
        )
        # What all slots do in a moment that rounding may have added to a window.
        noise = 2 * room.slack * float(candidates.processors @ candidates.speed)
        self.demands = np.maximum(self.demands * (1 - MARGIN) - noise, 0.0)

    def solve(self, until: float) -> float:
        """Return the bound found by this moment of the monotonic clock."""
        return self.programme.best_bound(self.add_broken, until)

    def add_broken(self, solution: FloatArray) -> int:
        """
        Add rows of windows whose demand the solution does not cover, at most ``ROWS``.

        Return the number of rows that were added, 0 when every window is covered.
        """
        candidates = self.candidates
        n = len(candidates)
        bought = np.where(candidates.whole, solution[:n], 1.0)
        supplies = kernels.window_supplies(
            self.opens,
            self.closes,
            candidates.begin,
            candidates.end,
            candidates.part_begin,
            candidates.part_end,
            candidates.part_from,
            candidates.processors * candidates.speed,
            bought,
            solution[n : 2 * n] * candidates.volume * candidates.speed,
        )
        missing = self.demands - supplies
        broken = missing > 1e-5 * self.demands + 1e-12
        if not broken.any():
            return 0
        share = np.where(broken, missing / np.where(broken, self.demands, 1.0), 0.0)
        missing = np.where(broken, missing, 0.0)
        # Half by share, half by amount: by amount alone wide windows would crowd out narrow ones.
        picked = [*_greatest(share, ROWS // 2), *_greatest(missing, ROWS // 2)]
        rows = dict.fromkeys(picked)  # a window may be picked by both
        for i, j in rows:
            self._add(i, j, solution)
        return len(rows)

    def _add(self, i: int, j: int, solution: FloatArray) -> None:
        candidates = self.candidates
        n = len(candidates)
        demand = self.demands[i, j]
        whole, part, paid = candidates.gives(self.opens[i], self.closes[j])
        bought = np.where(candidates.whole, solution[:n], 1.0)
        by_share = part * bought <= paid * solution[n : 2 * n]
        first = np.minimum((whole + np.where(by_share, part, 0.0)) * candidates.speed, demand)
        second = np.where(by_share, 0.0, paid) * candidates.speed
        value = np.concatenate((first, second))
        columns = np.flatnonzero(value)
        self.programme.add(
            np.zeros(len(columns), dtype=np.int64), columns, value[columns], np.array([demand])
        )


class _AssignmentProgramme:
    """Holds the assignment programme of one makespan."""

    def __init__(self, case: _MakespanCase) -> None:
        room, windows, candidates, busy = case.room, case.windows, case.candidates, case.busy
        problem = room.problem
        slots = problem.offers.arrays
        task = np.repeat(busy, len(candidates))
        candidate = np.tile(np.arange(len(candidates)), len(busy))
        first = np.full(len(task), np.inf)
        last = np.full(len(task), -np.inf)
        may = windows.possible[task, slots.site[candidates.slots[candidate]]]
        first[may], last[may] = _within_slots(
            room, windows, task[may], candidates.slots[candidate[may]]
        )
        site = slots.site[candidates.slots[candidate]]
        runtime = problem.runtimes[task, site]
        may &= np.isfinite(first) & np.isfinite(last)
        # In favour of pairs that just fit: leaving one out would make the bound too high.
        may[may] = (last - first)[may] >= runtime[may] - 2 * room.slack
        self.candidates = candidates
        self.slack = room.slack
        self.task, self.ware = task[may], candidate[may]
        self.first, self.last, self.runtime = first[may], last[may], runtime[may]
        self.site = site[may]
        self.width = problem.widths[self.task]
        self.most = np.minimum(1.0, candidates.processors[self.ware] / self.width)
        self.lacks_slot = len(np.unique(self.task)) < len(busy)
        n = 2 * len(candidates)
        k = len(self.task)
        assert case.covering is not None
        master = case.covering.programme
        self.programme = LinearProgramme(
            prices=np.concatenate((master.prices, np.zeros(k))),
            upper=np.concatenate((master.upper, self.most)),
            whole=np.concatenate((master.whole, np.zeros(k, dtype=np.bool_))),
        )
        rows = coo_array(master.matrix)
        self.programme.add(rows.coords[0], rows.coords[1], rows.data, master.least)
        self._columns = n + np.arange(k)
        _, number = np.unique(self.task, return_inverse=True)
        self.programme.add(
            number, self._columns, np.ones(k), np.ones(int(number.max(initial=-1)) + 1)
        )
        self._link_shares()
        self._link_parts()
        self._link_companions()
        for j in range(len(candidates)):
            self._add(j, 0.0, float(windows.deadlines.max()), True)
            self._add(j, 0.0, float(windows.deadlines.max()), False)

    def solve(self, until: float) -> float:
        """Return the bound found by this moment of the monotonic clock."""
        if self.lacks_slot:
            return float(np.inf)
        return self.programme.best_bound(self.add_broken, until)

    def add_broken(self, solution: FloatArray) -> int:
        """Add rows that the solution breaks; return how many."""
        candidates = self.candidates
        n = len(candidates)
        taken = solution[2 * n :]
        count = 0
        for j in np.unique(self.ware[taken > 1e-6]):
            pairs = np.flatnonzero((self.ware == j) & (taken > 1e-6))
            opens = np.unique(
                np.concatenate((self.first[pairs], (self.last - self.runtime)[pairs]))
            )
            closes = np.unique(
                np.concatenate((self.last[pairs], (self.first + self.runtime)[pairs]))
            )
            opens, closes = evenly_spaced(opens, 24), evenly_spaced(closes, 24)
            inside = self._overlaps(pairs, opens[:, None], closes[None, :])
            used = np.einsum("kij,k->ij", inside, self.width[pairs] * taken[pairs])
            given = self._supplies(j, opens, closes, solution)
            missing = used - given
            missing[missing <= 1e-5 * used + 1e-12] = 0.0
            for a, b in _greatest(missing, 2):
                _, part, paid = (g[j] for g in candidates.gives(opens[a], closes[b]))
                bought = solution[j] if candidates.whole[j] else 1.0
                self._add(j, opens[a], closes[b], part * bought <= paid * solution[n + j])
                count += 1
        return count

    def _overlaps(self, pairs: IntArray, opens: FloatArray, closes: FloatArray) -> FloatArray:
        """Return least seconds of each pair's task within windows, shape ``(n, ...)``."""
        shape = (-1,) + (1,) * np.ndim(opens)
        runtime = self.runtime[pairs].reshape(shape)
        early = self.first[pairs].reshape(shape) + runtime - opens
        late = closes - (self.last[pairs].reshape(shape) - runtime)
        inside = np.minimum(np.minimum(runtime, closes - opens), np.minimum(early, late))
        return np.maximum(inside - 4 * self.slack, 0.0)

    def _supplies(
        self, j: int, opens: FloatArray, closes: FloatArray, solution: FloatArray
    ) -> FloatArray:
        """Return the processor-seconds that slot ``j`` gives in each window by the solution."""
        candidates = self.candidates
        n = len(candidates)
        one = slice(j, j + 1)
        return kernels.window_supplies(
            opens,
            closes,
            candidates.begin[one],
            candidates.end[one],
            candidates.part_begin[one],
            candidates.part_end[one],
            candidates.part_from[one],
            candidates.processors[one].astype(np.float64),
            solution[one] if candidates.whole[j] else np.ones(1),
            solution[n + j : n + j + 1] * candidates.volume[one],
        )

    def _add(self, j: int, opens: float, closes: float, by_share: bool) -> None:
        """Add the row: the slot gives at least what tasks take within the window."""
        n = len(self.candidates)
        whole, part, paid = (float(g[j]) for g in self.candidates.gives(opens, closes))
        pairs = np.flatnonzero(self.ware == j)
        used = self._overlaps(pairs, np.array(opens), np.array(closes)) * self.width[pairs]
        used *= 1 - MARGIN
        value = np.concatenate(([whole + part, 0.0] if by_share else [whole, paid], -used))
        column = np.concatenate(([j, n + j], self._columns[pairs]))
        least = 0.0
        if not self.candidates.whole[j]:
            least, value[0] = -value[0], 0.0
        kept = np.flatnonzero(value)
        self.programme.add(
            np.zeros(len(kept), dtype=np.int64), column[kept], value[kept], np.array([least])
        )

    def _link_shares(self) -> None:
        """Add rows: a slot that is not bought gives nothing, others give no more than they have."""
        linked = np.flatnonzero(self.candidates.whole[self.ware])
        self.programme.add(
            np.tile(np.arange(len(linked)), 2),
            np.concatenate((self.ware[linked], self._columns[linked])),
            np.concatenate((self.most[linked], -np.ones(len(linked)))),
            np.zeros(len(linked)),
        )

    def _link_parts(self) -> None:
        """Add rows: a lease lasts until its tasks end at the earliest, and so does an extension."""
        candidates = self.candidates
        since = candidates.part_from[self.ware]
        length = np.where(np.isfinite(since), self.first + self.runtime - since, 0.0)
        whole = candidates.processors[self.ware] / self.most  # an extension has them all
        held = np.where(candidates.leased[self.ware], self.width, whole)
        linked = np.flatnonzero((length > 0) & (candidates.volume[self.ware] > 0))
        value = (held * length)[linked] / candidates.volume[self.ware[linked]] * (1 - MARGIN)
        self.programme.add(
            np.tile(np.arange(len(linked)), 2),
            np.concatenate((len(candidates) + self.ware[linked], self._columns[linked])),
            np.concatenate((np.ones(len(linked)), -value)),
            np.zeros(len(linked)),
        )

    def _link_companions(self) -> None:
        """Add rows: a task that takes from a slot too narrow for it takes the rest beside it."""
        narrow = np.flatnonzero(self.most < 1)
        latest = self.last - self.runtime + self.slack
        rows, columns, values = [], [], []
        for row, k in enumerate(narrow):
            low, high = np.searchsorted(self.task, (self.task[k], self.task[k] + 1))
            own = np.arange(low, high)
            companions = own[
                (self.site[own] == self.site[k])
                & (self.first[own] <= latest[k])
                & (latest[own] >= self.first[k])
                & (own != k)
            ]
            rows.append(np.full(len(companions) + 1, row))
            columns.append(self._columns[np.append(companions, k)])
            share = self.most[k] / (1 - self.most[k])
            values.append(np.append(np.full(len(companions), share), -1.0))
        if rows:
            self.programme.add(
                np.concatenate(rows),
                np.concatenate(columns),
                np.concatenate(values),
                np.zeros(len(narrow)),
            )


def _moments(
    problem: PlanningProblem, windows: TaskWindows, makespan: float
) -> tuple[FloatArray, FloatArray]:
    """Return when windows worth a row open and close, seconds."""
    may = windows.possible
    starts, finishes = windows.starts[may], windows.finishes[may]
    runtimes = problem.runtimes[may]
    most = int(np.sqrt(MAX_OVERLAPS / max(1, problem.n_tasks * problem.n_sites)))
    most = min(max(most, 8), MAX_WINDOWS)
    opens = evenly_spaced(np.unique(np.concatenate((starts, finishes - runtimes))), most)
    closes = evenly_spaced(np.unique(np.concatenate((finishes, starts + runtimes))), most)
    return np.unique(np.append(opens, 0.0)), np.unique(np.append(closes, makespan))


def _within_slots(
    room: EmptySlotCapacity, windows: TaskWindows, tasks: IntArray, slots: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Return earliest start and latest finish of tasks within slots, shape ``(n,)`` each."""
    problem = room.problem
    found = [
        kernels.starts_in_slots(
            tasks,
            slots,
            problem.offers.arrays.site,
            problem.runtimes,
            problem.widths,
            ready,
            direction.first,
            direction.begin,
            direction.last,
            direction.opening,
            direction.closing,
            direction.processors,
            room.slack,
        )
        for direction, ready in ((room.forward, windows.starts), (room.backward, -windows.finishes))
    ]
    return found[0], -found[1]


def _greatest(values: FloatArray, most: int) -> Iterable[tuple[int, int]]:
    """Return the indices of the greatest positive values, at most one of each row."""
    best = values.argmax(axis=1)
    peaks = values[np.arange(len(values)), best]
    rows = np.argsort(-peaks, kind="stable")[:most]
    return [(int(row), int(best[row])) for row in rows if peaks[row] > 0]
