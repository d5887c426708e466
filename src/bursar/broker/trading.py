"""
The trade manager at work for a campaign: what sites ask for, and what is agreed with them.

A site with a fixed price is not asked. One whose owner has a pricing policy is bought from
job by job through its trade server: a quote, an acceptance, an agreement that holds.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from bursar.market.agreement import Agreement, DealTemplate
from bursar.market.exchange import Exchange
from bursar.market.pricing import Asked, next_change, unit_price
from bursar.market.trade_manager import TradeManager
from bursar.market.trade_server import TradeServer
from bursar.model.admission import Refusal
from bursar.model.money import to_micros
from bursar.model.site import SiteFacts

AHEAD = 8 * 86_400.0
"""Seconds that changes of prices are looked ahead."""

MOST = 64
"""Changes of a price that are looked at, at the most."""

Period = tuple[float, float, float]
"""Begin and end, seconds from now, and currency units per processor-second."""


def at_prices(sites: Sequence[SiteFacts], moment: float) -> tuple[SiteFacts, ...]:
    """
    Sites at the prices that hold at a moment, for whoever buys a processor for an hour.

    Parameters
    ----------
    moment
        Seconds since the epoch.
    """

    def at(site: SiteFacts) -> SiteFacts:
        if site.pricing is None:
            return site
        asked = Asked(processors=1, seconds=3600, start=moment, now=moment, groups=site.groups)
        price = unit_price(site.pricing, asked)
        slots = site.slots and tuple(replace(slot, unit_price=price) for slot in site.slots)
        return replace(site, unit_price=price, slots=slots)

    return tuple(at(site) for site in sites)


class Trading:
    """
    Buys for one campaign.

    Parameters
    ----------
    sites
        That can be bought from.
    epoch
        What the campaign's second 0 is, seconds since the epoch.
    customer
        As the owners know the buyer.
    """

    def __init__(
        self, sites: Sequence[SiteFacts], *, epoch: float = 0.0, customer: str = "buyer"
    ) -> None:
        self.epoch = epoch
        self._manager = TradeManager(customer)
        self._servers = {
            site.name: TradeServer(
                site.name,
                processors=site.processors,
                pricing=site.pricing,
                currency=site.currency,
                fixed_price=site.fixed_price or 0.0,
                groups={customer: site.groups},
            )
            for site in sites
            if site.pricing is not None
        }
        self._exchange = Exchange([self._manager, *self._servers.values()])
        self._deals = 0

    def ahead(self, site: SiteFacts, now: float, seconds: float) -> tuple[Period, ...]:
        """
        What a site will ask for, from now on: as its calendar says, and as its demand is now.

        Parameters
        ----------
        now
            Seconds since the begin of the campaign.
        seconds
            That a job takes there.
        """
        pricing, server = site.pricing, self._servers.get(site.name)
        if pricing is None or server is None:
            return ((0.0, math.inf, site.unit_price or 0.0),)
        moment = self.epoch + now
        periods: list[Period] = []
        begin = 0.0
        while len(periods) < MOST:
            asked = server.asked(
                self._manager.name, 1, max(seconds, _SHORTEST), moment + begin, moment
            )
            price = unit_price(pricing, asked)
            end = next_change(pricing, moment + begin) - moment
            if end > AHEAD:
                end = math.inf
            periods.append((begin, end, price))
            if math.isinf(end):
                break
            begin = end
        if not math.isinf(periods[-1][1]):
            periods[-1] = (periods[-1][0], math.inf, periods[-1][2])
        return tuple(periods)

    def buy(
        self, site: SiteFacts, seconds: float, now: float, limit: float
    ) -> Agreement | Refusal | None:
        """
        Agrees with a site on a processor for a job that begins now.

        Parameters
        ----------
        seconds
            For how long.
        now
            Seconds since the begin of the campaign.
        limit
            Currency units that it may cost; infinite for no limit.

        Returns
        -------
        Agreement, Refusal or None
            None: the site's price is fixed, there is nothing to agree on.
        """
        server = self._servers.get(site.name)
        if server is None:
            return None
        moment = self.epoch + now
        self._deals += 1
        deal = f"job-{self._deals}"
        template = DealTemplate(
            processors=1,
            seconds=seconds,
            earliest=moment,
            latest=moment + seconds * (1 + _CLOSE) + _CLOSE,
            customer=self._manager.name,
            currency=site.currency,
        )
        most = None if math.isinf(limit) else to_micros(max(0.0, limit))
        said = self._manager.ask(deal, [site.name], template, moment, limit=most)
        self._exchange.carry(said, moment)
        for quote in self._manager.quotes(deal, moment)[:1]:
            self._exchange.carry(self._manager.accept(quote, moment), moment)
        agreements = self._manager.forget(deal)
        self._exchange.delivered.clear()
        server.forget(deal)
        if not agreements:
            return Refusal(f"{site.name} does not sell a processor now", final=False)
        return agreements[0]

    def over(self, site: str, agreement: str, paid: float) -> None:
        """A job is over: its processor is free, and the owner knows what it was paid."""
        server = self._servers.get(site)
        if server is not None:
            server.finished(agreement)
            amount = to_micros(paid)
            if amount > 0:
                server.note_payment(self._manager.name, amount)


_SHORTEST = 1e-3
_CLOSE = 1e-9
