"""Instances as the journal tells of them, whatever the order of its records."""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from bursar.model.errors import InputError
from bursar.service.engine import records
from bursar.service.engine.instance import Instance, Submission
from bursar.service.engine.records import (
    Added,
    Created,
    Destroyed,
    EndedIndex,
    Forgot,
    Lost,
    Numbers,
    Spent,
    Unwanted,
)
from bursar.service.engine.results import batch_of
from bursar.service.engine.spots import Spot, Spots
from bursar.service.engine.tasks import ABSENT, SUCCEEDED

_created = msgspec.msgpack.Decoder(Created)
_added = msgspec.msgpack.Decoder(Added)
_ended = msgspec.msgpack.Decoder(EndedIndex)
_forgot = msgspec.msgpack.Decoder(Forgot)
_unwanted = msgspec.msgpack.Decoder(Unwanted)
_lost = msgspec.msgpack.Decoder(Lost)
_destroyed = msgspec.msgpack.Decoder(Destroyed)
_spent = msgspec.msgpack.Decoder(Spent)
_numbers = msgspec.msgpack.Decoder(Numbers)


@dataclass(slots=True)
class _Gathered:
    """What the records say of one instance."""

    created: tuple[Created, Spot] | None = None
    added: list[tuple[Added, Spot]] = field(default_factory=list)
    ended: list[tuple[EndedIndex, Spot]] = field(default_factory=list)
    forgot: list[tuple[Forgot, Spot, int]] = field(default_factory=list)
    unwanted: list[tuple[Unwanted, Spot]] = field(default_factory=list)
    lost: list[tuple[Lost, Spot]] = field(default_factory=list)

    def spots(self) -> list[Spot]:
        """Where all of them lie."""
        groups = (self.added, self.ended, self.forgot, self.unwanted, self.lost)
        return [item[1] for group in groups for item in group]


class Restoring:
    """
    Takes in records and makes instances of them.

    Attributes
    ----------
    below
        Numbers of instances that are not to be used again.
    numbers
        Where that is written; None: nowhere.
    homes
        Of instances that are gone: to be removed.
    spent
        Keys of instances that are gone.
    """

    def __init__(self, spots: Spots) -> None:
        self._spots = spots
        self._gathered: dict[int, _Gathered] = {}
        self.below = 1
        self.numbers: Spot | None = None
        self.homes: list[tuple[str, Spot]] = []
        self.spent: list[tuple[Spent, Spot]] = []

    def take(self, kind: int, position: int, payload: bytes) -> None:
        """
        A record.

        Raises
        ------
        InputError
            When it is of another kind of machine.
        """
        spot = self._spots.found(position)
        match kind:
            case records.CREATED:
                created = _created.decode(payload)
                self._of(created.number).created = created, spot
            case records.ADDED:
                added = _added.decode(payload)
                self._of(added.number).added.append((added, spot))
            case records.ENDED:
                ended = _ended.decode(payload)
                self._of(ended.number).ended.append((ended, spot))
            case records.FORGOT:
                forgot = _forgot.decode(payload)
                self._of(forgot.number).forgot.append((forgot, spot, len(payload)))
            case records.UNWANTED:
                unwanted = _unwanted.decode(payload)
                self._of(unwanted.number).unwanted.append((unwanted, spot))
            case records.LOST:
                lost = _lost.decode(payload)
                self._of(lost.number).lost.append((lost, spot))
            case records.DESTROYED:
                self.homes.append((_destroyed.decode(payload).folder, spot))
            case records.SPENT:
                self.spent.append((_spent.decode(payload), spot))
            case records.NUMBERS:
                numbers = _numbers.decode(payload)
                if numbers.machine != records.MACHINE:
                    raise InputError(
                        f"the journal is of another kind of machine ({numbers.machine}, this one "
                        f"is {records.MACHINE})"
                    )
                self.below = max(self.below, numbers.below)
                self.numbers = spot

    def instances(self, pool_of: Callable[[Instance], str]) -> list[Instance]:
        """All instances, in the order in which they were made; what is left of others goes."""
        found: list[Instance] = []
        for number in sorted(self._gathered):
            gathered = self._gathered[number]
            if gathered.created is None:
                for spot in gathered.spots():
                    self._spots.kill(spot)
                continue
            instance = Instance.of(*gathered.created)
            instance.pool = pool_of(instance)
            self._fill(instance, gathered)
            found.append(instance)
        self._gathered.clear()
        return found

    def _of(self, number: int) -> _Gathered:
        return self._gathered.setdefault(number, _Gathered())

    def _fill(self, instance: Instance, gathered: _Gathered) -> None:
        tasks, results = instance.tasks, instance.results
        for forgot, spot, size in gathered.forgot:
            for first, count, state in records.in_stated_runs(forgot.runs):
                tasks.fix(first, count, state)
            results.forgotten = max(results.forgotten, forgot.through)
            results.at = max(results.at, forgot.at)
            instance.forgets.append(spot)
            instance.forgot[1] += size
        results.last = results.forgotten
        for ended, spot in sorted(gathered.ended, key=lambda item: item[0].first):
            batch = batch_of(ended, spot)
            for task, state in zip(batch.tasks, ended.states, strict=True):
                tasks.fix(task, 1, state)
            if batch.last <= results.forgotten:
                self._spots.kill(spot)
                continue
            results.add(batch)
            results.logs.update(ended.logs)
        for added, spot in sorted(gathered.added, key=lambda item: item[0].first):
            left = len(tasks.place(added))
            tasks.grow(added.first + added.count)
            submission = Submission(
                added.first, added.count, added.key, added.at, spot, len(added.bodies), left
            )
            instance.submissions.append(submission)
            if added.key:
                instance.keys[added.key] = submission
        instance.promised = instance.restored = len(tasks)
        for unwanted, spot in gathered.unwanted:
            instance.cancels.append(spot)
            for run in records.in_runs(unwanted.runs):
                instance.doomed.update(
                    task for task in run if ABSENT < tasks.states[task] < SUCCEEDED
                )
        for lost, spot in gathered.lost:
            if lost.task < len(tasks) and tasks.states[lost.task] < SUCCEEDED:
                instance.lost[lost.task] = spot
                tasks.losses[lost.task] = lost.times
            else:
                self._spots.kill(spot)
