"""
Our own search: seeded, elitist, around many deadlines at once.

It begins with the purchases of :mod:`sweep` and those that the linear relaxation of the least cost
for a deadline points at (:mod:`bursar.planning.covering`). It looks for the fastest plan on
everything there is by changing the order in which tasks are taken. Then it holds a purchase for
each of a dozen deadlines, taken from the front as it is and now and then taken anew. Round after
round each makes offspring: a slot dropped, added, changed for another, or taken over from the
purchase for a neighbouring deadline, mostly together with another order of the tasks. An offspring
takes the place of a purchase whose deadline it meets when it costs less, or, with falling
probability, hardly more (simulated annealing). Slots that nothing runs in are dropped at once.

An order of the tasks is written as a key for each, the least first; a key less
than a parent's counts as the parent's. HEFT's keys are the upward ranks with a
minus sign; what a schedule pushed late and early again makes of them
(:mod:`bursar.planning.schedulers`) are moments, and steps are in seconds too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bursar.planning.bounds import is_solver_installed, offers_endless_leases
from bursar.planning.evaluation import PurchaseScores
from bursar.planning.kernels.availability import BoolArray, FloatArray, IntArray, SlotArrays
from bursar.planning.kernels.ranks import after_others
from bursar.planning.methods.search import PlanSearch
from bursar.planning.methods.sweep import sweep
from bursar.planning.problem import PlanningProblem
from bursar.planning.schedulers import TimeReversedProblem, by_site, schedule, upward_ranks

DEADLINES = 12
"""Number of deadlines: makespans of plans evenly far apart along the front."""
EPOCHS = 6
"""Number of times that the deadlines are chosen anew."""
OFFSPRING = 6
"""Offspring of each purchase in a round."""
CROSSING = 0.3
"""Share of the offspring that have two parents."""
WARMTH = 0.03
"""At first a purchase dearer by about this share may take another's place."""
HASTE = 0.3
"""Share of the schedules spent on the fastest plan."""
WALKS = 4
"""Walks side by side in the search for the fastest plan."""
HEAT = 0.03
"""At first a walk goes on to a schedule longer by about this share."""
PUSHED = 0.5
"""Share of the steps in which one walk's schedule is pushed late and early again."""
STEP = 0.6
"""Standard deviation of the change of a key, in median runtimes."""
WORK = 2e9
"""Tasks times slots looked at, about, when the number of evaluations is not given."""
MOST, FEWEST = 12_000, 300

FEW_MOVED, MANY_TASKS = 0.1, 5_000
"""
Share of the tasks, at most, that are moved to their places one by one, and tasks from which on this
is quicker than sorting all.
"""

Known = dict[tuple[float, float], FloatArray]
"""Maps makespan and cost of a plan to the keys of the task order that led to the plan."""


@dataclass(frozen=True, slots=True, eq=False)
class SortedTasks:
    """
    An order of the tasks.

    Parameters
    ----------
    keys
        A key for every task, the least first.
    raised
        The keys, none less than that of a parent, shape ``(n_tasks,)``; ``order`` sorts by these.
    """

    keys: FloatArray
    raised: FloatArray
    order: IntArray


@dataclass(slots=True, eq=False)
class _DeadlinePurchase:
    """Holds the purchase for a deadline: slots, order of the tasks, cost and waste by slot."""

    deadline: float
    bits: BoolArray
    tasks: SortedTasks
    cost: float
    waste: FloatArray


