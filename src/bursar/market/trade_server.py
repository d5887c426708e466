"""
Implements the trade server, an owner's side of every deal.

It prices by the owner's policy, speaks the protocols it was told to, and never sells
more processors than it has: what is sold is committed before it is confirmed.

References
----------
.. [1] Buyya, Abramson, Giddy (2000). An economy driven resource management architecture
   for computational power grids. PDPTA 2000.
"""

import copy
import math
from collections.abc import Container, Hashable, Mapping
from dataclasses import dataclass
from typing import Literal
from typing import Protocol as Interface

import msgspec

from bursar.market.agreement import Agreement, DealTemplate, Terms
from bursar.market.negotiation.auction import Auctioneer, Bidder
from bursar.market.negotiation.bilateral import BargainingOwner, Concession, PostedOwner
from bursar.market.negotiation.side import NegotiationSide, reject_stray
from bursar.market.negotiation.tender import TenderOwner
from bursar.market.pricing import (
    AdjustedFactor,
    Commitment,
    CommittedCapacity,
    OwnerState,
    PriceQuery,
    adjusted_until,
    unit_price,
)
from bursar.market.trade_messages import CallForBids, Confirm, Offer, RequestQuote, TradeMessage
from bursar.model.money import Micros, Pricing, Refusal, rental_charge

NegotiationProtocol = Literal["posted", "bargaining", "tender", "auction"]

PROTOCOLS: tuple[NegotiationProtocol, ...] = ("posted", "bargaining", "tender", "auction")

MOST_BIDDERS = 1_000
"""Greatest number of bidders of one auction."""

LONGEST_HOLD = 86_400.0
"""Longest time for which a quote or bid sets processors aside, seconds."""


class AgreementRegistrar(Interface):
    """Registry that names an owner's agreements and may refuse an agreement before signing."""

    def name(self) -> str:
        """Return a unique name for the next agreement."""
        ...

    def sign(self, agreement: Agreement, deal: str, now: float) -> Refusal | None:
        """Enter an agreement reached in a conversation, or return the reason for a refusal."""
        ...

    def take_back(self, agreement: Agreement, now: float) -> None:
        """Strike an agreement that has not begun."""
        ...


class CountingRegistrar:
    """Registry that numbers an owner's agreements and signs all of them."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._named = 0

    def name(self) -> str:
        """Return ``"uni-1"``, ``"uni-2"`` and so on; a refused agreement's number is not reused."""
        self._named += 1
        return f"{self._owner}-{self._named}"

    def sign(self, agreement: Agreement, deal: str, now: float) -> Refusal | None:
        """Accept every agreement."""
        return None

    def take_back(self, agreement: Agreement, now: float) -> None:
        """Do nothing, since nothing was written."""


