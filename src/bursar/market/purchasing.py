"""
How a buyer comes to one agreement with one owner of several: quotes, bargaining, tenders.

:func:`negotiate` decides which messages are sent next and is told which owners did not answer. It
carries nothing itself: owners in the same process, in simulated time and behind HTTPS are bought
from by one and the same code.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from bursar.market.agreement import Agreement, DealTemplate
from bursar.market.trade_manager import OwnerAnswer, TradeLimits, TradeManager, next_best
from bursar.market.trade_messages import MessageExchange, TradeMessage
from bursar.model.money import Micros
from bursar.model.site import BuyingProtocol, NegotiatedMarket


@dataclass(frozen=True, slots=True)
class TradeStep:
    """
    The next step that a buyer asks for.

    Parameters
    ----------
    messages
        Messages to deliver, with all answers to them and all that follows from these.
    until
        When to let time pass for the buyer, seconds since the epoch; None: at once.
    """

    messages: tuple[TradeMessage, ...] = ()
    until: float | None = None


class TradeResult(msgspec.Struct, frozen=True, kw_only=True):
    """
    The result of a negotiation with one owner or several.

    Parameters
    ----------
    protocol
        How the price was found.
    template
        What was wanted.
    limit
        Most that would have been paid, micro-units; None: no limit.
    answers
        What each owner answered, the best first.
    agreement
        The agreement; None: there is none.
    unknown
        Owners who did not answer an acceptance: whether there is an agreement is not known.
    deal
        Name of the conversations; empty: not known.
    """

    protocol: BuyingProtocol
    template: DealTemplate
    limit: Micros | None = None
    answers: tuple[OwnerAnswer, ...] = ()
    agreement: Agreement | None = None
    unknown: tuple[str, ...] = ()
    deal: str = ""

    @property
    def amount(self) -> Micros | None:
        """Agreed price, micro-units; None: there is no agreement."""
        return None if self.agreement is None else self.agreement.terms.amount

    @property
    def next_best(self) -> OwnerAnswer | None:
        """The cheapest offer that was not taken."""
        return next_best(self.answers)

    def refusal(self) -> str:
        """Return in one line why nothing was agreed, for people; of one owner without its name."""
        if len(self.answers) == 1:
            return self.answers[0].reason or "no agreement"
        parts = [f"{answer.owner}: {answer.reason or 'was not chosen'}" for answer in self.answers]
        return "; ".join(parts) or "nobody was asked"


Negotiation = Generator[TradeStep, frozenset[str], TradeResult]
"""Yields steps, is sent the names of owners that did not answer, and returns what came of all."""


def negotiate(
    manager: TradeManager,
    deal: str,
    protocol: NegotiatedMarket,
    owners: Sequence[str],
    template: DealTemplate,
    limits: TradeLimits,
    clock: Callable[[], float],
    *,
    buy: bool = True,
) -> Negotiation:
    """
    Negotiate within limits, and buy from one owner at most.

    Parameters
    ----------
    manager
        The buyer's side of all deals; nothing of this one is left there at the end.
    deal
        Name of the conversations, not in use with these owners.
    protocol
        ``"posted"``: the cheapest quote is accepted. ``"bargain"``: owners are asked for quotes,
        and bargained with one after the other, from the cheapest quote on. ``"tender"``: all
        owners bid, and the best bid is awarded.
    clock
        Seconds since the epoch.
    buy
        Whether the cheapest quote is accepted; only ``"posted"`` can do without.
    """
    way = {"posted": _posted, "bargain": _bargained, "tender": _tendered}[protocol]
    quoting = f"{deal}-quote"
    buyer = _Buyer(manager, deal, quoting, tuple(owners), template, limits, clock, buy=buy)
    try:
        answers, unknown = yield from way(buyer)
        agreements = manager.agreements_of(deal)
        # Only an acceptance or an offer that was not answered leaves open whether there is an
        # agreement: an owner may accept the first offer, before naming a price.
        accepted = {
            a.owner
            for a in answers
            if a.state != "agreed" and (a.price is not None or a.ours is not None)
        }
        result = TradeResult(
            protocol=protocol,
            template=template,
            limit=limits.most,
            answers=tuple(answers),
            agreement=agreements[0] if agreements else None,
            unknown=tuple(sorted(unknown & accepted)),
            deal=deal,
        )
        yield from _withdrawn(buyer, deal)
        return result
    finally:
        manager.forget(deal)
        manager.forget(quoting)


@dataclass(frozen=True, slots=True)
class _Buyer:
    """The state that all ways to a price share."""

    manager: TradeManager
    deal: str
    quoting: str
    owners: tuple[str, ...]
    template: DealTemplate
    limits: TradeLimits
    clock: Callable[[], float]
    buy: bool


_Way = Generator[TradeStep, frozenset[str], tuple[Sequence[OwnerAnswer], frozenset[str]]]


def _posted(buyer: _Buyer) -> _Way:
    manager, deal = buyer.manager, buyer.deal
    # The owner's clock says whether a quote still holds: the two clocks need not agree.
    unknown = yield TradeStep(
        manager.ask(deal, buyer.owners, buyer.template, _EVER, limit=buyer.limits.most)
    )
    for quote in manager.quotes(deal, _EVER) if buyer.buy else ():
        failed = yield TradeStep(manager.accept(quote, _EVER))
        unknown |= failed
        # Whoever does not answer an acceptance may have sold: nobody else is asked.
        if failed or manager.agreements_of(deal):
            break
    return manager.answers(deal), unknown


def _tendered(buyer: _Buyer) -> _Way:
    manager, deal, now = buyer.manager, buyer.deal, buyer.clock()
    closes = now + buyer.limits.patience
    unknown = yield TradeStep(
        manager.call(deal, buyer.owners, buyer.template, closes, now, limit=buyer.limits.most)
    )
    while "called" in manager.states(deal).values():
        # Somebody did not answer: the call stays open until it closes.
        unknown |= yield TradeStep(until=closes)
    return manager.answers(deal), unknown


def _bargained(buyer: _Buyer) -> _Way:
    manager, deal = buyer.manager, buyer.deal
    until = buyer.clock() + buyer.limits.patience
    unknown = yield TradeStep(manager.ask(buyer.quoting, buyer.owners, buyer.template, _EVER))
    quotes = {answer.owner: answer for answer in manager.answers(buyer.quoting)}
    # An owner that holds what it quotes has it free for the bargaining then.
    yield from _withdrawn(buyer, buyer.quoting)
    posted = min((q.price for q in quotes.values() if q.price is not None), default=None)
    concession = buyer.limits.concession(posted)
    if concession is None:  # nobody said a price to start from, and the buyer has no limit
        return list(quotes.values()), unknown
    for owner in quotes:  # the cheapest first
        if owner in unknown:
            continue
        failed = yield TradeStep(
            manager.bargain(deal, owner, buyer.template, concession, buyer.clock(), until=until)
        )
        unknown |= failed
        if failed or manager.agreements_of(deal):
            break
    # Whoever was not bargained with has a standing quote, or the reason why there is none.
    found = {answer.owner: answer for answer in manager.answers(deal)}
    answers = [_with_quote(found.get(owner), quote) for owner, quote in quotes.items()]
    return sorted(answers, key=lambda answer: answer.state != "agreed"), unknown


def _withdrawn(buyer: _Buyer, deal: str) -> Generator[TradeStep, frozenset[str], None]:
    """Withdraw from quotes that were not accepted; one that is not told lets its quote expire."""
    manager, now = buyer.manager, buyer.clock()
    quoted = [owner for owner, state in manager.states(deal).items() if state == "quoted"]
    withdrawals = [m for owner in quoted for m in manager.cancel(deal, owner, now)]
    if withdrawals:
        yield TradeStep(tuple(withdrawals))


def _with_quote(answer: OwnerAnswer | None, quote: OwnerAnswer) -> OwnerAnswer:
    """Return an owner's answer in bargaining, with the price that the owner had quoted as first."""
    if answer is None:
        return quote
    first = answer.first if quote.price is None else quote.price
    return msgspec.structs.replace(answer, first=first, start=answer.start or quote.start)


