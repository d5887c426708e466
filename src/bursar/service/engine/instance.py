"""An instance: its owner, tasks, results, and the positions of its records."""

import asyncio
from bisect import bisect_right
from dataclasses import dataclass, field

from bursar.engine.ready_tasks import BITS
from bursar.engine.task_states import (
    ABSENT,
    CANCELLED,
    CLAIMED,
    ENDING,
    FAILED,
    HELD,
    SKIPPED,
    SUCCEEDED,
    TIMED_OUT,
)
from bursar.remote import messages as api
from bursar.remote.forecast_messages import InstanceForecast
from bursar.service.engine.records import InstanceCreated
from bursar.service.engine.results import ResultLog
from bursar.service.engine.tasks import SubmittedTasks
from bursar.store import Position


@dataclass(slots=True)
class InstanceSubmission:
    """
    A submission: which tasks came together, and where the record with these tasks lies.

    Parameters
    ----------
    first, count
        Number of the first task, and number of tasks.
    key, at
        Idempotency key (empty: none, or forgotten), and time in seconds since the epoch.
    position
        Position of the record; None: the record was killed.
    written, left
        Number of tasks in the record, and how many of these have no recorded result.
    digest
        See :class:`bursar.service.engine.records.TasksAdded`.
    """

    first: int
    count: int
    key: str
    at: float
    position: Position | None
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
        Number by which workers and the journal name the instance.
    handle, user, label, agreement, created, keep, deadline, budget, forecast
        See :class:`bursar.remote.messages.InstanceInfo`.
    folder
        Name of the instance's home.
    key, digest
        See :class:`bursar.service.engine.records.InstanceCreated`.
    submissions
        Submissions with tasks that are still needed, or with a key, by first task.
    keys
        Submissions by idempotency key, the oldest first.
    forgets, cancels, lost
        Positions of the records of forgotten results, of cancellations, and, by task, of losses.
    winding
        Number of cancellations under way.
    promised
        Task numbers below this one are taken.
    home
        Path of the home, encoded for workers.
    forgot
        Bytes of the records in ``forgets``: of the one with all runs, and of all others.
    destroyed
        Whether the instance was destroyed; workers may still have tasks of it.
    owed
        Processor-seconds used beyond those charged to the fair share; negative: fewer used.
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
    position: Position
    digest: bytes = b""
    pool: str = ""
    tasks: SubmittedTasks = field(default_factory=SubmittedTasks)
    results: ResultLog = field(default_factory=ResultLog)
    submissions: list[InstanceSubmission] = field(default_factory=list)
    keys: dict[str, InstanceSubmission] = field(default_factory=dict)
    forgets: list[Position] = field(default_factory=list)
    cancels: list[Position] = field(default_factory=list)
    lost: dict[int, Position] = field(default_factory=dict)
    winding: int = 0
    promised: int = 0
    home: bytes = b""
    forgot: list[int] = field(default_factory=lambda: [0, 0])
    destroyed: bool = False
    owed: float = 0.0
    deadline: float | None = None
    budget: int | None = None
    forecast: InstanceForecast | None = None
    _change: asyncio.Event | None = None  # None: nobody waits for one

    @classmethod
    def of(cls, created: InstanceCreated, position: Position) -> "Instance":
        """Make an instance without tasks from the record of the creation."""
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
            position=position,
            deadline=created.deadline,
            budget=created.budget,
        )

    @property
    def base(self) -> int:
        """Number that is added to a task's number on the wire."""
        return self.number << BITS

    @property
    def expires(self) -> float | None:
        """Time at which the instance expires, seconds since the epoch; None while work is left."""
        if self.tasks.unfinished:
            return None
        return max(self.created, self.results.at) + self.keep

    @property
    def is_over(self) -> bool:
        """Whether every task has a recorded result."""
        return not self.tasks.unfinished

    async def changed(self) -> None:
        """Wait for the next change of the instance."""
        if self._change is None:
            self._change = asyncio.Event()
        await self._change.wait()

    def wake(self) -> None:
        """Wake all that wait for a change of the instance."""
        # Whoever waits next gets a new event: one that stays set would make waiters spin.
        event, self._change = self._change, None
        if event is not None:
            event.set()

    def submission_of(self, task: int) -> InstanceSubmission:
        """Return the submission that holds a task."""
        return self.submissions[self.index_of(task)]

    def index_of(self, task: int) -> int:
        """Return the index of the submission that holds a task."""
        return bisect_right(self.submissions, task, key=lambda submission: submission.first) - 1

    def info(self, note: str, spent: int) -> api.InstanceInfo:
        """Return the instance in the form of the API; ``spent`` is in micro-units."""
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
            deadline=self.deadline,
            budget=self.budget,
            forecast=self.forecast,
        )

    def counts(self) -> api.Counts:
        """Return the number of tasks in each state."""
        counts = self.tasks.counts
        return api.Counts(
            # Numbers whose submission could not be written are no tasks.
            total=sum(counts) - counts[ABSENT],
            waiting=sum(counts[HELD:CLAIMED]),
            running=counts[CLAIMED] + counts[ENDING],
            succeeded=counts[SUCCEEDED],
            failed=counts[FAILED] + counts[TIMED_OUT],
            cancelled=counts[CANCELLED],
            skipped=counts[SKIPPED],
        )
