"""
Python calls: the processes kept for them, and the worker's hold on these.

A worker stays small and single-threaded, so a call never runs inside it. A
:mod:`callee <bursar.worker.callee>` is a Python process that gets one call after the other; killed,
it is replaced. While calls are short, some wait at the callee already.
"""

import contextlib
import errno
import fcntl
import os
import pickle
import select
import signal
import socket
import sys
from typing import TYPE_CHECKING, NamedTuple, cast

from bursar.model.task import Call, Outcome, Status
from bursar.worker.callee import (
    ALONE,
    ANSWER,
    AS_DATA,
    BELL,
    CALL,
    CALLS,
    GO,
    HAS_SURROUNDINGS,
    MARK,
    PAUSED,
    PIECE,
    PROCESS,
    SHARED,
    SIZE,
    SUCCEEDED,
)
from bursar.worker.spawning import ProcessUsage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bursar.dispatch.wire import WireJob

MOST_AHEAD = 64
"""Calls that wait at a callee, at most."""

AHEAD = 0.004
"""Seconds of work that may wait at a callee, by the calls before: enough to hide the worker's
turn."""

SMALL = 1 << 14
"""Bytes of the largest payload of a call that is sent ahead: the queue takes many of these."""

_PROGRAM = "from bursar.worker.callee import serve; serve()"
_TEMPLATE = "from bursar.worker.callee import serve_template; serve_template()"
_NOW = socket.MSG_DONTWAIT


class CallAnswer(NamedTuple):
    """
    A callee's answer to one call.

    Parameters
    ----------
    job
        The call that has ended.
    paused
        Whether the callee waits until its surroundings are in order: the call may have printed or
        left something. Otherwise it did not.
    begun, ended
        By the monotonic clock, which all processes of a machine share.
    usage
        Resources of the call; memory is the peak of the whole process.
    value
        Value or exception, pickled or as data.
    """

    job: "WireJob"
    succeeded: bool
    paused: bool
    begun: float
    ended: float
    usage: ProcessUsage
    value: bytes

    def result(self, largest: int) -> tuple[Status, str, bytes]:
        """
        Return the status of the call, the reason of a failure, and the value.

        Parameters
        ----------
        largest
            Bytes of the largest value that may be sent on.
        """
        # Checked here, since a frame that is too large would end the connection and with it all
        # other tasks of this worker.
        if (size := len(self.value)) > largest:
            reason = f"the result takes {size} bytes, more than the {largest} there is room for"
            return Status.FAILED, reason, b""
        if not self.succeeded:
            return Status.FAILED, "the call raised an exception", self.value
        return Status.SUCCEEDED, "", self.value

    def outcome(self, largest: int, start: float) -> Outcome:
        """
        Return the outcome of a call that has printed nothing.

        Parameters
        ----------
        largest
            See :meth:`result`.
        start
            When it began, seconds since the epoch.
        """
        status, reason, value = self.result(largest)
        return Outcome(
            task=self.job.task,
            attempt=self.job.attempt,
            status=status,
            start=start,
            end=start + self.ended - self.begun,
            user_seconds=self.usage.user,
            system_seconds=self.usage.system,
            max_rss=self.usage.max_rss,
            reason=reason,
            value=value,
        )