def carry_out(negotiation: Negotiation, exchange: MessageExchange, now: float) -> TradeResult:
    """
    Negotiate with owners in this process, at one moment.

    Parameters
    ----------
    exchange
        Delivers messages between the buyer and the owners.
    now
        Seconds since the epoch.
    """
    step = next(negotiation)
    while True:
        exchange.deliver(step.messages, now)
        if step.until is not None:
            exchange.tick(step.until)
        try:
            step = negotiation.send(frozenset())
        except StopIteration as done:
            result: TradeResult = done.value
            return result


# What a journal keeps of a purchase.

TRADE = "trade"
"""Kind of a journal's event that holds a :class:`DealRecord`."""

DISPUTE = "dispute"
"""Kind of a journal's event that holds a :class:`DisputeRecord`."""


class DealRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    A purchase of a run, as it was negotiated.

    Parameters
    ----------
    site
        Site whose processors were wanted.
    result
        What came of the negotiation.
    lease
        Lease that the purchase was made for; empty: none came of it.
    task
        Number of the job that it was made for; None: a whole allocation.
    """

    site: str
    result: TradeResult
    lease: str = ""
    task: int | None = None

    @property
    def kind(self) -> str:
        """Kind of the journal's event."""
        return TRADE

    def to_dict(self) -> dict[str, Any]:
        """Convert to a JSON document; amounts are in micro-units."""
        result, best = self.result, self.result.next_best
        return {
            "site": self.site,
            "market": result.protocol,
            "processors": result.template.processors,
            "seconds": result.template.seconds,
            "limit": result.limit,
            "amount": result.amount,
            "currency": result.template.currency,
            "agreement": "" if result.agreement is None else result.agreement.id,
            "next_best": None if best is None else best.owner,
            "answers": [msgspec.structs.asdict(answer) for answer in result.answers],
        }


class DisputeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """
    Faults of a site's bill for a lease, by the site's own signed usage records.

    Parameters
    ----------
    agreement
        Agreement that was billed.
    findings
        One line for each.
    """

    site: str
    lease: str
    agreement: str
    findings: tuple[str, ...]

    @property
    def kind(self) -> str:
        """Kind of the journal's event."""
        return DISPUTE


MarketRecord = DealRecord | DisputeRecord
"""What a site tells of its market."""

_EVER = float("-inf")
"""A moment at which every quote still holds."""
