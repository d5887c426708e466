"""
The best schedule there is, with its proof, for small and medium problems.

CP-SAT [1]_ is asked for the least makespan or the least cost. A task is one start
variable and one way to be placed: in one slot, or in several slots of a site
together, a number of processors from each. Each slot is a cumulative resource,
bought if anything runs in it, and paid by its own rule.

Time is counted in steps of 2^k seconds, so multiples of a step are floats without
error. If all of a problem's times are multiples of one, nothing is lost. Else the
solver gets a *relaxation*: begins, ends, run times, transfers and the deadline are
all rounded down. This is valid, for if a schedule with starts s is feasible, one
with starts floor(s) is feasible there: what begins after another's end,
s' >= s + d, still does, floor(s') >= floor(s + d) >= floor(s) + floor(d). Its bound
therefore holds for the problem itself (to within the float's own error, as all
bounds do). Each solution found is put back on the real clock: tasks by start, each
as soon as its processors are free; what then misses an end or the deadline is
dropped. If the best is dropped, or not as good as its bound, the time that is left
goes to finer steps, and then to the opposite rounding, whose solutions always keep
their ends and whose bound is not used.

Prices are rounded down likewise, unless they are multiples of 10^-k.

References
----------
.. [1] Perron, Didier, Gay (2023). The CP-SAT-LP solver. CP 2023, LIPIcs 280: 3:1-3:2.
"""

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from bursar.model.errors import InputError
from bursar.planning.kernels.board import Board, FloatArray, IntArray, Slots
from bursar.planning.kernels.placing import Draft
from bursar.planning.problem import Problem
from bursar.planning.schedulers import Schedule, from_draft

Objective = Literal["makespan", "cost"]
Crossing = Literal["all", "needed"]

MOST = 60_000
"""Ways to place tasks that the solver is given at most; more take it minutes to read."""
LONGEST = 2**30
"""Steps of time up to the horizon, of a step that divides all times."""
COARSE, MIDDLE, FINE = 2**13, 2**16, 2**22
"""Steps of time up to the horizon where no step divides all times; of fewer the
solver makes more. Coarse is for run times that are whole steps."""
FINEST = 2**46
"""Units of money in the dearest plan where no unit divides all prices."""
SAME = 1e-9
"""Relative. Sums of floats that differ by less are the same: they depend on the order."""
EASE = 1e-6
"""Steps by which sums of floats may pass an end."""
NEAR = 2e-3
"""Share of the makespan to which the interval that holds the least one is halved."""
CLOSE = 1e-5
"""Share of the objective by which the best schedule may exceed the bound."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exact:
    """
    The best schedule found, and how good any can be.

    Parameters
    ----------
    schedule
        It keeps the deadline and the budget.
    makespan
        Seconds.
    cost
        Currency units; NaN when a price is unknown.
    bound
        What no schedule within the deadline and the budget beats: seconds or
        currency units. None when nothing is proven of the whole problem.
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
class _Question:
    minimise: Objective
    deadline: float
    budget: float

    @property
    def priced(self) -> bool:
        """Whether cost matters."""
        return self.minimise == "cost" or self.budget < math.inf

    def of(self, makespan: float, cost: float) -> float:
        """The objective."""
        return makespan if self.minimise == "makespan" else cost

    def is_met(self, makespan: float, cost: float) -> bool:
        """Whether a schedule keeps the deadline and the budget."""
        if makespan > self.deadline * (1 + SAME):
            return False
        return not self.priced or cost <= self.budget * (1 + SAME)


@dataclass(frozen=True, slots=True)
class _Effort:
    """Until when to work, on :func:`time.monotonic`'s clock, with how many threads."""

    until: float
    workers: int
    seed: int

    @property
    def left(self) -> float:
        """Seconds."""
        return self.until - time.monotonic()

    def share(self, part: float) -> "_Effort":
        """A part of the time that is left."""
        return _Effort(time.monotonic() + part * self.left, self.workers, self.seed)


