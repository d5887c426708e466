"""The states of a task, from its submission to its recorded result."""

from enum import IntEnum

from bursar.model.task import Status


class EngineTaskState(IntEnum):
    """
    State of a task in the engine.

    The order counts: what is below CLAIMED has no worker, what is below SUCCEEDED has no recorded
    result, and the rest is final.
    """

    ABSENT = 0
    """No task has this number: the submission could not be written."""
    HELD = 1
    """The submission is not durable yet, or a worker may run the task since before a restart."""
    WAITING = 2
    """Some parent has not succeeded yet, or the task's last attempt is not durable yet."""
    DELAYED = 3
    """The task is ready at a later time: a retry waits, or data is on the way."""
    READY = 4
    """The task may start."""
    CLAIMED = 5
    """A worker has the task."""
    ENDING = 6
    """The task has ended; the result is being written."""
    SUCCEEDED = 7
    FAILED = 8
    TIMED_OUT = 9
    CANCELLED = 10
    SKIPPED = 11
    """A parent ended without success."""
    REFUSED = 12
    """There is no money for the task."""


# Plain numbers for inner loops: looking up a member of an enumeration costs more than the rest of
# the comparison.
ABSENT, HELD, WAITING, DELAYED, READY, CLAIMED, ENDING = range(7)
SUCCEEDED, FAILED, TIMED_OUT, CANCELLED, SKIPPED, REFUSED = range(7, 13)

STATE_OF = {
    Status.SUCCEEDED: SUCCEEDED,
    Status.FAILED: FAILED,
    Status.TIMED_OUT: TIMED_OUT,
    Status.CANCELLED: CANCELLED,
    Status.LOST: FAILED,
}
"""State of a task by the status of its final attempt."""
