"""Processes that a killed worker left behind, found by the mark in their environment."""

import contextlib
import os
import signal
import time

from bursar.dispatch.linux import children

RUN = "BURSAR_RUN"
WORKER = "BURSAR_WORKER"
TASK = "BURSAR_TASK"

_PROGRAM = b"bursar.worker.worker"


def kill_leftovers(run: str, worker: str | None = None, *, patience: float = 5.0) -> int:
    """
    Kill the processes of a run, or of one worker of the run, and wait until all are gone.

    A program that hides its environment is not found.

    Parameters
    ----------
    run
        Identity of the run.
    worker
        Name of the worker; None for all of the run.
    patience
        Seconds to wait for them to be gone.

    Returns
    -------
    int
        Number of kills.
    """
    marks = [f"{RUN}={run}".encode()]
    if worker is not None:
        marks.append(f"{WORKER}={worker}".encode())
    killed = 0
    give_up = time.monotonic() + patience
    # Until none is found: a process may have forked between the look and the kill.
    while found := _marked(marks):
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
