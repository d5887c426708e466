"""
A local resource manager of this machine's processors runs jobs as processes, first come first
served.
"""

import asyncio
import contextlib
import heapq
import itertools
import math
import os
import re
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bursar.model.errors import InputError, SiteError
from bursar.provisioning.lrm.resource_manager import (
    ClusterNode,
    JobEnding,
    JobReport,
    JobRequest,
    JobState,
    JobUsage,
    ManagerCapabilities,
    QueuedJob,
    QueueState,
)
from bursar.supervisor import TaskSupervisor

GRACE = 2.0
"""Seconds between asking the processes of a job to end and ending them."""

_NAME = re.compile(r"[A-Za-z0-9_\-]{1,200}")
_STEP = 0.02  # seconds between looks whether a group has gone


@dataclass(slots=True, kw_only=True, eq=False)
class _ForkedJob:
    id: str
    element: int
    request: JobRequest
    submitted: float
    state: JobState = "pending"
    how: JobEnding | None = None
    reason: str = "waits for processors"
    began: float | None = None
    ended: float | None = None
    wish: JobEnding | None = None  # why it is being ended
    end: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    @property
    def processors(self) -> int:
        return self.request.processors


class ForkManager:
    """
    Runs jobs on some processors of this machine, in order of submission.

    No job starts before one that came earlier, but for such as wait for a moment. At its limit,
    or cancelled, a job's process group is ended; what left the group is not found. Nothing
    watches over how many processors a job really uses.

    Parameters
    ----------
    processors
        Number of this machine's processors that jobs may hold.

    Raises
    ------
    InputError
        When there is none.
    """

    def __init__(self, processors: int) -> None:
        if processors < 1:
            raise InputError(f"processors must be at least 1, got {processors}")
        self._processors = processors
        self._jobs: dict[str, _ForkedJob] = {}
        self._queue: list[_ForkedJob] = []
        self._last = 0
        self._timers: list[asyncio.TimerHandle] = []
        self._closed = False
        self._tasks = TaskSupervisor()

    @property
    def abilities(self) -> ManagerCapabilities:
        """Capabilities: arrays, begin times, estimates, and accounting while the manager lives."""
        return ManagerCapabilities(arrays=True, start_estimates=True, begin=True, accounting=True)

    async def submit(self, request: JobRequest) -> list[str]:
        """Hands in jobs; see :class:`bursar.provisioning.lrm.resource_manager.ResourceManager`."""
        self._check(request)
        if self._closed:
            raise SiteError("this machine takes no more jobs: its manager was closed")
        now = time.time()
        self._last += 1
        ids = []
        for element in range(request.copies):
            id = f"{self._last}" if request.copies == 1 else f"{self._last}_{element}"
            job = _ForkedJob(id=id, element=element, request=request, submitted=now)
            self._jobs[id] = job
            self._queue.append(job)
            ids.append(id)
        if request.begin is not None and request.begin > now:
            loop = asyncio.get_running_loop()
            self._timers.append(loop.call_later(request.begin - now, self._start_what_can))
        self._start_what_can()
        return ids

    async def cancel(self, ids: Sequence[str]) -> None:
        """End jobs, and wait until the running ones have ended."""
        ending = []
        for id in ids:
            job = self._jobs.get(id)
            if job is None or job.state == "ended":
                continue
            if job.task is None:
                self._queue.remove(job)
                _end(job, "cancelled")
            else:
                job.wish = job.wish or "cancelled"
                job.end.set()
                ending.append(job.task)
        if ending:
            await asyncio.wait(ending)
        self._start_what_can()

    async def poll(self, ids: Sequence[str]) -> Mapping[str, JobReport]:
        """Return the states of jobs."""
        expected = self._starts()
        return {id: self._report(id, expected) for id in ids}

    async def queue(self) -> QueueState:
        """Return this machine as one node, and the jobs in order."""
        running = [job for job in self._jobs.values() if job.state == "running"]
        held = sum(job.processors for job in running)
        name = socket.gethostname()
        return QueueState(
            at=time.time(),
            nodes=(
                ClusterNode(
                    name=name,
                    processors=self._processors,
                    allocated=held,
                    up=True,
                    state="allocated" if held == self._processors else "mixed" if held else "idle",
                ),
            ),
            jobs=tuple(
                QueuedJob(
                    id=job.id,
                    running=job.state == "running",
                    processors=job.processors,
                    submitted=job.submitted,
                    began=job.began,
                    seconds=job.request.seconds,
                    own=True,
                    nodes=(name,) if job.state == "running" else (),
                )
                for job in (*running, *self._queue)
            ),
        )

    async def expected_start(self, request: JobRequest) -> float | None:
        """Return when a request would start if all earlier jobs ran to their limits."""
        self._check(request)
        job = _ForkedJob(id="", element=0, request=request, submitted=time.time())
        return self._starts(job)[""]

    async def reserve(self, name: str, start: float, seconds: float, processors: int) -> None:
        """
        Refuse to reserve processors.

        Raises
        ------
        SiteError
            Always: it keeps nothing in advance.
        """
        raise SiteError("this machine keeps no processors in advance")

    async def unreserve(self, name: str) -> None:
        """Cancel a reservation; one that does not exist is no error."""

    async def usage(self, ids: Sequence[str]) -> Mapping[str, JobUsage]:
        """Processors times the time from start to end."""
        found = {}
        for id in ids:
            job = self._jobs.get(id)
            if job is None or job.state not in ("running", "ended"):
                continue
            end = time.time() if job.ended is None else job.ended
            found[id] = JobUsage(
                id=id,
                processors=job.processors if job.began is not None else 0,
                seconds=0.0 if job.began is None else max(0.0, end - job.began),
                how=job.how,
            )
        return found

    async def close(self) -> None:
        """End all jobs, with every process in their groups."""
        self._closed = True
        for timer in self._timers:
            timer.cancel()
        await self.cancel([job.id for job in self._jobs.values() if job.state != "ended"])

    # Inside.

    def _check(self, request: JobRequest) -> None:
        if not _NAME.fullmatch(request.name):
            raise InputError(f"a job's name is letters, digits, - and _, got {request.name!r}")
        if request.processors < 1 or request.copies < 1:
            raise InputError(f"a job has a processor at least, got {request.processors}")
        if not 0 < request.seconds < math.inf:
            raise InputError(f"seconds must be positive and finite, got {request.seconds}")
        if request.processors > self._processors:
            raise SiteError(
                f"this machine has {self._processors} processors for jobs, "
                f'{request.processors} are asked (lower "most" of the pool)'
            )
        if request.nodes is not None and request.nodes[0] > 1:
            raise SiteError(f"this machine is one node, {request.nodes[0]} are asked")
        if request.reservation is not None:
            raise SiteError("this machine keeps no processors in advance")

    def _start_what_can(self) -> None:
        now = time.time()
        free = self._processors - sum(
            job.processors for job in self._jobs.values() if job.state == "running"
        )
        for job in list(self._queue):
            if self._closed:
                return
            if job.request.begin is not None and job.request.begin > now:
                job.reason = "waits for its begin"
                continue
            # First come, first served: a narrow job behind a wide one waits, or wide ones might
            # never start.
            if job.processors > free:
                return
            free -= job.processors
            self._queue.remove(job)
            job.state, job.began, job.reason = "running", now, ""
            job.task = self._tasks.start(self._run(job), on_failure=partial(self._on_failure, job))

    async def _run(self, job: _ForkedJob) -> None:
        how, reason = await self._run_process(job)
        _end(job, how, reason)
        self._start_what_can()

    def _on_failure(self, job: _ForkedJob, error: BaseException) -> None:
        """End a job whose process could not be started or watched."""
        said = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        _end(job, "failed", f"it cannot be started: {said}")
        self._start_what_can()

    async def _run_process(self, job: _ForkedJob) -> tuple[JobEnding, str]:
        folder = Path(job.request.folder)
        name = f"{job.request.name}-{job.id}"
        script = folder / f"{name}.sh"
        descriptor = os.open(script, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(job.request.script)
        with (folder / f"{name}.out").open("ab") as out:
            process = await asyncio.create_subprocess_exec(
                "/bin/sh",
                str(script),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=asyncio.subprocess.STDOUT,
                cwd=folder,
                # A group of its own, so that a job's children can be ended with it.
                env={**os.environ, "BURSAR_ELEMENT": str(job.element)},
                start_new_session=True,
            )
        async with TaskSupervisor() as tasks:
            ended = tasks.start(process.wait())
            asked = tasks.start(job.end.wait())
            try:
                await asyncio.wait(
                    (ended, asked),
                    timeout=job.request.seconds,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not ended.done():
                    job.wish = job.wish or "timeout"
            finally:
                # A job that is done leaves nothing in its group either.
                await _end_group(process.pid, ended)
        script.unlink(missing_ok=True)
        if job.wish is not None:
            return job.wish, "cancelled" if job.wish == "cancelled" else "its time is over"
        status = ended.result()
        if status == 0:
            return "completed", ""
        return "failed", f"killed by signal {-status}" if status < 0 else f"status {status}"

    def _starts(self, *more: _ForkedJob) -> dict[str, float]:
        """Return each waiting job's start if all run to their limits, seconds since the epoch."""
        now = time.time()
        free = self._processors
        ends: list[tuple[float, int]] = []
        for job in self._jobs.values():
            if job.state == "running" and job.began is not None:
                free -= job.processors
                ends.append((max(now, job.began + job.request.seconds), job.processors))
        heapq.heapify(ends)
        found: dict[str, float] = {}
        moment = now
        for job in self._in_order(more, now):
            moment = max(moment, job.request.begin or now)
            while free < job.processors or (ends and ends[0][0] <= moment):
                end, back = heapq.heappop(ends)
                moment = max(moment, end)
                free += back
            free -= job.processors
            heapq.heappush(ends, (moment + job.request.seconds, job.processors))
            found[job.id] = moment
        return found

    def _in_order(self, more: Sequence[_ForkedJob], now: float) -> Iterator[_ForkedJob]:
        """Return waiting jobs in the order of start; a job with a begin time counts from then."""
        jobs = itertools.chain(self._queue, more)
        return iter(sorted(jobs, key=lambda job: max(now, job.request.begin or now)))

    def _report(self, id: str, expected: Mapping[str, float]) -> JobReport:
        job = self._jobs.get(id)
        if job is None:
            return JobReport(id=id, state="unknown", reason="there is no such job")
        running = job.state == "running"
        return JobReport(
            id=id,
            state=job.state,
            how=job.how,
            reason=job.reason,
            began=job.began,
            ended=job.ended,
            until=job.began + job.request.seconds if running and job.began is not None else None,
            processors=job.processors,
            nodes=(socket.gethostname(),) if running else (),
            expected=expected.get(id),
        )


def _end(job: _ForkedJob, how: JobEnding, reason: str = "") -> None:
    job.state, job.how, job.ended = "ended", how, time.time()
    job.reason = reason or how


async def _end_group(pid: int, ended: asyncio.Task[int]) -> None:
    """Terminate the processes of a group, and kill the rest after a grace time."""
    if not _signal(pid, signal.SIGTERM):
        await ended
        return
    deadline = time.monotonic() + GRACE
    while time.monotonic() < deadline:
        await asyncio.sleep(_STEP)
        # A zombie that nobody has reaped still answers signals, so the states are read, too.
        if ended.done() and not (_signal(pid, 0) and _lives(pid)):
            return
    _signal(pid, signal.SIGKILL)
    await ended


def _signal(group: int, how: int) -> bool:
    """Signal a process group; return whether the group had a process."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, how)
        return True
    return False


def _lives(group: int) -> bool:
    """Whether the process group has a process that is not a zombie."""
    try:
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                state, _, of = path.read_text(errors="replace").rpartition(") ")[2].split()[:3]
                if int(of) == group and state not in "ZX":
                    return True
    except OSError:
        return True
    return not Path("/proc/self/stat").exists()
