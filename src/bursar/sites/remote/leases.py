"""Processors of a service are bought or shared, held, given back, and found after a kill."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from bursar.market.agreement import Agreement, Terms
from bursar.market.lease import Lease
from bursar.market.purchasing import DisputeRecord, MarketRecord
from bursar.model.allocation import Allocation, AllocationLoss
from bursar.model.errors import BursarError, SiteError
from bursar.model.provisioning import STARTING
from bursar.model.site import RemoteEndpoint, SiteFacts
from bursar.provisioning.allocation_life import AllocationLife
from bursar.remote.async_client import AsyncServiceClient, AsyncSession
from bursar.remote.http_transport import RemoteProblem
from bursar.remote.messages import AgreementInfo, InstanceInfo, SiteInfo
from bursar.remote.service_trading import TradingService
from bursar.sites.protocol import MeteredTime, PilotBeginListener
from bursar.sites.remote.agreement_purchase import (
    InvoiceReconciler,
    check_shared_price,
    metered,
    most_held,
)
from bursar.sites.remote.deals import RemoteDeals, RemoteLot
from bursar.sites.remote.held import HeldInstance, InstanceCheck
from bursar.sites.remote.purchase_journal import PurchaseJournal, PurchaseRecord
from bursar.sites.remote.remote_files import InstanceFileIndex
from bursar.sites.remote.site_client import PARTING, RemoteSiteClient, RemoteSiteStatus, sells
from bursar.supervisor import TaskSupervisor
from bursar.worker.launch import Endpoint

T = TypeVar("T")

KEEP = 3600.0
"""Seconds beyond a pilot's time for which a service keeps an instance that nobody ends."""

_READY_POLL_INTERVAL = 0.1
"""Initial seconds between two looks at whether the processors of an agreement are there."""

_READY_SLOWEST = 2.0

_LATE = 5.0
"""Seconds by which the service's clock may differ from ours."""

_ENDING = 0.2
"""Seconds between two looks at whether tasks that were cancelled have ended."""

_ASK_AGAIN = 2.0
"""Seconds until a service is asked again what an agreement came to."""


@dataclass(slots=True, eq=False)
class _RemoteAllocation:
    """
    The life of one allocation at a service, with what was bought and what is held for it.

    A purchase made ahead belongs to an allocation that the service was not asked for yet; it is
    over when its instance and its agreement have been ended, and settled with that.
    """

    life: AllocationLife
    bought: PurchaseRecord | None = None
    held: HeldInstance | None = None

    @property
    def is_reserved(self) -> bool:
        """Whether it was bought ahead, and nobody acquires it yet."""
        return self.bought is not None and not self.life.was_asked


