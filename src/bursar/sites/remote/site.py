"""The site that another Bursar is."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from bursar.broker.pilots import Pilot
from bursar.dispatch.launch import Endpoint
from bursar.model.errors import BursarError, InputError, SiteError
from bursar.model.money import from_micros
from bursar.model.remote import Remote
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.model.status import SiteStatus
from bursar.provisioning.recorded import USAGE, PilotUsage
from bursar.provisioning.view import Hole, Loss, SiteView
from bursar.remote.access import Access, read_token
from bursar.remote.async_client import AsyncServiceClient
from bursar.remote.connection import TIMEOUT
from bursar.remote.messages import AgreementInfo, InstanceInfo, SiteInfo
from bursar.remote.problems import RemoteProblem
from bursar.remote.session import AsyncSession
from bursar.sites.protocol import Begin
from bursar.sites.remote.buying import Buyer, TooDear, amount_of, end_deal
from bursar.sites.remote.deal_record import Bought, DealRecord
from bursar.sites.remote.held import HeldInstance, Look

T = TypeVar("T")

FRESH = 5.0
"""Seconds for which what the service said of itself is good."""

PARTING = 5.0
"""Seconds for which a service that does not answer is asked to end what is ours there."""

STARTING = 30.0
"""Seconds that an agreement gets on top of those of a plan, in which its workers start."""

KEEP = 3600.0
"""Seconds beyond a pilot's for which a service keeps its instance if it is not ended."""

_READY_LOOK = 0.1
"""Seconds between two looks at whether the processors of an agreement are there, at first."""

_READY_SLOWEST = 2.0

_LATE = 5.0
"""Seconds by which the service's clock may differ from ours."""


