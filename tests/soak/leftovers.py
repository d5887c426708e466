"""Looks for processes that belong to a folder."""

import contextlib
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path


def processes_of(folder: Path, programs: Collection[str] = ()) -> list[int]:
    """
    Return the live processes that name a folder in command line, environment or working folder.

    Parameters
    ----------
    folder
        A path that no other process has to do with.
    programs
        Only processes with one of these words on their command line; empty for all.
    """
    word = os.fsencode(folder)
    wanted = [program.encode() for program in programs]
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            command = Path(f"/proc/{name}/cmdline").read_bytes()
            environment = Path(f"/proc/{name}/environ").read_bytes()
            place = os.fsencode(os.readlink(f"/proc/{name}/cwd"))
            state = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()[0]
        except OSError:
            continue  # gone, or somebody else's
        if state == b"Z" or not any(word in text for text in (command, environment, place)):
            continue
        if not wanted or any(program in command.split(b"\0") for program in wanted):
            found.append(int(name))
    return found


def describe(pids: Collection[int]) -> str:
    """Return the command lines of processes, for a message."""
    said = []
    for pid in pids:
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
            said.append(f"{pid} {command.decode(errors='replace').strip()[:120]}")
    return "; ".join(said)


def kill_all(pids: Collection[int]) -> int:
    """Kill processes; return how many were still there."""
    killed = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            killed += 1
    return killed


def left_over(folder: Path, patience: float) -> list[int]:
    """Return the processes of a folder that do not end within some seconds."""
    give_up = time.monotonic() + patience
    while (found := processes_of(folder)) and time.monotonic() < give_up:
        time.sleep(0.02)
    return found
