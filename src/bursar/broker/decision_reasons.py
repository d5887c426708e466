"""Decisions and bookings as the journal keeps them, and the reasons for the share of each site."""

import math

import msgspec

from bursar.broker.adviser import ScheduleAdvice, SchedulingSnapshot
from bursar.market.agreement import Agreement

# Journal record of a booked job.

BOOKING = "booking"
"""Kind of a journal's event that holds a booking."""

BOOKING_OVER = "booking-over"
"""Kind of a journal's event that holds the lease of a booking that was given back."""


class Booking(msgspec.Struct, frozen=True, kw_only=True):
    """
    An agreement on a processor for one job that begins later.

    Parameters
    ----------
    lease
        Name of the lease under which the processor is held and paid from its begin.
    """

    lease: str
    task: int
    agreement: Agreement


# Decisions as the journal keeps them, so that every placement can be explained.

DECISION = "decision"
"""Kind of the journal events that hold decisions."""


class SiteDecision(msgspec.Struct, frozen=True, array_like=True):
    """
    Part of a decision that concerns one site.

    Parameters
    ----------
    price
        Price at the time, currency units per processor-second.
    busy, processors
        Number of processors with running jobs, and of all processors.
    given
        Number of the remaining jobs that the site was to get.
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


# Reasons for the share of each site, kept where a reason has changed.


class DecisionReasons:
    """
    Keeps the reasons of the last advice for the next decision.

    A campaign of many jobs gets advice more often than its reasons change. They are kept when a
    site is used that was not, or at another price, and otherwise once for each hundredth of
    the jobs.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._sites: list[SiteDecision] = []
        self._used: list[tuple[str, bool, float]] = []
        self._left = math.inf  # jobs when reasons were kept last

    def note(self, situation: SchedulingSnapshot, advice: ScheduleAdvice, left: int) -> None:
        """
        Keep the changed reasons of an advice.

        Parameters
        ----------
        left
            Number of jobs that have not been sent.
        """
        weighed = [
            SiteDecision(
                site.name,
                site.price,
                len(site.running),
                site.processors,
                sum(given),
                advice.reasons.get(site.name, ""),
            )
            for site, given in zip(situation.sites, advice.given, strict=True)
        ]
        used = [(w.site, w.given > 0, w.price) for w in weighed]
        if used != self._used or self._left - left >= self._jobs / 100:
            self._used, self._left = used, left
            self._sites = weighed

    def decision(
        self,
        now: float,
        strategy: str,
        left: int,
        limits: tuple[float, float],
        sent: list[tuple[int, str, str]],
    ) -> str:
        """
        Return a decision as a journal keeps it, with the reasons that none has had yet.

        Parameters
        ----------
        now
            Seconds since the begin of the run.
        strategy, left, sent
            See :class:`PlacementDecision`.
        limits
            Seconds to the deadline and currency units of the budget; infinite for no limit.
        """
        sites, self._sites = self._sites, []
        time_left, money_left = (None if math.isinf(limit) else limit for limit in limits)
        made = PlacementDecision(
            at=now,
            strategy=strategy,
            left=left,
            time_left=time_left,
            money_left=money_left,
            sites=sites,
            sent=sent,
        )
        return msgspec.json.encode(made).decode()
