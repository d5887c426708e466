"""Defines a job that passes through the grid."""

from enum import IntEnum

from bursar.simulation.datagrid.grid_workload import GridJobClass


class GridJobState(IntEnum):
    """State of a job."""

    PAUSED = 0
    """Failed or refused, and due at the broker again after a pause."""
    STAGING = 1
    """Waiting for files at the submission service."""
    SUBMITTING = 2
    """Waiting at the submission service to be handed over; all files are at the site."""
    QUEUED = 3
    """Waiting in the queue of the computing element."""
    RUNNING = 4
    FINISHED = 5
    FAILED = 6


class GridJob:
    """
    Holds a job's state and the files that the job holds.

    Parameters
    ----------
    number
        Number in order of submission, from 0.
    kind
        Class of the job: files, processors and runtime.
    work
        Seconds that the job takes at speed 1.
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
        """Sites where the job failed."""
        self.missing: set[str] = set()
        """Files that are not at the site yet."""
        self.pinned: list[str] = []
        """Files in the site's storage that the job has pinned."""
        self.own: set[str] = set()
        """Files that were brought for this job alone."""
        self.reason = ""
        """Reason of the last failure."""
