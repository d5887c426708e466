"""Send jobs to an instance of a service, and receive the results."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from time import time

from msgspec.structs import replace

from bursar.dispatch.wire import OutputPiece, OutputQuery, Welcome, WireJob
from bursar.model.errors import InputError, SiteError
from bursar.model.site import Trust
from bursar.model.task import Copy, Outcome, Status
from bursar.remote.async_client import FORGET_AFTER, AsyncSession
from bursar.remote.http_transport import RemoteProblem
from bursar.remote.messages import Result, TaskSpec
from bursar.remote.output_messages import RunningOutput
from bursar.sites.job_inputs import unstarted_outcome
from bursar.sites.remote.remote_files import InstanceFileIndex, RemoteInstanceFiles
from bursar.sites.remote.translation import copied, label_of, long_streams, outcome_of, spec_of
from bursar.supervisor import TaskSupervisor
from bursar.worker.staging import RootNamespace, StagingError

_FAULTS = frozenset({400, 403, 409, 413, 415, 422})
"""HTTP statuses that blame the request, not the service."""


_MOST_LOOKS = 64
"""Questions about output that a service is asked at a time; further ones have no answer."""

_NOTHING = 2**53
"""Offset from which a stream has nothing."""


class _Stage(Enum):
    HELD = "held"  # until the parents are reported
    WAITING = "waiting"  # for the next submission
    SENDING = "sending"
    THERE = "there"  # the service has numbered the job
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class _SubmittedJob:
    """A job on its way to the service; ``number`` is None until the service has numbered it."""

    job: WireJob
    since: float  # seconds since the epoch
    stage: _Stage = _Stage.HELD
    number: int | None = None
    unwanted: str = ""  # why it is to stop
    grace: float = 0.0  # seconds that it then has
    is_recalled: bool = False  # the engine wants it back if it has not begun
    is_spoilt: bool = False  # a parent has not succeeded
    serial: int = 0  # number that the service gave the attempt whose output was last shown
    parents: "list[_SubmittedJob]" = field(default_factory=list)  # those that are not reported
    children: "list[_SubmittedJob]" = field(default_factory=list)
    outcome: Outcome | None = None  # None at its end: it is handed back


class RemoteJobExecutor:
    """
    Runs jobs on one instance; a :class:`bursar.sites.proxy_worker.JobExecutor`.

    Jobs that come during a submission are submitted together afterwards. A job that comes after
    others is submitted with them, and the service keeps the order. Its end is reported after
    theirs: the engine must not journal a result before its cause. It is submitted only when its
    parents have been reported where files pass through the root, since these are put in place
    here, and where the service does not know such an order.

    Parameters
    ----------
    siblings
        Index of the run's files that instances of the service have.
    hand_back
        Called with jobs that have not begun and will not.
    on_lost
        Called once, with a line for people, when no more jobs can be run.
    trust
        Form in which calls send their results: data, or pickles of a trusted service.
    """

    def __init__(
        self,
        session: AsyncSession,
        siblings: InstanceFileIndex,
        *,
        report: Callable[[Sequence[Outcome]], None],
        hand_back: Callable[[Sequence[WireJob]], None],
        on_lost: Callable[[str], None],
        trust: Trust = "data",
    ) -> None:
        self._session = session
        self._trust = trust
        self._siblings = siblings
        self._report = report
        self._hand_back = hand_back
        self._on_lost = on_lost
        self._files: RemoteInstanceFiles | None = None
        self._jobs: dict[int, _SubmittedJob] = {}  # by task, until they are reported
        self._by_label: dict[str, _SubmittedJob] = {}
        self._waiting: dict[int, _SubmittedJob] = {}  # by task
        self._next = 0  # number that the service will give to the next task
        self._keeps_order = True  # the service, for all that is known
        self._bringing = 0  # results whose files are still being fetched
        self._looking = 0
        self._work = asyncio.Event()
        self._tasks = TaskSupervisor(self._on_failure)

    def welcome(self, welcome: Welcome) -> None:
        """Take in where the run's files lie, and begin to submit and listen."""
        root = RootNamespace(welcome.root, welcome.files)
        self._files = RemoteInstanceFiles(self._session, self._siblings, root, Path(welcome.logs))
        self._tasks.start(self._submit_on())
        self._tasks.start(self._listen())

    def execute(self, jobs: Sequence[WireJob]) -> None:
        """Queue jobs to be submitted."""
        now = time()
        for job in jobs:
            submitted = self._jobs[job.task] = _SubmittedJob(job, now)
            self._by_label[label_of(job)] = submitted
            parents = [self._jobs.get(task) for task in job.after]
            submitted.parents = [parent for parent in parents if parent is not None]
            for parent in submitted.parents:
                parent.children.append(submitted)
            if len(submitted.parents) < len(parents):
                # Reported just now, before the engine looked: it decides anew.
                self._end([submitted], None)
            else:
                self._wait(submitted)

    def _wait(self, submitted: _SubmittedJob) -> None:
        """Queue a job for the next submission, if it need not wait for its parents' outcomes."""
        if submitted.parents and not (
            self._keeps_order
            and not any(isinstance(s, Copy) and s.source_at_root for s in submitted.job.steps)
            and all(_can_be_followed(parent) for parent in submitted.parents)
        ):
            submitted.stage = _Stage.HELD
            return
        submitted.stage = _Stage.WAITING
        self._waiting[submitted.job.task] = submitted
        self._work.set()

    def cancel(self, tasks: Sequence[int] | None, grace: float, reason: str) -> None:
        """
        Stop tasks; tasks that were not submitted yet end at once, as cancelled.

        Parameters
        ----------
        grace
            Seconds between the request to end and the kill.
        reason
            Text in the outcomes of the tasks.
        """
        numbers: list[int] = []
        for task in list(self._jobs) if tasks is None else tasks:
            submitted = self._jobs.get(task)
            if submitted is None:
                continue
            submitted.unwanted, submitted.grace = reason, grace
            if submitted.stage in (_Stage.HELD, _Stage.WAITING):
                self._end([submitted], unstarted_outcome(submitted.job, Status.CANCELLED, reason))
            elif submitted.stage is _Stage.THERE and submitted.number is not None:
                numbers.append(submitted.number)
        if numbers:
            self._tasks.start(self._session.cancel(numbers, grace=grace))

    def give_back(self, count: int) -> Sequence[WireJob]:
        """
        Return up to ``count`` jobs that were not submitted yet, the last first.

        Those of the others that have not begun at the service are handed back later.
        """
        back: list[_SubmittedJob] = []
        numbers: list[int] = []
        for submitted in reversed(self._jobs.values()):  # children before their parents
            if len(back) + len(numbers) >= count:
                break
            if submitted.stage in (_Stage.HELD, _Stage.WAITING):
                back.append(submitted)
            elif submitted.stage is _Stage.THERE and submitted.number is not None:
                submitted.is_recalled = True
                numbers.append(submitted.number)
        for submitted in back:
            self._drop(submitted)
        if numbers:
            self._tasks.start(self._session.cancel(numbers, unstarted=True))
        return [submitted.job for submitted in back]

    def show_output(self, query: OutputQuery, answer: Callable[[OutputPiece | None], None]) -> None:
        """Ask the service what a job has printed so far; see :class:`OutputQuery`."""
        submitted = self._jobs.get(query.task)
        if submitted is None or submitted.stage is not _Stage.THERE or submitted.number is None:
            answer(OutputPiece(query.query))  # it has not begun
        elif self._looking >= _MOST_LOOKS:
            answer(None)
        else:
            self._tasks.start(self._look(submitted, submitted.number, query, answer))

    async def stop(self) -> None:
        """Stop sending jobs and listening for results."""
        await self._tasks.close()

    def _on_failure(self, error: BaseException) -> None:
        """Give up the instance, even after a fault of ours: otherwise its jobs would never end."""
        is_expected = isinstance(error, RemoteProblem | SiteError)
        self._on_lost(str(error) if is_expected else f"{type(error).__name__}: {error}")

    # Towards the service.

    async def _submit_on(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            batch, self._waiting = list(self._waiting.values()), {}
            for submitted in batch:
                submitted.stage = _Stage.SENDING
            if batch:
                await self._submit(await self._with_files(batch))

    async def _with_files(self, batch: Sequence[_SubmittedJob]) -> list[_SubmittedJob]:
        """Send the files of a batch; return the jobs whose files have arrived."""
        assert self._files is not None
        try:
            faults = await self._files.send([_without_made(submitted) for submitted in batch])
        except (RemoteProblem, InputError) as error:  # refused, or a file has gone meanwhile
            if isinstance(error, RemoteProblem) and error.status not in _FAULTS:
                raise
            if len(batch) == 1:
                faults = {batch[0].job.task: str(error)}
            else:  # whose it was is seen one by one
                return [c for one in batch for c in await self._with_files([one])]
        for submitted in batch:
            if submitted.job.task in faults:
                failed = unstarted_outcome(submitted.job, Status.FAILED, faults[submitted.job.task])
                self._end([submitted], failed)
        return [submitted for submitted in batch if submitted.job.task not in faults]

    async def _submit(self, batch: Sequence[_SubmittedJob]) -> None:
        sendable: dict[_SubmittedJob, TaskSpec] = {}
        for submitted in batch:
            if submitted.unwanted:
                stopped = unstarted_outcome(submitted.job, Status.CANCELLED, submitted.unwanted)
                self._end([submitted], stopped)
            elif submitted.is_spoilt:
                self._end([submitted], None)
            elif all(p.number is not None or p in sendable for p in submitted.parents):
                submitted.number = self._next + len(sendable)
                after = tuple(p.number for p in submitted.parents if p.number is not None)
                sendable[submitted] = replace(spec_of(submitted.job, self._trust), after=after)
            else:
                self._wait(submitted)
        if not sendable:
            return
        try:
            numbers = await self._session.submit(list(sendable.values()))
        except (RemoteProblem, InputError) as error:
            if isinstance(error, RemoteProblem) and error.status not in _FAULTS:
                raise
            await self._submit_apart(sendable, str(error))
            return
        if list(numbers) != [submitted.number for submitted in sendable]:
            raise SiteError("somebody else submits tasks to its instance")
        await self._submitted(list(sendable))

    async def _submit_apart(self, refused: dict[_SubmittedJob, TaskSpec], why: str) -> None:
        """Submit jobs one by one of which the service refused one; that one fails."""
        # A long submission goes in pieces, of which the first may have been taken.
        taken = (await self._session.info()).counts.total - self._next if len(refused) > 1 else 0
        await self._submitted(list(refused)[:taken])
        rest = list(refused)[taken:]
        for submitted in rest:
            submitted.number = None
        if len(rest) > 1:
            for submitted in rest:
                await self._submit([submitted])
            return
        for submitted in rest:
            if refused[submitted].after and self._keeps_order and "after" in why:
                self._keeps_order = False
                self._wait(submitted)
            else:
                self._end([submitted], unstarted_outcome(submitted.job, Status.FAILED, why))

    async def _submitted(self, jobs: Sequence[_SubmittedJob]) -> None:
        """Take note that the service has jobs; cancel those that are not wanted any more."""
        self._next += len(jobs)
        unwanted: dict[float, list[int]] = {}
        for submitted in jobs:
            # Cancelled while the submission was under way: only now there is a number to cancel by.
            if submitted.stage is _Stage.SENDING and submitted.number is not None:
                submitted.stage = _Stage.THERE
                if submitted.unwanted:
                    unwanted.setdefault(submitted.grace, []).append(submitted.number)
        for grace, some in unwanted.items():
            await self._session.cancel(some, grace=grace)

    # From the service.

    async def _listen(self) -> None:
        clock = asyncio.get_running_loop().time
        forgot = clock()
        async for batch in self._session.batches(until="closed"):
            ended: list[_SubmittedJob] = []
            for result in batch:
                submitted = self._by_label.pop(result.label, None)
                if submitted is None:  # it was reported before
                    continue
                if _has_not_run(submitted, result):
                    submitted.outcome = None
                    ended.append(submitted)
                    continue
                outcome = self._understood(submitted, result)
                if submitted.unwanted and outcome.status is Status.CANCELLED:
                    outcome = unstarted_outcome(submitted.job, Status.CANCELLED, submitted.unwanted)
                if _leaves_files(submitted.job, outcome):
                    self._bringing += 1
                    self._tasks.start(self._bring(submitted, result, outcome))
                else:
                    submitted.outcome = outcome
                    ended.append(submitted)
            self._settle(ended)
            # What is still being brought would be forgotten, too.
            if not self._bringing and clock() - forgot >= FORGET_AFTER:
                await self._session.client.forget(self._session.handle, batch[-1].cursor)
                forgot = clock()

    def _understood(self, submitted: _SubmittedJob, result: Result) -> Outcome:
        try:
            return outcome_of(submitted.job, result, submitted.since)
        except ValueError as error:
            raise SiteError(f"a result is none: {error}") from None

    async def _bring(self, submitted: _SubmittedJob, result: Result, outcome: Outcome) -> None:
        """Fetch a job's files, then report the job's end."""
        assert self._files is not None
        try:
            await self._files.fetch(
                submitted.job,
                result.task,
                outcome,
                succeeded=outcome.status is Status.SUCCEEDED,
            )
        except (StagingError, InputError, OSError) as error:
            outcome = unstarted_outcome(submitted.job, Status.FAILED, str(error))
        except RemoteProblem as problem:
            outcome = unstarted_outcome(submitted.job, Status.LOST, str(problem))
        finally:
            self._bringing -= 1
        self._end([submitted], outcome)

    async def _look(
        self,
        submitted: _SubmittedJob,
        number: int,
        query: OutputQuery,
        answer: Callable[[OutputPiece | None], None],
    ) -> None:
        """Ask what a job has printed; whatever goes wrong, the job goes on."""
        offsets = [_NOTHING, _NOTHING]
        offsets[query.stream] = query.offset
        self._looking += 1
        try:
            said = await self._running_output(number, submitted.serial, offsets)
            if said.serial and not submitted.serial and query.offset > 0:
                # Asked by a follower that a process before this one has begun to serve: of an
                # attempt whose number is not stated, the service shows all.
                said = await self._running_output(number, said.serial, offsets)
            part = (said.stdout, said.stderr)[query.stream]
            content = part.content[: query.most]
        except (RemoteProblem, SiteError, OSError, ValueError):  # ValueError: no base64
            answer(None)
            return
        finally:
            self._looking -= 1
        if said.sealed:
            answer(OutputPiece(query.query, submitted.since, is_sealed=True))
        elif said.serial and not (said.shown and said.start):
            answer(None)  # its worker does not say, or is of a version without such moments
        elif not said.serial or said.result is not None:
            answer(OutputPiece(query.query))
        else:
            submitted.serial = said.serial
            answer(OutputPiece(query.query, said.start, part.offset, part.size, content))

    async def _running_output(
        self, number: int, serial: int, offsets: Sequence[int]
    ) -> RunningOutput:
        handle, client = self._session.handle, self._session.client
        return await client.running_output(handle, number, serial, (offsets[0], offsets[1]))

    # The end of a job.

    def _end(self, jobs: Sequence[_SubmittedJob], outcome: Outcome | None) -> None:
        """End jobs; None: they have not begun and are handed back."""
        for submitted in jobs:
            submitted.outcome = outcome
        self._settle(jobs)

    def _settle(self, ended: Sequence[_SubmittedJob]) -> None:
        """Report the ends of jobs, each after those of its parents."""
        outcomes: list[Outcome] = []
        back: list[WireJob] = []
        for submitted in ended:
            submitted.stage = _Stage.ENDED
            self._waiting.pop(submitted.job.task, None)
        # A stack of our own: a chain of jobs may be longer than Python recurses.
        stack = list(reversed(ended))
        while stack:
            submitted = stack.pop()
            job, outcome = submitted.job, submitted.outcome
            if submitted.stage is not _Stage.ENDED or self._jobs.get(job.task) is not submitted:
                continue
            has_run = outcome is not None and outcome.status is not Status.CANCELLED
            if has_run and submitted.parents:
                continue
            if has_run and submitted.is_spoilt:
                # Its parent ended there, but not here, as when a file could not be fetched.
                outcome = unstarted_outcome(job, Status.CANCELLED, "a task before it has failed")
            if outcome is None:
                back.append(job)
            else:
                outcomes.append(outcome)
            succeeded = outcome is not None and outcome.status is Status.SUCCEEDED
            stack.extend(reversed(self._forget(submitted, succeeded=succeeded)))
        if outcomes:
            self._report(outcomes)
        if back:
            self._hand_back(back)

    def _drop(self, submitted: _SubmittedJob) -> None:
        """Forget a job that goes back to the engine."""
        submitted.stage = _Stage.ENDED
        self._waiting.pop(submitted.job.task, None)
        self._settle(self._forget(submitted, succeeded=False))

    def _forget(self, submitted: _SubmittedJob, *, succeeded: bool) -> list[_SubmittedJob]:
        """Forget a job, and return its children that have ended, too."""
        del self._jobs[submitted.job.task]
        self._by_label.pop(label_of(submitted.job), None)
        ended: list[_SubmittedJob] = []
        for child in submitted.children:
            child.parents.remove(submitted)
            child.is_spoilt |= not succeeded
            if child.stage in (_Stage.HELD, _Stage.WAITING) and child.is_spoilt:
                child.stage, child.outcome = _Stage.ENDED, None
                self._waiting.pop(child.job.task, None)
            elif child.stage is _Stage.HELD:
                self._wait(child)
            if child.stage is _Stage.ENDED:
                ended.append(child)
        return ended


def _can_be_followed(parent: _SubmittedJob) -> bool:
    """Whether a job can be submitted after another that was not reported yet."""
    known = parent.number is not None or parent.stage in (_Stage.WAITING, _Stage.SENDING)
    return known and not copied(parent.job)


def _without_made(submitted: _SubmittedJob) -> WireJob:
    """Return a job without the inputs that its parents make at the service."""
    made = {name for parent in submitted.parents for name in parent.job.outputs}
    if not made:
        return submitted.job
    kept = [
        name
        for name in submitted.job.inputs
        if name not in made and not any(name.startswith(f"{folder}/") for folder in made)
    ]
    return replace(submitted.job, inputs=tuple(kept))


def _has_not_run(submitted: _SubmittedJob, result: Result) -> bool:
    """Whether a job was skipped, or taken back before it began."""
    if result.attempt or submitted.unwanted or result.state not in ("skipped", "cancelled"):
        return False
    return submitted.is_recalled or bool(submitted.job.after)


def _leaves_files(job: WireJob, outcome: Outcome) -> bool:
    return bool(job.outputs or copied(job) or long_streams(outcome))
