"""
Functions that Dask calls, by name, in Dask's worker processes.

A run keeps its benches there from order to order. It is heard of again and again; one that is
not is taken to be gone, and all that it has there ends.
"""

import asyncio
import os
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bursar.dispatch.wire import OutputPiece, OutputQuery, WireJob
from bursar.model.task import Status
from bursar.sites.dask.sidecar import (
    DaskJobOrder,
    DaskJobResult,
    DaskReply,
    DaskSidecar,
    decode_order,
    encode_message,
)
from bursar.sites.job_inputs import unstarted_outcome
from bursar.version import VERSION

IDENTITY = secrets.token_hex(8)
"""Identity of this process; a restarted Dask worker has another one."""

_CHECK_INTERVAL = 0.5
"""Seconds between two looks for runs that are gone."""

_Which = tuple[int, int]  # task and attempt


@dataclass(slots=True)
class _RunSidecars:
    """
    The sidecars and jobs of one run.

    Attributes
    ----------
    here
        Jobs that have arrived and not ended.
    unwanted
        Grace and reason of each job that is to stop, or not to begin.
    """

    patience: float
    last_contact: float
    idle: list[DaskSidecar] = field(default_factory=list)
    busy: dict[str, DaskSidecar] = field(default_factory=dict)
    here: set[_Which] = field(default_factory=set)
    unwanted: dict[_Which, tuple[float, str]] = field(default_factory=dict)


class SidecarRegistry:
    """
    The sidecars of one Dask worker's process, by run.

    Parameters
    ----------
    parent
        Folder in which sidecars make their scratch folders.
    """

    def __init__(self, parent: str) -> None:
        self._parent = parent
        self._lock = threading.Lock()
        self._runs: dict[str, _RunSidecars] = {}
        self._watch: threading.Thread | None = None

    def execute(self, order: DaskJobOrder) -> DaskReply:
        """
        Run an order, or a part of the order.

        Raises
        ------
        OSError
            When no process can be started for it.
        """
        with self._lock:
            kept = self._kept(order.run, order.patience)
            wanted = [i for i, job in enumerate(order.jobs) if _which(job) not in kept.unwanted]
            not_begun = [job for job in order.jobs if _which(job) in kept.unwanted]
            done = [
                DaskJobResult(
                    unstarted_outcome(job, Status.CANCELLED, kept.unwanted.pop(_which(job))[1])
                )
                for job in not_begun
            ]
            jobs = [order.jobs[i] for i in wanted]
            # Under one lock with the look at `unwanted`: a cancellation comes either before or
            # after, never in between.
            kept.here.update(map(_which, jobs))
        if not jobs and not order.sidecar:
            return DaskReply(done)
        try:
            sidecar = self._taken(kept, order, jobs)
        except BaseException:
            self._settle(kept, [_which(job) for job in jobs])
            raise
        if sidecar is None:
            return DaskReply(is_other=True)
        if jobs:
            payloads = [order.payloads[i] for i in wanted] if order.place is None else []
            done += sidecar.begin(jobs, payloads)
        with self._lock:
            late = [(job, kept.unwanted.get(_which(job))) for job in jobs]
        for job, why in late:  # cancelled while the bench was made ready
            if why is not None:
                sidecar.cancel([job.task], *why)
        return self._waited(kept, sidecar, done)

    def cancel(
        self, run: str, patience: float, jobs: Sequence[_Which], grace: float, reason: str
    ) -> list[tuple[int, int]]:
        """
        Stop jobs of a run; jobs that have not begun never begin.

        Parameters
        ----------
        patience
            See :class:`bursar.sites.dask.sidecar.DaskJobOrder`.

        Returns
        -------
        list
            Jobs that have not arrived here, and will not begin when they do.
        """
        with self._lock:
            kept = self._kept(run, patience)
            kept.unwanted |= dict.fromkeys(jobs, (grace, reason))
            not_here = [which for which in jobs if which not in kept.here]
            busy = list(kept.busy.values())
        for sidecar in busy:
            sidecar.cancel([task for task, _ in jobs], grace, reason)
        return not_here

    def show_output(self, run: str, query: OutputQuery) -> OutputPiece | None:
        """Return what a job of a run has printed; None: its process does not say."""
        with self._lock:
            kept = self._runs.get(run)
            busy = [] if kept is None else list(kept.busy.values())
        for sidecar in busy:
            if sidecar.has(query.task, query.attempt):
                return sidecar.show_output(query)
        return OutputPiece(query.query)  # it has not begun, or has ended

    def record_contact(self, run: str) -> None:
        """Record a heartbeat of a run."""
        with self._lock:
            if run in self._runs:
                self._runs[run].last_contact = time.monotonic()

    def clear(self, run: str) -> None:
        """End everything of a run."""
        with self._lock:
            kept = self._runs.pop(run, None)
            sidecars = [] if kept is None else [*kept.idle, *kept.busy.values()]
            if kept is not None:
                kept.idle.clear()
                kept.busy.clear()
        for sidecar in sidecars:
            sidecar.close()

    def _kept(self, run: str, patience: float) -> _RunSidecars:
        """Return a run's entry, created if missing; the call counts as a heartbeat."""
        now = time.monotonic()
        kept = self._runs.get(run)
        if kept is None:
            kept = self._runs[run] = _RunSidecars(patience, now)
        kept.last_contact = now
        if self._watch is None:
            self._watch = threading.Thread(target=self._watch_runs, name="bursar-runs", daemon=True)
            self._watch.start()
        return kept

    def _taken(
        self, kept: _RunSidecars, order: DaskJobOrder, jobs: Sequence[WireJob]
    ) -> DaskSidecar | None:
        """Return the sidecar with an earlier order's jobs, an idle one, or a new one."""
        if order.sidecar:
            with self._lock:
                return kept.busy.get(order.sidecar)
        processors = max(job.processors for job in jobs)
        with self._lock:
            found = next((b for b in kept.idle if b.processors == processors and b.is_alive), None)
            if found is not None:
                kept.idle.remove(found)
                kept.busy[found.name] = found
                return found
        made = DaskSidecar(order.mark, order.spill, processors, order.place, self._parent)
        with self._lock:
            # Starting a process takes a while: the run may have been taken to be gone meanwhile.
            closed = self._runs.get(order.run) is not kept
            if not closed:
                kept.busy[made.name] = made
        if closed:
            made.close()
            raise OSError("the run was taken to be gone")
        return made

    def _waited(
        self, kept: _RunSidecars, sidecar: DaskSidecar, done: list[DaskJobResult]
    ) -> DaskReply:
        ended, returned = sidecar.wait()
        done = [*done, *ended]
        self._settle(kept, [(d.outcome.task, d.outcome.attempt) for d in done], returned)
        if sidecar.is_busy:
            return DaskReply(done, returned, sidecar.name)
        with self._lock:
            was_there = kept.busy.pop(sidecar.name, None) is not None
            reused = was_there and sidecar.is_alive
            if reused:
                kept.idle.append(sidecar)
        if was_there and not reused:
            sidecar.close()
        return DaskReply(done, returned)

    def _settle(self, kept: _RunSidecars, *which: Sequence[_Which]) -> None:
        with self._lock:
            for one in (one for some in which for one in some):
                kept.here.discard(one)
                kept.unwanted.pop(one, None)

    def _watch_runs(self) -> None:
        while True:
            time.sleep(_CHECK_INTERVAL)
            now = time.monotonic()
            with self._lock:
                closed = [run for run, k in self._runs.items() if now - k.last_contact > k.patience]
            for run in closed:
                self.clear(run)


