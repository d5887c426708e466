"""
Negotiates agreements for a simulated user, by any trading procedure.

A conversation that fails is begun anew under another name, as the client cannot know whether the
last one led to an agreement.
"""

import asyncio
import math
from collections.abc import Callable, Iterable

from bursar.market.agreement import Agreement, DealTemplate
from bursar.market.negotiation.auctioneers import SealedAuctioneer
from bursar.market.negotiation.bilateral import Concession
from bursar.market.trade_manager import TradeManager
from bursar.market.trade_messages import TradeMessage
from bursar.model.money import to_micros
from bursar.remote.async_client import AsyncServiceClient
from bursar.service.interfaces import Clock
from bursar_devtools.faults.agreement_checker import AgreementChecker
from bursar_devtools.faults.client_campaign import ClientCampaign, NegotiationWay

_PAUSE = 15.0
"""Seconds before the next attempt to buy."""

_STUBBORN = 2
"""Number of conversations after which a user pays the posted price."""

_CLOSES = 5.0
"""Seconds for which bids are taken."""


class TradingClient:
    """
    Buys agreements in one process of a user.

    Parameters
    ----------
    user, owner
        Names of buyer and seller.
    client
        Client of the service, with the user's token.
    clock
        The user's clock, seconds since the epoch.
    contracts
        Checks all messages and agreements.
    note
        Called with the campaign and a line for the trace.
    """

    def __init__(
        self,
        user: str,
        owner: str,
        client: AsyncServiceClient,
        *,
        clock: Clock,
        contracts: AgreementChecker,
        note: Callable[[ClientCampaign, str], None],
    ) -> None:
        self._user = user
        self._owner = owner
        self._client = client
        self._clock = clock
        self._contracts = contracts
        self._note = note
        self._deals = 0

    async def buy(self, campaign: ClientCampaign, processors: int, seconds: float) -> None:
        """Negotiate until the campaign has an agreement."""
        for count in range(10**6):
            way = campaign.way if count < _STUBBORN else "posted"
            agreement = await self._talk(campaign, way, processors, seconds)
            if agreement is not None:
                self._contracts.agreed(agreement)
                campaign.agreement = agreement.id
                self._note(campaign, f"has agreement {agreement.id} by {way}")
                return
            self._note(campaign, f"has no agreement by {way}")
            await asyncio.sleep(_PAUSE)

    async def _talk(
        self, campaign: ClientCampaign, way: NegotiationWay, processors: int, seconds: float
    ) -> Agreement | None:
        manager = TradeManager(self._user)
        self._deals += 1
        deal = f"{campaign.name}-{self._clock():.3f}-{self._deals}"
        template = DealTemplate(
            processors=processors,
            seconds=seconds,
            earliest=self._clock() + 5.0,
            customer=self._user,
        )
        if way == "posted":
            asked = self._clock(), self._contracts.prices_now()
            await self._exchange(manager, manager.ask(deal, [self._owner], template, asked[0]))
            quotes = manager.quotes(deal, self._clock())
            for quote in quotes[:1]:
                self._contracts.quoted(self._user, quote, asked[1])
                await self._exchange(manager, manager.accept(quote, self._clock()))
        else:
            first = await self._opening(manager, way, deal, template, campaign.willing)
            await self._exchange(manager, first)
        while manager.next_tick() < math.inf:  # bids are taken for some time
            await asyncio.sleep(max(0.1, manager.next_tick() - self._clock()))
            await self._exchange(manager, manager.tick(self._clock()))
        return next(iter(manager.agreements), None)

    async def _opening(
        self,
        manager: TradeManager,
        way: NegotiationWay,
        deal: str,
        template: DealTemplate,
        willing: float,
    ) -> tuple[TradeMessage, ...]:
        posted = self._contracts.prices_now()
        site = await self._client.site()
        self._contracts.posted(self._user, site.unit_price, posted)
        price = to_micros((site.unit_price or 0.0) * template.processors * template.seconds)
        most, now = int(price * willing), self._clock()
        if way == "bargaining":
            concession = Concession(first=price // 2, reserve=most, rounds=4)
            return manager.bargain(deal, self._owner, template, concession, now)
        closes = now + _CLOSES
        if way == "tender":
            return manager.call(deal, [self._owner], template, closes, now)
        auction = SealedAuctioneer(
            self._user, deal, [self._owner], template, reserve=most, closes=closes, reverse=True
        )
        return manager.auction(auction, now)

    async def _exchange(self, manager: TradeManager, messages: Iterable[TradeMessage]) -> None:
        """Send messages, and replies to their answers, until there is nothing left to send."""
        waiting = list(messages)
        while waiting:
            message = waiting.pop(0)
            self._contracts.says(self._user, message)
            for answer in await self._client.trade(message):
                waiting.extend(manager.deliver(answer, self._clock()))