@dataclass(frozen=True, slots=True)
class _Way:
    """
    How a task can be placed.

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


@dataclass(frozen=True, slots=True)
class _Grid:
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
class _Money:
    """Amounts as whole units, rounded as the grid is; ``whole``: no rounding is needed."""

    unit: float
    whole: bool
    up: bool

    def of(self, amount: float) -> int:
        if self.whole:
            return round(amount / self.unit)
        return math.ceil(amount / self.unit) if self.up else math.floor(amount / self.unit)


def polish(
    problem: Problem,
    *,
    minimise: Objective,
    deadline: float | None = None,
    budget: float | None = None,
    hint: Schedule | None = None,
    time_limit: float,
    workers: int = 1,
    seed: int = 0,
    crossing: Crossing = "all",
) -> Exact | None:
    """
    The schedule of least makespan or least cost that the solver finds in time.

    None when it finds none, when there is none, or when :func:`why_not` has a reason.
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
    _cp_model()
    question = _Question(
        minimise=minimise,
        deadline=math.inf if deadline is None else deadline,
        budget=math.inf if budget is None else budget,
    )
    best = _Best(problem, question)
    if hint is not None and hint.complete:
        best.offer(hint)
    effort = _Effort(time.monotonic() + time_limit, workers, seed)
    ways, whole = _ways(problem, question, _horizon(problem, question, best), crossing)
    if ways is None or sum(len(way.slots) for way in ways) > MOST:
        return best.as_exact(None)
    bound = 0.0
    if minimise == "makespan" and whole:
        bound = _least_makespan(problem, question, best, effort.share(1 / 4))
    for fineness in range(3):
        horizon = _horizon(problem, question, best)
        ways, _ = _ways(problem, question, horizon, crossing)
        if ways is None or effort.left <= 0:
            break
        grid = _grid(problem, ways, horizon, fineness)
        start = best.schedule or hint
        proven, closed = _solve(problem, question, ways, grid, best, start, bound, effort)
        bound = max(bound, proven)
        if not closed or best.reaches(bound):
            break
    return best.as_exact(bound if whole else None)


def why_not(problem: Problem) -> str | None:
    """Why :func:`polish` would not try; None when it would."""
    question = _Question(minimise="makespan", deadline=math.inf, budget=math.inf)
    horizon = _horizon(problem, question, None)
    ways, _ = _ways(problem, question, horizon, "all")
    if ways is None:
        return "a task fits nowhere"
    n = sum(len(way.slots) for way in ways)
    if n > MOST:
        return f"tasks can be placed in {n} ways, more than {MOST}"
    return None


class _Best:
    """The best schedule so far that keeps deadline and budget."""

    def __init__(self, problem: Problem, question: _Question) -> None:
        self.problem = problem
        self.question = question
        self.schedule: Schedule | None = None
        self.makespan = math.inf
        self.cost = math.inf

    @property
    def objective(self) -> float:
        return self.question.of(self.makespan, self.cost)

    def offer(self, schedule: Schedule) -> None:
        """Takes the schedule if it is better; of equal makespans the cheaper."""
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

    def as_exact(self, bound: float | None) -> Exact | None:
        if self.schedule is None:
            return None
        return Exact(
            schedule=self.schedule,
            makespan=self.makespan,
            cost=self.cost,
            # A sum of floats may end below what it is a sum of.
            bound=None if bound is None else min(bound, self.objective),
            optimal=self.reaches(bound),
        )


def cost_of(problem: Problem, schedule: Schedule) -> float:
    """What the schedule costs, currency units; NaN when a price is unknown."""
    slots = problem.offers.arrays
    paid = slots.unit_price * schedule.paid + slots.fixed_price
    return math.fsum(paid[schedule.used].tolist())


# What can go where, and when.


def _horizon(problem: Problem, question: _Question, best: _Best | None) -> float:
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


def _ways(
    problem: Problem, question: _Question, horizon: float, crossing: Crossing
) -> tuple[list[_Way] | None, bool]:
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


def _static_ways(problem: Problem, question: _Question, task: int) -> list[_Way]:
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
            ways.append(_Way(task, s, 0.0, (), ((0.0, math.inf),)))
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
                ways.append(_Way(task, s, duration, (j,), (starts,)))
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
) -> Iterator[_Way]:
    """
    The way to place a task in several slots, if there are enough at once.

    Parameters
    ----------
    spans
        First and last start in each slot, seconds.
    counts
        Processors of each slot.
    """
    moments = sorted({a for a, _ in spans.values()})
    starts: list[tuple[float, float]] = []
    members: set[int] = set()
    # Whatever set of slots serves together does so from the last one's begin on.
    for moment in moments:
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
    yield _Way(task, site, duration, tuple(sorted(members)), tuple(joined))