class RemoteSite:
    """
    Processors of another Bursar.

    It is to be open while it is used.

    Parameters
    ----------
    facts
        Of the site, with how it is reached.
    run
        Identity of the run; instances are known by it.
    folder
        Where it keeps a record of what it bought.

    Raises
    ------
    InputError
        When the token or a certificate cannot be read.
    """

    def __init__(self, facts: SiteFacts, *, run: str, folder: Path) -> None:
        if facts.remote is None:
            raise ValueError(f"{facts.name} is no other Bursar")
        self._said = facts
        self._remote = facts.remote
        self._access = access_of(facts.name, facts.remote)
        self._label = f"{run} {facts.name} "
        plain = "".join(c if c.isalnum() else "-" for c in facts.name)
        self._record = DealRecord(folder / f"{plain}.deals")
        self._usage = folder / f"{plain}{USAGE}"
        self._on_event: Callable[[str], None] = lambda message: None
        self._client: AsyncServiceClient | None = None
        self._brisk: AsyncServiceClient | None = None  # with little patience
        self._info: SiteInfo | None = None  # what it said last
        self._is_silent = False
        self._asked = -math.inf
        self._dearer: tuple[float, float, float] | None = None  # prices, and until when
        self._buyer: Buyer | None = None
        self._reserved: dict[str, Bought] = {}
        self._held: dict[str, HeldInstance] = {}
        self._cleared = False
        self._wanted = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()

    # What it says of itself.

    @property
    def facts(self) -> SiteFacts:
        """What is known of it; its prices as it said last."""
        info = self._info
        if info is None:
            return self._said
        unit, fixed = info.unit_price, info.fixed_price
        if self._dearer is not None and time.time() < self._dearer[2]:
            unit, fixed = self._dearer[:2]
        return replace(
            self._said,
            unit_price=unit if self._sells(info) else 0.0,
            fixed_price=fixed if self._sells(info) else 0.0,
            speed=self._said.speed * info.speed,
            memory=info.memory if self._said.memory is None else self._said.memory,
            attributes={**info.attributes, **self._said.attributes},
        )

    def offers(self) -> tuple[Slot, ...]:
        """What can be had of it; starts are seconds from now."""
        facts = self.facts
        offers: list[Slot] = []
        for hole in self._holes():
            duration = min(hole.seconds, facts.acquiring.longest)
            taken = sum(
                slot.processors
                for slot in offers
                if slot.start < hole.start + duration and hole.start < slot.end
            )
            processors = min(hole.processors, facts.processors - taken)
            if processors < 1:
                continue
            offers.append(
                Slot(
                    site=facts.name,
                    start=hole.start,
                    duration=duration,
                    processors=processors,
                    unit_price=facts.unit_price,
                    fixed_price=facts.fixed_price,
                )
            )
        return tuple(offers)

    def status(self, seconds: float | None = None) -> SiteStatus:
        """What it said when it was asked last; see the Site protocol."""
        info = self._info
        if info is None:
            raise SiteError(f"{self._said.name}: has not been asked", transient=True)
        return SiteStatus(
            site=self._said.name,
            at=self._asked,
            free_processors=self._free(),
            running=len(self._held),
            traversal_time=info.waiting,
            state="Draining" if info.draining else "Production",
        )

    def view(self) -> SiteView:
        """What a pool sees of it; see the Site protocol."""
        facts = self.facts
        known = self._info is not None
        return SiteView(
            name=facts.name,
            rules=facts.acquiring,
            processors=facts.processors,
            speed=facts.speed,
            unit_price=facts.unit_price,
            fixed_price=facts.fixed_price,
            batch=True,
            free=self._free() if known else None,
            holes=tuple(self._holes()),
        )

    async def refresh(self) -> SiteInfo:
        """
        Asks it.

        Raises
        ------
        SiteError
            When it does not answer, or counts in another currency.
        """
        info = await self._asking(self._parting.site())
        if info.currency != self._said.currency:
            raise SiteError(
                f"{self._said.name}: counts in {info.currency}, the sites file says "
                f"{self._said.currency}"
            )
        self._info, self._asked = info, asyncio.get_running_loop().time()
        self._is_silent = False
        return info

    def _sells(self, info: SiteInfo) -> bool:
        """Whether its processors are to be bought."""
        return "posted" in info.protocols and (
            info.must_buy or bool(info.unit_price) or bool(info.fixed_price)
        )

    def _holes(self) -> list[Hole]:
        info = self._info
        if info is None or info.draining or self._is_silent:
            return []
        if not self._sells(info):
            free = self._free()
            return [Hole(start=0.0, seconds=math.inf, processors=free)] if free else []
        age = asyncio.get_running_loop().time() - self._asked
        return [
            Hole(
                start=max(0.0, slot.start - age),
                seconds=math.inf if slot.seconds is None else slot.seconds,
                processors=slot.processors,
            )
            for slot in info.slots
            if slot.seconds is None or slot.start + slot.seconds > age
        ]

    def _free(self) -> int:
        """Processors that could be had at once."""
        info = self._info
        if info is None or info.draining or self._is_silent:
            return 0
        free = info.free
        if self._sells(info):  # what is sold comes before what is shared
            free = sum(slot.processors for slot in info.slots if slot.start <= 0)
        held = sum(held.pilot.processors for held in self._held.values())
        return max(0, min(free, self._said.processors - held))

    # Open and closed.

    def opened(self) -> AbstractAsyncContextManager[None]:
        """
        In touch with it while the context lasts; what an earlier life of the run left there ends.
        """
        return self._opened()

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[None]:
        async with self.in_touch():
            with contextlib.suppress(SiteError):  # told when a pilot is asked for
                await self.refresh()
                await self._clear_up(self._parting)
            fresh = asyncio.create_task(self._keep_fresh())
            try:
                yield
            finally:
                fresh.cancel()
                await asyncio.gather(fresh, return_exceptions=True)
                await self._close()

    @asynccontextmanager
    async def in_touch(self) -> AsyncIterator[None]:
        """It can be asked while the context lasts."""
        patience = self._remote.patience
        timeout = min(TIMEOUT, max(1.0, patience))
        self._client = AsyncServiceClient(self._access, timeout=timeout, patience=patience)
        self._brisk = AsyncServiceClient(
            self._access, timeout=min(timeout, PARTING), patience=min(patience, PARTING)
        )
        try:
            yield
        finally:
            await self._client.close()
            await self._brisk.close()
            self._client = self._brisk = None

    @property
    def _open(self) -> AsyncServiceClient:
        assert self._client is not None
        return self._client

    @property
    def _parting(self) -> AsyncServiceClient:
        assert self._brisk is not None
        return self._brisk

    async def _keep_fresh(self) -> None:
        """Asks it now and then, and soon when something of ours has changed there."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(FRESH, self._said.acquiring.probe_every)):
                    await self._wanted.wait()
            self._wanted.clear()
            try:
                await self.refresh()
                await self._clear_up(self._parting)
            except SiteError:
                self._is_silent = True  # nothing is asked of it until it answers

    async def _close(self) -> None:
        for held in list(self._held.values()):
            await held.release()
        self._reserved.clear()
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._cleared = False
        try:
            await self._clear_up(self._parting)
        except SiteError as error:
            if self._record.open:
                self._say(f"what was bought there may still run: {self._plain(error)}")

    async def _clear_up(self, client: AsyncServiceClient) -> None:
        """Ends what is there of this run, and nobody uses: an earlier life has left it."""
        if self._cleared:
            return
        in_use = {*self._held, *self._reserved}
        for bought in self._record.open:
            if bought.pilot not in in_use:
                await self._end_deal(bought, client)
        for instance in await self._asking(client.instances()):
            pilot = instance.label.removeprefix(self._label)
            if instance.label.startswith(self._label) and pilot not in in_use:
                await self._destroy(instance.id, client)
        self._cleared = True

    # Reserved.

    async def reserve(self, pilots: Sequence[Pilot]) -> float:
        """Buys what is not bought yet, and gives back what is not wanted; see the protocol."""
        wanted = {pilot.name for pilot in pilots}
        for name in [name for name in self._reserved if name not in wanted]:
            await self._end_deal(self._reserved.pop(name), self._parting)
        fresh = [p for p in pilots if p.works and p.name not in self._reserved]
        if not fresh:
            return 0.0
        info = await self.refresh()
        if not self._sells(info):
            return 0.0
        now = time.time()
        try:
            for pilot in fresh:
                start = now + (pilot.start or 0.0)
                seconds = self._seconds_of(pilot)
                latest = start + seconds + _LATE
                self._reserved[pilot.name] = await self._buy(
                    pilot, info, seconds, earliest=start, latest=latest
                )
        except BaseException:
            self._reserved.clear()
            ending = [self._go_on(self._give_up(pilot)) for pilot in pilots]
            await asyncio.shield(asyncio.gather(*ending))
            raise
        return 0.0

    # Acquired.

    async def acquire(
        self,
        pilot: Pilot,
        endpoint: Endpoint,
        *,
        rigid: bool,
        begin: Begin,
        on_event: Callable[[str], None],
    ) -> HeldInstance:
        """Buys processors, or takes shared ones; see :class:`bursar.sites.protocol.Site`."""
        self._on_event = on_event
        held: HeldInstance | None = None
        try:
            bought = self._reserved.pop(pilot.name, None)
            info = await self.refresh()
            if info.draining:
                raise SiteError(f"{self._said.name}: takes nothing more", transient=True)
            if bought is None and self._sells(info):
                bought = await self._buy(pilot, info, self._seconds_of(pilot))
            handle = await self._instance(pilot, bought)
            seconds = None if bought is None else await self._ready(bought)
            held = HeldInstance(
                pilot, await self._session(handle, info), self._looks_at(handle, bought), self._back
            )
            begin(None, _shorter(seconds, pilot))
            self._held[pilot.name] = held
            await held.open(endpoint)
        except BaseException:
            self._held.pop(pilot.name, None)
            if held is not None:
                await held.leave()
            await asyncio.shield(self._go_on(self._give_up(pilot)))
            raise
        self._wanted.set()
        return held

    def _seconds_of(self, pilot: Pilot) -> float:
        # A pool thinks of the start itself, a plan of tasks does not.
        seconds = pilot.duration + (STARTING if pilot.tasks else 0.0)
        return min(seconds, self._said.acquiring.longest)

    async def _buy(
        self,
        pilot: Pilot,
        info: SiteInfo,
        seconds: float,
        *,
        earliest: float = 0.0,
        latest: float | None = None,
    ) -> Bought:
        if self._buyer is None:
            customer = (await self._asking(self._open.account())).user
            self._buyer = Buyer(
                self._open,
                owner=info.name,
                customer=customer,
                currency=info.currency,
                record=self._record,
            )
        if pilot.unit_price is None:
            raise SiteError(f"{self._said.name}: had not said its price", transient=True)
        most = self._said.unit_price
        if most is not None and pilot.unit_price > most:
            pilot = replace(pilot, unit_price=most)
        try:
            return await self._asking(
                self._buyer.buy(pilot, seconds, earliest=earliest, latest=latest)
            )
        except TooDear as error:
            until = time.time() + self._said.acquiring.probe_every
            self._dearer = error.terms.unit_price, error.terms.fixed_price, until
            raise SiteError(f"{self._said.name}: {error}", transient=True) from None
        except SiteError as error:
            told = f"{self._said.name}: {self._plain(error)}"
            raise SiteError(told, transient=error.transient) from None

    async def _instance(self, pilot: Pilot, bought: Bought | None) -> str:
        made: InstanceInfo = await self._asking(
            self._open.create_instance(
                label=self._label + pilot.name,
                agreement="" if bought is None else bought.agreement,
                keep=KEEP + self._seconds_of(pilot),
            )
        )
        return made.id

    async def _ready(self, bought: Bought) -> float:
        """
        Waits for its processors; seconds for which they are there.

        Of two clocks, theirs and ours, only differences are used.
        """
        clock = asyncio.get_running_loop().time
        pause, asked = _READY_LOOK, clock()
        while True:
            info = await self._asking(self._open.agreement(bought.agreement))
            if info.state not in ("signed", "running"):
                raise SiteError(f"{self._said.name}: the agreement is {info.state}")
            if info.begun is not None and info.ready >= info.processors:
                # Until the look before they were not there.
                return info.start + info.seconds - info.begun - (clock() - asked)
            asked = clock()
            await asyncio.sleep(pause)
            pause = min(2 * pause, _READY_SLOWEST)

    async def _session(self, handle: str, info: SiteInfo) -> AsyncSession:
        level = self._remote.seal
        if level is None:
            return self._open.attach(handle)
        if not info.seal:
            raise SiteError(f"{self._said.name}: its workers open no sealed tasks")
        from bursar.sealing.sealer import read_sealer  # what it needs takes time to load

        sealer = await asyncio.to_thread(
            read_sealer,
            info.seal.encode(),
            certificate=Path(self._remote.certificate),
            key=Path(self._remote.key) if self._remote.key else None,
            authorities=Path(self._remote.ca),
            level=level,
        )
        return self._open.attach(handle, seal=sealer)

    def _looks_at(self, handle: str, bought: Bought | None) -> Look:
        async def look() -> tuple[Loss, str] | None:
            if bought is None:
                await self._open.instance(handle)
                return None
            info = await self._open.agreement(bought.agreement)
            if info.state == "running":
                return None
            is_over = info.ended is None or info.ended >= info.start + info.seconds - _LATE
            return "ended" if is_over else "lost", f"the agreement is {info.state}"

        return look

    # Given back.

    async def _back(self, held: HeldInstance) -> None:
        """A pilot's processors go back; what they cost is compared with what we held."""
        if self._held.get(held.pilot.name) is not held:
            return
        bought = self._record.of(held.pilot.name)
        # A cancelled caller must not leave it half done.
        await asyncio.shield(self._go_on(self._end_held(held, bought)))

    async def _end_held(self, held: HeldInstance, bought: Bought | None) -> None:
        try:
            if bought is not None:
                info = await self._end_deal(bought, self._parting)
                if info is not None:
                    self._settle(held, bought, info)
            await self._destroy(held.session.handle, self._parting)
        except SiteError as error:
            self._cleared = False  # it is tried again once the service answers
            self._say(f"{held.pilot.name} is to be ended later: {self._plain(error)}")
        finally:
            del self._held[held.pilot.name]
            self._wanted.set()

    async def _give_up(self, pilot: Pilot) -> None:
        """A pilot that has not begun leaves nothing behind."""
        try:
            bought = self._record.of(pilot.name)
            if bought is not None:
                await self._end_deal(bought, self._parting)
            for instance in await self._asking(self._parting.instances()):
                if instance.label == self._label + pilot.name:
                    await self._destroy(instance.id, self._parting)
        except SiteError:
            self._cleared = False
        self._wanted.set()

    async def _end_deal(self, bought: Bought, client: AsyncServiceClient) -> AgreementInfo | None:
        info = await self._asking(end_deal(client, bought))
        self._record.write(Bought(bought.pilot, bought.terms, bought.agreement, over=True))
        return info

    async def _destroy(self, handle: str, client: AsyncServiceClient) -> None:
        try:
            await self._asking(client.destroy(handle))
        except SiteError as error:
            if not isinstance(error.__cause__, RemoteProblem) or error.__cause__.status != 404:
                raise

    def _settle(self, held: HeldInstance, bought: Bought, info: AgreementInfo) -> None:
        """
        What it charges is what is paid, and is said where by our count it is too much.

        From the first of its processors on that was ready they count; we see it a look later.
        """
        terms, pilot = bought.terms, held.pilot
        seconds = time.time() - held.since + _LATE
        most = amount_of(terms, terms.processors * seconds)
        if info.charged > most:
            self._say(
                f"charged {from_micros(info.charged):.6g} {terms.currency} for {pilot.name}, "
                f"which by our count came to no more than {from_micros(most):.6g}"
            )
        elif pilot.unit_price and pilot.own:
            use = from_micros(info.charged) - (pilot.fixed_price or 0.0)
            held.seconds = max(0.0, use / (pilot.unit_price * pilot.own))
        begun = info.ended if info.begun is None else info.begun
        row = PilotUsage(
            pilot=pilot.name,
            job=info.id,
            processors=info.processors,
            seconds=max(0.0, (info.ended or 0.0) - (begun or 0.0)),
            how=info.state,
        )
        with contextlib.suppress(OSError), self._usage.open("ab") as file:
            file.write(msgspec.json.encode(row) + b"\n")

    # Inside.

    async def _asking(self, work: Coroutine[Any, Any, T]) -> T:
        """What it answers; that it refuses is a failure of the site's."""
        try:
            return await work
        except RemoteProblem as problem:
            raise SiteError(str(problem), transient=problem.transient) from problem

    def _plain(self, error: Exception) -> str:
        """What went wrong, without the site's name before it."""
        return str(error).removeprefix(f"{self._said.name}: ")

    def _say(self, message: str) -> None:
        self._on_event(f"{self._said.name}: {message}")

    def _go_on(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def access_of(name: str, remote: Remote) -> Access:
    """
    How a service is reached.

    Raises
    ------
    InputError
        When the token cannot be read, or something of it is wrong.
    """

    def file(path: str) -> Path | None:
        return Path(path) if path else None

    token = file(remote.token_file)
    try:
        return Access(
            url=remote.url,
            name=name,
            token="" if token is None else read_token(token),
            ca=file(remote.ca),
            fingerprint=remote.fingerprint,
            certificate=file(remote.certificate),
            key=file(remote.key),
        )
    except InputError as error:
        raise error.within(f"site.{name}") from None


def _shorter(seconds: float | None, pilot: Pilot) -> float | None:
    """Seconds that a pilot has, where these are fewer than it asked for."""
    if seconds is None or seconds >= pilot.duration:
        return None
    if seconds <= 0:
        raise BursarError("the agreement was over before its processors were there")
    return seconds
