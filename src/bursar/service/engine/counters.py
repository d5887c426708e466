"""Counters of tasks since the service was started."""

from dataclasses import dataclass


@dataclass(slots=True)
class TaskCounters:
    """
    Tasks since the service was started.

    Parameters
    ----------
    submitted
        That were taken.
    started
        Attempts handed to workers.
    finished
        With a recorded result.
    delivered
        Results that clients were given, those given again included.
    lost
        Attempts whose worker went away.
    retried
        Of these, tasks that wait again.
    dropped
        Outcomes of tasks that the worker had not been given, or no longer.
    """

    submitted: int = 0
    started: int = 0
    finished: int = 0
    delivered: int = 0
    lost: int = 0
    retried: int = 0
    dropped: int = 0
