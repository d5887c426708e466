"""Send jobs to one Dask worker, and receive the results."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from bursar.dispatch.wire import BATCH_SIZE, OutputPiece, OutputQuery, Welcome, WireJob
from bursar.model.task import Outcome, Status
from bursar.sites.dask.file_payloads import MOST, FilePayload, deliver, pack
from bursar.sites.dask.sidecar import (
    DaskJobOrder,
    DaskJobResult,
    DaskReply,
    decode_answer,
    encode_message,
)
from bursar.sites.dask.sidecar_registry import cancel_jobs, run_jobs, show_output
from bursar.sites.job_inputs import unstarted_outcome
from bursar.sites.sidecar_process import SharedRunPaths
from bursar.supervisor import TaskSupervisor
from bursar.worker.staging import RootNamespace, StagingError

PATIENCE = 30.0
"""Seconds without a heartbeat after which Dask workers take a run to be gone."""

MOST_TOGETHER = 1024
"""Most jobs of one order."""

_REACH = 5.0
"""Seconds in which a Dask worker must have heard that jobs are to stop."""

_LARGE = 1 << 20
"""Bytes from which an order travels as data and not in the scheduler's task graph."""

_MOST_LOOKS = 64
"""Questions about output that a Dask worker is asked at a time; further ones have no answer."""

_decode_piece = msgspec.msgpack.Decoder(OutputPiece | None).decode

_FIXED = 128  # bytes, about, of a job


@dataclass(frozen=True, slots=True, kw_only=True)
class DaskWorker:
    """
    A worker of a Dask cluster.

    Parameters
    ----------
    address
        Address by which Dask knows the worker.
    sees_files
        Whether the worker shares the run's file system; otherwise files travel.
    """

    address: str
    identity: str
    threads: int
    sees_files: bool


