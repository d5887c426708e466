"""
Python calls: a process kept for them, and the worker's hold on it.

A worker stays small and single-threaded, so a call never runs inside it. The
callee is a Python process that gets one call after the other over a socket
pair, each with the files its output goes to; killed, it is replaced.
"""

import contextlib
import os
import pickle
import signal
import socket
import struct
import sys
from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from bursar.worker.raised import pickled, pickled_error
from bursar.worker.spawning import ProcessUsage

if TYPE_CHECKING:
    from bursar.model.task import Call

_HEADER = struct.Struct("<QQ?")
"""Bytes of the call's surroundings, bytes of the payload, whether its value returns as data."""

_ANSWER = struct.Struct("<?ddQQ")  # succeeded, user and system seconds, max rss, bytes of the value
_CHANNEL = 3
_PIECE = 1 << 16
"""Bytes that are read at once, or are copied in order to be written at once."""

_PROGRAM = "from bursar.worker.python_calls import serve; serve()"


class PythonCallWorker:
    """
    A process for Python calls, from the worker's side.

    Parameters
    ----------
    environment
        Environment variables of the process.
    home
        Home of the instance whose calls the process runs; empty: calls of the run.
    """

    def __init__(self, environment: dict[str, str], home: str = "") -> None:
        self.home = home
        self.socket, theirs = socket.socketpair()
        with theirs:
            # The child's descriptor must not be close-on-exec, nor already its number.
            moved = os.dup(theirs.fileno())
            try:
                self.pid = os.posix_spawn(
                    sys.executable,
                    (sys.executable, "-P", "-c", _PROGRAM),
                    environment,
                    file_actions=((os.POSIX_SPAWN_DUP2, moved, _CHANNEL),),
                    setpgroup=0,
                    setsigdef=(signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM),
                    setsigmask=(),
                )
            finally:
                os.close(moved)
        self.socket.setblocking(False)
        self._first: dict[str, str] | None = environment
        self._buffer = bytearray()
        self._usage = ProcessUsage(0.0, 0.0, 0)

    def begin(
        self, call: "Call", folder: str, environment: dict[str, str], stdout: int, stderr: int
    ) -> None:
        """
        Send a call; the answer comes on :attr:`socket`.

        Parameters
        ----------
        environment
            Variables of this call, which the process sets in addition to its own.
        """
        # The process's own variables travel with the first call only: they are many, and the
        # interpreter may have added some to those that it was started with.
        around = pickle.dumps((folder, self._first, environment))
        self._first = None
        payload = call.payload
        header = _HEADER.pack(len(around), len(payload), call.as_data)
        head = header + around
        # One system call for most calls. The callee has read all that came before, so that there
        # is room for the first bytes, with which the descriptors go.
        sent = socket.send_fds(self.socket, [head, payload], [stdout, stderr])
        if sent < len(head) + len(payload):
            # The callee waits in recv and takes all at once; a call of any size is out of hand
            # when this returns.
            self.socket.setblocking(True)
            self.socket.sendall(memoryview(head)[sent:])
            self.socket.sendall(memoryview(payload)[max(0, sent - len(head)) :])
            self.socket.setblocking(False)

    def receive(self) -> tuple[bool, bytes] | None:
        """
        Read as much of an answer as has arrived.

        Returns
        -------
        tuple or None
            Whether the call succeeded, and its value or exception, pickled or as data; None
            while the answer is not whole, or when the process is gone.
        """
        while True:
            try:
                data = self.socket.recv(1 << 20)
            except BlockingIOError:
                return None
            except OSError:
                return None
            if not data:
                return None
            self._buffer += data
            if len(self._buffer) < _ANSWER.size:
                continue
            succeeded, user, system, rss, size = _ANSWER.unpack_from(self._buffer)
            if len(self._buffer) < _ANSWER.size + size:
                continue
            value = bytes(self._buffer[_ANSWER.size : _ANSWER.size + size])
            self._buffer.clear()
            self._usage = ProcessUsage(user, system, rss)
            return succeeded, value

    def usage(self) -> ProcessUsage:
        """Return the resources of the last call; memory is the peak of the whole process."""
        return self._usage

    def close(self) -> None:
        """Close the channel, which ends the process unless a call is running."""
        self.socket.close()


