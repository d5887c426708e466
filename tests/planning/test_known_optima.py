"""The bound over slots never exceeds a known optimum: PSPLIB and the standard task graphs."""

import csv
import lzma
import re
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bursar.model.campaign import Workflow
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.model.task import Task
from bursar.planning.energetic_bound import makespan_bound
from bursar.planning.evaluation import PurchaseEvaluator
from bursar.planning.methods.elitist import elitist
from bursar.planning.methods.search import PlanSearch
from bursar.planning.policy import PlacementPolicy, SearchLimits
from bursar.planning.problem import PlanningProblem, build_problem


def _site(name: str, processors: int) -> SiteFacts:
    """Processors that are always there."""
    slot = Slot(
        site=name,
        start=0.0,
        duration=1.0,
        processors=processors,
        unit_price=1.0,
        extensible=True,
    )
    return SiteFacts(name=name, processors=processors, slots=(slot,))


def _projects(folder: Path) -> dict[str, tuple[Workflow, np.ndarray, list[int]]]:
    """Of each instance the activities, their demands for each resource, and the capacities."""
    projects = {}
    with lzma.open(folder / "j30.tar.xz") as packed, tarfile.open(fileobj=packed) as members:
        for member in members:
            file = members.extractfile(member)
            if file is not None:
                text = file.read().decode()
                projects[Path(member.name).stem] = _project(text)
    return projects


def _project(text: str) -> tuple[Workflow, np.ndarray, list[int]]:
    def rows(title: str) -> list[list[int]]:
        part = text.split(title)[1].split("*****")[0]
        lines = [re.findall(r"\d+", line) for line in part.splitlines()]
        return [list(map(int, line)) for line in lines if line]

    successors = {row[0]: row[3:] for row in rows("PRECEDENCE RELATIONS:") if len(row) > 2}
    needs = {row[0]: row[2:] for row in rows("REQUESTS/DURATIONS:") if len(row) == 7}
    capacities = rows("RESOURCEAVAILABILITIES:")[-1]
    before: dict[int, list[int]] = {job: [] for job in successors}
    for job, after in successors.items():
        for other in after:
            before[other].append(job)
    workflow = Workflow(
        tuple(
            Task(id=str(job), runtime=needs[job][0], after=tuple(map(str, before[job])))
            for job in sorted(needs)
        )
    )
    return workflow, np.array([needs[job][1:] for job in sorted(needs)]), capacities


def _of_one_resource(workflow: Workflow, demand: np.ndarray, capacity: int) -> PlanningProblem:
    """A relaxation: activities that do not need the resource run beside it, without limit."""
    sites = [_site("resource", capacity), _site("beside", len(demand))]
    problem = build_problem(workflow, sites)
    runtimes = problem.runtimes.copy()
    runtimes[demand == 0, 0] = np.inf
    runtimes[demand > 0, 1] = np.inf
    return replace(problem, runtimes=runtimes, widths=np.maximum(demand, 1).astype(np.int64))


def test_no_bound_exceeds_an_optimum_of_psplib(data: Path) -> None:
    """Each of the four resources of 320 instances of 30 activities by itself."""
    folder = data / "optimal" / "psplib"
    with (folder / "j30_best_known.csv").open() as file:
        optima = {
            row["instance"]: float(row["best_known_makespan"]) for row in csv.DictReader(file)
        }
    tight = 0
    projects = _projects(folder)
    assert len(projects) == 320
    for title, (workflow, demands, capacities) in projects.items():
        bounds = [
            makespan_bound(_of_one_resource(workflow, demands[:, k], capacities[k]))
            for k in range(4)
        ]
        assert max(bounds) <= optima[title] * (1 + 1e-9), title
        tight += max(bounds) > optima[title] - 1  # runtimes are whole

    assert tight >= 140  # these are proven optimal by it alone


@pytest.mark.ci
@pytest.mark.parametrize("processors", [2, 8])
def test_the_search_stays_between_the_bound_and_heft_on_task_graphs(
    data: Path, processors: int
) -> None:
    """On twelve graphs; what it finds is no worse than HEFT, and mostly the optimum."""
    folder = data / "optimal" / "stg"
    with (folder / "stg_optimal.csv").open() as file:
        optima = {
            row["graph"]: int(row["optimal_makespan"])
            for row in csv.DictReader(file)
            if int(row["processors"]) == processors
        }
    found = []
    archive = folder / "stg-rnc50-rnc100.tar.xz"
    with lzma.open(archive) as packed, tarfile.open(fileobj=packed) as members:
        for member in list(members)[:240:20]:
            text = members.extractfile(member).read().decode()  # type: ignore[union-attr]
            problem = build_problem(_graph(text), [_site("here", processors)])
            search = PlanSearch(
                PurchaseEvaluator(problem, PlacementPolicy()), SearchLimits(evaluations=200)
            )
            heft = search.recipes(problem.everything[None]).makespan[0]
            elitist(search)
            best = search.points[:, 0].min()
            assert makespan_bound(problem) * (1 - 1e-9) <= best <= heft
            found.append(best / optima[member.name])

    assert len(found) == 12
    assert np.median(found) <= 1.005


def _graph(text: str) -> Workflow:
    lines = [line.split() for line in text.splitlines() if line.strip() and line[0] != "#"]
    rows = [list(map(int, words)) for words in lines[1:]]
    return Workflow(
        tuple(
            Task(id=str(task), runtime=time, after=tuple(map(str, parents[:count])))
            for task, time, count, *parents in rows
        )
    )
