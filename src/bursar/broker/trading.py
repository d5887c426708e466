"""
The trade manager of a campaign asks sites for prices and makes agreements.

A site with a fixed price is not asked. One whose owner has a pricing policy is bought from
job by job through its trade server: a quote, an acceptance, an agreement that holds.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import pairwise, product
from typing import Protocol

import msgspec

from bursar.market.agreement import Agreement, DealTemplate
from bursar.market.pricing import OwnerState, lead_times, next_change, unit_price
from bursar.market.purchasing import TRADE, DealRecord, TradeResult, carry_out, negotiate
from bursar.market.trade_manager import TradeLimits, TradeManager
from bursar.market.trade_messages import MessageExchange, TradeMessage
from bursar.market.trade_server import BargainingRules, TradeServer
from bursar.model.allocation import Allocation
from bursar.model.errors import SiteError
from bursar.model.money import Micros, Refusal, rental_charge, to_micros
from bursar.model.site import BuyingRules, SiteFacts

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
    too_dear
        Whether the last purchase failed because the owner did not come down to what we pay.
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
        self.too_dear = False
        self._deals_made: list[DealRecord] = []
        self._owners = owners
        self._by_allocation: dict[str, tuple[str, str]] = {}  # site and agreement, by allocation
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
                bargaining=BargainingRules(floor=site.buying.floor),
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
        asked = server.asked(self._manager.name, 1, seconds, start, moment)
        return site.buying.planned(unit_price(site.pricing, asked))

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
            price = site.buying.planned(unit_price(pricing, asked))
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
            price = site.buying.planned(unit_price(pricing, asked))
            found.append((begin, end, price, lead))
        return tuple(found)

    def buy(
        self,
        site: SiteFacts,
        seconds: float,
        now: float,
        limit: float,
        ahead: float = 0.0,
        task: int | None = None,
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
        task
            Number of the job, for the journal; None: it has none.

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
        most = None if math.isinf(limit) else to_micros(max(0.0, limit))
        with self._speaking(site.name, server):
            result = self._buy(site, server, 1, seconds, start, moment, most)
        if site.buying.negotiates:
            self._deals_made.append(DealRecord(site=site.name, result=result, task=task))
        if result.agreement is None:
            reason = f": {result.refusal()}" if self.too_dear else " does not sell a processor then"
            return Refusal(f"{site.name}{reason}", final=False)
        return result.agreement

    def bought_for(self, agreement: str, lease: str) -> None:
        """Note the lease that an agreement pays for; do nothing where the price was posted."""
        last = self._deals_made[-1] if self._deals_made else None
        made = None if last is None else last.result.agreement
        if last is not None and made is not None and made.id == agreement:
            self._deals_made[-1] = msgspec.structs.replace(last, lease=lease)

    def take_deals(self) -> list[tuple[str, str]]:
        """Return the negotiations since the last call, as events for a journal."""
        made, self._deals_made = self._deals_made, []
        return [(TRADE, msgspec.json.encode(deal).decode()) for deal in made]

    def _buy(
        self,
        site: SiteFacts,
        server: TradeServer,
        processors: int,
        seconds: float,
        start: float,
        moment: float,
        most: Micros | None,
    ) -> TradeResult:
        """Negotiate with one owner while nobody else does; ``most`` in micro-units."""
        self._deals += 1
        deal = f"job-{self._deals}"
        template = DealTemplate(
            processors=processors,
            seconds=seconds,
            earliest=start,
            latest=start + seconds * (1 + _CLOSE) + _CLOSE,
            customer=self._manager.name,
            currency=site.currency,
        )
        # What another Bursar sells is negotiated with itself, when it is asked for.
        rules = site.buying if site.remote is None else BuyingRules()
        if rules.market == "bargain" and rules.reserve_price is not None:
            reserve = rental_charge(processors * seconds, rules.reserve_price, 0.0)
            most = reserve if most is None else min(most, reserve)
        result = carry_out(
            negotiate(
                self._manager,
                deal,
                rules.negotiated,
                [site.name],
                template,
                TradeLimits(most=most, patience=rules.patience),
                lambda: moment,
            ),
            self._exchange,
            moment,
        )
        # A campaign makes thousands of purchases: nothing of a finished conversation is kept.
        self._exchange.delivered.clear()
        server.forget(deal)
        server.forget(f"{deal}-quote")
        held = bool(server.state.others) and not server.capacity.free(start, start + seconds)
        self.crowded = held and result.agreement is None
        named = any(answer.price is not None for answer in result.answers)
        self.too_dear = named and rules.negotiates and result.agreement is None
        return result

    # Whole allocations, of a plan or a pool, at sites whose owners negotiate.

    def agree(
        self, allocations: Sequence[Allocation], now: float, on_deal: Callable[[DealRecord], None]
    ) -> list[Allocation]:
        """
        Agree with owners on allocations, on all or none; return them at the agreed prices.

        Allocations of sites whose prices are posted stay as they are.

        Parameters
        ----------
        now
            Seconds since the epoch; the start of an allocation counts from here.
        on_deal
            Called with what came of each negotiation.

        Raises
        ------
        SiteError
            When an owner does not sell within the limits.
        """
        made: list[Allocation] = []
        try:
            for allocation in allocations:
                made.append(self._agreed_on(allocation, now, on_deal))
        except SiteError:
            for agreed in made:
                self.released(agreed.name)
            raise
        return made

    def _agreed_on(
        self, allocation: Allocation, now: float, on_deal: Callable[[DealRecord], None]
    ) -> Allocation:
        site = self._sites.get(allocation.site)
        server = self._servers.get(allocation.site)
        if site is None or server is None or site.remote is not None:
            return allocation
        if not site.buying.negotiates or not allocation.paid:
            return allocation
        start = _after(now, allocation.start or 0.0)
        seconds = WITHOUT_END if math.isinf(allocation.duration) else allocation.duration
        most = None
        if allocation.unit_price is not None:
            fixed = allocation.fixed_price or 0.0
            most = rental_charge(allocation.paid * seconds, allocation.unit_price, fixed)
        with self._speaking(site.name, server):
            result = self._buy(site, server, allocation.paid, seconds, start, now, most)
        on_deal(DealRecord(site=site.name, result=result, lease=allocation.name))
        if result.agreement is None:
            raise SiteError(f"{site.name}: no agreement: {result.refusal()}", transient=True)
        self._by_allocation[allocation.name] = site.name, result.agreement.id
        terms = result.agreement.terms
        return replace(allocation, unit_price=terms.unit_price, fixed_price=terms.fixed_price)

    # One message at a time, where several owners are called for bids together.

    @property
    def customer(self) -> str:
        """Name of the buyer in the owners' deals."""
        return self._manager.name

    def sells(self, site: str) -> bool:
        """Whether a site's owner sells whole allocations here, and is no other Bursar."""
        return site in self._servers and self._sites[site].remote is None

    def answer(self, site: str, message: TradeMessage, now: float) -> list[TradeMessage]:
        """Deliver a buyer's message to an owner at a time since the epoch; return the answers."""
        server = self._servers[site]
        # A sale of its own for each message: other runs may buy between a bid and its award, and
        # the owner then refuses the award.
        with self._speaking(site, server):
            return list(server.deliver(message, now))

    def sold(self, allocation: str, site: str, agreement: str) -> None:
        """Note the agreement for an allocation that was negotiated message by message."""
        self._by_allocation[allocation] = site, agreement

    def forget(self, site: str, deal: str) -> None:
        """Drop a finished conversation with an owner."""
        self._servers[site].forget(deal)

    def released(self, allocation: str) -> None:
        """Tell an owner that an allocation's processors are free again; repeats do nothing."""
        if allocation in self._by_allocation:
            self.over(*self._by_allocation.pop(allocation), paid=0.0)

    def start_anew(self) -> None:
        """Give back what an earlier process of the run had agreed on, and no longer holds."""
        for name, server in self._servers.items():
            if self._sites[name].buying.negotiates:
                with self._speaking(name, server):
                    for agreement in server.state.ours:
                        server.capacity.release(agreement)

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
            server.capacity.release(agreement)
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


WITHOUT_END = 3_600.0
"""Seconds for which an allocation without an end is agreed on, as its posted price is asked for."""

_WAYS = 8
"""Ways to book that a plan tries, at most."""

_SHORTEST = 1e-3
_CLOSE = 1e-9
