"""The question to the solver: effort, best answer so far, and tasks and slots in units of time."""

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bursar.planning.kernels.availability import SlotArrays
from bursar.planning.problem import PlanningProblem
from bursar.planning.schedule import Schedule

# A query to the solver: question, effort allowed, and the best answer so far.

Objective = Literal["makespan", "cost"]


Crossing = Literal["all", "needed"]


SAME = 1e-9
"""Relative. Sums of floats that differ by less are the same: they depend on the order."""


CLOSE = 1e-5
"""Share of the objective by which the best schedule may exceed the bound."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExactSolution:
    """
    The best schedule found, and how good any can be.

    Parameters
    ----------
    schedule
        Best schedule found; within the deadline and the budget.
    makespan
        Seconds.
    cost
        Currency units; NaN when a price is unknown.
    bound
        Proven lower bound of the objective within deadline and budget, seconds or currency units.
        None when nothing is proven of the whole problem.
    optimal
        Whether nothing better exists: where times or prices had to be rounded,
        nothing better by one part in 10^5.
    """

    schedule: Schedule
    makespan: float
    cost: float
    bound: float | None
    optimal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverQuery:
    minimise: Objective
    deadline: float
    budget: float

    @property
    def priced(self) -> bool:
        """Whether cost matters."""
        return self.minimise == "cost" or self.budget < math.inf

    def of(self, makespan: float, cost: float) -> float:
        """Return the value of the objective: makespan in seconds, or cost."""
        return makespan if self.minimise == "makespan" else cost

    def is_met(self, makespan: float, cost: float) -> bool:
        """Whether a schedule keeps the deadline and the budget."""
        if makespan > self.deadline * (1 + SAME):
            return False
        return not self.priced or cost <= self.budget * (1 + SAME)


@dataclass(frozen=True, slots=True)
class SolverEffort:
    """Until when to work, on :func:`time.monotonic`'s clock, with how many threads."""

    until: float
    workers: int
    seed: int

    @property
    def left(self) -> float:
        """Seconds of solving that are left."""
        return self.until - time.monotonic()

    def share(self, part: float) -> "SolverEffort":
        """Return an effort that may take a part, from 0 to 1, of the time that is left."""
        return SolverEffort(time.monotonic() + part * self.left, self.workers, self.seed)


class Incumbent:
    """The best schedule so far that keeps deadline and budget."""

    def __init__(self, problem: PlanningProblem, question: SolverQuery) -> None:
        self.problem = problem
        self.question = question
        self.schedule: Schedule | None = None
        self.makespan = math.inf
        self.cost = math.inf

    @property
    def objective(self) -> float:
        return self.question.of(self.makespan, self.cost)

    def offer(self, schedule: Schedule) -> None:
        """Take the schedule if better than the best so far; of equal makespans the cheaper."""
        makespan, cost = schedule.makespan, cost_of(self.problem, schedule)
        found = (self.question.of(makespan, cost), cost)
        better = self.schedule is None or found < (self.objective, self.cost)
        if better and self.question.is_met(makespan, cost):
            self.schedule, self.makespan, self.cost = schedule, makespan, cost

    def reaches(self, bound: float | None) -> bool:
        """Whether nothing can be better."""
        if bound is None or self.schedule is None:
            return False
        return self.objective <= bound + CLOSE * abs(bound)

    def as_exact(self, bound: float | None) -> ExactSolution | None:
        if self.schedule is None:
            return None
        return ExactSolution(
            schedule=self.schedule,
            makespan=self.makespan,
            cost=self.cost,
            # A sum of floats may end below what it is a sum of.
            bound=None if bound is None else min(bound, self.objective),
            optimal=self.reaches(bound),
        )


def cost_of(problem: PlanningProblem, schedule: Schedule) -> float:
    """Return the cost of the schedule, currency units; NaN when a price is unknown."""
    slots = problem.offers.arrays
    paid = slots.unit_price * schedule.paid + slots.fixed_price
    return math.fsum(paid[schedule.used].tolist())


