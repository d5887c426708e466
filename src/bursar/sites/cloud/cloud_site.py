"""A cloud as a site: one machine is bought for each allocation, and ended with it."""

import asyncio
import contextlib
import dataclasses
import math
import secrets
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from bursar.market.lease import Lease
from bursar.model.allocation import Allocation
from bursar.model.cloud import CloudEndpoint, plain_word
from bursar.model.errors import SiteError
from bursar.model.matching import SiteStatus
from bursar.model.provisioning import ENDING, PATIENCE
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.provisioning.accounting import USAGE, append_usage
from bursar.provisioning.pool_snapshot import PoolSite, view_at_once
from bursar.sites.batch_pilot import HeldPilot
from bursar.sites.cloud.machine_choice import (
    MachineOffer,
    free_offers,
    machine_for,
    machine_slots,
    most_unit_price,
    sold,
    substitute,
)
from bursar.sites.cloud.machine_pilot import MachinePilot
from bursar.sites.cloud.pricing import paid_hourly
from bursar.sites.cloud.provider import (
    CloudProvider,
    MachineLabel,
    MachineOrder,
    PurchaseRefused,
    owner_of,
    run_word,
)
from bursar.sites.cloud.purchases import (
    APPEARING,
    PurchaseBook,
    PurchaseLine,
    reconcile,
    usage_of,
)
from bursar.sites.cloud.user_data import user_data
from bursar.sites.pilot_job import pilot_terms
from bursar.sites.protocol import MeteredTime, PilotBeginListener
from bursar.sites.start_ups import START_UPS, note_start_up
from bursar.supervisor import TaskSupervisor
from bursar.worker.launch import Endpoint, PilotAdmission

POLL = 15.0
"""Seconds between looks at our machines while there are any."""

SOON = 2.0
"""Seconds between two looks at the least."""

BARRED = 300.0
"""Seconds for which a type is left alone after the provider had no machine of it."""

THROTTLED = (1.0, 30.0)
"""Shortest and longest pause before a request that was throttled is made again, seconds."""

CLOSING = APPEARING + 60.0
"""Seconds for which the end of a run waits until all its machines have ended."""