def _within(ways: Iterable[_Way], earliest: float, latest: float) -> Iterator[_Way]:
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
            yield _Way(way.task, way.site, way.duration, way.slots, starts)


# Numbers for the solver.


def _grid(problem: Problem, ways: list[_Way], horizon: float, fineness: int) -> _Grid:
    """
    The coarsest step that divides all times; if that is too fine, one that does not.

    Parameters
    ----------
    fineness
        0: coarse steps, better searched; 1: finer ones; 2: and rounded so that all
        ends are kept.
    """
    slots = problem.offers.arrays
    lengths = {way.duration for way in ways} | {delay for *_, delay in _delays(problem)}
    moments = set(lengths)
    for j in {j for way in ways for j in way.slots}:
        moments.update(float(t[j]) for t in (slots.start, slots.begin, slots.end, slots.last))
    moments.discard(math.inf)
    step = 1.0
    while horizon / step < LONGEST:
        if _divides(step, moments):
            return _Grid(step, horizon, up=fineness == 2)
        step /= 2
    if fineness > 0:
        return _Grid(_step(horizon, FINE), horizon, up=fineness == 2)
    step = _step(horizon, COARSE)
    # Where only slots' begins and ends are rounded, what is lost does not add up.
    while not _divides(step, lengths) and step > _step(horizon, MIDDLE):
        step /= 2
    return _Grid(step, horizon, up=False)


def _step(horizon: float, steps: int) -> float:
    """The finest power of two, seconds, with at most so many steps to the horizon."""
    return float(2.0 ** math.ceil(math.log2(max(horizon, 1e-9) / steps)))


def _divides(step: float, moments: Iterable[float]) -> bool:
    return all((moment / step).is_integer() for moment in moments)


def _delays(problem: Problem) -> Iterator[tuple[int, int, int, int, float]]:
    """Parent, child, the sites of both, and the seconds that data take, where they do."""
    pairs = np.argwhere((problem.latency > 0) | (problem.seconds_per_byte > 0)).tolist()
    for child in range(problem.n_tasks):
        for edge in range(int(problem.parent_start[child]), int(problem.parent_start[child + 1])):
            size = float(problem.parent_bytes[edge])
            for a, b in pairs:
                delay = float(problem.latency[a, b] + size * problem.seconds_per_byte[a, b])
                if a != b and delay > 0:
                    yield int(problem.parent_index[edge]), child, a, b, delay


def _money(problem: Problem, ways: list[_Way], grid: _Grid) -> _Money:
    """The coarsest unit that divides all payments; if that is too fine, one that does not."""
    slots = problem.offers.arrays
    amounts: set[float] = set()
    for way in ways:
        amounts.update(
            float(slots.unit_price[j]) * way.duration for j in way.slots if slots.divisible[j]
        )
    total = 0.0
    for j in sorted({j for way in ways for j in way.slots}):
        unit, n, fixed = _prices(slots, j)
        start, end = float(slots.start[j]), float(slots.end[j])
        amounts.add(fixed)
        if slots.leased[j] or (not slots.divisible[j] and slots.last[j] > end):
            amounts.add(unit * grid.step)
        if not slots.divisible[j]:
            amounts.add(unit * n * (end - start))
        last = grid.horizon if slots.divisible[j] else max(grid.horizon, end)
        total += fixed + unit * n * max(last - start, 0.0)
    for digits in range(7):
        unit = 10.0**-digits
        if total / unit < FINEST and all(
            abs(a / unit - round(a / unit)) <= SAME * max(1.0, a / unit) for a in amounts
        ):
            return _Money(unit, True, grid.up)
    return _Money(2.0 ** math.ceil(math.log2(total / FINEST)), False, grid.up)


def _prices(slots: Slots, j: int) -> tuple[float, int, float]:
    """Unit price, processors and fixed price of a slot."""
    return float(slots.unit_price[j]), int(slots.processors[j]), float(slots.fixed_price[j])


# The model.


@dataclass(slots=True)
class _Bill:
    """Variables of what is paid for one slot; None where its rule needs none."""

    bought: Any = None
    extension: Any = None
    peak: Any = None
    span: Any = None
    area: Any = None


@dataclass(slots=True)
class _Part:
    """Processors that a slot gives to a task that takes several slots."""

    slot: int
    taken: Any
    count: Any


