"""The billing of the service: agreements from offer to settlement, and the parts around them."""

import math
from collections.abc import Callable, Mapping

from bursar.market.price_forecast import HourlyPrice, forecast_prices
from bursar.market.pricing import CommittedCapacity, unit_price
from bursar.market.trade_messages import TradeMessage
from bursar.market.trade_server import BargainingRules, NegotiationProtocol, TradeServer
from bursar.model.money import Micros, Pricing, format_amount, to_micros
from bursar.model.site import SiteFacts
from bursar.model.slot import ResourceProfile, Slot
from bursar.remote import market_messages as market
from bursar.remote import messages as api
from bursar.service.billing.agreement_registry import (
    HORIZON,
    AgreementRecord,
    AgreementRegistry,
    find_inconsistencies,
    unknown_agreement,
)
from bursar.service.billing.auction_house import AuctionHouse
from bursar.service.billing.exchange_house import ExchangeHouse
from bursar.service.billing.owner_reservations import OwnerReservations
from bursar.service.billing.owner_rules import PriceList, SaleLimits
from bursar.service.billing.pool_admission import PoolAdmission
from bursar.service.billing.service_ledger import ServiceLedger, UsageRecordLog
from bursar.service.billing.shared_usage import SharedUsageMeter, UserAccounts
from bursar.service.config import MarketSettings, UserSettings
from bursar.service.interfaces import Clock, Entropy, ServiceError
from bursar.store import RecordStore

# Open negotiations: how many a user may have, and how long each is remembered.

MOST = 50
"""Negotiations of one user; with one more, the one that was silent for longest is forgotten."""

LONGEST = 500
"""Greatest number of messages of a user in one negotiation."""

SILENCE = 3_600.0
"""Seconds without a message after which a negotiation is forgotten."""


class Negotiations:
    """Open negotiations of each user, the one that was silent for longest first."""

    def __init__(self) -> None:
        self._last_messages: dict[str, dict[str, tuple[float, int]]] = {}

    def record_message(self, user: str, deal: str, now: float) -> str | None:
        """
        Note a message of a user in a negotiation.

        Returns
        -------
        str or None
            The user's negotiation that is to be forgotten, as there are too many; None: none.

        Raises
        ------
        ServiceError
            429, when the negotiation has too many messages.
        """
        mine = self._last_messages.setdefault(user, {})
        # Popped and put back at the end: a dictionary keeps its order, so the first is always the
        # one that was silent for longest.
        _, count = mine.pop(deal, (now, 0))
        # Before the refusal: who goes on about a deal that is too long does not have it forgotten,
        # and begin again at 0.
        mine[deal] = now, min(count + 1, LONGEST)
        if count >= LONGEST:
            raise ServiceError(
                "over-quota", 429, f"more than {LONGEST} messages about one deal", where="deal"
            )
        if len(mine) <= MOST:
            return None
        oldest = next(iter(mine))
        del mine[oldest]
        return oldest

    def silent(self, now: float) -> list[tuple[str, str]]:
        """Return user and deal of the negotiations that have expired."""
        old = [
            (user, deal)
            for user, mine in self._last_messages.items()
            for deal, (last, _) in mine.items()
            if now >= last + SILENCE
        ]
        for user, deal in old:
            del self._last_messages[user][deal]
            if not self._last_messages[user]:
                del self._last_messages[user]
        return old

    def next_tick(self) -> float:
        """Return when the next negotiation expires; infinite for never."""
        firsts = (next(iter(mine.values()))[0] for mine in self._last_messages.values() if mine)
        return min(firsts, default=math.inf) + SILENCE


# Free processors of an owner, as slots.


def free_slots(capacity: CommittedCapacity, now: float) -> list[Slot]:
    """
    Return the processors free from now on as long slots, in the order of their starts.

    What is offered to somebody counts as free from when the offer lapses. Times are in seconds
    since the epoch; see :meth:`bursar.model.slot.ResourceProfile.layers`.
    """
    free = ResourceProfile.summed(
        ((c.start, min(c.end, c.until), -c.processors) for c in capacity.commitments),
        capacity.processors,
    )
    return [
        Slot(start=start, duration=end - start, processors=processors)
        for start, end, processors in free.layers(now)
    ]


