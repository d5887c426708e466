"""
Trading with several services at once.

:func:`bursar.market.purchasing.negotiate` decides; this module carries the messages. A service is
called by the name that the buyer gave it, so that two services of one name, and a buyer who has
different users at them, are told apart: names are translated on the way.
"""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from bursar.market.agreement import Agreement, DealTemplate, Terms
from bursar.market.purchasing import TradeResult, negotiate
from bursar.market.trade_manager import OwnerAnswer, TradeLimits, TradeManager
from bursar.market.trade_messages import (
    Accept,
    Bid,
    Confirm,
    CounterOffer,
    FinalOffer,
    Offer,
    Reject,
    RejectBid,
    TradeMessage,
)
from bursar.model.errors import InputError, SiteError
from bursar.model.site import AUCTIONS, NegotiatedMarket
from bursar.remote.access import Access
from bursar.remote.async_client import AsyncServiceClient
from bursar.remote.connection import PATIENCE, Notice
from bursar.remote.http_transport import RemoteProblem
from bursar.remote.market_messages import LotInfo
from bursar.remote.messages import AgreementInfo

BUYER = "buyer"
"""Name of the buyer in negotiations, before it is translated to a user of each service."""

_BINDING = (Accept, Offer, CounterOffer, FinalOffer)
"""Messages that the other side can answer with an agreement."""

M = TypeVar("M", bound=TradeMessage)


class TradePartner(Protocol):
    """An owner that answers a buyer's messages."""

    @property
    def name(self) -> str:
        """Name by which the buyer calls the owner."""

    @property
    def currency(self) -> str:
        """Currency of the owner's prices."""

    async def send(self, message: TradeMessage) -> list[TradeMessage]:
        """
        Send a message of :data:`BUYER`; return the answers, addressed as the buyer knows them.

        Raises
        ------
        RemoteProblem, SiteError
            When the owner does not answer.
        """


PartnerT = TypeVar("PartnerT", bound=TradePartner)


@dataclass(frozen=True, slots=True, kw_only=True)
class TradingService:
    """
    A service that sells, and what this buyer is called there.

    Parameters
    ----------
    name
        Name by which the buyer calls the service.
    owner, customer
        Names of the service and of the buyer in the service's deals.
    currency
        Currency of the service's prices.
    """

    name: str
    client: AsyncServiceClient
    owner: str
    customer: str
    currency: str

    async def send(self, message: TradeMessage) -> list[TradeMessage]:
        """Send a message of the buyer's; return the answers, addressed as the buyer knows them."""
        outgoing = msgspec.structs.replace(message, sender=self.customer, to=self.owner)
        return [self._translated(answer) for answer in await self.client.trade(outgoing)]

    async def heard(self, deal: str, after: int) -> list[TradeMessage] | None:
        """
        Return what the service's auctioneer has told the buyer after a number.

        None when there is no such auction, or the buyer does not bid there.
        """
        try:
            told = await self.client.heard(deal, after)
        except RemoteProblem as problem:
            if problem.status == 404:
                return None
            raise
        return [self._translated(answer) for answer in told]

    def _translated(self, answer: M) -> M:
        return as_buyer_knows(answer, self.name, (self.owner, self.customer))


def as_buyer_knows(answer: M, name: str, parties: tuple[str, str]) -> M:
    """
    Return an owner's answer with the names by which the buyer knows both sides.

    Parameters
    ----------
    name
        Name by which the buyer calls the owner.
    parties
        Names of owner and customer in the owner's deals.
    """
    renamed = msgspec.structs.replace(answer, sender=name, to=BUYER)
    # Anything else stays as it is, and is refused as an agreement of other parties.
    if isinstance(renamed, Confirm) and parties == (
        renamed.agreement.owner,
        renamed.agreement.customer,
    ):
        agreement = msgspec.structs.replace(renamed.agreement, owner=name, customer=BUYER)
        return msgspec.structs.replace(renamed, agreement=agreement)
    return renamed


