"""Defines a job on its way through the grid."""

from enum import IntEnum

from bursar.simulation.datagrid.grid_workload import GridJobClass


class GridJobState(IntEnum):
    """Where a job is."""

    PAUSED = 0
    """Failed or refused; it goes to the broker again after a pause."""
    STAGING = 1
    """At the submission service, waiting for its files."""
    SUBMITTING = 2
    """At the submission service, with its files at its site."""
    QUEUED = 3
    """At its computing element."""
    RUNNING = 4
    FINISHED = 5
    FAILED = 6


class GridJob:
    """
    Holds a job's state and the files that the job holds.

    Parameters
    ----------
    number
        In order of submission, from 0.
    kind
        What it asks for.
    work
        Seconds at speed 1 that it takes.
    """

    __slots__ = (
        "attempt",
        "avoids",
        "kind",
        "missing",
        "number",
        "own",
        "pinned",
        "reason",
        "site",
        "state",
        "work",
    )

    def __init__(self, number: int, kind: GridJobClass, work: float) -> None:
        self.number = number
        self.kind = kind
        self.work = work
        self.state = GridJobState.PAUSED
        self.site = -1
        self.attempt = 0
        self.avoids: tuple[str, ...] = ()
        """Sites where it failed."""
        self.missing: set[str] = set()
        """Files that are not there yet."""
        self.pinned: list[str] = []
        """Files of its site's storage that it uses."""
        self.own: set[str] = set()
        """Files that were brought for it alone."""
        self.reason = ""
        """Why it failed last."""
