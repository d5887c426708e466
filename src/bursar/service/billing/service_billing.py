"""The billing of the service: deals, accounts, invoices, and which tasks may run."""

import math
from collections.abc import Callable, Mapping

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from bursar.market.pricing import unit_price
from bursar.market.trade_messages import TradeMessage
from bursar.market.trade_server import BargainingRules, NegotiationProtocol, TradeServer
from bursar.market.usage import SignedRecord
from bursar.model.money import MICROS, Micros, Refusal, to_micros
from bursar.model.pricing import Pricing
from bursar.model.site import SiteFacts
from bursar.remote import messages as api
from bursar.service.billing.agreement_record import HORIZON, AgreementRecord
from bursar.service.billing.agreement_registry import AgreementRegistry
from bursar.service.billing.auditing import find_inconsistencies
from bursar.service.billing.free_slots import free_slots
from bursar.service.billing.invoices import write_invoice
from bursar.service.billing.metering import UsageRecordLog
from bursar.service.billing.negotiations import Negotiations
from bursar.service.billing.price_list import PriceList
from bursar.service.billing.service_ledger import ServiceLedger
from bursar.service.billing.shared_usage import SharedUsageMeter
from bursar.service.config import MarketSettings, UserSettings
from bursar.service.interfaces import (
    SHARED,
    Clock,
    Entropy,
    ServiceError,
    ServiceJournal,
    WorkerDemand,
    is_shared,
)

SOON = 3_600.0
"""Seconds before an agreement begins from which on its workers are wanted."""

MOST_SLOTS = 200

_TYPICAL = 3_600.0
"""Duration in seconds for which a processor is priced when no duration is stated."""


