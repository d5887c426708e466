"""Statuses that sites publish, and readings of them from an index."""

from collections.abc import Mapping
from dataclasses import dataclass, field

Fact = str | int | float | bool
"""A published value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteStatus:
    """
    The state of a site, as the site published it at a given time.

    Parameters
    ----------
    site
        Name of the site.
    at
        When the site said so, seconds on the clock of who reads it.
    free_processors
        That no job holds.
    running, waiting
        Jobs.
    traversal_time
        Estimated traversal time of its queue: seconds that a job of one processor that is
        submitted now would wait before it begins; None when unknown.
    free_memory
        Bytes; None when unknown.
    state
        ``"Production"`` while it takes jobs.
    attributes
        Further ones, by name.
    """

    site: str
    at: float
    free_processors: int
    running: int = 0
    waiting: int = 0
    traversal_time: float | None = None
    free_memory: int | None = None
    state: str = "Production"
    attributes: Mapping[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StatusReading:
    """
    The status of a site in an index, with its age.

    Parameters
    ----------
    status
        As the site said.
    age
        Seconds since then.
    """

    status: SiteStatus
    age: float
