"""Worker processes that go on when the process that started them is gone, and are found again."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from bursar.dispatch.accounts import Account, environment_of
from bursar.dispatch.confinement import ControlGroups
from bursar.dispatch.limits import ResourceLimits
from bursar.dispatch.orphans import is_worker
from bursar.dispatch.settings import Settings

_UMASK = 0o077


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """
    What a service's workers are like.

    Parameters
    ----------
    account
        That they and their tasks run as; None: the service's own.
    limits
        Of each process.
    groups
        Hold a lease's processes to its processors; None: nothing does.
    seal_key
        Path of the file that they open sealed tasks with; empty: they open none.
    environment
        Variables that they and their tasks have, beside what every user has.
    python
        Interpreter, which the account must be able to run.
    errors
        Path of the file in which they complain; empty: nobody hears it.
    """

    account: Account | None = None
    limits: ResourceLimits = field(default_factory=ResourceLimits)
    groups: ControlGroups | None = None
    seal_key: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable
    errors: str = ""


class LastingProcess:
    """
    A worker that nobody's end ends.

    Parameters
    ----------
    pid
        Its process.
    child
        Where this process has started it; None: an earlier one did.

    Raises
    ------
    OSError
        When it is gone.
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


class LastingStarter:
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

    def __init__(self, terms: Terms, living: Mapping[str, int] = MappingProxyType({})) -> None:
        self._terms = terms
        self._living = dict(living)

    async def start(
        self, settings: Settings, marks: Mapping[str, str], processors: int
    ) -> LastingProcess:
        """See :class:`bursar.dispatch.launch.Starter`."""
        settings = msgspec.structs.replace(
            settings, seal_key=self._terms.seal_key, limits=self._terms.limits
        )
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
                return LastingProcess(child.pid, child)
            except BaseException:
                child.kill()
                child.wait()
                raise

    def adopt(self, name: str, run: str) -> LastingProcess | None:
        """See :class:`bursar.dispatch.launch.Starter`."""
        pid = self._living.pop(name, None)
        if pid is None:
            return None
        try:
            process = LastingProcess(pid)
        except OSError:  # it has ended meanwhile
            return None
        if is_worker(pid, run, name):
            return process
        process.close()
        return None

    async def clear(self, lease: str) -> None:
        """See :class:`bursar.dispatch.launch.Starter`."""
        if self._terms.groups is not None:
            await asyncio.to_thread(self._terms.groups.leave, lease)

    def _spawn(self, marks: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        terms, account = self._terms, self._terms.account
        environment = {**environment_of(account, os.environ), **terms.environment, **marks}
        if account is not None and account.uid == os.geteuid():
            account = None  # it is who we are already
        complaints = os.open(
            terms.errors or os.devnull, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            return subprocess.Popen(
                (terms.python, "-P", "-m", "bursar.dispatch.worker"),
                stdin=subprocess.PIPE,
                stdout=complaints,
                stderr=complaints,
                cwd="/",
                env=environment,
                umask=_UMASK,
                start_new_session=True,
                user=None if account is None else account.uid,
                group=None if account is None else account.gid,
                extra_groups=None if account is None else account.groups,
            )
        finally:
            os.close(complaints)
