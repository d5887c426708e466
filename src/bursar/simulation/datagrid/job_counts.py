"""Counts all jobs of a simulation by the service that holds them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GridJobCounts:
    """
    Jobs by where they are.

    Parameters
    ----------
    submitted
        All that there have been.
    paused
        That failed or matched nothing, and go to the broker again.
    staging
        At the submission service, waiting for files.
    submitting
        At the submission service, with their files.
    queued, running
        At the computing elements.
    finished, failed
        That are done with.
    """

    submitted: int
    paused: int
    staging: int
    submitting: int
    queued: int
    running: int
    finished: int
    failed: int

    @property
    def is_whole(self) -> bool:
        """Whether every job is at one place."""
        return self.submitted == (
            self.paused
            + self.staging
            + self.submitting
            + self.queued
            + self.running
            + self.finished
            + self.failed
        )
