"""
A worker process of ours on a machine whose own programs cannot run tasks as ours does.

The process is the very program that runs tasks on this machine. All that is done to a task (limits,
killing, captured streams) is done by it, and so comes out the same. Whoever starts it speaks with
it as the dispatcher of a run does, over a connection on the loopback.
"""

import contextlib
import os
import secrets
import select
import socket
import subprocess
import sys
import threading
import time

import msgspec

from bursar.dispatch.folders import remove_tree
from bursar.dispatch.linux_processes import RUN, WORKER, kill_leftovers
from bursar.dispatch.wire import (
    NONSENSE,
    FrameDecoder,
    FromServer,
    FromWorker,
    Hello,
    ProtocolError,
    Welcome,
    WireJob,
    frame,
)
from bursar.worker.dispatcher_connection import WorkerSettings
from bursar.worker.workspace import FILES, LOGS, WORK

_READY = 30.0
"""Seconds in which a worker process must have said hello."""

_MANNERS = 5.0
"""Seconds in which an unauthenticated connection must present a token."""

_PIECE = 1 << 20  # bytes read at a time


class SharedRunPaths(msgspec.Struct, frozen=True, array_like=True):
    """
    Paths of the run's files, for workers on the same file system.

    Parameters
    ----------
    root, files, work, logs
        See :class:`bursar.dispatch.wire.Welcome`.
    """

    root: str
    files: str
    work: str
    logs: str


class SidecarProcess:
    """
    A worker process, and the connection to it.

    One thread receives; any may send and close.

    Parameters
    ----------
    kind
        First word of the worker's name.
    mark
        Mark by which the run's processes are recognised.
    spill
        Bytes of a stream that travel with an outcome; the rest stays in a file.
    place
        Paths of the run's files on a shared file system; None: folders of its own.
    scratch
        Folder for its own files; removed at its end.

    Raises
    ------
    OSError
        When it cannot be started.
    """

    def __init__(
        self,
        kind: str,
        mark: str,
        spill: int,
        processors: int,
        place: SharedRunPaths | None,
        scratch: str,
    ) -> None:
        self.name = f"{kind}-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self.is_cut = False
        self._kind = kind
        self._mark = mark
        self._processors = processors
        self._scratch = scratch
        self._frames = FrameDecoder()
        self._decode = msgspec.msgpack.Decoder(FromWorker).decode
        self._sending = threading.Lock()
        try:
            self._start()
            at = place or self._own_place()
            self.send(Welcome(mark, at.root, at.files, at.work, at.logs, spill))
        except BaseException:
            remove_tree(scratch)
            raise

    @property
    def is_alive(self) -> bool:
        """Whether the process is there, and can be spoken with."""
        return not self.is_cut and self._process.poll() is None

    def fileno(self) -> int:
        """Return the descriptor of the connection."""
        return self._line.fileno()

    def make_home(self, job: WireJob) -> str:
        """Make the empty folders of a job whose files travel, and return the path of all."""
        home = os.path.join(self._scratch, f"home-{job.task}-{job.attempt}")
        remove_tree(home)
        for part in (FILES, WORK, LOGS):
            os.makedirs(os.path.join(home, part))
        return home

    def received(self, patience: float | None) -> list[FromWorker]:
        """
        Return the process's next messages; empty when none came within ``patience`` seconds.

        Raises
        ------
        OSError
            When the process is gone; errors of :data:`bursar.dispatch.wire.NONSENSE` else.
        """
        if patience is not None:
            poll = select.poll()
            poll.register(self._line, select.POLLIN)
            if not poll.poll(max(0.0, patience) * 1000):
                return []
        data = self._line.recv(_PIECE)
        if not data:
            raise ConnectionResetError
        return [self._decode(body) for body in self._frames.feed(data)]

    def send(self, message: FromServer) -> None:
        """Send a message; ``OSError`` when the process is gone."""
        with self._sending:
            self._line.sendall(frame(message))

    def close(self) -> None:
        """End the worker process and all jobs running there."""
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)  # who waits for it hears so, unlike of a close
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        # Killed, the worker could not end its tasks: they are found by their marks.
        kill_leftovers(self._mark, self.name)
        self._line.close()
        remove_tree(self._scratch)

    def _start(self) -> None:
        token = secrets.token_urlsafe(32)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            settings = WorkerSettings(
                host="127.0.0.1",
                port=listening.getsockname()[1],
                token=token,
                worker=self.name,
                site=self._kind,
                lease=self._kind,
                processors=self._processors,
            )
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "bursar.worker.worker"],
                stdin=subprocess.PIPE,
                env={**os.environ, RUN: self._mark, WORKER: self.name},
            )
            try:
                assert self._process.stdin is not None
                # On standard input: arguments and environment can be read by others.
                with self._process.stdin as stdin:
                    stdin.write(msgspec.json.encode(settings))
                self._line = self._met(listening, token)
            except BaseException:
                self._process.kill()
                self._process.wait()
                raise

    def _met(self, listening: socket.socket, token: str) -> socket.socket:
        """Accept the connection of the started process and turn any other away."""
        listening.settimeout(0.2)
        until = time.monotonic() + _READY
        while time.monotonic() < until and self.is_alive:
            try:
                line, _ = listening.accept()
            except TimeoutError:
                continue
            line.settimeout(_MANNERS)
            with contextlib.suppress(OSError, *NONSENSE):
                # Any user of this machine can connect to a local port; in constant time, so that
                # the token cannot be guessed byte by byte.
                if secrets.compare_digest(self._first(line).token, token):
                    line.settimeout(None)
                    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    return line
            line.close()
        raise OSError("the worker process did not say hello")

    def _first(self, line: socket.socket) -> Hello:
        frames = FrameDecoder(4096)
        while data := line.recv(4096):
            for body in frames.feed(data):
                message = self._decode(body)
                if isinstance(message, Hello):
                    return message
                raise ProtocolError("expected a hello")
        raise ProtocolError("hung up")

    def _own_place(self) -> SharedRunPaths:
        parts = [os.path.join(self._scratch, part) for part in ("root", FILES, WORK, LOGS)]
        for part in parts:
            os.mkdir(part)
        return SharedRunPaths(*parts)
