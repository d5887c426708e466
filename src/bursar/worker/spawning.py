"""
Starting programs and hearing of their end, with as little work as possible.

``os.posix_spawn`` of the C library asks the kernel in the child for each of 64 signals what is to
be done about it, twice, maps a stack of its own, and Python writes the whole environment anew for
each program: half as much work again as what a start needs. The C function below
``subprocess.Popen`` starts a child by vfork(2) with half of that. It is no public interface, so
:class:`Spawner` falls back on ``os.posix_spawn`` where it is missing or takes other arguments.

``os.wait4`` makes a tuple of sixteen figures of which three are wanted, so the C function is
called with structures that are made once.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from bursar.dispatch.linux_processes import SIGINFO, signal_descriptor

_libc = ctypes.CDLL(None, use_errno=True)

_fork_exec: Callable[..., int] | None
try:
    from _posixsubprocess import fork_exec as _fork_exec
except ImportError:
    _fork_exec = None

_SETMASK = int(signal.SIG_SETMASK)
_MASK_SIZE = 128  # bytes; glibc's sigset_t, the largest

_RESET = (
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGHUP,
)
"""Signals that Python, the worker or the shell behind them may ignore, as for a command in the
background, and that programs expect to be as usual."""

_ROOM = 64  # bytes; what a child that fails writes: "OSError:", a hexadecimal number, a colon

_NOTHING = "/dev/null/nothing"  # cannot be a program


class ProcessUsage(NamedTuple):
    """Processor seconds of a process in user and kernel mode, and peak memory in bytes."""

    user: float
    system: float
    max_rss: int


class Spawner:
    """
    Starts programs, each in a separate process group and with empty standard input.

    Programs start with no signal blocked. While one is started, no signal is blocked in the calling
    thread either; handlers of those that are otherwise blocked must be prepared for that, see
    :class:`SignalInbox`. Signals of the terminal that this process ignores get a handler that does
    nothing, since an ignored signal would be ignored in the programs, too.

    Parameters
    ----------
    environment
        Variables that every program gets.
    varying
        Names of further ones whose values each call of :meth:`spawn` gives.
    by_vfork
        Whether to start programs by the function below ``subprocess``, where that is possible;
        else by ``os.posix_spawn``. Not by default: on a machine of two processors ``/bin/echo``
        reached 0.54 of a bare loop's rate by that function, and 0.81 by ``os.posix_spawn``, with
        the same processor time.

    Attributes
    ----------
    by_vfork
        Which of the two it is.
    """

    def __init__(
        self, environment: Mapping[str, str], varying: Sequence[str], *, by_vfork: bool = False
    ) -> None:
        self._base = {k: v for k, v in environment.items() if k not in varying}
        self._varying = varying
        self._prefixes = [name.encode() + b"=" for name in varying]
        self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._none_blocked = ctypes.create_string_buffer(_MASK_SIZE)
        self._mask = ctypes.create_string_buffer(_MASK_SIZE)
        _libc.sigemptyset(self._none_blocked)
        self._usual = self._block({})
        self._other: tuple[dict[str, str], list[bytes]] = ({}, self._usual)
        # A child writes here why it could not become the program.
        self._problems = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._problem = ctypes.create_string_buffer(_ROOM)
        self.by_vfork = (
            by_vfork and _fork_exec is not None and _handle_ignored() and self._is_by_vfork()
        )

    def spawn(
        self,
        path: str,
        argv: Sequence[str],
        values: Sequence[bytes],
        more: dict[str, str],
        stdout: int,
        stderr: int,
    ) -> int:
        """
        Starts a program in the present working directory.

        Parameters
        ----------
        path
            Path of the program.
        argv
            Arguments, the first one the name of the program.
        values
            Values of the varying variables, in the order of their names.
        more
            Variables that only some programs get; they go before the others.
        stdout, stderr
            File descriptors that the program writes to.

        Returns
        -------
        int
            Process id.

        Raises
        ------
        OSError
            When it cannot be started.
        ValueError
            When a word holds a zero byte.
        """
        if self.by_vfork:
            return self._vfork(path, argv, values, more, stdout, stderr)
        return self._posix_spawn(path, argv, values, more, stdout, stderr)

    def close(self) -> None:
        """Release the file descriptors."""
        for fd in (self._null, *self._problems):
            os.close(fd)

    def _vfork(
        self,
        path: str,
        argv: Sequence[str],
        values: Sequence[bytes],
        more: dict[str, str],
        stdout: int,
        stderr: int,
    ) -> int:
        environment = self._environment(more)
        place = len(environment) - len(values)
        for prefix, value in zip(self._prefixes, values, strict=True):
            # Written into the list that is there: only these entries differ from task to task.
            environment[place] = prefix + value
            place += 1
        if "\0" in path:
            raise ValueError("embedded null byte")
        assert _fork_exec is not None
        # The child takes over the calling thread's mask.
        _libc.pthread_sigmask(_SETMASK, self._none_blocked, self._mask)
        try:
            pid = _fork_exec(
                argv,
                (os.fsencode(path),),
                False,  # inheritable descriptors stay open, of which there are none
                (),
                None,
                environment,
                self._null,
                -1,
                -1,
                stdout,
                -1,
                stderr,
                *self._problems,
                True,  # SIGPIPE and SIGXFSZ as usual
                False,
                0,  # the child leads a group of its own: one signal reaches all that it starts
                None,
                None,
                None,
                -1,
                None,
                True,  # by vfork
            )
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None
        finally:
            _libc.pthread_sigmask(_SETMASK, self._mask, None)
        # By vfork: by now the child has become the program, or has written down why not.
        size = _libc.read(self._problems[0], self._problem, _ROOM)
        if size > 0:
            os.waitpid(pid, 0)
            number = int(self._problem.raw[:size].split(b":")[1], 16)
            raise OSError(number, os.strerror(number), path)
        return pid

    def _is_by_vfork(self) -> bool:
        """Try whether a child is started by vfork(2), as its failure is known at once."""
        try:
            pid = self._vfork(_NOTHING, (_NOTHING,), [b""] * len(self._prefixes), {}, 1, 2)
        except NotADirectoryError:
            return True
        except (OSError, TypeError, ValueError):
            return False  # no process can be started now, or the function takes other arguments
        os.waitpid(pid, 0)  # by fork(2): it writes down why it fails while this process goes on
        return False

    def _posix_spawn(
        self,
        path: str,
        argv: Sequence[str],
        values: Sequence[bytes],
        more: dict[str, str],
        stdout: int,
        stderr: int,
    ) -> int:
        return os.posix_spawn(
            path,
            tuple(argv),
            {
                **self._base,
                **dict(zip(self._varying, map(os.fsdecode, values), strict=True)),
                **more,
            },
            file_actions=(
                (os.POSIX_SPAWN_DUP2, self._null, 0),
                (os.POSIX_SPAWN_DUP2, stdout, 1),
                (os.POSIX_SPAWN_DUP2, stderr, 2),
            ),
            setpgroup=0,
            setsigmask=(),
            setsigdef=_RESET,
        )

    def _environment(self, more: dict[str, str]) -> list[bytes]:
        if not more:
            return self._usual
        if more != self._other[0]:  # tasks of one kind have the same
            self._other = (more, self._block(more))
        return self._other[1]

    def _block(self, more: Mapping[str, str]) -> list[bytes]:
        """Return the variables, with room for the varying ones at the end."""
        # The name would end at the first "=": another variable would be set than was asked for.
        if any(not name or "=" in name for name in more):
            raise ValueError("illegal environment variable name")
        # A variable of the task's own wins over a varying one: the first of a name counts.
        entries = [os.fsencode(f"{k}={v}") for k, v in {**self._base, **more}.items()]
        # A C string ends at a zero byte: the program would get another value than was asked for.
        if any(b"\0" in entry for entry in entries):
            raise ValueError("embedded null byte")
        return entries + [b""] * len(self._prefixes)


class SignalInbox:
    """
    Signals of this process that are read from a descriptor, and blocked for that.

    While none is blocked (see :class:`Spawner`), one that comes is handled, and taken from here
    like the others.

    Parameters
    ----------
    numbers
        Signals to read.

    Attributes
    ----------
    fd
        Descriptor, readable when a signal has come.
    handled
        Signals that were handled and not taken yet, which the descriptor does not show.
    """

    def __init__(self, numbers: Sequence[signal.Signals]) -> None:
        self.fd = signal_descriptor(numbers)
        self.handled: list[int] = []
        for number in numbers:
            signal.signal(number, self._on_signal)

    def take(self) -> int:
        """Return the number of the next signal, 0 when none has come."""
        if self.handled:
            return self.handled.pop(0)
        try:
            return int.from_bytes(os.read(self.fd, SIGINFO)[:4], sys.byteorder)
        except BlockingIOError:
            return 0

    def close(self) -> None:
        """Close the descriptor; the signals stay blocked."""
        os.close(self.fd)

    def wait_for(self, number: int, seconds: float) -> bool:
        """Take a signal of that number, and wait for it; return whether it came in time."""
        if number in self.handled:
            self.handled.remove(number)
            return True
        return signal.sigtimedwait((number,), seconds) is not None

    def _on_signal(self, number: int, frame: object) -> None:
        # Nothing else: this runs between any two steps of the worker.
        self.handled.append(number)


def _handle_ignored() -> bool:
    """
    Give signals of the terminal that are ignored a handler that does nothing.

    A program gets the usual disposition of a signal that is handled here, and ignores one that is
    ignored here.

    Returns
    -------
    bool
        False when this is not the main thread, which alone may set handlers.
    """
    try:
        for number in _RESET[2:]:
            if signal.getsignal(number) is signal.SIG_IGN:
                signal.signal(number, lambda number, frame: None)
    except ValueError:
        return False
    return True


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
