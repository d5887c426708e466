"""
The trade manager of a campaign asks sites for prices and makes agreements.

A site with a fixed price is not asked. One whose owner has a pricing policy is bought from
job by job through its trade server: a quote, an acceptance, an agreement that holds.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import pairwise, product
from typing import Protocol

from bursar.market.agreement import Agreement, DealTemplate
from bursar.market.pricing import lead_times, next_change, unit_price
from bursar.market.trade_manager import TradeManager
from bursar.market.trade_messages import MessageExchange
from bursar.market.trade_server import OwnerState, TradeServer
from bursar.model.money import Refusal, to_micros
from bursar.model.site import SiteFacts

AHEAD = 8 * 86_400.0
"""Seconds for which price changes are foreseen."""

MOST = 64
"""Price changes that are foreseen, at most."""

Period = tuple[float, float, float]
"""Begin and end, seconds from now, and currency units per processor-second."""

Ahead = tuple[float, float, float, float]
"""
Begin and end of the starts that can be booked now, seconds from now; currency units per
processor-second; and how long ahead of its start a job has that price at the least, seconds.
"""


class OwnerSession(Protocol):
    """A sale during which no other buyer deals with the owner."""

    state: OwnerState


class OwnerStateStore(Protocol):
    """Store of owners' state beyond one campaign; see :class:`bursar.sites.owners.OwnersBook`."""

    customer: str

    def selling(self, site: SiteFacts) -> AbstractContextManager[OwnerSession]:
        """Open a sale with an owner, exclusive of other buyers."""
        ...

    def state_of(self, site: SiteFacts) -> OwnerState:
        """Return what an owner remembers now."""
        ...


class CampaignTrader:
    """
    Buys processors for one campaign.

    Parameters
    ----------
    epoch
        Time of the campaign's second 0, seconds since the epoch; None: set before use.
    owners
        Store of what owners remember of other campaigns; None: they remember none, as in a
        simulation.

    Attributes
    ----------
    crowded
        Whether the last purchase failed because of what others hold: it may succeed later.
    """

    def __init__(
        self,
        sites: Sequence[SiteFacts],
        *,
        epoch: float | None = None,
        owners: OwnerStateStore | None = None,
    ) -> None:
        self.epoch = 0.0 if epoch is None else epoch
        self.is_dated = epoch is not None
        self.crowded = False
        self._owners = owners
        self._sites = {site.name: site for site in sites}
        customer = "buyer" if owners is None else owners.customer
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
        self._exchange = MessageExchange([self._manager, *self._servers.values()])
        self._deals = 0

    def _current(self, site: SiteFacts) -> TradeServer | None:
        """
        Return a site's trade server with the owner's present state; None where the price is fixed.
        """
        server = self._servers.get(site.name)
        if server is not None and self._owners is not None:
            server.take_up(self._owners.state_of(site))
        return server

    def price(
        self, site: SiteFacts, seconds: float, now: float, ahead: float = 0.0
    ) -> float | None:
        """
        Return what a site asks now for a processor, currency units per processor-second.

        Parameters
        ----------
        seconds
            Time for which the processor is wanted.
        now
            Seconds since the begin of the campaign.
        ahead
            Seconds from now to the begin of the use.
        """
        server = self._current(site)
        if server is None or site.pricing is None:
            return site.unit_price
        moment = self.epoch + now
        start = _after(moment, ahead)
        return unit_price(site.pricing, server.asked(self._manager.name, 1, seconds, start, moment))

    def ahead(self, site: SiteFacts, now: float, seconds: float) -> tuple[Period, ...]:
        """
        Return a site's prices for jobs bought at the start of the job.

        Prices follow the site's calendar and its present demand; what it asks for a job that is
        booked ahead is another thing, see :meth:`bookable`.

        Parameters
        ----------
        now
            Seconds since the begin of the campaign.
        seconds
            Seconds that a job takes there.
        """
        pricing, server = site.pricing, self._current(site)
        if pricing is None or server is None:
            return ((0.0, math.inf, site.unit_price or 0.0),)
        moment = self.epoch + now
        periods: list[Period] = []
        begin = 0.0
        while len(periods) < MOST:
            start = moment + begin
            asked = server.asked(self._manager.name, 1, max(seconds, _SHORTEST), start, start)
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

    def bookable(self, site: SiteFacts, now: float, seconds: float) -> tuple[Ahead, ...]:
        """
        Present prices of a site for jobs that begin later; empty where booking changes no price.

        Parameters
        ----------
        now
            Seconds since the begin of the campaign.
        seconds
            Time of a job at the site.
        """
        pricing = site.pricing
        steps = () if pricing is None else lead_times(pricing)
        server = self._current(site) if steps else None
        if pricing is None or server is None:
            return ()
        moment = self.epoch + now
        begins = set(steps)
        begin = 0.0
        while len(begins) < MOST and (begin := next_change(pricing, moment + begin) - moment):
            if begin > AHEAD:
                break
            begins.add(begin)
        ordered = sorted(begin for begin in begins if begin >= steps[0])
        found = []
        for begin, end in pairwise([*ordered, math.inf]):
            start = moment + begin
            asked = server.asked(self._manager.name, 1, max(seconds, _SHORTEST), start, moment)
            lead = max(step for step in steps if step <= begin)
            found.append((begin, end, unit_price(pricing, asked), lead))
        return tuple(found)

    def buy(
        self,
        site: SiteFacts,
        seconds: float,
        now: float,
        limit: float,
        ahead: float = 0.0,
    ) -> Agreement | Refusal | None:
        """
        Agrees with a site on a processor for a job.

        Parameters
        ----------
        seconds
            Time for which the processor is wanted.
        now
            Seconds since the begin of the campaign.
        ahead
            Seconds from now to the begin of the job.
        limit
            Highest cost of the job, currency units; infinite for no limit.

        Returns
        -------
        Agreement, Refusal or None
            None: the site's price is fixed, there is nothing to agree on.
        """
        server = self._servers.get(site.name)
        if server is None:
            return None
        moment = self.epoch + now
        start = _after(moment, ahead)
        with self._speaking(site.name, server):
            return self._buy(site, server, seconds, start, moment, limit)

    def _buy(
        self,
        site: SiteFacts,
        server: TradeServer,
        seconds: float,
        start: float,
        moment: float,
        limit: float,
    ) -> Agreement | Refusal:
        self._deals += 1
        deal = f"job-{self._deals}"
        template = DealTemplate(
            processors=1,
            seconds=seconds,
            earliest=start,
            latest=start + seconds * (1 + _CLOSE) + _CLOSE,
            customer=self._manager.name,
            currency=site.currency,
        )
        most = None if math.isinf(limit) else to_micros(max(0.0, limit))
        answer = self._manager.ask(deal, [site.name], template, moment, limit=most)
        self._exchange.deliver(answer, moment)
        for quote in self._manager.quotes(deal, moment)[:1]:
            self._exchange.deliver(self._manager.accept(quote, moment), moment)
        agreements = self._manager.forget(deal)
        # A campaign makes thousands of purchases: nothing of a finished conversation is kept.
        self._exchange.delivered.clear()
        server.forget(deal)
        held = bool(server.state.others) and not server.capacity.free(start, start + seconds)
        self.crowded = held and not agreements
        if not agreements:
            return Refusal(f"{site.name} does not sell a processor then", final=False)
        return agreements[0]

    def restore(self, site: str, agreement: Agreement) -> None:
        """Inform an owner of an agreement made by an earlier incarnation of the run."""
        server = self._servers.get(site)
        if server is not None:
            with self._speaking(site, server):
                server.restore(agreement)

    def over(self, site: str, agreement: str, paid: float) -> None:
        """End a job's agreement: its processor is free, and the owner learns what was paid."""
        server = self._servers.get(site)
        if server is None:
            return
        with self._speaking(site, server):
            server.finished(agreement)
            amount = to_micros(paid)
            if amount > 0:
                server.note_payment(self._manager.name, amount)

    @contextmanager
    def _speaking(self, site: str, server: TradeServer) -> Iterator[None]:
        """Exchange state with the owner's other customers around a sale."""
        if self._owners is None:
            yield
            return
        with self._owners.selling(self._sites[site]) as sale:
            # Inside the exclusive sale: between reading and selling no other run may buy the
            # processors.
            server.take_up(sale.state)
            yield
            sale.state = server.state


