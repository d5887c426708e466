"""Agreements on the allocations of a run: with one owner, or with the lowest bidder of several."""

import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from bursar.broker.trading import WITHOUT_END, CampaignTrader
from bursar.market.agreement import DealTemplate, Terms
from bursar.market.purchasing import DealRecord, TradeResult
from bursar.market.trade_manager import TradeLimits
from bursar.market.trade_messages import TradeMessage
from bursar.model.allocation import Allocation
from bursar.model.errors import InputError, SiteError
from bursar.model.money import rental_charge
from bursar.model.site import SiteFacts
from bursar.remote.service_trading import ServiceTrader, TradePartner, as_buyer_knows
from bursar.sites.protocol import BiddingSite, LotSite, Site

SetAside = Callable[[Allocation], Awaitable[None]]
"""Sets aside, durably, the most that an allocation may cost at its site."""


@dataclass(frozen=True, slots=True)
class OwnerInRun:
    """The owner of a site of a sites file, called for bids message by message."""

    facts: SiteFacts
    trading: CampaignTrader
    clock: Callable[[], float]

    @property
    def name(self) -> str:
        """Name of the site."""
        return self.facts.name

    @property
    def currency(self) -> str:
        """Currency of the owner's prices."""
        return self.facts.currency

    async def send(self, message: TradeMessage) -> list[TradeMessage]:
        """Deliver a message; see :class:`bursar.remote.service_trading.TradePartner`."""
        customer = self.trading.customer
        theirs = msgspec.structs.replace(message, sender=customer, to=self.name)
        answers = self.trading.answer(self.name, theirs, self.clock())
        return [as_buyer_knows(answer, self.name, (self.name, customer)) for answer in answers]