class ServiceTrader(Generic[PartnerT]):
    """
    Negotiates for one buyer with one owner or several.

    Parameters
    ----------
    services
        Owners to ask.
    failed
        Reason for each service that could not be asked, by name.
    on_binding
        Awaited with the name of a deal and of an owner before the first message is sent to this
        owner that may end in an agreement; None: nobody is told.
    clock
        Seconds since the epoch.
    """

    def __init__(
        self,
        services: Iterable[PartnerT],
        failed: Mapping[str, str] | None = None,
        *,
        on_binding: Callable[[str, str], Awaitable[None]] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._services = {service.name: service for service in services}
        self._failed = dict(failed or {})
        self._on_binding = on_binding
        self._clock = clock
        self._manager = TradeManager(BUYER)

    @property
    def services(self) -> tuple[PartnerT, ...]:
        """Owners that can be asked."""
        return tuple(self._services.values())

    @property
    def currency(self) -> str:
        """Currency of the first owner."""
        return next((service.currency for service in self._services.values()), "SU")

    async def negotiate(
        self,
        protocol: NegotiatedMarket,
        template: DealTemplate,
        limits: TradeLimits,
        *,
        buy: bool = True,
    ) -> TradeResult:
        """
        Negotiate within limits, and buy from one service at most.

        See :func:`bursar.market.purchasing.negotiate`.
        """
        deal = secrets.token_hex(16)
        negotiation = negotiate(
            self._manager,
            deal,
            protocol,
            tuple(self._services),
            template,
            limits,
            self._clock,
            buy=buy,
        )
        failed: dict[str, str] = {}
        bound: set[str] = set()
        try:
            step = next(negotiation)
            while True:
                silent = await self._exchange(step.messages, failed, bound)
                if step.until is not None:
                    await asyncio.sleep(max(0.0, step.until - self._clock()))
                    silent |= await self._exchange(
                        self._manager.tick(max(step.until, self._clock())), failed, bound
                    )
                step = negotiation.send(frozenset(silent))
        except StopIteration as done:
            return _explained(done.value, self._failed | failed)
        finally:
            negotiation.close()

    async def _exchange(
        self, messages: Iterable[TradeMessage], failed: dict[str, str], bound: set[str]
    ) -> set[str]:
        """
        Send messages, and answer the replies until no side has more to say.

        Returns
        -------
        set of str
            Services that did not answer a message; why is added to ``failed``.
        """
        silent: set[str] = set()
        waiting = _by_owner(messages)
        while waiting:
            sent = list(waiting.items())
            answered = await asyncio.gather(
                *(self._send(owner, said, failed, bound) for owner, said in sent)
            )
            replies: list[TradeMessage] = []
            for (owner, _), answers in zip(sent, answered, strict=True):
                if answers is None:
                    silent.add(owner)
                    continue
                for answer in answers:
                    replies += self._manager.deliver(answer, self._clock())
            waiting = _by_owner(reply for reply in replies if reply.to not in silent)
        return silent

    async def _send(
        self, owner: str, messages: Iterable[TradeMessage], failed: dict[str, str], bound: set[str]
    ) -> list[TradeMessage] | None:
        """Send messages to one service; return its answers, None when it does not answer."""
        answers: list[TradeMessage] = []
        try:
            for message in messages:
                if isinstance(message, _BINDING) and owner not in bound:
                    bound.add(owner)
                    if self._on_binding is not None:
                        await self._on_binding(message.deal, owner)
                answers += await self._services[owner].send(message)
        except (RemoteProblem, SiteError) as error:
            failed[owner] = _plain(str(error), owner)
            return None
        return answers


# Bids in a service's auction.

POLL = 0.5
"""Seconds between two questions for what an auctioneer has told."""


class BidOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """
    The result of bidding in an auction.

    Parameters
    ----------
    auction
        Identifier of the auction.
    owner
        Service that held it, by the buyer's name for the service.
    value
        Highest amount that was to be bid, micro-units.
    bids
        Number of bids made.
    agreement
        The agreement; None: the lot was lost.
    reason
        Why the lot was lost; empty where others bid more.
    """

    auction: str
    owner: str
    value: int
    bids: int = 0
    agreement: Agreement | None = None
    reason: str = ""


def result_of(lot: LotInfo, outcome: BidOutcome) -> TradeResult:
    """Return what came of bidding in an auction in the form of a negotiation's result."""
    agreement = outcome.agreement
    answer = OwnerAnswer(
        owner=outcome.owner,
        state="refused" if agreement is None else "agreed",
        currency=lot.currency,
        price=None if agreement is None else agreement.terms.amount,
        first=None if agreement is None else agreement.terms.amount,
        ours=outcome.value if outcome.bids else None,
        start=lot.start,
        reason="" if agreement is not None else outcome.reason or "others bid more",
        agreement="" if agreement is None else agreement.id,
    )
    return TradeResult(
        protocol=next(rule for rule in AUCTIONS if rule == lot.rule),
        template=lot_template(lot),
        limit=outcome.value,
        answers=(answer,),
        agreement=agreement,
        deal=lot.id,
    )


def lot_template(lot: LotInfo) -> DealTemplate:
    """Return the processors and the time of an auction's lot."""
    return DealTemplate(
        processors=lot.processors,
        seconds=lot.seconds,
        earliest=lot.start,
        latest=lot.start + lot.seconds,
        currency=lot.currency,
    )


async def bid_at(
    service: TradingService,
    lot: LotInfo,
    value: int,
    *,
    clock: Callable[[], float] = time.time,
    poll: float = POLL,
) -> BidOutcome:
    """
    Bid in an auction up to a value, until the auction is over.

    Where bids are sealed the value is bid. In an English auction what is asked is bid as long as
    it is within the value, and in a Dutch one the price is taken as soon as it is.

    Parameters
    ----------
    value
        Micro-units for the whole lot.
    clock
        Seconds since the epoch.
    poll
        Seconds between two questions.

    Raises
    ------
    SiteError
        When the service does not answer. A bid that it had stands.
    """
    manager = TradeManager(BUYER)
    deal, owner = lot.id, service.name
    wanted = lot_template(lot)
    if lot.state == "announced":
        await asyncio.sleep(max(0.0, lot.opens - clock()))
        await _opened(service, deal, poll)
    outgoing: deque[TradeMessage] = deque(manager.bid(deal, owner, wanted, value))
    bids = 0
    while True:
        while outgoing:
            message = outgoing.popleft()
            bids += isinstance(message, Bid)
            for answer in await service.send(message):
                if not answer.number:  # outside the count: it is told nowhere else
                    reason = answer.reason if isinstance(answer, Reject) else ""
                    return BidOutcome(
                        auction=deal, owner=owner, value=value, bids=bids, reason=reason
                    )
        # What the auctioneer says is taken in its order, whoever's bid it answers.
        told = await service.heard(deal, manager.heard(deal, owner))
        if told is None:
            return await _interrupted(service, deal, value, bids)
        for answer in told:
            outgoing.extend(manager.deliver(answer, clock()))
        if (state := manager.states(deal)[owner]) in ("agreed", "lost"):
            reason = "" if state == "agreed" else _last_rejection(told)
            made = manager.agreements_of(deal)
            return BidOutcome(
                auction=deal,
                owner=owner,
                value=value,
                bids=bids,
                agreement=made[0] if made else None,
                reason=reason,
            )
        if not outgoing:
            await asyncio.sleep(poll)


async def _opened(service: TradingService, deal: str, poll: float) -> None:
    """Wait until an auction has opened, by the service's clock, or is announced no more."""
    while True:
        lots = {one.id: one.state for one in await service.client.auctions()}
        if lots.get(deal, "open") != "announced":
            return
        await asyncio.sleep(poll)


async def _interrupted(service: TradingService, deal: str, value: int, bids: int) -> BidOutcome:
    """Return the outcome of an auction that the service knows no more, as after a restart."""
    found = [one for one in await service.client.agreements() if one.deal == deal]
    lost = BidOutcome(auction=deal, owner=service.name, value=value, bids=bids)
    if not found:
        return msgspec.structs.replace(lost, reason="the auction was broken off")
    (info,) = found
    made = Agreement(
        id=info.id, owner=service.name, customer=BUYER, terms=terms_of(info), signed_at=info.start
    )
    return msgspec.structs.replace(lost, agreement=made)


def terms_of(info: AgreementInfo) -> Terms:
    """Return the terms of an agreement as its service states them, without the penalty."""
    return Terms(
        processors=info.processors,
        start=info.start,
        seconds=info.seconds,
        unit_price=info.unit_price,
        fixed_price=info.fixed_price,
        currency=info.currency,
    )


def _last_rejection(told: Iterable[TradeMessage]) -> str:
    reasons = [m.reason for m in told if isinstance(m, Reject | RejectBid)]
    return reasons[-1] if reasons else ""


def _by_owner(messages: Iterable[TradeMessage]) -> dict[str, deque[TradeMessage]]:
    found: dict[str, deque[TradeMessage]] = {}
    for message in messages:
        found.setdefault(message.to, deque()).append(message)
    return found


def _explained(result: TradeResult, failed: Mapping[str, str]) -> TradeResult:
    """Return a result with the services that did not answer, and why."""
    told = [
        msgspec.structs.replace(answer, state="silent", reason=failed[answer.owner])
        if answer.owner in failed and answer.state != "agreed"
        else answer
        for answer in result.answers
    ]
    asked = {answer.owner for answer in told}
    told += [
        OwnerAnswer(owner=name, state="silent", currency=result.template.currency, reason=reason)
        for name, reason in failed.items()
        if name not in asked
    ]
    return msgspec.structs.replace(result, answers=tuple(told))


def _plain(message: str, name: str) -> str:
    """Return an error's message without the leading name of the service."""
    return message.removeprefix(f"{name}: ")


@asynccontextmanager
async def trading_with(
    accesses: Iterable[Access], *, patience: float, notice: Notice | None = None
) -> AsyncIterator[ServiceTrader[TradingService]]:
    """
    Connect to services, and ask each for its name and for the buyer's name there.

    A service that cannot be asked is reported in the results and does not stop the others.

    Parameters
    ----------
    patience
        Seconds for which a request that fails is tried again.
    notice
        Called with one line when a request has failed and is tried again.

    Raises
    ------
    InputError
        When two services have one name, or no service could be asked.
    """
    known = list(accesses)
    names = [access.name for access in known]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise InputError(f'"{twice[0]}" is named twice', where="--site")
    async with AsyncExitStack() as stack:
        failed: dict[str, str] = {}

        async def meet(access: Access) -> TradingService | None:
            client = AsyncServiceClient(access, patience=min(PATIENCE, patience), notice=notice)
            await stack.enter_async_context(client)
            try:
                site, account = await asyncio.gather(client.site(), client.account())
            except (RemoteProblem, SiteError) as error:
                failed[access.name] = _plain(str(error), access.name)
                return None
            return TradingService(
                name=access.name,
                client=client,
                owner=site.name,
                customer=account.user,
                currency=site.currency,
            )

        met = await asyncio.gather(*(meet(access) for access in known))
        services = [service for service in met if service is not None]
        if not services and failed:
            name, reason = next(iter(failed.items()))
            raise SiteError(f"{name}: {reason}", transient=True)
        yield ServiceTrader(services, failed)
