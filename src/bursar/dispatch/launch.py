"""Worker processes on this machine: started, watched, replaced, stopped."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from bursar.dispatch.credential import PilotTerms
from bursar.dispatch.orphans import RUN, WORKER, kill_leftovers
from bursar.dispatch.worker_settings import WorkerSettings
from bursar.memory import is_resource_shortage
from bursar.model.errors import SiteError

MOST_SPAWNERS = 16
"""Workers that share a site's processors; one starts some thousand processes a second."""

MOST_DEATHS = 5
"""Of one worker, one after the other, each within :data:`SOON`; then it is given up."""

SOON = 10.0  # seconds
_LEAVING = 10.0  # seconds a worker has to leave by itself


class PilotAdmission(Protocol):
    """Where workers of pilots report that run elsewhere: over TLS, each with its own secret."""

    async def credential(self, terms: PilotTerms) -> bytes:
        """
        Lets the workers of a lease in from now on, and listens for them.

        A lease that has a credential gets another one; whether the former is still good is the
        door's to say.

        Returns
        -------
        bytes
            What ``python -m bursar.provisioning.pilot FILE`` wants in its file. Secret.

        Raises
        ------
        SiteError
            When nobody can be listened to there.
        """

    def revoke(self, lease: str) -> None:
        """A lease's workers are let in no more, and those that are there leave. May be repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """
    Where workers report for work.

    Parameters
    ----------
    address
        Host and port.
    token
        What a worker must show; a secret, never on a command line.
    run
        Identity of the run, by which its processes are recognised.
    door
        For workers that are not on this machine; None: there is none.
    """

    address: tuple[str, int]
    token: str
    run: str
    door: PilotAdmission | None = None


class WorkerProcess(Protocol):
    """A worker, from outside."""

    @property
    def pid(self) -> int:
        """Its process."""

    async def wait(self) -> int | None:
        """Its exit status once it has ended, negative for a signal; None: nobody knows."""

    def kill(self) -> None:
        """Ends it; nothing when it has ended."""

    def close(self) -> None:
        """Lets go of it, which may go on."""


class WorkerStarter(Protocol):
    """How worker processes come to be."""

    async def start(
        self, settings: WorkerSettings, marks: Mapping[str, str], processors: int
    ) -> WorkerProcess:
        """
        Starts one.

        Parameters
        ----------
        settings
            Its own.
        marks
            Variables of its environment, by which it is recognised.
        processors
            Of its lease, all workers together.

        Raises
        ------
        OSError
            When it cannot be started.
        """

    def adopt(self, name: str, run: str) -> WorkerProcess | None:
        """One of that name and run that an earlier process has started, if it is there."""

    async def clear(self, lease: str) -> None:
        """
        A lease has no worker any more.

        Raises
        ------
        OSError
            When something of it remains.
        """


class ChildProcess:
    """One that ends with this process, since it loses its connection to it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    async def wait(self) -> int:
        """See :class:`WorkerProcess`."""
        return await self._process.wait()

    def kill(self) -> None:
        """See :class:`WorkerProcess`."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def close(self) -> None:
        """It does not go on for long."""


class ChildStarter:
    """Starts such workers."""

    async def start(
        self, settings: WorkerSettings, marks: Mapping[str, str], processors: int
    ) -> ChildProcess:
        """See :class:`WorkerStarter`."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # not from the user's folder, whatever lies there
            "-m",
            "bursar.dispatch.worker",
            stdin=asyncio.subprocess.PIPE,
            env={**os.environ, **marks},
        )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(settings))
        process.stdin.close()
        return ChildProcess(process)

    def adopt(self, name: str, run: str) -> None:
        """There is none."""

    async def clear(self, lease: str) -> None:
        """Nothing remains."""


