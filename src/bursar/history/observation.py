"""One ended attempt of a task, as a history keeps it."""

import math
from collections.abc import Mapping

import msgspec

from bursar.model.task import Status, Value

LATEST = 1e11
"""Seconds since the epoch after which no task can have started: a time in another unit."""

LONGEST = 1e10
"""Seconds that no task can have taken, about 300 years."""

CENSORED = frozenset({Status.TIMED_OUT, Status.LOST, Status.CANCELLED})
"""Ends that say only that the task would have taken longer than it ran."""


class TaskObservation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """
    One ended attempt of a task.

    Parameters
    ----------
    execution
        Name of the run or recorded execution; its tasks share what varies from day to day.
    task
        Id of the task in the execution.
    attempt
        1 for the first.
    kind
        Kind of task: the task's name, or the program of a recorded task without its numbering.
    template
        Command before values are put in; empty when unknown.
    parameters
        Values of the point of the sweep by name.
    input_bytes
        Sum of the sizes of its input files; None when one is unknown.
    site, host
        Where it ran; empty when unknown.
    processors
        Processors that it held. Positive.
    speed
        Speed of the site beside speed 1, in which estimates are told. Positive.
    start
        Seconds since the epoch; 0 when unknown.
    seconds
        Run time at that site. Not negative. Of a censored observation: how long it ran until it
        was stopped.
    waited
        Seconds from being ready to the start; None when unknown.
    transferred
        Seconds of file transfer; None when unknown.
    max_rss
        Peak memory, bytes; None when unknown.
    user_seconds, system_seconds
        Processor time; None when unknown.
    status
        How the attempt ended.
    estimate
        Run time at speed 1 that was expected before, seconds; None: nothing was.
    source
        Who observed: ``"run"``, or the format that it was imported from.

    Raises
    ------
    ValueError
        When a value is out of range.
    """

    execution: str
    task: str
    attempt: int = 1
    kind: str
    template: str = ""
    parameters: Mapping[str, Value] = {}
    input_bytes: int | None = None
    site: str = ""
    host: str = ""
    processors: int = 1
    speed: float = 1.0
    start: float = 0.0
    seconds: float
    waited: float | None = None
    transferred: float | None = None
    max_rss: int | None = None
    user_seconds: float | None = None
    system_seconds: float | None = None
    status: Status = Status.SUCCEEDED
    estimate: float | None = None
    source: str = "run"

    def __post_init__(self) -> None:
        for name in ("execution", "task", "kind"):
            if not getattr(self, name):
                raise ValueError(f"{name} must not be empty")
        for name in ("seconds", "waited", "transferred", "user_seconds", "system_seconds"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < LONGEST:
                raise ValueError(f"{name} must be between 0 and {LONGEST:g}, got {value:g}")
        if not 0 <= self.start < LATEST:
            raise ValueError(f"start must be between 0 and {LATEST:g}, got {self.start:g}")
        if self.estimate is not None and not 0 <= self.estimate < math.inf:
            raise ValueError(f"estimate must be finite and not negative, got {self.estimate:g}")
        if not 0 < self.speed < math.inf:
            raise ValueError(f"speed must be finite and positive, got {self.speed:g}")
        for name, least in (("attempt", 1), ("processors", 1), ("input_bytes", 0), ("max_rss", 0)):
            value = getattr(self, name)
            if value is not None and not least <= value < 2**63:
                raise ValueError(f"{name} must be at least {least} and below 2^63, got {value}")

    @property
    def is_censored(self) -> bool:
        """Whether the attempt was stopped, so that its run time is only a lower bound."""
        return self.status in CENSORED
