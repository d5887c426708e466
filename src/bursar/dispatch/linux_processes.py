"""Processes on Linux: system calls by ctypes, and processes that a killed worker left behind."""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection, Iterable

# Linux system calls that the standard library does not offer, by way of ctypes.

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
SIGINFO = 128
"""Bytes of one signal as read from a descriptor; its number comes first, four bytes."""

_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Make this process adopt orphaned descendants from now on."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when the parent dies."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def close_memory() -> None:
    """
    Keep other processes of the same user from tracing this one, from now on.

    Memory, environment and descriptors below ``/proc`` belong to the superuser, who alone may
    trace this process (``PR_SET_DUMPABLE``). A program that it starts is open to its user again.
    """
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def signal_descriptor(numbers: Iterable[signal.Signals]) -> int:
    """
    Return a descriptor that becomes readable when one of these signals arrives.

    The signals are blocked: no handler runs, and no system call is interrupted.
    One that arrives again before it was read is there once.

    Raises
    ------
    OSError
        When the kernel refuses.
    """
    numbers = list(numbers)
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    mask = (ctypes.c_ulong * 16)()
    bits = 8 * ctypes.sizeof(ctypes.c_ulong)
    for number in numbers:
        mask[(number - 1) // bits] |= 1 << ((number - 1) % bits)
    fd = _libc.signalfd(-1, ctypes.byref(mask), os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "signalfd")
    return int(fd)


def children() -> list[int]:
    """Return the processes whose parent is the calling thread's process, zombies included."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:  # a kernel without that file
        return []


def child_processes(pid: int) -> list[int]:
    """Return the processes that any thread of a process has started, zombies included."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += [int(child) for child in file.read().split()]
    except OSError:  # it has ended meanwhile
        pass
    return found


# Processes that a killed worker left behind, found by the mark in their environment.

RUN = "BURSAR_RUN"
WORKER = "BURSAR_WORKER"
TASK = "BURSAR_TASK"

PILOT = "BURSAR_PILOT"
"""Variable of a pilot that ssh has started, and of all that the pilot starts."""

_PROGRAM = b"bursar.worker.worker"


def kill_leftovers(
    run: str,
    worker: str | None = None,
    *,
    spared: Collection[str] = (),
    patience: float = 5.0,
    variable: str = RUN,
) -> int:
    """
    Kill the processes of a run, or of one worker of the run, and wait until all are gone.

    A program that hides its environment is not found.

    Parameters
    ----------
    worker
        Name of the worker; None for all of the run.
    spared
        Names of workers that are left alone, with all that they have started.
    patience
        Seconds to wait for them to be gone.
    variable
        Environment variable that holds the run's mark.
    """
    marks = [f"{variable}={run}".encode()]
    if worker is not None:
        marks.append(f"{WORKER}={worker}".encode())
    killed = 0
    give_up = time.monotonic() + patience
    # Until none is found: a process may have forked between the look and the kill.
    while found := [
        pid for pid in _marked(marks) if not spared or _mark(pid, WORKER) not in spared
    ]:
        if time.monotonic() > give_up:
            break
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
        time.sleep(0.01)
    return killed


def kill_descendants() -> None:
    """Kills every child of a process that adopts orphans, until there is none."""
    while found := children():
        # Killed children leave their own children to this process, so the list is read anew.
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)


def task_of(pid: int) -> int | None:
    """Return the number of a process's task; None when the environment does not name one."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read().split(b"\0")
    except OSError:
        return None
    mark = f"{TASK}=".encode()
    for entry in environment:
        if entry.startswith(mark) and entry[len(mark) :].isdigit():
            return int(entry[len(mark) :])
    return None


def workers_of(run: str) -> dict[str, int]:
    """
    Return the processes of a run's live workers, by name of the worker.

    Processes that workers started bear the same marks, but run another program.
    """
    names = {pid: _worker_name(pid) for pid in _marked([f"{RUN}={run}".encode()])}
    return {
        name: pid
        for pid, name in names.items()
        # A child that has not begun its own program yet looks like the worker that forked it.
        if name and names.get(_parent(pid)) != name
    }


def traces_of(run: str) -> set[str]:
    """Return names of a run's workers that run, or that left processes behind."""
    names = set()
    for pid in _marked([f"{RUN}={run}".encode()]):
        name = _mark(pid, WORKER)
        if name:
            names.add(name)
    return names


def has_tasks(run: str) -> bool:
    """Whether something runs that workers of a run have started; idle workers do not count."""
    return any(not _worker_name(pid) for pid in _marked([f"{RUN}={run}".encode()]))


def is_worker(pid: int, run: str, name: str) -> bool:
    """Whether that process is the worker of that name."""
    return _has_marks(str(pid), [f"{RUN}={run}".encode()]) and _worker_name(pid) == name


def _parent(pid: int) -> int:
    """Return the parent of a process; 0 when the process has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # From the last parenthesis: the program's name before it may hold spaces and
            # parentheses.
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


def _worker_name(pid: int) -> str:
    """Return the name of the worker that a process is; empty when the process is no worker."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            is_worker = _PROGRAM in file.read().split(b"\0")
    except OSError:
        return ""
    return _mark(pid, WORKER) if is_worker else ""


def _mark(pid: int, name: str) -> str:
    """Return an environment variable of a process; empty when that is not set."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read().split(b"\0")
    except OSError:
        return ""
    mark = f"{name}=".encode()
    found = (entry[len(mark) :] for entry in environment if entry.startswith(mark))
    return next(found, b"").decode(errors="replace")


def _marked(marks: list[bytes]) -> list[int]:
    own = os.getpid()
    names = (name for name in os.listdir("/proc") if name.isdigit() and int(name) != own)
    return [int(name) for name in names if _has_marks(name, marks)]


def _has_marks(process: str, marks: list[bytes]) -> bool:
    try:
        with open(f"/proc/{process}/environ", "rb") as file:
            environment = file.read().split(b"\0")
        with open(f"/proc/{process}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0]
    except OSError:
        return False  # gone, or another user's
    # A zombie cannot be killed, and only waits for its parent.
    return state != b"Z" and all(mark in environment for mark in marks)
