"""Statuses published by sites, and the readings that an index gives."""

from collections.abc import Mapping
from dataclasses import dataclass, field

Fact = str | int | float | bool
"""A published value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteStatus:
    """
    State of a site, as published by the site at a given time.

    Parameters
    ----------
    at
        When the site said so, seconds on the clock of who reads it.
    free_processors
        Processors that no job holds.
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
    Status of a site in an index, with the age of the status.

    Parameters
    ----------
    status
        Status published by the site.
    age
        Seconds since then.
    """

    status: SiteStatus
    age: float