# Whole numbers of time and money for the solver, and the ways to place each task in them.

# Enumerates placement modes: the sites, slots and start times that each task can take.


@dataclass(frozen=True, slots=True)
class PlacementMode:
    """
    Describes one way to place a task.

    Parameters
    ----------
    task, site
        Indices.
    duration
        Seconds.
    slots
        One, or those that may take part together; none where the task takes no time.
    starts
        First and last start of each interval in which it can start, seconds.
    """

    task: int
    site: int
    duration: float
    slots: tuple[int, ...]
    starts: tuple[tuple[float, float], ...]


def horizon_of(problem: PlanningProblem, question: SolverQuery, best: Incumbent | None) -> float:
    """
    A moment by which all tasks can have ended in some best schedule, seconds.

    A schedule in which nothing can be earlier never rests after the last slot's
    begin: something runs or is on its way.
    """
    slots = problem.offers.arrays
    if not len(slots.begin):
        return 0.0
    runs = np.where(np.isfinite(problem.runtimes), problem.runtimes, 0.0).max(axis=1).sum()
    moves = problem.latency.max() + problem.parent_bytes * problem.seconds_per_byte.max()
    work = float(slots.begin.max() + runs + moves.sum())
    horizon = min(question.deadline, work * (1 + SAME), max(float(slots.last.max()), 0.0))
    if not (problem.runtimes.min(axis=1) > 0).all():  # they need no slot to end in
        horizon = min(question.deadline, work * (1 + SAME))
    if best is not None and question.minimise == "makespan":
        horizon = min(horizon, best.makespan)
    return horizon


def placement_modes(
    problem: PlanningProblem, question: SolverQuery, horizon: float, crossing: Crossing
) -> tuple[list[PlacementMode] | None, bool]:
    """
    Every way to place each task by the horizon; None when a task has none.

    The second answer says whether none was left out.
    """
    static = [_static_ways(problem, question, task) for task in range(problem.n_tasks)]
    whole = True
    if crossing == "needed":
        for task, ways in enumerate(static):
            single = [way for way in ways if len(way.slots) < 2]
            if single and len(single) < len(ways):
                static[task] = single
                whole = False
    earliest, latest = np.zeros(problem.n_tasks), np.full(problem.n_tasks, horizon)
    parents = [
        problem.parent_index[a:b].tolist()
        for a, b in zip(problem.parent_start[:-1], problem.parent_start[1:], strict=True)
    ]
    ends = np.zeros(problem.n_tasks)
    for task in problem.order.tolist():
        earliest[task] = max((ends[p] for p in parents[task]), default=0.0)
        static[task] = list(_within(static[task], earliest[task], horizon))
        if not static[task]:
            return None, whole
        ends[task] = min(way.starts[0][0] + way.duration for way in static[task])
    for task in problem.order.tolist()[::-1]:
        static[task] = list(_within(static[task], earliest[task], latest[task]))
        if not static[task]:
            return None, whole
        begin = max(way.starts[-1][1] for way in static[task])
        for parent in parents[task]:
            latest[parent] = min(latest[parent], begin)
    return [way for ways in static for way in ways], whole


def _static_ways(problem: PlanningProblem, question: SolverQuery, task: int) -> list[PlacementMode]:
    """Ways to place a task, with the horizon and the other tasks left out of account."""
    slots, width = problem.offers.arrays, int(problem.widths[task])
    known = ~np.isnan(slots.unit_price + slots.fixed_price)
    usable = known if question.priced else np.ones(problem.n_slots, dtype=np.bool_)
    ways = []
    for s in range(problem.n_sites):
        duration = float(problem.runtimes[task, s])
        if duration == math.inf:
            continue
        if duration == 0.0:
            ways.append(PlacementMode(task, s, 0.0, (), ((0.0, math.inf),)))
            continue
        group = [
            j
            for j in range(int(slots.first[s]), int(slots.first[s + 1]))
            if usable[j] and slots.begin[j] + duration <= slots.last[j]
        ]
        spans = {j: (float(slots.begin[j]), float(slots.last[j]) - duration) for j in group}
        counts = {j: int(slots.processors[j]) for j in group}
        for j in group:
            if counts[j] >= width:
                # The last start may round to just before the first.
                starts = (spans[j][0], max(spans[j]))
                ways.append(PlacementMode(task, s, duration, (j,), (starts,)))
        if width > 1 and len(group) > 1:
            ways.extend(_together(task, s, duration, width, spans, counts))
    return ways


