"""Computing elements (the queue of a site and its processors), and the jobs on their way."""

import asyncio
import math
from collections.abc import Callable, Hashable
from enum import IntEnum
from typing import Protocol

import numpy as np

from bursar.cluster.element import ComputingElement
from bursar.model.matching import SiteStatus
from bursar.model.site import SiteFacts
from bursar.simulation.datagrid.scenario import GridJobClass
from bursar.simulation.loaded_cluster import LoadedCluster
from bursar.simulation.virtual_loop import VirtualLoop

# Defines a job that passes through the grid.


class GridJobState(IntEnum):
    """State of a job."""

    PAUSED = 0
    """Failed or refused, and due at the broker again after a pause."""
    STAGING = 1
    """Waiting for files at the submission service."""
    SUBMITTING = 2
    """Waiting at the submission service to be handed over; all files are at the site."""
    QUEUED = 3
    """Waiting in the queue of the computing element."""
    RUNNING = 4
    FINISHED = 5
    FAILED = 6


class GridJob:
    """
    Holds a job's state and the files that the job holds.

    Parameters
    ----------
    number
        Number in order of submission, from 0.
    work
        Seconds that the job takes at speed 1.
    """

    __slots__ = (
        "attempt",
        "avoids",
        "kind",
        "missing",
        "number",
        "own",
        "pinned",
        "reason",
        "site",
        "state",
        "work",
    )

    def __init__(self, number: int, kind: GridJobClass, work: float) -> None:
        self.number = number
        self.kind = kind
        self.work = work
        self.state = GridJobState.PAUSED
        self.site = -1
        self.attempt = 0
        self.avoids: tuple[str, ...] = ()
        """Sites where the job failed."""
        self.missing: set[str] = set()
        """Files that are not at the site yet."""
        self.pinned: list[str] = []
        """Files in the site's storage that the job has pinned."""
        self.own: set[str] = set()
        """Files that were brought for this job alone."""
        self.reason = ""
        """Reason of the last failure."""


# Computing elements: the queue of a site, and the processors that it feeds.

OnJobChange = Callable[[GridJob], None]

_SHORTEST = 1e-6
"""Seconds that a job takes on a batch machine at the least: none may take no time there."""


class SimulatedElement(Protocol):
    """A site that runs jobs."""

    facts: SiteFacts

    @property
    def queued(self) -> int:
        """Jobs of the grid that wait there."""

    @property
    def running(self) -> int:
        """Jobs of the grid that run there."""

    def submit(self, job: GridJob, seconds: float, estimate: float | None) -> None:
        """Accept a job that really takes so many seconds here, next to the estimate stated."""

    def lose(self) -> list[GridJob]:
        """Lose the site; return the jobs lost."""

    def status(self) -> SiteStatus:
        """Return the status that the site publishes now."""


class FcfsElement:
    """
    Runs jobs first come, first served, each as soon as enough processors are free.

    Parameters
    ----------
    began, ended
        Called with each job that has begun or ended.
    """

    def __init__(
        self, facts: SiteFacts, loop: VirtualLoop, began: OnJobChange, ended: OnJobChange
    ) -> None:
        self.facts = facts
        self._loop = loop
        self._began = began
        self._ended = ended
        self._clear()

    def _clear(self) -> None:
        self._element = ComputingElement(self.facts.processors, self.facts.speed)
        self._here: dict[Hashable, tuple[GridJob, float]] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}

    @property
    def queued(self) -> int:
        """Jobs that wait there."""
        return self._element.waiting

    @property
    def running(self) -> int:
        """Jobs that run there."""
        return self._element.running

    def submit(self, job: GridJob, seconds: float, estimate: float | None) -> None:
        """Accept a job that really takes so many seconds here, next to the estimate stated."""
        self._element.submit(job.number, job.kind.processors, estimate, self._loop.time())
        self._here[job.number] = job, seconds
        self._start()

    def lose(self) -> list[GridJob]:
        """Lose the site; return the jobs lost."""
        lost = [job for job, _ in self._here.values()]
        for timer in self._timers.values():
            timer.cancel()
        self._clear()
        return lost

    def status(self) -> SiteStatus:
        """Return the status that the site publishes now."""
        return self._element.status(self._loop.time(), self.facts.name)

    def _start(self) -> None:
        now = self._loop.time()
        for number in self._element.startable():
            job, seconds = self._here[number]
            self._element.began(number, now)
            self._timers[job.number] = self._loop.call_at(now + seconds, self._end, job)
            self._began(job)

    def _end(self, job: GridJob) -> None:
        del self._here[job.number], self._timers[job.number]
        self._element.ended(job.number, self._loop.time())
        self._ended(job)
        self._start()


