"""
Memory of tasks, held to what they state: by control groups, else by watching and killing.

The kernel holds a control group of version 2 to its limit exactly. Such groups may be made only
where one was delegated (systemd's ``Delegate=``, a container's own group). Elsewhere the worker
reads ``/proc`` some times a second, so that a task may exceed its memory for that long.
"""

import contextlib
import math
import os
from collections.abc import Iterable
from pathlib import Path

from bursar.dispatch.linux_processes import child_processes, children, task_of
from bursar.worker.worker_memory import GROUP, GROUPS, control_groups

LOOK = 0.1
"""Seconds between two looks at the memory of tasks, at least."""

_SHARE = 0.02  # of the worker's time that looks may take, at most
_PAGE = os.sysconf("SC_PAGE_SIZE")

_ENTER = 'echo $$ > "$0" && exec "$@"'
"""Line by which a shell enters a control group before it becomes the program: nothing that the
program starts can be outside. posix_spawn(3) knows no groups."""


def over_memory(used: int, limit: int) -> str:
    """Return the reason of a task that was killed for its memory; both in bytes."""
    # Seldom wanted; a worker loads little.
    from bursar.formats.units import rounded_size

    had, allowed = rounded_size(used), rounded_size(limit)
    return f"used {'more than ' if had == allowed else ''}{had}, memory allows {allowed}"


# Watching.


def used_memory(processes: Iterable[int], limit: int) -> int:
    """
    Return the memory of some processes together, bytes.

    Up to the limit the resident sets are added, which is quick and counts what processes share
    several times. Above the limit each process is asked in full: shared memory is divided among
    those that share the memory, and files that are only mapped do not count, since the kernel takes
    their pages back when it needs some.
    """
    found = list(processes)
    quick = sum(_resident(pid) for pid in found)
    return quick if quick <= limit else sum(_own(pid) for pid in found)


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError):  # it has ended
        return 0


def _own(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            lines = [line.split() for line in file.readlines()[1:]]
    except OSError:  # it has ended, or is another user's
        return _resident(pid)
    sizes = {line[0]: int(line[1]) * 1024 for line in lines if len(line) > 1}
    if b"Pss:" not in sizes:
        return _resident(pid)
    return sizes[b"Pss:"] - sizes.get(b"Pss_File:", 0)


def processes_of_tasks(leaders: Iterable[int]) -> dict[int, list[int]]:
    """
    Return the processes of tasks, by the task's leading process.

    Descendants in whatever process group or session, and those that the worker has adopted, which
    are recognised by the task's number in their environment.

    Parameters
    ----------
    leaders
        Leading processes of all tasks of this worker, each a child of this process.
    """
    found = {pid: _with_descendants(pid) for pid in leaders}
    adopted = [pid for pid in children() if pid not in found]
    if adopted:
        numbers = {task_of(pid): pid for pid in found}
        for pid in adopted:
            number = task_of(pid)
            if number is not None and number in numbers:
                found[numbers[number]] += _with_descendants(pid)
    return found


def _with_descendants(pid: int) -> list[int]:
    found = [pid]
    for one in found:  # grows while it is gone through
        found += child_processes(one)
    return found


class MemoryWatch:
    """When to look at the memory of tasks next: seldom enough that looks cost little."""

    def __init__(self) -> None:
        self._next = math.inf

    def begin(self, now: float) -> None:
        """Look soon, since a task that states its memory has begun; ``now`` in seconds."""
        self._next = min(self._next, now + LOOK)

    def seconds_left(self, now: float) -> float:
        """Return the seconds until the next look; infinite where no task needs one."""
        return max(0.0, self._next - now)

    def looked(self, now: float, took: float, *, again: bool) -> None:
        """Note a look that took some seconds; ``again``: there are tasks to look at."""
        self._next = now + max(LOOK, took / _SHARE) if again else math.inf


# Control groups.


class MemoryGroup:
    """The control group of one attempt."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._limit = limit

    def entering(self, path: str, argv: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
        """Return the program and the arguments that enter the group and start a program there."""
        into = str(self._folder / "cgroup.procs")
        return "/bin/sh", ("/bin/sh", "-c", _ENTER, into, path, *argv[1:])

    def take_in(self, pid: int) -> None:
        """
        Move a process that runs already into the group; what it uses from now on counts.

        Raises
        ------
        OSError
            When the kernel refuses.
        """
        (self._folder / "cgroup.procs").write_text(str(pid))

    def excess(self) -> str | None:
        """Return why the kernel has killed the group; None where it has not."""
        events = _numbers(self._folder / "memory.events")
        if not events.get("oom_kill") and not events.get("oom_group_kill"):
            return None
        peak = _number(self._folder / "memory.peak") or self._limit
        # The kernel lets no byte above the limit: the peak is what was had, not what was asked for.
        return over_memory(max(peak, self._limit), self._limit)

    def close(self) -> None:
        """Kill what is left in the group, and remove the group."""
        with contextlib.suppress(OSError):
            (self._folder / "cgroup.kill").write_text("1")
        # Dying processes hold the group for a moment; then the folder stays, empty, and the next
        # run's worker of that name takes it.
        with contextlib.suppress(OSError):
            self._folder.rmdir()


class MemoryGroups:
    """
    Makes a control group for each attempt that states its memory.

    Parameters
    ----------
    folder
        Folder of a group that was delegated to this user and hands the memory controller on.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of_attempt(self, task: int, attempt: int, limit: int) -> MemoryGroup:
        """Make a group of this process for an attempt; see :meth:`make`."""
        return self.make(f"bursar-{os.getpid()}-{task}-{attempt}", limit)

    def make(self, name: str, limit: int) -> MemoryGroup:
        """
        Make a group that may hold so many bytes, swap included.

        Raises
        ------
        OSError
            When the kernel refuses.
        """
        folder = self._folder / name
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
        (folder / "memory.max").write_text(str(limit))
        for file, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
            # Absent without swap, and in older kernels, which then kill one process of the group.
            with contextlib.suppress(OSError):
                (folder / file).write_text(value)
        return MemoryGroup(folder, limit)


def memory_groups(group: Path = GROUP, groups: Path = GROUPS) -> MemoryGroups | None:
    """
    Return the maker of control groups for tasks, or None where tasks have to be watched.

    Only the process's own group and the one around it are tried, and only where one was delegated:
    systemd marks such groups, and the outermost of a container is the container's own. Others
    belong to whoever manages them, even where this user may write there.
    """
    for folder in list(control_groups(group, groups))[:2]:
        if _is_delegated(folder, folder == groups) and _hands_on_memory(folder):
            return MemoryGroups(folder)
    return None


def _is_delegated(folder: Path, outermost: bool) -> bool:
    if not all(
        os.access(folder / name, os.W_OK) for name in ("", "cgroup.procs", "cgroup.subtree_control")
    ):
        return False
    # The root of the whole machine has no limit of its own, that of a container has.
    if outermost:
        return (folder / "memory.max").exists()
    for name in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    return False


def _hands_on_memory(folder: Path) -> bool:
    """Whether groups within a group get the memory controller, which is asked for if need be."""
    control = folder / "cgroup.subtree_control"
    try:
        if "memory" in control.read_text().split():
            return True
        if "memory" not in (folder / "cgroup.controllers").read_text().split():
            return False
        # Refused while the group holds processes itself ("no internal processes").
        control.write_text("+memory")
    except OSError:
        return False
    return True


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _numbers(path: Path) -> dict[str, int]:
    """Return the file's lines of a name and a number."""
    try:
        pairs = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
