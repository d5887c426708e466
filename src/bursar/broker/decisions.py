"""Decisions as the journal keeps them, so that every placement can be explained."""

import msgspec

DECISION = "decision"
"""Kind of the journal events that hold decisions."""


class SiteDecision(msgspec.Struct, frozen=True, array_like=True):
    """
    Part of a decision that concerns one site.

    Parameters
    ----------
    site
        Name of the site.
    price
        Price at the time, currency units per processor-second.
    busy, processors
        Number of processors with running jobs, and of all processors.
    given
        Number of the remaining jobs that the site was to get.
    reason
        Reason for this number.
    """

    site: str
    price: float
    busy: int
    processors: int
    given: int
    reason: str


class PlacementDecision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    A record of which jobs were sent where, and why.

    Parameters
    ----------
    at
        Seconds since the begin of the run.
    strategy
        Name of the strategy.
    left
        Number of jobs that had not been sent.
    time_left, money_left
        Seconds to the deadline, and currency units left of the budget; None for no limit.
    sites
        Part for each site; empty: as in the decision before.
    sent
        Task, site and lease of each job that was sent.
    """

    at: float
    strategy: str
    left: int
    time_left: float | None = None
    money_left: float | None = None
    sites: list[SiteDecision] = []
    sent: list[tuple[int, str, str]] = []
