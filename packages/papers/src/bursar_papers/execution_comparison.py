"""One workflow on one loaded cluster, run in every way that is compared."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bursar.model.campaign import Workflow
from bursar.planning.energetic_bound import makespan_bound
from bursar.planning.evaluation import PurchaseEvaluator
from bursar.planning.methods.elitist import elitist
from bursar.planning.methods.genetic import moga
from bursar.planning.methods.search import PlanSearch
from bursar.planning.policy import PlacementPolicy, SearchLimits
from bursar.planning.problem import PlanningProblem, build_problem
from bursar.planning.schedulers import replay, schedule
from bursar.simulation.loaded_cluster import SU, LoadedCluster
from bursar_devtools.front_measures import at_trade_off
from bursar_papers.experiment import Row

HOUR = 3600.0
BEST_EFFORT = "best effort"
MOGA = "provisioned, MOGA"
OURS = "provisioned, ours"
DEPENDENT = "queued with dependencies"
BOUND = "proven bound"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSearchSettings:
    """
    Settings of the searches for plans.

    Parameters
    ----------
    population, generations
        Size and number of the populations of the paper's search.
    evaluations
        Evaluations of our search; 0: no such search.
    seed
        Seed of both searches.
    """

    population: int
    generations: int
    evaluations: int
    seed: int


def compare(
    cluster: LoadedCluster,
    workflow: Workflow,
    trade_offs: Sequence[float],
    settings: PlanSearchSettings,
) -> list[Row]:
    """
    Return makespan, hours, cost, SU, and others' wait for each way to run the workflow.

    The others' wait is the mean, in hours, of the jobs submitted between now and
    the later end of best effort and of the fastest plan; its measure is left out
    (None) where a plan was not carried out.
    """
    work = sum((task.runtime or 0.0) * task.processors for task in workflow.tasks) * SU
    problem = build_problem(workflow, [cluster.facts()])
    searches = {MOGA: _search(problem, settings, ours=False)}
    if settings.evaluations:
        searches[OURS] = _search(problem, settings, ours=True)

    # Every way starts from a copy of the same moment of the log.
    queue = cluster.copy()
    run = queue.run(workflow)
    # The same period for all ways, or the mean waits would be of different jobs.
    fastest = max(float(search.archive.points[0, 0]) for search in searches.values())
    until = cluster.now + max(run.makespan, fastest)

    def waits(of: LoadedCluster) -> float:
        found = of.waits(cluster.now, until)
        return float(found.mean()) / HOUR if len(found) else 0.0

    rows: list[Row] = [
        _row("nothing", None, None, None, waits(cluster.copy())),
        _row(BEST_EFFORT, None, run.makespan, work, waits(queue)),
    ]
    for kind, search in searches.items():
        points = search.archive.points
        for trade_off in trade_offs:
            chosen = at_trade_off(points, trade_off)
            wait = None
            # One plan only is carried out, that of the middle trade-off: each takes a simulation of
            # the cluster.
            if kind == MOGA and trade_off == trade_offs[len(trade_offs) // 2]:
                reserved = cluster.copy()
                reserved.provision(problem, replay(problem, search.archive[chosen].recipe))
                wait = waits(reserved)
            rows.append(_row(kind, trade_off, points[chosen, 0], points[chosen, 1], wait))
    # Each task, in topological order, takes the first room there is once its parents end.
    queued = schedule(problem, problem.everything, PlacementPolicy(scheduler="list"))
    rows.append(_row(DEPENDENT, None, queued.makespan if queued.complete else None, work, None))
    rows.append(_row(BOUND, None, makespan_bound(problem), work, None))
    return rows


def _search(problem: PlanningProblem, settings: PlanSearchSettings, *, ours: bool) -> PlanSearch:
    limits = SearchLimits(
        population=settings.population,
        generations=settings.generations,
        evaluations=settings.evaluations,
        seed=settings.seed,
    )
    search = PlanSearch(PurchaseEvaluator(problem, PlacementPolicy(), threads=1), limits)
    if ours:
        elitist(search)
    else:
        moga(search)
        if not len(search.archive):  # no feasible purchase among so many random ones
            search.bits(np.ones((1, problem.n_slots), dtype=np.bool_))
    return search


def _row(
    kind: str,
    trade_off: float | None,
    makespan: float | None,
    cost: float | None,
    wait: float | None,
) -> Row:
    return {
        "kind": kind,
        "trade_off": trade_off,
        "makespan": None if makespan is None else float(makespan) / HOUR,
        "cost": None if cost is None else float(cost),
        "others_wait": wait,
    }
