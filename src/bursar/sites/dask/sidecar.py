"""
A worker process of ours beside a Dask worker, and the messages between it and a run.

Dask's threads cannot start programs as ours does: a working directory and the ended children
belong to a whole process. So each thread that carries out jobs has a small process at its side,
the very program that runs tasks on this machine. All that is done to a task (limits, killing,
captured streams) is done by it, and so comes out the same.
"""

import contextlib
import os
import queue
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from bursar.dispatch.folders import remove_tree
from bursar.dispatch.wire import (
    NONSENSE,
    CancelTasks,
    JobAssignment,
    JobRecall,
    OutcomeReport,
    OutputPiece,
    OutputQuery,
    ReturnedJobs,
    WireJob,
)
from bursar.model.task import Outcome, Status
from bursar.sites.dask.file_payloads import FilePayload, gather, unpack
from bursar.sites.job_inputs import FileIdentities, unstarted_outcome
from bursar.sites.sidecar_process import SharedRunPaths, SidecarProcess
from bursar.worker.staging import StagingError
from bursar.worker.workspace import FILES, LOGS

# Messages between a run and a Dask worker.


class DaskJobOrder(msgspec.Struct, frozen=True, array_like=True):
    """
    Jobs for one thread of a Dask worker, to be run after earlier orders.

    Parameters
    ----------
    run
        Identity of the run among all that use the Dask cluster.
    mark
        Mark by which the dispatcher's machine recognises the run's processes.
    whom
        Identity of the process that the order is for; another one refuses it.
    spill
        Bytes of a stream that travel with an outcome; the rest stays in a file.
    patience
        Seconds without a heartbeat after which the run counts as gone.
    sidecar
        Sidecar that still has jobs of earlier orders; empty: none.
    jobs
        Jobs in the order in which they run; empty: the sidecar goes on with those it has.
    place
        Paths of the run's files on a shared file system; None: files travel with the jobs.
    payloads
        For each job, the files that it reads; empty where files are shared.
    """

    run: str
    mark: str
    whom: str
    spill: int
    patience: float
    sidecar: str
    jobs: list[WireJob]
    place: SharedRunPaths | None
    payloads: list[list[FilePayload]]


class DaskJobResult(msgspec.Struct, frozen=True, array_like=True):
    """
    Outcome of one job, with the job's files.

    Parameters
    ----------
    made
        Files that the job made for the run; empty where files are shared.
    logs
        Streams too long for the outcome, by file name; empty where files are shared.
    """

    outcome: Outcome
    made: list[FilePayload] = []
    logs: list[FilePayload] = []


class DaskReply(msgspec.Struct, frozen=True, array_like=True):
    """
    Reply to an order: what has become of jobs so far.

    Parameters
    ----------
    returned
        Task and attempt of jobs that have not begun; the sidecar has given them up.
    sidecar
        Sidecar that still has jobs, for a later order to ask; empty: none.
    is_other
        Whether the order was meant for another process; nothing was done then.
    """

    done: list[DaskJobResult] = []
    returned: list[tuple[int, int]] = []
    sidecar: str = ""
    is_other: bool = False


encode_message = msgspec.msgpack.Encoder().encode
"""Encodes an order or a reply."""

decode_order = msgspec.msgpack.Decoder(DaskJobOrder).decode
decode_answer = msgspec.msgpack.Decoder(DaskReply).decode


# A worker process of ours beside a Dask worker, one for each Dask thread.

SLICE = 0.25
"""Seconds after which ended jobs are reported although more are to come."""

SHOWING = 3.0
"""Seconds for the process to say what a job has printed."""

_FULL = 32 * 1024 * 1024
"""Bytes of files and streams at which ended jobs are reported at once."""

_DIED = "the worker process beside Dask's died"


@dataclass(frozen=True, slots=True)
class _StagedJob:
    """A job whose files travel: their paths on this machine, and what was there before the job."""

    home: str
    seen: FileIdentities


