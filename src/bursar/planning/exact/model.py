"""Builds CP-SAT's variables and constraints for a query, and the hint from a schedule."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bursar.model.errors import InputError
from bursar.model.slot import ResourceProfile
from bursar.planning.exact.units import (
    SAME,
    MoneyGrid,
    PlacementMode,
    SolverQuery,
    TimeGrid,
    delays,
    prices_of,
)
from bursar.planning.problem import PlanningProblem
from bursar.planning.schedule import Schedule


@dataclass(slots=True)
class _SlotPayment:
    """Holds the variables of the payment for one slot; None where the slot's rule needs none."""

    bought: Any = None
    extension: Any = None
    peak: Any = None
    span: Any = None
    area: Any = None


@dataclass(slots=True)
class _SlotShare:
    """Holds the processors that one slot gives to a task that takes several slots."""

    slot: int
    taken: Any
    count: Any


@dataclass(slots=True)
class SolverModel:
    """
    A model for CP-SAT and its variables.

    Parameters
    ----------
    cp
        CP-SAT's model.
    start
        Start of each task, steps of the time grid.
    chosen
        Whether each placement mode is taken.
    parts
        Shares of the slots, by the number of a placement mode that takes several slots.
    at
        Whether a task runs on a site, by task and site; only where data take time.
    bills
        Payments by slot; only where cost matters.
    makespan
        Steps; only where it is minimised.
    objective
        Expression to minimise.
    """

    cp: Any
    start: list[Any]
    chosen: list[Any]
    parts: dict[int, list[_SlotShare]] = field(default_factory=dict)
    at: dict[tuple[int, int], Any] = field(default_factory=dict)
    bills: dict[int, _SlotPayment] = field(default_factory=dict)
    makespan: Any = None
    objective: Any = None


@dataclass(slots=True)
class _SlotUse:
    """Describes one possible use of a slot: whether the task runs there, how long and how wide."""

    runs: Any
    task: int
    size: int
    width: Any
    way: PlacementMode


def build_model(
    problem: PlanningProblem,
    question: SolverQuery,
    ways: list[PlacementMode],
    grid: TimeGrid,
    money: MoneyGrid | None,
) -> SolverModel:
    """Build the solver's model of a query."""
    cp_model = solver_library()
    cp = cp_model.CpModel()
    latest = grid.end(grid.horizon)
    start = [cp.new_int_var(0, latest, f"start{i}") for i in range(problem.n_tasks)]
    chosen = [cp.new_bool_var(f"way{k}") for k in range(len(ways))]
    model = SolverModel(cp, start, chosen)
    uses: dict[int, list[_SlotUse]] = {}
    of_task: list[list[int]] = [[] for _ in range(problem.n_tasks)]
    for k, way in enumerate(ways):
        of_task[way.task].append(k)
        size = grid.span(way.duration)
        starts = [[grid.begin(a), min(grid.end(b), latest - size)] for a, b in way.starts]
        _keep(cp_model, model, way.task, starts, chosen[k])
        width = int(problem.widths[way.task])
        if len(way.slots) == 1:
            uses.setdefault(way.slots[0], []).append(
                _SlotUse(chosen[k], way.task, size, width, way)
            )
            last = grid.end(float(problem.offers.arrays.last[way.slots[0]])) - size
            if starts[0][1] > last:
                _keep(cp_model, model, way.task, [[0, last]], chosen[k])
        elif way.slots:
            model.parts[k] = _split(cp_model, model, problem, grid, way, chosen[k])
            for part in model.parts[k]:
                use = _SlotUse(part.taken, way.task, size, part.count, way)
                uses.setdefault(part.slot, []).append(use)
    for own in of_task:
        cp.add_exactly_one(chosen[k] for k in own)

    ends = [_end(model, ways, grid, task, own) for task, own in enumerate(of_task)]
    for child in range(problem.n_tasks):
        for edge in range(int(problem.parent_start[child]), int(problem.parent_start[child + 1])):
            cp.add(start[child] >= ends[int(problem.parent_index[edge])])
    for parent, child, a, b, delay in delays(problem):
        there, here = (
            _is_at(model, ways, of_task[task], task, s) for task, s in ((parent, a), (child, b))
        )
        if there is not None and here is not None:
            arrival = ends[parent] + grid.span(delay)
            cp.add(start[child] >= arrival).only_enforce_if([there, here])

    _add_together(problem, model, ways, of_task, grid)
    payments = []
    for j, slot_uses in sorted(uses.items()):
        peak: Any = int(problem.offers.arrays.processors[j])
        if money is not None:
            bill = model.bills[j] = _SlotPayment(bought=cp.new_bool_var(f"bought{j}"))
            payments += _pay(model, problem, j, bill, slot_uses, ends, grid, money)
            peak = peak if bill.peak is None else bill.peak
        with_work = [use for use in slot_uses if use.size > 0]
        cp.add_cumulative(
            [
                cp.new_optional_fixed_size_interval_var(start[u.task], u.size, u.runs, "")
                for u in with_work
            ],
            [u.width for u in with_work],
            peak,
        )
    if money is not None and question.budget < math.inf:
        budget = question.budget / money.unit
        cp.add(sum(payments) <= math.floor(budget if grid.up else budget * (1 + SAME) + SAME))
    if question.minimise == "cost":
        model.objective = sum(payments)
    else:
        model.objective = model.makespan = cp.new_int_var(0, latest, "makespan")
        for end in ends:
            cp.add(model.makespan >= end)
    return model