_registry: SidecarRegistry | None = None


def _which(job: WireJob) -> _Which:
    return job.task, job.attempt


# What Dask is asked to call.


def inspect_process(path: str, dask_worker: Any = None) -> tuple[str, str, bool]:
    """Return this package's version, this process's identity, and whether a file is seen here."""
    global _registry
    if _registry is None:
        _registry = SidecarRegistry(dask_worker.local_directory)
    return VERSION, IDENTITY, os.access(path, os.R_OK | os.W_OK)


def run_jobs(data: bytes) -> bytes:
    """Run an encoded order, or a part of the order."""
    order = decode_order(data)
    if _registry is None or order.whom != IDENTITY:
        return encode_message(DaskReply(is_other=True))  # Dask does again what others had
    return encode_message(_registry.execute(order))


async def cancel_jobs(
    run: str, patience: float, jobs: list[tuple[int, int]], grace: float, reason: str
) -> list[tuple[int, int]]:
    """Cancel jobs, arrived or not; return the jobs that have not arrived."""
    if _registry is None:
        return jobs
    return await asyncio.to_thread(_registry.cancel, run, patience, jobs, grace, reason)


async def show_output(run: str, query: bytes) -> bytes:
    """Answer an encoded question about the output of a job; see :class:`OutputQuery`."""
    asked = msgspec.msgpack.decode(query, type=OutputQuery)
    found = (
        None if _registry is None else await asyncio.to_thread(_registry.show_output, run, asked)
    )
    return encode_message(found)


def record_heartbeat(run: str) -> None:
    """Record a heartbeat of a run."""
    if _registry is not None:
        _registry.record_contact(run)


async def end_run(run: str) -> None:
    """Ends all that there is of a run here."""
    if _registry is not None:
        await asyncio.to_thread(_registry.clear, run)
