"""Detached workers go on when their starter is gone; control groups confine their processes."""

import asyncio
import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import msgspec

from bursar.dispatch.linux_processes import is_worker
from bursar.worker.accounts import ResourceLimits, UnixAccount, environment_of
from bursar.worker.dispatcher_connection import WorkerSettings

# Control groups (version 2), which hold the processes of a lease to their processors.

PROCESS_INFO = Path("/proc/self")
"""Folder with the files that name a process's control group and the mount point."""

_PERIOD = 100_000  # microseconds in which a group may use so many of processor time
_CONTROLLERS = ("cpu", "memory", "pids")
_SUPERVISOR = "supervisor"  # a group with groups in it cannot have processes of its own
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_RETRY_INTERVAL = 0.02  # seconds
_PATIENCE = 5.0  # seconds for killed processes to be gone


class ControlGroups:
    """
    Control groups of leases, each of which limits processes to the lease's processors.

    Parameters
    ----------
    base
        Folder of the group in which they are made; it has the controllers.
    memory
        Bytes that the processes of a lease may use for each of its processors; None: no limit.
    """

    def __init__(self, base: Path, memory: int | None = None) -> None:
        self._base = base
        self._memory = memory

    def enter(self, lease: str, processors: int, pid: int) -> None:
        """
        Put a process into the group of a lease; a missing group is made.

        Raises
        ------
        OSError
            When the kernel refuses.
        """
        group = self._folder(lease)
        with contextlib.suppress(FileExistsError):
            group.mkdir()
        (group / "cpu.max").write_text(f"{processors * _PERIOD} {_PERIOD}")
        if self._memory is not None:
            (group / "memory.max").write_text(str(processors * self._memory))
        # After the limits, so that the process is never without them.
        (group / "cgroup.procs").write_text(str(pid))

    def leave(self, lease: str) -> None:
        """
        Kill the processes of a lease's group and remove the group, if there is one. May wait.

        Raises
        ------
        OSError
            When processes do not end.
        """
        group = self._folder(lease)
        if not group.is_dir():
            return
        (group / "cgroup.kill").write_text("1")
        give_up = time.monotonic() + _PATIENCE
        while True:
            try:
                # Busy until the kernel has buried the processes, which takes a moment after the
                # kill.
                group.rmdir()
            except OSError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(_RETRY_INTERVAL)
            else:
                return

    def _folder(self, lease: str) -> Path:
        return self._base / f"lease-{_UNSAFE.sub('_', lease)}"


def open_control_groups(
    notify: Callable[[str], None], *, memory: int | None = None, info: Path = PROCESS_INFO
) -> ControlGroups | None:
    """
    Open control groups below this process's own, which must have been delegated to the process.

    Under systemd that is what ``Delegate=cpu memory pids`` of a unit does. This process goes into
    a group of its own there.

    Parameters
    ----------
    notify
        Called with one line that says why there are no control groups.
    memory
        Bytes for each processor; see :class:`ControlGroups`.
    info
        Folder of ``/proc`` that names the present group.

    Returns
    -------
    ControlGroups or None
        None where the kernel or the administrator does not allow it.
    """
    try:
        base = _own_group(info)
        missing = set(_CONTROLLERS) - set((base / "cgroup.controllers").read_text().split())
        if missing:
            raise OSError(f"{base} does not have the controllers {', '.join(sorted(missing))}")
        own = base / _SUPERVISOR
        with contextlib.suppress(FileExistsError):
            own.mkdir()
        # Controllers can be handed down only by a group without processes (cgroups(7), "no internal
        # processes").
        (own / "cgroup.procs").write_text(str(os.getpid()))
        (base / "cgroup.subtree_control").write_text(" ".join(f"+{c}" for c in _CONTROLLERS))
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.strerror else str(error)
        notify(f"workers are not held to their processors by control groups: {reason}")
        return None
    return ControlGroups(base, memory)


def _own_group(info: Path) -> Path:
    """Return the folder of the group of version 2 that this process was started in."""
    path = next(
        (line[3:] for line in (info / "cgroup").read_text().splitlines() if line[:3] == "0::"),
        None,
    )
    mount = next(
        (
            line.split()[4]
            for line in (info / "mountinfo").read_text().splitlines()
            if " - cgroup2 " in line
        ),
        None,
    )
    if path is None or mount is None:
        raise OSError("there are none of version 2 here")
    group = Path(mount) / path.lstrip("/")
    return group.parent if group.name == _SUPERVISOR else group


# Detached workers: processes that go on when the starter is gone, and are found again.

_UMASK = 0o077

_AS_MYSELF = ("-P",)  # nothing from where it happens to be
_AS_OTHER = ("-P", "-s", "-B")
"""Options of an interpreter for another account, which root may start: nothing is loaded from the
account's home, and no compiled modules that only root could read are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """
    Settings that detached workers have in common.

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
    inherits
        Whether workers and tasks get all variables, the file mode creation mask and the working
        directory of this process; otherwise what every user has, a closed mask and the root folder.
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
    inherits: bool = False
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
        if self._child is not None and self._child.poll() is None:
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
        :func:`bursar.dispatch.linux_processes.workers_of`.
    """

    def __init__(self, terms: WorkerSpec, living: Mapping[str, int] = MappingProxyType({})) -> None:
        self._terms = terms
        self._living = dict(living)
        self._is_known_to_run = False

    async def start(
        self, settings: WorkerSettings, marks: Mapping[str, str], processors: int
    ) -> DetachedProcess:
        """Start a worker."""
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

    def expect(self, living: Mapping[str, int]) -> None:
        """Adopt these workers, processes by name, when they are asked for."""
        self._living.update(living)

    def adopt(self, name: str, run: str) -> DetachedProcess | None:
        """Return the worker of that name and run that an earlier process started, or None."""
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
        """Remove what is left of a lease that has no worker any more."""
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
            settings,
            limits=None if terms.inherits else terms.limits,
            account=other,
            owner=os.geteuid(),
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
        own = os.environ if terms.inherits else environment_of(terms.account, os.environ)
        environment = {**own, **terms.environment, **marks}
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
                cwd=None if terms.inherits else "/",
                env=environment,
                umask=-1 if terms.inherits else _UMASK,
                # No SIGHUP comes when the terminal is gone, and no SIGINT from its keys.
                start_new_session=True,
            )
        finally:
            os.close(complaints)