def _keep(cp_model: Any, model: SolverModel, task: int, starts: list[list[int]], if_: Any) -> None:
    """Make the task start in one of the intervals where the literal holds."""
    domain = cp_model.Domain.from_intervals([pair for pair in starts if pair[0] <= pair[1]])
    model.cp.add_linear_expression_in_domain(model.start[task], domain).only_enforce_if(if_)


def _add_together(
    problem: PlanningProblem,
    model: SolverModel,
    ways: list[PlacementMode],
    of_task: list[list[int]],
    grid: TimeGrid,
) -> None:
    """
    Add the constraint that all tasks fit all processors on offer, as if these were one slot.

    This follows from the rest, but here no task is optional, so that the solver sees
    early that too much is left to do.
    """
    slots, cp = problem.offers.arrays, model.cp
    offered = ResourceProfile()
    for j in sorted({j for way in ways for j in way.slots}):
        begin, end = grid.begin(float(slots.begin[j])), grid.end(float(slots.last[j]))
        offered.change(begin, end, int(slots.processors[j]))
    steps = list(offered.steps(0))
    most = max(free for _, _, free in steps)
    intervals, widths = [], []
    for begins, ends, free in steps:
        a, b = int(begins), int(min(ends, grid.end(grid.horizon)))
        if a < b and free < most:
            intervals.append(cp.new_fixed_size_interval_var(a, b - a, ""))
            widths.append(most - free)
    for task, own in enumerate(of_task):
        size = min(grid.span(ways[k].duration) for k in own)
        if size > 0:
            intervals.append(cp.new_fixed_size_interval_var(model.start[task], size, ""))
            widths.append(int(problem.widths[task]))
    cp.add_cumulative(intervals, widths, most)


def _split(
    cp_model: Any,
    model: SolverModel,
    problem: PlanningProblem,
    grid: TimeGrid,
    way: PlacementMode,
    chosen: Any,
) -> list[_SlotShare]:
    """Return the processors that each slot gives if the placement mode is taken."""
    slots, cp = problem.offers.arrays, model.cp
    width = int(problem.widths[way.task])
    size = grid.span(way.duration)
    parts = []
    for j in way.slots:
        # All of them from one slot is a way of its own.
        most = min(int(slots.processors[j]), width - 1)
        taken = cp.new_bool_var(f"takes{way.task}.{j}")
        count = cp.new_int_var(0, most, f"count{way.task}.{j}")
        cp.add(count >= taken)
        cp.add(count <= most * taken)
        cp.add_implication(taken, chosen)
        first, last = grid.begin(float(slots.begin[j])), grid.end(float(slots.last[j])) - size
        _keep(cp_model, model, way.task, [[first, last]], taken)
        parts.append(_SlotShare(j, taken, count))
    cp.add(sum(part.count for part in parts) == width * chosen)
    return parts


def _end(
    model: SolverModel, ways: list[PlacementMode], grid: TimeGrid, task: int, own: list[int]
) -> Any:
    """Finish of a task, steps."""
    sizes = {k: grid.span(ways[k].duration) for k in own}
    if len(set(sizes.values())) == 1:
        return model.start[task] + sizes[own[0]]
    return model.start[task] + sum(size * model.chosen[k] for k, size in sizes.items())


def _is_at(
    model: SolverModel, ways: list[PlacementMode], own: list[int], task: int, site: int
) -> Any:
    """Return the literal of a task on a site; None where the task cannot run there."""
    if (task, site) not in model.at:
        there = [model.chosen[k] for k in own if ways[k].site == site]
        if there:
            model.at[task, site] = model.cp.new_bool_var(f"at{task}.{site}")
            model.cp.add(sum(there) == model.at[task, site])
        else:
            model.at[task, site] = None
    return model.at[task, site]