class BatchElement:
    """
    Runs the grid's jobs on a machine with a batch scheduler, beside other jobs if there are any.

    Parameters
    ----------
    facts, loop, began, ended
        See :class:`FcfsElement`.
    cluster
        Cluster as of the begin of the simulation.
    """

    def __init__(
        self,
        facts: SiteFacts,
        loop: VirtualLoop,
        began: OnJobChange,
        ended: OnJobChange,
        cluster: LoadedCluster,
    ) -> None:
        self.facts = facts
        self._loop = loop
        self._began = began
        self._ended = ended
        self._cluster = cluster
        self._offset = cluster.now - loop.time()
        self._waiting: dict[int, GridJob] = {}  # by number on the machine
        self._running: dict[int, GridJob] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def queued(self) -> int:
        """Jobs of the grid that wait there."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Jobs of the grid that run there."""
        return len(self._running)

    def submit(self, job: GridJob, seconds: float, estimate: float | None) -> None:
        """
        Accept a job that really takes so many seconds here, next to the estimate stated.

        The job asks for at least as long as it takes, so that none is killed at its limit.
        """
        self._advance()
        seconds = max(seconds, _SHORTEST)
        asked = seconds if estimate is None else max(seconds, estimate)
        number = self._cluster.machine.submit(job.kind.processors, asked, runtime=seconds)
        self._waiting[number] = job
        self._go_on()

    def lose(self) -> list[GridJob]:
        """Lose the site; return the grid's jobs lost. The machine's own jobs stay."""
        lost = [*self._waiting.values(), *self._running.values()]
        # The machine's own jobs stay and go on: only the grid's are lost.
        for number in [*self._waiting, *self._running]:
            self._cluster.machine.cancel(number)
        self._waiting.clear()
        self._running.clear()
        return lost

    def status(self) -> SiteStatus:
        """Return the status that the site publishes now."""
        self._advance()
        machine = self._cluster.machine
        return SiteStatus(
            site=self.facts.name,
            at=self._loop.time(),
            free_processors=machine.free,
            running=len(machine.running),
            waiting=len(machine.waiting),
            traversal_time=self._cluster.traversal_time(1, _SHORTEST),
        )

    def _advance(self) -> None:
        # Rounding of the offset may put the loop a hair behind the cluster, whose clock does not
        # go back.
        self._cluster.advance(max(self._cluster.now, self._loop.time() + self._offset))

    def _go_on(self) -> None:
        """Report the jobs that have begun or ended, and wait for the next event."""
        self._advance()
        jobs, now = self._cluster.machine.jobs, self._cluster.machine.now
        for number in _filter_jobs(self._waiting, jobs.started, now):
            job = self._running[number] = self._waiting.pop(number)
            self._began(job)
        for number in _filter_jobs(self._running, jobs.ended, now):
            self._ended(self._running.pop(number))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (self._waiting or self._running) and math.isfinite(self._cluster.next_event):
            self._timer = self._loop.call_at(self._cluster.next_event - self._offset, self._go_on)


def _filter_jobs(
    jobs: dict[int, GridJob], happened: Callable[..., np.ndarray], now: float
) -> list[int]:
    """Return the numbers of jobs to which something has happened by now, ascending."""
    numbers = np.fromiter(jobs, dtype=np.int64, count=len(jobs))
    found: list[int] = numbers[happened(numbers, now)].tolist()
    return found


def make_element(
    facts: SiteFacts,
    loop: VirtualLoop,
    began: OnJobChange,
    ended: OnJobChange,
    cluster: LoadedCluster | None,
) -> SimulatedElement:
    """The computing element of a site; with a batch scheduler where there is one."""
    if cluster is None:
        return FcfsElement(facts, loop, began, ended)
    return BatchElement(facts, loop, began, ended, cluster)
