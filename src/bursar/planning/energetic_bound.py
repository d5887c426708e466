"""
The least makespan that slots allow: what no plan of them can beat.

Windows
    A task can start on a site once its inputs can have arrived there and enough processors of the
    site's slots, all empty, stay for as long as it runs. In topological order that makes heads, and
    backwards from a makespan deadlines. Each ancestor or descendant may be on another site for each
    of its relatives, so a plan's times are always within.
Energy
    Tasks that neither start before h nor end after d must do all their work in
    the time of the slots from h to d (energetic reasoning [1]_, over slots).
Wide tasks
    Of tasks wider than half a site two never run there at once. Weights of the
    widths say so and keep the argument valid (dual feasible functions [2]_): one
    of them fills the site, and tasks narrower than what it leaves count nothing;
    or only such tasks count, and only the times at which one fits.

Work is counted in units of which a processor does as many per second as its
site's speed; where runtimes do not follow the speeds a task counts where it is
least. Unknown runtimes count as nothing.

References
----------
.. [1] Baptiste, Le Pape, Nuijten (2001). Constraint-Based Scheduling. Kluwer,
   section 3.2.
.. [2] Fekete, Schepers (2001). New classes of fast lower bounds for bin packing
   problems. Mathematical Programming 91: 11-31, section 2.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from bursar.planning.kernels import capacity as kernels
from bursar.planning.kernels.availability import BoolArray, FloatArray, IntArray
from bursar.planning.problem import PlanningProblem
from bursar.profile_kernel import integral_until, summed

MAX_WIDTHS = 6
"""Widths above half a site's tried as wide; of more, evenly spread quantiles."""
PRECISION = 1e-10
"""Relative, of the search for the least makespan."""
TOLERANCE = 1e-11
"""Relative; every comparison that a float's own error could spoil lets it pass."""


class DirectedArrays(NamedTuple):
    """
    Holds tasks and slots in one direction of time, in the form of the kernels.

    Parameters
    ----------
    order, parent_start, parent_index, parent_bytes, latency, pace
        The workflow and its transfers; backwards, children are parents.
    first, begin, last, opening, closing, processors
        The slots; backwards, times are negative.
    """

    order: IntArray
    parent_start: IntArray
    parent_index: IntArray
    parent_bytes: FloatArray
    latency: FloatArray
    pace: FloatArray
    first: IntArray
    begin: FloatArray
    last: FloatArray
    opening: IntArray
    closing: IntArray
    processors: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class TaskWindows:
    """
    When tasks can run in plans of some makespan.

    Parameters
    ----------
    starts, finishes
        Earliest start and latest finish, seconds, shape ``(n_tasks, n_sites)``.
    possible
        Whether the task can run on the site at all, shape ``(n_tasks, n_sites)``.
    """

    starts: FloatArray
    finishes: FloatArray
    possible: BoolArray

    @property
    def empty(self) -> bool:
        """Whether some task can run nowhere, so that no plan has this makespan."""
        return not bool(self.possible.any(axis=1).all())

    @property
    def heads(self) -> FloatArray:
        """Earliest start anywhere, seconds, shape ``(n_tasks,)``."""
        return _least(np.where(self.possible, self.starts, np.inf))

    @property
    def deadlines(self) -> FloatArray:
        """Latest finish anywhere, seconds, shape ``(n_tasks,)``."""
        return -_least(np.where(self.possible, -self.finishes, np.inf))


class WidthWeights(NamedTuple):
    """
    One way to weigh the widths of tasks against the processors of sites.

    Parameters
    ----------
    rates
        Weight per second of each task on each site, shape ``(n_tasks, n_sites)``.
    times
        Seconds at which the capacity of all sites together changes, ascending, shape ``(n,)``.
    most
        Weight per second that the sites can take from each of ``times`` on, shape ``(n,)``.
    """

    rates: FloatArray
    times: FloatArray
    most: FloatArray

    def done_by(self, instants: FloatArray) -> FloatArray:
        """Return the most weight that all sites together can have taken by each instant."""
        return integral_until(self.times, self.most, instants)


class _LastOrder:
    """
    Orders values that are nearly always in the order of the values before.

    The windows of a bound's many makespans differ by a shift, so that sorting anew would be most
    of the work. Equal values may come in any order: what ends at one moment is judged together.
    """

    def __init__(self) -> None:
        self._order: IntArray | None = None

    def of(self, values: FloatArray) -> IntArray:
        """Return the indices of values, ascending."""
        order = self._order
        if order is not None:
            ordered = values[order]
            if bool((ordered[:-1] <= ordered[1:]).all()):
                return order
        self._order = order = np.argsort(values, kind="stable")
        return order


