"""Searches the trade-off between makespan and allocation cost, and makes the plans."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from bursar.model.campaign import Goal, Workflow
from bursar.model.errors import InputError, spelling_hint
from bursar.model.plan import Plan, Purchase
from bursar.model.site import SiteFacts
from bursar.planning.bounds import (
    WITHOUT_SOLVER,
    is_priced,
    is_solver_installed,
    offers_endless_leases,
    prove_bounds,
    with_bounds,
)
from bursar.planning.building import build_option, build_plan
from bursar.planning.evaluation import PurchaseEvaluator
from bursar.planning.front import ParetoFront, PlanOption, rounded
from bursar.planning.methods.elitist import elitist
from bursar.planning.methods.genetic import genetic, moga, nsga2
from bursar.planning.methods.search import PlanSearch
from bursar.planning.methods.sweep import WEIGHTS, minmin, purchases, sweep
from bursar.planning.policy import (
    METHODS,
    SCHEDULERS,
    Method,
    OnProgress,
    PlacementPolicy,
    Scheduler,
    ScheduleRecipe,
    SearchLimits,
)
from bursar.planning.polishing import ProvenBounds, polish_front
from bursar.planning.problem import PlanningProblem, build_problem


def trade_off(
    workflow: Workflow,
    sites: Sequence[SiteFacts],
    *,
    method: Method = "auto",
    scheduler: Scheduler = "heft",
    goal: Goal | None = None,
    processors: Sequence[int] | None = None,
    currency: str | None = None,
    overhead: float = 0.0,
    whole: bool = False,
    worth: float | None = None,
    limits: SearchLimits | None = None,
    on_progress: OnProgress | None = None,
) -> ParetoFront:
    """
    Makespan against allocation cost, over what the sites offer.

    A task goes only where there are the processors and the memory it needs. Its
    requirements, an expression, are not looked at; ``notes`` says who does.

    Parameters
    ----------
    sites
        Sites with their offers; names unique.
    method
        How to search (see :mod:`bursar.planning.methods`).
    scheduler
        How tasks are placed (see :mod:`bursar.planning.schedulers`); ``auto`` uses others as well.
    goal
        Its trade-off is the weight of the cost in a total cost (``ga``, ``minmin``
        and ``list-cost``; 0.5 where it has none); ``ga`` rejects plans that miss
        its deadline or budget.
    processors
        Numbers of processors to try of a leased slot; None: all of them up to some
        dozens, and beyond that ever wider steps.
    currency
        Use only the sites that ask this currency; None: they all ask the same.
    overhead
        Seconds added to each task for starting it and fetching its result. Not
        negative. A processor is held, and paid, for this time too.
    whole
        The accounting of HPDC'07: a slot of the plan is paid though nothing runs
        in it. False: it is not bought then, as in e-Science'06.
    worth
        Currency units that a second of makespan is worth in a total cost; None: as
        many as make the least cost and the least makespan weigh the same.
    limits
        How far to search.
    on_progress
        Told the front so far.

    Raises
    ------
    InputError
        When there is no site, two have one name, slots of one overlap, a task fits on no site, no
        plan holds every task, no number of ``processors`` is enough, the sites ask different
        currencies and none is chosen, the method or the scheduler is unknown, a price is unknown
        and the method needs it, or the overhead is negative.
    """
    goal = goal or Goal()
    _check_name("method", method, METHODS)
    _check_name("scheduler", scheduler, SCHEDULERS)
    if processors is not None and not all(n >= 1 for n in processors):
        raise InputError(f"processors must be at least 1, got {min(processors)}")
    if not 0 <= overhead < math.inf:
        raise InputError(f"overhead must be finite and not negative, got {overhead}")
    # Schedulers prefer the site named first where finishes are equal: let it be the cheapest.
    sites = sorted(_of_currency(sites, currency), key=_price_of_work)
    problem = build_problem(workflow, sites, overhead)
    bounds = prove_bounds(problem)
    policy = PlacementPolicy(
        scheduler=scheduler,
        weight=0.5 if goal.trade_off is None else goal.trade_off,
        worth=_worth(bounds.cost, bounds.makespan) if worth is None else worth,
    )
    search = PlanSearch(
        PurchaseEvaluator(problem, policy, whole=whole),
        limits or SearchLimits(),
        on_progress=on_progress,
    )
    notes = list(_notes(workflow, problem))
    proofs = ProvenBounds()
    if not problem.known.all():
        options = _outline(problem, processors)
    elif any(not is_priced(slot) for slot in problem.offers.slots):
        if method not in ("auto", "heft"):
            raise InputError(
                f'the method "{method}" weighs costs, and the price of '
                f"{', '.join(unpriced_sites(problem))} is unknown",
                hint="give the price, or plan with --method heft",
            )
        options = _unpriced_front(problem, policy, processors)
    else:
        notes.extend(_search(search, method, goal, processors))
        if search.limits.exact > 0:
            proofs = polish_front(search, search.limits.exact)
            notes.extend([proofs.note] if proofs.note else [])
            bounds = replace(bounds, exact=proofs.makespan)
        options = [_option_of(search, found.recipe) for found in search.archive]
    if not options:
        raise _no_plan(problem, processors, notes)
    if (
        options[0].cost is not None
        and not offers_endless_leases(problem)
        and not is_solver_installed()
    ):
        notes.append(WITHOUT_SOLVER)
    return ParetoFront(
        options=tuple(with_bounds(problem, options, proofs.least_cost)),
        tried=tuple(map(tuple, search.points.tolist())),
        evaluations=search.evaluator.count,
        bounds=bounds,
        notes=tuple(notes),
        workflow=workflow,
        sites=tuple(sites),
        method=method,
        scheduler=scheduler,
        overhead=overhead,
        whole=whole,
    )


def problem_of(front: ParetoFront) -> PlanningProblem:
    """The arrays that a front was computed from."""
    return build_problem(front.workflow, front.sites, front.overhead)


def plan_option(front: ParetoFront, option: PlanOption) -> Plan:
    """
    Return the option of a front with the place of every task.

    The schedule is computed again, to the same result: keeping one for each
    option would hold every task as many times as there are options.
    """
    if option.makespan is not None:
        return build_plan(problem_of(front), option, front.scheduler, whole=front.whole)
    return Plan(
        purchases=option.purchases,
        placements=(),
        makespan=None,
        cost=None,
        currency=option.currency,
        utilisation=None,
        algorithm=front.scheduler,
    )


def evaluate_recipe(problem: PlanningProblem, recipe: ScheduleRecipe) -> PlanOption | None:
    """Return the plan option of a recipe, bounds left open; None when a task fits nowhere."""
    found = PurchaseEvaluator(problem, recipe.policy).evaluate(np.array([recipe.caps]))
    return build_option(problem, recipe) if found.feasible[0] else None


def pareto(options: Iterable[PlanOption]) -> list[PlanOption]:
    """
    Return the options that no other beats in makespan and cost, fastest first.

    Of equal ones the first, by fewest processors. Differences below one part in
    10^9 do not count. What is bought from a site of unknown price counts as one
    more objective, so that an option is beaten only if it would be at any price.
    """
    unpriced = sorted({p.slot.site for o in options for p in o.purchases if p.cost is None})
    front: list[tuple[tuple[float, ...], PlanOption]] = []
    for values, option in sorted(
        ((_objectives(o, unpriced), o) for o in options),
        key=lambda pair: (pair[0], pair[1].processors, pair[1].recipe.caps),
    ):
        # Sorted by makespan first: an option can only be beaten by one that came before.
        if not any(all(map(float.__le__, kept, values)) for kept, _ in front):
            front.append((values, option))
    return [option for _, option in front]


def unpriced_sites(problem: PlanningProblem) -> list[str]:
    """Sites with a slot of unknown price, in their order."""
    names = (slot.site for slot in problem.offers.slots if not is_priced(slot))
    return list(dict.fromkeys(names))


def _search(
    search: PlanSearch, method: Method, goal: Goal, processors: Sequence[int] | None
) -> Iterator[str]:
    """Run the method, and yield notes for the user."""
    weights = WEIGHTS if goal.trade_off is None else (goal.trade_off,)
    methods: dict[Method, Callable[[], object]] = {
        "auto": lambda: elitist(search, processors),
        "heft": lambda: sweep(search, processors),
        "ga": lambda: genetic(search, goal),
        "moga": lambda: moga(search),
        "nsga2": lambda: nsga2(search),
    }
    if method == "minmin":
        made = minmin(search, weights)
        cut = [s for s in made if not s.complete]
        if cut:
            most = max(int((s.site >= 0).sum()) for s in cut)
            yield (
                f"Min-Min came to an end before the campaign did at {len(cut)} of {len(made)} "
                f"weights (at most {most} of {search.problem.n_tasks} tasks placed)"
            )
        return
    methods[method]()
    if search.out_of_time:
        yield (
            f"stopped by the time limit after {search.evaluator.count} of "
            f"{max(search.total, search.evaluator.count)} schedules"
        )


def _option_of(search: PlanSearch, recipe: ScheduleRecipe) -> PlanOption:
    """Return the option of a recipe that the search has found."""
    evaluator = search.evaluator
    priority = None
    if recipe.priority is None and recipe.schedule is None:
        priority = evaluator.priority(np.array(recipe.caps), recipe.policy)
    return build_option(search.problem, recipe, whole=evaluator.whole, priority=priority)


def _check_name(what: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise InputError(
            f'unknown {what} "{name}", expected one of {", ".join(known)}',
            hint=spelling_hint(name, known),
        )


def _worth(cost: float | None, makespan: float | None) -> float:
    """Return the factor by which least cost and least makespan weigh the same; 1 where unknown."""
    return cost / makespan if cost and makespan else 1.0


def _of_currency(sites: Sequence[SiteFacts], currency: str | None) -> list[SiteFacts]:
    by_currency = {c: [s for s in sites if s.currency == c] for c in {s.currency for s in sites}}
    if currency is not None and sites:
        if currency not in by_currency:
            raise InputError(
                f'no site asks "{currency}"; they ask {", ".join(sorted(by_currency))}',
                hint=spelling_hint(currency, by_currency),
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
    """Return the sort key of a site: cheapest work first, unknown prices last."""
    offers = [slot for slot in site.offers if is_priced(slot)]
    if len(offers) < len(site.offers) or not offers:
        return (math.inf, math.inf, -site.speed)
    unit, fixed = min((slot.unit_price or 0.0, slot.fixed_price or 0.0) for slot in offers)
    return (unit / site.speed, fixed, -site.speed)


def _unpriced_front(
    problem: PlanningProblem, policy: PlacementPolicy, processors: Sequence[int] | None
) -> list[PlanOption]:
    """Return the options where a price is unknown: no search, and no order among unlike sites."""
    rows = purchases(problem, processors)
    if not rows:
        return []
    scores = PurchaseEvaluator(problem, policy).evaluate(np.array(rows))
    return pareto(
        [
            build_option(problem, ScheduleRecipe(caps=tuple(row.tolist()), policy=policy))
            for row, feasible in zip(rows, scores.feasible, strict=True)
            if feasible
        ]
    )


def _outline(problem: PlanningProblem, processors: Sequence[int] | None) -> list[PlanOption]:
    """
    Return options without makespan and cost, for a problem of which a runtime is unknown.

    They buy the first slot alone, the first two together, and so on, in the order of the
    offers, and only those are returned in which every task is narrow enough for some site.
    Of each slot at most as many processors are bought as all tasks together could use.

    Parameters
    ----------
    processors
        Numbers to try of the last slot of each purchase; of those above what all tasks together
        could use only the first. None, or where none suits: as many as all tasks could use.
    """
    options = []
    most = int(problem.widths.sum())
    caps = np.zeros(problem.n_slots, dtype=np.int64)
    first = problem.offers.arrays.first
    for i, slot in enumerate(problem.offers.slots):
        caps[i] = min(slot.processors, most)
        asked = [n for n in processors or () if n <= slot.processors]
        for n in [n for n in asked if n <= most] + [n for n in asked if n > most][:1] or [caps[i]]:
            row = caps.copy()
            row[i] = n
            by_site = np.add.reduceat(row, first[:-1])
            fits = np.isfinite(problem.runtimes) & (problem.widths[:, None] <= by_site)
            if fits.any(axis=1).all():
                options.append(_unknown(problem, row.tolist()))
    return options


def _unknown(problem: PlanningProblem, caps: list[int]) -> PlanOption:
    """Return an option of unknown makespan and cost, with so many processors of each slot."""
    return PlanOption(
        makespan=None,
        cost=None,
        currency=problem.sites[0].currency,
        purchases=tuple(
            Purchase(slot=replace(slot, processors=n, duration=math.inf, divisible=True))
            for slot, n in zip(problem.offers.slots, caps, strict=True)
            if n
        ),
        utilisation=None,
        recipe=ScheduleRecipe(caps=tuple(caps)),
    )


def _objectives(option: PlanOption, unpriced: Sequence[str]) -> tuple[float, ...]:
    """Makespan, what is known of the cost, and what each unpriced site would be paid for."""
    known = math.fsum(p.cost for p in option.purchases if p.cost is not None)
    spent = [
        float(sum(p.processor_seconds for p in option.purchases if p.slot.site == site))
        for site in unpriced
    ]
    makespan = math.inf if option.makespan is None else option.makespan
    return tuple(rounded(value) for value in (makespan, known, *spent))


def _notes(workflow: Workflow, problem: PlanningProblem) -> Iterator[str]:
    unknown = int((~problem.known).sum())
    if unknown:
        yield (
            f"the runtime of {unknown} of {problem.n_tasks} tasks is unknown: "
            "so are makespan and cost"
        )
    unpriced = unpriced_sites(problem)
    if unpriced:
        names = ", ".join(unpriced)
        yield f"the price of {names} is unknown: so is the cost of what is bought there"
    held = {name for task in workflow.tasks for name in task.resources}
    counted = sorted(name for name in held if _may_run_short(name, workflow, problem.sites))
    if counted:
        yield (
            f"plans do not count {', '.join(counted)}: tasks may wait for these, and the run may "
            "take longer"
        )
    choosy = sum(task.matching.requirements is not None for task in workflow.tasks)
    if choosy:
        yield (
            f"{choosy} of {problem.n_tasks} tasks have requirements: a plan heeds them where all "
            "have the same, as far as they can be told; the broker heeds all of them"
        )


def _may_run_short(name: str, workflow: Workflow, sites: Sequence[SiteFacts]) -> bool:
    """Return whether some site has processors for more tasks than can hold a resource there."""
    needs = {(task.processors, task.resources.get(name, 0)) for task in workflow.tasks}
    if len(needs) > 1:
        return True
    ((width, count),) = needs
    had = ((site.processors, site.resources.get(name, 0)) for site in sites)
    return any(total >= count and room > total // count * width for room, total in had)


def _no_plan(
    problem: PlanningProblem, processors: Sequence[int] | None, notes: Sequence[str]
) -> InputError:
    """Return the error for offers that hold no plan; the last note, if any, is its hint."""
    if processors:
        return InputError(
            f"no plan with {' or '.join(map(str, processors))} processors holds every task; "
            f"the widest task needs {problem.widths.max()}"
        )
    return InputError(
        "no plan holds every task: the slots on offer are too few, too short or too narrow",
        hint=notes[-1] if notes else "ask for more slots, or for ones that may be extended",
    )
