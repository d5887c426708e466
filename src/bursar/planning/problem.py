"""A workflow and sites, with their slots, as the arrays that planning computes with."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bursar.model.campaign import Workflow
from bursar.model.errors import InputError
from bursar.model.network import Link
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot, find_oversubscription
from bursar.model.task import Task
from bursar.planning.kernels.availability import BoolArray, FloatArray, IntArray, SlotArrays
from bursar.planning.kernels.placing import TaskArrays
from bursar.planning.kernels.ranks import heads_and_tails

# The slots of all sites, in the order and the arrays that planning computes with.


@dataclass(frozen=True, slots=True, eq=False)
class OfferedSlots:
    """
    The slots that all sites offer, as values and as arrays for the kernels.

    Parameters
    ----------
    slots
        Site after site, those of a site by start and then as they are offered.
        This order breaks ties.
    arrays
        The same for the kernels.
    """

    slots: tuple[Slot, ...]
    arrays: SlotArrays

    def __len__(self) -> int:
        return len(self.slots)


def arrange_offers(sites: Sequence[SiteFacts]) -> OfferedSlots:
    """
    Everything that the sites offer.

    Raises
    ------
    InputError
        When slots of a site overlap on the same processors: together they are
        more than the site has.
    """
    for site in sites:
        _check_overlap(site)
    by_site = [sorted(site.offers, key=lambda slot: slot.start) for site in sites]
    slots = [slot for group in by_site for slot in group]
    first = np.cumsum([0, *map(len, by_site)])
    last = np.array([np.inf if s.extensible else s.end for s in slots], dtype=np.float64)
    by_last = [first[s] + np.argsort(last[first[s] : first[s + 1]], kind="stable")
               for s in range(len(sites))]  # fmt: skip
    start = np.array([s.start for s in slots], dtype=np.float64)
    return OfferedSlots(
        slots=tuple(slots),
        arrays=SlotArrays(
            first=first.astype(np.int64),
            site=np.repeat(np.arange(len(sites)), np.diff(first)).astype(np.int64),
            start=start,
            begin=np.maximum(start, 0.0),
            end=np.array([s.end for s in slots], dtype=np.float64),
            last=last,
            by_last=np.concatenate(by_last).astype(np.int64),
            processors=np.array([s.processors for s in slots], dtype=np.int64),
            unit_price=_prices(s.unit_price for s in slots),
            fixed_price=_prices(s.fixed_price for s in slots),
            divisible=np.array([s.divisible for s in slots], dtype=np.bool_),
            leased=np.array([s.leased for s in slots], dtype=np.bool_),
        ),
    )


def _prices(prices: Iterable[float | None]) -> FloatArray:
    return np.array([np.nan if p is None else p for p in prices], dtype=np.float64)


def _check_overlap(site: SiteFacts) -> None:
    """An extensible slot counts to no end: its processors may be in use then."""
    found = find_oversubscription(site.offers, site.processors)
    if found is not None:
        moment, slots = found
        raise InputError(
            f"slots {', '.join(map(str, slots))} (counted from 0) overlap: at {moment:g} s they "
            f"are {sum(site.offers[i].processors for i in slots)} processors together, "
            f"the site has {site.processors}",
            where=f"site.{site.name}.slot",
        )


# A workflow and sites as the arrays that planning computes with.


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True, eq=False)
class PlanningProblem:
    """
    A planning problem: the tasks to be placed and the slots on offer.

    Parameters
    ----------
    sites
        Sites, in the order that breaks ties.
    offers
        Slots on offer at the sites.
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
        Bytes that pass along each of these edges, shape ``(n_edges,)``.
    latency, seconds_per_byte
        Latency (seconds) and seconds per byte of a transfer from site to site, shape ``(n_sites,
        n_sites)``; zero within a site.
    """

    sites: tuple[SiteFacts, ...]
    offers: OfferedSlots
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
    def has_dependencies(self) -> bool:
        """Whether any task has a parent."""
        return len(self.parent_index) > 0

    @property
    def offered(self) -> IntArray:
        """Processors of each site, shape ``(n_sites,)``."""
        return np.array([s.processors for s in self.sites], dtype=np.int64)

    @property
    def n_slots(self) -> int:
        """Number of slots on offer."""
        return len(self.offers)

    @property
    def tasks(self) -> TaskArrays:
        """The tasks for the kernels."""
        return TaskArrays(
            runtimes=self.runtimes,
            widths=self.widths,
            parent_start=self.parent_start,
            parent_index=self.parent_index,
            parent_bytes=self.parent_bytes,
            latency=self.latency,
            pace=self.seconds_per_byte,
        )

    @property
    def children(self) -> tuple[IntArray, IntArray]:
        """
        Children of task ``i`` are ``index[start[i]:start[i + 1]]``; answers both.
        """
        holders = np.repeat(np.arange(self.n_tasks), np.diff(self.parent_start))
        order = np.argsort(self.parent_index, kind="stable")
        counts = np.bincount(self.parent_index, minlength=self.n_tasks)
        return np.concatenate(([0], np.cumsum(counts))), holders[order]

    def turned(self) -> "PlanningProblem":
        """Return the problem with workflow and transfers read from the end; the slots stay."""
        start, index = self.children
        return replace(
            self,
            order=self.order[::-1].copy(),
            parent_start=start,
            parent_index=index,
            parent_bytes=self.parent_bytes[np.argsort(self.parent_index, kind="stable")],
            latency=self.latency.T.copy(),
            seconds_per_byte=self.seconds_per_byte.T.copy(),
        )

    @property
    def levels(self) -> IntArray:
        """Tasks on the longest chain of each task's ancestors, shape ``(n_tasks,)``."""
        heads, _ = heads_and_tails(
            np.ones(self.n_tasks), self.order, self.parent_start, self.parent_index
        )
        return heads.astype(np.int64)

    @property
    def by_level(self) -> IntArray:
        """Tasks by level, each level in topological order, shape ``(n_tasks,)``."""
        return self.order[np.argsort(self.levels[self.order], kind="stable")]

    @property
    def level_first(self) -> IntArray:
        """Where each level begins in ``by_level``, and where the last ends."""
        return np.concatenate(([0], np.cumsum(np.bincount(self.levels))))

    @property
    def everything(self) -> IntArray:
        """Processors of each slot, shape ``(n_slots,)``: a purchase of all there is."""
        return self.offers.arrays.processors

    @property
    def speeds(self) -> FloatArray:
        """Speed of each site, shape ``(n_sites,)``."""
        return np.array([s.speed for s in self.sites])

    def restricted(self, tasks: IntArray) -> "PlanningProblem":
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
        return replace(
            self,
            runtimes=self.runtimes[tasks],
            known=self.known[tasks],
            widths=self.widths[tasks],
            order=np.arange(len(tasks)),
            parent_start=parent_start,
            parent_index=new[self.parent_index[edges]],
            parent_bytes=self.parent_bytes[edges],
        )


