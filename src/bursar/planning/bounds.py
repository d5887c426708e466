"""
How good any plan can be: figures that no plan can beat.

Makespan
    - *Critical path*: the longest chain of dependent tasks, each where it runs
      fastest.
    - *Work*: all work, divided by what the bought processors do per second.
    - *Energetic*: both at once. Tasks that cannot start before h and are
      followed by a chain of at least t must fit between h and the end less t;
      the greatest of h + work / capacity + t over all such pairs.
Cost
    - Every task paid where its processor time is cheapest, and one fixed charge.
    - A lease is a rectangle that begins with the slot: whoever hosts a task pays
      at least its width until the earliest moment it can end. Where there is a
      single lease that is the widest task's width for the whole critical path.
    - What is bought must be wide, long and early enough for all the work, for each
      plan at its own makespan (:mod:`bursar.planning.covering`).

With slots that begin and end the processors that there are at a time take the
place of all there are (:mod:`bursar.planning.energetic_bound`).

Work is counted in units of which a processor does as many per second as its site's speed; where
runtimes do not follow the speeds a task counts where it is least. Transfers only delay, so leaving
them out keeps a bound valid; so does counting an unknown runtime as nothing, which
``unknown_tasks`` tells. A bound holds to within the float's own error (one part in 10^9).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from bursar.model.slot import Slot
from bursar.planning.energetic_bound import makespan_bound
from bursar.planning.front import PlanBounds, PlanOption
from bursar.planning.kernels import ranks
from bursar.planning.kernels.availability import BoolArray, FloatArray, IntArray
from bursar.planning.problem import PlanningProblem

PATIENCE = 2.0
"""Seconds for the integer programmes of a front, together; what is proven by then counts."""

MAX_LEVELS = 256
"""Heads tried in the energetic bound; of more distinct ones, evenly spread quantiles."""


def prove_bounds(problem: PlanningProblem) -> PlanBounds:
    """Bounds over every plan on what the sites offer, all of one currency."""
    known = int(problem.known.sum())
    everywhere = np.ones(problem.n_sites, dtype=np.bool_)
    capacity = float(problem.offered @ problem.speeds)
    path = _critical_path(problem, everywhere)
    work = float(_least_work(problem, everywhere).sum()) / capacity
    energetic = float(_energetic(problem, everywhere, np.array([capacity]))[0])
    if not offers_endless_leases(problem) and known:
        energetic = max(energetic, makespan_bound(problem))
    return PlanBounds(
        critical_path=path if known else None,
        work=work if known else None,
        energetic=energetic if known else None,
        cost=cost_bound(problem) if known else None,
        currency=problem.sites[0].currency,
        tasks=problem.n_tasks,
        unknown_tasks=problem.n_tasks - known,
        unpriced_sites=tuple(
            site.name for site in problem.sites if not any(is_priced(s) for s in site.offers)
        ),
    )


def with_bounds(
    problem: PlanningProblem, options: Sequence[PlanOption], least_cost: Callable[[float], float]
) -> list[PlanOption]:
    """
    Return the options, each with bounds on makespan (of the same slots) and cost (as fast).

    Parameters
    ----------
    least_cost
        Returns the least cost, currency units, that is proven elsewhere for plans of a makespan,
        seconds; 0 where nothing is.
    """
    timed = [o for o in options if o.makespan is not None]
    if not timed:
        return list(options)
    caps = np.array([o.recipe.caps for o in timed])
    deadlines = np.array([o.makespan for o in timed])
    least = np.full(len(timed), cost_bound(problem) or 0.0)
    if offers_endless_leases(problem):
        bounds = makespan_bounds(problem, caps)
    else:
        bounds = np.array([makespan_bound(problem, row) for row in caps])
        if all(o.cost is not None for o in timed) and is_solver_installed():
            # Late: it brings SciPy, which a plan of leases alone does not need.
            from bursar.planning.covering import cost_bounds

            least = np.maximum(least, cost_bounds(problem, deadlines, time_limit=PATIENCE))
    least = np.maximum(least, [least_cost(deadline) for deadline in deadlines.tolist()])
    return [
        replace(o, bound=float(b), cost_bound=float(c) if c > 0 else None)
        for o, b, c in zip(timed, bounds, least, strict=True)
    ]


WITHOUT_SOLVER = (
    "without SciPy the least cost is the same for every makespan, and the search begins without "
    "a linear relaxation: pip install 'bursar[bounds]'"
)
"""Note of a plan that :func:`is_solver_installed` would have made better."""


def is_solver_installed() -> bool:
    """Whether SciPy is there, whose linear programmes bound costs and start the search."""
    try:
        import scipy.optimize  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True


def offers_endless_leases(problem: PlanningProblem) -> bool:
    """Whether every site offers one lease, from 0 on, without an end."""
    return problem.n_slots == problem.n_sites and all(
        slot.leased and slot.start <= 0 and np.isinf(slot.end) for slot in problem.offers.slots
    )


def is_priced(slot: Slot) -> bool:
    """Whether both prices of a slot are known."""
    return slot.unit_price is not None and slot.fixed_price is not None


def makespan_bounds(problem: PlanningProblem, purchases: IntArray) -> FloatArray:
    """
    The strongest bound on the makespan of each purchase.

    Parameters
    ----------
    purchases
        Processors bought of each site, shape ``(n, n_sites)``; each row buys some.

    Returns
    -------
    ndarray
        Seconds, shape ``(n,)``.
    """
    bounds = np.empty(len(purchases))
    for used, rows in _by_sites_used(purchases):
        capacities = purchases[rows] @ problem.speeds
        path = _critical_path(problem, used)
        work = _least_work(problem, used).sum() / capacities
        energetic = _energetic(problem, used, capacities)
        bounds[rows] = np.maximum(np.maximum(work, energetic), path)
    return bounds


def cost_bound(problem: PlanningProblem) -> float | None:
    """
    The least that any plan of priced sites costs, currency units.

    None when no site is priced or a task fits on no priced site.
    """
    offers = [[s for s in site.offers if is_priced(s)] for site in problem.sites]
    priced = np.array([bool(slots) for slots in offers])
    if not priced.any() or np.isinf(problem.runtimes[:, priced].min(axis=1)).any():
        return None
    unit = np.array([min(s.unit_price or 0.0 for s in slots) for slots in offers if slots])
    fixed = np.array([min(s.fixed_price or 0.0 for s in slots) for slots in offers if slots])
    runtimes = problem.runtimes[:, priced]
    widths = problem.widths[:, None]
    # A free site of infinite runtime would be 0 x inf.
    fits = np.isfinite(runtimes)
    spent = np.where(fits, widths * np.where(fits, runtimes, 0.0) * unit, np.inf)
    work = spent.min(axis=1).sum() + fixed.min()
    if not offers_endless_leases(problem):
        # What takes no time needs no slot.
        return float(work) if (np.where(fits, runtimes, 1.0) > 0).all(axis=1).any() else 0.0

    heads, _ = _heads_and_tails(problem, np.ones(problem.n_sites, dtype=np.bool_))
    held = np.where(fits, spent + widths * heads[:, None] * unit + fixed, np.inf)
    rectangle = held.min(axis=1).max()
    if problem.n_sites == 1:
        path = _critical_path(problem, priced)
        rectangle = max(rectangle, widths.max() * path * unit[0] + fixed[0])
    return float(max(work, rectangle))


def _by_sites_used(purchases: IntArray) -> Iterator[tuple[BoolArray, IntArray]]:
    """Each set of sites bought from, with the rows that buy from just these."""
    patterns, rows = np.unique(purchases > 0, axis=0, return_inverse=True)
    for i, used in enumerate(patterns):
        yield used, np.flatnonzero(rows.ravel() == i)


def _shortest(problem: PlanningProblem, used: BoolArray) -> FloatArray:
    """Return the least run time on the used sites, shape ``(n_tasks,)``; 0 where none fits."""
    shortest = problem.runtimes[:, used].min(axis=1)
    return np.where(np.isfinite(shortest), shortest, 0.0)


def _least_work(problem: PlanningProblem, used: BoolArray) -> FloatArray:
    """Width times run time times speed, least over the used sites, shape ``(n_tasks,)``."""
    least = (problem.runtimes[:, used] * problem.speeds[used]).min(axis=1)
    return np.where(np.isfinite(least), problem.widths * least, 0.0)


def _heads_and_tails(problem: PlanningProblem, used: BoolArray) -> tuple[FloatArray, FloatArray]:
    # Without a look at each task, for which the kernels of large problems would be loaded.
    if not problem.has_dependencies:
        return np.zeros(problem.n_tasks), np.zeros(problem.n_tasks)
    return ranks.heads_and_tails(
        _shortest(problem, used), problem.order, problem.parent_start, problem.parent_index
    )


def _critical_path(problem: PlanningProblem, used: BoolArray) -> float:
    heads, _ = _heads_and_tails(problem, used)
    return float((heads + _shortest(problem, used)).max())


def _energetic(problem: PlanningProblem, used: BoolArray, capacities: FloatArray) -> FloatArray:
    if not problem.has_dependencies:
        return np.asarray(np.cumsum(_least_work(problem, used))[-1] / capacities)
    heads, tails = _heads_and_tails(problem, used)
    levels = np.array(sorted(set(heads.tolist())))  # np.unique loads numpy.ma
    if len(levels) > MAX_LEVELS:
        levels = levels[np.linspace(0, len(levels) - 1, MAX_LEVELS).astype(np.int64)]
    return ranks.energetic_bounds(
        heads,
        tails,
        _least_work(problem, used),
        np.argsort(-tails, kind="stable"),
        levels,
        capacities,
    )
