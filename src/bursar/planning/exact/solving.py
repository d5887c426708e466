"""Asks the solver, coarsely first, and puts its solution back on the real clock."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bursar.model.slot import ResourceProfile
from bursar.planning.exact.model import SolverModel, build_model, give_hint, solver_library
from bursar.planning.exact.units import (
    Crossing,
    ExactSolution,
    Incumbent,
    Objective,
    PlacementMode,
    SolverEffort,
    SolverQuery,
    TimeGrid,
    grid_for,
    horizon_of,
    money_for,
    placement_modes,
)
from bursar.planning.kernels.availability import AvailabilityProfile, FloatArray, IntArray
from bursar.planning.kernels.placing import ScheduleDraft
from bursar.planning.problem import PlanningProblem
from bursar.planning.schedule import Schedule
from bursar.planning.schedulers import from_draft

# The solver's solution, in steps of time, put back on the real clock.


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


# Asking the solver, coarsely first, then more finely while time is left.

MOST = 60_000
"""Placement modes that the solver is given, at most; more take minutes to load."""


NEAR = 2e-3
"""Share of the makespan at which the bisection for the least makespan ends."""


def polish(
    problem: PlanningProblem,
    *,
    minimise: Objective,
    deadline: float | None = None,
    budget: float | None = None,
    hint: Schedule | None = None,
    time_limit: float,
    workers: int = 1,
    seed: int = 0,
    crossing: Crossing = "all",
) -> ExactSolution | None:
    """
    The schedule of least makespan or least cost that the solver finds in time.

    None when it finds none, when there is none, or when :func:`reason_not_solved` has a reason.
    Where cost matters only slots of known price are used.

    With one worker equal calls give equal answers where the clock cuts no search
    short: neither the last one nor, for makespans, a trial, which has a twentieth of
    the time. With several, the solver may end with another of equally good schedules.

    Parameters
    ----------
    deadline
        Latest finish, seconds; kept, as the budget, to one part in 10^9.
    budget
        Most to pay, currency units.
    hint
        Where to begin; the answer is never worse than a hint that keeps deadline
        and budget. Anything else in it is trusted.
    time_limit
        Seconds, of the machine's clock; putting the question takes a few more.
    workers
        Threads of the solver.
    crossing
        Which tasks may take several slots of a site at once: all, or only those for
        which no single slot is wide and long enough. The latter is less to search,
        but proves nothing: ``bound`` is None unless no other task could.

    Raises
    ------
    InputError
        When OR-Tools is not installed.
    """
    solver_library()
    question = SolverQuery(
        minimise=minimise,
        deadline=math.inf if deadline is None else deadline,
        budget=math.inf if budget is None else budget,
    )
    best = Incumbent(problem, question)
    if hint is not None and hint.complete:
        best.offer(hint)
    effort = SolverEffort(time.monotonic() + time_limit, workers, seed)
    ways, whole = placement_modes(problem, question, horizon_of(problem, question, best), crossing)
    if ways is None or sum(len(way.slots) for way in ways) > MOST:
        return best.as_exact(None)
    bound = 0.0
    if minimise == "makespan" and whole:
        bound = _least_makespan(problem, question, best, effort.share(1 / 4))
    # A coarse grid is searched fast, and its schedules are hints for finer ones. A question that
    # was not answered to its end has used up the time.
    for fineness in range(3):
        horizon = horizon_of(problem, question, best)
        ways, _ = placement_modes(problem, question, horizon, crossing)
        if ways is None or effort.left <= 0:
            break
        grid = grid_for(problem, ways, horizon, fineness)
        start = best.schedule or hint
        proven, closed = _solve(problem, question, ways, grid, best, start, bound, effort)
        bound = max(bound, proven)
        if not closed or best.reaches(bound):
            break
    return best.as_exact(bound if whole else None)


def reason_not_solved(problem: PlanningProblem) -> str | None:
    """Return why :func:`polish` would not try this problem; None when the function would."""
    question = SolverQuery(minimise="makespan", deadline=math.inf, budget=math.inf)
    horizon = horizon_of(problem, question, None)
    ways, _ = placement_modes(problem, question, horizon, "all")
    if ways is None:
        return "a task fits nowhere"
    n = sum(len(way.slots) for way in ways)
    if n > MOST:
        return f"tasks can be placed in {n} ways, more than {MOST}"
    return None


def _least_makespan(
    problem: PlanningProblem, question: SolverQuery, best: Incumbent, effort: SolverEffort
) -> float:
    """
    A makespan that no schedule beats, seconds.

    Halves the interval in which the least makespan lies: that nothing ends by some
    moment is shown faster, with fewer slots to look at, than that nothing better
    than the best is left. A moment that cannot be decided in time counts as too late.
    """
    cp_model = solver_library()
    low, high = 0.0, horizon_of(problem, question, best)
    trial = effort.left / 5
    while high - low > NEAR * high and effort.left > 0:
        moment = (low + high) / 2
        ways, _ = placement_modes(problem, question, moment, "all")
        if ways is None:
            low = moment
            continue
        # Coarse, and rounded so that all real schedules fit: infeasible then means that there is
        # none.
        grid = grid_for(problem, ways, moment, 0)
        money = money_for(problem, ways, grid) if question.priced else None
        model = build_model(problem, question, ways, grid, money)
        solver = _solver(question, SolverEffort(0.0, effort.workers, effort.seed))
        solver.parameters.max_time_in_seconds = min(trial, max(effort.left, 0.0))
        status = solver.solve(model.cp)
        if status == cp_model.INFEASIBLE:
            low = moment
            continue
        high = moment
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            _offer(problem, model, ways, solver.value, best)
    return low


def _solve(
    problem: PlanningProblem,
    question: SolverQuery,
    ways: list[PlacementMode],
    grid: TimeGrid,
    best: Incumbent,
    hint: Schedule | None,
    bound: float,
    effort: SolverEffort,
) -> tuple[float, bool]:
    """
    Offers every schedule found to ``best``.

    Answers the solver's bound, no better than ``bound`` where it has none, and
    whether it came to an end.
    """
    cp_model = solver_library()
    money = money_for(problem, ways, grid) if question.priced else None
    model = build_model(problem, question, ways, grid, money)
    unit = grid.step if money is None or question.minimise == "makespan" else money.unit
    # What is proven already is told to the solver, which then stops as soon as it reaches it.
    model.cp.add(model.objective >= math.floor(bound / unit))
    model.cp.minimize(model.objective)
    if hint is not None:
        give_hint(problem, model, ways, grid, hint)

    class Listener(cp_model.CpSolverSolutionCallback):  # type: ignore[misc, name-defined]
        def on_solution_callback(self) -> None:
            _offer(problem, model, ways, self.value, best)

    solver = _solver(question, effort)
    status = solver.solve(model.cp, Listener())
    if status == cp_model.INFEASIBLE:
        return bound, True
    closed = status == cp_model.OPTIMAL
    # Rounded up, the question has fewer schedules than the real one: its bound proves nothing.
    if grid.up:
        return bound, closed
    # A whole number, which the solver hands over as a float.
    return max(bound, math.ceil(solver.best_objective_bound - 1e-6) * unit), closed


def _solver(question: SolverQuery, effort: SolverEffort) -> Any:
    solver = solver_library().CpSolver()
    solver.parameters.max_time_in_seconds = max(effort.left, 0.0)
    solver.parameters.num_workers = effort.workers
    solver.parameters.random_seed = effort.seed
    # Costs are sums that the linear relaxation sees best; makespans are not.
    solver.parameters.linearization_level = 2 if question.minimise == "cost" else 1
    return solver


def _offer(
    problem: PlanningProblem,
    model: SolverModel,
    ways: list[PlacementMode],
    value: Callable[[Any], int],
    best: Incumbent,
) -> None:
    """Convert the solver's solution to seconds and offer the schedule to ``best``."""
    placed, caps = _read(problem, model, ways, value)
    schedule = schedule_in_seconds(problem, ways, placed, caps)
    if schedule is not None:
        best.offer(schedule)


def _read(
    problem: PlanningProblem,
    model: SolverModel,
    ways: list[PlacementMode],
    value: Callable[[Any], int],
) -> tuple[list[SolverPlacement], IntArray]:
    """Each task's place, and how many processors of each slot may be in use at once."""
    placed: dict[int, SolverPlacement] = {}
    caps = problem.everything.copy()
    for j, bill in model.bills.items():
        if bill.peak is not None:
            caps[j] = value(bill.peak)
    for k, chosen in enumerate(model.chosen):
        if not value(chosen):
            continue
        task, slots = ways[k].task, ways[k].slots
        held = [(j, int(problem.widths[task])) for j in slots]
        if k in model.parts:
            held = [(part.slot, value(part.count)) for part in model.parts[k]]
            held = [(j, count) for j, count in held if count > 0]
        for j, count in held:
            caps[j] = max(caps[j], count)  # what takes less than a step needs room too
        placed[task] = SolverPlacement(value(model.start[task]), k, tuple(held))
    return [placed[task] for task in range(problem.n_tasks)], caps