def _together(
    task: int,
    site: int,
    duration: float,
    width: int,
    spans: dict[int, tuple[float, float]],
    counts: dict[int, int],
) -> Iterator[PlacementMode]:
    """
    The way to place a task in several slots, if there are enough at once.

    Parameters
    ----------
    spans
        First and last start in each slot, seconds.
    counts
        Processors of each slot.
    """
    instants = sorted({a for a, _ in spans.values()})
    starts: list[tuple[float, float]] = []
    members: set[int] = set()
    # Whatever set of slots serves together does so from the last one's begin on.
    for moment in instants:
        open_ = sorted((j for j in spans if spans[j][0] <= moment <= spans[j][1]),
                       key=lambda j: -spans[j][1])  # fmt: skip
        total = 0
        for n, j in enumerate(open_, start=1):
            total += counts[j]
            if total >= width and n > 1:
                starts.append((moment, spans[j][1]))
                members.update(open_)
                break
    if not starts:
        return
    joined = [starts[0]]
    for a, b in starts[1:]:
        if a <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(b, joined[-1][1]))
        else:
            joined.append((a, b))
    yield PlacementMode(task, site, duration, tuple(sorted(members)), tuple(joined))


def _within(
    ways: Iterable[PlacementMode], earliest: float, latest: float
) -> Iterator[PlacementMode]:
    """The ways that start from ``earliest`` on and end by ``latest``, seconds."""
    ease = SAME * (1 + abs(latest))  # sums of floats are not exact
    for way in ways:
        last = latest - way.duration
        starts = tuple(
            (max(a, earliest), max(min(b, last), max(a, earliest)))
            for a, b in way.starts
            if max(a, earliest) <= min(b, last) + ease
        )
        if starts:
            yield PlacementMode(way.task, way.site, way.duration, way.slots, starts)


def delays(problem: PlanningProblem) -> Iterator[tuple[int, int, int, int, float]]:
    """Yield parent, child, both sites and the transfer time, seconds, where data take time."""
    pairs = np.argwhere((problem.latency > 0) | (problem.seconds_per_byte > 0)).tolist()
    for child in range(problem.n_tasks):
        for edge in range(int(problem.parent_start[child]), int(problem.parent_start[child + 1])):
            size = float(problem.parent_bytes[edge])
            for a, b in pairs:
                delay = float(problem.latency[a, b] + size * problem.seconds_per_byte[a, b])
                if a != b and delay > 0:
                    yield int(problem.parent_index[edge]), child, a, b, delay


LONGEST = 2**30
"""Steps of time up to the horizon, of a step that divides all times."""


COARSE, MIDDLE, FINE = 2**13, 2**16, 2**22
"""Steps of time up to the horizon where no step divides all times; of fewer the
solver makes more. Coarse is for run times that are whole steps."""


FINEST = 2**46
"""Units of money in the dearest plan where no unit divides all prices."""


EASE = 1e-6
"""Steps by which sums of floats may pass an end."""


@dataclass(frozen=True, slots=True)
class TimeGrid:
    """
    Times as whole steps.

    Parameters
    ----------
    step
        Seconds, a power of two.
    horizon
        No task needs to end later, seconds.
    up
        Round so that what fits the grid fits the clock; else the other way about.
    """

    step: float
    horizon: float
    up: bool

    def begin(self, moment: float) -> int:
        """The step at which something may begin."""
        return math.ceil(moment / self.step) if self.up else math.floor(moment / self.step)

    def end(self, moment: float) -> int:
        """The step by which something must end."""
        last = min(moment, self.horizon) / self.step
        return math.floor(last if self.up else last + EASE)

    def span(self, duration: float) -> int:
        """Steps that something takes."""
        return self.begin(duration)

    def paid_from(self, moment: float) -> int:
        """The step from which time is paid."""
        return math.floor(moment / self.step) if self.up else math.ceil(moment / self.step)


