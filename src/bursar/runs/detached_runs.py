"""
Runs that go on without the terminal that started them, and the views of a run from elsewhere.

The process that carries a run out shows the run's state on a socket in the run's folder, which
only the folder's user may connect to. Nobody has to look: without a viewer nothing is sent, and a
viewer that stops reading is left behind. A connection that asks for the output of tasks gets that
in place of the state.
"""

import asyncio
import contextlib
import errno
import math
import os
import select
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from bursar.dispatch.journal import RunJournal, is_written, writer_of
from bursar.dispatch.linux_processes import kill_leftovers, workers_of
from bursar.locking import LockHolder
from bursar.model.errors import BursarError, InputError
from bursar.report.progress import ProgressSnapshot
from bursar.runs.folder import RunFolder
from bursar.supervisor import TaskSupervisor

if TYPE_CHECKING:
    from bursar.engine.dispatcher import Dispatcher

INTERVAL = 0.5
"""Seconds between two snapshots sent to viewers."""

_KEPT = 20
"""Messages of the run that a new viewer is sent."""

_MOST_UNREAD = 1 << 18
"""Bytes that a viewer may leave unread before its connection is closed."""

_ENDING = 60.0  # seconds for a run to write its last state once its journal is closed
_KILLED = 1.0  # seconds for the same where it may have been killed before we came
_STEP = 0.1  # seconds between two looks at a process

ANSWER = 10.0
"""Seconds for which the start of a detached run waits for the first answer of a site."""


class OutputRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    A request, one line of JSON, for what a running attempt has printed.

    Parameters
    ----------
    task
        Number of the task.
    attempt
        Number of the attempt; None: the one that runs.
    stream
        0: standard output; 1: standard error.
    offset
        First byte that is wanted; below 0: so many bytes before the end.
    """

    task: int
    stream: Literal[0, 1]
    attempt: int | None = None
    offset: int = 0


class OutputAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    What a running attempt has printed.

    Parameters
    ----------
    attempt, site
        Number of the attempt and its site; 0 and empty: no such attempt runs now.
    start
        Start of the attempt, as its outcome will state it; 0: its worker does not answer.
    offset, size
        First byte of the content, and bytes that were printed so far.
    content
        At most :data:`MOST_IN_ANSWER` bytes.
    is_sealed
        Whether the output is sealed, and so comes only when the attempt has ended.
    """

    attempt: int = 0
    site: str = ""
    start: float = 0.0
    offset: int = 0
    size: int = 0
    content: bytes = b""
    is_sealed: bool = False


OutputReading = Callable[[OutputRequest], Awaitable[OutputAnswer]]
"""Asks the worker of a running attempt what the attempt has printed."""

MOST_IN_ANSWER = 1 << 16
"""Bytes of output in one answer."""

_MOST_REQUEST = 1 << 12  # bytes of a request, more than any of ours
_MOST_ANSWER = 1 << 18  # bytes of a line with an answer, more than any of ours


