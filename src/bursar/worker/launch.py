"""Worker processes on this machine: started, watched, replaced, stopped."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import msgspec

from bursar.dispatch.credential import PilotTerms
from bursar.dispatch.linux_processes import RUN, WORKER, kill_leftovers
from bursar.engine.worker_link import WorkerEntrance
from bursar.memory import is_resource_shortage
from bursar.model.errors import SiteError
from bursar.supervisor import TaskSupervisor
from bursar.worker.dispatcher_connection import WorkerSettings

MOST_SPAWNERS = 16
"""Workers that share a site's processors, at most; one starts some thousand processes a second."""

FEWEST_SPAWNERS = 4
"""Workers that share a site's processors, if it has as many, on a machine with fewer.

More workers than the machine has processors start nothing sooner, and take memory and messages:
with 32 calls at a time on 2 processors, 16 workers took 1.43 ms of processor time and 13.5 MB a
call, 4 took 0.92 ms and 8.9 MB."""

MOST_SHARE = 128
"""Processors of one worker of several, at most: each may take seven of its file descriptors, of
which systems allow 1,024 to a process."""

MOST_DEATHS = 5
"""Deaths of one worker in a row, each within :data:`SOON`, after which the worker is given up."""

SOON = 10.0  # seconds
_LEAVING = 10.0  # seconds a worker has to leave by itself


class PilotAdmission(Protocol):
    """Admits workers of pilots on other machines: over TLS, with a secret for each lease."""

    async def credential(self, terms: PilotTerms) -> bytes:
        """
        Admit the workers of a lease from now on, and listen for connections.

        A lease that has a credential gets another one; whether the former remains valid depends
        on the implementation.

        Returns
        -------
        bytes
            Content of the file for ``python -m bursar.provisioning.pilot FILE``. Secret.

        Raises
        ------
        SiteError
            When the terms' host cannot be listened on.
        """

    def revoke(self, lease: str) -> None:
        """Admit no more workers of a lease and have the connected ones leave. May be repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """
    The address and the secret with which workers connect.

    Parameters
    ----------
    address
        Host and port.
    token
        Secret that admits a worker; never on a command line.
    run
        Identity of the run, by which worker processes are recognised.
    admission
        Admission of workers on other machines; None: they cannot connect.
    entrance
        Lets workers of this process join without a socket; None: they cannot.
    """

    address: tuple[str, int]
    token: str
    run: str
    admission: PilotAdmission | None = None
    entrance: WorkerEntrance | None = None


class WorkerProcess(Protocol):
    """A handle on a worker process."""

    @property
    def pid(self) -> int:
        """Process id of the worker."""

    async def wait(self) -> int | None:
        """Wait for the end; return the exit status, negative for a signal, None if unknown."""

    def kill(self) -> None:
        """Kill the worker; do nothing when the worker has ended."""

    def close(self) -> None:
        """Release the handle; the worker may go on."""


class WorkerStarter(Protocol):
    """Starts worker processes, and adopts workers that an earlier process has started."""

    async def start(
        self, settings: WorkerSettings, marks: Mapping[str, str], processors: int
    ) -> WorkerProcess:
        """
        Start a worker.

        Parameters
        ----------
        marks
            Environment variables by which the process is recognised later.
        processors
            Processors of the whole lease.

        Raises
        ------
        OSError
            When the process cannot be started.
        """

    def adopt(self, name: str, run: str) -> WorkerProcess | None:
        """Return the worker of that name and run that an earlier process started, or None."""

    async def clear(self, lease: str) -> None:
        """
        Remove what is left of a lease that has no worker any more.

        Raises
        ------
        OSError
            When something remains.
        """


class ChildProcess:
    """A worker that ends with this process, by losing the connection."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    async def wait(self) -> int:
        """Wait for the end; return the exit status, negative for a signal, None if unknown."""
        return await self._process.wait()

    def kill(self) -> None:
        """Kill the worker; do nothing when the worker has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def close(self) -> None:
        """Do nothing: without its dispatcher the worker soon ends."""


class ChildStarter:
    """Starts workers as child processes, which end with this process."""

    async def start(
        self, settings: WorkerSettings, marks: Mapping[str, str], processors: int
    ) -> ChildProcess:
        """Start a worker."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # not from the user's folder, whatever lies there
            "-m",
            "bursar.worker.worker",
            stdin=asyncio.subprocess.PIPE,
            env={**os.environ, **marks},
        )
        assert process.stdin is not None
        # By standard input: every user of the machine can read command lines.
        process.stdin.write(msgspec.json.encode(settings))
        process.stdin.close()
        return ChildProcess(process)

    def adopt(self, name: str, run: str) -> None:
        """Return None: no worker outlives the process that started it."""

    async def clear(self, lease: str) -> None:
        """Do nothing: child processes leave nothing behind."""