class PythonCallPool:
    """
    The Python processes of a worker that wait for a call.

    What a call leaves in memory, the next one may see: so a process carries out calls of one
    instance only, or of one run, and is ended where another one needs its place.

    Parameters
    ----------
    environment
        Environment variables of the processes.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        self._idle: list[PythonCallWorker] = []  # the longest unused one first
        self._ending: set[int] = set()  # processes

    def take(self, home: str = "") -> PythonCallWorker:
        """Return a waiting process of that home, or start one in place of another home's."""
        # The last used first: its memory is warm, and those that are not needed grow old.
        for i in range(len(self._idle) - 1, -1, -1):
            if self._idle[i].home == home:
                return self._idle.pop(i)
        if self._idle:
            self._end(self._idle.pop(0))
        return self.make(home)

    def make(self, home: str = "") -> PythonCallWorker:
        """Start a process."""
        return PythonCallWorker(self._environment, home)

    def give(self, callee: PythonCallWorker) -> None:
        """Return a process to the pool."""
        self._idle.append(callee)

    @property
    def pids(self) -> set[int]:
        """Ids of the processes that wait or are about to end."""
        return {callee.pid for callee in self._idle} | self._ending

    def forget(self, pid: int) -> None:
        """Forget a process that has died between calls."""
        self._ending.discard(pid)
        self._idle = [callee for callee in self._idle if callee.pid != pid]

    def close(self) -> None:
        """End the processes that wait."""
        for callee in self._idle:
            callee.close()
        self._idle.clear()

    def _end(self, callee: PythonCallWorker) -> None:
        """End a process, with all threads and processes left behind by calls."""
        callee.close()
        self._ending.add(callee.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(callee.pid, signal.SIGKILL)


def serve() -> None:
    """Carry out calls, in the callee's process, until the worker is gone."""
    import resource

    channel = socket.socket(fileno=_CHANNEL)
    # Programs that a call starts must not write answers.
    channel.set_inheritable(False)
    environ, variables = os.environ, os.environb
    base: dict[bytes, bytes] = {}
    while True:
        # Nothing follows a call before its answer: whatever arrives belongs to one call.
        data, fds, _, _ = socket.recv_fds(channel, _PIECE, 2)
        if not data:
            return
        # A stream may give less than was sent at once; the descriptors come with the first byte.
        data = _at_least(channel, _HEADER.size, data)
        around_size, payload_size, as_data = _HEADER.unpack_from(data)
        middle = _HEADER.size + around_size
        data = _at_least(channel, middle + payload_size, data)
        folder, first, environment = pickle.loads(memoryview(data)[_HEADER.size : middle])
        payload = memoryview(data)[middle:]
        for fd, number in zip(fds, (1, 2), strict=True):
            os.dup2(fd, number)
            os.close(fd)
        os.chdir(folder)
        if first is not None:
            base = _encoded(first)
        # The call before may have put another object in its place.
        os.environ = environ  # noqa: B003 (the same object as at the start)
        _set_environment(variables, {**base, **_encoded(environment)})
        before = resource.getrusage(resource.RUSAGE_SELF)
        succeeded, value = _carry_out(payload, as_data=as_data)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the call may have closed or replaced it
                # Before the answer: the worker takes what was printed when it has that.
                stream.flush()
        after = resource.getrusage(resource.RUSAGE_SELF)
        answer = _ANSWER.pack(
            succeeded,
            after.ru_utime - before.ru_utime,
            after.ru_stime - before.ru_stime,
            after.ru_maxrss * 1024,
            len(value),
        )
        if len(value) < _PIECE:
            channel.sendall(answer + value)
        else:  # not copied
            channel.sendall(answer)
            channel.sendall(value)


def encode_call(call: bytes) -> bytes:
    """
    Return the payload of a :class:`bursar.model.task.Call` for a pickled call.

    The caller's module path travels along, so that what it can import can be
    imported there, and nothing else in its place. The call has another working
    directory: entries relative to the caller's are made absolute.
    """
    return pickle.dumps(([os.path.abspath(p) for p in sys.path if isinstance(p, str)], call))


def _encoded(environment: dict[str, str]) -> dict[bytes, bytes]:
    return {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}


def _set_environment(variables: MutableMapping[bytes, bytes], wanted: dict[bytes, bytes]) -> None:
    """Set all variables anew, also those that a call has changed below ``os.environ``."""
    # In bytes, which need not be encoded, and without clear(), which takes time quadratic in the
    # number of variables.
    for name in [name for name in variables if name not in wanted]:
        del variables[name]
    variables.update(wanted)


def _carry_out(payload: bytes | memoryview, *, as_data: bool) -> tuple[bool, bytes]:
    try:
        path, call = pickle.loads(payload)
        # In front, so that the call finds the caller's modules before others of the same name.
        if sys.path[: len(path)] != path:
            sys.path[:] = path + [p for p in sys.path if p not in path]
        function, args, kwargs = pickle.loads(call)
        value = function(*args, **kwargs)
        if not as_data:
            return True, pickled(value)
    except BaseException as error:  # whatever it is, it is the caller's to see
        if not as_data:
            return False, pickled_error(error)
        from bursar.worker.call_results import described_error

        return False, described_error(error)
    from bursar.worker.call_results import value_as_data  # what it takes, pickles do not need

    return value_as_data(value)


def _at_least(channel: socket.socket, size: int, begun: bytes) -> bytes:
    """Read until there are so many bytes, with those that were read before."""
    if len(begun) >= size:
        return begun
    data = bytearray(begun)
    while len(data) < size:
        piece = channel.recv(min(size - len(data), 1 << 20))
        if not piece:
            raise SystemExit(0)
        data += piece
    return bytes(data)
