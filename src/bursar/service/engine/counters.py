"""Counters of tasks since the service was started."""

from dataclasses import dataclass

from bursar.engine.attempt_ends import AttemptCounters


@dataclass(slots=True)
class TaskCounters(AttemptCounters):
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
    """

    submitted: int = 0
    started: int = 0
    finished: int = 0
    delivered: int = 0
