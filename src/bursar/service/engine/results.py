"""Results: their JSON, encoded once, and where each lies."""

import base64
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from bursar.model.outcome import Outcome, Status
from bursar.remote.messages import Result
from bursar.remote.task_output import as_text
from bursar.service.engine.locations import RecordLocation
from bursar.service.engine.records import ResultsRecorded, ResultsRecordedIndex
from bursar.service.engine.tasks import CANCELLED, FAILED, NAMES, SUCCEEDED, TIMED_OUT

_line = msgspec.json.Encoder().encode
_ended = msgspec.msgpack.Decoder(ResultsRecorded)

STATE_OF = {
    Status.SUCCEEDED: SUCCEEDED,
    Status.FAILED: FAILED,
    Status.TIMED_OUT: TIMED_OUT,
    Status.CANCELLED: CANCELLED,
    Status.LOST: FAILED,
}
"""How a task ended whose last attempt ended so."""


def encode_result_line(
    cursor: int, task: int, state: int, attempt: int, label: str, host: str, outcome: Outcome
) -> bytes:
    """
    Encode a :class:`bursar.remote.messages.Result` as JSON.

    Parameters
    ----------
    attempt
        How often the task was tried, not the attempt's own number.
    """
    raw: dict[str, str] = {}
    unclear = state == FAILED and outcome.exit_code is None
    return _line(
        Result(
            cursor=cursor,
            task=task,
            state=NAMES[state],
            attempt=attempt,
            label=label,
            exit_code=outcome.exit_code,
            stdout=as_text("stdout", outcome.stdout, raw) if outcome.stdout else "",
            stderr=as_text("stderr", outcome.stderr, raw) if outcome.stderr else "",
            raw=raw,
            stdout_size=outcome.stdout_size,
            stderr_size=outcome.stderr_size,
            start=outcome.start,
            end=outcome.end,
            host=host,
            user_seconds=outcome.user_seconds,
            system_seconds=outcome.system_seconds,
            max_rss=outcome.max_rss,
            reason=outcome.reason,
            lost=outcome.status is Status.LOST if unclear else None,
            value=base64.b64encode(outcome.value).decode() if outcome.value else "",
            sealed=base64.b64encode(outcome.sealed).decode() if outcome.sealed else "",
        )
    )


def has_log(outcome: Outcome) -> bool:
    """Whether a stream of an attempt was too long for the outcome, and is in a file."""
    return bool(
        (outcome.stdout_size and not outcome.stdout) or (outcome.stderr_size and not outcome.stderr)
    )


@dataclass(slots=True, eq=False)
class RecordedResults:
    """
    Results that lie in one record.

    Parameters
    ----------
    first, count
        Their cursors.
    at
        When they were recorded.
    tasks
        Their tasks.
    location
        Of the record.
    size
        Bytes of the lines.
    lines
        Of the results; None: they are to be read from the journal.
    """

    first: int
    count: int
    at: float
    tasks: "array[int]"
    location: RecordLocation
    size: int
    lines: Sequence[bytes] | None = None

    @property
    def last(self) -> int:
        """Cursor of the last result."""
        return self.first + self.count - 1


@dataclass(slots=True)
class ResultLog:
    """
    Results of one instance, in the order in which they were recorded.

    Parameters
    ----------
    last
        Cursor of the last.
    forgotten
        Cursor up to which the client has them.
    at
        When the last was recorded.
    size
        Bytes of the lines that are kept.
    logs
        Serial of the attempt whose long streams are in files, by task.
    """

    last: int = 0
    forgotten: int = 0
    at: float = 0.0
    size: int = 0
    logs: dict[int, int] = field(default_factory=dict)
    batches: deque[RecordedResults] = field(default_factory=deque)

    def add(self, batch: RecordedResults) -> None:
        """Append the next results."""
        self.batches.append(batch)
        self.last = batch.last
        self.at = max(self.at, batch.at)
        self.size += batch.size

    def find(self, after: int) -> RecordedResults | None:
        """Return the batch with the result that follows a cursor."""
        after = max(after, self.forgotten)
        if after >= self.last:
            return None
        # Readers are at the end mostly, or at the beginning.
        if self.batches[-1].first <= after + 1:
            return self.batches[-1]
        index = bisect_right(self.batches, after + 1, key=lambda batch: batch.first) - 1
        return self.batches[index]

    def forget(self, through: int) -> tuple[list[RecordedResults], list[int]]:
        """
        Forget results up to a cursor, as the client has them.

        Returns
        -------
        gone : list of Batch
            Of which none is needed any more.
        tasks : list of int
            Of the results that are forgotten now, and were not before.
        """
        gone: list[RecordedResults] = []
        tasks: list[int] = []
        for batch in self.batches:
            if batch.first > through:
                break
            since = max(0, self.forgotten + 1 - batch.first)
            tasks.extend(batch.tasks[since : through + 1 - batch.first])
            if batch.last <= through:
                gone.append(batch)
        for batch in gone:
            self.batches.popleft()
            self.size -= batch.size
        self.forgotten = max(self.forgotten, through)
        return gone, tasks


class RecentResults:
    """
    The latest result lines of all instances, kept in memory up to a number of bytes.

    Parameters
    ----------
    most
        Bytes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._batches: deque[RecordedResults] = deque()

    def add(self, batch: RecordedResults) -> None:
        """Add lines that were just recorded; the oldest are dropped for them."""
        self._batches.append(batch)
        self._size += batch.size
        while self._size > self._most:
            oldest = self._batches.popleft()
            self._size -= oldest.size
            oldest.lines = None


def decode_result_lines(payload: bytes) -> list[bytes]:
    """Decode the lines of a record of results."""
    return _ended.decode(payload).lines


def index_recorded_results(
    index: ResultsRecordedIndex, location: RecordLocation
) -> RecordedResults:
    """Make the index entry of a record of results in the journal."""
    tasks: array[int] = array("I")
    tasks.frombytes(index.tasks)
    size = sum(len(line) for line in index.lines)  # with some bytes of framing each
    return RecordedResults(index.first, len(index.lines), index.at, tasks, location, size)