class LocalWorkers:
    """
    Workers of one site that runs on this machine.

    Parameters
    ----------
    processors
        Number of processors that the workers share.
    rigid
        Whether some task holds several processors: then one worker has them all.
    on_event
        Called with one line for people when a worker died.
    starter
        Starter of the workers; None: as children of this process.
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
        self._shares = split_processors(processors, rigid=rigid, most=most_workers(processors))
        self._on_event = on_event
        self._starter: WorkerStarter = starter or ChildStarter()
        self._watches = TaskSupervisor()
        self._is_started = False
        self._processes: dict[str, WorkerProcess] = {}
        self._leaving = asyncio.Event()
        self._run = ""

    async def start(self, endpoint: Endpoint) -> None:
        """
        Start the workers that do not run already; all connect on their own.

        Raises
        ------
        SiteError
            When a process cannot be started.
        """
        self._run = endpoint.run
        for number, share in enumerate(self._shares):
            name = f"{self._site}-{self._lease}-{number}"
            # Names follow from site, lease and number, so that the next process finds the same
            # workers.
            found = self._starter.adopt(name, endpoint.run)
            if found is not None:
                self._processes[name] = found
            else:
                await self._spawn(name, share, endpoint)
            # After the first: release() may have to end what is there when a later one cannot be
            # started.
            self._is_started = True
            self._watches.start(
                self._watch(name, share, endpoint), on_failure=partial(self._on_unwatched, name)
            )

    async def release(self) -> None:
        """Wait for the workers to leave, and kill the remaining ones."""
        self._leaving.set()
        if not self._is_started:
            return
        await self._watches.wait(_LEAVING)
        killed = dict(self._processes)
        for process in killed.values():
            process.kill()
        await self._watches.wait()
        for name in killed:  # what it ran is not to go on without it
            await asyncio.to_thread(kill_leftovers, self._run, name)
        # Their watches were cancelled, as by Ctrl-C in a notebook.
        self._close_all()
        try:
            await self._starter.clear(self._lease)
        except OSError as error:
            self._on_event(f"{self._lease}: something of its workers remains: {error}")

    def kill(self) -> None:
        """Kill the workers that are left and all that they run. Waits until these are gone."""
        for name, process in self._processes.items():
            process.kill()
            kill_leftovers(self._run, name)
        self._close_all()

    async def leave_running(self) -> None:
        """Stop watching the workers; detached ones go on."""
        await self._watches.close()
        self._close_all()

    @property
    def workers(self) -> int:
        """Number of workers that run or will be replaced."""
        return len(self._watches)

    @property
    def pids(self) -> dict[str, int]:
        """Processes of the workers, by name."""
        return {name: process.pid for name, process in self._processes.items()}

    def _close_all(self) -> None:
        for process in self._processes.values():
            process.close()
        self._processes.clear()

    async def _spawn(self, name: str, share: int, endpoint: Endpoint, deaths: int = 0) -> None:
        host, port = endpoint.address
        settings = WorkerSettings(
            host=host,
            port=port,
            token=endpoint.token,
            worker=name,
            site=self._site,
            lease=self._lease,
            processors=share,
            deaths=deaths,
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
        deaths = died = 0
        while True:
            born = loop.time()
            code = await self._processes[name].wait()
            self._processes.pop(name).close()
            if self._leaving.is_set() or code == 0:
                return
            # What it ran goes with it: its tasks will run again elsewhere.
            await asyncio.to_thread(kill_leftovers, endpoint.run, name)
            # A worker that lived for a while and died is no sign that the next one will die, too.
            deaths = deaths + 1 if loop.time() - born < SOON else 1
            died += 1
            if deaths > MOST_DEATHS:
                self._on_event(f"worker {name} died {deaths} times in a row and is given up")
                return
            self._on_event(f"worker {name} died ({_how(code)}) and is replaced")
            # Back-off: a worker that dies at once, as without memory, must not be started in a busy
            # loop.
            if await self._left_within(0.1 * 2 ** (deaths - 1)):
                return
            try:
                await self._spawn(name, share, endpoint, died)
            except SiteError as error:
                self._on_event(f"{error}; worker {name} is given up")
                return

    def _on_unwatched(self, name: str, error: BaseException) -> None:
        """Give up a worker by a fault of ours: nobody would replace it when it dies."""
        self._on_event(f"worker {name} is given up: {type(error).__name__}: {error}")
        if name in self._processes:
            self._processes[name].kill()

    async def _left_within(self, seconds: float) -> bool:
        """Whether the workers are told to leave within so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._leaving.wait()
        except TimeoutError:
            return False
        return True


def most_workers(processors: int) -> int:
    """Return the number of workers that share so many processors of this machine, at most."""
    here = min(MOST_SPAWNERS, max(FEWEST_SPAWNERS, os.cpu_count() or 1))
    return max(here, -(-processors // MOST_SHARE))


def split_processors(processors: int, *, rigid: bool, most: int = MOST_SPAWNERS) -> list[int]:
    """
    Return the number of processors of each worker of a site.

    One worker has them all where a task may hold several. Otherwise some
    workers share them, at most ``most``: starting processes, one worker is
    busier than a processor is.
    """
    if rigid:
        return [processors]
    workers = min(processors, most)
    return [processors // workers + (i < processors % workers) for i in range(workers)]


def _how(code: int | None) -> str:
    if code is None:
        return "it is gone"
    return f"killed by signal {-code}" if code < 0 else f"status {code}"
