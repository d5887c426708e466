"""
Records of agreements under way: how many processors were ready, and from when to when.

All functions are pure: each takes a record, an event and a time, and returns the next record.
"""

import math
from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from bursar.market.agreement import Agreement
from bursar.market.usage import AgreementRates, UsageRecord, charge
from bursar.model.money import Micros

HORIZON = 10 * 365 * 86_400.0
"""Seconds from now within which an agreement must end."""

AgreementState = Literal["signed", "running", "over", "cancelled"]


class AgreementRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    State of an agreement: the processors that have workers, what was metered and charged.

    Parameters
    ----------
    agreement
        The signed agreement with its terms.
    ready
        Processors of the agreement that have workers now.
    since, seen
        Start and end of the time for which ``ready`` is known, seconds since the epoch; nothing is
        known between a crash and the restart. Neither goes back, even if the clock does after a
        restart: no moment is charged twice.
    intervals
        Number of delivered intervals that have been metered.
    begun
        When all its processors were ready; None: not yet.
    ended
        When the agreement ended or was cancelled; None: not yet.
    cancelled
        Whether the agreement was cancelled before it began.
    charged
        Amount paid, in micro-units.
    talk
        Identifier of the negotiation; empty in records of earlier versions, which did not keep it.
    """

    agreement: Agreement
    ready: int = 0
    since: float = 0.0
    seen: float = 0.0
    intervals: int = 0
    begun: float | None = None
    ended: float | None = None
    cancelled: bool = False
    charged: Micros = 0
    talk: str = ""

    @property
    def start(self) -> float:
        """Start of the agreement, seconds since the epoch."""
        return self.agreement.start

    @property
    def end(self) -> float:
        """Latest end of the agreement, seconds since the epoch."""
        return self.agreement.terms.end

    @property
    def is_open(self) -> bool:
        """Whether the agreement has neither ended nor been cancelled."""
        return self.ended is None

    def state(self, now: float) -> AgreementState:
        """Return the state of the agreement at a time, by the name in the API."""
        if self.cancelled:
            return "cancelled"
        if not self.is_open or now >= self.end:
            return "over"
        return "running" if now >= self.start else "signed"


class DeliveredInterval(NamedTuple):
    """Processors that were ready from start to end, seconds since the epoch."""

    start: float
    end: float
    processors: int


def on_processors_ready(
    deal: AgreementRecord, processors: int, now: float
) -> tuple[AgreementRecord, DeliveredInterval | None]:
    """
    Note the number of the agreement's processors that have workers from now on.

    Returns
    -------
    tuple
        The updated record, and the interval to be metered, if there is one.
    """
    # The clock of this life may be behind that of the last: time that was metered is not metered
    # again.
    now = max(now, deal.seen)
    interval = _until(deal, now)
    # A worker may bring more processors than were sold; these are not charged.
    fresh = min(processors, deal.agreement.processors)
    begun = deal.begun
    # Workers may be ready before the start; the agreement begins at its start all the same.
    if begun is None and fresh == deal.agreement.processors and now < deal.end:
        begun = max(now, deal.start)
    count = deal.intervals + (interval is not None)
    return replace(deal, ready=fresh, since=now, seen=now, intervals=count, begun=begun), interval


def on_service_restarted(
    deal: AgreementRecord, now: float
) -> tuple[AgreementRecord, DeliveredInterval | None]:
    """Close the last known interval: deliveries while the service was down do not count."""
    # Until the last checkpoint only: what came between that and the crash nobody has written down.
    # The customer is not charged for what cannot be shown.
    interval = _until(deal, deal.seen)
    now = max(now, deal.seen)
    count = deal.intervals + (interval is not None)
    return replace(deal, ready=0, since=now, seen=now, intervals=count), interval


def on_clock_jumped(
    deal: AgreementRecord, before: float, after: float
) -> tuple[AgreementRecord, DeliveredInterval | None]:
    """Skip the time over which the clock jumped: nothing was delivered in it."""
    before = max(before, deal.seen)
    interval = _until(deal, before)
    after = max(after, before)
    count = deal.intervals + (interval is not None)
    return replace(deal, since=after, seen=after, intervals=count), interval


def on_time_passed(deal: AgreementRecord, now: float) -> AgreementRecord:
    """Note that the processors that were ready still are."""
    return replace(deal, seen=max(deal.seen, now))


def on_agreement_ended(deal: AgreementRecord, now: float, charged: Micros) -> AgreementRecord:
    """Mark the agreement as ended, with the amount charged."""
    return replace(deal, ready=0, ended=min(max(now, deal.seen), deal.end), charged=charged)


def on_agreement_cancelled(deal: AgreementRecord, now: float) -> AgreementRecord:
    """Mark the agreement as cancelled before the start."""
    return replace(deal, ready=0, ended=now, cancelled=True)


def amount_owed(deal: AgreementRecord, records: Iterable[UsageRecord]) -> Micros:
    """
    Return the charge for a deal: the ready processors by time, and the fixed price.

    The charge is at most the agreed amount, and 0 when nothing was delivered.
    """
    delivered = list(records)
    # Nor the fixed price: where nothing was delivered nothing is owed.
    if not delivered:
        return 0
    terms = deal.agreement.terms
    rates = AgreementRates(unit_price=terms.unit_price, fixed_price=terms.fixed_price)
    # Rounding of several intervals must not exceed the amount that was set aside.
    return min(charge(delivered, rates), terms.amount)


def next_event_time(deal: AgreementRecord, now: float, checkpoint: float) -> float:
    """
    Return when the deal next begins, ends or is due for a checkpoint, seconds since the epoch.

    Parameters
    ----------
    checkpoint
        Seconds of delivery after which the amount delivered is written to the journal; only a
        deal with ready processors is due for this.
    """
    moments = [deal.end]
    if deal.start > now:
        moments.append(deal.start)
    if deal.ready:
        moments.append(deal.seen + checkpoint)
    return min(moments, default=math.inf)


def _until(deal: AgreementRecord, moment: float) -> DeliveredInterval | None:
    # Processors that were ready early, or stayed longer, are the owner's gift.
    begin, end = max(deal.since, deal.start), min(moment, deal.end)
    if deal.ready == 0 or end <= begin:
        return None
    return DeliveredInterval(begin, end, deal.ready)
