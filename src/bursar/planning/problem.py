"""A workflow and sites as the arrays that planning computes with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bursar.model.errors import InputError
from bursar.model.site import SiteFacts
from bursar.model.task import Task
from bursar.model.workflow import Workflow
from bursar.planning.links import Link, Links

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """
    What is to be placed, and on what.

    Parameters
    ----------
    sites
        In the order that breaks ties.
    runtimes
        Seconds of each task on each site, shape ``(n_tasks, n_sites)``; infinite
        where it cannot run, 0 where it is not known.
    known
        Whether a task's runtime is known, shape ``(n_tasks,)``.
    widths
        Processors each task holds, shape ``(n_tasks,)``.
    order
        Tasks, parents before children, shape ``(n_tasks,)``.
    parent_start, parent_index
        Parents of task ``i`` are ``parent_index[parent_start[i]:parent_start[i + 1]]``.
    parent_bytes
        What passes along each of these edges, shape ``(n_edges,)``.
    latency, seconds_per_byte
        Of a transfer from site to site, shape ``(n_sites, n_sites)``, zero
        within a site.
    """

    sites: tuple[SiteFacts, ...]
    runtimes: FloatArray
    known: BoolArray
    widths: IntArray
    order: IntArray
    parent_start: IntArray
    parent_index: IntArray
    parent_bytes: FloatArray
    latency: FloatArray = field(repr=False)
    seconds_per_byte: FloatArray = field(repr=False)

    @property
    def n_tasks(self) -> int:
        """Number of tasks."""
        return len(self.widths)

    @property
    def n_sites(self) -> int:
        """Number of sites."""
        return len(self.sites)

    @property
    def offered(self) -> IntArray:
        """Processors of each site, shape ``(n_sites,)``."""
        return np.array([s.processors for s in self.sites], dtype=np.int64)

    @property
    def speeds(self) -> FloatArray:
        """Speed of each site, shape ``(n_sites,)``."""
        return np.array([s.speed for s in self.sites])

    def restricted(self, tasks: IntArray) -> "Problem":
        """
        The same problem with some of the tasks only.

        Parameters
        ----------
        tasks
            Indices in the order that the new problem numbers them; with each
            task, all its parents, earlier.
        """
        new = np.full(self.n_tasks, -1)
        new[tasks] = np.arange(len(tasks))
        counts = np.diff(self.parent_start)[tasks]
        parent_start = np.concatenate(([0], np.cumsum(counts)))
        edges = np.repeat(self.parent_start[tasks] - parent_start[:-1], counts)
        edges += np.arange(parent_start[-1])
        return Problem(
            sites=self.sites,
            runtimes=self.runtimes[tasks],
            known=self.known[tasks],
            widths=self.widths[tasks],
            order=np.arange(len(tasks)),
            parent_start=parent_start,
            parent_index=new[self.parent_index[edges]],
            parent_bytes=self.parent_bytes[edges],
            latency=self.latency,
            seconds_per_byte=self.seconds_per_byte,
        )


def build_problem(
    workflow: Workflow,
    sites: Sequence[SiteFacts],
    links: Links | None = None,
    overhead: float = 0.0,
) -> Problem:
    """
    The arrays of a workflow on sites.

    A task of runtime r takes r / speed + overhead on a site with the processors
    and the memory that it needs; a site whose memory is unknown is taken to have
    enough. The memory of tasks that run at the same time is not added up.

    Parameters
    ----------
    links
        How data pass between sites; None: sites share their files.
    overhead
        Seconds that starting and ending a task takes, whatever the site's speed.

    Raises
    ------
    InputError
        When there is no site, two have the same name, or a task fits on none.
    """
    _check_sites(sites)
    tasks = workflow.tasks
    runtimes = np.array([np.nan if t.runtime is None else t.runtime for t in tasks])
    known = ~np.isnan(runtimes)
    widths = np.array([t.processors for t in tasks], dtype=np.int64)
    memory = np.array([t.memory or 0 for t in tasks], dtype=np.float64)
    room = np.array([np.inf if s.memory is None else s.memory for s in sites])
    offered = np.array([s.processors for s in sites])
    speeds = np.array([s.speed for s in sites])
    fits = (widths[:, None] <= offered) & (memory[:, None] <= room)
    if not fits.any(axis=1).all():
        raise _misfit(tasks[int(np.argmin(fits.any(axis=1)))], sites)

    parents = workflow.parents
    n_edges = sum(len(p) for p in parents)
    lengths = np.where(known, runtimes, 0.0)[:, None] / speeds + overhead * known[:, None]
    return Problem(
        sites=tuple(sites),
        runtimes=np.where(fits, lengths, np.inf),
        known=known,
        widths=widths,
        order=np.array(workflow.order, dtype=np.int64),
        parent_start=np.cumsum([0, *(len(p) for p in parents)], dtype=np.int64),
        parent_index=np.fromiter((p for ps in parents for p in ps), np.int64, n_edges),
        parent_bytes=_edge_bytes(workflow) if links else np.zeros(n_edges),
        latency=_matrix(sites, links or {}, lambda link: link.latency),
        seconds_per_byte=_matrix(sites, links or {}, lambda link: 1 / link.bandwidth),
    )


def _check_sites(sites: Sequence[SiteFacts]) -> None:
    if not sites:
        raise InputError("there is no site to plan on")
    names = [s.name for s in sites]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f'two sites are named "{name}"', where=f"sites.{name}")


def _misfit(task: Task, sites: Sequence[SiteFacts]) -> InputError:
    """Why the task fits on no site."""
    where = f"tasks.{task.id}"
    widest = max(sites, key=lambda s: s.processors)
    if task.processors > widest.processors:
        return InputError(
            f'task "{task.id}" needs {task.processors} processors; '
            f'the widest site, "{widest.name}", has {widest.processors}',
            where=f"{where}.processors",
        )
    largest = max(sites, key=lambda s: s.memory or 0)
    if (task.memory or 0) > (largest.memory or 0):
        return InputError(
            f'task "{task.id}" needs {task.memory} bytes of memory; '
            f'the site with most, "{largest.name}", has {largest.memory}',
            where=f"{where}.memory",
        )
    return InputError(
        f'task "{task.id}" needs {task.processors} processors and {task.memory} bytes of memory; '
        f'no site has both (the widest, "{widest.name}", has {widest.processors} processors)',
        where=where,
    )


def _edge_bytes(workflow: Workflow) -> FloatArray:
    """Bytes that each parent hands to each child; a file of unknown size counts nothing."""
    made = [{f.name: f.size or 0 for f in t.outputs} for t in workflow.tasks]
    return np.array(
        [
            sum(made[parent].get(file.name, 0) for file in task.inputs)
            for task, parents in zip(workflow.tasks, workflow.parents, strict=True)
            for parent in parents
        ],
        dtype=np.float64,
    )


def _matrix(sites: Sequence[SiteFacts], links: Links, of: Callable[[Link], float]) -> FloatArray:
    """One figure of each link, shape ``(n_sites, n_sites)``; 0 where there is no link."""
    matrix = np.zeros((len(sites), len(sites)))
    for i, source in enumerate(sites):
        for j, target in enumerate(sites):
            if i != j and (source.name, target.name) in links:
                matrix[i, j] = of(links[source.name, target.name])
    return matrix