@dataclass(slots=True)
class _Model:
    """
    Parameters
    ----------
    cp
        What the solver reads.
    start
        Of each task, steps.
    chosen
        Of each way, whether it is taken.
    parts
        Of each way, by its number, that takes several slots.
    at
        By task and site, whether the task runs there; only where data take time.
    bills
        By slot; only where cost matters.
    makespan
        Steps; only where it is minimised.
    objective
        To be minimised.
    """

    cp: Any
    start: list[Any]
    chosen: list[Any]
    parts: dict[int, list[_Part]] = field(default_factory=dict)
    at: dict[tuple[int, int], Any] = field(default_factory=dict)
    bills: dict[int, _Bill] = field(default_factory=dict)
    makespan: Any = None
    objective: Any = None


@dataclass(slots=True)
class _Use:
    """What may run in a slot: whether it does, its task, steps and processors."""

    runs: Any
    task: int
    size: int
    width: Any
    way: _Way


def _build(
    problem: Problem, question: _Question, ways: list[_Way], grid: _Grid, money: _Money | None
) -> _Model:
    """The question as the solver reads it."""
    cp_model = _cp_model()
    cp = cp_model.CpModel()
    latest = grid.end(grid.horizon)
    start = [cp.new_int_var(0, latest, f"start{i}") for i in range(problem.n_tasks)]
    chosen = [cp.new_bool_var(f"way{k}") for k in range(len(ways))]
    model = _Model(cp, start, chosen)
    uses: dict[int, list[_Use]] = {}
    of_task: list[list[int]] = [[] for _ in range(problem.n_tasks)]
    for k, way in enumerate(ways):
        of_task[way.task].append(k)
        size = grid.span(way.duration)
        starts = [[grid.begin(a), min(grid.end(b), latest - size)] for a, b in way.starts]
        _keep(cp_model, model, way.task, starts, chosen[k])
        width = int(problem.widths[way.task])
        if len(way.slots) == 1:
            uses.setdefault(way.slots[0], []).append(_Use(chosen[k], way.task, size, width, way))
            last = grid.end(float(problem.offers.arrays.last[way.slots[0]])) - size
            if starts[0][1] > last:
                _keep(cp_model, model, way.task, [[0, last]], chosen[k])
        elif way.slots:
            model.parts[k] = _split(cp_model, model, problem, grid, way, chosen[k])
            for part in model.parts[k]:
                use = _Use(part.taken, way.task, size, part.count, way)
                uses.setdefault(part.slot, []).append(use)
    for own in of_task:
        cp.add_exactly_one(chosen[k] for k in own)

    ends = [_end(model, ways, grid, task, own) for task, own in enumerate(of_task)]
    for child in range(problem.n_tasks):
        for edge in range(int(problem.parent_start[child]), int(problem.parent_start[child + 1])):
            cp.add(start[child] >= ends[int(problem.parent_index[edge])])
    for parent, child, a, b, delay in _delays(problem):
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
            bill = model.bills[j] = _Bill(bought=cp.new_bool_var(f"bought{j}"))
            payments += _pay(model, problem, j, bill, slot_uses, ends, grid, money)
            peak = peak if bill.peak is None else bill.peak
        lasting = [use for use in slot_uses if use.size > 0]
        cp.add_cumulative(
            [
                cp.new_optional_fixed_size_interval_var(start[u.task], u.size, u.runs, "")
                for u in lasting
            ],
            [u.width for u in lasting],
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


def _keep(cp_model: Any, model: _Model, task: int, starts: list[list[int]], if_: Any) -> None:
    """The task starts in one of the intervals if the literal holds."""
    domain = cp_model.Domain.from_intervals([pair for pair in starts if pair[0] <= pair[1]])
    model.cp.add_linear_expression_in_domain(model.start[task], domain).only_enforce_if(if_)


def _add_together(
    problem: Problem, model: _Model, ways: list[_Way], of_task: list[list[int]], grid: _Grid
) -> None:
    """
    All tasks on all processors on offer, as if these were one slot.

    This follows from the rest, but here no task is optional, so that the solver sees
    early that too much is left to do.
    """
    slots, cp = problem.offers.arrays, model.cp
    changes: dict[int, int] = {}
    for j in sorted({j for way in ways for j in way.slots}):
        begin, end = grid.begin(float(slots.begin[j])), grid.end(float(slots.last[j]))
        if begin < end:
            changes[begin] = changes.get(begin, 0) + int(slots.processors[j])
            changes[end] = changes.get(end, 0) - int(slots.processors[j])
    moments = sorted(changes)
    offered = np.cumsum([changes[moment] for moment in moments]).tolist()
    most = max(offered, default=0)
    intervals, widths = [], []
    for a, b, n in zip(
        [0, *moments], [*moments, grid.end(grid.horizon)], [0, *offered], strict=True
    ):
        if a < b and n < most:
            intervals.append(cp.new_fixed_size_interval_var(a, b - a, ""))
            widths.append(most - n)
    for task, own in enumerate(of_task):
        size = min(grid.span(ways[k].duration) for k in own)
        if size > 0:
            intervals.append(cp.new_fixed_size_interval_var(model.start[task], size, ""))
            widths.append(int(problem.widths[task]))
    cp.add_cumulative(intervals, widths, most)


def _split(
    cp_model: Any, model: _Model, problem: Problem, grid: _Grid, way: _Way, chosen: Any
) -> list[_Part]:
    """The processors that each slot gives if the way is taken."""
    slots, cp = problem.offers.arrays, model.cp
    width = int(problem.widths[way.task])
    size = grid.span(way.duration)
    parts = []
    for j in way.slots:
        most = min(int(slots.processors[j]), width - 1)
        taken = cp.new_bool_var(f"takes{way.task}.{j}")
        count = cp.new_int_var(0, most, f"count{way.task}.{j}")
        cp.add(count >= taken)
        cp.add(count <= most * taken)
        cp.add_implication(taken, chosen)
        first, last = grid.begin(float(slots.begin[j])), grid.end(float(slots.last[j])) - size
        _keep(cp_model, model, way.task, [[first, last]], taken)
        parts.append(_Part(j, taken, count))
    cp.add(sum(part.count for part in parts) == width * chosen)
    return parts


def _end(model: _Model, ways: list[_Way], grid: _Grid, task: int, own: list[int]) -> Any:
    """Finish of a task, steps."""
    sizes = {k: grid.span(ways[k].duration) for k in own}
    if len(set(sizes.values())) == 1:
        return model.start[task] + sizes[own[0]]
    return model.start[task] + sum(size * model.chosen[k] for k, size in sizes.items())


def _is_at(model: _Model, ways: list[_Way], own: list[int], task: int, site: int) -> Any:
    """Whether the task runs on the site; None where it cannot."""
    if (task, site) not in model.at:
        there = [model.chosen[k] for k in own if ways[k].site == site]
        if there:
            model.at[task, site] = model.cp.new_bool_var(f"at{task}.{site}")
            model.cp.add(sum(there) == model.at[task, site])
        else:
            model.at[task, site] = None
    return model.at[task, site]


def _pay(
    model: _Model,
    problem: Problem,
    j: int,
    bill: _Bill,
    uses: list[_Use],
    ends: list[Any],
    grid: _Grid,
    money: _Money,
) -> list[Any]:
    """What is paid for a slot, as terms of a sum."""
    cp, slots = model.cp, problem.offers.arrays
    unit, n, fixed = _prices(slots, j)
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


def _is_part(use: _Use) -> bool:
    """Whether the task takes several slots, so that its processors here are a variable."""
    return len(use.way.slots) > 1


# From the solver and to it.


def _least_makespan(problem: Problem, question: _Question, best: _Best, effort: _Effort) -> float:
    """
    A makespan that no schedule beats, seconds.

    Halves the interval in which the least makespan lies: that nothing ends by some
    moment is shown faster, with fewer slots to look at, than that nothing better
    than the best is left. A moment that cannot be decided in time counts as too late.
    """
    cp_model = _cp_model()
    low, high = 0.0, _horizon(problem, question, best)
    trial = effort.left / 5
    while high - low > NEAR * high and effort.left > 0:
        moment = (low + high) / 2
        ways, _ = _ways(problem, question, moment, "all")
        if ways is None:
            low = moment
            continue
        grid = _grid(problem, ways, moment, 0)
        money = _money(problem, ways, grid) if question.priced else None
        model = _build(problem, question, ways, grid, money)
        solver = _solver(question, _Effort(0.0, effort.workers, effort.seed))
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
    problem: Problem,
    question: _Question,
    ways: list[_Way],
    grid: _Grid,
    best: _Best,
    hint: Schedule | None,
    bound: float,
    effort: _Effort,
) -> tuple[float, bool]:
    """
    Offers every schedule found to ``best``.

    Answers the solver's bound, no better than ``bound`` where it has none, and
    whether it came to an end.
    """
    cp_model = _cp_model()
    money = _money(problem, ways, grid) if question.priced else None
    model = _build(problem, question, ways, grid, money)
    unit = grid.step if money is None or question.minimise == "makespan" else money.unit
    model.cp.add(model.objective >= math.floor(bound / unit))
    model.cp.minimize(model.objective)
    if hint is not None:
        _give_hint(problem, model, ways, grid, hint)

    class Listener(cp_model.CpSolverSolutionCallback):  # type: ignore[misc, name-defined]
        def on_solution_callback(self) -> None:
            _offer(problem, model, ways, self.value, best)

    solver = _solver(question, effort)
    status = solver.solve(model.cp, Listener())
    if status == cp_model.INFEASIBLE:
        return bound, True
    closed = status == cp_model.OPTIMAL
    if grid.up:
        return bound, closed
    # A whole number, which the solver hands over as a float.
    return max(bound, math.ceil(solver.best_objective_bound - 1e-6) * unit), closed