class TaskOrders:
    """Orders of the tasks, each written as a key for every task, the least first."""

    def __init__(self, problem: PlanningProblem) -> None:
        self._problem = problem
        self.usual = -upward_ranks(problem, by_site(problem, problem.everything))
        """HEFT's."""
        self._step = STEP * float(np.median(problem.runtimes.min(axis=1)))
        self._place = np.argsort(problem.order)  # of each task in the order that decides on ties

    def sort(self, keys: FloatArray, like: SortedTasks | None = None) -> SortedTasks:
        """
        Return the tasks in the order of their keys, parents before children.

        Parameters
        ----------
        like
            Another order, from which this one is made where few keys differ: sorting many tasks
            anew takes longer than scheduling them.
        """
        problem = self._problem
        raised = after_others(keys, problem.order, problem.parent_start, problem.parent_index)
        order = None if like is None else self._moved(raised, like)
        if order is None:
            order = problem.order[np.argsort(raised[problem.order], kind="stable")]
        return SortedTasks(keys, raised, order)

    def _moved(self, raised: FloatArray, like: SortedTasks) -> IntArray | None:
        """Move the tasks whose keys differ to their places; None: too many, or there are ties."""
        differs = raised != like.raised
        moved = np.flatnonzero(differs)
        if len(raised) < MANY_TASKS or len(moved) > FEW_MOVED * len(raised):
            return None
        if not len(moved):
            return like.order
        moved = moved[np.lexsort((self._place[moved], raised[moved]))]
        rest = like.order[~differs[like.order]]
        keys = raised[rest]
        at = np.searchsorted(keys, raised[moved])
        if (at != np.searchsorted(keys, raised[moved], side="right")).any():
            return None
        return np.insert(rest, at, moved)

    def steps(self, rng: np.random.Generator, count: int) -> FloatArray:
        """Changes of the keys: of few tasks mostly, of many sometimes, shape ``(count, n)``."""
        tasks = self._problem.n_tasks
        share = np.minimum(1.0, rng.choice([1.5, 4, 12, tasks], size=count) / tasks)
        moved = rng.random((count, tasks)) < share[:, None]
        return np.asarray(rng.normal(0, self._step, (count, tasks)) * moved)


def evaluations_for(problem: PlanningProblem) -> int:
    """Schedules to make where the user does not say, by the size of the problem."""
    return int(np.clip(WORK / (problem.n_tasks * (problem.n_slots + 20)), FEWEST, MOST))


def elitist(search: PlanSearch, processors: Sequence[int] | None = None) -> None:
    """
    Searches for the front.

    Parameters
    ----------
    processors
        Numbers of processors of a leased slot to try; see :func:`sweep`.
    """
    problem = search.problem
    sweep(search, processors)
    # Such leases leave only widths to choose, along which the sweep has gone.
    if offers_endless_leases(problem):
        return
    total = search.limits.evaluations or evaluations_for(problem)
    search.total = max(total, search.evaluator.count)
    if not len(search.archive):
        return
    rng = search.rng()
    orders = TaskOrders(problem)
    known: Known = {}
    _seed_relaxed(search)
    count = search.evaluator.count
    _anneal_makespan(search, rng, orders, known, count + int(HASTE * (total - count)))
    first = search.evaluator.count
    for epoch in range(EPOCHS):
        held = _held(search, orders, known)
        # Deadlines are taken anew from the front after each part, as better plans move it.
        until = first + (total - first) * (epoch + 1) // EPOCHS
        while search.evaluator.count < until and not search.out_of_time:
            left = 1 - (search.evaluator.count - first) / max(1, total - first)
            _round(search, rng, orders, held, known, WARMTH * left**2)


def _seed_relaxed(search: PlanSearch) -> None:
    """
    Purchases that the linear relaxation points at, for deadlines along the front.

    Slots join by the share that it buys of them; each share has a part of what is tried.
    """
    problem, points = search.problem, search.archive.points
    if not is_solver_installed():
        return
    # Late: it brings SciPy, which the methods that need no such start do without.
    from bursar.planning.covering import relaxed_shares

    everything, slots = problem.everything, problem.offers.arrays
    price = slots.unit_price / problem.speeds[slots.site]
    for deadline in np.linspace(points[0, 0], points[-1, 0], DEADLINES):
        shares = relaxed_shares(problem, float(deadline))
        if shares is None or search.out_of_time:
            continue
        late = slots.begin >= deadline
        order = np.lexsort((price, late, -shares))
        bought = int((shares > 0).sum())
        # The relaxation buys slivers of slots, so its purchase may be too small when shares are
        # rounded to whole slots: smaller and larger ones are tried.
        sizes = {int((shares > least).sum()) for least in (0.75, 0.5, 0.25, 0.1, 0.0)}
        sizes |= {min(problem.n_slots, round(bought * more)) for more in (1.25, 1.5, 2.0, 2.5, 3.0)}
        rows = np.zeros((len(sizes), problem.n_slots), dtype=np.bool_)
        for row, size in zip(rows, sorted(sizes), strict=True):
            row[order[:size]] = True
        search.recipes(np.where(rows, everything, 0))


