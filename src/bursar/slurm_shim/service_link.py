"""Hands jobs over to the service, reads what became of them, and starts the service if need be."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from bursar.locking import LockHeldElsewhere, take_lock
from bursar.model.errors import BursarError, InputError, SiteError
from bursar.remote.async_client import AsyncServiceClient
from bursar.remote.http_transport import RemoteProblem
from bursar.remote.messages import SiteInfo, TaskSpec
from bursar.slurm_shim.dependencies import Parent, depending_on, placed, settled
from bursar.slurm_shim.element_changes import UndeliveredRerun
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
        book = self._book
        if not (book.undelivered() or book.changes.reruns()):
            return
        # One at a time: a job's tasks name others by the numbers that these have at the service.
        lock = await asyncio.to_thread(_taken, self._folder.lock)
        try:
            refused = None
            try:
                await self._deliver_changes()
            except RemoteProblem as problem:
                if problem.kind != "not-found":
                    raise
                # A service that was set up anew.
                if (instance := self._book.instance()) is not None:
                    self._book.lose(instance, time.time())
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
                if refused.where.endswith(".resources") and self._folder.settings().is_own:
                    raise InputError(
                        refused.detail,
                        hint=f"resources of [site] in {self._folder.service_file} say what it has, "
                        "from the next start of the service on",
                    ) from None
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
        first = self._book.tasks(instance)
        gates, specs = placed(
            job.facts,
            job.specs,
            first,
            parents,
            self._folder.folder,
            positions=range(len(job.specs)),
        )
        try:
            numbers = await self._client.submit(instance, [*gates, *specs], key=f"job-{job.id}")
        except RemoteProblem as problem:
            if problem.kind != "not-found":
                raise
            # A service that was set up anew, or kept the instance for no longer.
            self._book.lose(instance, time.time())
            await self._deliver(job)
            return
        self._book.deliver(job.id, instance, numbers[len(gates)])
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

    async def _deliver_changes(self) -> None:
        """
        Hand over tasks in place of earlier ones, each once, and cancel the earlier ones.

        Every step may be taken again: what is killed in between is done by the next command.
        """
        reruns = self._book.changes.reruns()
        # First those that wait, the last ones first: the end of what another waits for would let
        # that one begin.
        for instance, tasks in _apart(one for one in reversed(reruns) if not one.again):
            await self._client.cancel(instance, tasks)
        for one in reruns:
            specs = self._rerun(one)
            if specs is None:
                self._book.changes.give_up(one, time.time())
                continue
            numbers = await self._client.submit(one.instance, specs, key=f"rerun-{one.id}")
            if one.again:
                await self._client.cancel(one.instance, [one.replaces])
            self._book.changes.deliver_rerun(one.id, numbers[-1])

    def _rerun(self, one: UndeliveredRerun) -> list[TaskSpec] | None:
        """Return the task in place of an earlier one, behind its gates; None: it cannot begin."""
        spec, facts, element = one.spec, one.element.facts, one.element
        if one.restarts:
            restarts = {"BURSAR_RESTARTS": str(one.restarts)}
            spec = msgspec.structs.replace(spec, environment={**spec.environment, **restarts})
        if one.again:
            return [msgspec.structs.replace(spec, after=(one.replaces,), needs="ended")]
        parents = self._parents(facts, one.instance)
        if parents is None:
            return None

        gates, specs = placed(
            facts,
            [spec],
            self._book.tasks(one.instance),
            parents,
            self._folder.folder,
            positions=[element.position],
        )
        return [*gates, *specs]

    def _parents(self, facts: JobFacts, instance: str) -> list[Parent] | None:
        """Return the tasks that a job comes after; None: they can never let it begin."""
        found: list[Parent] = []
        for one in facts.after:
            task = self._book.task(one.job, one.position)
            if task is not None and task[0] == instance:
                # Whatever became of it: who hands a job over again has to ask for the same tasks.
                found.append((one.kind, task[1]))
                continue
            # Of an instance that the service no longer knows all have ended.
            (element,) = self._book.elements([one.job + one.position], exactly=True)
            if settled(one.kind, element) is False:
                return None
            found.append((one.kind, None))
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
        self._book.changes.put_back(
            [element.number, *(one.number for one in waiting)], again=element.number
        )
        await self.deliver()

    async def site(self) -> SiteInfo:
        """Return what the service says of itself."""
        return await self._client.site()

    async def cancel(self, elements: Sequence[JobElement]) -> None:
        """Cancel elements of jobs; those that have ended stay so."""
        by_instance: dict[str, list[int]] = {}
        for element in elements:
            if (task := self._book.task(element.job, element.position)) is not None:
                by_instance.setdefault(task[0], []).append(task[1])
        for instance, tasks in by_instance.items():
            await self._client.cancel(instance, tasks)


def _apart(reruns: Iterable[UndeliveredRerun]) -> Iterator[tuple[str, list[int]]]:
    """Yield the tasks that are replaced, with their instance, none with one that it waits for."""
    groups: list[list[UndeliveredRerun]] = []
    for one in reruns:
        if groups and groups[-1][0].element.job == one.element.job:
            groups[-1].append(one)
        else:
            groups.append([one])
    for group in groups:
        yield group[0].instance, [one.replaces for one in group]


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
