"""The client by which a run reaches a service, and the last known status of that service."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from bursar.model.errors import InputError, SiteError
from bursar.model.matching import SiteStatus
from bursar.model.site import RemoteEndpoint, SiteFacts
from bursar.model.slot import Slot, limit_offers
from bursar.provisioning.pool_snapshot import PoolSite
from bursar.remote.access import Access, read_token
from bursar.remote.async_client import AsyncServiceClient
from bursar.remote.connection import TIMEOUT
from bursar.remote.http_transport import RemoteProblem
from bursar.remote.messages import SiteInfo

# The client by which a run reaches a service.

T = TypeVar("T")

PARTING = 5.0
"""Seconds for which a service that does not answer is asked to end what is ours there."""


class RemoteSiteClient:
    """
    Connection to a service, over which requests can be made while :meth:`open` lasts.

    Raises
    ------
    InputError
        When the token or a certificate cannot be read.
    """

    def __init__(self, name: str, remote: RemoteEndpoint) -> None:
        self.name = name
        self._access = access_of(name, remote)
        self._patience = remote.patience
        self._client: AsyncServiceClient | None = None
        self._quick_client: AsyncServiceClient | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Allow requests while the context lasts."""
        patience = self._patience
        timeout = min(TIMEOUT, max(1.0, patience))
        self._client = AsyncServiceClient(self._access, timeout=timeout, patience=patience)
        # Giving back must not wait a service's full patience: what fails here is repeated by
        # clear_up.
        self._quick_client = AsyncServiceClient(
            self._access, timeout=min(timeout, PARTING), patience=min(patience, PARTING)
        )
        try:
            yield
        finally:
            await self._client.close()
            await self._quick_client.close()
            self._client = self._quick_client = None

    @property
    def client(self) -> AsyncServiceClient:
        """Client with the full patience."""
        assert self._client is not None
        return self._client

    @property
    def quick_client(self) -> AsyncServiceClient:
        """Client with little patience, for requests that can be repeated later."""
        assert self._quick_client is not None
        return self._quick_client

    async def ask(self, work: Coroutine[Any, Any, T]) -> T:
        """
        Await a request; turn a failure into a SiteError.

        Raises
        ------
        SiteError
            When the service fails or refuses; a refusal counts as the site's failure.
        """
        try:
            return await work
        except RemoteProblem as problem:
            raise SiteError(str(problem), transient=problem.transient) from problem

    def plain(self, error: Exception) -> str:
        """Return an error's message without the leading name of the site."""
        return str(error).removeprefix(f"{self.name}: ")