def _anneal_makespan(
    search: PlanSearch,
    rng: np.random.Generator,
    orders: TaskOrders,
    known: Known,
    until: int,
) -> None:
    """
    Looks for the fastest plan on all slots, by simulated annealing over the tasks' order.

    Several walks go on side by side, so that there is work for several threads.
    Now and then one of them has its schedule pushed late and early again.
    """
    problem = search.problem
    mirror = TimeReversedProblem(problem)
    everything = np.repeat(problem.everything[None], WALKS, axis=0)
    # All begin at HEFT's order; random steps lead them apart.
    walks = [orders.sort(orders.usual)] * WALKS
    makespans = np.full(WALKS, np.inf)
    first = search.evaluator.count
    while search.evaluator.count < until and not search.out_of_time:
        # Cooling goes by schedules made, not by the clock, so that a seed gives the same plans on
        # any machine.
        left = 1 - (search.evaluator.count - first) / max(1, until - first)
        # In the first round the walks have no makespan yet and begin with HEFT's own order.
        steps = orders.steps(rng, WALKS) * np.isfinite(makespans)[:, None]
        tasks = [orders.sort(w.keys + step, w) for w, step in zip(walks, steps, strict=True)]
        found = _try(search, everything, tasks, known).makespan
        pushed = int(rng.integers(WALKS))
        if rng.random() < PUSHED and np.isfinite(found[pushed]):
            made = schedule(problem, everything[0], priority=tasks[pushed].order)
            late = mirror.latest_starts(everything[0], made.finish, found[pushed])
            search.evaluator.count += 1
            if late is not None:
                later = orders.sort(late)
                again = _try(search, everything[:1], [later], known).makespan[0]
                if again <= found[pushed]:
                    found[pushed], tasks[pushed] = again, later
        chances = rng.exponential(1.0, WALKS)
        kept = found <= makespans * (1 + HEAT * left**2 * chances)
        walks = [new if is_kept else w for w, new, is_kept in zip(walks, tasks, kept, strict=True)]
        makespans[kept] = found[kept]


def _try(
    search: PlanSearch, caps: IntArray, tasks: Sequence[SortedTasks], known: Known
) -> PurchaseScores:
    """Schedules purchases with orders, and remembers which order made which plan."""
    scores = search.recipes(caps, priorities=np.array([one.order for one in tasks]))
    for makespan, cost, one in zip(
        scores.makespan.tolist(), scores.cost.tolist(), tasks, strict=True
    ):
        known.setdefault((makespan, cost), one.keys)
    return scores


def _held(search: PlanSearch, orders: TaskOrders, known: Known) -> list[_DeadlinePurchase]:
    """Plans of the archive, evenly far apart along the front; their makespans are the deadlines."""
    problem = search.problem
    points = search.archive.points
    span = np.where(np.ptp(points, axis=0) > 0, np.ptp(points, axis=0), 1.0)
    steps = np.abs(np.diff(points, axis=0) / span).sum(axis=1)
    along = np.concatenate(([0.0], np.cumsum(steps)))
    chosen = np.unique(np.searchsorted(along, np.linspace(0, along[-1], DEADLINES)))
    return [
        _DeadlinePurchase(
            # A hair later, so that a plan that is as fast but for rounding still meets it.
            deadline=found.makespan * (1 + 1e-12),
            bits=np.array(found.recipe.caps) > 0,
            tasks=orders.sort(known.get((found.makespan, found.cost), orders.usual)),
            cost=found.cost,
            waste=np.ones(problem.n_slots),
        )
        for found in (search.archive[int(i)] for i in chosen)
    ]


def _round(
    search: PlanSearch,
    rng: np.random.Generator,
    orders: TaskOrders,
    held: list[_DeadlinePurchase],
    known: Known,
    warmth: float,
) -> None:
    problem = search.problem
    parents = [i for i in range(len(held)) for _ in range(OFFSPRING)]
    bits = np.array([_offspring(rng, problem, held, i) for i in parents])
    steps = orders.steps(rng, len(parents))
    # The others keep the parent's order, so that a change of the purchase alone is tried as well.
    steps *= (rng.random(len(parents)) < 0.7)[:, None]
    tasks = [
        orders.sort(held[i].tasks.keys + step, held[i].tasks)
        for i, step in zip(parents, steps, strict=True)
    ]
    scores = _try(search, np.where(bits, problem.everything, 0), tasks, known)
    feasible = np.flatnonzero(scores.feasible)
    chances = rng.exponential(1.0, len(held))
    for i, purchase in enumerate(held):
        meeting = feasible[scores.makespan[feasible] <= purchase.deadline]
        if not len(meeting):
            continue
        best = int(meeting[np.argmin(scores.cost[meeting])])
        if scores.cost[best] <= purchase.cost * (1 + warmth * chances[i]):
            held[i] = _DeadlinePurchase(
                deadline=purchase.deadline,
                bits=scores.used[best],
                tasks=tasks[best],
                cost=float(scores.cost[best]),
                waste=_waste(problem, scores.area[best]),
            )


