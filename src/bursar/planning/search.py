"""
Which purchases are tried, and which of them are worth choosing.

A *family* of purchases varies the processors of one site and buys some others
in full. With the sites ordered by price per unit of work (unknown prices last),
the families are

- each site alone;
- the cheapest, with the second cheapest varying; the two cheapest, with the
  third varying; and so on;
- the same from the fastest site down.

A family is first tried at full width. Its schedule tells how many processors
the tasks can use at all; wider purchases give the same schedule and are not
tried. Below that every width is tried while there are few; of many, the lower
half densely and then in ever wider, geometric steps, both ends always.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from bursar.model.errors import InputError, nearest
from bursar.model.plan import Placement, Plan, Purchase
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.model.workflow import Workflow
from bursar.planning.bounds import is_priced, makespan_bounds, prove_bounds
from bursar.planning.front import Front, Option
from bursar.planning.heft import Schedule, heft
from bursar.planning.links import Links
from bursar.planning.numbering import number_processors
from bursar.planning.problem import IntArray, Problem, build_problem

ALGORITHMS = ("heft",)
EVALUATIONS = 96
"""Purchases tried, about, shared among the families; each has at least ``MIN_WIDTHS``."""
MIN_WIDTHS = 8
SHORTEST = 1e-6
"""Seconds. A slot has a length, so this is bought where all tasks take no time."""


def search(
    workflow: Workflow,
    sites: Sequence[SiteFacts],
    *,
    algorithm: str,
    processors: Sequence[int] | None,
    currency: str | None,
    links: Links | None,
    overhead: float,
) -> Front:
    """The work of :func:`bursar.planning.front.trade_off`."""
    if algorithm not in ALGORITHMS:
        raise InputError(
            f'unknown algorithm "{algorithm}", expected one of {", ".join(ALGORITHMS)}',
            hint=nearest(algorithm, ALGORITHMS),
        )
    if processors is not None and not all(n >= 1 for n in processors):
        raise InputError(f"processors must be at least 1, got {min(processors)}")
    if not 0 <= overhead < math.inf:
        raise InputError(f"overhead must be finite and not negative, got {overhead}")
    sites = sorted(_of_currency(sites, currency), key=_price_of_work)
    problem = build_problem(workflow, sites, links, overhead)
    if problem.known.all():
        evaluated = _evaluate(problem, processors, EVALUATIONS)
        options = pareto(evaluated)
    else:
        evaluated = options = _outline(problem, processors)
    if not evaluated:
        raise InputError(
            f"no plan with {_enumerate(processors or ())} processors holds every task; "
            f"the widest task needs {problem.widths.max()}"
        )
    return Front(
        options=tuple(options),
        evaluated=tuple(evaluated),
        bounds=prove_bounds(problem),
        notes=tuple(_notes(workflow, problem)),
        workflow=workflow,
        sites=tuple(sites),
        links=links,
        algorithm=algorithm,
        overhead=overhead,
    )


def problem_of(front: Front) -> Problem:
    """The arrays that a front was computed from."""
    return build_problem(front.workflow, front.sites, front.links, front.overhead)


def plan_option(front: Front, option: Option) -> Plan:
    """The work of :meth:`bursar.planning.front.Front.plan`."""
    placements: list[Placement] = []
    if option.makespan is not None:
        problem = problem_of(front)
        schedule = heft(problem, np.array(option.tried))
        assert schedule is not None, "an option has a schedule"
        placements = _placements(problem, schedule)
    return Plan(
        purchases=option.purchases,
        placements=tuple(placements),
        makespan=option.makespan,
        cost=option.cost,
        currency=option.currency,
        utilisation=option.utilisation,
        algorithm=front.algorithm,
    )


def pareto(options: Iterable[Option]) -> list[Option]:
    """
    The options that no other beats in makespan and cost, fastest first.

    Of equal ones the first, by fewest processors. Differences below one part in
    10^9 do not count. What is bought from a site of unknown price counts as one
    more objective, so that an option is beaten only if it would be at any price.
    """
    unpriced = sorted({p.slot.site for o in options for p in o.purchases if p.cost is None})
    front: list[tuple[tuple[float, ...], Option]] = []
    for values, option in sorted(
        ((_objectives(o, unpriced), o) for o in options),
        key=lambda pair: (pair[0], pair[1].processors, pair[1].tried),
    ):
        if not any(all(map(float.__le__, kept, values)) for kept, _ in front):
            front.append((values, option))
    return [option for _, option in front]


def evaluate(problem: Problem, bought: IntArray) -> Option | None:
    """What a purchase gives, its bound left open; None when a task fits nowhere in it."""
    schedule = heft(problem, bought)
    if schedule is None:
        return None
    return _option(problem, bought, schedule)


def widths(lowest: int, highest: int, limit: int) -> list[int]:
    """
    At most ``limit`` numbers from lowest to highest, ascending, both ends among them.

    All if they are few enough; else half of them dense from the lowest on, the
    others at equal ratios.
    """
    if highest - lowest < limit:
        return list(range(lowest, highest + 1))
    dense = range(lowest, lowest + limit // 2)
    steps = limit - len(dense)
    ratio = (highest / dense[-1]) ** (1 / steps)
    sparse = (round(dense[-1] * ratio**k) for k in range(1, steps))
    return sorted({*dense, *sparse, highest})


def _of_currency(sites: Sequence[SiteFacts], currency: str | None) -> list[SiteFacts]:
    by_currency = {c: [s for s in sites if s.currency == c] for c in {s.currency for s in sites}}
    if currency is not None and sites:
        if currency not in by_currency:
            raise InputError(
                f'no site asks "{currency}"; they ask {", ".join(sorted(by_currency))}',
                hint=nearest(currency, by_currency),
            )
        return by_currency[currency]
    if len(by_currency) > 1:
        asks = "; ".join(
            f"{', '.join(s.name for s in group)}: {c}" for c, group in sorted(by_currency.items())
        )
        raise InputError(
            f"one plan cannot mix currencies ({asks})",
            hint="choose the currency to plan in, or leave out the other sites",
        )
    return list(sites)


def _price_of_work(site: SiteFacts) -> tuple[float, float, float]:
    """Order of the sites, cheapest work first; unknown prices last."""
    if not is_priced(site):
        return (math.inf, math.inf, -site.speed)
    assert site.unit_price is not None
    assert site.fixed_price is not None
    return (site.unit_price / site.speed, site.fixed_price, -site.speed)


def _families(problem: Problem) -> Iterator[tuple[IntArray, int]]:
    """What is bought in full, and the site that varies."""
    nothing = np.zeros(problem.n_sites, dtype=np.int64)
    cheapest = list(range(problem.n_sites))
    fastest = sorted(cheapest, key=lambda s: -problem.sites[s].speed)
    for s in cheapest:
        yield nothing, s
    for order in [cheapest] if fastest == cheapest else [cheapest, fastest]:
        base = nothing.copy()
        for before, s in itertools.pairwise(order):
            base[before] = problem.offered[before]
            yield base.copy(), s


def _evaluate(problem: Problem, processors: Sequence[int] | None, evaluations: int) -> list[Option]:
    """Every family's options with their bounds, fastest first."""
    families = list(_families(problem))
    limit = max(MIN_WIDTHS, evaluations // len(families))
    found: dict[tuple[int, ...], Option] = {}
    for base, site in families:
        usable = _usable(problem, base, site)
        if usable is None:
            continue
        lowest = 1 if base.any() else int(problem.widths.max())
        for n in _asked(problem, site, usable, processors) or widths(lowest, usable, limit):
            row = base.copy()
            row[site] = n
            if tuple(row) not in found and (option := evaluate(problem, row)):
                found[tuple(row.tolist())] = option
    return sorted(
        _with_bounds(problem, list(found.values())),
        key=lambda o: (_or_inf(o.makespan), _or_inf(o.cost), o.processors, o.tried),
    )


def _outline(problem: Problem, processors: Sequence[int] | None) -> list[Option]:
    """
    What could be bought when a runtime is unknown: makespan and cost stay unknown.

    The cheapest site alone, the two cheapest together, and so on, each with as
    many processors as the tasks could hold at once.
    """
    options = []
    most = int(problem.widths.sum())
    bought = np.zeros(problem.n_sites, dtype=np.int64)
    for site in range(problem.n_sites):
        bought[site] = min(int(problem.offered[site]), most)
        for n in _asked(problem, site, int(bought[site]), processors) or [int(bought[site])]:
            row = bought.copy()
            row[site] = n
            fits = np.isfinite(problem.runtimes) & (problem.widths[:, None] <= row)
            if fits.any(axis=1).all():
                options.append(_unknown(problem, row))
    return options


def _unknown(problem: Problem, bought: IntArray) -> Option:
    """A purchase of which only the width is known."""
    return Option(
        makespan=None,
        cost=None,
        currency=problem.sites[0].currency,
        purchases=tuple(
            _purchase(problem.sites[s], int(n), math.inf) for s, n in enumerate(bought) if n
        ),
        utilisation=None,
        bound=None,
        tried=tuple(bought.tolist()),
    )


def _option(problem: Problem, bought: IntArray, schedule: Schedule) -> Option:
    """What a schedule comes to: of each site, what its tasks need until its last one ends."""
    ends = schedule.ends
    purchases = tuple(
        _purchase(problem.sites[s], int(schedule.peak[s]), max(float(ends[s]), SHORTEST))
        for s in range(problem.n_sites)
        if schedule.peak[s]
    )
    costs = [purchase.cost for purchase in purchases]
    held = (schedule.finish - schedule.start) @ problem.widths
    paid = sum(p.slot.processors * p.slot.duration for p in purchases)
    return Option(
        makespan=schedule.makespan,
        cost=None if None in costs else math.fsum(c for c in costs if c is not None),
        currency=problem.sites[0].currency,
        purchases=purchases,
        utilisation=float(held / paid),
        bound=None,
        tried=tuple(bought.tolist()),
    )


def _purchase(site: SiteFacts, processors: int, duration: float) -> Purchase:
    return Purchase(
        slot=Slot(
            site=site.name,
            start=0.0,
            duration=duration,
            processors=processors,
            unit_price=site.unit_price,
            fixed_price=site.fixed_price,
        )
    )


def _usable(problem: Problem, base: IntArray, site: int) -> int | None:
    """Processors of the varying site that the tasks can use at all; None when they do not fit."""
    row = base.copy()
    row[site] = problem.offered[site]
    schedule = heft(problem, row)
    return None if schedule is None else int(schedule.peak[site])


def _asked(problem: Problem, site: int, usable: int, processors: Sequence[int] | None) -> list[int]:
    """The numbers asked for that the site has; of those past what is usable, the least."""
    if processors is None:
        return []
    offered = [n for n in processors if n <= problem.offered[site]]
    within = [n for n in offered if n <= usable]
    past = [n for n in offered if n > usable]
    return [*within, *past[:1]]


def _with_bounds(problem: Problem, options: Sequence[Option]) -> list[Option]:
    if not options:
        return []
    bounds = makespan_bounds(problem, np.array([option.tried for option in options]))
    return [replace(o, bound=float(b)) for o, b in zip(options, bounds, strict=True)]


def _objectives(option: Option, unpriced: Sequence[str]) -> tuple[float, ...]:
    """Makespan, what is known of the cost, and what each unpriced site would be paid for."""
    known = math.fsum(p.cost for p in option.purchases if p.cost is not None)
    spent = [
        float(
            sum(
                p.slot.processors * p.slot.duration for p in option.purchases if p.slot.site == site
            )
        )
        for site in unpriced
    ]
    makespan = _or_inf(option.makespan)
    return tuple(_rounded(value) for value in (makespan, known, *spent))


def _rounded(value: float) -> float:
    """Nine digits, so that a float's own error decides nothing."""
    return float(f"{value:.9e}")


def _or_inf(value: float | None) -> float:
    return math.inf if value is None else value


def _placements(problem: Problem, schedule: Schedule) -> list[Placement]:
    """Where each task runs, in order of start."""
    placements: list[Placement] = []
    for s, site in enumerate(problem.sites):
        tasks = np.flatnonzero(schedule.site == s).tolist()
        start, finish = schedule.start.tolist(), schedule.finish.tolist()
        widths = problem.widths.tolist()
        numbers = number_processors([(start[t], finish[t], widths[t]) for t in tasks])
        placements.extend(
            Placement(t, site.name, start[t], finish[t], held)
            for t, held in zip(tasks, numbers, strict=True)
        )
    return sorted(placements, key=lambda p: (p.start, p.task))


def _notes(workflow: Workflow, problem: Problem) -> Iterator[str]:
    unknown = int((~problem.known).sum())
    if unknown:
        yield (
            f"the runtime of {unknown} of {problem.n_tasks} tasks is unknown: "
            "so are makespan and cost"
        )
    unpriced = [site.name for site in problem.sites if not is_priced(site)]
    if unpriced:
        names = ", ".join(unpriced)
        yield f"the price of {names} is unknown: so is the cost of what is bought there"
    choosy = sum(task.requirements is not None for task in workflow.tasks)
    if choosy:
        yield (
            f"{choosy} of {problem.n_tasks} tasks have requirements, "
            "which are checked when they start, not here"
        )


def _enumerate(numbers: Sequence[int]) -> str:
    return " or ".join(map(str, numbers)) or "any number of"