class RunMarket:
    """
    Agrees on single allocations of a run, each when it is asked for.

    Parameters
    ----------
    clock
        The present time, seconds since the epoch.
    on_deal
        Called with what came of each negotiation.
    """

    def __init__(
        self,
        sites: Mapping[str, Site],
        trading: CampaignTrader,
        *,
        clock: Callable[[], float],
        on_deal: Callable[[DealRecord], None],
    ) -> None:
        self._sites = sites
        self._trading = trading
        self._clock = clock
        self._on_deal = on_deal

    async def agree(
        self, wanted: Allocation, held: Sequence[Allocation], set_aside: SetAside
    ) -> tuple[Allocation, SiteError | None]:
        """
        Agree on an allocation, by tender with all sites that are called for tenders and could
        serve the request.

        Parameters
        ----------
        wanted
            Allocation without a start. It may end up at another site than the one that it names.
        held
            Allocations that the run asks for or holds.
        set_aside
            Awaited before a service can be awarded the request.

        Returns
        -------
        allocation : Allocation
            At the agreed price, where there was something to agree on here.
        error : SiteError or None
            Why there is no agreement.
        """
        rivals = self._rivals(wanted, held)
        if len(rivals) > 1:
            return await self._call_for_bids(wanted, rivals, set_aside)
        try:
            (agreed,) = self._trading.agree([wanted], self._clock(), self._on_deal)
        except SiteError as error:
            return wanted, error
        return agreed, None

    def _rivals(self, wanted: Allocation, held: Sequence[Allocation]) -> list[SiteFacts]:
        """Sites that could serve a request in place of one another, the requested one first."""
        asked = self._sites[wanted.site].facts
        if asked.buying.market != "tender" or wanted.unpaid:
            return []
        taken: dict[str, int] = {}
        for one in held:
            if one.name != wanted.name and not one.is_over:
                taken[one.site] = taken.get(one.site, 0) + one.processors
        seconds = _seconds(wanted)
        found = [asked]
        for name, site in self._sites.items():
            facts = site.facts
            # Where a task takes another time, another number of seconds would be wanted.
            is_alike = (facts.speed, facts.currency) == (asked.speed, asked.currency)
            is_called = facts.buying.market == "tender" and facts.unit_price is not None
            has_room = facts.processors - taken.get(name, 0) >= wanted.processors
            sells = self._trading.sells(name) or isinstance(site, BiddingSite)
            has_time = math.isinf(wanted.duration) or seconds <= facts.acquiring.longest
            if name != wanted.site and is_alike and is_called and has_room and sells and has_time:
                found.append(facts)
        return found

    async def _call_for_bids(
        self, wanted: Allocation, rivals: Sequence[SiteFacts], set_aside: SetAside
    ) -> tuple[Allocation, SiteError | None]:
        seconds = _seconds(wanted)
        unit = max(facts.unit_price or 0.0 for facts in rivals)
        fixed = max(facts.fixed_price or 0.0 for facts in rivals)
        services = {
            facts.name: site
            for facts in rivals
            if isinstance(site := self._sites[facts.name], BiddingSite)
        }

        def at(site: str) -> Allocation:
            """The request as the dearest bidder's, at a site."""
            length = seconds if site in services else wanted.duration
            return replace(wanted, site=site, duration=length, unit_price=unit, fixed_price=fixed)

        partners, failed = await self._partners(rivals, services)
        if services:
            # The money first: while services are asked, other allocations must not take it.
            await set_aside(at(next(iter(services))))
        patience = self._sites[wanted.site].facts.buying.patience
        now = self._clock()
        template = DealTemplate(
            processors=wanted.processors,
            seconds=seconds,
            earliest=now,
            latest=now + patience + seconds,
            currency=self._sites[wanted.site].facts.currency,
        )
        most = rental_charge(wanted.processors * seconds, unit, fixed)
        expected = Terms.of_amount(template, now, most)
        bound: list[str] = []

        async def bind(deal: str, owner: str) -> None:
            if (service := services.get(owner)) is not None:
                bound.append(owner)
                service.expect(at(owner), expected, deal)
                await set_aside(at(owner))

        trader = ServiceTrader(partners, failed, on_binding=bind, clock=self._clock)
        result = await trader.negotiate(
            "tender", template, TradeLimits(most=most, patience=patience)
        )
        return self._outcome(wanted, result, services, bound, at)

    async def _partners(
        self, rivals: Sequence[SiteFacts], services: Mapping[str, BiddingSite]
    ) -> tuple[list[TradePartner], dict[str, str]]:
        partners: list[TradePartner] = []
        failed: dict[str, str] = {}
        for facts in rivals:
            if facts.name not in services:
                partners.append(OwnerInRun(facts, self._trading, self._clock))
                continue
            try:
                partners.append(await services[facts.name].bidder())
            except SiteError as error:
                failed[facts.name] = str(error).removeprefix(f"{facts.name}: ")
        return partners, failed

    def _outcome(
        self,
        wanted: Allocation,
        result: TradeResult,
        services: Mapping[str, BiddingSite],
        bound: Sequence[str],
        at: Callable[[str], Allocation],
    ) -> tuple[Allocation, SiteError | None]:
        agreement = result.agreement
        winner = "" if agreement is None else agreement.owner
        for answer in result.answers:
            if self._trading.sells(answer.owner):
                self._trading.forget(answer.owner, result.deal)
        for owner in bound:
            if owner != winner and owner not in result.unknown:
                services[owner].refused(wanted.name)
        site = winner or wanted.site
        self._on_deal(DealRecord(site=site, result=result, lease=wanted.name))
        if agreement is None:
            problem = f"no agreement by tender: {result.refusal()}"
            # Whoever did not answer its award may have sold: the lease is settled by its word.
            unsure = at(result.unknown[0]) if result.unknown else wanted
            return unsure, SiteError(f"{site}: {problem}", transient=True)
        if winner in services:
            services[winner].agreed(wanted.name, agreement)
        else:
            self._trading.sold(wanted.name, winner, agreement.id)
        terms = agreement.terms
        made = replace(at(winner), unit_price=terms.unit_price, fixed_price=terms.fixed_price)
        return made, None


def prepare_lots(sites: Mapping[str, Site], policy: str, deadline: float | None) -> None:
    """
    Tell sites whose processors come in lots until when lots are of use to a run that begins now.

    Parameters
    ----------
    policy
        Kind of the policy that brings processors to the tasks.
    deadline
        Seconds from now; None: none.

    Raises
    ------
    InputError
        When the policy buys processors job by job, of a site that sells them in lots only, or
        counts on winning an auction.
    """
    for name, site in sites.items():
        if not isinstance(site, LotSite):
            continue
        if policy in ("economy", "matched"):
            raise InputError(
                "its processors come as a whole, and a strategy or the broker buys job by job: "
                "expected a plan or a pool",
                where=f"site.{name}",
            )
        if policy != "pool" and site.facts.buying.auction is not None:
            raise InputError(
                "a plan cannot count on winning an auction: expected --provisioning dynamic",
                where=f"site.{name}.market",
            )
        site.until = time.time() + (math.inf if deadline is None else deadline)


def _seconds(wanted: Allocation) -> float:
    """Seconds for which an allocation is agreed on."""
    return WITHOUT_END if math.isinf(wanted.duration) else wanted.duration
