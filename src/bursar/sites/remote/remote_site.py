"""Another Bursar service behind the site protocol."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from bursar.market.agreement import Agreement, Terms
from bursar.market.lease import Lease
from bursar.market.purchasing import MarketRecord
from bursar.model.allocation import Allocation
from bursar.model.errors import SiteError
from bursar.model.matching import SiteStatus
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.provisioning.accounting import USAGE
from bursar.provisioning.pool_snapshot import PoolSite
from bursar.remote.messages import SiteInfo
from bursar.remote.service_trading import TradingService
from bursar.sites.protocol import MeteredTime, PilotBeginListener
from bursar.sites.remote.agreement_purchase import InvoiceReconciler
from bursar.sites.remote.held import HeldInstance
from bursar.sites.remote.leases import RemoteLeases
from bursar.sites.remote.purchase_journal import PurchaseJournal
from bursar.sites.remote.site_client import RemoteSiteClient, RemoteSiteStatus
from bursar.supervisor import TaskSupervisor
from bursar.worker.launch import Endpoint

FRESH = 5.0
"""Seconds for which a status received from the service counts as current."""


class RemoteSite:
    """
    Provides processors of another Bursar service.

    The site must be open while it is used.

    Parameters
    ----------
    facts
        Facts of the site, with the service's address.
    run
        Identity of the run, by which its instances are recognised.
    folder
        Folder for the journal of purchases.

    Raises
    ------
    InputError
        When the token or a certificate cannot be read.
    """

    def __init__(self, facts: SiteFacts, *, run: str, folder: Path) -> None:
        if facts.remote is None:
            raise ValueError(f"{facts.name} is no other Bursar")
        self._published = facts
        self._contact = RemoteSiteClient(facts.name, facts.remote)
        self._status = RemoteSiteStatus(facts)
        plain = "".join(c if c.isalnum() else "-" for c in facts.name)
        self._leases = RemoteLeases(
            facts=facts,
            remote=facts.remote,
            contact=self._contact,
            status=self._status,
            refresh=self.refresh,
            label=f"{run} {facts.name} ",
            record=PurchaseJournal(folder / f"{plain}.deals"),
            settling=InvoiceReconciler(folder / f"{plain}{USAGE}", facts.currency, self._notify),
        )

    @property
    def facts(self) -> SiteFacts:
        """Facts of the site, with the prices that the service last posted."""
        return self._status.facts()

    @property
    def on_deal(self) -> Callable[[MarketRecord], None]:
        """Called with each negotiation; see :class:`bursar.sites.protocol.NegotiatingSite`."""
        return self._leases.on_deal

    @on_deal.setter
    def on_deal(self, listener: Callable[[MarketRecord], None]) -> None:
        self._leases.on_deal = listener

    def offers(self) -> tuple[Slot, ...]:
        """Slots that can be bought; starts are seconds from now."""
        return self._status.offers(self._leases.processors)

    def status(self, seconds: float | None = None) -> SiteStatus:
        """Status from the service's last answer; see the Site protocol."""
        return self._status.status(self._leases.pilots, self._leases.processors)

    def view(self) -> PoolSite:
        """Return the site as a pool sees it; see the Site protocol."""
        return self._status.view(self._leases.processors)

    async def refresh(self) -> SiteInfo:
        """
        Query the service's status.

        Raises
        ------
        SiteError
            When it does not answer, or counts in another currency.
        """
        info = await self._contact.ask(self._contact.quick_client.site())
        self._status.take(info)
        return info

    # Open and closed.

    def opened(self) -> AbstractAsyncContextManager[None]:
        """
        Keep in touch with the service while the context lasts; what an earlier process of the run
        left there is ended.
        """
        return self._opened()

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[None]:
        async with self.in_touch():
            with contextlib.suppress(SiteError):  # told when a pilot is asked for
                await self.refresh()
                await self._leases.clear_up()
            try:
                async with TaskSupervisor(self._on_unwatched) as watching:
                    watching.start(self._keep_fresh())
                    yield
            finally:
                await self._leases.close()

    def in_touch(self) -> AbstractAsyncContextManager[None]:
        """Allow requests to the service while the context lasts."""
        return self._contact.open()

    async def _keep_fresh(self) -> None:
        """Ask the service now and then, and soon after something of ours has changed there."""
        changed = self._leases.changed
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(FRESH, self._published.acquiring.probe_every)):
                    await changed.wait()
            changed.clear()
            try:
                await self.refresh()
                await self._leases.clear_up()
            except SiteError:
                self._status.take_silence()

    def _on_unwatched(self, error: BaseException) -> None:
        """Count the service as silent: nobody asks for its status any more."""
        self._status.take_silence()
        self._notify(f"is not asked any more: {type(error).__name__}: {error}")

    # Processors.

    async def reserve(self, pilots: Sequence[Allocation]) -> float:
        """Buy missing agreements and end unwanted ones; see :class:`bursar.sites.protocol.Site`."""
        await self._leases.reserve(pilots)
        return 0.0

    async def acquire(
        self,
        pilot: Allocation,
        endpoint: Endpoint,
        *,
        rigid: bool,
        begin: PilotBeginListener,
        on_event: Callable[[str], None],
    ) -> HeldInstance:
        """Buy processors or take shared ones; see :class:`bursar.sites.protocol.Site`."""
        self._leases.on_event = on_event
        return await self._leases.acquire(pilot, endpoint, begin)

    async def bidder(self) -> TradingService:
        """Return the service as a bidder; see :class:`bursar.sites.protocol.BiddingSite`."""
        return await self._leases.bidder()

    def expect(self, pilot: Allocation, terms: Terms, deal: str) -> None:
        """Note, on disk, that a deal is about to be awarded to the service for a pilot."""
        self._leases.expect(pilot, terms, deal)

    def agreed(self, pilot: str, agreement: Agreement) -> None:
        """Take over the agreement that came of an expected deal."""
        self._leases.agreed(pilot, agreement)

    def refused(self, pilot: str) -> None:
        """Note that an expected deal came to nothing."""
        self._leases.refused(pilot)

    @property
    def unwatched(self) -> float:
        """Zero seconds, since money is set aside up to an agreement's end; see MeteringSite."""
        return 0.0

    async def meter(self, lease: Lease, watched: float | None) -> MeteredTime | None:
        """Return how long a lease's processors were held, by the service's charge."""
        return await self._leases.meter(lease)

    def _notify(self, message: str) -> None:
        self._leases.on_event(f"{self._published.name}: {message}")
