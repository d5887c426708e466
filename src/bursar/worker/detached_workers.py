"""Worker processes that go on when the process that started them is gone, and are found again."""

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
from bursar.worker.accounts import UnixAccount, environment_of
from bursar.worker.confinement import ControlGroups
from bursar.worker.resource_limits import ResourceLimits
from bursar.worker.worker_settings import WorkerSettings

_UMASK = 0o077

_AS_MYSELF = ("-P",)  # nothing from where it happens to be
_AS_OTHER = ("-P", "-s", "-B")
"""Of an interpreter that root starts, too: it loads nothing from the account's home, and leaves
nothing that only root can read beside the modules that it loads."""


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
    A worker process that goes on when the process that started it ends.

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
        self._fd = os.pidfd_open(pid)

    async def wait(self) -> int | None:
        """
        Returns when it has ended.

        Returns
        -------
        int or None
            Its exit status, negative for a signal; None where only its parent learns that.
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
        """Ends it; nothing when it has ended, even if its number is another process's by then."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def close(self) -> None:
        """Lets go of it, as it is."""
        os.close(self._fd)
        if self._child is not None and self._child.returncode is None:
            self._child.returncode = 0  # else Python complains that it still runs


class DetachedStarter:
    """
    Starts such workers, each in a session of its own.

    Parameters
    ----------
    terms
        What they are like.
    living
        Processes of workers that are there already, by name; see
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
        settings = self._completed(settings)
        if self._other is not None and not self._is_known_to_run:
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
        """The account that they run as, if it is not who we are already."""
        account = self._terms.account
        return None if account is None or account.uid == os.geteuid() else account

    def _completed(self, settings: WorkerSettings) -> WorkerSettings:
        """With what the terms say."""
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
        The account can run what a worker goes on with once it is not root any more.

        Raises
        ------
        OSError
            When it cannot.
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
