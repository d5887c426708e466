"""Control groups (version 2), which hold the processes of a lease to their processors."""

import contextlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

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
