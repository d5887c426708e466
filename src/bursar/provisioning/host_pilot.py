"""
The program that a site of kind ``"ssh"`` runs at its hosts: a look at the host, and a pilot.

A pilot lives as long as the program's standard input is open, which is as long as the ssh
connection lives and the run's process at its other end: nothing is left at the host, and no file is
written, as the credential comes through standard input. Where the host does not see the run's
folder, :mod:`bursar.sites.ssh_carrier` takes the pilot's place.

    python -m bursar.provisioning.host_pilot inspect MARK PROCESSORS TOKEN
    python -m bursar.provisioning.host_pilot hold PROCESSORS < credential, one line
"""

import contextlib
import fcntl
import hashlib
import os
import select
import signal
import stat
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from bursar.dispatch.credential import decode_credential
from bursar.dispatch.folders import remove_tree
from bursar.dispatch.linux_processes import (
    PILOT,
    adopt_orphans,
    end_with_parent,
    kill_descendants,
    kill_leftovers,
)
from bursar.model.errors import InputError
from bursar.provisioning.pilot import GIVEN_UP, PROCESSORS, PilotSupervisor, processors_here
from bursar.version import VERSION
from bursar.worker.worker_memory import (
    GROUP,
    GROUPS,
    available_memory,
    control_groups,
    memory_limit,
)

LONGEST = 1 << 16
"""Bytes of a credential, at most."""

_ENDS_WITHIN = 8.0  # seconds, of a pilot that is told to end: a little more than it takes

# A look at the host.


class HostReport(msgspec.Struct, frozen=True, kw_only=True):
    """
    A host's report on itself.

    Parameters
    ----------
    version
        Version of this package at the host.
    processors
        Processors that programs of this user may use there.
    free
        Those of them that no run holds which keeps them from others.
    memory, available
        Bytes of the host or of the control group, and bytes that are free; None: unknown.
    sees_folder
        Whether the run's folder is seen there, and may be written to.
    """

    version: str
    processors: int
    free: int
    memory: int | None
    available: int | None
    sees_folder: bool


def processor_limit(group: Path = GROUP, groups: Path = GROUPS) -> int:
    """Return the processors that this process may use, by affinity and control groups."""
    found = float(len(os.sched_getaffinity(0)))
    for folder in control_groups(group, groups):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
            found = min(found, int(quota) / int(period))
        except (OSError, ValueError, ZeroDivisionError):
            pass  # the outermost has none; "max" is no number
    return max(1, int(found))


def scratch_prefix(mark: str) -> str:
    """Return how the names of a run's scratch folders at a host begin."""
    return f"bursar-carried-{os.getuid()}-{hashlib.sha256(mark.encode()).hexdigest()[:16]}-"


def inspect_host(mark: str, processors: int, token: str) -> HostReport:
    """
    Report what this host has, after ending what an earlier process of a run left here.

    Parameters
    ----------
    mark
        Mark in the environment of the run's processes; empty: nothing is ended.
    processors
        Number of processors to be used here; 0: all.
    token
        File in the run's folder with a name that no other folder has; empty: there is none.
    """
    if mark:
        kill_leftovers(mark, variable=PILOT)
        for left in Path(tempfile.gettempdir()).glob(f"{scratch_prefix(mark)}*"):
            remove_tree(str(left))
    most = processors or processor_limit()
    return HostReport(
        version=VERSION,
        processors=most,
        free=ProcessorClaim().count_free(most),
        memory=memory_limit()[0],
        available=available_memory(),
        sees_folder=not token or os.access(token, os.R_OK | os.W_OK),
    )


# Processors that runs of one user keep from each other.


def claims_file() -> str:
    """Return the file whose bytes stand for the processors of this host, for this user's runs."""
    return f"/tmp/bursar-processors-{os.getuid()}"


