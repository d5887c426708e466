"""Counters of tasks since the service was started."""

from dataclasses import dataclass


@dataclass(slots=True)
class TaskCounters:
    """
    Counts of tasks since the service was started.

    Parameters
    ----------
    submitted
        Tasks accepted.
    started
        Attempts sent to workers.
    finished
        Tasks with a recorded result.
    delivered
        Results sent to clients, repetitions included.
    lost
        Attempts whose worker was lost.
    retried
        Lost attempts after which the task waits again, with one try used up.
    dropped
        Outcomes of attempts that the worker was not given, or does not have any more.
    """

    submitted: int = 0
    started: int = 0
    finished: int = 0
    delivered: int = 0
    lost: int = 0
    retried: int = 0
    dropped: int = 0
