"""Results: encoding as JSON, once for each, and the index of where each lies."""

import base64
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from bursar.engine.task_states import FAILED
from bursar.model.task import Outcome, Status
from bursar.remote.messages import Result
from bursar.remote.output_messages import as_text
from bursar.service.engine.records import ResultsRecorded, ResultsRecordedIndex
from bursar.service.engine.tasks import NAMES
from bursar.store import Position

_line = msgspec.json.Encoder().encode
_ended = msgspec.msgpack.Decoder(ResultsRecorded)


def encode_result_line(
    cursor: int, task: int, state: int, attempt: int, label: str, host: str, outcome: Outcome
) -> bytes:
    """
    Encode a :class:`bursar.remote.messages.Result` as JSON.

    Parameters
    ----------
    attempt
        Number of attempts so far, not the serial of the last one.
    """
    stdout, stderr = outcome.stdout, outcome.stderr
    raw: dict[str, str] = {}
    # Only a failure without an exit code leaves open whether the task or its worker failed.
    unclear = state == FAILED and outcome.exit_code is None
    # By position: 21 fields by name take five times as long, the most of what a line takes.
    return _line(
        Result(
            cursor,
            task,
            NAMES[state],
            attempt,
            label,
            outcome.exit_code,
            as_text("stdout", stdout, raw) if stdout else "",
            as_text("stderr", stderr, raw) if stderr else "",
            raw,
            outcome.stdout_size,
            outcome.stderr_size,
            outcome.start,
            outcome.end,
            host,
            outcome.user_seconds,
            outcome.system_seconds,
            outcome.max_rss,
            outcome.reason,
            outcome.status is Status.LOST if unclear else None,
            base64.b64encode(outcome.value).decode() if outcome.value else "",
            base64.b64encode(outcome.sealed).decode() if outcome.sealed else "",
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
        Cursor of the first result, and number of results.
    at
        Time of recording, seconds since the epoch.
    position
        Position of the record in the journal.
    size
        Bytes of the lines.
    lines
        Each result as JSON; None: the lines are to be read from the journal.
    """

    first: int
    count: int
    at: float
    tasks: "array[int]"
    position: Position
    size: int
    lines: Sequence[bytes] | None = None

    @property
    def last(self) -> int:
        """Cursor of the last result."""
        return self.first + self.count - 1


@dataclass(slots=True)
class ResultLog:
    """
    Results of one instance, in the order of recording.

    Parameters
    ----------
    last
        Cursor of the last result; 0: there is none.
    forgotten
        Cursor up to which the client has told that it has the results.
    at
        When the last result was recorded, seconds since the epoch.
    size
        Bytes of the lines of all batches that are kept.
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
        Forget results up to a cursor, which the client has.

        Returns
        -------
        gone : list of RecordedResults
            Batches of which no result is needed any more.
        tasks : list of int
            Tasks of the results that were forgotten by this call.
        """
        gone: list[RecordedResults] = []
        tasks: list[int] = []
        for batch in self.batches:
            if batch.first > through:
                break
            # A record goes only as a whole. The tasks of a record that stays, partly forgotten,
            # must be told apart from those that the next call forgets.
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
        Bytes of all lines kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._batches: deque[RecordedResults] = deque()

    def add(self, batch: RecordedResults) -> None:
        """Add lines that were just recorded, and drop the oldest lines beyond the limit."""
        self._batches.append(batch)
        self._size += batch.size
        while self._size > self._most:
            oldest = self._batches.popleft()
            self._size -= oldest.size
            # Not lost: the batch stays in its instance's index, and is read from the journal if a
            # client still asks for it.
            oldest.lines = None


def decode_result_lines(payload: bytes) -> list[bytes]:
    """Decode the lines of a record of results."""
    return _ended.decode(payload).lines


def index_recorded_results(index: ResultsRecordedIndex, position: Position) -> RecordedResults:
    """Make the index entry of a record of results in the journal."""
    tasks: array[int] = array("I")
    tasks.frombytes(index.tasks)
    size = sum(len(line) for line in index.lines)  # with some bytes of framing each
    return RecordedResults(index.first, len(index.lines), index.at, tasks, position, size)