class PythonCallWorker:
    """
    A process for Python calls, from the worker's side.

    Parameters
    ----------
    environment
        Environment variables of the process.
    home
        Home of the instance whose calls the process runs; empty: calls of the run.
    template
        Process of which it is forked; None: it is started as a program.

    Attributes
    ----------
    pid
        Id of the process.
    bell
        Becomes readable when answers are to be taken.
    sent
        Calls that were sent and are neither answered nor taken back, by number, the oldest first.
    room
        Number of calls that may wait there, as far as calls before left nothing behind.
    has_answered
        Whether the process has carried out a call.
    """

    def __init__(
        self, environment: dict[str, str], home: str = "", template: "CalleeTemplate | None" = None
    ) -> None:
        self.home = home
        # The callee's end stays open here: what it has not begun can be taken back there.
        self._calls, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.bell, bell = socket.socketpair()
        try:
            with bell:
                if template is None:
                    self.pid = _start(_PROGRAM, environment, (self._theirs, bell))
                else:
                    self.pid = template.fork(self._theirs, bell)
        except BaseException:
            self.close()
            raise
        self.sent: dict[int, WireJob] = {}
        self.room = 1
        self.has_answered = False
        self._first: dict[str, str] | None = environment
        self._number = 0
        self._is_paused = False
        self._opening: bytes | None = None  # the first message of a call that is not answered
        self._begun: tuple[tuple[int, ...], int, bytearray] | None = None

    def begin(
        self,
        job: "WireJob",
        call: Call,
        surroundings: tuple[str, int, dict[str, str]],
        streams: tuple[int, ...],
        *,
        alone: bool,
    ) -> None:
        """
        Send a call to the waiting process; the answer is announced by :attr:`bell`.

        Parameters
        ----------
        call
            Step of the job that is carried out.
        surroundings
            Folder, its time of change, and variables which the process sets in addition to its own.
        streams
            Descriptors of standard output and error and, unless ``alone``, of their readers.
        alone
            Whether the callee pauses after the call in any case, so that no other may follow.
        """
        folder, changed, variables = surroundings
        # The process's own variables travel with the first call only: they are many, and the
        # interpreter may have added some to those that it was started with.
        around = pickle.dumps((folder, changed, self._first, variables))
        data = self._message(job, call, around, HAS_SURROUNDINGS | alone * ALONE)
        if self._is_paused:
            self._is_paused = False
            self.bell.send(GO)
        # The callee waits and takes all at once: a call of any size is out of hand when this
        # returns.
        self._opening = data[:PIECE]
        socket.send_fds(self._calls, [data[:PIECE]], streams)
        for start in range(PIECE, len(data), PIECE):
            self._send_to_living(memoryview(data)[start : start + PIECE])
        self._first = None
        self.sent[self._number] = job

    def _send_to_living(self, piece: memoryview) -> None:
        """
        Send a message as soon as there is room, which a dead process would never make.

        Its end of the queue stays open here, so that the kernel does not say that it has died.

        Raises
        ------
        BrokenPipeError
            When the process has ended.
        """
        waiting = select.poll()
        waiting.register(self._calls, select.POLLOUT)
        waiting.register(self.bell, 0)  # for its end alone
        while True:
            try:
                self._calls.send(piece, _NOW)
                return
            except BlockingIOError:
                # Now and then: a child of an earlier call may keep the bell open.
                found = dict(waiting.poll(100))
                if self.bell.fileno() in found or self._has_ended():
                    raise BrokenPipeError("the process for calls has ended") from None

    def _has_ended(self) -> bool:
        """Whether the process has ended and was not waited for."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            return os.waitid(os.P_PID, self.pid, options) is not None
        except ChildProcessError:  # just forked, and still of the process in between
            return False

    def send_ahead(self, job: "WireJob") -> bool:
        """Send a :func:`plain <is_plain>` call to begin after others; return False without room."""
        try:
            call = cast(Call, job.steps[0])
            self._calls.send(self._message(job, call, b"", 0), _NOW)
        except BlockingIOError:
            return False
        self.sent[self._number] = job
        return True

    def _message(self, job: "WireJob", call: Call, around: bytes, flags: int) -> bytes:
        self._number += 1
        payload = call.payload
        if call.as_data:
            flags |= AS_DATA
        head = CALL.pack(self._number, job.task, job.processors, len(around), len(payload), flags)
        return head + around + payload

    def answers(self) -> "Iterator[CallAnswer]":
        """Yield the answers that have come, in the order of the calls."""
        try:
            is_open = self.bell.recv(64, _NOW) != b""
        except BlockingIOError:
            is_open = True
        except OSError:
            is_open = False
        # It is gone, or a call has closed descriptors that it does not know: no answer will come.
        if not is_open:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        while self.sent:
            try:
                data = self._calls.recv(PIECE, _NOW)
            except OSError:  # no further one
                return
            if self._begun is None:
                head = ANSWER.unpack_from(data)
                value: bytes | bytearray = data[ANSWER.size :]
                size = head[-1]
                if len(value) < size:
                    value = bytearray(value)
                    self._begun = head, size, value
                    continue
            else:
                head, size, value = self._begun
                value += data
                if len(value) < size:
                    continue
                self._begun = None
            number, flags, begun, ended, user, system, rss, _ = head
            self.has_answered = True
            self._opening = None
            self._is_paused = bool(flags & PAUSED)
            self.room = 1 if self._is_paused else min(MOST_AHEAD, 2 * self.room)
            yield CallAnswer(
                self.sent.pop(number),
                bool(flags & SUCCEEDED),
                self._is_paused,
                begun,
                ended,
                ProcessUsage(user, system, rss),
                bytes(value),
            )

    def take_back(self) -> "list[WireJob]":
        """Take back the calls that the process has not begun, also when it is gone."""
        found: list[WireJob] = []
        while self.sent:
            try:
                data = self._theirs.recv(PIECE, _NOW)
            except OSError:
                break
            # A call with surroundings may have further messages, which look like anything; while
            # it has not been answered, no other call was sent.
            if self._opening is None:
                found.append(self.sent.pop(CALL.unpack_from(data)[0]))
            elif data == self._opening:
                found.append(self.sent.pop(self._number))
        return found

    def mark(self) -> None:
        """Have the process pause after the present call, since its output is being read."""
        with contextlib.suppress(OSError):
            self.bell.send(MARK, _NOW)

    def close(self) -> None:
        """Close the channels, which ends the process unless a call is running."""
        for channel in (self._calls, self._theirs, self.bell):
            channel.close()


class CalleeTemplate:
    """
    A process of which callees are forked; see :func:`bursar.worker.callee.serve_template`.

    Parameters
    ----------
    environment
        Environment variables of the process and of the callees.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.pid = _start(_TEMPLATE, environment, (theirs,))

    def fork(self, calls: socket.socket, bell: socket.socket) -> int:
        """
        Fork a callee with these ends; return its process id.

        Raises
        ------
        OSError
            When no process is to be had, or the template is gone.
        """
        socket.send_fds(self._channel, [b"f"], [calls.fileno(), bell.fileno()])
        answer = self._channel.recv(PROCESS.size)
        if not answer:
            raise ConnectionResetError(errno.ECONNRESET, "the template of callees is gone")
        (pid,) = PROCESS.unpack(answer)
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        return int(pid)

    def close(self) -> None:
        """Close the channel, which ends the process."""
        self._channel.close()


