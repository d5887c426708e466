"""
Starting programs and hearing of their end, with as little work as possible.

``os.posix_spawn`` starts a program by vfork(2): the same loop with prepared structures and the C
function itself was no faster. ``os.wait4`` makes a tuple of sixteen figures of which three are
wanted, so that C function is called with structures that are made once.
"""

import contextlib
import ctypes
import os
import signal
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_libc = ctypes.CDLL(None, use_errno=True)

_ALL = tuple(int(number) for number in signal.valid_signals())
"""All signals, reset to what programs expect: Python, the worker or the shell behind them, as for
a command in the background, may ignore some. To reset all takes the child one system call for each;
of a signal that is not named the C library first asks the child what became of the signal."""


class ProcessUsage(NamedTuple):
    """Processor seconds of a process in user and kernel mode, and peak memory in bytes."""

    user: float
    system: float
    max_rss: int


class Spawner:
    """
    Starts programs, each in a separate process group.

    Parameters
    ----------
    environment
        Variables that every program gets.
    varying
        Names of further ones whose values each call of :meth:`spawn` gives.
    """

    def __init__(self, environment: Mapping[str, str], varying: Sequence[str]) -> None:
        # In bytes, or each start would encode all of them again.
        self._base = _encoded(environment)
        self._varying = [os.fsencode(name) for name in varying]
        self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def spawn(
        self,
        path: str,
        argv: Sequence[str],
        values: Sequence[bytes],
        more: dict[str, str],
        stdout: int,
        stderr: int,
        stdin: int | None = None,
    ) -> int:
        """
        Start a program in the present working directory, with no signal blocked.

        Parameters
        ----------
        path
            Path of the program.
        argv
            Arguments, the first one the name of the program.
        values
            Values of the varying variables, in the order of their names.
        more
            Variables that only some programs get; they win over the others.
        stdout, stderr
            File descriptors that the program writes to.
        stdin
            File descriptor that the program reads from; None: an empty file.

        Returns
        -------
        int
            Process id.

        Raises
        ------
        OSError
            When it cannot be started.
        ValueError
            When a word holds a zero byte, or the name of a variable is empty or holds ``=``.
        """
        return os.posix_spawn(
            path,
            tuple(argv),
            {
                **self._base,
                **dict(zip(self._varying, values, strict=True)),
                **(_encoded(more) if more else {}),
            },
            file_actions=(
                (os.POSIX_SPAWN_DUP2, self._null if stdin is None else stdin, 0),
                (os.POSIX_SPAWN_DUP2, stdout, 1),
                (os.POSIX_SPAWN_DUP2, stderr, 2),
            ),
            # The child leads a group of its own, so that one signal reaches all that it starts.
            setpgroup=0,
            # The worker blocks the signals that it reads from a descriptor, and a child would
            # inherit that.
            setsigmask=(),
            setsigdef=_ALL,
        )

    def close(self) -> None:
        """Release the file descriptor."""
        os.close(self._null)


def _encoded(environment: Mapping[str, str]) -> dict[bytes, bytes]:
    return {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}


class Reaper:
    """Collects children that have ended, with their exit codes and resource usage."""

    def __init__(self) -> None:
        self._status = ctypes.c_int()
        self._usage = _StructRusage()
        self._status_at = ctypes.byref(self._status)
        self._usage_at = ctypes.byref(self._usage)

    def wait(self) -> tuple[int, int, ProcessUsage] | None:
        """
        Return one child that has ended, if there is one; never wait for one.

        Returns
        -------
        tuple or None
            Process id, exit code (negative: the signal that killed the child) and
            resource usage; process 0 when there are children, none of which has
            ended, None when there is no child at all.
        """
        pid = _libc.wait4(-1, self._status_at, os.WNOHANG, self._usage_at)
        # ECHILD: there is no child, neither running nor ended.
        if pid < 0:
            return None
        if pid == 0:
            return _NOBODY
        usage = self._usage
        return (
            pid,
            os.waitstatus_to_exitcode(self._status.value),
            ProcessUsage(
                usage.user_s + 1e-6 * usage.user_us,
                usage.system_s + 1e-6 * usage.system_us,
                # Linux counts in KiB: getrusage(2).
                1024 * usage.max_rss,
            ),
        )


_NOBODY = (0, 0, ProcessUsage(0.0, 0.0, 0))


class _StructRusage(ctypes.Structure):
    """The C ``struct rusage`` of getrusage(2)."""

    _fields_ = (
        ("user_s", ctypes.c_long),
        ("user_us", ctypes.c_long),
        ("system_s", ctypes.c_long),
        ("system_us", ctypes.c_long),
        ("max_rss", ctypes.c_long),
        ("rest", ctypes.c_long * 13),
    )


def how_ended(code: int) -> str:
    """Return in words how a process ended, by its exit code; negative: that of a signal."""
    if code >= 0:
        return f"exited with status {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
