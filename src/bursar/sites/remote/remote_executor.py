"""Send jobs to an instance of a service, and receive the results."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import time

from bursar.dispatch.wire import Welcome, WireJob
from bursar.model.errors import InputError, SiteError
from bursar.model.site import Trust
from bursar.model.task import Outcome, Status
from bursar.remote.async_client import FORGET_AFTER, AsyncSession
from bursar.remote.messages import Result
from bursar.remote.problems import RemoteProblem
from bursar.sites.remote.remote_files import InstanceFileIndex, RemoteInstanceFiles
from bursar.sites.remote.translation import (
    copied,
    label_of,
    long_streams,
    outcome_of,
    spec_of,
    without_result,
)
from bursar.supervisor import TaskSupervisor
from bursar.worker.staging import RootNamespace, StagingError

_FAULTS = frozenset({400, 403, 409, 413, 415, 422})
"""HTTP statuses that blame the request, not the service."""


@dataclass(slots=True, eq=False)
class _SubmittedJob:
    """A job handed to the service; ``number`` is None until the service has numbered the job."""

    job: WireJob
    since: float  # seconds since the epoch
    number: int | None = None
    unwanted: str = ""  # why it is to stop
    grace: float = 0.0  # seconds that it then has


class RemoteJobExecutor:
    """
    Runs jobs on one instance; a :class:`bursar.sites.proxy_worker.JobExecutor`.

    Jobs that come during a submission are submitted together afterwards.

    Parameters
    ----------
    session
        Session with the instance.
    siblings
        Index of the run's files that instances of the service have.
    report
        Called with outcomes.
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
        on_lost: Callable[[str], None],
        trust: Trust = "data",
    ) -> None:
        self._session = session
        self._trust = trust
        self._siblings = siblings
        self._report = report
        self._on_lost = on_lost
        self._files: RemoteInstanceFiles | None = None
        self._submitted: dict[str, _SubmittedJob] = {}  # by label
        self._waiting: list[_SubmittedJob] = []
        self._bringing = 0  # results whose files are still being fetched
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
            submitted = self._submitted[label_of(job)] = _SubmittedJob(job, now)
            self._waiting.append(submitted)
        self._work.set()

    def cancel(self, tasks: Sequence[int] | None, grace: float, reason: str) -> None:
        """
        Stop tasks; tasks that were not submitted yet end at once, as cancelled.

        Parameters
        ----------
        tasks
            Numbers of the tasks; None: all tasks.
        grace
            Seconds between the request to end and the kill.
        reason
            Text in the outcomes of the tasks.
        """
        wanted = None if tasks is None else set(tasks)
        numbers: list[int] = []
        for submitted in list(self._submitted.values()):
            if wanted is not None and submitted.job.task not in wanted:
                continue
            submitted.unwanted, submitted.grace = reason, grace
            if submitted in self._waiting:
                self._waiting.remove(submitted)
                self._ended(submitted, without_result(submitted.job, Status.CANCELLED, reason))
            elif submitted.number is not None:
                numbers.append(submitted.number)
        if numbers:
            self._tasks.start(self._cancel(numbers, grace))

    def give_back(self, count: int) -> Sequence[WireJob]:
        """Return up to ``count`` jobs that were not submitted yet, the last first."""
        back = [self._waiting.pop().job for _ in range(min(count, len(self._waiting)))]
        for job in back:
            del self._submitted[label_of(job)]
        return back

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
            batch, self._waiting = self._waiting, []
            if batch:
                await self._submit(await self._with_files(batch))

    async def _with_files(self, batch: Sequence[_SubmittedJob]) -> list[_SubmittedJob]:
        """Send the files of a batch; return the jobs whose files have arrived."""
        assert self._files is not None
        try:
            faults = await self._files.send([submitted.job for submitted in batch])
        except (RemoteProblem, InputError) as error:  # refused, or a file has gone meanwhile
            if isinstance(error, RemoteProblem) and error.status not in _FAULTS:
                raise
            if len(batch) == 1:
                faults = {batch[0].job.task: str(error)}
            else:  # whose it was is seen one by one
                return [c for one in batch for c in await self._with_files([one])]
        for submitted in batch:
            if submitted.job.task in faults:
                failed = without_result(submitted.job, Status.FAILED, faults[submitted.job.task])
                self._ended(submitted, failed)
        return [submitted for submitted in batch if submitted.job.task not in faults]

    async def _submit(self, batch: Sequence[_SubmittedJob]) -> None:
        sendable = []
        for submitted in batch:
            if submitted.unwanted:
                stopped = without_result(submitted.job, Status.CANCELLED, submitted.unwanted)
                self._ended(submitted, stopped)
            else:
                sendable.append(submitted)
        if not sendable:
            return
        try:
            numbers = await self._session.submit(
                [spec_of(submitted.job, self._trust) for submitted in sendable]
            )
        except (RemoteProblem, InputError) as error:
            if isinstance(error, RemoteProblem) and error.status not in _FAULTS:
                raise
            if len(sendable) == 1:
                refused = without_result(sendable[0].job, Status.FAILED, str(error))
                self._ended(sendable[0], refused)
                return
            for submitted in sendable:
                await self._submit([submitted])
            return
        unwanted: dict[float, list[int]] = {}
        for submitted, number in zip(sendable, numbers, strict=True):
            # Cancelled while the submission was under way: only now there is a number to cancel by.
            submitted.number = number
            if submitted.unwanted:
                unwanted.setdefault(submitted.grace, []).append(number)
        for grace, some in unwanted.items():
            await self._cancel(some, grace)

    async def _cancel(self, numbers: Sequence[int], grace: float) -> None:
        try:
            await self._session.cancel(numbers, grace=grace)
        except RemoteProblem as problem:
            if problem.status not in _FAULTS:
                raise
            await self._session.cancel(numbers)  # it is older than the grace

    # From the service.

    async def _listen(self) -> None:
        clock = asyncio.get_running_loop().time
        forgot = clock()
        async for batch in self._session.batches(until="closed"):
            plain: list[Outcome] = []
            for result in batch:
                submitted = self._submitted.get(result.label)
                if submitted is None:  # it was reported before
                    continue
                outcome = self._understood(submitted, result)
                if submitted.unwanted and outcome.status is Status.CANCELLED:
                    outcome = without_result(submitted.job, Status.CANCELLED, submitted.unwanted)
                if _leaves_files(submitted.job, outcome):
                    self._bringing += 1
                    self._tasks.start(self._bring(submitted, result, outcome))
                else:
                    del self._submitted[result.label]
                    plain.append(outcome)
            if plain:
                self._report(plain)
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
            outcome = without_result(submitted.job, Status.FAILED, str(error))
        except RemoteProblem as problem:
            outcome = without_result(submitted.job, Status.LOST, str(problem))
        finally:
            self._bringing -= 1
        self._ended(submitted, outcome)

    def _ended(self, submitted: _SubmittedJob, outcome: Outcome) -> None:
        if self._submitted.pop(label_of(submitted.job), None) is not None:
            self._report([outcome])


def _leaves_files(job: WireJob, outcome: Outcome) -> bool:
    return bool(job.outputs or copied(job) or long_streams(outcome))