class PythonCallPool:
    """
    The Python processes of a worker that wait for a call.

    What a call leaves in memory, the next one may see: so a process carries out calls of one
    instance only, or of one run, and is ended where another one needs its place.

    The first process is started as a program, as most workers need one only; further ones are
    forked of a template.

    Parameters
    ----------
    environment
        Environment variables of the processes.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        self._idle: list[PythonCallWorker] = []  # the longest unused one first
        self._ending: set[int] = set()  # processes
        self._has_begun = False
        self._template: CalleeTemplate | None = None

    def take(self, home: str = "", *, is_fresh: bool = False) -> PythonCallWorker:
        """
        Return a waiting process of that home, or start one in place of another one.

        Parameters
        ----------
        is_fresh
            Whether it must have carried out no call, so that the call's memory is all that it has.

        Raises
        ------
        OSError
            When no process can be started.
        """
        # The last used first: its memory is warm, and those that are not needed grow old.
        for i in range(len(self._idle) - 1, -1, -1):
            if self._idle[i].home == home and not is_fresh:
                return self._idle.pop(i)
        if self._idle:
            self.discard(self._idle.pop(0))
        return self._make(home)

    def _make(self, home: str) -> PythonCallWorker:
        if not self._has_begun:
            self._has_begun = True
            return PythonCallWorker(self._environment, home)
        if self._template is None:
            self._template = CalleeTemplate(self._environment)
        try:
            return PythonCallWorker(self._environment, home, self._template)
        except ConnectionError:  # killed by somebody, as where memory ran out
            self._template.close()
            self._template = CalleeTemplate(self._environment)
            return PythonCallWorker(self._environment, home, self._template)

    def give(self, callee: PythonCallWorker, *, is_spent: bool = False) -> None:
        """
        Return a process to the pool.

        Parameters
        ----------
        is_spent
            Whether it is ended instead: what its call has left in memory counts as nobody else's.
        """
        if is_spent:
            self.discard(callee)
        else:
            self._idle.append(callee)

    @property
    def pids(self) -> set[int]:
        """Ids of the processes that wait or are about to end, and of the template."""
        found = {callee.pid for callee in self._idle} | self._ending
        if self._template is not None:
            found.add(self._template.pid)
        return found

    def forget(self, pid: int) -> None:
        """Forget a process that has died between calls."""
        self._ending.discard(pid)
        for callee in self._idle:
            if callee.pid == pid:
                callee.close()
        self._idle = [callee for callee in self._idle if callee.pid != pid]
        if self._template is not None and self._template.pid == pid:
            self._template.close()
            self._template = None

    def close(self) -> None:
        """End the processes that wait."""
        for callee in self._idle:
            callee.close()
        self._idle.clear()
        if self._template is not None:
            self._template.close()

    def discard(self, callee: PythonCallWorker) -> None:
        """End a process, with all threads and processes left behind by calls."""
        callee.close()
        self._ending.add(callee.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(callee.pid, signal.SIGKILL)


def is_plain(job: "WireJob") -> bool:
    """Whether a job is one small call without files and variables of its own."""
    if len(job.steps) != 1 or type(job.steps[0]) is not Call:
        return False
    own = job.inputs or job.outputs or job.data or job.directory or job.environment or job.sealed
    # What states its memory has a process of its own: that of earlier calls is not counted as its.
    if own or job.secrets or job.devices or job.memory:
        return False
    return job.processors == 1 and len(job.steps[0].payload) <= SMALL


def _start(program: str, environment: dict[str, str], ends: tuple[socket.socket, ...]) -> int:
    """Start a program with these as its descriptors from 3 on, in a group of its own."""
    # Above the numbers that they are to have.
    moved = [fcntl.fcntl(end.fileno(), fcntl.F_DUPFD_CLOEXEC, BELL + 1) for end in ends]
    try:
        return os.posix_spawn(
            sys.executable,
            (sys.executable, "-P", "-c", program),
            environment,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, fd, number)
                for fd, number in zip(moved, (CALLS, BELL), strict=False)
            ],
            setpgroup=0,
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM),
            setsigmask=(),
        )
    finally:
        for fd in moved:
            os.close(fd)


def encode_call(call: bytes) -> bytes:
    """
    Return the payload of a :class:`bursar.model.task.Call` for a pickled call.

    The caller's module path travels along, so that what it can import can be
    imported there, and nothing else in its place. The call has another working
    directory: entries relative to the caller's are made absolute.
    """
    return pickle.dumps((import_path(), call))


def import_path() -> list[str]:
    """Return the absolute paths of folders that modules are imported from."""
    return [os.path.abspath(path) for path in sys.path if isinstance(path, str)]


def join_call(shared: bytes, arguments: bytes) -> bytes:
    """
    Return the payload of a call in two parts, of which callees unpickle the first only once.

    Only workers of this version read it, which those of this machine are.

    Parameters
    ----------
    shared
        Pickle of the module path and of the pickled function.
    arguments
        Pickle of the arguments, a tuple and a dict.
    """
    return b"%b%b%b%b" % (SHARED, SIZE.pack(len(shared)), shared, arguments)
