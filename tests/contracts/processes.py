"""
Processes that a test's commands have left are known by where they work.

Workers outlive their service, and get an environment of their own: no mark of a test's is there.
"""

import os
import signal
from pathlib import Path


def kill_below(folder: Path) -> None:
    """Kill every process that works in a folder or below it, until there is none."""
    while found := [pid for pid in _processes() if _works_below(pid, folder.resolve())]:
        for pid in found:
            _kill(pid)


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def _works_below(pid: int, folder: Path) -> bool:
    """Return whether a process works there; one that has ended works nowhere."""
    try:
        return Path(os.readlink(f"/proc/{pid}/cwd")).is_relative_to(folder)
    except OSError:
        return False


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
