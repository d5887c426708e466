"""
OptorSim's grids and jobs, read from configuration files.

What is read as it stands: nodes, links and what others leave of them, files, kinds of job, what
each site runs, and the number and spacing of submissions. What becomes the nearest thing of
ours: worker nodes are processors that run a job each; every optimiser that replicates keeps
copies and drops the least recently used; the schedulers are choice rules (:data:`SCHEDULERS`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bursar.model.errors import InputError
from bursar.model.matching import Matching, RankWeights, Replica
from bursar.model.site import SiteFacts
from bursar.simulation.datagrid.scenario import (
    BrokerPolicy,
    DataGrid,
    GridJobClass,
    GridServices,
    GridWorkload,
)
from bursar_papers.optorsim.background import read_background
from bursar_papers.optorsim.grid_configuration import GridNode, OptorSimGrid, read_grid
from bursar_papers.optorsim.jobs import OptorSimJobKind, OptorSimJobs, read_jobs
from bursar_papers.optorsim.lines import number_in
from bursar_papers.optorsim.parameters import OptorSimParameters, read_parameters

SCHEDULERS: Mapping[str, BrokerPolicy] = {
    "1": BrokerPolicy(choice="random"),
    "2": BrokerPolicy(choice="best", weights=RankWeights(alpha=1.0, beta=0.0)),
    "3": BrokerPolicy(choice="best", weights=RankWeights(alpha=0.0, beta=0.0)),
    "4": BrokerPolicy(choice="best", weights=RankWeights(alpha=0.5, beta=0.0)),
}
"""Random; shortest queue; least access cost; least access cost with the queue."""

_NO_REPLICATION, _SEQUENTIAL, _ZIPF = "1", "1", "5"
_EVEN, _UNIFORM = "1", "2"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptorSimScenario:
    """
    The simulation that a file of parameters describes.

    Parameters
    ----------
    grid, load, services, policy
        See :func:`bursar.simulation.datagrid.grid_simulation.simulate`.
    """

    grid: DataGrid
    load: GridWorkload
    services: GridServices
    policy: BrokerPolicy


def from_optorsim(path: Path, *, seed: int = 0, jobs: int | None = None) -> OptorSimScenario:
    """
    The simulation that an OptorSim file of parameters describes.

    Parameters
    ----------
    path
        Of the file of parameters; the files that it names are looked for beside it.
    seed
        Of what is drawn: kinds of job, files where only some are read, sites of the files
        where they are random.
    jobs
        How many are submitted; None: as the file says.

    Raises
    ------
    InputError
        When a file is wrong, or speaks of something that is not simulated here.
    """
    parameters = read_parameters(path)
    values = parameters.values
    rng = np.random.default_rng(seed)
    nodes, described = read_grid(parameters.grid), read_jobs(parameters.jobs)
    grid = _grid(parameters, nodes, described, rng)
    load = _load(parameters, described, rng, parameters.number_of_jobs if jobs is None else jobs)
    scheduler = values.get("scheduler", "4")
    if scheduler not in SCHEDULERS:
        raise InputError(
            f'unknown scheduler "{scheduler}", expected one of {", ".join(SCHEDULERS)}',
            where=str(path),
        )
    return OptorSimScenario(
        grid=grid,
        load=load,
        services=GridServices(keeps=values.get("optimiser", _NO_REPLICATION) != _NO_REPLICATION),
        policy=SCHEDULERS[scheduler],
    )


def _grid(
    parameters: OptorSimParameters,
    nodes: OptorSimGrid,
    jobs: OptorSimJobs,
    rng: np.random.Generator,
) -> DataGrid:
    holders = _file_holders(parameters, nodes.nodes, jobs, rng)
    held = dict.fromkeys(range(len(nodes.nodes)), 0)
    for name, node in holders.items():
        held[node] += jobs.sizes[name]
    sites = tuple(
        SiteFacts(
            name=node.name,
            kind="simulated",
            processors=node.workers,
            speed=node.power,
            storage=f"/{node.name}",
            storage_limit=max(0, sum(node.storage) - held[number]),
            attributes={
                _accepts_attribute(i): True
                for i, kind in enumerate(jobs.kinds)
                if kind.name in jobs.accepts.get(number, ())
            },
        )
        for number, node in enumerate(nodes.nodes)
        if node.workers
    )
    profiles = None
    if parameters.background is not None and parameters.measurements is not None:
        profiles = read_background(
            parameters.background,
            folder=parameters.measurements,
            default=parameters.default_background,
        ).profiles(hour=parameters.hour)
    return DataGrid(
        sites=sites,
        stores=tuple(node.name for node in nodes.nodes if node.storage and not node.workers),
        replicas=tuple(
            Replica(
                name=name,
                site=nodes.nodes[node].name,
                url=f"/{nodes.nodes[node].name}/{name}",
                size=jobs.sizes[name],
            )
            for name, node in holders.items()
        ),
        topology=nodes.topology(profiles=profiles),
    )


def _file_holders(
    parameters: OptorSimParameters,
    nodes: tuple[GridNode, ...],
    jobs: OptorSimJobs,
    rng: np.random.Generator,
) -> dict[str, int]:
    """The node where each file is at first."""
    masters = parameters.masters
    if not masters:
        stores = [number for number, node in enumerate(nodes) if node.storage]
        return {name: int(rng.choice(stores)) for name in jobs.sizes}
    for number in masters:
        if number >= len(nodes) or not nodes[number].storage:
            raise InputError(f"no storage at site {number}", where="initial.file.distribution")
    return {name: masters[i % len(masters)] for i, name in enumerate(jobs.sizes)}


def _accepts_attribute(kind: int) -> str:
    """Return the name of the attribute by which a site accepts a kind of job."""
    return f"RunsKind{kind}"


def _load(
    parameters: OptorSimParameters, jobs: OptorSimJobs, rng: np.random.Generator, count: int
) -> GridWorkload:
    if count < 1:
        raise InputError(f"at least one job is needed, got {count}")
    users = parameters.values.get("users", _EVEN)
    if users == _EVEN:
        gaps = np.ones(count)
    elif users == _UNIFORM:
        gaps = rng.uniform(0.0, 2.0, count)
    else:
        raise InputError(f"users of kind {users} are not simulated, expected 1 or 2")
    chances = np.array([kind.probability for kind in jobs.kinds])
    drawn = rng.choice(len(jobs.kinds), size=count, p=chances / chances.sum())
    kinds: dict[tuple[int, tuple[str, ...]], tuple[int, GridJobClass]] = {}
    numbers, work = [], []
    for number in drawn.tolist():
        described = jobs.kinds[number]
        data = _files_of(described, parameters, jobs, rng)
        size = sum(jobs.sizes[name] for name in data)
        kind = GridJobClass(
            name=described.name,
            runtime=described.work(size),
            data=data,
            matching=Matching(requirements=f"other.{_accepts_attribute(number)} =?= true"),
        )
        place, _ = kinds.setdefault((number, data), (len(kinds), kind))
        numbers.append(place)
        work.append(kind.runtime)
    return GridWorkload(
        kinds=tuple(kind for _, kind in kinds.values()),
        at=np.cumsum(gaps) * parameters.job_delay,
        kind=np.array(numbers, dtype=np.int64),
        work=np.array(work),
    )


def _files_of(
    kind: OptorSimJobKind,
    parameters: OptorSimParameters,
    jobs: OptorSimJobs,
    rng: np.random.Generator,
) -> tuple[str, ...]:
    """All files of a kind, or as many of them as a job reads: the first ones, or some drawn."""
    count = math.ceil(kind.fraction * len(kind.files))
    pattern = parameters.values.get("access.pattern.generator", _SEQUENTIAL)
    if count == len(kind.files) or pattern == _SEQUENTIAL:
        return kind.files[:count]
    # Zipf's weight of the k-th file is k to the power of minus the shape; with 0 all are alike.
    shape = _shape(parameters) if pattern == _ZIPF else 0.0
    weights = np.arange(1, len(kind.files) + 1) ** -shape
    chosen = rng.choice(len(kind.files), size=count, replace=False, p=weights / weights.sum())
    return tuple(kind.files[i] for i in sorted(chosen.tolist()))


def _shape(parameters: OptorSimParameters) -> float:
    try:
        return number_in(parameters.values.get("shape", "0.85"), "a shape")
    except InputError as error:
        raise error.within("shape") from None