def _solver(question: _Question, effort: _Effort) -> Any:
    solver = _cp_model().CpSolver()
    solver.parameters.max_time_in_seconds = max(effort.left, 0.0)
    solver.parameters.num_workers = effort.workers
    solver.parameters.random_seed = effort.seed
    # Costs are sums that the linear relaxation sees best; makespans are not.
    solver.parameters.linearization_level = 2 if question.minimise == "cost" else 1
    return solver


def _offer(
    problem: Problem,
    model: _Model,
    ways: list[_Way],
    value: Callable[[Any], int],
    best: _Best,
) -> None:
    """Puts the solver's solution on the clock and offers it."""
    placed, caps = _read(problem, model, ways, value)
    schedule = _on_the_clock(problem, ways, placed, caps)
    if schedule is not None:
        best.offer(schedule)


@dataclass(frozen=True, slots=True)
class _Placed:
    """A task as the solver places it: its start in steps, its way, its slots with a count each."""

    start: int
    way: int
    held: tuple[tuple[int, int], ...]


def _read(
    problem: Problem, model: _Model, ways: list[_Way], value: Callable[[Any], int]
) -> tuple[list[_Placed], IntArray]:
    """Each task's place, and how many processors of each slot may be in use at once."""
    placed: dict[int, _Placed] = {}
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
        placed[task] = _Placed(value(model.start[task]), k, tuple(held))
    return [placed[task] for task in range(problem.n_tasks)], caps