def access_of(name: str, remote: RemoteEndpoint) -> Access:
    """
    Return the address and credentials by which a service is reached.

    Raises
    ------
    InputError
        When the token cannot be read, or a credential is wrong.
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


# The last known status of a service: its prices and its free processors.


class RemoteSiteStatus:
    """
    Reports the prices and processors of a service by the service's last answer.

    Parameters
    ----------
    published
        Facts of the site from the sites file.
    """

    def __init__(self, published: SiteFacts) -> None:
        self._published = published
        self._info: SiteInfo | None = None
        self._asked = -math.inf  # on the loop's clock
        self._is_silent = False
        self._dearer: tuple[float, float, float] | None = None  # prices, and until when

    def take(self, info: SiteInfo) -> None:
        """
        Take in the service's answer.

        Raises
        ------
        SiteError
            When the service counts in another currency.
        """
        if info.currency != self._published.currency:
            raise SiteError(
                f"{self._published.name}: counts in {info.currency}, the sites file says "
                f"{self._published.currency}"
            )
        self._info, self._asked = info, asyncio.get_running_loop().time()
        self._is_silent = False

    def take_silence(self) -> None:
        """Record that the service did not answer; request no processors until the next answer."""
        self._is_silent = True

    def take_price(self, unit_price: float, fixed_price: float) -> None:
        """Record a quote above the posted price, valid for ``probe_every`` seconds."""
        self._dearer = unit_price, fixed_price, time.time() + self._published.acquiring.probe_every

    def facts(self) -> SiteFacts:
        """
        Facts of the site, with the prices that the service last posted.

        A quote above the posted price replaces it while the quote counts. At a service that sells
        no processors, the unit price is that of tasks on shared ones. The speeds of file and
        service are multiplied; memory and attributes of the sites file win. Until the service has
        answered once, these are the facts of the sites file.
        """
        info = self._info
        if info is None:
            return self._published
        unit, fixed = info.unit_price, info.fixed_price
        if self._dearer is not None and time.time() < self._dearer[2]:
            unit, fixed = self._dearer[:2]
        if not sells(info):
            unit, fixed = info.shared_price, 0.0
        elif unit is not None:
            unit = self._published.buying.planned(unit)
        return replace(
            self._published,
            unit_price=unit,
            fixed_price=fixed,
            speed=self._published.speed * info.speed,
            memory=info.memory if self._published.memory is None else self._published.memory,
            attributes={**info.attributes, **self._published.attributes},
        )

    def offers(self, held: int) -> tuple[Slot, ...]:
        """Slots that can be bought beside the processors held; starts are seconds from now."""
        facts = self.facts()
        offers = (
            replace(
                slot,
                site=facts.name,
                duration=min(slot.duration, facts.acquiring.longest),
                unit_price=facts.unit_price,
                fixed_price=facts.fixed_price,
            )
            for slot in self._backfill_windows(held)
        )
        return tuple(limit_offers(offers, facts.processors))

    def status(self, pilots: int, processors: int) -> SiteStatus:
        """
        Return the status of the site; see the Site protocol.

        Parameters
        ----------
        pilots, processors
            Numbers of pilots and of processors that are held there.

        Raises
        ------
        SiteError
            When the service has not answered yet.
        """
        info = self._info
        if info is None:
            raise SiteError(f"{self._published.name}: has not been asked", transient=True)
        return SiteStatus(
            site=self._published.name,
            at=self._asked,
            free_processors=self._free(processors),
            running=pilots,
            traversal_time=info.waiting,
            state="Draining" if info.draining else "Production",
        )

    def view(self, held: int) -> PoolSite:
        """Return the site as a pool sees it that holds some processors; see the Site protocol."""
        facts = self.facts()
        return PoolSite(
            name=facts.name,
            rules=facts.acquiring,
            processors=facts.processors,
            speed=facts.speed,
            unit_price=facts.unit_price,
            fixed_price=facts.fixed_price,
            batch=True,
            free=self._free(held) if self._info is not None else None,
            backfill_windows=self._backfill_windows(held),
        )

    def _backfill_windows(self, held: int) -> tuple[Slot, ...]:
        """Return the slots of the service's last answer; starts are seconds from now."""
        info = self._info
        if info is None or info.draining or self._is_silent:
            return ()
        if not sells(info):
            free = self._free(held)
            return (Slot(start=0.0, duration=math.inf, processors=free),) if free else ()
        age = asyncio.get_running_loop().time() - self._asked
        return tuple(
            Slot(
                start=max(0.0, slot.start - age),
                duration=math.inf if slot.seconds is None else slot.seconds,
                processors=slot.processors,
            )
            for slot in info.slots
            # The service is another program: what is no slot is passed over.
            if slot.processors
            and (slot.seconds is None or slot.seconds > max(0.0, age - slot.start))
        )

    def _free(self, held: int) -> int:
        """Return the number of further processors that could be had at once."""
        info = self._info
        if info is None or info.draining or self._is_silent:
            return 0
        free = info.free
        if sells(info):  # what is sold comes before what is shared
            free = sum(slot.processors for slot in info.slots if slot.start <= 0)
        return max(0, min(free, self._published.processors - held))


_SELLING = frozenset(("posted", "bargaining", "tender"))


def sells(info: SiteInfo) -> bool:
    """Whether a service's processors are to be bought."""
    return not _SELLING.isdisjoint(info.protocols) and (
        info.must_buy or bool(info.unit_price) or bool(info.fixed_price)
    )
