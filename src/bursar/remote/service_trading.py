"""
Trading with several services at once: quotes, bargaining, tenders.

A :class:`~bursar.market.trade_manager.TradeManager` negotiates; this module carries its messages.
A service is called by the name that the buyer gave it, so that two services of one name, and a
buyer who has different users at them, are told apart: names are translated on the way.
"""

import asyncio
import math
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from bursar.market.agreement import Agreement, DealTemplate
from bursar.market.deal_report import (
    BuyingProtocol,
    OwnerAnswer,
    TradeLimits,
    next_best,
)
from bursar.market.trade_manager import TradeManager
from bursar.market.trade_messages import Confirm, TradeMessage
from bursar.model.errors import InputError, SiteError
from bursar.remote.access import Access
from bursar.remote.async_client import AsyncServiceClient
from bursar.remote.connection import PATIENCE, Notice
from bursar.remote.http_transport import RemoteProblem

BUYER = "buyer"
"""Name of the buyer in negotiations, before it is translated to a user of each service."""

M = TypeVar("M", bound=TradeMessage)


class TradeResult(msgspec.Struct, frozen=True, kw_only=True):
    """
    What came of a negotiation with one service or several.

    Parameters
    ----------
    protocol
        How the price was found.
    template
        What was wanted.
    answers
        What each owner answered, the best first.
    agreement
        Identifier of the agreement at the service of ``owner``; empty: there is none.
    owner
        Service with which the agreement was made; empty: none.
    amount
        Agreed price, micro-units; None: none.
    unknown
        Services whose last answer did not arrive: whether there is an agreement is not known.
    """

    protocol: BuyingProtocol
    template: DealTemplate
    answers: tuple[OwnerAnswer, ...]
    agreement: str = ""
    owner: str = ""
    amount: int | None = None
    unknown: tuple[str, ...] = ()

    @property
    def next_best(self) -> OwnerAnswer | None:
        """The cheapest offer that was not taken."""
        return next_best(self.answers)


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

    def _translated(self, answer: M) -> M:
        renamed = msgspec.structs.replace(answer, sender=self.name, to=BUYER)
        if isinstance(renamed, Confirm) and self._is_ours(renamed.agreement):
            agreement = msgspec.structs.replace(renamed.agreement, owner=self.name, customer=BUYER)
            return msgspec.structs.replace(renamed, agreement=agreement)
        return renamed

    def _is_ours(self, agreement: Agreement) -> bool:
        # Anything else stays as it is, and is refused as an agreement of other parties.
        return (agreement.owner, agreement.customer) == (self.owner, self.customer)