def _on_the_clock(
    problem: Problem, ways: list[_Way], placed: list[_Placed], caps: IntArray
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
        j: _Row(float(slots.begin[j]), float(slots.last[j]), int(caps[j]))
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
    board = Board(
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
    draft = Draft(
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


def _ready(problem: Problem, site: IntArray, finish: FloatArray, task: int) -> float:
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
    problem: Problem,
    site: IntArray,
    finish: FloatArray,
    uses: IntArray,
    until: FloatArray,
    peak: IntArray,
) -> None:
    """
    Tasks without duration hold nothing, but what is leased must be wide enough for them.

    The model does without this, so that its bound may be lower than need be.
    """
    slots = problem.offers.arrays
    for task in np.flatnonzero(problem.runtimes[np.arange(problem.n_tasks), site] == 0.0):
        s, width = site[task], problem.widths[task]
        wide = [
            j
            for j in range(int(slots.first[s]), int(slots.first[s + 1]))
            if slots.leased[j] and slots.processors[j] >= width
        ]
        if wide:
            j = max(wide, key=lambda j: (uses[j] > 0, -j))
            uses[j] += 1
            until[j] = max(until[j], finish[task])
            peak[j] = max(peak[j], width)


class _Row:
    """Free processors of a slot over time; see :mod:`bursar.planning.kernels.board`."""

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


def _give_hint(
    problem: Problem, model: _Model, ways: list[_Way], grid: _Grid, hint: Schedule
) -> None:
    """Tells the solver a schedule, all variables of it."""
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


def _cp_model() -> Any:
    """The solver, which is not read before it is needed."""
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise InputError(
            "exact planning needs OR-Tools, which is not installed",
            hint="pip install 'bursar[exact]'",
        ) from None
    return cp_model
