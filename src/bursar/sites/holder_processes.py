"""The processes that hold something on a machine, and whether they are still alive."""

import socket
import time
from dataclasses import dataclass
from pathlib import Path

from bursar.dispatch.linux_processes import has_tasks, traces_of
from bursar.sites.shared_leases import abandon
from bursar.sqlite_file import LockWaitingConnection

_LOOKS, _PAUSE = 5, 0.05
"""Looks for tasks of workers that have lost their run, and seconds between two of them."""

_TABLES = ("held", "waiting", "agreements", "demands")


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
        """Whether the process or a child of its workers is alive; takes a moment if none is."""
        if self.is_living:
            return True
        if self.boot != boot_id() or not self.mark:
            return False
        # Tasks of a killed run go on and use the processors: their mark in the environment finds
        # them. Its workers alone use nothing, and wait for whoever resumes the run.
        for _ in range(_LOOKS):
            if has_tasks(self.mark):
                return True
            if not traces_of(self.mark):
                return False
            # A worker may be between two tasks that it had been sent.
            time.sleep(_PAUSE)
        return False


def living_holders(db: LockWaitingConnection) -> set[str]:
    """Return the holders whose processes are alive."""
    holders = (HolderProcess(*row) for row in db.execute("SELECT * FROM holders").fetchall())
    return {process.id for process in holders if process.is_living}


def forget_holder(db: LockWaitingConnection, holder: str, now: int) -> None:
    """Drop all that a holder has, at a moment in ticks; its leases may still be settled."""
    abandon(db, holder, now)
    for table in _TABLES:
        db.execute(f"DELETE FROM {table} WHERE holder = ?", (holder,))
    db.execute("DELETE FROM holders WHERE id = ?", (holder,))


def pass_on(db: LockWaitingConnection, holder: str, heir: str) -> None:
    """Give the processors of a killed process, and the payment for them, to another process."""
    # At once and as a whole: at no moment can a third process take them, or pay for them.
    for table in ("held", "demands", "shared_leases"):
        db.execute(f"UPDATE OR IGNORE {table} SET holder = ? WHERE holder = ?", (heir, holder))


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
