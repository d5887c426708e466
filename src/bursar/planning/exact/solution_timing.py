"""The solver's solution, in steps of time, put back on the real clock."""

import math
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from bursar.planning.exact.placement_modes import PlacementMode
from bursar.planning.kernels.availability import AvailabilityProfile, FloatArray, IntArray
from bursar.planning.kernels.placing import ScheduleDraft
from bursar.planning.problem import PlanningProblem
from bursar.planning.schedule import Schedule
from bursar.planning.schedulers import from_draft


@dataclass(frozen=True, slots=True)
class SolverPlacement:
    """Holds the solver's choice for a task: start in steps, placement mode, processors by slot."""

    start: int
    way: int
    held: tuple[tuple[int, int], ...]


def schedule_in_seconds(
    problem: PlanningProblem,
    ways: list[PlacementMode],
    placed: list[SolverPlacement],
    caps: IntArray,
) -> Schedule | None:
    """
    The schedule in seconds; None when a task would miss the end of a slot.

    Tasks by the solver's starts, each as soon as the processors that it was given
    are free. Where no time had to be rounded, none starts later than there: what
    ran when it was to start still runs then, or has ended.
    """
    slots = problem.offers.arrays
    n_tasks, n_slots = problem.n_tasks, problem.n_slots
    position = np.argsort(problem.order).tolist()
    rows = {
        j: _FreeProcessors(float(slots.begin[j]), float(slots.last[j]), int(caps[j]))
        for place in placed
        for j, _ in place.held
    }
    site = np.array([ways[place.way].site for place in placed], dtype=np.int64)
    start, finish = np.zeros(n_tasks), np.zeros(n_tasks)
    uses, peak = np.zeros(n_slots, dtype=np.int64), np.zeros(n_slots, dtype=np.int64)
    area, until = np.zeros(n_slots), slots.start.copy()
    for task in sorted(range(n_tasks), key=lambda task: (placed[task].start, position[task])):
        duration, held = ways[placed[task].way].duration, placed[task].held
        moment = _ready(problem, site, finish, task)
        while held:
            later = max(rows[j].earliest(moment, duration, count) for j, count in held)
            if later == math.inf:
                return None
            if later == moment:
                break
            moment = later
        start[task], finish[task] = moment, moment + duration
        for j, count in held:
            rows[j].take(moment, moment + duration, count)
            uses[j] += 1
            area[j] += count * (moment + duration - moment)
            until[j] = max(until[j], moment + duration)
    for j, row in rows.items():
        peak[j] = row.cap - row.least
    _lease_idle(problem, site, finish, uses, until, peak)

    counts = np.array([len(place.held) for place in placed], dtype=np.int64)
    held_slot = [j for place in placed for j, _ in place.held]
    held_width = [count for place in placed for _, count in place.held]
    none, nothing = np.zeros(0), np.zeros(0, dtype=np.int64)
    board = AvailabilityProfile(
        times=none,
        free=nothing,
        base=nothing,
        steps=nothing,
        room=nothing,
        tail=nothing,
        caps=caps,
        open_step=nothing,
        open_from=none,
        uses=uses,
        area=area,
        until=until,
        peak=peak,
    )
    draft = ScheduleDraft(
        board=board,
        site=site,
        start=start,
        finish=finish,
        held_first=np.cumsum(counts) - counts,
        held_count=counts,
        held_slot=np.array(held_slot, dtype=np.int64),
        held_width=np.array(held_width, dtype=np.int64),
        held=np.array([len(held_slot)]),
        open_sites=nothing,
        wide=nothing,
    )
    return from_draft(problem, draft)


def _ready(problem: PlanningProblem, site: IntArray, finish: FloatArray, task: int) -> float:
    """When all that the task waits for has arrived, seconds."""
    ready = 0.0
    here = site[task]
    for edge in range(int(problem.parent_start[task]), int(problem.parent_start[task + 1])):
        parent = problem.parent_index[edge]
        arrival = float(finish[parent])
        if site[parent] != here:
            pace = problem.seconds_per_byte[site[parent], here]
            arrival += float(
                problem.latency[site[parent], here] + problem.parent_bytes[edge] * pace
            )
        ready = max(ready, arrival)
    return ready


def _lease_idle(
    problem: PlanningProblem,
    site: IntArray,
    finish: FloatArray,
    uses: IntArray,
    until: FloatArray,
    peak: IntArray,
) -> None:
    """
    Widen leases to the tasks without duration, which hold no processors.

    The model does without this, so that its bound may be lower than need be.
    """
    slots = problem.offers.arrays
    for task in np.flatnonzero(problem.runtimes[np.arange(problem.n_tasks), site] == 0.0):
        s, width = site[task], problem.widths[task]
        wide = [
            j
            for j in range(int(slots.first[s]), int(slots.first[s + 1]))
            if slots.leased[j]
            and slots.processors[j] >= width
            and slots.begin[j] <= finish[task] <= slots.last[j]
        ]
        if wide:
            j = max(wide, key=lambda j: (uses[j] > 0, -j))
            uses[j] += 1
            until[j] = max(until[j], finish[task])
            peak[j] = max(peak[j], width)


class _FreeProcessors:
    """Free processors of a slot over time; see :mod:`bursar.planning.kernels.availability`."""

    def __init__(self, begin: float, last: float, cap: int) -> None:
        self.cap = self.least = cap
        self.times = [begin] if last == math.inf else [begin, max(begin, last)]
        self.free = [cap] if last == math.inf else [cap, 0]

    def earliest(self, ready: float, duration: float, width: int) -> float:
        """First moment from ``ready`` on with room; infinite when there is none."""
        start = max(ready, self.times[0])
        for i in range(bisect_right(self.times, start) - 1, len(self.times)):
            over = self.times[i + 1] if i + 1 < len(self.times) else math.inf
            if self.free[i] < width:
                start = over
            elif over >= start + duration:
                return start
        return math.inf

    def take(self, start: float, finish: float, width: int) -> None:
        """Takes processors that are free."""
        first, last = self._split(start), self._split(finish)
        for i in range(first, last):
            self.free[i] -= width
            self.least = min(self.least, self.free[i])

    def _split(self, moment: float) -> int:
        i = bisect_right(self.times, moment) - 1
        if self.times[i] == moment:
            return i
        self.times.insert(i + 1, moment)
        self.free.insert(i + 1, self.free[i])
        return i + 1