MOST_SLOTS = 200

_TYPICAL = 3_600.0
"""Duration in seconds for which a processor is priced when no duration is stated."""


class ServiceBilling:
    """
    Sells the processors of a service's site and keeps the accounts of its users.

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

    Attributes
    ----------
    admission
        Decides what may run on which processors.
    exchange
        Book of the exchange that the service holds, which may be none.
    reservations
        Processors that the owner sets aside and hands over.
    """

    def __init__(
        self,
        journal: RecordStore,
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
        self._selling = selling
        self._users = users
        self._clock = clock
        self._prices = PriceList(journal, site.pricing or Pricing(site.unit_price or 0.0))
        self._ledger = ServiceLedger(journal, site.name, site.currency, self._credit_of)
        self._meter = UsageRecordLog(journal, entropy)
        self._shared_usage = SharedUsageMeter(journal, self._ledger, entropy)
        self._dealings = AgreementRegistry(journal, self._ledger, self._meter, entropy, on_change)
        self._limits = SaleLimits(selling, users, self._dealings)
        self._negotiations = Negotiations()
        self.accounts = UserAccounts(
            site.name, journal, self._ledger, self._meter, self._shared_usage, clock
        )
        self.admission = PoolAdmission(
            self._dealings,
            self._ledger,
            self._shared_usage,
            selling=selling,
            users=users,
            price_for=self._price,
            typical=_TYPICAL,
            clock=clock,
        )
        self._owner = TradeServer(
            site.name,
            processors=selling.processors or site.processors,
            pricing=self._prices.pricing,
            currency=site.currency,
            fixed_price=self.fixed_price,
            protocols=selling.protocols,
            validity=selling.validity,
            holds=selling.holds,
            bargaining=BargainingRules(floor=selling.floor, reserve=selling.reserve_price),
            groups={name: user.groups for name, user in users.items()},
            customers=self._limits,
            registrar=self._dealings,
        )
        self._owner.penalty = selling.penalty
        self._owner.limits = self._limits
        self._on_change = on_change
        self._house = AuctionHouse(
            selling.auctions,
            self._owner,
            floor_price=self._floor_price,
            may_bid=self._may_bid,
        )
        self.reservations = OwnerReservations(
            self._owner, self._dealings, customers=self._limits, end=self._end
        )
        self.exchange = ExchangeHouse(
            journal,
            self._ledger,
            selling.exchange,
            name=site.name,
            entropy=entropy,
            on_change=on_change,
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
        self._owner.adjusted = self._prices.adjusted
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
                self._owner.restore(deal.agreement, deal.ended)
        for user in self._ledger.accounts.accounts:
            # Prices may depend on how much a customer has paid so far.
            self._paid(user, self._ledger.accounts.spent_by(user))
        self._house.open(now)
        self.exchange.open()
        # Agreements that ended while the service was away are settled before anybody asks.
        self.tick(now)

    def skipped(self, before: float, after: float) -> None:
        """Skip time over which the clock jumped: nothing was delivered in it."""
        self._dealings.skip(before, after)
        self.tick(after)

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
        answers = self._owner.deliver(message, now)
        self._prices.note_adjusted(self._owner.adjusted)
        if message.deal in self._house.deals:
            self._on_change(message.deal)  # a bid may change when the auction closes
        # What an auction tells other bidders is asked for by them.
        return tuple(answer for answer in answers if answer.to == user)

    def heard(self, user: str, deal: str, after: int) -> list[TradeMessage]:
        """
        Return what an auctioneer has told a bidder after a number.

        Raises
        ------
        ServiceError
            404, when there is no such auction, or the user does not bid there.
        """
        messages = self._house.heard(user, deal, after)
        if messages is None:
            raise ServiceError("not-found", 404, f'no auction "{deal}" in which you bid')
        return messages

    def auctions(self) -> market.LotList:
        """Return the auctions that are held, were held lately, or come next."""
        return market.LotList(auctions=self._house.lots(self._clock()))

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

    @property
    def usage_key(self) -> str:
        """Ed25519 key by which usage records are verified, hexadecimal."""
        return self.accounts.public_key.public_bytes_raw().hex()

    @property
    def pricing(self) -> Pricing:
        """Prices that the owner asks, with the rules by which they change."""
        return self._prices.pricing

    def prices_ahead(
        self, user: str, processors: int, seconds: float, since: float | None, count: int
    ) -> list[HourlyPrice]:
        """
        Return what would be asked of a user at a time and at the full hours after that time.

        Parameters
        ----------
        since
            First begin, seconds since the epoch; None, or a time that has passed: now.
        count
            Number of begins.

        Raises
        ------
        ServiceError
            422, when that is more, or later, than a deal may be.
        """
        now = self._clock()
        try:
            return forecast_prices(
                self._owner,
                user,
                processors=processors,
                seconds=seconds,
                since=now if since is None else max(since, now),
                count=count,
                now=now,
            )
        except ValueError as error:
            raise ServiceError("bad-value", 422, str(error)) from None

    def reprice(self, pricing: Pricing) -> None:
        """Set the prices from now on, until the configuration is changed."""
        self._prices.change(pricing)
        self._owner.reprice(pricing)

    def reconfigure(self, pricing: Pricing) -> None:
        """Apply the prices of a configuration that was read again, if the prices differ."""
        self._prices.reconfigure(pricing)
        self._owner.reprice(self._prices.pricing)

    # Time.

    def faults(self) -> list[str]:
        """Return inconsistencies of deals and money; any is a defect of this package."""
        dealings, ledger, exchange = self._dealings, self._ledger, self.exchange
        found = find_inconsistencies(
            dealings, ledger, self._meter, self._shared_usage, exchange.held_names
        )
        return [*found, *exchange.faults()]

    def tick(self, now: float) -> None:
        """Handle what is due by now; to be called at :meth:`next_tick`."""
        self._house.tick(now)
        self.exchange.tick(now)
        self._owner.tick(now)
        self._prices.note_adjusted(self._owner.adjusted)
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
            self._prices.next_period(),
            self._house.next_tick(),
            self.exchange.next_tick(),
            self._dealings.next_tick(self._clock()),
            self._shared_usage.next_tick(),
            self._negotiations.next_tick(),
        )

    def _credit_of(self, user: str) -> Micros | None:
        known = self._users.get(user)
        # 0 is a credit, too: only an absent one falls back on the credit of all.
        credit = known.credit if known is not None and known.credit is not None else None
        units = self._selling.credit if credit is None else credit
        return None if units is None else to_micros(units)

    def _price(
        self, user: str, now: float, processors: int, seconds: float, start: float | None = None
    ) -> float:
        asked = self._owner.asked(user, processors, seconds, now if start is None else start, now)
        return max(unit_price(self._prices.pricing, asked), self._selling.reserve_price)

    def _floor_price(self, processors: int, seconds: float, start: float, now: float) -> float:
        asked = self._owner.asked("", processors, seconds, start, now)
        price = unit_price(self._prices.pricing, asked) * self._selling.floor
        return max(price, self._selling.reserve_price)

    def _may_bid(self, user: str, amount: Micros) -> str:
        """Return why a user may not bid an amount: who cannot pay must not spoil an auction."""
        if not self._ledger.is_limited(user) or amount <= self._ledger.available(user):
            return ""
        return f"the account has {format_amount(self._ledger.available(user), self.currency)}"

    def _known(self, user: str, agreement: str) -> AgreementRecord:
        deal = self._dealings.of_user(user, agreement)
        if deal is None:
            raise ServiceError("not-found", 404, unknown_agreement(agreement).reason)
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
            charged=max(0, deal.charged - deal.penalty),
            penalty=deal.penalty,
            held=agreement.terms.amount if deal.is_open else 0,
            deal=deal.talk,
        )
