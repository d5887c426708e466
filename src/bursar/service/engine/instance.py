"""An instance: its owner, tasks, results, and the positions of its records."""

from bisect import bisect_right
from dataclasses import dataclass, field

from bursar.remote import messages as api
from bursar.service.engine.locations import RecordLocation
from bursar.service.engine.records import InstanceCreated
from bursar.service.engine.results import ResultLog
from bursar.service.engine.tasks import (
    ABSENT,
    BITS,
    CANCELLED,
    CLAIMED,
    ENDING,
    FAILED,
    HELD,
    READY,
    SUCCEEDED,
    TIMED_OUT,
    TaskColumns,
)

_SMOOTHING = 0.1
"""Of what was learned of runtimes, how much one more task changes."""


@dataclass(slots=True)
class InstanceSubmission:
    """
    Tasks that were submitted together, without them.

    Parameters
    ----------
    first, count
        Their numbers.
    key, at
        By which they were submitted, and when.
    location
        Of the record; None: there is none any more.
    written, left
        Tasks that are in the record, and of these without a recorded result.
    digest
        See :class:`bursar.service.engine.records.TasksAdded`.
    """

    first: int
    count: int
    key: str
    at: float
    location: RecordLocation | None
    written: int
    left: int
    digest: bytes = b""


@dataclass(slots=True, eq=False)
class Instance:
    """
    One instance of a user.

    Parameters
    ----------
    number
        By which workers and the journal name it.
    handle, user, label, agreement, created, keep
        See :class:`bursar.remote.messages.InstanceInfo`.
    folder
        Name of its home.
    key, digest
        See :class:`bursar.service.engine.records.InstanceCreated`.
    location
        Of its record.
    pool
        Whose workers run its tasks.
    doomed
        Tasks that were cancelled and are not at their end yet.
    winding
        Cancellations that are under way.
    promised
        Numbers below this one are given away.
    restored
        Tasks with numbers below this one are from before the last restart.
    home
        MessagePack of its home's path.
    forgot
        Bytes of the records that say what was forgotten: of the first, and of all others.
    destroyed
        It is gone; a worker may still have to say so.
    mean
        Seconds that its tasks take, as learned; None: nothing has ended.
    owed
        Processor-seconds that it had and was not charged in its turns, or less.
    """

    number: int
    handle: str
    user: str
    label: str
    agreement: str
    created: float
    keep: float
    folder: str
    key: str
    location: RecordLocation
    digest: bytes = b""
    pool: str = ""
    tasks: TaskColumns = field(default_factory=TaskColumns)
    results: ResultLog = field(default_factory=ResultLog)
    submissions: list[InstanceSubmission] = field(default_factory=list)
    keys: dict[str, InstanceSubmission] = field(default_factory=dict)
    forgets: list[RecordLocation] = field(default_factory=list)
    cancels: list[RecordLocation] = field(default_factory=list)
    lost: dict[int, RecordLocation] = field(default_factory=dict)
    doomed: set[int] = field(default_factory=set)
    winding: int = 0
    promised: int = 0
    restored: int = 0
    home: bytes = b""
    forgot: list[int] = field(default_factory=lambda: [0, 0])
    destroyed: bool = False
    mean: float | None = None
    owed: float = 0.0

    @classmethod
    def of(cls, created: InstanceCreated, location: RecordLocation) -> "Instance":
        """Make an instance without tasks from its record."""
        return cls(
            number=created.number,
            handle=created.handle,
            user=created.user,
            label=created.label,
            agreement=created.agreement,
            created=created.created,
            keep=created.keep,
            folder=created.folder,
            key=created.key,
            digest=created.digest,
            location=location,
        )

    @property
    def base(self) -> int:
        """Number that is added to a task's number on the wire."""
        return self.number << BITS

    @property
    def expires(self) -> float | None:
        """When the instance is to be destroyed; None while tasks are unfinished."""
        if self.tasks.unfinished:
            return None
        return max(self.created, self.results.at) + self.keep

    @property
    def is_over(self) -> bool:
        """Whether every task has its result."""
        return not self.tasks.unfinished

    def submission_of(self, task: int) -> InstanceSubmission:
        """Return the submission that holds a task."""
        return self.submissions[self.index_of(task)]

    def index_of(self, task: int) -> int:
        """Return the index of the submission that holds a task."""
        return bisect_right(self.submissions, task, key=lambda submission: submission.first) - 1

    def learn(self, seconds: float) -> None:
        """Update the mean runtime by one task's, in seconds."""
        mean = self.mean
        self.mean = seconds if mean is None else mean + _SMOOTHING * (seconds - mean)

    def info(self, note: str, spent: int) -> api.InstanceInfo:
        """Return the instance as the API shows it, with its cost on shared processors."""
        return api.InstanceInfo(
            id=self.handle,
            label=self.label,
            agreement=self.agreement,
            created=self.created,
            counts=self.counts(),
            results=self.results.last,
            kept_from=self.results.forgotten,
            expires=self.expires,
            note=note,
            spent=spent,
        )

    def counts(self) -> api.Counts:
        """Return the number of tasks in each state."""
        counts = self.tasks.counts
        return api.Counts(
            total=sum(counts) - counts[ABSENT],
            waiting=counts[HELD] + counts[READY],
            running=counts[CLAIMED] + counts[ENDING],
            succeeded=counts[SUCCEEDED],
            failed=counts[FAILED] + counts[TIMED_OUT],
            cancelled=counts[CANCELLED],
        )