class DaskSidecar:
    """
    A worker process of a run, and the connection to this process.

    One thread begins jobs and waits for them; any may ask for output, cancel and close.

    Parameters
    ----------
    spill
        Bytes of a stream that travel with an outcome.
    processors
        Processors of each job; with more than one, jobs come one at a time.
    place
        Paths of the run's files on a shared file system; None: files travel with the jobs.
    parent
        Folder in which the sidecar may make a scratch folder.

    Raises
    ------
    OSError
        When it cannot be started.
    """

    def __init__(
        self, mark: str, spill: int, processors: int, place: SharedRunPaths | None, parent: str
    ) -> None:
        self.processors = processors
        self._left: dict[tuple[int, int], WireJob] = {}
        self._staged: dict[tuple[int, int], _StagedJob] = {}
        self._questions: dict[int, queue.SimpleQueue[OutputPiece]] = {}
        self._asked = 0
        self._asking = threading.Lock()
        self._process = SidecarProcess(
            "dask", mark, spill, processors, place, tempfile.mkdtemp(prefix="bursar-", dir=parent)
        )

    @property
    def name(self) -> str:
        """Name of the worker process, unique on all machines."""
        return self._process.name

    @property
    def is_alive(self) -> bool:
        """Whether the process is there, and can be spoken with."""
        return self._process.is_alive

    @property
    def is_busy(self) -> bool:
        """Whether the sidecar has a job."""
        return bool(self._left)

    def begin(
        self, jobs: Sequence[WireJob], payloads: Sequence[list[FilePayload]]
    ) -> list[DaskJobResult]:
        """
        Hand jobs to the process.

        Parameters
        ----------
        payloads
            For each job, the files that it reads; empty where files are shared.

        Returns
        -------
        list
            Results of jobs whose files could not be written; the process has the others.
        """
        failed: list[DaskJobResult] = []
        sent: list[WireJob] = []
        for i, job in enumerate(jobs):
            if payloads:
                try:
                    home = self._job_folder(job, payloads[i])
                except (StagingError, OSError) as error:
                    failed.append(
                        DaskJobResult(unstarted_outcome(job, Status.FAILED, f"its files: {error}"))
                    )
                    continue
                job = msgspec.structs.replace(job, home=home)
            self._left[job.task, job.attempt] = job
            sent.append(job)
        with contextlib.suppress(OSError):  # it has died: found out when it is waited for
            self._process.send(
                JobAssignment([msgspec.Raw(msgspec.msgpack.encode(job)) for job in sent])
            )
        return failed

    def wait(self) -> tuple[list[DaskJobResult], list[tuple[int, int]]]:
        """
        Wait until half of the jobs in hand have ended, while the process goes on with the others,
        or for some time if there is something to report. Jobs of a dead process are lost.

        Returns
        -------
        done : list
            Results of the jobs that have ended.
        returned : list
            Task and attempt of jobs that will not begin here, since a long one is before them.
        """
        done: list[DaskJobResult] = []
        returned: list[tuple[int, int]] = []
        until = time.monotonic() + SLICE
        half = len(self._left) // 2
        size = 0
        asked = False
        try:
            while self._left:
                has_report = bool(done or returned or len(self._left) > 1)
                enough = has_report and (size > _FULL or time.monotonic() >= until)
                alone = len(self._left) == 1 and (enough or bool(returned))
                if alone or (done and len(self._left) <= half):
                    break
                if enough and not asked:
                    # A long job keeps the others from beginning: the dispatcher may give these to
                    # an idle worker.
                    self._process.send(JobRecall(len(self._left)))
                    asked = True
                # Once asked, it says at once what of them has ended, or gives back the rest.
                patience = until - time.monotonic() if has_report and not asked else None
                for message in self._process.received(patience):
                    if isinstance(message, OutputPiece):
                        waiting = self._questions.pop(message.query, None)
                        if waiting is not None:  # else whoever asked has given up
                            waiting.put(message)
                    elif isinstance(message, ReturnedJobs):
                        for which in message.jobs:
                            self._forget(which)
                            returned.append((which[0], which[1]))
                    elif isinstance(message, OutcomeReport):
                        for outcome in message.outcomes:
                            if (outcome.task, outcome.attempt) in self._left:
                                done.append(self._ended(outcome))
                                size += _size(done[-1])
        except (OSError, *NONSENSE):
            self._process.is_cut = True
            for job in list(self._left.values()):
                self._forget((job.task, job.attempt))
                done.append(DaskJobResult(unstarted_outcome(job, Status.LOST, _DIED)))
        return done, returned

    def has(self, task: int, attempt: int) -> bool:
        """Whether the process has a job that has not ended."""
        return (task, attempt) in self._left

    def show_output(self, query: OutputQuery) -> OutputPiece | None:
        """Return what a job has printed; None: the process does not say, or nobody waits for it."""
        waiting: queue.SimpleQueue[OutputPiece] = queue.SimpleQueue()
        with self._asking:
            self._asked += 1
            number = self._asked
            self._questions[number] = waiting
        try:
            self._process.send(msgspec.structs.replace(query, query=number))
            return waiting.get(timeout=SHOWING)
        except (OSError, queue.Empty):
            return None
        finally:
            self._questions.pop(number, None)

    def cancel(self, tasks: list[int], grace: float, reason: str) -> None:
        """Stop tasks; tasks that are not here are ignored."""
        with contextlib.suppress(OSError):
            self._process.send(CancelTasks(tasks, grace, reason))

    def close(self) -> None:
        """End the worker process and all jobs running there."""
        self._process.close()

    def _job_folder(self, job: WireJob, payloads: list[FilePayload]) -> str:
        """Make a folder for a job whose files travel, with the files that the job reads."""
        home = self._process.make_home(job)
        seen = unpack(payloads, os.path.join(home, FILES))
        self._staged[job.task, job.attempt] = _StagedJob(home, seen)
        return home

    def _ended(self, outcome: Outcome) -> DaskJobResult:
        which = outcome.task, outcome.attempt
        staged = self._staged.get(which)
        job = self._left[which]
        try:
            if staged is None:
                return DaskJobResult(outcome)
            made = gather(os.path.join(staged.home, FILES), staged.seen)
            return DaskJobResult(outcome, made, gather(os.path.join(staged.home, LOGS), {}))
        except (StagingError, OSError) as error:
            return DaskJobResult(unstarted_outcome(job, Status.FAILED, str(error)))
        finally:
            self._forget(which)

    def _forget(self, which: tuple[int, int]) -> None:
        self._left.pop(which, None)
        staged = self._staged.pop(which, None)
        if staged is not None:
            remove_tree(staged.home)


def _size(done: DaskJobResult) -> int:
    outcome = done.outcome
    travelling = sum(len(payload.content) for payload in (*done.made, *done.logs))
    return len(outcome.stdout) + len(outcome.stderr) + len(outcome.value) + travelling
