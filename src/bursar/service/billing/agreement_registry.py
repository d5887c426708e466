"""
Agreements from signature to settlement: their records, money and deliveries, and the audit.

The functions of an agreement's record are pure: each takes a record, an event and a time, and
returns the next record.
"""

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec.structs import replace

from bursar.market.agreement import EXCUSED, Agreement, UsageRecord
from bursar.market.usage import AgreementRates, charge, penalty_for
from bursar.model.money import Micros, Refusal
from bursar.provisioning.accounting import ProcessorSpan
from bursar.service.billing.service_ledger import ServiceLedger, UsageRecordLog
from bursar.service.billing.shared_usage import SharedUsageMeter
from bursar.service.interfaces import BILLING_KINDS, Entropy
from bursar.store import Position, RecordStore

# Records of agreements under way: how many processors were ready, and from when to when.

HORIZON = 10 * 365 * 86_400.0
"""Seconds from now within which an agreement must end."""

AgreementState = Literal["signed", "running", "over", "cancelled"]


class AgreementRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    State of an agreement: the processors that have workers, what was metered and charged.

    Parameters
    ----------
    ready
        Processors of the agreement that have workers now.
    excused
        Processors of the agreement that have no workers now by the customer's own doing: no penalty
        is owed for them, and no price.
    since, seen
        Start and end of the time for which ``ready`` and ``excused`` are known, seconds since the
        epoch; nothing is known between a crash and the restart. Neither goes back, even if the
        clock does after a restart: no moment is charged twice.
    intervals
        Number of delivered and excused intervals that have been metered.
    begun
        When all its processors were ready; None: not yet.
    ended
        When the agreement ended or was cancelled; None: not yet.
    cancelled
        Whether the agreement was cancelled before it began.
    charged
        Amount paid, in micro-units.
    penalty
        Amount that the owner owes the customer for what was not delivered, in micro-units: as much
        of it as was paid is refunded, and the rest is credited to the customer.
    talk
        Identifier of the negotiation; empty in records of earlier versions, which did not keep it.
    """

    agreement: Agreement
    ready: int = 0
    excused: int = 0
    since: float = 0.0
    seen: float = 0.0
    intervals: int = 0
    begun: float | None = None
    ended: float | None = None
    cancelled: bool = False
    charged: Micros = 0
    penalty: Micros = 0
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
    def is_metering(self) -> bool:
        """Whether time that passes now is delivered, or excused."""
        return self.ready > 0 or self.excused > 0

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


@dataclass(frozen=True, slots=True)
class MeteredSpan:
    """Processors of an agreement that were ready, or excused, from one time to another."""

    span: ProcessorSpan
    is_excused: bool = False


Metered = tuple[MeteredSpan, ...]
"""What is to be metered of an agreement, at the end of a time in which nothing has changed."""


def on_processors_ready(
    deal: AgreementRecord,
    processors: int,
    now: float,
    *,
    excused: int = 0,
    excused_before: int = 0,
) -> tuple[AgreementRecord, Metered]:
    """
    Note the number of the agreement's processors that have workers from now on.

    Parameters
    ----------
    excused
        Processors that have none from now on by the customer's own doing.
    excused_before
        The same of the time that ends now, where that becomes known only now.

    Returns
    -------
    tuple
        The updated record, and the intervals to be metered.
    """
    # The clock of this life may be behind that of the last: time that was metered is not metered
    # again.
    now = max(now, deal.seen)
    metered = _until(replace(deal, excused=max(deal.excused, excused_before)), now)
    most = deal.agreement.processors
    # A worker may bring more processors than were sold; these are not charged.
    fresh = min(processors, most)
    begun = deal.begun
    # Workers may be ready before the start; the agreement begins at its start all the same.
    if begun is None and fresh == most and now < deal.end:
        begun = max(now, deal.start)
    count = deal.intervals + len(metered)
    excused = min(excused, most - fresh)
    changed = replace(
        deal, ready=fresh, excused=excused, since=now, seen=now, intervals=count, begun=begun
    )
    return changed, metered


def on_service_restarted(deal: AgreementRecord, now: float) -> tuple[AgreementRecord, Metered]:
    """Close the last known interval: deliveries while the service was down do not count."""
    # Until the last checkpoint only: what came between that and the crash nobody has written down.
    # The customer is not charged for what cannot be shown.
    metered = _until(deal, deal.seen)
    now = max(now, deal.seen)
    count = deal.intervals + len(metered)
    return replace(deal, ready=0, excused=0, since=now, seen=now, intervals=count), metered


def on_clock_jumped(
    deal: AgreementRecord, before: float, after: float
) -> tuple[AgreementRecord, Metered]:
    """Skip the time over which the clock jumped: nothing was delivered in it."""
    before = max(before, deal.seen)
    metered = _until(deal, before)
    after = max(after, before)
    count = deal.intervals + len(metered)
    return replace(deal, since=after, seen=after, intervals=count), metered


def on_time_passed(deal: AgreementRecord, now: float) -> AgreementRecord:
    """Note that the processors that were ready still are."""
    return replace(deal, seen=max(deal.seen, now))


def on_agreement_ended(
    deal: AgreementRecord, now: float, charged: Micros, penalty: Micros = 0
) -> AgreementRecord:
    """Mark the agreement as ended, with the amount charged and the penalty that is owed for it."""
    ended = min(max(now, deal.seen), deal.end)
    return replace(deal, ready=0, excused=0, ended=ended, charged=charged, penalty=penalty)


def on_agreement_cancelled(deal: AgreementRecord, now: float) -> AgreementRecord:
    """Mark the agreement as cancelled before the start."""
    return replace(deal, ready=0, excused=0, ended=now, cancelled=True)


def amount_owed(deal: AgreementRecord, records: Iterable[UsageRecord]) -> Micros:
    """
    Return the charge for a deal: the ready processors by time, and the fixed price.

    The charge is at most the agreed amount, and 0 when nothing was delivered.
    """
    delivered = [record for record in records if record.owed]
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
    if deal.is_metering:
        moments.append(deal.seen + checkpoint)
    return min(moments, default=math.inf)


def _until(deal: AgreementRecord, moment: float) -> Metered:
    # Processors that were ready early, or stayed longer, are the owner's gift.
    begin, end = max(deal.since, deal.start), min(moment, deal.end)
    if end <= begin:
        return ()
    excused = min(deal.excused, deal.agreement.processors - deal.ready)
    return tuple(
        MeteredSpan(ProcessorSpan(start=begin, end=end, processors=processors), is_excused)
        for processors, is_excused in ((deal.ready, False), (excused, True))
        if processors
    )


# Agreements from signature to settlement, with money and deliveries.

DEAL = BILLING_KINDS[1]

CHECKPOINT = 60.0
"""Seconds between two notes of delivery; a crash loses, and leaves uncharged, this much."""

MOST_OPEN = 1_000
"""Greatest number of agreements of one user that have not ended."""

_DEALS = msgspec.msgpack.Decoder(AgreementRecord)


class AgreementRegistry:
    """
    Keeps all agreements of the service, and signs and cancels agreements for the trade server.

    Parameters
    ----------
    journal
        Journal, not yet open.
    ledger, meter
        Where money and deliveries are recorded.
    entropy
        Source of the identifiers of agreements, which tell nothing and cannot be guessed.
    on_change
        Called with the identifier of an agreement that was signed, ended, or got or lost
        processors.

    Attributes
    ----------
    paid_elsewhere
        What the customer of the next agreement has paid the owner elsewhere, micro-units.
    """

    def __init__(
        self,
        journal: RecordStore,
        ledger: ServiceLedger,
        meter: UsageRecordLog,
        entropy: Entropy,
        on_change: Callable[[str], None],
    ) -> None:
        self._journal = journal
        self._ledger = ledger
        self._meter = meter
        self._entropy = entropy
        self._on_change = on_change
        self._deals: dict[str, AgreementRecord] = {}
        self._by_user: dict[str, dict[str, None]] = {}
        self._open: dict[str, None] = {}
        self._position: dict[str, Position] = {}
        self.paid_elsewhere: Micros = 0
        journal.register([DEAL], self)

    def restore(self, kind: int, position: Position, payload: bytes) -> None:
        """Take in the record of an agreement."""
        self._put(_DEALS.decode(payload), position)

    def open(self, now: float) -> None:
        """Close the open intervals of delivery, once all records were restored."""
        for deal in self.all_open():
            if deal.is_metering:
                self._follow(*on_service_restarted(deal, now))

    def skip(self, before: float, after: float) -> None:
        """Meter deliveries until the clock jumped, and go on from the time after the jump."""
        for deal in self.all_open():
            if deal.is_metering:
                self._follow(*on_clock_jumped(deal, before, after))

    @property
    def deals(self) -> Mapping[str, AgreementRecord]:
        """Return all agreements, ended ones included, by identifier."""
        return self._deals

    def all_open(self) -> list[AgreementRecord]:
        """Return the agreements that have neither ended nor been cancelled."""
        return [self._deals[name] for name in self._open]

    def of(self, user: str) -> Iterator[AgreementRecord]:
        """Return the agreements of a user."""
        return (self._deals[name] for name in self._by_user.get(user, ()))

    def of_user(self, user: str, name: str) -> AgreementRecord | None:
        """Return an agreement of a user; None when there is none or another user has it."""
        # Another user's agreement gives the same answer as none.
        found = self._deals.get(name)
        return found if found is not None and found.agreement.customer == user else None

    def next_tick(self, now: float) -> float:
        """Return the next time at which an agreement begins, ends or is due for a checkpoint."""
        return min(
            (next_event_time(deal, now, CHECKPOINT) for deal in self.all_open()),
            default=float("inf"),
        )

    # As the trade server's clerk.

    def name(self) -> str:
        """Return a random identifier of 128 bits."""
        return self._entropy(16).hex()

    def sign(self, agreement: Agreement, deal: str, now: float) -> Refusal | None:
        """Enter an agreement and set the money aside; refuse if the account has too little."""
        user = agreement.customer
        # The record is essential and would still fit; but a full disk is not to take on new
        # promises.
        if self._journal.problem:
            return Refusal(self._journal.problem, final=False)
        if agreement.terms.end > now + HORIZON:
            return Refusal("sells no more than ten years ahead", final=True)
        if sum(known.is_open for known in self.of(user)) >= MOST_OPEN:
            return Refusal(f"has {MOST_OPEN} agreements that are not over", final=False)
        # The hold and the agreement are appended without an await in between, so they are in one
        # batch: after a crash there is either both or none.
        amount, paid = agreement.terms.amount, self.paid_elsewhere
        # The deal is what the two ledgers are compared by; a user may have named it oddly.
        memo = f"paid elsewhere: {deal}" if deal.isprintable() else "paid elsewhere"
        refusal = self._ledger.hold(user, agreement.id, amount, now, paid=paid, memo=memo)
        if refusal is not None:
            return refusal
        self._keep(AgreementRecord(agreement=agreement, talk=deal))
        self._on_change(agreement.id)
        return None

    def take_back(self, agreement: Agreement, now: float) -> None:
        """
        Cancel an agreement, and give the whole amount set aside back to the user.

        The caller has made sure that the agreement has not begun. Nothing happens when it has
        ended already.
        """
        deal = self._deals[agreement.id]
        if deal.is_open:
            # Charged 0: the whole hold goes back.
            self._ledger.settle(agreement.id, 0, now)
            self._keep(on_agreement_cancelled(deal, now))
            self._on_change(agreement.id)

    def ready(
        self,
        name: str,
        processors: int,
        now: float,
        *,
        excused: int = 0,
        excused_before: int = 0,
    ) -> None:
        """
        Note how many processors have workers, and meter the time with the number so far.

        Processors beyond those of the agreement do not count. Nothing happens once the agreement
        has ended.

        Parameters
        ----------
        name
            Identifier of the agreement.
        excused, excused_before
            Processors without workers by the customer's doing; see :func:`on_processors_ready`.
        """
        deal = self._deals[name]
        after, metered = on_processors_ready(
            deal, processors, now, excused=excused, excused_before=excused_before
        )
        # Unchanged numbers are not recorded: they would cut the time into intervals that mean
        # nothing.
        is_new = (after.ready, after.excused) != (deal.ready, deal.excused)
        if deal.is_open and (is_new or excused_before > deal.excused):
            self._follow(after, metered)
            self._on_change(name)

    def checkpoint(self, now: float) -> None:
        """Note once a minute that delivery goes on."""
        for deal in self.all_open():
            if deal.is_metering and now >= deal.seen + CHECKPOINT:
                # One record a minute bounds what a crash loses; the previous one dies with it.
                self._keep(on_time_passed(deal, now))

    def end(self, name: str, now: float) -> Micros:
        """
        End an agreement: what was delivered is paid, the rest goes back to the user.

        Returns
        -------
        int
            What the user has paid, less the penalty, micro-units.
        """
        # The last interval is metered first: the charge follows from the usage records alone.
        deal = self._follow(*on_processors_ready(self._deals[name], 0, now))
        records = self._meter.of(name)
        charged = amount_owed(deal, records)
        # Excused time counts as if it had been delivered: the owner is not guilty of it.
        kept = math.fsum(record.delivered for record in records)
        # By the time that the agreement says it ended, which the customer checks the penalty by.
        penalty = penalty_for(deal.agreement.terms, kept, min(deal.seen, deal.end))
        self._ledger.settle(name, charged, now)
        if penalty:
            self._ledger.penalise(deal.agreement.customer, name, charged, penalty, now)
        self._keep(on_agreement_ended(deal, now, charged, penalty))
        self._on_change(name)
        return max(0, charged - penalty)

    def _follow(self, deal: AgreementRecord, metered: Metered) -> AgreementRecord:
        """Keep a deal, and meter the intervals that were delivered or are excused."""
        agreement = deal.agreement
        for number, interval in enumerate(metered, deal.intervals - len(metered) + 1):
            self._meter.note(
                UsageRecord(
                    agreement=agreement.id,
                    provider=agreement.owner,
                    customer=agreement.customer,
                    # Counted up within the agreement, so that each record has a name of its own.
                    job=str(number),
                    start=interval.span.start,
                    end=interval.span.end,
                    processors=interval.span.processors,
                    status=EXCUSED if interval.is_excused else "succeeded",
                    # Nothing is to be paid for what is excused.
                    agreed=0.0 if interval.is_excused else None,
                )
            )
        self._keep(deal)
        return deal

    def _keep(self, deal: AgreementRecord) -> None:
        name = deal.agreement.id
        # The whole record each time, and the old one killed in the same batch: state follows from
        # the living records, in any order.
        position = self._journal.append(DEAL, msgspec.msgpack.encode(deal), essential=True)
        old = self._position.get(name)
        if old is not None:
            self._journal.kill(old)
        self._put(deal, position)

    def _put(self, deal: AgreementRecord, position: Position) -> None:
        name = deal.agreement.id
        self._deals[name] = deal
        self._position[name] = position
        self._by_user.setdefault(deal.agreement.customer, {})[name] = None
        if deal.is_open:
            self._open[name] = None
        else:
            self._open.pop(name, None)


def unknown_agreement(name: str) -> Refusal:
    """Return the refusal of a request about an agreement that the user does not have."""
    return Refusal(f'no agreement "{name}"', final=True)


# Check of the invariants of agreements, money and deliveries.


def find_inconsistencies(
    dealings: AgreementRegistry,
    ledger: ServiceLedger,
    meter: UsageRecordLog,
    shared_usage: SharedUsageMeter,
    exchanged: Container[str] = frozenset(),
) -> list[str]:
    """
    Return every violated invariant, one line each; any is a defect of this package.

    The ledger balances; what is held is what open agreements may come to; nobody was charged more
    than was set aside or delivered; what shared processors cost is posted once.

    Parameters
    ----------
    exchanged
        Names in the ledger of what belongs to the exchange, which checks it.
    """
    return [
        *ledger.accounts.faults(),
        *_deal_faults(dealings, ledger, meter),
        *_shared_usage_faults(ledger, shared_usage),
        *_stray_rows(dealings, ledger, shared_usage, exchanged),
    ]


def _deal_faults(
    dealings: AgreementRegistry, ledger: ServiceLedger, meter: UsageRecordLog
) -> Iterator[str]:
    promises = ledger.accounts.agreements
    for name, deal in dealings.deals.items():
        amount = deal.agreement.terms.amount
        promise = promises.get(name)
        held = promise.held if promise is not None else 0
        paid = promise.paid if promise is not None else 0
        expected = amount if deal.is_open else 0
        if held != expected:
            yield f"{name}: holds {held}, expected {expected}"
        if paid != deal.charged or paid > amount:
            yield f"{name}: paid {paid}, charged {deal.charged}, agreed on {amount}"
        refunded = promise.refunded if promise is not None else 0
        if refunded != min(deal.charged, deal.penalty):
            yield f"{name}: refunded {refunded}, owes a penalty of {deal.penalty}"
        if promise is not None and promise.user != deal.agreement.customer:
            yield f"{name}: {promise.user} pays for {deal.agreement.customer}"
        delivered = sum(record.owed for record in meter.of(name))
        kept = sum(record.delivered for record in meter.of(name))
        most = deal.agreement.processors * deal.agreement.seconds
        # Sums of float seconds; a millisecond is no delivery beyond the agreement.
        if kept > most * (1 + 1e-9) + 1e-3:
            yield f"{name}: delivered or excused {kept}, agreed on {most}"
        if deal.charged and not delivered:
            yield f"{name}: charged, and nothing delivered"


def _shared_usage_faults(ledger: ServiceLedger, shared_usage: SharedUsageMeter) -> Iterator[str]:
    owed: dict[str, int] = {}
    for usage in shared_usage.all_open():
        owed[usage.user] = owed.get(usage.user, 0) + usage.amount
    for user, amount in owed.items():
        if ledger.is_limited(user) and ledger.available(user) < 0:
            yield f"{user}: owes {amount}, which is more than there is"
    for usage in shared_usage.all_posted():
        promise = ledger.accounts.agreements.get(usage.id)
        paid = promise.paid if promise is not None else 0
        if paid != usage.amount:
            yield f"{usage.id}: paid {paid}, used {usage.amount}"


def _stray_rows(
    dealings: AgreementRegistry,
    ledger: ServiceLedger,
    shared_usage: SharedUsageMeter,
    exchanged: Container[str],
) -> Iterator[str]:
    known = {usage.id for usage in shared_usage.all_posted()}
    for name in ledger.accounts.agreements:
        if name not in dealings.deals and name not in known and name not in exchanged:
            yield f"{name}: money moved for what is no agreement"