def build_problem(
    workflow: Workflow,
    sites: Sequence[SiteFacts],
    overhead: float = 0.0,
) -> PlanningProblem:
    """
    The arrays of a workflow on sites.

    A task of runtime r takes r / speed + overhead on a site with the processors
    and the memory that it needs; a site whose memory is unknown is taken to have
    enough. The memory of tasks that run at the same time is not added up.

    Parameters
    ----------
    overhead
        Seconds that starting and ending a task takes, whatever the site's speed.

    Raises
    ------
    InputError
        When there is no site, two have the same name, slots of one overlap, or a task fits on none.
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
    needed = {tuple(sorted(t.resources.items())) for t in tasks if t.resources}
    for needs in needed:
        rows = [i for i, t in enumerate(tasks) if tuple(sorted(t.resources.items())) == needs]
        fits[rows] &= [all(s.resources.get(n, 0) >= c for n, c in needs) for s in sites]
    if not fits.any(axis=1).all():
        raise _misfit(tasks[int(np.argmin(fits.any(axis=1)))], sites)

    parents = workflow.parents
    n_edges = sum(len(p) for p in parents)
    lengths = np.where(known, runtimes, 0.0)[:, None] / speeds + overhead * known[:, None]
    return PlanningProblem(
        sites=tuple(sites),
        offers=arrange_offers(sites),
        runtimes=np.where(fits, lengths, np.inf),
        known=known,
        widths=widths,
        order=np.array(workflow.order, dtype=np.int64),
        parent_start=np.cumsum([0, *(len(p) for p in parents)], dtype=np.int64),
        parent_index=np.fromiter((p for ps in parents for p in ps), np.int64, n_edges),
        parent_bytes=_edge_bytes(workflow) if any(s.links for s in sites) else np.zeros(n_edges),
        latency=_matrix(sites, lambda link: link.latency),
        seconds_per_byte=_matrix(sites, lambda link: 1 / link.bandwidth),
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
    for name, count in task.resources.items():
        most = max(sites, key=lambda s: s.resources.get(name, 0))
        had = most.resources.get(name, 0)
        if count > had:
            what = f'the site with most, "{most.name}", has {had}' if had else "no site has any"
            return InputError(
                f'task "{task.id}" needs {count} of "{name}", {what}',
                where=f"{where}.resources",
                hint=f"state what a site has in a sites file: resources = {{ {name} = {count} }}",
            )
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
    if task.resources:
        return InputError(
            f'task "{task.id}" needs more than any one site has of processors, memory and '
            "resources together",
            where=where,
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


def _matrix(sites: Sequence[SiteFacts], of: Callable[[Link], float]) -> FloatArray:
    """One figure of each link, shape ``(n_sites, n_sites)``; 0 where there is no link."""
    matrix = np.zeros((len(sites), len(sites)))
    for i, source in enumerate(sites):
        for j, target in enumerate(sites):
            if i != j and target.name in source.links:
                matrix[i, j] = of(source.links[target.name])
    return matrix