class ServiceBilling:
    """
    Implements :class:`bursar.service.interfaces.UsageBilling`.

    Changes are in the journal when a method returns, and durable once the journal's ``durable()``
    has returned; whoever answers a client awaits that first. A negotiation that has not come to
    an agreement is lost with the service; an agreement is not.

    An agreement is paid by the time for which its processors were ready, up to its end or until
    its customer ends it; the whole amount is set aside at the signature. Deliveries in the last
    minute before a crash, and while the service was away, are not charged.

    Parameters
    ----------
    journal
        Journal, not yet open; once it is open, :meth:`open` must be called.
    site
        Name, processors and prices of the site.
    selling
        Settings of the market: protocols, credit, and whether shared processors cost something.
    users
        Settings of single users, by name; others have the defaults.
    clock, entropy
        Sources of time, in seconds since the epoch, and of random identifiers.
    on_change
        Called with the pool whose agreement was signed, ended, or got or lost processors.
    """

    def __init__(
        self,
        journal: ServiceJournal,
        *,
        site: SiteFacts,
        selling: MarketSettings,
        users: Mapping[str, UserSettings],
        clock: Clock,
        entropy: Entropy,
        on_change: Callable[[str], None] = lambda pool: None,
    ) -> None:
        self.name = site.name
        self.currency = site.currency
        self.fixed_price = site.fixed_price or 0.0
        self.protocols: tuple[NegotiationProtocol, ...] = selling.protocols
        self.must_buy = selling.must_buy
        self._journal = journal
        self._selling = selling
        self._users = users
        self._clock = clock
        self._prices = PriceList(journal, site.pricing or Pricing(site.unit_price or 0.0))
        self._ledger = ServiceLedger(journal, site.name, site.currency, self._credit_of)
        self._meter = UsageRecordLog(journal, entropy)
        self._shared_usage = SharedUsageMeter(journal, self._ledger, entropy)
        self._dealings = AgreementRegistry(journal, self._ledger, self._meter, entropy, on_change)
        self._negotiations = Negotiations()
        self._owner = TradeServer(
            site.name,
            processors=site.processors,
            pricing=self._prices.pricing,
            currency=site.currency,
            fixed_price=self.fixed_price,
            protocols=selling.protocols,
            validity=selling.validity,
            holds=selling.holds,
            bargaining=BargainingRules(floor=selling.floor),
            groups={name: user.groups for name, user in users.items()},
            registrar=self._dealings,
        )

    def open(self) -> None:
        """
        Continue from the restored records, once the journal is open.

        Raises
        ------
        InputError
            When rows of the ledger are missing or changed.
        """
        now = self._clock()
        self._ledger.open()
        self._meter.open()
        self._prices.open()
        self._owner.reprice(self._prices.pricing)
        self._dealings.open(now)
        for deal in self._dealings.deals.values():
            # Ended ones too: an acceptance whose answer was lost may be repeated much later, and
            # must not sell once more.
            if deal.talk:
                self._owner.restore_conclusion(deal.talk, deal.agreement)
            if deal.ended is None:
                self._owner.restore(deal.agreement)
            # Offers of starts that have just passed are still valid: the processors must not be
            # sold again for seconds in which the customer had them.
            elif not deal.cancelled and deal.ended > now - self._owner.validity:
                self._owner.restore_ended(deal.agreement, deal.ended)
        for user, amount in self._ledger.paid().items():
            # Prices may depend on how much a customer has paid so far.
            self._owner.note_payment(user, amount)
        # Agreements that ended while the service was away are settled before anybody asks.
        self.tick(now)

    def skipped(self, before: float, after: float) -> None:
        """Skip time over which the clock jumped: nothing was delivered in it."""
        self._dealings.skip(before, after)
        self.tick(after)

    # What may run, and for whom workers are wanted.

    def pool_of(self, user: str, agreement: str) -> str | Refusal:
        """
        Return the pool of workers that run an instance's tasks, or why no pool may.

        Parameters
        ----------
        agreement
            Agreement of the instance; empty: shared processors.
        """
        if not agreement:
            return self._not_shared() or self._shared_pool(user)
        # Another user's agreement gives the same answer as none.
        deal = self._deal_of(user, agreement)
        if deal is None:
            return _unknown(agreement)
        if not deal.is_open:
            return Refusal(f"the agreement is {deal.state(self._clock())}", final=True)
        return agreement

    def may_run(self, pool: str, user: str, now: float) -> float | Refusal:
        """Return for how many seconds a task may run in a pool, or why no task of the user may."""
        if is_shared(pool):
            return self._may_share(pool, user, now)
        deal = self._deal_of(user, pool)
        if deal is None:
            return _unknown(pool)
        state = deal.state(now)
        if state == "signed":
            return Refusal(f"the agreement begins in {deal.start - now:.0f} s", final=False)
        if state != "running":
            return Refusal(f"the agreement is {state}", final=True)
        return deal.end - now

    def width(self, pool: str, user: str) -> int | None:
        """Return the processors that a task in a pool may hold; None: as many as the site has."""
        deal = None if is_shared(pool) else self._deal_of(user, pool)
        return None if deal is None else deal.agreement.processors

    def used(self, pool: str, user: str, what: str, processors: int, seconds: float) -> None:
        """
        Charge the usage of shared processors that have a price; in the journal on return.

        Tasks that run at the same time may together use more than the account has: the part that
        the account lacks is not charged. Usage of an agreement's pool is not charged here.

        Parameters
        ----------
        what
            Handle of the instance, under which the usage is summed up.
        seconds
            Seconds for which each of the processors was used.
        """
        if not is_shared(pool) or not self._selling.price_shared or seconds <= 0:
            return
        now = self._clock()
        # At the price when the task ends; later changes of the price do not touch it.
        price = self._price(user, now, processors, seconds)
        self._shared_usage.add(user, what, processors * seconds, price, now)

    def came_to(self, user: str, what: str) -> int:
        """Return the cost so far of a user's instance on shared processors, in micro-units."""
        return self._shared_usage.spent(user, what)

    def pools(self, now: float) -> Mapping[str, WorkerDemand]:
        """
        Return the workers that agreements want, by pool, which is the agreement's identifier.

        An agreement wants workers from :data:`SOON` seconds before its start until its end.
        """
        return {
            deal.agreement.id: WorkerDemand(
                user=deal.agreement.customer,
                processors=deal.agreement.processors,
                start=deal.start,
                until=deal.end,
            )
            for deal in self._dealings.all_open()
            if deal.start - SOON <= now < deal.end
        }

    def ready(self, pool: str, processors: int) -> None:
        """Note how many processors of an agreement have workers now."""
        if pool in self._dealings.deals:
            self._dealings.ready(pool, processors, self._clock())

    # Deals.

    def deliver(self, user: str, message: TradeMessage) -> tuple[TradeMessage, ...]:
        """
        Handle a user's trade message and return the replies.

        Agreements that the message concludes are in the journal on return.

        Raises
        ------
        ServiceError
            403, when it speaks for somebody else; 429, when there were too many about one deal.
        """
        # The sender in the message is what the trade server believes; only the authenticated user
        # may stand there.
        if message.sender != user:
            raise ServiceError(
                "forbidden", 403, "a message must come from its sender", where="sender"
            )
        now = self._clock()
        forgotten = self._negotiations.record_message(user, message.deal, now)
        if forgotten is not None:
            self._owner.forget(forgotten, user)
        return self._owner.deliver(message, now)

    def agreements(self, user: str) -> api.AgreementList:
        """Return the agreements of a user, ended ones included."""
        now = self._clock()
        return api.AgreementList(
            agreements=[self._info(deal, now) for deal in self._dealings.of(user)]
        )

    def agreement(self, user: str, agreement: str) -> api.AgreementInfo:
        """
        Return one agreement of a user.

        Raises
        ------
        ServiceError
            404, when the user has no such.
        """
        return self._info(self._known(user, agreement), self._clock())

    def cancel(self, user: str, agreement: str) -> api.AgreementInfo:
        """
        Cancel an agreement free of charge before the start, or end the agreement after the start.

        Cancelling again changes nothing.

        Raises
        ------
        ServiceError
            404, when the user has no such.
        """
        deal, now = self._known(user, agreement), self._clock()
        if deal.is_open and now < deal.start:
            self._owner.take_back(deal.agreement, now)
        elif deal.is_open:
            self._end(agreement, now)
        return self.agreement(user, agreement)

    def sales(self) -> dict[str, api.AgreementList]:
        """Return all agreements by customer, for the owner."""
        customers = dict.fromkeys(d.agreement.customer for d in self._dealings.deals.values())
        return {customer: self.agreements(customer) for customer in customers}

    def slots(self, user: str, now: float) -> tuple[api.SlotInfo, ...]:
        """Return the slots that can be bought now, at the posted prices for this user."""
        if not self.protocols:
            return ()
        return tuple(
            api.SlotInfo(
                start=slot.start - now,
                seconds=None if math.isinf(slot.duration) else slot.duration,
                processors=slot.processors,
                unit_price=self._price(
                    user,
                    now,
                    slot.processors,
                    _TYPICAL if math.isinf(slot.duration) else slot.duration,
                    start=slot.start,
                ),
                fixed_price=self.fixed_price,
            )
            # A bound on the answer: thousands of agreements would make as many slots.
            for slot in free_slots(self._owner.capacity, now)[:MOST_SLOTS]
            if slot.start < now + HORIZON
        )

    def posted(self, user: str, now: float) -> float:
        """Return what one processor costs a user now, in currency units per processor-second."""
        return self._price(user, now, 1, _TYPICAL)

    def reprice(self, pricing: Pricing) -> None:
        """Set the prices from now on, until the configuration is changed."""
        self._prices.change(pricing)
        self._owner.reprice(pricing)

    def reconfigure(self, pricing: Pricing) -> None:
        """Apply the prices of a configuration that was read again, if the prices differ."""
        self._prices.reconfigure(pricing)
        self._owner.reprice(self._prices.pricing)

    # Money.

    def account(self, user: str) -> api.AccountInfo:
        """Return a user's account."""
        return api.AccountInfo(
            user=user,
            currency=self.currency,
            balance=self._ledger.available(user),
            held=self._ledger.held(user),
            spent=self._ledger.spent(user),
        )

    def deposit(self, user: str, deposit: api.Deposit) -> api.AccountInfo:
        """
        Add money to an account; repeating a key adds nothing.

        Raises
        ------
        ServiceError
            409, when the key was used for another amount; 400, when there can be no such
            account; 507, when the disk is full.
        """
        if self._journal.problem:
            raise ServiceError("disk-full", 507, self._journal.problem, retry_after=1.0)
        self._ledger.deposit(user, deposit.amount, deposit.key, self._clock())
        return self.account(user)

    def invoice(
        self, user: str, since: float = -math.inf, until: float = math.inf
    ) -> api.InvoiceInfo:
        """
        Return the charges posted for a user from ``since`` until before ``until``.

        Both are in seconds since the epoch; by default everything that was ever posted.
        """
        return write_invoice(
            user,
            since,
            until,
            owner=self.name,
            ledger=self._ledger,
            meter=self._meter,
            shared_usage=self._shared_usage,
        )

    def usage(self, user: str) -> tuple[SignedRecord, ...]:
        """Return the signed chain of usage records of a user's agreements."""
        return self._meter.chain(user)

    @property
    def public_key(self) -> Ed25519PublicKey:
        """Return the public key by which usage records are verified."""
        return self._meter.public_key

    def spent(self) -> Micros:
        """Return the total that all users have paid."""
        return sum(self._ledger.paid().values())

    def faults(self) -> list[str]:
        """Return inconsistencies of deals and money; any is a defect of this package."""
        return find_inconsistencies(self._dealings, self._ledger, self._meter, self._shared_usage)

    # Time.

    def tick(self, now: float) -> None:
        """Handle what is due by now; to be called at :meth:`next_tick`."""
        self._owner.tick(now)
        for deal in self._dealings.all_open():
            if now >= deal.end:
                self._end(deal.agreement.id, now)
        self._dealings.checkpoint(now)
        for usage in self._shared_usage.tick(now):
            self._paid(usage.user, usage.amount)
        for user, negotiation in self._negotiations.silent(now):
            self._owner.forget(negotiation, user)

    def next_tick(self) -> float:
        """Return when :meth:`tick` next has something to do; infinite for never."""
        return min(
            self._owner.next_tick(),
            self._dealings.next_tick(self._clock()),
            self._shared_usage.next_tick(),
            self._negotiations.next_tick(),
        )

    # Inside.

    def _credit_of(self, user: str) -> Micros | None:
        known = self._users.get(user)
        # 0 is a credit, too: only an absent one falls back on the credit of all.
        credit = known.credit if known is not None and known.credit is not None else None
        units = self._selling.credit if credit is None else credit
        return None if units is None else to_micros(units)

    def _not_shared(self) -> Refusal | None:
        if self.must_buy:
            return Refusal("tasks run here only under an agreement", final=True)
        return None

    def _shared_pool(self, user: str) -> str:
        known = self._users.get(user)
        return f"{SHARED}:{user}" if known is not None and known.local_user else SHARED

    def _may_share(self, pool: str, user: str, now: float) -> float | Refusal:
        refusal = self._not_shared()
        if refusal is not None:
            return refusal
        # The user's local account was changed while an instance waited: workers of the old account
        # must not run its tasks.
        if pool != self._shared_pool(user):
            return Refusal("these processors are not for this user", final=True)
        if not self._selling.price_shared or not self._ledger.is_limited(user):
            return math.inf
        price = self._price(user, now, 1, _TYPICAL)
        if price == 0:
            return math.inf
        left = self._ledger.available(user)
        if left <= 0:
            return Refusal("the account is empty", final=False)
        # Tasks are killed when the money would be used up by one processor. Several tasks together
        # may use it up sooner: the excess is not charged, see used().
        return left / (price * MICROS)

    def _price(
        self, user: str, now: float, processors: int, seconds: float, start: float | None = None
    ) -> float:
        asked = self._owner.asked(user, processors, seconds, now if start is None else start, now)
        return unit_price(self._prices.pricing, asked)

    def _deal_of(self, user: str, agreement: str) -> AgreementRecord | None:
        deal = self._dealings.deals.get(agreement)
        return deal if deal is not None and deal.agreement.customer == user else None

    def _known(self, user: str, agreement: str) -> AgreementRecord:
        deal = self._deal_of(user, agreement)
        if deal is None:
            raise ServiceError("not-found", 404, _unknown(agreement).reason)
        return deal

    def _end(self, agreement: str, now: float) -> None:
        charged = self._dealings.end(agreement, now)
        deal = self._dealings.deals[agreement]
        assert deal.ended is not None
        # Its processors can be sold again from now on, but not for the time that has passed.
        self._owner.forget_agreement(agreement, deal.ended)
        self._paid(deal.agreement.customer, charged)

    def _paid(self, user: str, amount: Micros) -> None:
        if amount > 0:
            self._owner.note_payment(user, amount)

    def _info(self, deal: AgreementRecord, now: float) -> api.AgreementInfo:
        agreement = deal.agreement
        return api.AgreementInfo(
            id=agreement.id,
            processors=agreement.processors,
            start=agreement.start,
            seconds=agreement.seconds,
            unit_price=agreement.unit_price,
            fixed_price=agreement.fixed_price,
            currency=agreement.currency,
            state=deal.state(now),
            ready=deal.ready,
            begun=deal.begun,
            ended=deal.ended,
            charged=deal.charged,
            held=agreement.terms.amount if deal.is_open else 0,
        )


def _unknown(agreement: str) -> Refusal:
    return Refusal(f'no agreement "{agreement}"', final=True)
