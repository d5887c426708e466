"""Where jobs run, as their first process wrote down, and signals for the processes of jobs."""

import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bursar.model.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """
    Where an element of a job runs.

    Parameters
    ----------
    host
        Name of the machine.
    script
        Process of the script.
    begun
        When the process was started, in the kernel's own unit: tells it from a later one that has
        the same number.
    place
        Folder of the task.
    """

    host: str
    script: int
    begun: str
    place: Path

    @property
    def is_here(self) -> bool:
        """Whether its machine is this one."""
        return self.host == socket.gethostname()

    def steps(self) -> Iterator[tuple[int, str]]:
        """Yield the processes that ``srun`` has started, and when each was."""
        try:
            for path in sorted((self.place / ".steps").iterdir()):
                yield int(path.name), path.read_text().strip()
        except OSError:  # has ended meanwhile
            return

    def send(self, number: int, *, to: Literal["steps", "script", "all"]) -> None:
        """
        Send a signal; processes that have ended get none.

        Parameters
        ----------
        to
            What ``srun`` has started with all below it, the script, or the script and all below
            it.
        """
        processes = list(self.steps()) if to == "steps" else [(self.script, self.begun)]
        if to != "script":
            processes += [one for process, _ in processes for one in _below(process)]
        for process, begun in processes:
            _send(process, begun, number)


def _send(process: int, begun: str, number: int) -> None:
    try:
        # The descriptor stays with the process even when the process's number is given again.
        descriptor = os.pidfd_open(process)
    except OSError:
        return
    try:
        if _begun(process) == begun:
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(descriptor)


def _below(process: int) -> Iterator[tuple[int, str]]:
    """Yield the processes that a process and its children have started."""
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return
    for child in map(int, children):
        yield child, _begun(child)
        yield from _below(child)


def _begun(process: int) -> str:
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return ""
    # The second field, the program's name, may hold anything.
    return text.rpartition(")")[2].split()[19]


def read_running(path: Path) -> RunningJob | None:
    """Read a file that a task wrote; None: it has not begun, or has ended."""
    try:
        host, script, begun, place = path.read_text().rstrip("\n").split(" ", 3)
        return RunningJob(host=host, script=int(script), begun=begun, place=Path(place))
    except (OSError, ValueError):
        return None


def parse_signal_number(word: str) -> int:
    """
    Parse a signal, by name or number.

    Raises
    ------
    InputError
        When it is none.
    """
    name = word.strip().upper().removeprefix("SIG")
    if name.isdecimal() and 0 < int(name) < signal.NSIG:
        return int(name)
    found = signal.Signals.__members__.get(f"SIG{name}")
    if found is None:
        raise InputError(f'expected a signal such as USR1 or 10, got "{word}"', where="--signal")
    return int(found)