def _least(values: FloatArray) -> FloatArray:
    """Return the least of each row; a column at a time, since rows are short and many."""
    least = values[:, 0].copy()
    for column in range(1, values.shape[1]):
        np.minimum(least, values[:, column], out=least)
    return least


class EmptySlotCapacity:
    """
    Capacity of a problem's empty slots.

    Parameters
    ----------
    caps
        Processors of each slot that may be used, shape ``(n_slots,)``; None: all.
    """

    def __init__(self, problem: PlanningProblem, caps: IntArray | None = None) -> None:
        self.problem = problem
        slots = problem.offers.arrays
        self.processors = slots.processors if caps is None else np.asarray(caps, dtype=np.int64)
        self.horizon = _horizon(problem)
        """A plan that ends later can end by then, and costs no more; seconds."""
        self.slack = TOLERANCE * self.horizon
        """Seconds by which two moments may differ and count as the same."""
        self.forward = _forward(problem, self.processors)
        self.backward = _backward(problem, self.processors)
        self.starts = kernels.earliest_starts(
            problem.runtimes, problem.widths, *self.forward, 0.0, self.slack
        )
        """Earliest start, seconds, shape ``(n_tasks, n_sites)``."""
        self.measures = self._measures()
        """Weights of widths; the first counts processors as they are."""
        self._by_head = _LastOrder()
        self._by_deadline = _LastOrder()

    @property
    def path(self) -> float:
        """Length of the longest chain of tasks, each where the task can end first, seconds."""
        return float((self.starts + self.problem.runtimes).min(axis=1).max())

    def windows(self, makespan: float) -> TaskWindows:
        """When tasks can run in plans of at most this makespan, seconds."""
        runtimes = np.where(np.isfinite(self.starts), self.problem.runtimes, np.inf)
        finishes = -kernels.earliest_starts(
            runtimes, self.problem.widths, *self.backward, -makespan, self.slack
        )
        possible = np.isfinite(self.starts) & np.isfinite(finishes)
        length = np.where(possible, finishes, 0) - np.where(possible, self.starts, 0)
        possible &= length >= np.where(possible, runtimes, 0) - self.slack
        return TaskWindows(self.starts, finishes, possible)

    def fits(self, makespan: float) -> bool:
        """Whether the windows and the energy of the tasks leave room for a plan."""
        windows = self.windows(makespan)
        if windows.empty:
            return False
        heads, deadlines = windows.heads, windows.deadlines
        by_head = self._by_head.of(heads)
        by_deadline = self._by_deadline.of(deadlines)
        runtimes = np.where(windows.possible, self.problem.runtimes, 0.0)
        for measure in self.measures:
            work = _least(np.where(windows.possible, measure.rates * runtimes, np.inf))
            if kernels.is_overfull(
                work,
                by_head,
                by_deadline,
                measure.done_by(heads),
                # In favour of the plans: a bound may be too low, never too high.
                measure.done_by(deadlines + self.slack),
                TOLERANCE,
            ):
                return False
        return True

    def _measures(self) -> list[WidthWeights]:
        """
        Return the ways to weigh widths under which :meth:`fits` compares work with capacity.

        The first counts processors as they are. Up to ``MAX_WIDTHS`` thresholds, each a share of
        the site and above half of it, give two more: a task from the threshold on fills the whole
        site, and narrower tasks count as they are where they fit beside it no more, or not at all.
        """
        times, free = self._free()
        speeds = self.problem.speeds
        widths = np.broadcast_to(self.problem.widths[:, None], self.problem.runtimes.shape)
        most = free.max(axis=0, initial=0)
        measures = [WidthWeights(widths * speeds, times, free @ speeds)]
        wide = np.isfinite(self.starts) & (self.problem.runtimes > 0) & (2 * widths > most)
        shares = np.unique((widths / np.maximum(most, 1))[wide])
        for share in evenly_spaced(shares, MAX_WIDTHS):
            least = np.minimum(np.ceil(share * most - TOLERANCE), most)
            # Wider than half of the site, or two could run at once and the argument would fail.
            least = np.maximum(least, most // 2 + 1)
            rest = most - least + 1  # what a wide task never leaves
            filled = np.where(widths >= least, most, np.where(widths >= rest, widths, 0))
            taken = np.where(free >= least, most, np.where(free >= rest, free, 0))
            measures.append(WidthWeights(filled * speeds, times, taken @ speeds))
            filled = np.where(widths >= least, most, 0)
            taken = np.where(free >= least, most, 0)
            measures.append(WidthWeights(filled * speeds, times, taken @ speeds))
        return measures

    def _free(self) -> tuple[FloatArray, IntArray]:
        """
        Processors that each site's slots together have, and from when on.

        Answers the moments, and the processors of shape ``(n_moments, n_sites)``.
        Slots that are too short for every task are left out.
        """
        slots = self.problem.offers.arrays
        runtimes = self.problem.runtimes
        shortest = np.where(runtimes > 0, runtimes, np.inf).min(axis=0, initial=np.inf)
        useful = slots.last - slots.begin >= shortest[slots.site] - self.slack
        of_site = slots.site[useful, None] == np.arange(self.problem.n_sites)
        offered = np.where(of_site, self.processors[useful, None], 0)
        return summed(slots.begin[useful], slots.last[useful], offered)


def makespan_bound(problem: PlanningProblem, caps: IntArray | None = None) -> float:
    """
    A makespan that no plan of the slots can beat, seconds.

    The greater of the critical path and the energy bound; infinite when there is
    no plan. Exact to one part in 10^9 of what these two prove, never above it.

    Parameters
    ----------
    caps
        Processors of each slot that may be used, shape ``(n_slots,)``; None: all.
    """
    if caps is not None:
        return _makespan_bound(EmptySlotCapacity(problem, caps))
    known = _KNOWN.get(problem)
    if known is None:
        # The search for a start, the bounds on costs and the front's own bound all ask for it.
        known = _KNOWN[problem] = _makespan_bound(EmptySlotCapacity(problem))
    return known


_KNOWN: "WeakKeyDictionary[PlanningProblem, float]" = WeakKeyDictionary()
"""Bounds of problems with all of their slots; problems never change."""


def _makespan_bound(room: EmptySlotCapacity) -> float:
    low = room.path
    if np.isinf(low) or room.fits(low * (1 + PRECISION)):
        return low
    high = 2 * low
    # Doubling first: the horizon may lie far above the critical path, and the bound near it.
    while high < room.horizon and not room.fits(high):
        low, high = high, 2 * high
    if high >= room.horizon:
        high = room.horizon
        if not room.fits(high):
            return np.inf
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        if room.fits(middle):
            high = middle
        else:
            low = middle
    return low


def evenly_spaced(values: FloatArray, most: int) -> FloatArray:
    """Return at most ``most`` values, evenly spread, the first and the last included."""
    if len(values) <= most:
        return values
    return values[np.linspace(0, len(values) - 1, most).astype(np.int64)]


def _horizon(problem: PlanningProblem) -> float:
    """
    When slots no longer begin or end, and then all runtimes and transfers in a row.

    After the last of the slots' moments time in which nothing runs or passes can
    be cut out of a plan: no task ends later, and no payment rises.
    """
    slots = problem.offers.arrays
    ends = slots.end[np.isfinite(slots.end)]
    last = max(slots.begin.max(initial=0.0), ends.max(initial=0.0))
    longest = np.where(np.isfinite(problem.runtimes), problem.runtimes, 0).max(axis=1)
    transfers = (
        len(problem.parent_bytes) * problem.latency.max()
        + problem.parent_bytes.sum() * problem.seconds_per_byte.max()
    )
    return float(last + longest.sum() + transfers)


def _forward(problem: PlanningProblem, processors: IntArray) -> DirectedArrays:
    slots = problem.offers.arrays
    return DirectedArrays(
        order=problem.order,
        parent_start=problem.parent_start,
        parent_index=problem.parent_index,
        parent_bytes=problem.parent_bytes,
        latency=problem.latency,
        pace=problem.seconds_per_byte,
        first=slots.first,
        begin=slots.begin,
        last=slots.last,
        opening=np.arange(len(slots.start)),
        closing=slots.by_last,
        processors=processors,
    )


def _backward(problem: PlanningProblem, processors: IntArray) -> DirectedArrays:
    slots = problem.offers.arrays
    turned = problem.turned()
    return DirectedArrays(
        order=turned.order,
        parent_start=turned.parent_start,
        parent_index=turned.parent_index,
        parent_bytes=turned.parent_bytes,
        latency=turned.latency,
        pace=turned.seconds_per_byte,
        first=slots.first,
        begin=-slots.last,
        last=-slots.begin,
        opening=_turned(slots.by_last, slots.first),
        closing=_turned(np.arange(len(slots.start)), slots.first),
        processors=processors,
    )


def _turned(index: IntArray, first: IntArray) -> IntArray:
    """Each site's part the other way round."""
    parts = [index[a:b][::-1] for a, b in pairwise(first)]
    return np.concatenate(parts)