class CloudSite:
    """
    Provides machines of a cloud; see :class:`bursar.sites.protocol.Site`.

    The site is used within the context :meth:`opened`.

    Parameters
    ----------
    facts
        Facts of the site, with the cloud and the prices of its machines.
    run
        Identity of the run, with which its machines are tagged.
    folder
        Folder for the file of purchases.
    provider
        The cloud; None: the one that the facts name, through apache-libcloud.
    clock
        The present time, seconds since the epoch.
    runs
        Folder of the runs, which keeps measured start-up times for later runs; None: nobody does.

    Raises
    ------
    InputError
        When apache-libcloud or the credentials are missing.
    """

    def __init__(
        self,
        facts: SiteFacts,
        *,
        run: str,
        folder: Path,
        provider: CloudProvider | None = None,
        clock: Callable[[], float] = time.time,
        runs: Path | None = None,
    ) -> None:
        if facts.cloud is None:
            raise ValueError(f"{facts.name} is no cloud")
        if provider is None:
            from bursar.sites.cloud.libcloud_provider import LibcloudProvider

            provider = LibcloudProvider(facts.name, facts.cloud)
        self._facts = facts
        self._cloud: CloudEndpoint = facts.cloud
        self._provider = provider
        self._clock = clock
        self._start_ups = None if runs is None else runs / START_UPS
        self._owner = owner_of(facts.cloud)
        self._run = run_word(run)
        self._book = PurchaseBook(folder / f"{plain_word(facts.name)}.machines")
        self._usage = folder / f"{plain_word(facts.name)}{USAGE}"
        self._pilots: dict[str, MachinePilot] = {}
        self._offers: dict[str, MachineOffer] = {}  # machines that are held, or agreed on
        self._quoted: dict[str, MachineOffer] = {}  # what other allocations were told to get
        self._barred: dict[str, float] = {}  # until when a type is left alone, loop time
        self._refusals: dict[str, str] = {}  # final ones, by type
        self._calling: set[str] = set()  # tokens of requests under way
        self._unseen: dict[str, float] = {}
        self._wanted = asyncio.Event()
        self._settled = asyncio.Event()
        self._is_ready = False
        self._readying = asyncio.Lock()
        self._looking = asyncio.Lock()
        self._on_event: Callable[[str], None] = lambda message: None
        self._tasks = TaskSupervisor(self._on_failure)

    @property
    def facts(self) -> SiteFacts:
        """Facts of the site."""
        return self._facts

    def _notify(self, message: str) -> None:
        self._on_event(f"{self._facts.name}: {message}")

    def _on_failure(self, error: BaseException) -> None:
        self._notify(f"{type(error).__name__}: {error}")

    # Open and closed.

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """
        Follow our machines while the context lasts.

        Machines that an earlier process of the run left are ended first, and all machines last.
        """
        with contextlib.suppress(SiteError):  # told, and tried again, when a machine is wanted
            await self._make_ready()
        try:
            async with TaskSupervisor(self._on_unwatched) as watching:
                watching.start(self._watch())
                yield
        finally:
            try:
                await self._close()
            finally:
                await self._tasks.close()

    def _on_unwatched(self, error: BaseException) -> None:
        # Without a watch nobody would hear that a machine is gone: the run would wait for ever.
        self._notify(f"is not watched any more: {type(error).__name__}: {error}")
        for entry in list(self._pilots.values()):
            entry.fail(SiteError(f"{self._facts.name}: {type(error).__name__}: {error}"))

    async def _make_ready(self) -> None:
        """Look for machines of an earlier process by their tag, before anything is bought."""
        async with self._readying:
            if self._is_ready:
                return
            left = [line for line in self._book.open if line.lease not in self._pilots]
            self._book.write(*(replace(line, released=True) for line in left))
            await self._look()
            self._is_ready = True

    async def _wait_until_ready(self) -> None:
        """Look for machines of an earlier process, as often as the provider does not answer."""
        pause = SOON
        while True:
            try:
                return await self._make_ready()
            except SiteError as error:
                if not error.transient:
                    raise SiteError(f"{self._facts.name}: {error}") from None
                self._notify(f"{error}; asked again before anything is bought")
            await asyncio.sleep(pause)
            pause = min(2 * pause, POLL)

    async def _watch(self) -> None:
        pause = SOON
        while True:
            with contextlib.suppress(TimeoutError):
                pending = self._book.has_pending(self._clock())
                async with asyncio.timeout(POLL if pending else None):
                    await self._wanted.wait()
            self._wanted.clear()
            try:
                await self._look()
                pause = SOON
            except SiteError as error:
                if pause == SOON:  # once for each outage
                    self._notify(f"{error}; asked again")
                pause = min(POLL, 2 * pause)
                self._wanted.set()
            await asyncio.sleep(pause)

    async def _close(self) -> None:
        """End all machines, and wait until they have ended and no other can appear."""
        for entry in list(self._pilots.values()):
            await self._give_up(entry)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSING):
                while self._book.has_pending(self._clock()):
                    with contextlib.suppress(SiteError):
                        await self._look()
                    if self._book.has_pending(self._clock()):
                        await asyncio.sleep(SOON if self._book.open else POLL)
        if left := [line.machine or line.token for line in self._book.open]:
            self._notify(
                f"{', '.join(left)} may still be there; bursar sites reap ends what is left"
            )

    # What the site says of itself.

    def offers(self) -> tuple[Slot, ...]:
        """Return a slot for each machine that may be bought; starts are seconds from now."""
        return machine_slots(self._facts.name, self._cloud, self._none_left())

    def status(self, seconds: float | None = None) -> SiteStatus:
        """Return what may be bought still; see the Site protocol."""
        return SiteStatus(
            site=self._facts.name,
            at=asyncio.get_running_loop().time(),
            free_processors=self._free(),
            running=len(self._pilots),
            traversal_time=self.start_up if self._free() else None,
        )

    def view(self) -> PoolSite:
        """Return the site as a pool sees it: machines come one by one and have no end."""
        widths = [machine.processors for machine in self._cloud.machines]
        view = view_at_once(self._facts, self._free(), max(widths))
        return dataclasses.replace(
            view,
            spans_nodes=False,
            unwatched=self.unwatched,
            probed=self.start_up,
            most_unit_price=most_unit_price(self._cloud),
            smallest=min(widths),
            refused=self._final_refusal,
        )

    @property
    def start_up(self) -> float:
        """Seconds from a purchase until workers take tasks: of this run, of others, or stated."""
        learned = [line.joined - line.asked for line in self._book if line.joined is not None]
        if learned:
            return statistics.median(learned)
        return statistics.median(self._cloud.starts_in(one) for one in self._cloud.machines)

    def _held(self) -> Mapping[MachineOffer, int]:
        return Counter(self._offers.values())

    def _free(self) -> int:
        free = free_offers(self._cloud, self._held(), self._none_left())
        return sum(offer.machine.processors * count for offer, count in free)

    def _none_left(self) -> list[str]:
        """Types of which the provider had none a moment ago."""
        now = asyncio.get_running_loop().time()
        return [name for name, until in self._barred.items() if until > now]

    @property
    def _final_refusal(self) -> str:
        """The answer of a provider that will sell no machine of any type; empty: it may."""
        last = [self._refusals.get(machine.name, "") for machine in self._cloud.machines]
        return last[-1] if all(last) else ""

    # Agreements.

    async def reserve(self, pilots: Sequence[Allocation]) -> float:
        """Choose a machine for each pilot; return for how long machines start."""
        self._offers = {name: self._offers[name] for name in self._offers if name in self._pilots}
        self._quoted.clear()
        for pilot in pilots:
            self._offers[pilot.name] = self._choose(pilot)
        return self.start_up

    def sold(self, pilot: Allocation, money: float | None = None) -> Allocation:
        """Return an allocation as the cloud sells it; see SellingSite."""
        offer = self._offers.get(pilot.name) or self._quoted.get(pilot.name)
        if offer is None:
            # Not counted as held: there may be no money for it, and then nobody asks for it.
            offer = self._quoted[pilot.name] = self._choose(pilot, money)
        return sold(pilot, offer)

    def _choose(self, pilot: Allocation, money: float | None = None) -> MachineOffer:
        offers = free_offers(self._cloud, self._held(), self._none_left())
        quoted = self._quoted.get(pilot.name)
        # Of several that were told of the last machine, the first that asks gets it.
        if quoted is not None and any(offer == quoted for offer, _ in offers):
            return quoted
        if self._final_refusal:
            raise SiteError(f"{self._facts.name}: {self._final_refusal}")
        offer = machine_for(pilot, offers, money, self._cloud.unwatched)
        if offer is None or quoted is not None:
            raise SiteError(
                f"{self._facts.name}: no machine with {pilot.processors} processors is left of "
                "those that may be bought",
                transient=True,
            )
        return offer

    @property
    def unwatched(self) -> float:
        """Seconds that a machine may cost beyond its use; see MeteringSite."""
        return self._cloud.unwatched

    async def meter(self, lease: Lease, watched: float | None) -> MeteredTime:
        """Return what the machine of a lease came to, once it has ended; see MeteringSite."""
        while any(not line.is_over for line in self._book.of_lease(lease.id)):
            self._settled.clear()
            self._wanted.set()
            await self._settled.wait()
        billing = self._cloud.billing
        lines = []
        for line in self._book.of_lease(lease.id):
            if line.state == "ended":
                if line.paid_hourly is None:
                    line = replace(line, paid_hourly=await paid_hourly(line, self._provider))
                    self._book.write(line)
                lines.append(line)
        if not lines:
            return MeteredTime(seconds=None)
        seconds = sum(line.seconds(billing) for line in lines)
        costs = [line.cost(billing) for line in lines]
        append_usage(self._usage, [usage_of(line, billing) for line in lines])
        unit_price = None
        if all(cost is not None for cost in costs) and seconds > 0:
            unit_price = math.fsum(cost or 0.0 for cost in costs) / (seconds * lease.processors)
        return MeteredTime(began=lines[0].began, seconds=seconds, unit_price=unit_price)

    # Machines.

    async def acquire(
        self,
        pilot: Allocation,
        endpoint: Endpoint,
        *,
        rigid: bool,
        begin: PilotBeginListener,
        on_event: Callable[[str], None],
    ) -> HeldPilot:
        """Buy a machine, and wait until its worker reports."""
        admission = endpoint.admission
        if admission is None:
            raise SiteError(f"{self._facts.name}: nobody listens for pilots from elsewhere")
        self._on_event = on_event
        if pilot.name not in self._offers:
            self._offers[pilot.name] = self._choose(pilot)
        self._quoted.pop(pilot.name, None)
        pilot = self.sold(pilot)
        entry = MachinePilot(pilot, self._offers[pilot.name], begin, on_event)
        self._pilots[pilot.name] = entry
        try:
            async with asyncio.timeout(self._cloud.start_limit):
                await self._wait_until_ready()
                await self._prepare(entry, admission)
                # A task of its own: who gives up meanwhile must not leave a machine that nobody
                # ends.
                self._tasks.start(self._buy(entry))
                await asyncio.shield(entry.begun)
        except BaseException as error:
            await asyncio.shield(self._release(entry, admission))
            if isinstance(error, TimeoutError):
                limit = self._cloud.start_limit
                raise SiteError(
                    f"{self._facts.name}: no worker came within {limit:g} s of the machine for "
                    f"{pilot.name}"
                ) from None
            raise
        return HeldPilot(entry.lost, partial(self._release, entry, admission))

    async def _prepare(self, entry: MachinePilot, admission: PilotAdmission) -> None:
        terms = pilot_terms(
            self._facts,
            entry.pilot,
            reach=self._cloud.reach,
            on_join=lambda: self._joined(entry),
            on_leave=lambda: self._left(entry),
        )
        secret = await admission.credential(terms)
        entry.script = user_data(
            secret,
            processors=entry.pilot.processors,
            python=self._cloud.python,
            setup=self._cloud.setup,
            start_limit=self._cloud.start_limit,
            lifetime=entry.pilot.duration + self._cloud.start_limit,
            notices=self._cloud.provider if entry.offer.is_spot else "",
            on_notice=self._cloud.on_notice,
            grace=self._cloud.grace,
        )

    async def _buy(self, entry: MachinePilot) -> None:
        """Ask for the machine until it is bought, or an answer leaves that open, or is final."""
        offer, lease = entry.offer, entry.pilot.name
        pause = THROTTLED[0]
        while not entry.is_released:
            price = offer.price
            line = PurchaseLine(
                token=secrets.token_hex(4),
                lease=lease,
                type=offer.machine.name,
                processors=offer.machine.processors,
                spot=offer.is_spot,
                hourly=offer.most_hourly,
                source="user" if price is None else price.source,
                date="" if price is None else price.date,
                asked=self._clock(),
            )
            # On disk before the provider is asked: after a kill, the machine is found by its tag.
            self._book.write(line)
            try:
                await self._ask(line, entry, offer)
                return
            except PurchaseRefused as error:
                if not error.transient:
                    refusal = self._bar(offer, error)
                    offers = free_offers(self._cloud, self._held(), self._none_left())
                    instead = substitute(offer, offers)
                    if instead is None:
                        entry.fail(refusal)
                        return
                    self._offers[lease] = offer = instead
                    continue
                await asyncio.sleep(pause)
                pause = min(2 * pause, THROTTLED[1])
            except SiteError as error:
                # Whether a machine was bought is open. It is not asked for again: it is looked for.
                self._notify(f"{error}; looks for the machine of {lease} by its tag")
                self._wanted.set()
                return
        entry.fail(SiteError(f"{self._facts.name}: {lease} was given up"))

    async def _ask(self, line: PurchaseLine, entry: MachinePilot, offer: MachineOffer) -> None:
        order = MachineOrder(
            label=MachineLabel(self._owner, self._run, line.lease, line.token),
            type=line.type,
            image=self._cloud.image,
            user_data=entry.script,
            ceiling=offer.most_hourly if offer.is_spot else None,
        )
        self._calling.add(line.token)
        try:
            machine = await self._provider.create(order)
            now = self._book.find(line.token) or line
            began = line.asked if machine.began is None else machine.began
            held = replace(now, state="held", machine=machine.id, zone=machine.zone, began=began)
            self._book.write(replace(held, released=entry.is_released))
        except PurchaseRefused:
            self._book.write(replace(line, state="refused"))
            raise
        finally:
            self._calling.discard(line.token)
        self._wanted.set()  # there is a machine to be watched now

    def _bar(self, offer: MachineOffer, error: PurchaseRefused) -> SiteError:
        """Leave a type alone, for a while or for good; return the refusal, for people."""
        type = offer.machine.name
        if error.final:
            self._barred[type] = math.inf
            words = self._refusals[type] = f"no {type} can be bought: {error}"
            return SiteError(f"{self._facts.name}: {words}")
        self._barred[type] = asyncio.get_running_loop().time() + BARRED
        self._notify(f"{type}: {error}; left alone for {BARRED:g} s")
        return SiteError(f"{self._facts.name}: {type}: {error}", transient=True)

    def _joined(self, entry: MachinePilot) -> None:
        entry.left = None
        if entry.has_joined or entry.begun.done():
            return
        entry.has_joined = True
        last = self._book.of_lease(entry.pilot.name)[-1]
        now = self._clock()
        self._book.write(replace(last, joined=now))
        if self._start_ups is not None:
            note_start_up(self._start_ups, self._cloud, last.type, now - last.asked, now)
        try:
            # The guard may refuse here for want of money; the machine is then ended.
            entry.begin(entry.pilot.processors)
        except Exception as error:
            entry.fail(error)
            return
        entry.begun.set_result(None)

    def _left(self, entry: MachinePilot) -> None:
        if entry.left is None:
            entry.left = asyncio.get_running_loop().time()
        self._wanted.set()

    async def _release(self, entry: MachinePilot, admission: PilotAdmission) -> None:
        admission.revoke(entry.pilot.name)
        await self._give_up(entry)

    async def _give_up(self, entry: MachinePilot) -> None:
        """End the machine; where the provider does not answer, the watch ends it later."""
        name = entry.pilot.name
        self._pilots.pop(name, None)
        self._offers.pop(name, None)
        entry.is_released = True
        lines = [line for line in self._book.of_lease(name) if not line.is_over]
        self._book.write(*(replace(line, released=True) for line in lines))
        for line in lines:
            if line.machine:
                with contextlib.suppress(SiteError):
                    await self._destroy(line.machine)
        self._wanted.set()

    async def _destroy(self, machine: str) -> None:
        is_listed = await self._provider.destroy(machine)
        now = self._clock()
        for line in [line for line in self._book.open if line.machine == machine]:
            ordered = now if line.destroyed is None else line.destroyed
            self._book.write(replace(line, destroyed=ordered, listed=line.listed or is_listed))

    # What becomes of them.

    async def _look(self) -> None:
        """List our machines; record what has changed, and end those that nobody needs."""
        async with self._looking:  # an older list must not be taken in after a newer one
            calling = set(self._calling)
            machines = await self._provider.machines(self._owner, self._run)
            found = reconcile(
                self._book,
                machines,
                self._clock(),
                under_way=calling | self._calling,
                unseen=self._unseen,
            )
            self._book.write(*found.changed)
            for line in found.changed:
                self._take_in(line)
            self._end_silent()
            ending = [self._destroy(machine) for machine in found.doomed]
            for answer in await asyncio.gather(*ending, return_exceptions=True):
                # One that cannot be ended now is still listed at the next look.
                if isinstance(answer, BaseException) and not isinstance(answer, SiteError):
                    raise answer
            self._settled.set()

    def _take_in(self, line: PurchaseLine) -> None:
        entry = self._pilots.get(line.lease)
        if entry is None:
            return
        what = f"{line.type} machine {line.machine}".rstrip()
        if line.state == "absent":
            reason = f"no machine came of the request for {line.lease}"
        elif line.state == "ended":
            reason = f"{what} of {line.lease} is gone"
            reason += ": the provider took it back, or it broke down" if line.spot else ""
        else:
            return
        self._lose(entry, reason)

    def _end_silent(self) -> None:
        """Give up machines whose worker has gone and does not come back."""
        now = asyncio.get_running_loop().time()
        for entry in list(self._pilots.values()):
            if entry.left is not None and now - entry.left > PATIENCE + ENDING:
                self._lose(entry, f"the worker of {entry.pilot.name} is gone, its machine silent")

    def _lose(self, entry: MachinePilot, reason: str) -> None:
        if not entry.begun.done():
            entry.fail(SiteError(f"{self._facts.name}: {reason}", transient=True))
        elif not entry.lost.done():
            entry.lost.set_result(("lost", reason))