class ProcessorClaim:
    """
    Processors of this host that this process keeps from other runs of the user.

    Each processor is a byte of one file, which the holder has locked (POSIX record locks), so that
    the kernel gives back what a killed process held. The last holder removes the file.

    Parameters
    ----------
    path
        The file; None: see :func:`claims_file`.
    """

    def __init__(self, path: str | None = None) -> None:
        self._path = path or claims_file()
        self._file = -1
        self._total = 0

    def take(self, wanted: int, total: int) -> bool:
        """
        Lock processors; return whether as many as are wanted were free, else none are locked.

        Parameters
        ----------
        total
            Number of processors of the host.

        Raises
        ------
        InputError
            When the file is somebody else's, or cannot be opened.
        """
        self._open(total)
        taken = 0
        for processor in range(total):
            taken += taken < wanted and self._lock(processor)
        if taken < wanted:
            self.release()
            return False
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _TURN)
        return True

    def count_free(self, total: int) -> int:
        """Return how many of the processors no run keeps; errors as of :meth:`take`."""
        self._open(total)
        free = sum(self._lock(processor) for processor in range(total))
        self.release()
        return free

    def release(self) -> None:
        """Give the processors back, and remove the file if nobody else has any."""
        if self._file < 0:
            return
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, _TURN)
        # Only who has every byte may remove the file: another holder's locks would be lost. Also
        # bytes beyond our total: others may count more processors.
        with contextlib.suppress(OSError):
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, _TURN, 0)
            os.unlink(self._path)
        os.close(self._file)  # which ends all locks of this process
        self._file = -1

    def _open(self, total: int) -> None:
        """Open the file, and lock the byte without which no processor may be chosen."""
        self._total = total
        while True:
            try:
                file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                raise InputError(f"cannot be opened: {error.strerror}", where=self._path) from None
            found = os.fstat(file)
            if found.st_uid != os.geteuid() or not stat.S_ISREG(found.st_mode):
                os.close(file)
                raise InputError("is not this user's file", where=self._path)
            fcntl.lockf(file, fcntl.LOCK_EX, 1, _TURN)
            try:
                # Whoever had it before may have removed it meanwhile.
                if os.stat(self._path).st_ino == found.st_ino:
                    self._file = file
                    return
            except FileNotFoundError:
                pass
            os.close(file)

    def _lock(self, byte: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except OSError:
            return False
        return True


_TURN = 1 << 30
"""Byte that is locked while processors are chosen, so that two do not each get half."""

# A pilot that lives as long as standard input is open.


def read_line(file: int) -> bytes:
    """Read the first line of a descriptor, byte for byte so that nothing after it is taken."""
    line = bytearray()
    while len(line) < LONGEST:
        one = os.read(file, 1)
        if not one or one == b"\n":
            break
        line += one
    return bytes(line)


def hold(total: int) -> int:
    """
    Run a pilot until it ends or standard input is closed; return the exit status.

    Parameters
    ----------
    total
        Processors of this host, where runs keep processors from each other; 0: they do not.
    """
    credential = decode_credential(read_line(0), "standard input")
    processors = processors_here(credential, os.environ.get(PROCESSORS, ""))
    claim = ProcessorClaim()
    if total and not claim.take(processors, total):
        print(f"other runs hold its processors, {processors} are not free", file=sys.stderr)
        return GIVEN_UP
    try:
        return _supervise(PilotSupervisor(credential, processors))
    finally:
        claim.release()


def _supervise(pilot: PilotSupervisor) -> int:
    """Run a pilot in a session of its own; end it, and all that it started, with our input."""
    adopt_orphans()
    parent = os.getpid()
    process = os.fork()
    if process == 0:
        code = 1
        try:
            os.setsid()
            end_with_parent(signal.SIGTERM)
            # The parent may have died before the line above took effect.
            if os.getppid() == parent:
                os.dup2(os.open(os.devnull, os.O_RDWR), 0)
                code = pilot.run()
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    ended = os.pidfd_open(process)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(0, select.POLLIN)
    killed_at: float | None = None
    while True:
        left = None if killed_at is None else max(0.0, 1000 * (killed_at - time.monotonic()))
        ready = {file for file, _ in poll.poll(left)}
        if ended in ready:
            break
        if 0 in ready and not os.read(0, LONGEST):
            poll.unregister(0)
            os.kill(process, signal.SIGTERM)
            killed_at = time.monotonic() + _ENDS_WITHIN
        elif not ready:
            os.kill(process, signal.SIGKILL)
            killed_at = None
    _, status = os.waitpid(process, 0)
    kill_descendants()  # what it left behind became ours
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def main() -> int:
    """Run the program; return the exit status."""
    for number in (signal.SIGINT, signal.SIGHUP):
        # The end of the session is seen at standard input, and everything is ended in order.
        signal.signal(number, signal.SIG_IGN)
    try:
        match sys.argv[1:]:
            case ["inspect", mark, processors, token]:
                report = inspect_host(mark, int(processors), token)
                sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
                return 0
            case ["hold", total]:
                return hold(int(total))
        raise InputError("expected inspect MARK PROCESSORS TOKEN, or hold PROCESSORS")
    except (InputError, ValueError) as error:
        print(f"pilot: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