class RemoteLeases:
    """
    The processors that a run holds at a service.

    Parameters
    ----------
    facts
        Facts of the site from the sites file.
    contact, status
        Client of the service, and its last known status.
    refresh
        Coroutine function that queries the service's status.
    label
        Prefix of the labels of the run's instances.
    settling
        Compares charges with our own count of use.
    """

    def __init__(
        self,
        *,
        facts: SiteFacts,
        remote: RemoteEndpoint,
        contact: RemoteSiteClient,
        status: RemoteSiteStatus,
        refresh: Callable[[], Coroutine[Any, Any, SiteInfo]],
        label: str,
        record: PurchaseJournal,
        settling: InvoiceReconciler,
    ) -> None:
        self._published = facts
        self._remote = remote
        self._contact = contact
        self._status = status
        self._refresh = refresh
        self._label = label
        self._record = record
        self._settling = settling
        self._lives: dict[str, _RemoteAllocation] = {}  # by name
        self._siblings = InstanceFileIndex()
        self._retired: HeldInstance | None = None
        self._cleared = False
        self._closing = False
        self._tasks = TaskSupervisor(self._on_failure)  # tasks that end by themselves
        self.on_event: Callable[[str], None] = lambda message: None
        self._deals = RemoteDeals(facts=facts, contact=contact, status=status, record=record)
        self.changed = asyncio.Event()
        """Set when something of ours has changed at the service."""

    @property
    def on_deal(self) -> Callable[[MarketRecord], None]:
        """Called with each negotiation, and with each bill that is wrong."""
        return self._deals.on_deal

    @on_deal.setter
    def on_deal(self, listener: Callable[[MarketRecord], None]) -> None:
        self._deals.on_deal = listener

    @property
    def lot_of(self) -> Callable[[str], RemoteLot | None]:
        """Returns the lot that a pilot is to have; see :class:`RemoteDeals`."""
        return self._deals.lot_of

    @lot_of.setter
    def lot_of(self, find: Callable[[str], RemoteLot | None]) -> None:
        self._deals.lot_of = find

    @property
    def has_pilots(self) -> bool:
        """Whether a pilot has, or is about to have, processors there."""
        return any(not entry.life.allocation.is_over for entry in self._lives.values())

    def is_used_by_another(self, agreement: str, pilot: str) -> bool:
        """Whether another pilot of the run has, or had, an agreement."""
        return self._record.is_used_by_another(agreement, pilot)

    @property
    def pilots(self) -> int:
        """Number of pilots that hold processors."""
        return len(self._held())

    @property
    def processors(self) -> int:
        """Number of processors held."""
        return sum(held.pilot.processors for held in self._held())

    def _held(self) -> list[HeldInstance]:
        entries = self._lives.values()
        return [entry.held for entry in entries if entry.held is not None and entry.life.holds]

    # Reserved.

    async def reserve(self, pilots: Sequence[Allocation]) -> None:
        """Buy missing agreements and end unwanted ones; see :class:`Site`."""
        wanted = {pilot.name for pilot in pilots}
        for name, entry in list(self._lives.items()):
            if entry.bought is None or not entry.is_reserved or name in wanted:
                continue
            del self._lives[name]
            try:
                await self._deals.end(entry.bought, self._contact.quick_client)
            except SiteError:
                self._cleared = False
                raise
        fresh = [p for p in pilots if p.works and p.name not in self._lives]
        if not fresh:
            return
        info = await self._refresh()
        if not sells(info) and self.lot_of(fresh[0].name) is None:
            return
        now = time.time()
        # While a purchase is under way, clear_up must not take it for something left behind.
        for pilot in fresh:
            self._lives[pilot.name] = _RemoteAllocation(AllocationLife(pilot))
        try:
            for pilot in fresh:
                start = now + (pilot.start or 0.0)
                seconds = self._seconds_of(pilot)
                latest = start + seconds + _LATE
                self._lives[pilot.name].bought = await self._deals.buy(
                    pilot, info, seconds, earliest=start, latest=latest
                )
        except BaseException:
            try:
                # All or none: a part of a plan's processors would cost money and help no task.
                ending = [self._tasks.start(self._give_up(pilot)) for pilot in pilots]
                await asyncio.shield(asyncio.gather(*ending))
            finally:
                for name, entry in list(self._lives.items()):
                    if not entry.life.was_asked:
                        del self._lives[name]
            raise

    # Called for bids together with other sites.

    async def bidder(self) -> TradingService:
        """Return the service as a bidder; see :class:`bursar.sites.protocol.BiddingSite`."""
        info = await self._refresh()
        if info.draining:
            raise SiteError(f"{self._published.name}: takes nothing more", transient=True)
        return await self._deals.partner(info)

    def expect(self, pilot: Allocation, terms: Terms, deal: str) -> None:
        """Note, on disk, that a deal is about to be awarded to the service for a pilot."""
        # Used from now on, so that clear_up does not take the deal for something left behind.
        self._lives[pilot.name] = _RemoteAllocation(AllocationLife(pilot))
        self._deals.expect(pilot.name, terms, deal)

    def agreed(self, pilot: str, agreement: Agreement) -> None:
        """Take over the agreement that came of an expected deal."""
        self._lives[pilot].bought = self._deals.agreed(pilot, agreement)

    def refused(self, pilot: str) -> None:
        """Note that an expected deal came to nothing."""
        del self._lives[pilot]
        self._deals.refused(pilot)

    # Acquired.

    async def acquire(
        self, pilot: Allocation, endpoint: Endpoint, begin: PilotBeginListener
    ) -> HeldInstance:
        """Buy processors or take shared ones; see :class:`bursar.sites.protocol.Site`."""
        name = self._published.name
        held: HeldInstance | None = None
        entry = self._lives.setdefault(pilot.name, _RemoteAllocation(AllocationLife(pilot)))
        entry.life.ask()
        try:
            info = await self._refresh()
            if info.draining:
                raise SiteError(f"{name}: takes nothing more", transient=True)
            is_lot = self.lot_of(pilot.name) is not None
            if entry.bought is None and (sells(info) or is_lot):
                entry.bought = await self._deals.buy(pilot, info, self._seconds_of(pilot))
            elif entry.bought is None:
                check_shared_price(name, pilot, info, self._published.unit_price)
            bought = entry.bought
            asked = pilot.processors
            if bought is not None and bought.terms.processors < asked:
                pilot = replace(pilot, processors=bought.terms.processors)  # a share of a lot
            handle = await self._instance(pilot, bought)
            seconds, early = (None, 0.0) if bought is None else await self._ready(bought)
            session = await self._session(handle, info)
            held = HeldInstance(
                pilot,
                session,
                self._siblings,
                self._check_of(handle, bought),
                self._back,
                self._remote.trust,
            )
            held.early = early
            # The guard may refuse for want of money; nothing has been sent to the service's workers
            # yet.
            begin(pilot.processors if pilot.processors < asked else None, _shorter(seconds, pilot))
            entry.life.grant(time.time(), None, seconds)
            held.open(endpoint)
            entry.held = held
            entry.life.man(time.time())
        except BaseException:
            try:
                if held is not None:
                    await held.leave()
                await asyncio.shield(self._tasks.start(self._give_up(pilot)))
            finally:
                self._lives.pop(pilot.name, None)
            raise
        self.changed.set()
        return held

    def _seconds_of(self, pilot: Allocation) -> float:
        # A pool thinks of the start itself, a plan of tasks does not.
        seconds = pilot.duration + (STARTING if pilot.tasks else 0.0)
        return min(seconds, self._published.acquiring.longest)

    async def _instance(self, pilot: Allocation, bought: PurchaseRecord | None) -> str:
        made: InstanceInfo = await self._contact.ask(
            self._contact.client.create_instance(
                label=self._label + pilot.name,
                agreement="" if bought is None else bought.agreement,
                keep=KEEP + self._seconds_of(pilot),
            )
        )
        return made.id

    async def _ready(self, bought: PurchaseRecord) -> tuple[float, float]:
        """
        Wait until the agreement's processors are there.

        Only differences of times are used, since the two clocks need not agree.

        Returns
        -------
        tuple of float
            Seconds for which they are there, and processor-seconds, at the most, for which some
            have waited for the others.
        """
        clock = asyncio.get_running_loop().time
        pause, checked, early = _READY_POLL_INTERVAL, clock(), 0.0
        while True:
            info = await self._contact.ask(self._contact.client.agreement(bought.agreement))
            gap = clock() - checked  # since the look before, when perhaps fewer were there
            checked += gap
            early += info.ready * gap
            if info.state not in ("signed", "running"):
                raise SiteError(f"{self._published.name}: the agreement is {info.state}")
            if info.begun is not None and info.ready >= info.processors:
                left = info.start + info.seconds - info.begun - gap
                # One that was made by hand may have begun long ago.
                passed = info.start + info.seconds - time.time()
                return min(left, passed) if self.lot_of(bought.pilot) else left, early
            await asyncio.sleep(pause)
            pause = min(2 * pause, _READY_SLOWEST)

    async def _session(self, handle: str, info: SiteInfo) -> AsyncSession:
        level = self._remote.seal
        client = self._contact.client
        if level is None:
            return client.attach(handle)
        if not info.seal:
            raise SiteError(f"{self._published.name}: its workers open no sealed tasks")
        from bursar.sealing.task_sealing import read_sealer  # what it needs takes time to load

        sealer = await asyncio.to_thread(
            read_sealer,
            info.seal.encode(),
            certificate=Path(self._remote.certificate),
            key=Path(self._remote.key) if self._remote.key else None,
            authorities=Path(self._remote.ca),
            level=level,
        )
        return client.attach(handle, seal=sealer)

    def _check_of(self, handle: str, bought: PurchaseRecord | None) -> InstanceCheck:
        client = self._contact.client

        async def check(held: HeldInstance) -> tuple[AllocationLoss, str] | None:
            if bought is None:
                held.spent = (await client.instance(handle)).spent
                return None
            info = await client.agreement(bought.agreement)
            if info.state == "running":
                return None
            is_over = info.ended is None or info.ended >= info.start + info.seconds - _LATE
            return "ended" if is_over else "lost", f"the agreement is {info.state}"

        return check

    # Given back.

    async def _back(self, held: HeldInstance) -> None:
        """Give a pilot's processors back, and compare the service's charge with the time held."""
        entry = self._lives.get(held.pilot.name)
        # Lost and released at once: the second call finds nothing to do.
        if entry is None or not entry.life.finish(time.time(), at_once=True):
            return
        bought = self._record.of(held.pilot.name)
        # A cancelled caller must not leave it half done.
        await asyncio.shield(self._tasks.start(self._end_held(entry, held, bought)))

    async def _end_held(
        self, entry: _RemoteAllocation, held: HeldInstance, bought: PurchaseRecord | None
    ) -> None:
        quick_client = self._contact.quick_client
        is_settled = False
        info: AgreementInfo | None = None
        try:
            if bought is not None:
                info = await self._deals.end(bought, quick_client)
                if info is not None:
                    self._settling.settle(held, bought.terms, info)
            else:
                await self._end_shared(held, quick_client)
            is_settled = True
            if bought is not None and info is not None:
                await self._audit(held, bought, info)
            await self._retire(held)
        except SiteError as error:
            self._cleared = False  # it is tried again once the service answers
            if not is_settled:
                self._settling.guess(held, bought)
            self._notify(f"{held.pilot.name} is to be ended later: {self._contact.plain(error)}")
        finally:
            # Whatever went wrong above, the lease can be settled: by the service's word or by the
            # guess.
            entry.life.released(time.time())
            entry.life.settle(time.time())
            self.changed.set()

    async def _audit(self, held: HeldInstance, bought: PurchaseRecord, info: AgreementInfo) -> None:
        """Tell of a bill that the service's own signed records or our count do not bear out."""
        if self._deals.auditor is None:
            return
        asking = self._deals.auditor.audit(
            self._contact.quick_client, bought.terms, info, most_held(held, bought.terms)
        )
        try:
            findings = await self._contact.ask(asking)
        except SiteError as error:
            problem = self._contact.plain(error)
            self._notify(f"{held.pilot.name}: its signed usage records cannot be had: {problem}")
            return
        if findings:
            for finding in findings:
                self._notify(f"{held.pilot.name}: {finding}")
            self._deals.on_deal(
                DisputeRecord(
                    site=self._published.name,
                    lease=held.pilot.name,
                    agreement=info.id,
                    findings=tuple(findings),
                )
            )

    async def meter(self, lease: Lease) -> MeteredTime | None:
        """
        Return how long a lease was held, by the service's charge; see :class:`MeteringSite`.

        For a lease of an earlier process the agreement is ended and read until the service
        answers; for shared processors nothing is known once their instance is gone.
        """
        entry = self._lives.get(lease.id)
        if (
            entry is not None
            and entry.held is not None
            and entry.life.allocation.settled is not None
        ):
            del self._lives[lease.id]
            held = entry.held
            if held.seconds is None:
                return None
            terms = held.terms
            return MeteredTime(
                seconds=held.seconds,
                unit_price=None if terms is None else terms.unit_price,
                fixed_price=None if terms is None else terms.fixed_price,
                charged=held.charged,
            )
        if self._record.of(lease.id) is None and self._record.last_of(lease.id) is None:
            # Purchases are on disk before the service hears of them: there was none.
            return None
        while True:
            try:
                await self.clear_up()
                bought = self._record.last_of(lease.id)
                if bought is None or bought.is_kept:
                    return None
                info = await self._contact.ask(self._contact.client.agreement(bought.agreement))
                if info.state not in ("signed", "running"):
                    return metered(info, lease.processors)
            except SiteError as error:
                # The service has forgotten the agreement: no answer will ever come, and our own
                # clock counts.
                if isinstance(error.__cause__, RemoteProblem) and error.__cause__.status == 404:
                    return None
            await asyncio.sleep(_ASK_AGAIN)

    async def _end_shared(self, held: HeldInstance, client: AsyncServiceClient) -> None:
        """Kill tasks left on shared processors, so that the final cost counts all of the tasks."""
        if not held.pilot.unit_price:
            return
        handle = held.session.handle
        asking = self._contact.ask
        info = await asking(client.instance(handle))
        # Tasks that run on after the last look would be charged, and missing from the bill.
        if info.counts.running or info.counts.waiting:
            await asking(client.cancel(handle, grace=0.0))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PARTING):
                    while info.counts.running:
                        await asyncio.sleep(_ENDING)
                        info = await asking(client.instance(handle))
        self._settling.settle_shared(held, info.spent)

    async def _retire(self, held: HeldInstance) -> None:
        """
        End an instance, but keep the last one that has files of the run.

        The next instance copies these files from it, so that they are not sent again.
        """
        before = held
        if self._siblings.has(held.session.handle) and not self._closing:
            if self._retired is None:
                self._retired = held
                return
            before, self._retired = self._retired, held
        await self._destroy(before.session.handle, self._contact.quick_client)

    async def _give_up(self, pilot: Allocation) -> None:
        """End all that a pilot which has not begun may have left at the service."""
        quick_client = self._contact.quick_client
        try:
            bought = self._record.of(pilot.name)
            if bought is not None:
                await self._deals.end(bought, quick_client)
            for instance in await self._contact.ask(quick_client.instances()):
                if instance.label == self._label + pilot.name:
                    await self._destroy(instance.id, quick_client)
        except SiteError:
            self._cleared = False
        self.changed.set()

    async def _destroy(self, handle: str, client: AsyncServiceClient) -> None:
        # Before the service is asked: nobody may copy from an instance that is about to go.
        self._siblings.drop(handle)
        try:
            await self._contact.ask(client.destroy(handle))
        except SiteError as error:
            if not isinstance(error.__cause__, RemoteProblem) or error.__cause__.status != 404:
                raise

    async def clear_up(self) -> None:
        """
        End unused instances and agreements of this run, left by an earlier process or by a pilot
        that could not be ended.

        Raises
        ------
        SiteError
            When the service does not answer.
        """
        if self._cleared:
            return
        self._cleared = True  # unless something else cannot be ended meanwhile
        quick_client = self._contact.quick_client
        try:
            for bought in self._record.open:
                if not self._is_used(bought.pilot):
                    info = await self._deals.end(bought, quick_client)
                    if info is not None:
                        self._settling.settle_later(bought, info)
            for instance in await self._contact.ask(quick_client.instances()):
                pilot = instance.label.removeprefix(self._label)
                if instance.label.startswith(self._label) and not self._is_used(pilot):
                    await self._destroy(instance.id, quick_client)
        except BaseException:
            self._cleared = False
            raise

    def _is_used(self, pilot: str) -> bool:
        is_retired = self._retired is not None and self._retired.pilot.name == pilot
        entry = self._lives.get(pilot)
        return is_retired or (entry is not None and not entry.life.allocation.is_over)

    async def close(self) -> None:
        """Release all pilots."""
        self._closing = True
        await self._tasks.wait()  # a cancelled caller may have left one that is just being ended
        for held in self._held():
            await held.release()
        for name in [name for name, entry in self._lives.items() if entry.is_reserved]:
            del self._lives[name]
        self._retired = None
        await self._tasks.wait()
        self._cleared = False
        try:
            await self.clear_up()
        except SiteError as error:
            if self._record.open:
                problem = self._contact.plain(error)
                self._notify(f"what was bought there may still run: {problem}")
        self._closing = False

    def _notify(self, message: str) -> None:
        self.on_event(f"{self._published.name}: {message}")

    def _on_failure(self, error: BaseException) -> None:
        """Tell of a fault of ours: whoever waited for the task may have been cancelled."""
        self._cleared = False
        self._notify(f"something may still be held there: {type(error).__name__}: {error}")


def _shorter(seconds: float | None, pilot: Allocation) -> float | None:
    """Return a pilot's seconds if fewer than requested, else None."""
    if seconds is None or seconds >= pilot.duration:
        return None
    if seconds <= 0:
        raise BursarError("the agreement was over before its processors were there")
    return seconds
