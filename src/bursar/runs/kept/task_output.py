"""
The output of a task: what is kept of attempts that have ended, and what grows while one runs.

What has been printed so far stands in the memory of a worker, so whoever follows a task asks the
worker, through the process that carries the run out. What was followed and what is kept agree to
the byte.
"""

import asyncio
import shutil
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from bursar.dispatch.journal import is_written, read_attempts
from bursar.dispatch.journal_records import AttemptRecord
from bursar.model.errors import BursarError, InputError
from bursar.runs.detached_runs import OutputAnswer, OutputConnection, OutputRequest
from bursar.runs.folder import RunFolder, find_task
from bursar.runs.run_record import log_files

# What is kept: in the journal, or in a file where it was long.


@dataclass(frozen=True, slots=True)
class AttemptLogs:
    """
    Output of one attempt.

    Parameters
    ----------
    task
        Id of the task.
    stdout_file, stderr_file
        Files of streams that were too long for the journal; else None.
    """

    task: str
    record: AttemptRecord
    stdout_file: Path | None
    stderr_file: Path | None

    def copy_stdout(self, target: BinaryIO) -> None:
        """Write the standard output of the attempt to a file."""
        _copy(self.stdout_file, self.record.outcome.stdout, target)

    def copy_stderr(self, target: BinaryIO) -> None:
        """Write the standard error of the attempt to a file."""
        _copy(self.stderr_file, self.record.outcome.stderr, target)

    def pieces(self, stream: Literal[0, 1], offset: int) -> Iterator[tuple[int, bytes]]:
        """
        Yield a stream from a byte on in pieces, each with its first byte.

        Parameters
        ----------
        offset
            First byte; below 0: so many bytes before the end.
        """
        outcome = self.record.outcome
        file = (self.stdout_file, self.stderr_file)[stream]
        content = (outcome.stdout, outcome.stderr)[stream]
        size = (outcome.stdout_size, outcome.stderr_size)[stream] if file else len(content)
        offset = max(0, size + offset) if offset < 0 else offset
        if file is None:
            if content[offset:]:
                yield offset, content[offset:]
            return
        try:
            with file.open("rb") as source:
                source.seek(offset)
                while piece := source.read(_PIECE):
                    yield offset, piece
                    offset += len(piece)
        except OSError as error:
            raise BursarError(f"{file}: cannot be read: {error.strerror}") from None

    def to_dict(self) -> dict[str, Any]:
        """Return the logs as a JSON object; bytes that are no UTF-8 are replaced."""
        outcome = self.record.outcome
        return {
            "task": self.task,
            "attempt": outcome.attempt,
            "status": str(outcome.status),
            "exit_code": outcome.exit_code,
            "reason": outcome.reason,
            "stdout": _text(outcome.stdout, self.stdout_file),
            "stdout_file": None if self.stdout_file is None else str(self.stdout_file),
            "stderr": _text(outcome.stderr, self.stderr_file),
            "stderr_file": None if self.stderr_file is None else str(self.stderr_file),
        }


def read_logs(folder: RunFolder, task: str, attempt: int | None) -> AttemptLogs:
    """
    Read the output of a task's attempt.

    Parameters
    ----------
    task
        Task, as :func:`bursar.runs.folder.find_task` takes it.
    attempt
        Number of the attempt; None: the last.

    Raises
    ------
    InputError
        When there is no such task or attempt, or it has not ended.
    """
    tasks = folder.read_campaign().workflow.tasks
    number = find_task([t.id for t in tasks], task, f"run {folder.name}")
    task = tasks[number].id
    records = read_attempts(folder.journal_file, number)
    if not records:
        raise InputError(f'task "{task}" has not ended yet: nothing is kept of it')
    record = next((r for r in reversed(records) if not r.is_outrun), records[-1])
    if attempt is not None:
        known = {r.outcome.attempt: r for r in records}
        if attempt not in known:
            listed = ", ".join(map(str, known))
            raise InputError(f'task "{task}" has attempts {listed}, got {attempt}')
        record = known[attempt]
    return AttemptLogs(task, record, *log_files(folder, number, task, record))


