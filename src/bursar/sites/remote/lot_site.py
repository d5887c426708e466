"""Another Bursar whose processors come in lots: of an agreement, or of its auctions."""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bursar.model.allocation import Allocation
from bursar.model.errors import SiteError
from bursar.model.money import from_micros
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.provisioning.pool_snapshot import PoolSite
from bursar.remote.http_transport import RemoteProblem
from bursar.remote.messages import SiteInfo
from bursar.remote.service_trading import terms_of
from bursar.sites.remote.deals import RemoteLot
from bursar.sites.remote.remote_site import RemoteSite

MARGIN = 1.0
"""Seconds before its close up to which a lot is still bid for."""


def service_site(facts: SiteFacts, *, run: str, folder: Path) -> RemoteSite:
    """Return the site that another Bursar is, by the way in which it is bought from."""
    if facts.buying.agreement or facts.buying.auction is not None:
        return RemoteLotSite(facts, run=run, folder=folder)
    return RemoteSite(facts, run=run, folder=folder)


class RemoteLotSite(RemoteSite):
    """
    A service of which a pilot gets a lot as it is: its processors, its time, its price.

    Attributes
    ----------
    until
        When lots are of no use any more, seconds since the epoch.
    """

    def __init__(self, facts: SiteFacts, *, run: str, folder: Path) -> None:
        super().__init__(facts, run=run, folder=folder)
        self.until = math.inf
        self._lots: list[RemoteLot] = []
        self._problem = "has not been asked"
        self._taken: dict[str, RemoteLot] = {}  # by pilot
        self._tried: set[str] = set()  # auctions in which this process has bid
        self._leases.lot_of = self._taken.get

    async def refresh(self) -> SiteInfo:
        """Query the service's status and its lots; see :class:`RemoteSite`."""
        info = await super().refresh()
        rules = self._published.buying
        if rules.agreement:
            self._lots = await self._agreement(rules.agreement)
        else:
            self._lots = await self._auctions()
        return info

    async def _agreement(self, name: str) -> list[RemoteLot]:
        try:
            info = await self._contact.ask(self._contact.quick_client.agreement(name))
        except SiteError as error:
            cause = error.__cause__
            if not isinstance(cause, RemoteProblem) or cause.status != 404:
                raise
            self._lots = []
            raise SiteError(f"{self._published.name}: has no agreement {name} of ours") from error
        if info.state not in ("signed", "running"):
            self._lots = []
            raise SiteError(f"{self._published.name}: agreement {name} is {info.state}")
        return [RemoteLot(id=name, terms=terms_of(info))]

    async def _auctions(self) -> list[RemoteLot]:
        rules, now = self._published.buying, time.time()
        price = super().facts.unit_price
        self._problem = f"no {rules.market} auction closes within {rules.patience:g} s"
        if price is None:
            self._problem = "says no price up to which to bid: state a reserve_price"
            return []
        found = []
        for lot in await self._contact.ask(self._contact.quick_client.auctions()):
            is_ours = (lot.rule, lot.currency) == (rules.market, self._published.currency)
            is_open = lot.state in ("announced", "open") and lot.id not in self._tried
            in_time = now + MARGIN < lot.closes <= now + rules.patience and lot.start < self.until
            if is_ours and is_open and in_time and lot.processors <= self._published.processors:
                found.append(RemoteLot.up_for_auction(lot, price))
        return sorted(found, key=lambda lot: lot.terms.start)

    @property
    def facts(self) -> SiteFacts:
        """Facts of the site, with the price of its next lot."""
        facts = super().facts
        if not self._published.buying.agreement:
            return replace(facts, fixed_price=0.0)
        # What was bought costs the same however much of it is used.
        lot = next(iter([*self._lots, *self._taken.values()]), None)
        if lot is None:
            return replace(facts, unit_price=0.0, fixed_price=0.0)
        amount = from_micros(lot.terms.amount)
        processors = lot.terms.processors
        return replace(facts, processors=processors, unit_price=0.0, fixed_price=amount)

    def _windows(self) -> tuple[Slot, ...]:
        """Return the next lot as a slot, from now; none while a pilot has or bids for one."""
        if self._leases.has_pilots or not self._lots:
            return ()
        terms, now = self._lots[0].terms, time.time()
        start = max(0.0, terms.start - now)
        if terms.end <= now + start:
            return ()
        seconds = terms.end - now - start
        return (Slot(start=start, duration=seconds, processors=terms.processors),)

    def offers(self) -> tuple[Slot, ...]:
        """
        Return the slot of an agreement made by hand, from now.

        Where processors are won in auctions this is a forecast, at the price up to which is bid: no
        plan is made with it.
        """
        facts = self.facts
        if not self._published.buying.agreement:
            start = next((slot.start for slot in self._windows()), 0.0)
            whole = Slot(
                site=facts.name,
                start=start,
                duration=math.inf,
                processors=facts.processors,
                unit_price=facts.unit_price,
                fixed_price=0.0,
            )
            return () if facts.unit_price is None else (whole,)
        return tuple(
            replace(
                slot,
                site=facts.name,
                divisible=False,
                unit_price=facts.unit_price,
                fixed_price=facts.fixed_price,
            )
            for slot in self._windows()
        )

    def view(self) -> PoolSite:
        """Return the site as a pool sees it; see the Site protocol."""
        windows = self._windows()
        facts = self.facts
        return replace(
            super().view(),
            processors=facts.processors,
            unit_price=facts.unit_price,
            fixed_price=facts.fixed_price,
            free=sum(slot.processors for slot in windows),
            backfill_windows=windows,
        )

    def sold(self, pilot: Allocation, money: float | None = None) -> Allocation:
        """Return a pilot as the whole of the next lot; see :class:`SellingSite`."""
        if not pilot.works:
            return pilot
        lot = self._taken.get(pilot.name)
        name = self._published.name
        if lot is None:
            if self._leases.has_pilots or not self._lots:
                problem = "its lot is in use" if self._lots else self._problem
                raise SiteError(f"{name}: {problem}", transient=True)
            lot = self._taken[pilot.name] = self._lots.pop(0)
            if not self._published.buying.agreement:
                self._tried.add(lot.id)
        terms = lot.terms
        unit, fixed = terms.unit_price, terms.fixed_price
        if self._published.buying.agreement:
            # Another pilot of this run has paid for all of it.
            is_paid = self._leases.is_used_by_another(lot.id, pilot.name)
            unit, fixed = 0.0, 0.0 if is_paid else from_micros(terms.amount)
        return replace(
            pilot,
            processors=terms.processors,
            duration=max(1.0, terms.end - max(time.time(), terms.start)),
            least_processors=None,
            least_duration=None,
            unit_price=unit,
            fixed_price=fixed,
        )

    async def reserve(self, pilots: Sequence[Allocation]) -> float:
        """Take the lot for a plan's pilot; see :class:`bursar.sites.protocol.Site`."""
        for pilot in pilots:
            self.sold(pilot)
        return await super().reserve(pilots)