@dataclass(frozen=True, slots=True)
class MoneyGrid:
    """Amounts as whole units, rounded as the grid is; ``whole``: no rounding is needed."""

    unit: float
    whole: bool
    up: bool

    def of(self, amount: float) -> int:
        if self.whole:
            return round(amount / self.unit)
        return math.ceil(amount / self.unit) if self.up else math.floor(amount / self.unit)


def grid_for(
    problem: PlanningProblem, ways: list[PlacementMode], horizon: float, fineness: int
) -> TimeGrid:
    """
    The coarsest step that divides all times; if that is too fine, one that does not.

    Parameters
    ----------
    fineness
        0: coarse steps, better searched; 1: finer ones; 2: and rounded so that all ends are kept.
    """
    slots = problem.offers.arrays
    lengths = {way.duration for way in ways} | {delay for *_, delay in delays(problem)}
    instants = set(lengths)
    for j in {j for way in ways for j in way.slots}:
        instants.update(float(t[j]) for t in (slots.start, slots.begin, slots.end, slots.last))
    instants.discard(math.inf)
    step = 1.0
    # Powers of two: dividing by them loses no bit, so a time on the grid is exact.
    while horizon / step < LONGEST:
        if _divides(step, instants):
            return TimeGrid(step, horizon, up=fineness == 2)
        step /= 2
    if fineness > 0:
        return TimeGrid(_step(horizon, FINE), horizon, up=fineness == 2)
    step = _step(horizon, COARSE)
    # Where only slots' begins and ends are rounded, what is lost does not add up.
    while not _divides(step, lengths) and step > _step(horizon, MIDDLE):
        step /= 2
    return TimeGrid(step, horizon, up=False)


def _step(horizon: float, steps: int) -> float:
    """The finest power of two, seconds, with at most so many steps to the horizon."""
    return float(2.0 ** math.ceil(math.log2(max(horizon, 1e-9) / steps)))


def _divides(step: float, instants: Iterable[float]) -> bool:
    return all((moment / step).is_integer() for moment in instants)


def money_for(problem: PlanningProblem, ways: list[PlacementMode], grid: TimeGrid) -> MoneyGrid:
    """The coarsest unit that divides all payments; if that is too fine, one that does not."""
    slots = problem.offers.arrays
    amounts: set[float] = set()
    for way in ways:
        amounts.update(
            float(slots.unit_price[j]) * way.duration for j in way.slots if slots.divisible[j]
        )
    total = 0.0
    for j in sorted({j for way in ways for j in way.slots}):
        unit, n, fixed = prices_of(slots, j)
        start, end = float(slots.start[j]), float(slots.end[j])
        amounts.add(fixed)
        if slots.leased[j] or (not slots.divisible[j] and slots.last[j] > end):
            amounts.add(unit * grid.step)
        if not slots.divisible[j]:
            amounts.add(unit * n * (end - start))
        last = grid.horizon if slots.divisible[j] else max(grid.horizon, end)
        total += fixed + unit * n * max(last - start, 0.0)
    # Prices are mostly written in decimals, so a power of ten makes them whole.
    for digits in range(7):
        unit = 10.0**-digits
        if total / unit < FINEST and all(
            abs(a / unit - round(a / unit)) <= SAME * max(1.0, a / unit) for a in amounts
        ):
            return MoneyGrid(unit, True, grid.up)
    return MoneyGrid(2.0 ** math.ceil(math.log2(total / FINEST)), False, grid.up)


def prices_of(slots: SlotArrays, j: int) -> tuple[float, int, float]:
    """Unit price, processors and fixed price of a slot."""
    return float(slots.unit_price[j]), int(slots.processors[j]), float(slots.fixed_price[j])