class ServiceTrader:
    """
    Negotiates for one buyer with one service or several.

    Parameters
    ----------
    services
        Services to ask.
    failed
        Reason for each service that could not be asked, by name.
    clock
        Seconds since the epoch.
    """

    def __init__(
        self,
        services: Iterable[TradingService],
        failed: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._services = {service.name: service for service in services}
        self._failed = dict(failed or {})
        self._clock = clock
        self._manager = TradeManager(BUYER)

    @property
    def currency(self) -> str:
        """Currency of the first service."""
        return next((service.currency for service in self._services.values()), "SU")

    async def negotiate(
        self,
        protocol: BuyingProtocol,
        template: DealTemplate,
        limits: TradeLimits,
        *,
        buy: bool = True,
    ) -> TradeResult:
        """
        Negotiate within limits, and buy from one service at most.

        Parameters
        ----------
        protocol
            ``"posted"``: the cheapest quote is accepted. ``"bargain"``: services are asked for
            quotes, and bargained with one after the other, from the cheapest quote on.
            ``"tender"``: all services bid, and the best bid is awarded.
        buy
            Whether the cheapest quote is accepted; only ``"posted"`` can do without.

        Raises
        ------
        InputError
            When nobody can be bargained with for want of a reserve price.
        """
        deal = secrets.token_hex(16)
        try:
            if protocol == "posted":
                unknown = await self._quote(deal, template, limits, buy=buy)
            elif protocol == "tender":
                unknown = await self._tender(deal, template, limits)
            else:
                return await self._bargained(deal, template, limits)
            return self._result(protocol, template, self._manager.answers(deal), unknown)
        finally:
            await self._leave(deal)

    # Protocols.

    async def _quote(
        self, deal: str, template: DealTemplate, limits: TradeLimits, *, buy: bool
    ) -> set[str]:
        # The owner's clock says whether a quote still holds.
        unknown = await self._exchange(
            self._manager.ask(deal, self._services, template, -math.inf, limit=limits.most)
        )
        if not buy:
            return unknown
        for quote in self._manager.quotes(deal, -math.inf):
            failed = await self._exchange(self._manager.accept(quote, -math.inf))
            # Whoever does not answer an acceptance may have sold: nobody else is asked.
            if failed or self._manager.agreements:
                return unknown | failed
        return unknown

    async def _tender(self, deal: str, template: DealTemplate, limits: TradeLimits) -> set[str]:
        now = self._clock()
        closes = now + limits.patience
        unknown = await self._exchange(
            self._manager.call(deal, self._services, template, closes, now, limit=limits.most)
        )
        while "called" in self._manager.states(deal).values():
            # Somebody did not answer: the call stays open until it closes.
            await asyncio.sleep(max(0.0, min(self._manager.next_tick(), closes) - self._clock()))
            unknown |= await self._exchange(self._manager.tick(self._clock()))
        return unknown

    async def _bargained(
        self, deal: str, template: DealTemplate, limits: TradeLimits
    ) -> TradeResult:
        until = self._clock() + limits.patience
        asking = f"{deal}-quote"
        try:
            unknown = await self._quote(
                asking, template, TradeLimits(patience=limits.patience), buy=False
            )
            quotes = {answer.owner: answer for answer in self._manager.answers(asking)}
        finally:
            # An owner that holds what it quotes has it free for the bargaining then.
            await self._leave(asking)
        posted = min((q.price for q in quotes.values() if q.price is not None), default=None)
        concession = limits.concession(posted)
        if concession is None:
            if not self._services:
                return self._result("bargain", template, (), unknown)
            raise InputError(
                "no service posts a price to start from", where="bargain", hint="state a limit"
            )
        for owner in quotes:  # the cheapest first
            if owner in unknown:
                continue
            opening = self._manager.bargain(
                deal, owner, template, concession, self._clock(), until=until
            )
            failed = await self._exchange(opening)
            unknown |= failed
            if failed or self._manager.agreements:
                break
        # Whoever was not bargained with has a standing quote, or the reason why there is none.
        found = {answer.owner: answer for answer in self._manager.answers(deal)}
        answers = [_with_quote(found.get(owner), quote) for owner, quote in quotes.items()]
        return self._result("bargain", template, answers, unknown)

    # Messages.

    async def _leave(self, deal: str) -> None:
        """Withdraw from quotes that were not accepted, and forget the conversations."""
        now = self._clock()
        states = self._manager.states(deal)
        quoted = [owner for owner, state in states.items() if state == "quoted"]
        try:
            failed = dict(self._failed)
            await self._exchange(
                m for owner in quoted for m in self._manager.cancel(deal, owner, now)
            )
            # A withdrawal that does not arrive changes nothing: the quote expires.
            self._failed = failed
        finally:
            self._manager.forget(deal)

    async def _exchange(self, messages: Iterable[TradeMessage]) -> set[str]:
        """
        Send messages, and answer the replies until no side has more to say.

        Returns
        -------
        set of str
            Services that did not answer a message.
        """
        failed: set[str] = set()
        by_owner: dict[str, deque[TradeMessage]] = {}
        for message in messages:
            by_owner.setdefault(message.to, deque()).append(message)
        while by_owner:
            rounds = list(by_owner.items())
            by_owner = {}
            answered = await asyncio.gather(*(self._send(owner, said) for owner, said in rounds))
            for (owner, _), answers in zip(rounds, answered, strict=True):
                if answers is None:
                    failed.add(owner)
                    continue
                for answer in answers:
                    for reply in self._manager.deliver(answer, self._clock()):
                        if reply.to not in failed:
                            by_owner.setdefault(reply.to, deque()).append(reply)
        return failed

    async def _send(self, owner: str, messages: deque[TradeMessage]) -> list[TradeMessage] | None:
        """Send messages to one service; return its answers, None when it does not answer."""
        answers: list[TradeMessage] = []
        try:
            for message in messages:
                answers += await self._services[owner].send(message)
        except (RemoteProblem, SiteError) as error:
            self._failed[owner] = _plain(str(error), owner)
            return None
        return answers

    def _result(
        self,
        protocol: BuyingProtocol,
        template: DealTemplate,
        answers: Iterable[OwnerAnswer],
        unknown: set[str],
    ) -> TradeResult:
        told = [self._explained(answer) for answer in answers]
        asked = {answer.owner for answer in told}
        told += [
            OwnerAnswer(owner=name, state="silent", currency=template.currency, reason=reason)
            for name, reason in self._failed.items()
            if name not in asked
        ]
        agreed = next((answer for answer in told if answer.state == "agreed"), None)
        made = {} if agreed is None else {"owner": agreed.owner, "agreement": agreed.agreement}
        # Only an acceptance that was not answered leaves open whether there is an agreement.
        accepted = {a.owner for a in told if a.state != "agreed" and a.price is not None}
        return TradeResult(
            protocol=protocol,
            template=template,
            answers=tuple(told),
            amount=None if agreed is None else agreed.price,
            unknown=tuple(sorted(unknown & accepted)),
            **made,
        )

    def _explained(self, answer: OwnerAnswer) -> OwnerAnswer:
        reason = self._failed.get(answer.owner)
        if reason is None or answer.state == "agreed":
            return answer
        return msgspec.structs.replace(answer, state="silent", reason=reason)


def _with_quote(answer: OwnerAnswer | None, quote: OwnerAnswer) -> OwnerAnswer:
    """Return an owner's answer in bargaining, with the price that the owner had quoted as first."""
    if answer is None:
        return quote
    first = answer.first if quote.price is None else quote.price
    return msgspec.structs.replace(answer, first=first, start=answer.start or quote.start)


def _plain(message: str, name: str) -> str:
    """Return an error's message without the leading name of the service."""
    return message.removeprefix(f"{name}: ")


@asynccontextmanager
async def trading_with(
    accesses: Iterable[Access], *, patience: float, notice: Notice | None = None
) -> AsyncIterator[ServiceTrader]:
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