class RunViewUpdate(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    One line of a view, as JSON.

    Parameters
    ----------
    message
        Line for people; empty: none.
    snapshot
        State of the run; None: as before.
    output
        Answer to an :class:`OutputRequest`; None: the line is none.
    """

    message: str = ""
    snapshot: ProgressSnapshot | None = None
    output: OutputAnswer | None = None


class RunViews:
    """Shows a run that this process carries out to viewers in other processes."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._messages: deque[str] = deque(maxlen=_KEPT)
        self._viewers: set[asyncio.Transport] = set()
        self._asking: set[asyncio.Transport] = set()
        self._tasks: TaskSupervisor | None = None
        self._read_output: OutputReading | None = None

    def notify(self, message: str) -> None:
        """Show a message, to later viewers too."""
        self._messages.append(message)
        self._send(self._viewers, RunViewUpdate(message=message))

    async def serve(
        self, snapshot: Callable[[], ProgressSnapshot], read_output: OutputReading
    ) -> None:
        """
        Show snapshots, and the output of tasks to those who ask for that, until cancelled.

        Raises
        ------
        OSError
            When the folder's file system has no sockets.
        """
        loop = asyncio.get_running_loop()
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Before bind(), which makes the file: it never exists with wider permissions.
        os.fchmod(listening.fileno(), 0o600)
        try:
            with _reachable(self._folder.views_socket) as path:
                path.unlink(missing_ok=True)  # of a killed process: the journal's lock is ours
                listening.bind(str(path))
            server = await loop.create_unix_server(lambda: _Viewer(self), sock=listening)
        except BaseException:
            listening.close()
            raise
        self._read_output = read_output
        try:
            async with TaskSupervisor() as self._tasks:
                while True:
                    if self._viewers:
                        self._send(self._viewers, RunViewUpdate(snapshot=snapshot()))
                    await asyncio.sleep(INTERVAL)
        finally:
            self._tasks = None
            server.close()
            for viewer in [*self._viewers, *self._asking]:
                viewer.close()
            self._folder.views_socket.unlink(missing_ok=True)

    def add(self, viewer: asyncio.Transport) -> None:
        """Send a new viewer the last messages; snapshots follow."""
        self._viewers.add(viewer)
        for message in self._messages:
            self._send([viewer], RunViewUpdate(message=message))

    def remove(self, viewer: asyncio.Transport) -> None:
        """Send a viewer nothing more."""
        self._viewers.discard(viewer)
        self._asking.discard(viewer)

    def ask(self, viewer: asyncio.Transport, line: bytes) -> None:
        """Answer a viewer's request, who gets answers from now on and no state of the run."""
        self._viewers.discard(viewer)
        self._asking.add(viewer)
        try:
            request = msgspec.json.decode(line, type=OutputRequest)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            viewer.abort()  # of another version
            return
        if self._tasks is not None and not self._tasks.is_closed:
            work, what = self._answer(viewer, request), f"show output of task {request.task}"
            self._tasks.start(work, what, on_failure=lambda _: viewer.abort())

    async def _answer(self, viewer: asyncio.Transport, request: OutputRequest) -> None:
        assert self._read_output is not None
        self._send([viewer], RunViewUpdate(output=await self._read_output(request)))

    def _send(self, viewers: Collection[asyncio.Transport], update: RunViewUpdate) -> None:
        if not viewers:
            return
        line = msgspec.json.encode(update) + b"\n"
        for viewer in list(viewers):
            if viewer.get_write_buffer_size() > _MOST_UNREAD:
                viewer.abort()  # it stands still, and would fill our memory
            else:
                viewer.write(line)


class _Viewer(asyncio.Protocol):
    """The connection of a viewer, which reads, or asks for output."""

    def __init__(self, views: RunViews) -> None:
        self._views = views
        self._transport: asyncio.Transport | None = None
        self._asked = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to show the run."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._views.add(transport)

    def data_received(self, data: bytes) -> None:
        """Answer the requests for output."""
        if self._transport is None:
            return
        *lines, self._asked = (self._asked + data).split(b"\n")
        for line in lines:
            self._views.ask(self._transport, line)
        if len(self._asked) > _MOST_REQUEST:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop to show the run."""
        if self._transport is not None:
            self._views.remove(self._transport)


async def answered(dispatcher: "Dispatcher", request: OutputRequest) -> OutputAnswer:
    """Return what a run's dispatcher knows of a running attempt's output."""
    shown = await dispatcher.show_output(
        request.task, request.attempt, request.stream, request.offset, MOST_IN_ANSWER
    )
    if shown is None:
        return OutputAnswer()
    piece = shown.piece
    if piece is None:
        return OutputAnswer(attempt=shown.attempt, site=shown.site)
    return OutputAnswer(
        attempt=shown.attempt,
        site=shown.site,
        start=piece.start,
        offset=piece.offset,
        size=piece.size,
        content=piece.content,
        is_sealed=piece.is_sealed,
    )


@contextmanager
def _reachable(path: Path) -> Iterator[Path]:
    """Yield a short path of a file: that of a socket may have 107 bytes, a folder's may be long."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield Path(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


def follow_run(folder: RunFolder, on_update: Callable[[RunViewUpdate], None]) -> None:
    """
    Show a run that another process carries out, until it has ended for now or for good.

    Raises
    ------
    InputError
        When the process runs on another machine.
    """
    runner = writer_of(folder.journal_file)
    _check_here(folder, runner)
    with contextlib.closing(_ProcessHandle(runner and runner.process)) as process:
        while is_written(folder.journal_file) and not process.has_ended:
            for update in _updates(folder):
                on_update(update)
            time.sleep(_STEP)
        # The journal is closed before the run's last state is written.
        until = time.monotonic() + (_KILLED if process.is_unknown else _ENDING)
        while folder.read_info().state == "running" and time.monotonic() < until:
            if process.has_ended and not process.is_unknown:
                break
            time.sleep(_STEP)


def _updates(folder: RunFolder, patience: float | None = None) -> Iterator[RunViewUpdate]:
    """
    Yield what a run's process shows, until the connection ends; nothing if there is none.

    The connection also ends after so many seconds without an update; None: no limit.
    """
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(patience)
        with _reachable(folder.views_socket) as path:
            connection.connect(str(path))
        with connection.makefile("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    return
                with contextlib.suppress(msgspec.MsgspecError):  # of another version
                    yield msgspec.json.decode(line, type=RunViewUpdate)


async def watch_run(folder: RunFolder) -> AsyncGenerator[RunViewUpdate, None]:
    """Yield what a run's process shows, until the connection ends; nothing if there is none."""
    with contextlib.suppress(OSError, ValueError):  # the latter for a line beyond all measure
        with _reachable(folder.views_socket) as path:
            lines, connection = await asyncio.open_unix_connection(str(path), limit=_MOST_UNREAD)
        with contextlib.closing(connection):
            while (line := await lines.readline()).endswith(b"\n"):
                with contextlib.suppress(msgspec.MsgspecError):  # of another version
                    yield msgspec.json.decode(line, type=RunViewUpdate)


class OutputConnection:
    """Asks the process that carries a run out, again and again, what attempts have printed."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: OutputRequest) -> OutputAnswer | None:
        """Return the answer to a request; None: no process answers."""
        try:
            async with asyncio.timeout(ANSWER):
                return await self._ask(request)
        except (OSError, ValueError, msgspec.MsgspecError):  # ValueError: an endless line
            self.close()
            return None

    async def _ask(self, request: OutputRequest) -> OutputAnswer | None:
        if self._streams is None:
            with _reachable(self._folder.views_socket) as path:
                self._streams = await asyncio.open_unix_connection(str(path), limit=_MOST_ANSWER)
        lines, writing = self._streams
        writing.write(msgspec.json.encode(request) + b"\n")
        while (line := await lines.readline()).endswith(b"\n"):
            # Messages and states come before the first request has arrived there.
            output = msgspec.json.decode(line, type=RunViewUpdate).output
            if output is not None:
                return output
        self.close()
        return None

    def close(self) -> None:
        """Close the connection; the next request makes another."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def stop_run(folder: RunFolder) -> int | None:
    """
    Ask the process that carries a run out to stop it, as Ctrl-C does; return the process's number.

    Where that process was killed, end the workers that it has left: return None.

    Raises
    ------
    InputError
        When no process carries the run out and it has no workers, or the process is on another
        machine.
    BursarError
        When the process may not be asked, or is not to be seen from here.
    """
    runner = writer_of(folder.journal_file)
    if runner is None:
        if _end_workers(folder):
            return None
        raise InputError(
            f"no process carries run {folder.name} out",
            hint=f"bursar run --resume {folder.name} goes on with it",
        )
    _check_here(folder, runner)
    with contextlib.closing(_ProcessHandle(runner.process)) as process:
        # The handle first, then the lock once more: the number may have gone to another process.
        if writer_of(folder.journal_file) == runner:
            try:
                process.signal(signal.SIGTERM)
            except OSError as error:
                raise BursarError(
                    f"{runner} carries run {folder.name} out and cannot be asked to stop: "
                    f"{error.strerror}"
                ) from None
    return runner.process


def _end_workers(folder: RunFolder) -> bool:
    """End the workers of a run whose process was killed; return whether there were any."""
    if not folder.worker_contact.exists():
        return False
    # Nobody resumes the run meanwhile: the journal's lock is ours.
    journal = RunJournal(folder.journal_file)
    try:
        found = bool(workers_of(journal.identity))
        kill_leftovers(journal.identity)
        folder.worker_contact.unlink(missing_ok=True)
    finally:
        journal.close()
    return found


def start_detached(
    folder: RunFolder, words: Sequence[str], on_message: Callable[[str], None]
) -> int | None:
    """
    Start a process that carries a run out and does not end with this terminal.

    Waits until the run has processors, or until the sites have been silent for
    :data:`ANSWER` seconds: requests may wait in a queue for days.

    Parameters
    ----------
    words
        Command of ``bursar`` that goes on with the run, and its options.
    on_message
        Called with what the run says meanwhile, again for each look at the run.

    Returns
    -------
    int or None
        Exit status of the process, if the run has ended meanwhile; None: the run goes on.

    Raises
    ------
    BursarError
        When the process ended before it began the run, or because of a fault, in its own words.
    """
    before = folder.info_file.read_bytes()
    writing = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    try:
        log = os.open(folder.runner_log, writing, 0o600)
    except OSError as error:
        raise BursarError(f"{folder.runner_log}: cannot be written: {error.strerror}") from None
    said = os.fstat(log).st_size
    command = [sys.executable, "-P", "-m", "bursar", *words]
    try:
        runner = os.posix_spawn(
            sys.executable,
            command,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, log, 1),
                (os.POSIX_SPAWN_DUP2, log, 2),
            ],
            # A session of its own has no terminal: no SIGHUP comes when the user's is gone, and no
            # SIGINT from its keys.
            setsid=True,
        )
    finally:
        os.close(log)
    status: int | None = None
    try:
        status = _status_at_begin(folder, runner, on_message)
    finally:
        if status is None:
            # This process may live on for days, as a notebook does, and is the runner's parent.
            threading.Thread(target=os.waitpid, args=(runner, 0), daemon=True).start()
    if status:
        with folder.runner_log.open("rb") as file:
            file.seek(said)
            words = file.read().decode(errors="replace")
        begun = folder.info_file.read_bytes() != before
        if not begun or status < 0 or _ends_with_complaint(words):
            what = "failed" if begun else "was not begun"
            failed = BursarError(f"run {folder.name} {what}: {_complaint_in(words)}")
            failed.exit_status = max(1, status)
            raise failed
    return status