def price_sites(
    sites: Sequence[SiteFacts],
    moment: float,
    owners: OwnerStateStore | None = None,
    ahead: Mapping[str, float] | None = None,
) -> tuple[SiteFacts, ...]:
    """
    Return the sites with the prices of a given time, for an hour of one processor.

    Where booking ahead has another price, a slot that begins later has the price of its begin.

    Parameters
    ----------
    moment
        Seconds since the epoch.
    owners
        Store of what owners remember of demand and customers; None: they remember nothing.
    ahead
        By the names of sites: how long after the moment all that is used there begins,
        seconds. What they offer before is left out.
    """
    trading = CampaignTrader(sites, epoch=moment, owners=owners)
    ahead = ahead or {}

    def at(site: SiteFacts) -> SiteFacts:
        """Return a site with its price, and its slots with theirs; unpriced sites as they are."""
        price = trading.price(site, 3600.0, 0.0)
        if site.pricing is None or price is None:
            return site
        if not lead_times(site.pricing):
            slots = site.slots and tuple(replace(slot, unit_price=price) for slot in site.slots)
            return replace(site, unit_price=price, slots=slots)
        begin = ahead.get(site.name, 0.0)
        if site.slots is None and begin <= 0:
            return replace(site, unit_price=price)
        # The price depends on how far ahead a slot is booked, so each slot is priced at the moment
        # at which its use can begin. An indivisible slot that begins before ``begin`` is lost.
        slots = tuple(
            replace(
                slot,
                start=start,
                duration=slot.end - start,
                unit_price=trading.price(site, 3600.0, 0.0, start),
            )
            for slot in site.offers
            if (start := max(begin, slot.start)) < slot.end
            and (slot.divisible or start == slot.start)
        )
        return replace(site, unit_price=price, slots=slots)

    return tuple(at(site) for site in sites)


def advance_start_options(sites: Sequence[SiteFacts]) -> list[dict[str, float]]:
    """
    List from when a plan may use each site: its begin, or a step of its advance price.

    All combinations where these are few; otherwise all sites at their first step, at their
    second, and so on.
    """
    steps = {site.name: lead_times(site.pricing) for site in sites if site.pricing is not None}
    steps = {name: found for name, found in steps.items() if found}
    if math.prod(1 + len(found) for found in steps.values()) <= _WAYS:
        return [
            dict(zip(steps, way, strict=True))
            for way in product(*((0.0, *found) for found in steps.values()))
        ]
    most = max(len(found) for found in steps.values())
    alike = [{n: found[min(i, len(found) - 1)] for n, found in steps.items()} for i in range(most)]
    return [{}, *alike[:_WAYS]]


def _after(moment: float, seconds: float) -> float:
    """Time a given number of seconds later, rounded up so that no price step is too early."""
    later = moment + seconds
    # Epoch seconds have few bits left for fractions: the sum may round down below the step.
    while later - moment < seconds:
        later = math.nextafter(later, math.inf)
    return later


_WAYS = 8
"""Ways to book that a plan tries, at most."""

_SHORTEST = 1e-3
_CLOSE = 1e-9
