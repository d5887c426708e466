"""Hands jobs over to the service, reads what became of them, and starts the service if need be."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import msgspec

from bursar.locking import LockHeldElsewhere, take_lock
from bursar.model.errors import BursarError, SiteError
from bursar.remote.async_client import AsyncServiceClient
from bursar.remote.http_transport import RemoteProblem
from bursar.remote.messages import SiteInfo, TaskSpec
from bursar.slurm_shim.job_book import JobBook, UndeliveredJob
from bursar.slurm_shim.jobs import JobElement, JobFacts
from bursar.slurm_shim.shim_folder import ShimFolder

KEPT = 366 * 86400.0
"""Seconds for which a service keeps an instance after its last task."""

_START = 60.0  # seconds for the own service to answer
_STEP = 0.1
_PATIENCE = 20.0  # seconds for which another's service is asked again
_DELIVERY = 120.0  # seconds to wait for others who hand jobs over


class ShimLink:
    """
    Jobs of a book at a service.

    Parameters
    ----------
    book
        The jobs.
    client
        A connection to the service.
    """

    def __init__(self, folder: ShimFolder, book: JobBook, client: AsyncServiceClient) -> None:
        self._folder = folder
        self._book = book
        self._client = client

    async def deliver(self) -> None:
        """
        Hand over the jobs that no service has acknowledged, each once.

        Raises
        ------
        RemoteProblem
            When the service refuses the last of them.
        """
        if not self._book.undelivered() and not self._book.undelivered_reruns():
            return
        # One at a time: a job's tasks name others by the numbers that these have at the service.
        lock = await asyncio.to_thread(_taken, self._folder.lock)
        try:
            refused = None
            await self._deliver_reruns()
            for job in self._book.undelivered():
                refused = None
                try:
                    await self._deliver(job)
                except RemoteProblem as problem:
                    if problem.transient:
                        raise
                    refused = problem
                    self._book.drop(job.id, "BadConstraints", time.time())
            if refused is not None:
                raise refused
        finally:
            os.close(lock)

    async def _deliver(self, job: UndeliveredJob) -> None:
        instance = self._book.instance()
        if instance is None:
            made = await self._client.create_instance(label="slurm-shim", keep=KEPT)
            instance = made.id
            self._book.add_instance(instance)
        parents = self._parents(job.facts, instance)
        if parents is None:
            self._book.drop(job.id, "DependencyNeverSatisfied", time.time())
            return
        if job.is_unwanted and not await self._has_arrived(instance):
            self._book.drop(job.id, "None", time.time())
            return
        specs = placed(job, self._book.tasks(instance), parents)
        try:
            numbers = await self._client.submit(instance, specs, key=f"job-{job.id}")
        except RemoteProblem as problem:
            if problem.kind != "not-found":
                raise
            # A service that was set up anew, or kept the instance for no longer.
            self._book.lose(instance, time.time())
            await self._deliver(job)
            return
        self._book.deliver(job.id, instance, numbers[0])
        if job.is_unwanted:
            await self._client.cancel(instance, list(numbers))

    async def _has_arrived(self, instance: str) -> bool:
        """Return whether an instance has tasks of a job that is not known to be delivered."""
        try:
            info = await self._client.instance(instance)
        except RemoteProblem as problem:
            if problem.kind != "not-found":
                raise
            return False
        return info.counts.total > self._book.tasks(instance)

    async def _deliver_reruns(self) -> None:
        """
        Hand over tasks in place of earlier ones, each once.

        Every step may be taken again: what is killed in between is done by the next command.
        """
        reruns = self._book.undelivered_reruns()
        for one in reruns:
            # First those that wait, or the end of what they wait for would let them begin.
            if not one.again:
                await self._client.cancel(one.instance, [one.replaces])
        for one in reruns:
            after, needs = (one.replaces,), "ended"
            if not one.again:
                facts, element = one.element.facts, one.element
                before = self._book.task(element.job, element.position - facts.step)
                parents = self._parents(facts, one.instance)
                if parents is None or before is None:
                    raise SiteError(f"what job {element.id} waits for is no longer known")
                after, needs = _links(facts, element.position, parents, before[1])
            spec = msgspec.structs.replace(
                one.spec,
                after=tuple(after),
                needs=needs,
                environment={**one.spec.environment, "BURSAR_RESTARTS": str(one.restarts)}
                if one.restarts
                else one.spec.environment,
            )
            numbers = await self._client.submit(one.instance, [spec], key=f"rerun-{one.id}")
            if one.again:
                await self._client.cancel(one.instance, [one.replaces])
            self._book.deliver_rerun(one.id, numbers[0])

    def _parents(self, facts: JobFacts, instance: str) -> list[int] | None:
        """Return the tasks that a job comes after; None: they can never let it begin."""
        found = []
        for parent, position in facts.after:
            task = self._book.task(parent, position)
            if task is not None and task[0] == instance:
                found.append(task[1])
                continue
            # Of an instance that the service no longer knows all have ended.
            (element,) = self._book.elements([parent + position])
            if facts.dependency == "afterok" and element.state != "COMPLETED":
                return None
        return found

    async def refresh(self) -> None:
        """Read what became of the jobs since the last time."""
        instance = self._book.instance()
        if instance is None:
            return
        try:
            first = self._book.first_unended(instance)
            if first is None:
                return
            batches = self._client.batches(instance, self._book.cursor(instance), until="now")
            async for batch in batches:
                for number in self._book.record(instance, batch, time.time()):
                    self._folder.running_file(number).unlink(missing_ok=True)
            first = self._book.first_unended(instance)
            if first is not None:
                states = [
                    (task.task, task.state) async for task in self._client.tasks(instance, first)
                ]
                self._book.record_states(instance, states, time.time())
        except RemoteProblem as problem:
            if problem.kind != "not-found":
                raise
            self._book.lose(instance, time.time())

    async def requeue(self, element: JobElement) -> None:
        """End what an element runs, and have it begin anew; jobs that wait for it wait on."""
        waiting = depending_on(element, self._book.elements())
        self._book.put_back(
            [element.number, *(one.number for one in waiting)], again=element.number
        )
        await self.deliver()

    async def site(self) -> SiteInfo:
        """Return what the service says of itself."""
        return await self._client.site()

    async def cancel(self, elements: Sequence[tuple[int, int]]) -> None:
        """Cancel elements of jobs, by job and position; those that have ended stay so."""
        by_instance: dict[str, list[int]] = {}
        for job, position in elements:
            if (task := self._book.task(job, position)) is not None:
                by_instance.setdefault(task[0], []).append(task[1])
        for instance, tasks in by_instance.items():
            await self._client.cancel(instance, tasks)


def placed(job: UndeliveredJob, first: int, parents: Sequence[int]) -> list[TaskSpec]:
    """
    Return the tasks of a job with the tasks that they come after.

    Parameters
    ----------
    first
        Number of the job's first task.
    parents
        Numbers of the tasks that the job depends on.
    """
    found = []
    for position, spec in enumerate(job.specs):
        before = first + position - job.facts.step
        after, needs = _links(job.facts, position, parents, before)
        found.append(msgspec.structs.replace(spec, after=tuple(after), needs=needs))
    return found


def _links(
    facts: JobFacts, position: int, parents: Sequence[int], before: int
) -> tuple[Sequence[int], Literal["ended"] | None]:
    """
    Return the tasks that an element comes after, and whether these only have to end.

    Parameters
    ----------
    parents
        Tasks that the job depends on.
    before
        Task of the array's element that is so many before as may run at a time.
    """
    after = list(parents[position : position + 1] if facts.aligned else parents)
    if facts.step and position >= facts.step:
        after.append(before)
    return after, "ended" if after and (facts.dependency == "afterany" or facts.step) else None


def depending_on(element: JobElement, known: Sequence[JobElement]) -> list[JobElement]:
    """
    Return the elements that wait until an element has ended, or for one that does.

    Parameters
    ----------
    known
        Elements by number; those that have ended wait for nothing.
    """
    found: dict[tuple[int, int], JobElement] = {(element.job, element.position): element}
    for one in known:
        facts, own = one.facts, (one.job, one.position)
        after = facts.after[one.position : one.position + 1] if facts.aligned else facts.after
        before = (one.job, one.position - facts.step) if facts.step else own
        waits = one.state == "PENDING" and own not in found
        if waits and any(parent in found for parent in (*after, before)):
            found[own] = one
    return list(found.values())[1:]


@asynccontextmanager
async def connected(folder: ShimFolder, book: JobBook) -> AsyncGenerator[ShimLink, None]:
    """
    Connect to the service; start it if it is the stand-ins' own and does not run.

    Raises
    ------
    SiteError
        When the service cannot be reached.
    """
    is_own = folder.settings().is_own
    if is_own:
        await _ensure_running(folder)
    access = folder.service().access
    async with AsyncServiceClient(access, patience=_PATIENCE) as client:
        yield ShimLink(folder, book, client)


async def _ensure_running(folder: ShimFolder) -> None:
    if await _answers(folder):
        return
    lock = await asyncio.to_thread(_taken, folder.start_lock)
    try:
        if await _answers(folder):  # another command has started it meanwhile
            return
        process = _start(folder)
        give_up = time.monotonic() + _START
        while not await _answers(folder):
            if process.poll() is not None or time.monotonic() > give_up:
                raise SiteError(f"the service behind the stand-ins does not start: {_last(folder)}")
            await asyncio.sleep(_STEP)
    finally:
        os.close(lock)


async def _answers(folder: ShimFolder) -> bool:
    try:
        access = folder.service().access
        async with AsyncServiceClient(access, patience=0) as client:
            await client.ready()
    except BursarError:  # before its first start there is no token, either
        return False
    return True


def _start(folder: ShimFolder) -> "subprocess.Popen[bytes]":
    # A session of its own, and no variable of the job or the shell that happens to be first.
    keep = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TMPDIR", "XDG_STATE_HOME")
    words = (sys.executable, "-P", "-m", "bursar", "serve", "--config", str(folder.service_file))
    with folder.log.open("ab") as log:
        return subprocess.Popen(
            words,
            cwd="/",
            env={name: os.environ[name] for name in keep if name in os.environ},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _last(folder: ShimFolder) -> str:
    lines = folder.log.read_text(errors="replace").splitlines()
    return f"{lines[-1] if lines else 'no word of it'} (in {folder.log})"


def _taken(path: "os.PathLike[str]") -> int:
    try:
        return take_lock(path, wait=_DELIVERY)
    except LockHeldElsewhere as error:
        raise SiteError(f"{path} {error}") from None
