"""The solver's solution, in steps of time, put back on the real clock."""

import math
from dataclasses import dataclass

import numpy as np

from bursar.model.resource_profile import ResourceProfile
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
    rows = {j: ResourceProfile() for place in placed for j, _ in place.held}
    for j, row in rows.items():
        row.change(float(slots.begin[j]), float(slots.last[j]), int(caps[j]))
    site = np.array([ways[place.way].site for place in placed], dtype=np.int64)
    start, finish = np.zeros(n_tasks), np.zeros(n_tasks)
    uses, peak = np.zeros(n_slots, dtype=np.int64), np.zeros(n_slots, dtype=np.int64)
    area, until = np.zeros(n_slots), slots.start.copy()
    for task in sorted(range(n_tasks), key=lambda task: (placed[task].start, position[task])):
        duration, held = ways[placed[task].way].duration, placed[task].held
        moment = _ready(problem, site, finish, task)
        while held:
            later = max(rows[j].earliest_start(moment, duration, count) for j, count in held)
            if later == math.inf:
                return None
            if later == moment:
                break
            moment = later
        start[task], finish[task] = moment, moment + duration
        for j, count in held:
            rows[j].change(moment, moment + duration, -count)
            uses[j] += 1
            area[j] += count * (moment + duration - moment)
            until[j] = max(until[j], moment + duration)
    for j, row in rows.items():
        peak[j] = caps[j] - row.least_free(float(slots.begin[j]), float(slots.last[j]))
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