class LocalWorkers:
    """
    Workers of one site that runs on this machine.

    Parameters
    ----------
    site
        Name of the site.
    lease
        Of the processors.
    processors
        What they share.
    rigid
        Whether some task holds several processors: then one worker has them all.
    on_event
        Told, in one line for people, of workers that died.
    starter
        Starts them; None: as children of this process.
    """

    def __init__(
        self,
        site: str,
        lease: str,
        processors: int,
        *,
        rigid: bool,
        on_event: Callable[[str], None],
        starter: WorkerStarter | None = None,
    ) -> None:
        self._site = site
        self._lease = lease
        self._processors = processors
        self._shares = split_processors(processors, rigid=rigid)
        self._on_event = on_event
        self._starter: WorkerStarter = starter or ChildStarter()
        self._watches: list[asyncio.Task[None]] = []
        self._processes: dict[str, WorkerProcess] = {}
        self._leaving = asyncio.Event()
        self._run = ""

    async def start(self, endpoint: Endpoint) -> None:
        """
        Starts them, but for those that are there already; they report by themselves.

        Raises
        ------
        SiteError
            When a process cannot be started.
        """
        self._run = endpoint.run
        for number, share in enumerate(self._shares):
            name = f"{self._site}-{self._lease}-{number}"
            found = self._starter.adopt(name, endpoint.run)
            if found is not None:
                self._processes[name] = found
            else:
                await self._spawn(name, share, endpoint)
            self._watches.append(asyncio.create_task(self._watch(name, share, endpoint)))

    async def release(self) -> None:
        """Waits for them to leave, and kills those that do not."""
        self._leaving.set()
        if not self._watches:
            return
        _, late = await asyncio.wait(self._watches, timeout=_LEAVING)
        killed = dict(self._processes)
        for process in killed.values():
            process.kill()
        if late:
            await asyncio.wait(late)
        for name in killed:  # what it ran is not to go on without it
            await asyncio.to_thread(kill_leftovers, self._run, name)
        try:
            await self._starter.clear(self._lease)
        except OSError as error:
            self._on_event(f"{self._lease}: something of its workers remains: {error}")

    async def leave_running(self) -> None:
        """Watches them no more; those that can do without this process go on."""
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        for process in self._processes.values():
            process.close()
        self._processes.clear()

    @property
    def workers(self) -> int:
        """Workers that are there or will be again."""
        return sum(not watch.done() for watch in self._watches)

    @property
    def pids(self) -> dict[str, int]:
        """Processes of the workers, by name."""
        return {name: process.pid for name, process in self._processes.items()}

    async def _spawn(self, name: str, share: int, endpoint: Endpoint) -> None:
        host, port = endpoint.address
        settings = WorkerSettings(
            host=host,
            port=port,
            token=endpoint.token,
            worker=name,
            site=self._site,
            lease=self._lease,
            processors=share,
        )
        marks = {RUN: endpoint.run, WORKER: name}
        try:
            process = await self._starter.start(settings, marks, self._processors)
        except OSError as error:
            raise SiteError(f"{self._site}: cannot start a worker: {error.strerror}") from None
        except RuntimeError as error:  # asyncio waits for a process in a thread
            if not is_resource_shortage(error):
                raise
            raise SiteError(f"{self._site}: cannot start a worker: {error}") from None
        self._processes[name] = process

    async def _watch(self, name: str, share: int, endpoint: Endpoint) -> None:
        loop = asyncio.get_running_loop()
        deaths = 0
        while True:
            born = loop.time()
            code = await self._processes[name].wait()
            self._processes.pop(name).close()
            if self._leaving.is_set() or code == 0:
                return
            # What it ran goes with it: its tasks will run again elsewhere.
            await asyncio.to_thread(kill_leftovers, endpoint.run, name)
            deaths = deaths + 1 if loop.time() - born < SOON else 1
            if deaths > MOST_DEATHS:
                self._on_event(f"worker {name} died {deaths} times in a row and is given up")
                return
            self._on_event(f"worker {name} died ({_how(code)}) and is replaced")
            if await self._left_within(0.1 * 2 ** (deaths - 1)):
                return
            try:
                await self._spawn(name, share, endpoint)
            except SiteError as error:
                self._on_event(f"{error}; worker {name} is given up")
                return

    async def _left_within(self, seconds: float) -> bool:
        """Whether the workers are told to leave within so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._leaving.wait()
        except TimeoutError:
            return False
        return True


def split_processors(processors: int, *, rigid: bool) -> list[int]:
    """
    How workers share a site's processors.

    One worker has them all where a task may hold several. Otherwise some
    workers share them: starting processes, one worker is busier than a
    processor is.
    """
    if rigid:
        return [processors]
    workers = min(processors, MOST_SPAWNERS)
    return [processors // workers + (i < processors % workers) for i in range(workers)]


def _how(code: int | None) -> str:
    if code is None:
        return "it is gone"
    return f"killed by signal {-code}" if code < 0 else f"status {code}"
