"""
Starting programs and hearing of their end, with as little work as possible.

``os.posix_spawn`` writes the whole environment anew, byte by byte, for each program, and
``os.wait4`` makes a tuple of sixteen figures of which three are wanted. A worker does both
thousands of times a second, always with the same environment but for a variable or two. So the C
functions are called with structures that are made once.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_libc = ctypes.CDLL(None, use_errno=True)

_SETPGROUP, _SETSIGDEF, _SETSIGMASK = 0x02, 0x04, 0x08
_ENCODING = sys.getfilesystemencoding()
_ROOM = 1024  # bytes; glibc's largest such structure takes 336

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


class ProcessUsage(NamedTuple):
    """Processor seconds of a process in user and kernel mode, and peak memory in bytes."""

    user: float
    system: float
    max_rss: int


class Spawner:
    """
    Starts programs, each in a separate process group and with empty standard input.

    Parameters
    ----------
    environment
        Variables that every program gets.
    varying
        Names of further ones whose values each call of :meth:`spawn` gives.
    """

    def __init__(self, environment: Mapping[str, str], varying: Sequence[str]) -> None:
        self._base = {k: v for k, v in environment.items() if k not in varying}
        self._varying = [name.encode() for name in varying]
        self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._attributes = _attributes()
        self._actions: dict[tuple[int, int], Any] = {}
        self._pid = ctypes.c_int()
        self._pid_at = ctypes.byref(self._pid)
        self._usual = self._block({})
        self._other: tuple[dict[str, str], Any] = ({}, self._usual)

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
        environment = self._environment(more)
        first = len(environment) - 1 - len(self._varying)
        for i, name in enumerate(self._varying):
            # Written into the array that is there: only these entries differ from task to task.
            environment[first + i] = b"%b=%b" % (name, values[i])
        words = [word.encode(_ENCODING, "surrogateescape") for word in (path, *argv)]
        # C strings end at a zero byte: the program would get another argument than the one asked
        # for.
        if b"\0" in b"".join(words):
            raise ValueError("embedded null byte")
        # Captures are used again, so few pairs of descriptors occur.
        actions = self._actions.get((stdout, stderr)) or self._new_actions(stdout, stderr)
        error = _libc.posix_spawn(
            self._pid_at,
            words[0],
            actions,
            self._attributes,
            (ctypes.c_char_p * len(words))(*words[1:]),
            environment,
        )
        if error:
            raise OSError(error, os.strerror(error), path)
        return self._pid.value

    def close(self) -> None:
        """Release the file descriptor and the C structures."""
        for actions in self._actions.values():
            _libc.posix_spawn_file_actions_destroy(actions)
        self._actions.clear()
        os.close(self._null)

    def _environment(self, more: dict[str, str]) -> Any:
        if not more:
            return self._usual
        if more != self._other[0]:  # tasks of one kind have the same
            self._other = (more, self._block(more))
        return self._other[1]

    def _block(self, more: Mapping[str, str]) -> Any:
        """Return an array of strings with room for the varying ones, ended by a null pointer."""
        # The name would end at the first "=": another variable would be set than was asked for.
        if any(not name or "=" in name for name in more):
            raise ValueError("illegal environment variable name")
        entries = [os.fsencode(f"{k}={v}") for k, v in {**self._base, **more}.items()]
        # A C string ends at a zero byte: the program would get another value than was asked for.
        if any(b"\0" in entry for entry in entries):
            raise ValueError("embedded null byte")
        # A variable of the task's own wins over a varying one: the first of a name counts.
        return (ctypes.c_char_p * (len(entries) + len(self._varying) + 1))(*entries)

    def _new_actions(self, stdout: int, stderr: int) -> Any:
        actions = ctypes.create_string_buffer(_ROOM)
        _check(_libc.posix_spawn_file_actions_init(actions))
        for source, target in ((self._null, 0), (stdout, 1), (stderr, 2)):
            _check(_libc.posix_spawn_file_actions_adddup2(actions, source, target))
        self._actions[stdout, stderr] = actions
        return actions


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


def _attributes() -> Any:
    attributes = ctypes.create_string_buffer(_ROOM)
    signals = ctypes.create_string_buffer(_ROOM)
    _check(_libc.posix_spawnattr_init(attributes))
    _libc.sigemptyset(signals)
    # An empty mask: the worker blocks the signals that it reads from a descriptor, and a child
    # would inherit that.
    _check(_libc.posix_spawnattr_setsigmask(attributes, signals))
    for number in _RESET:
        _libc.sigaddset(signals, int(number))
    _check(_libc.posix_spawnattr_setsigdefault(attributes, signals))
    # 0: the child leads a group of its own, so that one signal reaches all that it starts.
    _check(_libc.posix_spawnattr_setpgroup(attributes, 0))
    flags = _SETPGROUP | _SETSIGDEF | _SETSIGMASK
    _check(_libc.posix_spawnattr_setflags(attributes, ctypes.c_short(flags)))
    return attributes


def _check(error: int) -> None:
    if error:
        raise OSError(error, os.strerror(error))
