"""Usage of pilots by the records of a site's scheduler, kept with a run."""

import msgspec

USAGE = ".usage.jsonl"
"""Suffix of the usage files, one for each site, with a line for each pilot."""


class PilotUsage(msgspec.Struct, frozen=True, kw_only=True):
    """
    Usage of a pilot by the scheduler's record.

    Parameters
    ----------
    pilot
        Name of the pilot and of its lease.
    job
        Id of the scheduler's job.
    processors, seconds
        Number of processors that it held, and for how long.
    how
        Ending of the pilot's job.
    """

    pilot: str
    job: str
    processors: int
    seconds: float
    how: str
