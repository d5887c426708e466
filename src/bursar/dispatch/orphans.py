"""Processes that a killed worker left behind, found by the mark in their environment."""

import contextlib
import os
import signal
import time

from bursar.dispatch.kernel import children

RUN = "BURSAR_RUN"
WORKER = "BURSAR_WORKER"
TASK = "BURSAR_TASK"


def kill_leftovers(run: str, worker: str | None = None, *, patience: float = 5.0) -> int:
    """
    Kills what was started for a run, or by one worker of it, and waits for its end.

    A program that hides its environment escapes this.

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
        How many were killed.
    """
    marks = [f"{RUN}={run}".encode()]
    if worker is not None:
        marks.append(f"{WORKER}={worker}".encode())
    killed = 0
    give_up = time.monotonic() + patience
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
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)


def task_of(pid: int) -> int | None:
    """Number of the task that a process belongs to; None when it does not say."""
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


def _marked(marks: list[bytes]) -> list[int]:
    found = []
    own = os.getpid()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == own:
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                environment = file.read().split(b"\0")
            with open(f"/proc/{name}/stat", "rb") as file:
                state = file.read().rpartition(b")")[2].split()[0]
        except OSError:
            continue  # gone, or somebody else's
        if state != b"Z" and all(mark in environment for mark in marks):
            found.append(int(name))
    return found