def _waste(problem: PlanningProblem, area: FloatArray) -> FloatArray:
    """Return the cost of each slot above the least price of its use, shape ``(n_slots,)``."""
    slots = problem.offers.arrays
    whole = slots.processors * np.where(np.isinf(slots.end), 0.0, slots.end - slots.start)
    paid = np.where(slots.divisible, area, np.maximum(whole, area)) * slots.unit_price
    least = area * slots.unit_price.min()
    # Never 0: the waste of the slots in use is divided by its sum to give the chances of being
    # dropped.
    return np.asarray(paid - least + slots.fixed_price + 1e-12)


def _near(rng: np.random.Generator, i: int, count: int) -> int:
    """Draw the index of another of ``count`` purchases; the nearer to ``i``, the likelier."""
    step = int(rng.geometric(0.5)) * (1 if rng.random() < 0.5 else -1)
    other = min(count - 1, max(0, i + step))
    return other if other != i else (i + 1 if i == 0 else i - 1)


def _crossing(
    rng: np.random.Generator, slots: SlotArrays, bits: BoolArray, other: BoolArray
) -> BoolArray:
    """
    Cross two purchases: take each slot from one of them, shape ``(n_slots,)``.

    Half of the time each slot is drawn by itself; otherwise slots that begin before a random
    moment come from one purchase, and the later ones from the other.
    """
    if rng.random() < 0.5:
        return np.where(rng.random(len(bits)) < 0.5, bits, other)
    moment = rng.choice(slots.begin[bits | other])
    early = slots.begin < moment
    return np.where(early, bits, other) if rng.random() < 0.5 else np.where(early, other, bits)


def _offspring(
    rng: np.random.Generator, problem: PlanningProblem, held: list[_DeadlinePurchase], i: int
) -> BoolArray:
    """
    Return a random variation of ``held[i]``: whether each slot is bought, shape ``(n_slots,)``.

    Either cross it with another held purchase, or drop up to two slots, preferably wasteful
    ones, and add up to two that begin before the deadline. Nothing is scheduled here.
    """
    purchase = held[i]
    bits = purchase.bits.copy()
    used = np.flatnonzero(bits)
    slots = problem.offers.arrays
    move = rng.random()
    # The other parent is mostly the purchase for a deadline close by.
    if move < CROSSING and len(held) > 1:
        other = held[_near(rng, i, len(held))].bits
        return _crossing(rng, slots, bits, other)
    drop = 1 + int(rng.random() < 0.3)
    add = 0 if rng.random() < 0.35 else 1 + int(rng.random() < 0.3)
    if add and rng.random() < 0.1:
        drop = 0
    dropped = used[:0]
    if 0 < drop < len(used):
        waste = purchase.waste[used]
        chance = waste / waste.sum() if rng.random() < 0.7 else None
        dropped = rng.choice(used, drop, replace=False, p=chance)
        bits[dropped] = False
    spare = np.flatnonzero(~bits & (slots.begin < purchase.deadline))
    # A slot dropped just now would only undo the step.
    spare = np.setdiff1d(spare, dropped)
    if add and len(spare):
        chance = None
        if len(dropped) and rng.random() < 0.6:
            gone = dropped[0]
            last = np.minimum(slots.last, 10 * purchase.deadline)
            overlap = np.minimum(last[spare], last[gone]) - np.maximum(
                slots.begin[spare], slots.begin[gone]
            )
            span = max(last[gone] - slots.begin[gone], 1e-12)
            # A slot at about the same time, and a cheap one, is the likeliest to take the place
            # of the one that was dropped.
            weight = np.exp(3 * np.clip(overlap / span, -3, 1)) / (slots.unit_price[spare] + 1e-9)
            chance = weight / weight.sum()
        bits[rng.choice(spare, min(add, len(spare)), replace=False, p=chance)] = True
    return bits