def _copy(file: Path | None, content: bytes, target: BinaryIO) -> None:
    if file is None:
        target.write(content)
        return
    try:
        with file.open("rb") as source:
            shutil.copyfileobj(source, target)
    except OSError as error:
        raise BursarError(f"{file}: cannot be read: {error.strerror}") from None


def _text(content: bytes, file: Path | None) -> str | None:
    return content.decode(errors="replace") if file is None else None


# What grows.

STREAMS: tuple[Literal[0], Literal[1]] = (0, 1)
"""Numbers of standard output and standard error."""

_ABSENCE = 1.5
"""Seconds without a process after which a run counts as killed: its last state comes late."""

PACE = 0.3
"""Seconds between two questions to a worker whose attempt printed nothing more."""

_SAME_START = 0.5
"""Seconds by which the start of an attempt may differ between the worker's word and the journal."""

_PIECE = 1 << 18  # bytes read of a kept stream at a time

_SEALED = "its output is sealed, and can be read only when it has ended"
_NO_ANSWER = "its worker does not answer; its output comes at the latest when it has ended"


@dataclass(frozen=True, slots=True)
class FollowedOutput:
    """
    Something that is new of a task that is followed.

    Parameters
    ----------
    stream
        0: standard output; 1: standard error; None: this is no output.
    attempt
        Number of the attempt; 0: none is meant.
    offset
        First byte of the content.
    content
        What was printed.
    note
        Line for people; empty: there is none.
    status
        How the task has ended, in the last of these; empty: it has not.
    """

    attempt: int
    stream: Literal[0, 1] | None = None
    offset: int = 0
    content: bytes = b""
    note: str = ""
    status: str = ""


@dataclass(slots=True)
class _FollowedAttempt:
    """
    The attempt that is followed.

    Parameters
    ----------
    start
        By which an attempt is told from another one of the same number, whose end was not durable
        when the run's process was killed.
    offsets
        By stream: bytes that were passed on; below 0: where to begin, from the end.
    """

    number: int
    start: float
    offsets: list[int]

    def is_of(self, record: AttemptRecord) -> bool:
        outcome = record.outcome
        is_near = abs(outcome.start - self.start) < _SAME_START
        return outcome.attempt == self.number and is_near


