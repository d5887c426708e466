"""Restoring of instances from the records of the journal, which come in any order."""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from bursar.engine.task_states import ABSENT, SUCCEEDED
from bursar.model.errors import InputError
from bursar.service.engine import records
from bursar.service.engine.instance import Instance, InstanceSubmission
from bursar.service.engine.records import (
    InstanceCreated,
    InstanceDestroyed,
    KeySpent,
    NumbersUsed,
    ResultsForgotten,
    ResultsRecordedIndex,
    TaskLost,
    TasksAdded,
    TasksCancelled,
)
from bursar.service.engine.results import index_recorded_results
from bursar.store import Position, RecordStore

_created = msgspec.msgpack.Decoder(InstanceCreated)
_added = msgspec.msgpack.Decoder(TasksAdded)
_ended = msgspec.msgpack.Decoder(ResultsRecordedIndex)
_forgot = msgspec.msgpack.Decoder(ResultsForgotten)
_unwanted = msgspec.msgpack.Decoder(TasksCancelled)
_lost = msgspec.msgpack.Decoder(TaskLost)
_destroyed = msgspec.msgpack.Decoder(InstanceDestroyed)
_spent = msgspec.msgpack.Decoder(KeySpent)
_numbers = msgspec.msgpack.Decoder(NumbersUsed)


@dataclass(slots=True)
class _InstanceRecords:
    """Records of one instance found so far."""

    created: tuple[InstanceCreated, Position] | None = None
    added: list[tuple[TasksAdded, Position]] = field(default_factory=list)
    ended: list[tuple[ResultsRecordedIndex, Position]] = field(default_factory=list)
    forgot: list[tuple[ResultsForgotten, Position, int]] = field(default_factory=list)
    unwanted: list[tuple[TasksCancelled, Position]] = field(default_factory=list)
    lost: list[tuple[TaskLost, Position]] = field(default_factory=list)

    def positions(self) -> list[Position]:
        """Return the positions of all records but the one of the creation."""
        groups = (self.added, self.ended, self.forgot, self.unwanted, self.lost)
        return [item[1] for group in groups for item in group]


class InstanceRestorer:
    """
    Collects records, and makes instances when all records are there.

    Attributes
    ----------
    below
        Numbers below this one must not be given to new instances.
    numbers
        Position of the record that says so; None: there is no such record.
    homes
        Name and record of each home that is still to be removed.
    spent
        Keys of destroyed instances, each with the position of the record.
    """

    def __init__(self, journal: RecordStore) -> None:
        self._journal = journal
        self._gathered: dict[int, _InstanceRecords] = {}
        self.below = 1
        self.numbers: Position | None = None
        self.homes: list[tuple[str, Position]] = []
        self.spent: list[tuple[KeySpent, Position]] = []

    def take(self, kind: int, position: int, payload: bytes) -> None:
        """
        Take in one record.

        Raises
        ------
        InputError
            When the journal was written on a machine of another byte order or word size.
        """
        match kind:
            case records.CREATED:
                created = _created.decode(payload)
                self._of(created.number).created = created, position
            case records.ADDED:
                added = _added.decode(payload)
                self._of(added.number).added.append((added, position))
            case records.ENDED:
                ended = _ended.decode(payload)
                # Its lines stay encoded: millions of results are not decoded at a start.
                self._of(ended.number).ended.append((ended, position))
            case records.FORGOT:
                forgot = _forgot.decode(payload)
                self._of(forgot.number).forgot.append((forgot, position, len(payload)))
            case records.UNWANTED:
                unwanted = _unwanted.decode(payload)
                self._of(unwanted.number).unwanted.append((unwanted, position))
            case records.LOST:
                lost = _lost.decode(payload)
                self._of(lost.number).lost.append((lost, position))
            case records.DESTROYED:
                self.homes.append((_destroyed.decode(payload).folder, position))
            case records.SPENT:
                self.spent.append((_spent.decode(payload), position))
            case records.NUMBERS:
                numbers = _numbers.decode(payload)
                # Columns lie in the journal as in memory: on another kind of machine they would
                # be read as other numbers. None is read before all records were taken.
                if numbers.machine != records.MACHINE:
                    raise InputError(
                        f"the journal is of another kind of machine ({numbers.machine}, this one "
                        f"is {records.MACHINE})"
                    )
                self.below = max(self.below, numbers.below)
                self.numbers = position

    def instances(self, pool_of: Callable[[Instance], str]) -> list[Instance]:
        """Return all instances, the oldest first, and kill stray records of destroyed ones."""
        found: list[Instance] = []
        for number in sorted(self._gathered):
            gathered = self._gathered[number]
            # Strays: results, for one, that were being written when their instance was destroyed,
            # if the service was killed before it could kill their record.
            if gathered.created is None:
                for position in gathered.positions():
                    self._journal.kill(position)
                continue
            instance = Instance.of(*gathered.created)
            instance.pool = pool_of(instance)
            self._fill(instance, gathered)
            found.append(instance)
        self._gathered.clear()
        return found

    def _of(self, number: int) -> _InstanceRecords:
        return self._gathered.setdefault(number, _InstanceRecords())

    def _fill(self, instance: Instance, gathered: _InstanceRecords) -> None:
        tasks, results = instance.tasks, instance.results
        # The order of the three loops matters: fix() enters final states for absent tasks only,
        # and place() leaves all but absent tasks alone. So a task with a result is not restored as
        # unfinished, though the record of its submission still has it.
        for forgot, position, size in gathered.forgot:
            for first, count, state in records.decode_stated_runs(forgot.runs):
                tasks.fix(first, count, state)
            # Runs of several records are united, and the greatest cursor counts: any order will
            # do.
            results.forgotten = max(results.forgotten, forgot.through)
            results.at = max(results.at, forgot.at)
            instance.forgets.append(position)
            instance.forgot[1] += size
        results.last = results.forgotten
        for ended, position in sorted(gathered.ended, key=lambda item: item[0].first):
            batch = index_recorded_results(ended, position)
            for task, state in zip(batch.tasks, records.decode_states(ended.states), strict=True):
                tasks.fix(task, 1, state)
            if batch.last <= results.forgotten:
                self._journal.kill(position)
                continue
            results.add(batch)
            results.logs.update(ended.logs)
        for added, position in sorted(gathered.added, key=lambda item: item[0].first):
            left = len(tasks.place(added, is_restored=True))
            tasks.grow(added.first + added.count)
            submission = InstanceSubmission(
                added.first,
                added.count,
                added.key,
                added.at,
                position,
                len(added.bodies),
                left,
                added.digest,
            )
            instance.submissions.append(submission)
            if added.key:
                instance.keys[added.key] = submission
        # Numbers of a submission whose record is gone, as all of its tasks ended, are known from
        # results and forgotten runs: none is given out again.
        instance.promised = instance.tasks.restored = len(tasks)
        for unwanted, position in gathered.unwanted:
            instance.cancels.append(position)
            for run in records.decode_runs(unwanted.runs):
                # Without those that ended before the cancellation reached them.
                instance.tasks.doomed.update(
                    task for task in run if ABSENT < tasks.states[task] < SUCCEEDED
                )
        for lost, position in gathered.lost:
            if lost.task < len(tasks) and tasks.states[lost.task] < SUCCEEDED:
                instance.lost[lost.task] = position
                if lost.times:
                    tasks.losses[lost.task] = lost.times
                if lost.failures:
                    tasks.failures[lost.task] = lost.failures
                if lost.serials:
                    tasks.counted[lost.task] = lost.serials
            else:
                self._journal.kill(position)
