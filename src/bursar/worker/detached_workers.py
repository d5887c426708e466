"""Detached workers: processes that go on when the starter is gone, and are found again."""

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import msgspec

from bursar.dispatch.orphans import is_worker
from bursar.worker.accounts import ResourceLimits, UnixAccount, environment_of
from bursar.worker.confinement import ControlGroups
from bursar.worker.dispatcher_connection import WorkerSettings

_UMASK = 0o077

_AS_MYSELF = ("-P",)  # nothing from where it happens to be
_AS_OTHER = ("-P", "-s", "-B")
"""Options of an interpreter for another account, which root may start: nothing is loaded from the
account's home, and no compiled modules that only root could read are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """
    Settings that a service's workers have in common.

    Parameters
    ----------
    account
        Account that workers and their tasks run as; None: the service's own.
    limits
        Resource limits of each process.
    groups
        Control groups that hold a lease's processes to its processors; None: no such limit.
    seal_key
        Path of the key file for sealed tasks; empty: workers open none. Workers of another
        account get its content when they start, and need not be able to read it.
    environment
        Variables of workers and tasks, besides those of every user.
    python
        Interpreter, which the account must be able to run. For another account it is started
        by root, which becomes the account once the worker knows its settings.
    errors
        Path of the file for the workers' standard error; empty: it is discarded.
    """

    account: UnixAccount | None = None
    limits: ResourceLimits = field(default_factory=ResourceLimits)
    groups: ControlGroups | None = None
    seal_key: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable
    errors: str = ""


class DetachedProcess:
    """
    A worker process that goes on when the starter ends.

    Parameters
    ----------
    pid
        Process id.
    child
        The child process; None where an earlier process started the worker.

    Raises
    ------
    OSError
        When the process is gone.
    """

    def __init__(self, pid: int, child: "subprocess.Popen[bytes] | None" = None) -> None:
        self.pid = pid
        self._child = child
        # A descriptor and not a number: a number may be another process's once the worker has
        # ended.
        self._fd = os.pidfd_open(pid)

    async def wait(self) -> int | None:
        """
        Wait until the worker has ended.

        Returns
        -------
        int or None
            Exit status, negative for a signal; None where only another parent learns that.
        """
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(self._fd, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._fd)
        return None if self._child is None else self._child.wait()

    def kill(self) -> None:
        """Kill the worker; never another process that has got the number since."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def close(self) -> None:
        """Release the handle; the worker goes on."""
        os.close(self._fd)
        if self._child is not None and self._child.returncode is None:
            self._child.returncode = 0  # else Python complains that it still runs


class DetachedStarter:
    """
    Starts detached workers, each in a new session.

    Parameters
    ----------
    terms
        Settings common to all workers.
    living
        Processes of workers that run already, by name; see
        :func:`bursar.dispatch.orphans.workers_of`.
    """

    def __init__(self, terms: WorkerSpec, living: Mapping[str, int] = MappingProxyType({})) -> None:
        self._terms = terms
        self._living = dict(living)
        self._is_known_to_run = False

    async def start(
        self, settings: WorkerSettings, marks: Mapping[str, str], processors: int
    ) -> DetachedProcess:
        """See :class:`bursar.worker.launch.WorkerStarter`."""
        # Here and not in the worker: only the service may read the key file.
        settings = self._completed(settings)
        if self._other is not None and not self._is_known_to_run:
            # Once, and with a clear error: a worker that cannot load its modules as the account
            # would only be seen to die, again and again.
            await self._try_interpreter(self._other)
        child = self._spawn(marks)
        assert child.stdin is not None
        with child.stdin:
            try:
                # It waits for its settings, and has started nothing.
                if self._terms.groups is not None:
                    self._terms.groups.enter(settings.lease, processors, child.pid)
                with contextlib.suppress(BrokenPipeError):  # it will be seen to be dead
                    child.stdin.write(msgspec.json.encode(settings))
                    child.stdin.flush()
                return DetachedProcess(child.pid, child)
            except BaseException:
                # It has no settings, and nobody would ever end it.
                child.kill()
                child.wait()
                raise

    def adopt(self, name: str, run: str) -> DetachedProcess | None:
        """See :class:`bursar.worker.launch.WorkerStarter`."""
        pid = self._living.pop(name, None)
        if pid is None:
            return None
        try:
            process = DetachedProcess(pid)
        except OSError:  # it has ended meanwhile
            return None
        # Asked after the descriptor is open: from here on the process cannot become another one.
        if is_worker(pid, run, name):
            return process
        process.close()
        return None

    async def clear(self, lease: str) -> None:
        """See :class:`bursar.worker.launch.WorkerStarter`."""
        if self._terms.groups is not None:
            await asyncio.to_thread(self._terms.groups.leave, lease)

    @property
    def _other(self) -> UnixAccount | None:
        """Account that workers run as; None where that is the present user."""
        account = self._terms.account
        return None if account is None or account.uid == os.geteuid() else account

    def _completed(self, settings: WorkerSettings) -> WorkerSettings:
        """Return settings completed by the terms common to all workers."""
        terms, other = self._terms, self._other
        settings = msgspec.structs.replace(
            settings, limits=terms.limits, account=other, owner=os.geteuid()
        )
        if other is None or not terms.seal_key:
            return msgspec.structs.replace(settings, seal_key=terms.seal_key)
        try:
            pem = Path(terms.seal_key).read_text()
        except UnicodeDecodeError:
            raise OSError(errno.EINVAL, f"{terms.seal_key} is no PEM file") from None
        except OSError as error:
            reason = f"{terms.seal_key} cannot be read: {error.strerror}"
            raise OSError(error.errno, reason) from None
        return msgspec.structs.replace(settings, seal_pem=pem)

    async def _try_interpreter(self, other: UnixAccount) -> None:
        """
        Check that the account can run the interpreter and load a worker's modules.

        Raises
        ------
        OSError
            When the account cannot.
        """
        terms = self._terms
        program = "import bursar.worker.worker"
        process = await asyncio.create_subprocess_exec(
            *(terms.python, *_AS_OTHER, "-c", program),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={**environment_of(other, os.environ), **terms.environment},
            user=other.uid,
            group=other.gid,
            extra_groups=other.groups,
        )
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise
        if code:
            raise OSError(errno.ENOEXEC, f"{terms.python} cannot load Bursar as {other.name}")
        self._is_known_to_run = True

    def _spawn(self, marks: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        terms = self._terms
        environment = {**environment_of(terms.account, os.environ), **terms.environment, **marks}
        flags = _AS_MYSELF if self._other is None else _AS_OTHER
        complaints = os.open(
            terms.errors or os.devnull, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            return subprocess.Popen(
                (terms.python, *flags, "-m", "bursar.worker.worker"),
                stdin=subprocess.PIPE,
                stdout=complaints,
                stderr=complaints,
                cwd="/",
                env=environment,
                umask=_UMASK,
                start_new_session=True,
            )
        finally:
            os.close(complaints)