def _pay(
    model: SolverModel,
    problem: PlanningProblem,
    j: int,
    bill: _SlotPayment,
    uses: list[_SlotUse],
    ends: list[Any],
    grid: TimeGrid,
    money: MoneyGrid,
) -> list[Any]:
    """Return the payment for a slot as terms of a sum."""
    cp, slots = model.cp, problem.offers.arrays
    unit, n, fixed = prices_of(slots, j)
    start, end, last = float(slots.start[j]), float(slots.end[j]), float(slots.last[j])
    for use in uses:
        cp.add_implication(use.runs, bill.bought)
    # Implied, but without it the linear relaxation buys a sliver of each slot.
    area = sum(use.size * (use.width if _is_part(use) else use.width * use.runs) for use in uses)
    cp.add(area <= n * max(grid.end(last) - grid.begin(float(slots.begin[j])), 0) * bill.bought)

    terms = [money.of(fixed) * bill.bought]
    if slots.leased[j]:
        paid_from = grid.paid_from(start)
        longest = max(grid.end(last) - paid_from, 0)
        bill.peak = cp.new_int_var(0, n, f"peak{j}")
        bill.span = cp.new_int_var(0, longest, f"span{j}")
        bill.area = cp.new_int_var(0, n * longest, f"area{j}")
        for use in uses:
            cp.add(bill.span >= ends[use.task] - paid_from).only_enforce_if(use.runs)
        cp.add_multiplication_equality(bill.area, [bill.peak, bill.span])
        if paid_from <= grid.begin(float(slots.begin[j])):
            cp.add(bill.area >= area)  # implied as well
        return [*terms, money.of(unit * grid.step) * bill.area]
    if slots.divisible[j]:
        for use in uses:
            seconds = use.way.duration
            if _is_part(use):
                terms.append(money.of(unit * seconds) * use.width)
            else:
                terms.append(money.of(unit * seconds * use.width) * use.runs)
        return terms
    terms = [money.of(fixed + unit * n * (end - start)) * bill.bought]
    if last > end:
        paid_from = grid.paid_from(end)
        bill.extension = cp.new_int_var(0, max(grid.end(last) - paid_from, 0), f"extension{j}")
        for use in uses:
            cp.add(bill.extension >= ends[use.task] - paid_from).only_enforce_if(use.runs)
        terms.append(money.of(unit * n * grid.step) * bill.extension)
    return terms


def _is_part(use: _SlotUse) -> bool:
    """Whether the task takes several slots, so that the processors here are a variable."""
    return len(use.way.slots) > 1


def give_hint(
    problem: PlanningProblem,
    model: SolverModel,
    ways: list[PlacementMode],
    grid: TimeGrid,
    hint: Schedule,
) -> None:
    """Give the solver a schedule as a hint, with a value for every variable."""
    number = {
        (way.task, way.site, way.slots if len(way.slots) < 2 else None): k
        for k, way in enumerate(ways)
    }
    hinted: dict[int, dict[int, int]] = {}
    ends = [0] * problem.n_tasks
    until: dict[int, int] = {}
    for task in np.flatnonzero(hint.site >= 0).tolist():
        held = slice(hint.held_first[task], hint.held_first[task] + hint.held_count[task])
        taken = tuple(hint.held_slot[held].tolist())
        key = (task, int(hint.site[task]), taken if len(taken) < 2 else None)
        if key in number:
            way = number[key]
            hinted[way] = dict(zip(taken, hint.held_width[held].tolist(), strict=True))
            begin = grid.begin(float(hint.start[task]))
            ends[task] = begin + grid.span(ways[way].duration)
            model.cp.add_hint(model.start[task], begin)
            until.update({j: max(until.get(j, 0), ends[task]) for j in taken})
    for k, chosen in enumerate(model.chosen):
        model.cp.add_hint(chosen, k in hinted)
        for part in model.parts.get(k, ()):
            count = hinted.get(k, {}).get(part.slot, 0)
            model.cp.add_hint(part.taken, count > 0)
            model.cp.add_hint(part.count, count)
    for (task, s), at in model.at.items():
        if at is not None:
            model.cp.add_hint(at, bool(hint.site[task] == s))
    if model.makespan is not None:
        model.cp.add_hint(model.makespan, max(ends))
    for j, bill in model.bills.items():
        end = until.get(j, 0)
        model.cp.add_hint(bill.bought, j in until)
        if bill.extension is not None:
            late = end - grid.paid_from(float(problem.offers.arrays.end[j]))
            model.cp.add_hint(bill.extension, max(late, 0))
        if bill.peak is not None:
            span = max(end - grid.paid_from(float(problem.offers.arrays.start[j])), 0)
            peak = int(hint.peak[j]) if j in until else 0
            model.cp.add_hint(bill.peak, peak)
            model.cp.add_hint(bill.span, span if peak else 0)
            model.cp.add_hint(bill.area, peak * span)


def solver_library() -> Any:
    """Import and return the solver; late, since loading takes time and few commands need it."""
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise InputError(
            "exact planning needs OR-Tools, which is not installed",
            hint="pip install 'bursar[exact]'",
        ) from None
    return cp_model
