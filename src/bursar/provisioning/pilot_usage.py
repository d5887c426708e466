"""What a site's scheduler has recorded of pilots, as it is kept with a run."""

import msgspec

USAGE = ".usage.jsonl"
"""Ending of the files that hold it, one for each site, a line for each pilot."""


class PilotUsage(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a pilot took, by its scheduler's record.

    Parameters
    ----------
    pilot
        Its name; of its lease.
    job
        The scheduler's name of it.
    processors, seconds
        That it held.
    how
        It ended.
    """

    pilot: str
    job: str
    processors: int
    seconds: float
    how: str
