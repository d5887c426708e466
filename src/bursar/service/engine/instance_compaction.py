"""Compaction of an instance's records: the journal keeps only what is needed to restore it."""

import msgspec

from bursar.engine.task_states import ENDING, SUCCEEDED
from bursar.service.engine import records
from bursar.service.engine.instance import Instance, InstanceSubmission
from bursar.service.engine.records import ADDED, FORGOT, ResultsForgotten
from bursar.store import Position, RecordStore

REWRITE = 4
"""A submission's record is rewritten when at most one in this many of its tasks is left."""

SMALL = 64
"""Submissions with fewer tasks in their record are never rewritten."""

FEW = 8
"""Records of forgotten results of an instance that may lie side by side before a merge."""

_encode = msgspec.msgpack.Encoder().encode


class InstanceCompaction:
    """
    Rewrites records of an instance, and kills records that are not needed any more.
    """

    def __init__(self, journal: RecordStore) -> None:
        self._journal = journal

    def shrink(self, instance: Instance, submission: InstanceSubmission) -> None:
        """Rewrite or drop the record of a submission most of whose tasks have results."""
        if submission.position is None or submission.left == submission.written:
            return
        if submission.left:
            # Rewriting at a quarter makes the bytes written over a submission's life at most a
            # third more: 1/4 + 1/16 + ...
            if submission.written < SMALL or submission.left * REWRITE > submission.written:
                return
        # With a key an empty record stays: it answers a repetition of the request, until the key
        # expires.
        elif not submission.key:
            self.drop(instance, submission)
            return
        fresh = self.what_is_left(instance, submission)
        self._journal.kill(submission.position)
        submission.position = self._journal.append(ADDED, fresh, essential=True)

    def what_is_left(self, instance: Instance, submission: InstanceSubmission) -> bytes:
        """Return the record of a submission, reduced to the tasks without a result."""
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
        if submission.position is not None:
            self._journal.kill(submission.position)
            submission.position = None
        del instance.submissions[instance.index_of(submission.first)]

    def forget_key(self, instance: Instance, key: str) -> None:
        """Stop remembering the key of a submission."""
        submission = instance.keys.pop(key)
        submission.key, submission.digest = "", b""
        if not submission.left:
            self.drop(instance, submission)

    def forget_cancels(self, instance: Instance) -> None:
        """Kill the records of cancellations once all cancelled tasks have ended."""
        is_over = not instance.winding and not instance.tasks.doomed
        # ENDING: a cancelled task's result may not be durable yet. Without the record a crash now
        # would have the task run.
        if instance.cancels and is_over and not instance.tasks.counts[ENDING]:
            for position in instance.cancels:
                self._journal.kill(position)
            instance.cancels.clear()

    def forget_results(self, instance: Instance, through: int) -> tuple[int, list[tuple[int, int]]]:
        """
        Drop results up to a cursor, which the client has.

        Returns
        -------
        size : int
            Bytes of results that are not kept any more.
        logs : list of tuple of int
            Task and serial of each attempt whose files of long streams are not needed any more.
        """
        results, states = instance.results, instance.tasks.states
        gone, tasks = results.forget(through)
        for batch in gone:
            # The batch is still in the queue of recent results, where its bytes count until it is
            # the oldest; its lines need not wait there.
            batch.lines = None
            self._journal.kill(batch.position)
        # In one batch with the deaths of the results' records: how the tasks ended must be known
        # after a crash, else they would be restored as unfinished and run again.
        self._note_forgotten(instance, records.encode_stated_runs(sorted(tasks), states), 1)
        # Each acknowledgement adds a record. When these outweigh the one that holds all runs, one
        # record takes the place of all: a merge costs about as much as was appended since the last.
        whole, rest = instance.forgot
        if len(instance.forgets) > FEW and rest > whole:
            for position in instance.forgets:
                self._journal.kill(position)
            instance.forgets.clear()
            instance.forgot = [0, 0]
            self._note_forgotten(instance, records.encode_final_runs(states, SUCCEEDED), 0)
        logs = [(task, results.logs.pop(task)) for task in tasks if task in results.logs]
        return sum(batch.size for batch in gone), logs

    def _note_forgotten(self, instance: Instance, runs: bytes, which: int) -> None:
        results = instance.results
        record = _encode(ResultsForgotten(instance.number, results.forgotten, results.at, runs))
        instance.forgets.append(self._journal.append(FORGOT, record, essential=True))
        instance.forgot[which] += len(record)

    def destroy(self, instance: Instance) -> None:
        """Kill all records of an instance."""
        for position in _positions_of(instance):
            self._journal.kill(position)


def _positions_of(instance: Instance) -> list[Position]:
    """Return the positions of all records of an instance."""
    return [
        instance.position,
        *(s.position for s in instance.submissions if s.position is not None),
        *(batch.position for batch in instance.results.batches),
        *instance.forgets,
        *instance.cancels,
        *instance.lost.values(),
    ]