@dataclass(slots=True)
class TaskFollower:
    """
    Follows the output of one task from attempt to attempt, until the task has ended.

    Parameters
    ----------
    number
        Number of the task.
    attempt
        Number of the only attempt that is followed; None: all, from the present one on.
    tail
        Bytes of each stream, before the present end, to begin with; None: from its begin.
    streams
        Which streams are followed.
    """

    folder: RunFolder
    number: int
    attempt: int | None = None
    tail: int | None = None
    streams: Sequence[Literal[0, 1]] = STREAMS
    _followed: _FollowedAttempt | None = None
    _noted: str = ""
    _absent_since: float | None = None

    async def follow(self) -> AsyncGenerator[FollowedOutput, None]:
        """
        Yield what the task prints, and lines for people, until the task or attempt has ended.

        Where the process that carries the run out was killed this says so, and waits for the run
        to be resumed; where the run was stopped it ends. The last one yielded has a ``status``; one
        that says nothing comes about every :data:`PACE` seconds in which nothing is new.

        Raises
        ------
        BursarError
            When the journal, or a file with kept output, cannot be read.
        """
        with closing(OutputConnection(self.folder)) as connection:
            while True:
                found, answer = list[FollowedOutput](), None
                for stream in self.streams:
                    answer = await connection.ask(self._request(stream))
                    if answer is None or not answer.attempt:
                        break
                    found += self._take(answer, stream)
                for one in found:
                    yield one
                if answer is None or not answer.attempt:
                    # One by one, since a file may be larger than the memory.
                    kept = self._kept(is_there=answer is not None)
                    while (more := await asyncio.to_thread(_next, kept)) is not None:
                        yield more
                        if more.status:
                            return
                if not any(one.content for one in found):
                    yield FollowedOutput(0)
                    await asyncio.sleep(PACE)

    def _request(self, stream: Literal[0, 1]) -> OutputRequest:
        followed = self._followed
        wanted = self.attempt if followed is None else followed.number
        offset = self._first if followed is None else followed.offsets[stream]
        return OutputRequest(task=self.number, attempt=wanted, stream=stream, offset=offset)

    @property
    def _first(self) -> int:
        """Byte to begin with."""
        return 0 if self.tail is None else -self.tail

    def _take(self, answer: OutputAnswer, stream: Literal[0, 1]) -> list[FollowedOutput]:
        """Return what a running attempt has printed more."""
        self._absent_since = None
        followed = self._followed
        if answer.is_sealed or not answer.start:
            why = _SEALED if answer.is_sealed else _NO_ANSWER
            return self._note(answer.attempt, f"runs at {answer.site}: {why}")
        found: list[FollowedOutput] = []
        if followed is None or abs(followed.start - answer.start) >= _SAME_START:
            first = self._first
            self._followed = _FollowedAttempt(answer.attempt, answer.start, [first, first])
            if followed is not None:  # the answer begins where the lost attempt was
                return self._note(answer.attempt, "was lost with its worker and begins anew")
            found = self._note(answer.attempt, f"runs at {answer.site}")
            followed = self._followed
        if answer.content or followed.offsets[stream] < 0:
            followed.offsets[stream] = answer.offset + len(answer.content)
        if answer.content:
            found.append(FollowedOutput(answer.attempt, stream, answer.offset, answer.content))
        return found

    def _kept(self, *, is_there: bool) -> Iterator[FollowedOutput]:
        """
        Yield what is kept of attempts that have ended since, and how the task has ended.

        Parameters
        ----------
        is_there
            Whether a process carries the run out, and says that the attempt does not run.
        """
        now = time.monotonic()
        if is_there:
            self._absent_since = None
        elif self._absent_since is None:
            self._absent_since = now
        # Before the journal is read: a run writes its last state after its last outcome.
        is_over = self._absent_since is not None and now - self._absent_since > _ABSENCE
        is_over = is_over and not is_written(self.folder.journal_file)
        state = self.folder.read_info().state
        records = read_attempts(self.folder.journal_file, self.number)
        last = next((r for r in reversed(records) if r.final and not r.is_outrun), None)
        if self.attempt is not None:
            last = next((r for r in records if r.outcome.attempt == self.attempt), None)
        followed = self._followed
        mine = None if followed is None else next(filter(followed.is_of, records), None)
        if mine is not None and followed is not None:
            self._followed = None
            yield from self._rest(mine, followed.offsets)
            if mine is not last:
                yield from self._note(mine.outcome.attempt, _ending(mine))
        elif last is not None:
            if followed is not None:
                self._followed = None
                yield from self._note(followed.number, "was lost with its worker")
            yield from self._rest(last, [self._first, self._first])
        if last is not None and mine in (None, last):
            note = f"attempt {last.outcome.attempt} {_ending(last)}"
            yield FollowedOutput(last.outcome.attempt, note=note, status=str(last.outcome.status))
        elif mine is not None or (self._followed is not None and is_there):
            pass  # what follows is seen at the next look
        elif is_there:
            yield from self._note(0, "waits to begin")
        elif is_over and state in ("running", "new"):
            text = f"no process carries the run out; bursar run --resume {self.folder.name} goes on"
            yield from self._note(0, text)
        elif is_over:
            yield FollowedOutput(0, note=f"has not ended: the run is {state}", status=state)

    def _note(self, attempt: int, text: str) -> list[FollowedOutput]:
        """Return a line for people, unless that was said last."""
        note = f"attempt {attempt} {text}" if attempt else text
        if note == self._noted:
            return []
        self._noted = note
        return [FollowedOutput(attempt, note=note)]

    def _rest(self, record: AttemptRecord, offsets: Sequence[int]) -> Iterator[FollowedOutput]:
        """Yield what is kept of an attempt beyond what was passed on."""
        task = self.folder.read_campaign().workflow.tasks[self.number]
        logs = AttemptLogs(task.id, record, *log_files(self.folder, self.number, task.id, record))
        for stream in self.streams:
            for offset, content in logs.pieces(stream, offsets[stream]):
                yield FollowedOutput(record.outcome.attempt, stream, offset, content)


def _next(kept: Iterator[FollowedOutput]) -> FollowedOutput | None:
    return next(kept, None)


def _ending(record: AttemptRecord) -> str:
    reason = f": {record.outcome.reason}" if record.outcome.reason else ""
    return f"{record.outcome.status}{reason}"
