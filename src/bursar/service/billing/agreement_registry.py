"""Agreements from signature to settlement, with money and deliveries."""

from collections.abc import Callable, Iterator, Mapping

import msgspec

from bursar.market.agreement import Agreement
from bursar.market.usage import UsageRecord
from bursar.model.money import Micros, Refusal
from bursar.service.billing.agreement_record import (
    HORIZON,
    AgreementRecord,
    DeliveredInterval,
    amount_owed,
    next_event_time,
    on_agreement_cancelled,
    on_agreement_ended,
    on_clock_jumped,
    on_processors_ready,
    on_service_restarted,
    on_time_passed,
)
from bursar.service.billing.metering import UsageRecordLog
from bursar.service.billing.service_ledger import ServiceLedger
from bursar.service.interfaces import BILLING_KINDS, Entropy, ServiceJournal
from bursar.store import Position

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
    """

    def __init__(
        self,
        journal: ServiceJournal,
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
        journal.register([DEAL], self)

    # Its records.

    def restore(self, kind: int, position: Position, payload: bytes) -> None:
        """Take in the record of an agreement."""
        self._put(_DEALS.decode(payload), position)

    def open(self, now: float) -> None:
        """Close the open intervals of delivery, once all records were restored."""
        for deal in self.all_open():
            if deal.ready:
                self._follow(*on_service_restarted(deal, now))

    def skip(self, before: float, after: float) -> None:
        """Meter deliveries until the clock jumped, and go on from the time after the jump."""
        for deal in self.all_open():
            if deal.ready:
                self._follow(*on_clock_jumped(deal, before, after))

    # What it says.

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
        refusal = self._ledger.hold(user, agreement.id, agreement.terms.amount, now)
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

    # What happens.

    def ready(self, name: str, processors: int, now: float) -> None:
        """
        Note how many processors have workers, and meter the time with the number so far.

        Processors beyond those of the agreement do not count. Nothing happens once the agreement
        has ended.

        Parameters
        ----------
        name
            Identifier of the agreement.
        """
        deal = self._deals[name]
        # Unchanged numbers are not recorded: they would cut the time into intervals that mean
        # nothing.
        if deal.is_open and deal.ready != min(processors, deal.agreement.processors):
            self._follow(*on_processors_ready(deal, processors, now))
            self._on_change(name)

    def checkpoint(self, now: float) -> None:
        """Note once a minute that delivery goes on."""
        for deal in self.all_open():
            if deal.ready and now >= deal.seen + CHECKPOINT:
                # One record a minute bounds what a crash loses; the previous one dies with it.
                self._keep(on_time_passed(deal, now))

    def end(self, name: str, now: float) -> Micros:
        """End an agreement: what was delivered is paid, the rest goes back to the user."""
        # The last interval is metered first: the charge follows from the usage records alone.
        deal = self._follow(*on_processors_ready(self._deals[name], 0, now))
        charged = amount_owed(deal, self._meter.of(name))
        self._ledger.settle(name, charged, now)
        self._keep(on_agreement_ended(deal, now, charged))
        self._on_change(name)
        return charged

    # Inside.

    def _follow(self, deal: AgreementRecord, interval: DeliveredInterval | None) -> AgreementRecord:
        """Keep a deal, and meter an interval that was delivered."""
        if interval is not None:
            agreement = deal.agreement
            self._meter.note(
                UsageRecord(
                    agreement=agreement.id,
                    provider=agreement.owner,
                    customer=agreement.customer,
                    # Counted up within the agreement, so that each record has a name of its own.
                    job=str(deal.intervals),
                    start=interval.start,
                    end=interval.end,
                    processors=interval.processors,
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