class DaskJobExecutor:
    """
    Runs jobs on processors of one Dask worker; a :class:`bursar.sites.proxy_worker.JobExecutor`.

    Each processor has one order under way at a time. It is answered when half of the jobs in hand
    have ended; the next takes along what has come meanwhile, and the other half hides how long
    that takes. One message of Dask's costs more than many a job. A job that is wide goes alone,
    and takes as many of the processors.

    Parameters
    ----------
    client
        An asynchronous ``distributed.Client``.
    run
        Identity of the run among all that use the Dask cluster.
    processors
        Number of the worker's threads that the pilot holds.
    hand_back
        Called with jobs that are returned unasked, the last first, since they wait behind a long
        one.
    on_broken
        Called once with the reason when the worker cannot be used any more; its jobs are lost then.
    """

    def __init__(
        self,
        client: Any,
        worker: DaskWorker,
        run: str,
        processors: int,
        *,
        report: Callable[[Sequence[Outcome]], None],
        hand_back: Callable[[Sequence[WireJob]], None],
        on_broken: Callable[[str], None],
    ) -> None:
        self._client = client
        self._worker = worker
        self._run = run
        self._processors = processors
        self._send_report = report
        self._hand_back = hand_back
        self._on_broken = on_broken
        self._welcome: Welcome | None = None
        self._root = RootNamespace("", "")
        self._waiting: deque[WireJob] = deque()
        self._sent: dict[tuple[int, int], WireJob] = {}
        self._unwanted: dict[tuple[int, int], str] = {}
        self._used = 0
        self._looking = 0
        self._send_scheduled = False
        self._is_over = False
        self._tasks = TaskSupervisor(self._on_failure)
        self._futures: set[Any] = set()

    def welcome(self, welcome: Welcome) -> None:
        """Take in where the run's files lie."""
        self._welcome = welcome
        self._root = RootNamespace(welcome.root, welcome.files)

    def execute(self, jobs: Sequence[WireJob]) -> None:
        """Send jobs on, together with others that come in this turn of the loop."""
        self._waiting.extend(jobs)
        self._schedule_send()

    def give_back(self, count: int) -> Sequence[WireJob]:
        """Return up to ``count`` jobs that have not been sent on, the last first."""
        return [self._waiting.pop() for _ in range(min(count, len(self._waiting)))]

    def cancel(self, tasks: Sequence[int] | None, grace: float, reason: str) -> None:
        """Stop tasks, both here and at the Dask worker."""
        which = None if tasks is None else set(tasks)
        kept: deque[WireJob] = deque()
        for job in self._waiting:
            if which is None or job.task in which:
                self._report([unstarted_outcome(job, Status.CANCELLED, reason)])
            else:
                kept.append(job)
        self._waiting = kept
        sent = [one for one in self._sent if which is None or one[0] in which]
        if sent and not self._is_over:
            self._unwanted |= dict.fromkeys(sent, reason)
            self._tasks.start(self._stop_over_there(sent, grace, reason))

    def show_output(self, query: OutputQuery, answer: Callable[[OutputPiece | None], None]) -> None:
        """Ask the Dask worker what a job has printed so far; see :class:`OutputQuery`."""
        if (query.task, query.attempt) not in self._sent:
            answer(OutputPiece(query.query))  # it has not begun
        elif self._is_over or self._looking >= _MOST_LOOKS:
            answer(None)
        else:
            self._tasks.start(self._look(query, answer))

    async def stop(self) -> None:
        """Send nothing more, and stop running jobs if the Dask worker can be reached."""
        self._is_over = True
        self._waiting.clear()
        sent = list(self._sent)
        if sent:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_REACH):
                    await self._stop_over_there(sent, 0.0, "its processors go back")
        for future in list(self._futures):
            with contextlib.suppress(Exception):  # the scheduler may be gone
                future.release()
        await self._tasks.close()

    # Orders.

    def _schedule_send(self) -> None:
        if not self._send_scheduled and self._waiting:
            self._send_scheduled = True
            asyncio.get_running_loop().call_soon(self._send_on)

    def _send_on(self) -> None:
        """Send orders to processors that have none."""
        self._send_scheduled = False
        while self._waiting and not self._is_over:
            width = self._waiting[0].processors
            free = self._processors - self._used
            # In order: narrow jobs that overtook a wide one could keep it waiting for ever.
            if width > free:
                break
            jobs = [self._waiting.popleft()] if width > 1 else self._together(free)
            self._used += width
            self._tasks.start(self._run_jobs(jobs, width))

    def _together(self, orders: int) -> list[WireJob]:
        """Take the next narrow jobs, a fair part of the waiting ones for one of ``orders``."""
        fair = min(MOST_TOGETHER, -(-len(self._waiting) // orders))
        jobs: list[WireJob] = []
        size = 0
        while self._waiting and len(jobs) < fair and size < BATCH_SIZE:
            if self._waiting[0].processors > 1:
                break
            jobs.append(self._waiting.popleft())
            size += _bulk(jobs[-1])
        return jobs

    async def _run_jobs(self, jobs: list[WireJob], width: int) -> None:
        """Send one order after another to a sidecar until no jobs are left."""
        sidecar = ""
        try:
            while jobs or sidecar:
                self._sent |= {_which(job): job for job in jobs}
                order = await self._ordered(jobs, sidecar)
                if not order.jobs and not sidecar:
                    break
                answer = await self._ask(encode_message(order))
                await self._take_in(answer)
                sidecar = answer.sidecar
                jobs = self._together(self._processors) if sidecar and width == 1 else []
        except _DaskProtocolError as broken:
            self._break(str(broken))
        finally:
            self._used -= width
            self._schedule_send()

    async def _ordered(self, jobs: list[WireJob], sidecar: str) -> DaskJobOrder:
        """Make an order of jobs with input files; jobs with missing files fail at once."""
        welcome = self._welcome
        assert welcome is not None
        place: SharedRunPaths | None = SharedRunPaths(
            welcome.root, welcome.files, welcome.work, welcome.logs
        )
        payloads: list[list[FilePayload]] = []
        if not self._worker.sees_files:
            place = None
            sendable, failed = await asyncio.to_thread(_packed, self._root, jobs)
            self._ended(failed)
            for job in reversed(jobs[len(sendable) + len(failed) :]):  # with the next order
                del self._sent[_which(job)]
                self._waiting.appendleft(job)
            jobs = [job for job, _ in sendable]
            payloads = [packed for _, packed in sendable]
        return DaskJobOrder(
            self._run,
            welcome.run,
            self._worker.identity,
            welcome.spill,
            PATIENCE,
            sidecar,
            jobs,
            place,
            payloads,
        )

    async def _ask(self, order: bytes) -> DaskReply:
        """
        Have Dask run an order on the worker.

        Raises
        ------
        _DaskProtocolError
            When the worker does not answer, or not as expected.
        """
        aside: dict[str, Any] = {
            "workers": [self._worker.address],
            # Placement and retries are the dispatcher's: Dask must never run an order elsewhere or
            # again.
            "allow_other_workers": False,
            "pure": False,
            "retries": 0,
        }
        future = None
        try:
            given: Any = order
            if len(order) > _LARGE:
                given = await self._client.scatter(
                    order, workers=[self._worker.address], hash=False
                )
            future = self._client.submit(run_jobs, given, **aside)
            self._futures.add(future)
            answer = decode_answer(await future)
        except Exception as error:  # Dask's, or of whatever is between
            if self._client.status != "running":
                raise _DaskProtocolError(
                    "is out of reach: the connection to the scheduler is lost"
                ) from None
            raise _DaskProtocolError(f"does not answer as it should: {_line(error)}") from None
        finally:
            self._futures.discard(future)
        if answer.is_other:
            raise _DaskProtocolError("was started again")
        return answer

    async def _take_in(self, answer: DaskReply) -> None:
        """
        Report the jobs that have ended, and settle those that the sidecar returned unstarted.

        A returned job that was cancelled meanwhile is reported as cancelled; others are handed
        back to the run.
        """
        done = answer.done
        if any(one.made or one.logs for one in done):
            assert self._welcome is not None
            folders = self._welcome.files, self._welcome.logs
            done = await asyncio.to_thread(lambda: [_delivered(one, *folders) for one in done])
        self._ended([one.outcome for one in done])
        stuck: list[WireJob] = []
        for which in answer.returned:
            job = self._sent.pop((which[0], which[1]), None)
            if job is None:
                continue
            reason = self._unwanted.pop(_which(job), None)
            if reason is None:
                stuck.append(job)
            else:
                self._report([unstarted_outcome(job, Status.CANCELLED, reason)])
        if stuck and not self._is_over:
            # Another Dask worker may run them sooner. All that waits here came after them and is
            # handed back too, so that the order of the jobs is kept.
            self._hand_back([*self.give_back(len(self._waiting)), *stuck])

    async def _look(self, query: OutputQuery, answer: Callable[[OutputPiece | None], None]) -> None:
        """Ask for the output of a job beside Dask's tasks; whatever goes wrong, the job goes on."""
        address, piece = self._worker.address, None
        self._looking += 1
        try:
            said = await self._client.run(
                show_output, self._run, encode_message(query), workers=[address]
            )
            piece = _decode_piece(said[address])
        except Exception:  # Dask's, or of whatever is between
            piece = None
        finally:
            self._looking -= 1
            answer(piece)

    # Ends.

    async def _stop_over_there(
        self, jobs: list[tuple[int, int]], grace: float, reason: str
    ) -> None:
        address = self._worker.address
        try:
            stopped = await self._client.run(
                cancel_jobs, self._run, PATIENCE, jobs, grace, reason, workers=[address]
            )
        except Exception:  # it is gone, and so is what it ran; or will hear of it never more
            return
        ended = [
            self._sent[one] for one in map(_pair, stopped.get(address, ())) if one in self._sent
        ]
        self._ended([unstarted_outcome(job, Status.CANCELLED, reason) for job in ended])

    def _ended(self, outcomes: Sequence[Outcome]) -> None:
        """Report outcomes, except for jobs already known to have ended."""
        fresh = []
        for outcome in outcomes:
            which = outcome.task, outcome.attempt
            if self._sent.pop(which, None) is not None:
                self._unwanted.pop(which, None)
                fresh.append(outcome)
        self._report(fresh)

    def _report(self, outcomes: Sequence[Outcome]) -> None:
        if outcomes and not self._is_over:
            self._send_report(outcomes)

    def _break(self, reason: str) -> None:
        if not self._is_over:
            self._is_over = True
            self._on_broken(reason)

    def _on_failure(self, error: BaseException) -> None:
        """Give up the Dask worker after a fault of ours: otherwise its jobs would never end."""
        self._break(f"is given up: {_line(error)}")


class _DaskProtocolError(Exception):
    """The Dask worker's answer breaks the protocol."""


def _packed(
    root: RootNamespace, jobs: list[WireJob]
) -> tuple[list[tuple[WireJob, list[FilePayload]]], list[Outcome]]:
    """Pack as many jobs, in order, as fit into one order with files; return failures apart."""
    sendable: list[tuple[WireJob, list[FilePayload]]] = []
    failed: list[Outcome] = []
    size = 0
    for job in jobs:
        if size > MOST:
            break
        try:
            sendable.append((job, pack(root, job)))
            size += sum(len(payload.content) for payload in sendable[-1][1])
        except (StagingError, OSError) as error:
            failed.append(unstarted_outcome(job, Status.FAILED, str(error)))
    return sendable, failed


def _delivered(done: DaskJobResult, files: str, logs: str) -> DaskJobResult:
    """Write a job's output files and logs to the run's folders on this machine."""
    try:
        deliver(done.made, files)
        deliver(done.logs, logs)
    except (StagingError, OSError) as error:
        had = done.outcome
        failed = Outcome(
            task=had.task,
            attempt=had.attempt,
            status=Status.FAILED,
            start=had.start,
            end=had.end,
            reason=f"its files: {error}",
        )
        return DaskJobResult(failed)
    return done


def _which(job: WireJob) -> tuple[int, int]:
    return job.task, job.attempt


def _pair(which: Sequence[int]) -> tuple[int, int]:
    return which[0], which[1]


def _bulk(job: WireJob) -> int:
    """Estimate the bytes of a job in an order, without files."""
    return _FIXED + sum(len(repr(step)) for step in job.steps)


def _line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