class BuyerLimits(Interface):
    """Limits of what single customers may buy."""

    def refuse(self, customer: str, processors: int, start: float, end: float) -> Refusal | None:
        """Return why a customer may not have so many processors more for a time; None: may."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BargainingRules:
    """
    Rules by which an owner concedes in bargaining.

    Parameters
    ----------
    floor
        Lowest share of the price that the owner accepts in bargaining and auctions; 0 to 1.
    reserve
        Currency units per processor-second below which nothing is sold, by whatever rule. Not
        negative.
    rounds, beta
        Number of concessions, and their shape; see
        :class:`bursar.market.negotiation.bilateral.Concession`.
    """

    floor: float = 0.8
    reserve: float = 0.0
    rounds: int = 10
    beta: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.floor <= 1:
            raise ValueError(f"floor must be 0 to 1, got {self.floor}")
        if not 0 <= self.reserve < math.inf:
            raise ValueError(f"reserve must not be negative, got {self.reserve}")
        Concession(first=0, reserve=0, rounds=self.rounds, beta=self.beta)  # raises what is wrong


class TradeServer:
    """
    Sells one owner's processors.

    Parameters
    ----------
    name
        Name of the owner, the address of messages.
    fixed_price
        Currency units charged once for each deal by quote or tender.
    protocols
        Protocols that the server speaks. ``"auction"``: bid in buyers' reverse auctions.
    validity
        Seconds for which a quote or bid holds and for which the owner bargains. Positive.
    holds
        Whether a quote or bid sets its processors aside until it expires; else its
        price holds, and who accepts first gets the processors.
    groups
        Groups of each customer, which only the owner decides.
    customers
        Customers served; None: everyone.
    registrar
        Registry of agreements; None: agreements are numbered.

    Attributes
    ----------
    auctions
        The owner's auctions by deal, with those that are over and not forgotten; read only.
    pricing, protocols
        Policy of new offers, and what the server speaks; read only.
    penalty
        Penalty of all agreements, see :class:`bursar.market.agreement.Terms`.
    adjusted
        Factor to which supply and demand have brought the price.
    limits
        Limits of single customers; None: there are none.
    """

    def __init__(
        self,
        name: str,
        *,
        processors: int,
        pricing: Pricing,
        currency: str = "SU",
        fixed_price: float = 0.0,
        protocols: tuple[NegotiationProtocol, ...] = PROTOCOLS,
        validity: float = 600.0,
        holds: bool = False,
        bargaining: BargainingRules | None = None,
        groups: Mapping[str, frozenset[str]] | None = None,
        customers: Container[str] | None = None,
        registrar: AgreementRegistrar | None = None,
    ) -> None:
        if not 0 < validity < math.inf:
            raise ValueError(f"validity must be positive, got {validity}")
        if not 0 <= fixed_price < math.inf:
            raise ValueError(f"fixed_price must not be negative, got {fixed_price}")
        self.name = name
        self.currency = currency
        self.validity = validity
        self.capacity = CommittedCapacity(processors)
        self.penalty = 0.0
        self.pricing = pricing
        self._fixed_price = fixed_price
        self.protocols = protocols
        self._holds = holds
        self._bargaining = bargaining or BargainingRules()
        self._groups = groups or {}
        self._customers = customers
        self._paid: dict[str, Micros] = {}
        self.adjusted = AdjustedFactor()
        self.limits: BuyerLimits | None = None
        self._sides: dict[tuple[str, str], NegotiationSide] = {}
        self.auctions: dict[str, Auctioneer] = {}
        self._agreements: dict[str, Agreement] = {}
        self._concluded: dict[tuple[str, str], Agreement] = {}  # in earlier lives
        self._registrar = registrar or CountingRegistrar(name)

    @property
    def agreements(self) -> tuple[Agreement, ...]:
        """Agreements that bind the owner, in the order signed, including past ones."""
        return tuple(self._agreements.values())

    def as_of(self, now: float) -> "TradeServer":
        """
        Return a copy of the owner as it will be at a time if nobody buys until then.

        The copy answers what would be asked then. It shares the registry of agreements and is not
        to sell anything.
        """
        future = copy.copy(self)
        future.capacity = CommittedCapacity(self.capacity.processors)
        future.capacity.set_commitments(self.capacity.by_key)
        future._sides, future.auctions = {}, {}
        future._pass(now)
        return future

    def reprice(self, pricing: Pricing) -> None:
        """Set the pricing for new offers; earlier quotes and agreements keep the old prices."""
        # A rule that stays goes on from where supply and demand have brought the price.
        if pricing.adjusting != self.pricing.adjusting:
            self.adjusted = AdjustedFactor()
        self.pricing = pricing

    def note_payment(self, customer: str, amount: Micros) -> None:
        """Count a customer's payment, positive micro-units, towards loyalty."""
        if amount <= 0:
            raise ValueError(f"amount must be positive, got {amount}")
        self._paid[customer] = self._paid.get(customer, 0) + amount

    # The owner's memory, where several processes sell for one owner in turn.

    def take_up(self, state: OwnerState) -> None:
        """Replace the owner's memory by a state that another process has left."""
        self.adjusted = AdjustedFactor(state.factor, state.period)
        self._paid = dict(state.paid)
        commitments: dict[Hashable, Commitment] = {}
        commitments.update(state.ours)
        commitments.update((("other", i), c) for i, c in enumerate(state.others))
        self.capacity.set_commitments(commitments)

    @property
    def state(self) -> OwnerState:
        """Memory of the owner; of the commitments, only sold ones."""
        # Keys tell the kinds apart: an agreement's id is a string, other runs' and quotes are
        # tuples.
        sold = self.capacity.by_key
        return OwnerState(
            factor=self.adjusted.factor,
            period=self.adjusted.period,
            paid=dict(self._paid),
            ours={key: c for key, c in sold.items() if isinstance(key, str)},
            others=tuple(c for key, c in sold.items() if not isinstance(key, str)),
        )

    # Messages, and the passing of time.

    def deliver(self, message: TradeMessage, now: float) -> tuple[TradeMessage, ...]:
        """
        Process a message, and return the messages to send.

        Parameters
        ----------
        now
            Seconds since the epoch.

        Returns
        -------
        tuple of TradeMessage
            Messages to send, each to the party it names.
        """
        self._pass(now)
        if message.to != self.name:
            return reject_stray(message, self.name, f"is for {message.to}")
        auction = self.auctions.get(message.deal)
        if auction is not None:
            refusal = self._admitted(auction, message)
            if refusal:
                return reject_stray(message, self.name, refusal)
            return self._freed(auction, auction.receive(message, now))
        key = message.sender, message.deal
        if key not in self._sides:
            # Conversations do not outlive the process, agreements do: a repeated opening of one
            # that was concluded before a crash must get the same agreement, not a second one.
            made = self._concluded.get(key)
            if made is not None and isinstance(message, Offer):  # its answer may have been lost
                to, deal = message.sender, message.deal
                return (Confirm(deal=deal, sender=self.name, to=to, number=1, agreement=made),)
            side = self._opened(message, now)
            if isinstance(side, Refusal):
                return reject_stray(message, self.name, side.reason)
            self._sides[key] = side
        return self._sides[key].receive(message, now)

    def tick(self, now: float) -> tuple[TradeMessage, ...]:
        """Let quotes expire and auctions close whose time has come."""
        self._pass(now)
        messages = [m for s in self._sides.values() if s.next_tick() <= now for m in s.tick(now)]
        for auction in self.auctions.values():
            messages += self._freed(auction, auction.tick(now))
        return tuple(messages)

    def next_tick(self) -> float:
        """Return the time of the next due :meth:`tick`; infinite for never."""
        sides = (*self._sides.values(), *self.auctions.values())
        return min((side.next_tick() for side in sides), default=math.inf)

    def auction(self, auctioneer: Auctioneer, now: float) -> tuple[TradeMessage, ...] | Refusal:
        """
        Open an auction of processors, which are set aside until the auction is over.

        Parameters
        ----------
        auctioneer
            Auction in this owner's name, not reverse; the lot begins at its earliest start.
        """
        lot = auctioneer.lot
        if auctioneer.me != self.name or auctioneer.reverse or lot.currency != self.currency:
            raise ValueError("an auction must sell in the owner's name and currency")
        if auctioneer.deal in self.auctions:
            return Refusal(f"{auctioneer.deal} is an auction already", final=True)
        self._pass(now)
        end = lot.earliest + lot.seconds
        if not self.capacity.commit(_lot(auctioneer.deal), lot.processors, lot.earliest, end):
            return Refusal("the processors are not free", final=False)
        auctioneer.sell = self.sell
        self.auctions[auctioneer.deal] = auctioneer
        return auctioneer.open(now)

    # The server as the Seller of each of its conversations.

    def terms(
        self, deal: str, customer: str, template: DealTemplate, now: float
    ) -> Terms | Refusal:
        """Return the terms by the owner's pricing at the earliest start with free processors."""
        if template.currency != self.currency:
            return Refusal(f"counts in {template.currency}, expected {self.currency}", final=True)
        refusal = self._unknown(customer)
        if refusal is not None:
            return refusal
        if template.customer not in ("", customer):
            return Refusal(f"{customer} does not buy for {template.customer}", final=True)
        if template.processors > self.capacity.processors:
            return Refusal(f"has {self.capacity.processors} processors", final=True)
        self.let_go(deal, customer)
        earliest = max(template.earliest, now)
        latest = math.inf if template.latest is None else template.latest - template.seconds
        # After the customer's own earlier quote was released, which would otherwise compete with
        # this one.
        start = self.capacity.first_fit(template.processors, template.seconds, earliest, latest)
        if start is None:
            return Refusal("has no processors free in that time", final=False)
        refusal = self._over_limit(customer, template.processors, start, start + template.seconds)
        if refusal is not None:
            return refusal
        try:
            asked = self.asked(customer, template.processors, template.seconds, start, now)
            return Terms(
                processors=template.processors,
                start=start,
                seconds=template.seconds,
                unit_price=max(unit_price(self.pricing, asked), self._bargaining.reserve),
                fixed_price=self._fixed_price,
                currency=self.currency,
                penalty=self.penalty,
            )
        except ValueError as error:  # more, or later, than a deal may be
            return Refusal(str(error), final=True)

    def asked(
        self, customer: str, processors: int, seconds: float, start: float, now: float
    ) -> PriceQuery:
        """Return the facts from which the price for a customer and a lot follows."""
        return PriceQuery(
            processors=processors,
            seconds=seconds,
            start=start,
            now=now,
            utilisation=self.capacity.utilisation(start, start + seconds),
            customer=customer,
            groups=self._groups.get(customer, frozenset()),
            paid=self._paid.get(customer, 0),
            adjusted=self.adjusted.factor,
        )

    def hold(self, deal: str, customer: str, terms: Terms, until: float, now: float) -> None:
        """Set the processors of a quote or bid aside, if the owner holds offers."""
        if self._holds:
            # A buyer chooses when its call for tenders closes: it must not tie processors up for
            # years.
            until = min(until, now + LONGEST_HOLD)
            key = _quote(deal, customer)
            self.capacity.commit(key, terms.processors, terms.start, terms.end, until)

    def let_go(self, deal: str, customer: str) -> None:
        """Free the processors of a quote or bid that the customer does not take."""
        self.capacity.release(_quote(deal, customer))

    def sell(
        self, deal: str, customer: str, terms: Terms, now: float, *, limited: bool = True
    ) -> Agreement | Refusal:
        """
        Bind the owner to a deal if the processors are still free.

        A quote for an immediate start is accepted a little after that start. A start longer
        ago than a quote holds is not sold: commitments of that time are forgotten.

        Parameters
        ----------
        limited
            Whether the limits of single customers hold: not for what the owner sets aside.
        """
        if terms.end <= now or terms.start < now - self.validity:
            return Refusal("has begun", final=True)
        self.let_go(deal, customer)
        self.capacity.release(_lot(deal))
        # Checked after the quote's own hold was let go, which would count against the deal.
        if terms.processors > self.capacity.free(terms.start, terms.end):
            return Refusal("the processors were sold meanwhile", final=False)
        refusal = self._over_limit(customer, terms.processors, terms.start, terms.end)
        if limited and refusal is not None:
            return refusal
        name = self._registrar.name()
        while name in self.capacity.by_key:  # taken in an earlier life, which counted from 1, too
            name = self._registrar.name()
        if self.penalty > terms.penalty:  # an amount that was bargained or bid for names none
            terms = msgspec.structs.replace(terms, penalty=self.penalty)
        agreement = Agreement(
            id=name, owner=self.name, customer=customer, terms=terms, signed_at=now
        )
        # The registry writes it down, and takes the customer's money, before any Confirm is sent.
        refusal = self._registrar.sign(agreement, deal, now)
        if refusal is not None:
            return refusal
        self.restore(agreement)
        return agreement

    def take_back(self, agreement: Agreement, now: float) -> Refusal | None:
        """End an agreement that has not begun."""
        if now >= agreement.start:
            return Refusal("has begun", final=True)
        if self._agreements.pop(agreement.id, None) is not None:
            self._registrar.take_back(agreement, now)
        self.capacity.release(agreement.id)
        return None

    def restore(self, agreement: Agreement, ended: float | None = None) -> None:
        """
        Restore an agreement made before a restart, without checking for free processors.

        Parameters
        ----------
        ended
            When it ended, seconds since the epoch: its processors stay committed until then, and
            the agreement does not bind the owner. None: it has not ended.
        """
        end = agreement.terms.end if ended is None else ended
        if end > agreement.start:
            self.capacity.restore(agreement.id, agreement.processors, agreement.start, end)
        if ended is None:
            self._agreements[agreement.id] = agreement

    def restore_conclusion(self, deal: str, agreement: Agreement) -> None:
        """
        Restore the outcome of a conversation from before a restart, over or not.

        The offer that opened the conversation may be repeated and must not be sold twice.
        """
        self._concluded[agreement.customer, deal] = agreement

    def forget(self, deal: str, customer: str | None = None) -> None:
        """
        Drop a finished conversation, whose repeated messages are no longer answered.

        Parameters
        ----------
        customer
            The customer of the conversation; None for all customers.
        """
        if customer is not None:
            self._sides.pop((customer, deal), None)
        else:
            self.auctions.pop(deal, None)
            self._sides = {key: side for key, side in self._sides.items() if key[1] != deal}

    def forget_agreement(self, agreement: str, ended: float) -> None:
        """
        Drop an agreement that is over.

        Its processors stay committed up to its end for as long as past starts are sold, so that
        no processor is sold twice for the same time.
        """
        self._agreements.pop(agreement, None)
        self.capacity.shorten(agreement, ended)

    # Inside.

    def _opened(self, message: TradeMessage, now: float) -> NegotiationSide | Refusal:
        """Return the owner's side of a new conversation, or why none is opened."""
        refusal = self._unknown(message.sender)
        if refusal is not None:
            return refusal
        if message.number != 1:
            return Refusal("expected number 1 first", final=False)
        deal, customer = message.deal, message.sender
        match message:
            case RequestQuote() if "posted" in self.protocols:
                return PostedOwner(self, deal, customer)
            case Offer() if "bargaining" in self.protocols:
                return BargainingOwner(
                    self, deal, customer, concession=self._concede, patience=self.validity
                )
            case CallForBids(rule="tender") if "tender" in self.protocols:
                return TenderOwner(self, deal, customer)
            case CallForBids(reverse=True) if "auction" in self.protocols:
                terms = self.terms(deal, customer, message.template, now)
                agreed = None if isinstance(terms, Refusal) else terms
                return Bidder(
                    self.name,
                    deal,
                    customer,
                    value=self._least(agreed) if agreed else 0,
                    currency=self.currency,
                    seller=self,
                    terms=agreed,
                )
        return Refusal(f"does not open a deal with a {type(message).__name__}", final=True)

    def _admitted(self, auction: Auctioneer, message: TradeMessage) -> str:
        """Let a customer bid who asks for it; return why not, empty for one who may bid."""
        if message.sender in auction.parties:
            return ""
        refusal = self._unknown(message.sender)
        if refusal is not None:
            return refusal.reason
        if not isinstance(message, RequestQuote) or len(auction.parties) >= MOST_BIDDERS:
            return "is no bidder of this auction"
        auction.admit(message.sender)
        return ""

    def _unknown(self, customer: str) -> Refusal | None:
        if self._customers is None or customer in self._customers:
            return None
        return Refusal(f"{customer} is no customer", final=True)

    def _over_limit(
        self, customer: str, processors: int, start: float, end: float
    ) -> Refusal | None:
        if self.limits is None:
            return None
        return self.limits.refuse(customer, processors, start, end)

    def _least(self, terms: Terms) -> Micros:
        reserve = rental_charge(
            terms.processors * terms.seconds, self._bargaining.reserve, terms.fixed_price
        )
        return max(math.ceil(terms.amount * self._bargaining.floor), reserve)

    def _concede(self, terms: Terms) -> Concession:
        return Concession(
            first=terms.amount,
            reserve=self._least(terms),
            rounds=self._bargaining.rounds,
            beta=self._bargaining.beta,
        )

    def _freed(
        self, auction: Auctioneer, messages: tuple[TradeMessage, ...]
    ) -> tuple[TradeMessage, ...]:
        if auction.is_over:
            self.capacity.release(_lot(auction.deal))
        return messages

    def _pass(self, now: float) -> None:
        """Let time pass: supply and demand move the price, past commitments are forgotten."""
        rule = self.pricing.adjusting
        if rule is not None:
            self.adjusted = adjusted_until(rule, self.adjusted, now, self.capacity)
        # Starts up to one validity ago may still be accepted: what was busy then must stay known.
        self.capacity.forget(now, now - self.validity)


def _quote(deal: str, customer: str) -> tuple[str, str, str]:
    return "quote", deal, customer


def _lot(deal: str) -> tuple[str, str]:
    return "lot", deal
