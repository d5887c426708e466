"""The processes of a folder: those that a test cluster started, and what its jobs started."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

PROC = Path("/proc")


def is_running(pid: int) -> bool:
    """Return whether a process has not ended; a zombie counts as ended."""
    return _parent_of(pid) is not None


def start_times(pids: Iterable[int]) -> dict[int, str]:
    """Return each live process's start time in clock ticks, which tells reused numbers apart."""
    return {pid: born for pid in pids if (born := _born(pid)) is not None}


def cluster_processes(
    folder: Path, daemons: Collection[str], *, job: str, setting: Mapping[str, str]
) -> dict[int, str]:
    """
    Return the processes that belong to the cluster of a folder, each with its kind.

    A daemon has a path of the folder on its command line, or works within it: step managers
    rewrite their command lines and environments, but stay where they were started. Processes
    of jobs have the job's number and the cluster's settings in their environment. Whatever
    these started belongs to them. A process that left its parents and emptied its environment
    is not found: no scheduler without control groups finds it either.

    Parameters
    ----------
    folder
        Of the cluster; resolved.
    daemons
        Names of programs.
    job
        Variable that every process of a job has.
    setting
        Variables that say of which cluster it is.

    Returns
    -------
    dict
        Process number to ``"job"`` or the daemon's name. The caller and those it was started
        by are left out, in case they are a job's themselves.
    """
    found: dict[int, str] = {}
    parents: dict[int, int] = {}
    wanted = [f"{name}={value}".encode() for name, value in setting.items()]
    for pid in _pids():
        parent = _parent_of(pid)
        if parent is None:
            continue
        parents[pid] = parent
        name = _text(pid, "comm").strip()
        if name in daemons and is_of(pid, folder):
            found[pid] = name
        else:
            environment = _bytes(pid, "environ").split(b"\0")
            if all(word in environment for word in wanted) and any(
                word.startswith(f"{job}=".encode()) for word in environment
            ):
                found[pid] = "job"
    for pid in parents:
        if pid not in found and any(a in found for a in _ancestors(pid, parents)):
            found[pid] = "job"
    for pid in (os.getpid(), *_ancestors(os.getpid(), parents)):
        found.pop(pid, None)
    return found


def is_of(pid: int, folder: Path) -> bool:
    """Return whether a process works in a folder, or has a path in the folder as argument."""
    if _works_in(pid, folder):
        return True
    inside = f"{folder}/"
    return any(
        word.startswith(inside) or f"={inside}" in word
        for word in _text(pid, "cmdline").split("\0")
    )


def node_processes(found: Mapping[int, str], place: Path, word: str) -> list[int]:
    """
    Return the processes of one node of a cluster.

    Parameters
    ----------
    found
        As :func:`cluster_processes` gave them.
    place
        Folder in which the node's daemons work, and nothing else does.
    word
        In the environment of the node's jobs.
    """
    parents = {pid: _parent_of(pid) or 0 for pid in found}
    managers = [pid for pid, what in found.items() if what != "job" and _works_in(pid, place)]
    jobs = [
        pid
        for pid, what in found.items()
        if what == "job"
        and (
            word.encode() in _bytes(pid, "environ").split(b"\0")
            or not set(managers).isdisjoint(_ancestors(pid, parents))
        )
    ]
    return [*managers, *jobs]


def end(pids: Iterable[int], how: signal.Signals) -> None:
    """Send a signal to processes; ended ones are no error."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)


def kill_until_none(look: Callable[[], Collection[int]], seconds: float = 10.0) -> bool:
    """
    Kill processes until none is found any more; return whether that came about in time.

    One look is not enough: a process may start another one between the look and its end.

    Parameters
    ----------
    look
        Returns the processes that are there.
    seconds
        Time after which it is given up.
    """
    clear_looks = 0

    def none_left() -> bool:
        nonlocal clear_looks
        left = look()
        _kill_groups(left)
        end(left, signal.SIGKILL)
        clear_looks = 0 if left else clear_looks + 1
        # Three clear looks in a row: a process may start another one behind the listing's back.
        return clear_looks == 3

    return wait_until(none_left, seconds)


def _kill_groups(found: Collection[int]) -> None:
    """
    Kill the process groups whose leaders were found.

    A group is killed at one instant: a process that was not found, because it began while others
    were looked at, goes with its group.
    """
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            group = os.getpgid(pid)
            # Never the group of the caller, which may be a job of the very cluster.
            if group in found and group != os.getpgrp():
                os.killpg(group, signal.SIGKILL)


def wait_until(what: Callable[[], bool], seconds: float, step: float = 0.02) -> bool:
    """Poll a condition until true; return False when ``seconds`` have passed."""
    limit = time.monotonic() + seconds
    while not what():
        if time.monotonic() >= limit:
            return False
        time.sleep(step)
    return True


def _pids() -> list[int]:
    return [int(name) for name in os.listdir(PROC) if name.isdigit()]


def _parent_of(pid: int) -> int | None:
    """Return the parent of a process; None when the process has ended, even if not reaped."""
    # The name may hold spaces and brackets; state and parent follow the last one.
    state, _, rest = _text(pid, "stat").rpartition(")")[2].strip().partition(" ")
    return int(rest.split()[0]) if rest and state not in "ZX" else None


def _born(pid: int) -> str | None:
    fields = _text(pid, "stat").rpartition(")")[2].split()
    # Field 22 of stat(5), starttime; the fields before the name are cut off.
    return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else None


def _ancestors(pid: int, parents: Mapping[int, int]) -> list[int]:
    line = []
    while (pid := parents.get(pid, 0)) > 1 and pid not in line:
        line.append(pid)
    return line


def _works_in(pid: int, folder: Path) -> bool:
    try:
        return Path(os.readlink(PROC / str(pid) / "cwd")).is_relative_to(folder)
    except OSError:
        return False


def _text(pid: int, name: str) -> str:
    return _bytes(pid, name).decode(errors="replace")


def _bytes(pid: int, name: str) -> bytes:
    try:
        return (PROC / str(pid) / name).read_bytes()
    except OSError:  # gone meanwhile, or another user's
        return b""
