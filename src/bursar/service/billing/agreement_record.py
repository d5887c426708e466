"""
An agreement while it is carried out: from when to when how many of its processors were there.

Pure functions from a deal, what happened and the moment to a deal.
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
"""Seconds from now on in which an agreement must be over."""

AgreementState = Literal["signed", "running", "over", "cancelled"]


class AgreementRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    What has come of an agreement.

    Parameters
    ----------
    agreement
        What was agreed on.
    ready
        Processors of it that have workers now.
    since, seen
        From when on so many have been ready, and until when that is known; between a crash and
        the next life nothing is. Neither goes back, though the clock of another life may: no
        moment is charged twice.
    intervals
        How many have been metered.
    begun
        When all its processors were ready; None: not yet.
    ended
        When it was over, or cancelled; None: not yet.
    cancelled
        Whether it was taken back before it began.
    charged
        Micro-units.
    talk
        The conversation that came to it; empty: in a record of before, where it was not kept.
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
        """Seconds since the epoch."""
        return self.agreement.start

    @property
    def end(self) -> float:
        """When it is over at the latest."""
        return self.agreement.terms.end

    @property
    def is_open(self) -> bool:
        """Whether something can still come of it."""
        return self.ended is None

    def state(self, now: float) -> AgreementState:
        """Where it stands."""
        if self.cancelled:
            return "cancelled"
        if not self.is_open or now >= self.end:
            return "over"
        return "running" if now >= self.start else "signed"


class DeliveredInterval(NamedTuple):
    """Processors that were ready from start to end."""

    start: float
    end: float
    processors: int


def on_processors_ready(
    deal: AgreementRecord, processors: int, now: float
) -> tuple[AgreementRecord, DeliveredInterval | None]:
    """
    So many of its processors have workers from now on.

    Returns
    -------
    tuple
        The deal, and what is to be metered, if anything.
    """
    now = max(now, deal.seen)
    interval = _until(deal, now)
    fresh = min(processors, deal.agreement.processors)
    begun = deal.begun
    if begun is None and fresh == deal.agreement.processors and now < deal.end:
        begun = max(now, deal.start)
    count = deal.intervals + (interval is not None)
    return replace(deal, ready=fresh, since=now, seen=now, intervals=count, begun=begun), interval


def on_service_restarted(
    deal: AgreementRecord, now: float
) -> tuple[AgreementRecord, DeliveredInterval | None]:
    """The service was away, nobody knows since when: what was seen counts, and no more."""
    interval = _until(deal, deal.seen)
    now = max(now, deal.seen)
    count = deal.intervals + (interval is not None)
    return replace(deal, ready=0, since=now, seen=now, intervals=count), interval


def on_clock_jumped(
    deal: AgreementRecord, before: float, after: float
) -> tuple[AgreementRecord, DeliveredInterval | None]:
    """The clock jumped from one moment to another: nothing was delivered in between."""
    before = max(before, deal.seen)
    interval = _until(deal, before)
    after = max(after, before)
    count = deal.intervals + (interval is not None)
    return replace(deal, since=after, seen=after, intervals=count), interval


def on_time_passed(deal: AgreementRecord, now: float) -> AgreementRecord:
    """As many as were ready still are."""
    return replace(deal, seen=max(deal.seen, now))


def on_agreement_ended(deal: AgreementRecord, now: float, charged: Micros) -> AgreementRecord:
    """It is over, and has come to this."""
    return replace(deal, ready=0, ended=min(max(now, deal.seen), deal.end), charged=charged)


def on_agreement_cancelled(deal: AgreementRecord, now: float) -> AgreementRecord:
    """It was taken back before it began."""
    return replace(deal, ready=0, ended=now, cancelled=True)


def amount_owed(deal: AgreementRecord, records: Iterable[UsageRecord]) -> Micros:
    """
    What a deal comes to: its processors by the time they were ready, and once its fixed price.

    Never more than was agreed on; nothing when nothing was delivered.
    """
    delivered = list(records)
    if not delivered:
        return 0
    terms = deal.agreement.terms
    rates = AgreementRates(unit_price=terms.unit_price, fixed_price=terms.fixed_price)
    return min(charge(delivered, rates), terms.amount)


def next_event_time(deal: AgreementRecord, now: float, checkpoint: float) -> float:
    """When time next brings something about: it begins, is over, or is to be seen again."""
    moments = [deal.end]
    if deal.start > now:
        moments.append(deal.start)
    if deal.ready:
        moments.append(deal.seen + checkpoint)
    return min(moments, default=math.inf)


def _until(deal: AgreementRecord, moment: float) -> DeliveredInterval | None:
    begin, end = max(deal.since, deal.start), min(moment, deal.end)
    if deal.ready == 0 or end <= begin:
        return None
    return DeliveredInterval(begin, end, deal.ready)
