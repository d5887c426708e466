"""Compaction of an instance's records: the journal keeps only what is needed to restore it."""

import msgspec

from bursar.service.engine import records
from bursar.service.engine.instance import Instance, InstanceSubmission
from bursar.service.engine.locations import RecordLocation, RecordLocations
from bursar.service.engine.records import ADDED, FORGOT, ResultsForgotten
from bursar.service.engine.tasks import ENDING, SUCCEEDED

REWRITE = 4
"""A submission is written anew when so small a part of it is left: one in so many."""

SMALL = 64
"""Tasks of a submission that is not worth that."""

FEW = 8
"""Records of what was forgotten that are not worth being made one."""

_encode = msgspec.msgpack.Encoder().encode


class _TasksAddedHead(msgspec.Struct, frozen=True, array_like=True):
    number: int
    first: int


_added_head = msgspec.msgpack.Decoder(_TasksAddedHead)


def parse_tasks_added_head(payload: bytes) -> tuple[int, int]:
    """Number of the instance, and of the first task, of a record of a submission."""
    head = _added_head.decode(payload)
    return head.number, head.first


class InstanceCompaction:
    """
    Writes an instance's records anew, and kills those that are not needed.

    Parameters
    ----------
    locations
        The engine's records.
    """

    def __init__(self, locations: RecordLocations) -> None:
        self._locations = locations

    def shrink(self, instance: Instance, submission: InstanceSubmission) -> None:
        """Rewrite or drop a submission's record when most of it is no longer needed."""
        if submission.location is None or submission.left == submission.written:
            return
        if submission.left:
            if submission.written < SMALL or submission.left * REWRITE > submission.written:
                return
        elif not submission.key:
            self.drop(instance, submission)
            return
        fresh = self.what_is_left(instance, submission)
        self._locations.kill(submission.location)
        submission.location = self._locations.append(ADDED, fresh, essential=True)

    def what_is_left(self, instance: Instance, submission: InstanceSubmission) -> bytes:
        """Return a submission's record as it is to be written now."""
        submission.written = submission.left
        return _encode(
            instance.tasks.what_is_left(
                instance.number,
                submission.first,
                submission.count,
                submission.key,
                submission.at,
                submission.digest,
            )
        )

    def drop(self, instance: Instance, submission: InstanceSubmission) -> None:
        """Kill the record of a submission that is no longer needed."""
        if submission.location is not None:
            self._locations.kill(submission.location)
            submission.location = None
        del instance.submissions[instance.index_of(submission.first)]

    def forget_key(self, instance: Instance, key: str) -> None:
        """Stop remembering the key of a submission."""
        submission = instance.keys.pop(key)
        submission.key, submission.digest = "", b""
        if not submission.left:
            self.drop(instance, submission)

    def forget_cancels(self, instance: Instance) -> None:
        """Kill the records of cancellations once all cancelled tasks have ended."""
        is_over = not instance.winding and not instance.doomed
        if instance.cancels and is_over and not instance.tasks.counts[ENDING]:
            for location in instance.cancels:
                self._locations.kill(location)
            instance.cancels.clear()

    def forget_results(self, instance: Instance, through: int) -> tuple[int, list[tuple[int, int]]]:
        """
        Drop results up to a cursor, as the client has them.

        Returns
        -------
        size : int
            Bytes that are not kept any more.
        logs : list of tuple of int
            Task and serial of each attempt whose long streams are not needed, either.
        """
        results, states = instance.results, instance.tasks.states
        gone, tasks = results.forget(through)
        for batch in gone:
            batch.lines = None
            self._locations.kill(batch.location)
        self._note_forgotten(instance, records.encode_stated_runs(sorted(tasks), states), 1)
        whole, rest = instance.forgot
        if len(instance.forgets) > FEW and rest > whole:
            for location in instance.forgets:
                self._locations.kill(location)
            instance.forgets.clear()
            instance.forgot = [0, 0]
            self._note_forgotten(instance, records.encode_final_runs(states, SUCCEEDED), 0)
        logs = [(task, results.logs.pop(task)) for task in tasks if task in results.logs]
        return sum(batch.size for batch in gone), logs

    def _note_forgotten(self, instance: Instance, runs: bytes, which: int) -> None:
        results = instance.results
        record = _encode(ResultsForgotten(instance.number, results.forgotten, results.at, runs))
        instance.forgets.append(self._locations.append(FORGOT, record, essential=True))
        instance.forgot[which] += len(record)

    def destroy(self, instance: Instance) -> None:
        """Kill all records of an instance."""
        for location in _locations_of(instance):
            self._locations.kill(location)


def _locations_of(instance: Instance) -> list[RecordLocation]:
    """All records of an instance."""
    return [
        instance.location,
        *(s.location for s in instance.submissions if s.location is not None),
        *(batch.location for batch in instance.results.batches),
        *instance.forgets,
        *instance.cancels,
        *instance.lost.values(),
    ]
