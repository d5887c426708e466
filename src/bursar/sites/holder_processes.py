"""The processes that hold something on a machine, and whether they are still alive."""

import socket
from dataclasses import dataclass
from pathlib import Path

from bursar.dispatch.linux_processes import traces_of
from bursar.sqlite_file import LockWaitingConnection


@dataclass(frozen=True, slots=True)
class HolderProcess:
    """A process that holds something, as a row of the owners' book."""

    id: str
    host: str
    boot: str
    pid: int
    started: int
    run: str
    mark: str

    @property
    def is_living(self) -> bool:
        """Whether the process itself is alive; on other machines, presumed so."""
        # Only this machine's /proc can be read. To call a live run of another machine dead would
        # sell its processors twice.
        if self.host != socket.gethostname():
            return True
        # A pid alone may have been given to another process since.
        return self.boot == boot_id() and started_at(self.pid) == self.started

    def is_there(self) -> bool:
        """Whether the process or a child of its workers is alive."""
        # Tasks of a killed run go on for a moment and still use the processors: their mark in the
        # environment finds them.
        return self.is_living or (
            self.boot == boot_id() and bool(self.mark and traces_of(self.mark))
        )


def living_holders(db: LockWaitingConnection) -> set[str]:
    """Return the holders whose processes are alive."""
    holders = (HolderProcess(*row) for row in db.execute("SELECT * FROM holders").fetchall())
    return {process.id for process in holders if process.is_living}


def boot_id() -> str:
    """Return the id of this boot of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def started_at(pid: int) -> int:
    """Return a process's start, in clock ticks since boot; -1 for a zombie or no process."""
    try:
        # The command's name in parentheses may hold spaces and parentheses itself: fields follow
        # the last.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return -1
    return -1 if fields[0] in (b"Z", b"X") else int(fields[19])
