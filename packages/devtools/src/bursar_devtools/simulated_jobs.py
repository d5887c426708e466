"""Jobs, nodes and delays of a simulated batch scheduler."""

import asyncio
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from bursar.cluster.job_table import Policy
from bursar.model.errors import InputError
from bursar.model.trace import Trace
from bursar.provisioning.lrm.resource_manager import (
    ClusterNode,
    JobEnding,
    JobRequest,
    JobState,
)
from bursar.simulation.loaded_cluster import LoadedCluster

EVER = 1e9
"""Seconds, more than any simulation lasts."""


_NONE, _NOBODY = np.zeros(0), np.zeros(0, dtype=np.int64)
NO_JOBS = Trace(
    name="none",
    number=_NOBODY,
    submit=_NONE,
    runtime=_NONE,
    estimate=_NONE,
    processors=_NOBODY,
    wait=_NONE,
    user=_NOBODY,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLatency:
    """
    Holds the delays of a scheduler.

    Parameters
    ----------
    submission
        Seconds of one submission; the next one waits for it.
    start
        Seconds from when a job has its processors until its script runs, at the least.
    spread
        And at the most so many more, drawn evenly.
    """

    submission: float = 0.0
    start: float = 0.0
    spread: float = 0.0

    def __post_init__(self) -> None:
        for name in ("submission", "start", "spread"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")


@dataclass(slots=True, kw_only=True, eq=False)
class SimulatedJob:
    """
    Describes a job with the present state.

    Parameters
    ----------
    id
        Of the manager.
    element
        Number among those that are alike.
    request
        What was asked for.
    processors
        That it asks for; from its start on, that it has.
    seconds
        Its wall-clock limit.
    submitted, began, ended
        Loop time; None: not yet.
    state, how, reason
        See :class:`bursar.provisioning.lrm.resource_manager.JobReport`.
    """

    id: str
    element: int
    request: JobRequest
    processors: int
    seconds: float
    submitted: float
    began: float | None = None
    ended: float | None = None
    state: JobState = "pending"
    how: JobEnding | None = None
    reason: str = ""
    _numbers: list[int] = field(default_factory=list)  # of the machine's jobs that it is
    _window: str | None = None
    _timer: asyncio.TimerHandle | None = None
    _kill: Callable[[], None] | None = None
    _finish: Callable[["SimulatedJob", JobEnding], None] | None = None

    @property
    def until(self) -> float:
        """Time at which the job's limit ends, loop time; infinite before the start."""
        return math.inf if self.began is None else self.began + self.seconds

    def end(self, how: JobEnding = "completed") -> None:
        """End the job as the end of a script does; an ended job stays as it is."""
        if self._finish is not None:
            self._finish(self, how)


OnJobStart = Callable[[SimulatedJob], Callable[[], None] | None]
"""
Told of a job whose script begins now; returns what is to be called when the job is ended by
another than its script: cancelled, over its time, or lost.
"""


def cluster_with_timetable(
    processors: int, timetable: Iterable[tuple[float, int]] = (), *, policy: Policy = "fcfs"
) -> LoadedCluster:
    """
    A cluster of which so many processors are free from some moments on.

    The others are kept away as by reservations that everybody knows of.

    Parameters
    ----------
    processors
        That are free at the most.
    timetable
        Moments, seconds from the begin, ascending, and how many are free from then on:
        ``[(0, 47), (160, 48)]``. Empty: all of them.

    Raises
    ------
    InputError
        When the moments do not ascend, or more are free than there are.
    """
    cluster = LoadedCluster(NO_JOBS, processors, at=0.0, policy=policy)
    steps = [*timetable] or [(0.0, processors)]
    ends = [moment for moment, _ in steps[1:]] + [EVER]
    for (begin, free), end in zip(steps, ends, strict=True):
        if not (0 <= begin < end and 0 <= free <= processors):
            raise InputError(f"no timetable of {processors} processors: {steps}")
        if free < processors:
            cluster.machine.reserve(begin, end - begin, processors - free)
    return cluster


def check_request(request: JobRequest) -> int:
    """Return how many nodes a job needs at least; raise InputError if no job can be so."""
    if request.processors < 1 or request.copies < 1:
        raise InputError(f"a job has a processor at least, got {request.processors}")
    if not 0 < request.seconds < math.inf:
        raise InputError(f"seconds must be positive and finite, got {request.seconds}")
    least = request.least_seconds
    if least is not None and not 0 < least <= request.seconds:
        raise InputError(f"0 < least_seconds <= seconds must hold, got {least}")
    fewest, most = request.nodes or (1, 1)
    if not 1 <= fewest <= most:
        raise InputError(f"1 <= fewest <= most nodes must hold, got {request.nodes}")
    return fewest


def filled_nodes(
    name: str, count: int, size: int, held: int, *, are_one: bool
) -> tuple[ClusterNode, ...]:
    """
    Return nodes of which the first are full.

    Parameters
    ----------
    count, size
        Number of nodes, and processors of each.
    held
        Processors that are held on all nodes together.
    are_one
        Whether the machine is not divided: its only node has no number.
    """
    nodes = []
    for number in range(count):
        here = min(held, size)
        held -= here
        nodes.append(
            ClusterNode(
                name=name if are_one else f"{name}{number + 1}",
                processors=size,
                allocated=here,
                up=True,
                state="allocated" if here == size else "mixed" if here else "idle",
            )
        )
    return tuple(nodes)
