"""Decisions as the journal keeps them, so that every placement can be explained."""

import msgspec

DECISION = "decision"
"""Kind of their events."""


class SiteDecision(msgspec.Struct, frozen=True, array_like=True):
    """
    What a decision made of a site.

    Parameters
    ----------
    site
        Its name.
    price
        Currency units per processor-second, then.
    busy, processors
        How many were running jobs, of how many.
    given
        Jobs that it was to get of those that were left.
    reason
        Why.
    """

    site: str
    price: float
    busy: int
    processors: int
    given: int
    reason: str


class PlacementDecision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    Which jobs were sent where, and why.

    Parameters
    ----------
    at
        Seconds since the begin of the run.
    strategy
        By which.
    left
        Jobs that had not been sent.
    time_left, money_left
        To the deadline, seconds, and of the budget; None for no limit.
    sites
        How each was weighed; empty: as in the decision before.
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