def _status_at_begin(
    folder: RunFolder, runner: int, on_message: Callable[[str], None]
) -> int | None:
    """
    Wait until a child process holds processors for a run, or has ended; return its exit status.

    None: the process goes on. A status is negative for a signal.
    """
    until = math.inf
    while True:
        ended, status = os.waitpid(runner, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= until:
            return None
        if math.isinf(until):
            writer = writer_of(folder.journal_file)
            if writer is not None and writer.process == runner:
                until = time.monotonic() + ANSWER
        elif _has_processors(folder, on_message):
            return None
        time.sleep(_STEP)


def _has_processors(folder: RunFolder, on_message: Callable[[str], None]) -> bool:
    """Return whether a run's process shows that it has processors at some site."""
    for update in _updates(folder, patience=2 * INTERVAL):
        if update.message:
            on_message(update.message)
        if update.snapshot is not None:
            return any(site.processors for site in update.snapshot.sites)
    return False


def _check_here(folder: RunFolder, runner: LockHolder | None) -> None:
    """Refuse to look for a process by its number where that number means nothing."""
    if runner is not None and not runner.is_here:
        raise InputError(
            f"run {folder.name} is carried out by {runner}", hint=f"ask there: ssh {runner.host}"
        )


def _complaint_in(said: str) -> str:
    """Return the last complaint of a command, with its hint, as one line."""
    lines = said.strip().splitlines()
    begins = [i for i, line in enumerate(lines) if line.startswith("bursar: ")]
    complaint = lines[begins[-1] :] if begins else lines[-1:]
    return "; ".join(complaint).removeprefix("bursar: ") or "it said nothing"


def _ends_with_complaint(said: str) -> bool:
    """Return whether a command ended with an error, and not with a run's summary."""
    lines = [line for line in said.splitlines() if not line.startswith("hint: ")]
    return bool(lines) and lines[-1].startswith("bursar: ")


class _ProcessHandle:
    """A process that is not our child."""

    def __init__(self, pid: int | None) -> None:
        self._handle: int | None = None
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                self._handle = os.pidfd_open(pid)

    @property
    def is_unknown(self) -> bool:
        """Whether there was no such process."""
        return self._handle is None

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        if self._handle is None:
            return True
        # Not by a signal, which reaches a process that has ended and was not waited for.
        ended = select.poll()
        ended.register(self._handle, select.POLLIN)
        return bool(ended.poll(0))

    def signal(self, number: int) -> None:
        """
        Send a signal; do nothing when the process has ended.

        Raises
        ------
        OSError
            When there was no such process from the beginning, or it is another user's.
        """
        if self._handle is None:
            raise ProcessLookupError(errno.ESRCH, "no such process is to be seen here")
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)

    def close(self) -> None:
        """Release the handle."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
