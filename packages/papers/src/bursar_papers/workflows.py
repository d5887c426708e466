"""Workflows of the papers: random layered graphs, and CyberShake as it was run."""

import numpy as np

from bursar.model.campaign import Workflow
from bursar.model.errors import InputError
from bursar.model.task import File, Task

SITES = {"site-10": 10, "site-20": 20, "site-30": 30, "site-40": 40}
"""The four clusters of both studies by Singh, Kesselman and Deelman, with their processors."""
BANDWIDTH = 1e6
"""Bytes per second of the links over which the graphs' transfers take their times."""


def layered(
    rng: np.random.Generator,
    *,
    tasks: int,
    depth: int,
    mean_runtime: float = 100.0,
    mean_transfer: float = 0.0,
    mean_processors: float = 1.0,
    parents: int = 2,
) -> Workflow:
    """
    A random task graph as in e-Science'06 section 4 and HPDC'07 sections 3 and 5.

    Tasks are spread over the levels at random, no level empty; each has two
    predecessors in the level before, one where there is only one. Runtimes are
    uniform from 0 to twice their mean, and so are the times that its output takes
    between sites over a link of ``BANDWIDTH``; processors are uniform from 1 to
    twice their mean less 1.

    Parameters
    ----------
    tasks, depth
        How many tasks, on how many levels.
    mean_runtime, mean_transfer
        Seconds.
    mean_processors
        At least 1.
    parents
        Of each task below the first level.

    Raises
    ------
    InputError
        When an argument is out of range.
    """
    if not 1 <= depth <= tasks:
        raise InputError(f"depth must be between 1 and the number of tasks, {tasks}, got {depth}")
    if not mean_processors >= 1:
        raise InputError(f"mean_processors must be at least 1, got {mean_processors}")
    if mean_runtime <= 0 or mean_transfer < 0:
        raise InputError("mean_runtime must be positive and mean_transfer not negative")
    level = np.sort(np.concatenate((np.arange(depth), rng.integers(0, depth, tasks - depth))))
    runtimes = np.maximum(rng.uniform(0, 2 * mean_runtime, tasks), 1e-3)
    sizes = rng.uniform(0, 2 * mean_transfer * BANDWIDTH, tasks).astype(np.int64)
    widths = rng.integers(1, round(2 * mean_processors - 1) + 1, tasks)
    made = []
    for i in range(tasks):
        above = np.flatnonzero(level == level[i] - 1)
        chosen = np.sort(rng.choice(above, min(parents, len(above)), replace=False))
        made.append(
            Task(
                id=f"t{i}",
                runtime=float(runtimes[i]),
                processors=int(widths[i]),
                inputs=tuple(File(f"f{p}") for p in chosen.tolist()),
                outputs=(File(f"f{i}", int(sizes[i])),),
            )
        )
    return Workflow(tuple(made))


def cybershake(
    rng: np.random.Generator | None = None,
    *,
    sites: int = 4017,
    wide: int = 288,
    spread: float = 0.0,
) -> Workflow:
    """
    The seismic hazard workflow of HPDC'07 section 6: table 1 and figure 8.

    Parameters
    ----------
    rng
        Of the spread; None: without.
    sites
        Tasks on each of the two lowest levels; the paper's 4,017 make 8,039 tasks.
    wide
        Processors of the three parallel tasks.
    spread
        The runtimes of the lowest two levels are uniform within this share of their
        means, in [0, 1); the paper states means only.
    """
    factors = np.ones((2, sites))
    if rng is not None and spread:
        factors = rng.uniform(1 - spread, 1 + spread, (2, sites))
    mesh = [
        Task(id="fd_grid_xyz", runtime=1.0),
        Task(id="preSGT", runtime=300.0, after=("fd_grid_xyz",)),
        Task(id="fd_grid_cvm", runtime=2100.0, processors=wide, after=("fd_grid_xyz",)),
        *(
            Task(id=f"pvml_chk{i}", runtime=86_400.0, processors=wide,
                 after=("preSGT", "fd_grid_cvm"))
            for i in (1, 2)
        ),
    ]  # fmt: skip
    seismograms = [
        Task(id=f"synthSGT{i}", runtime=519.0 * float(f), after=("pvml_chk1", "pvml_chk2"))
        for i, f in enumerate(factors[0])
    ]
    peaks = [
        Task(id=f"peakValCalc{i}", runtime=float(f), after=(f"synthSGT{i}",))
        for i, f in enumerate(factors[1])
    ]
    return Workflow((*mesh, *seismograms, *peaks))
