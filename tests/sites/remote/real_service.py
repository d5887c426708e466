"""A real service as a site, for tests."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.service.service_process import Served

from bursar.model.allocation import Allocation
from bursar.model.provisioning import AcquisitionPolicy
from bursar.model.site import RemoteEndpoint, SiteFacts
from bursar.sites.remote.remote_site import RemoteSite
from bursar.worker.launch import Endpoint

SELLS = """
[site]
processors = 2
unit_price = "3600 SU/core-hour"
[market]
must_buy = true
"""
"""One SU a second."""


def facts_of(service: Served, *, patience: float = 20.0, **more: Any) -> SiteFacts:
    """What a sites file would say of it."""
    given: dict[str, Any] = {
        "name": "there",
        "processors": 2,
        "acquiring": AcquisitionPolicy(probe_every=1.0, idle=1.0),
        **more,
    }
    return SiteFacts(
        kind="remote",
        remote=RemoteEndpoint(url=f"http://127.0.0.1:{service.port}", patience=patience),
        **{"unit_price": None, "fixed_price": None, **given},
    )


def pilot(name: str = "lease-1", price: float | None = 1.0, **more: Any) -> Allocation:
    """One processor for a minute, as a pool asks for it."""
    given: dict[str, Any] = {"processors": 1, "start": None, "duration": 60.0, **more}
    return Allocation(name=name, site="there", unit_price=price, fixed_price=0.0, **given)


@asynccontextmanager
async def opened(facts: SiteFacts, folder: Path, run: str = "run-1") -> AsyncIterator[RemoteSite]:
    """The site, open."""
    site = RemoteSite(facts, run=run, folder=folder)
    async with site.opened():
        yield site


class Dispatcher:
    """One that only listens, and what its workers said."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []

    async def __aenter__(self) -> Endpoint:
        self._server = await asyncio.start_server(self._meet, "127.0.0.1", 0)
        address: tuple[str, int] = self._server.sockets[0].getsockname()
        return Endpoint(address=address, token="secret", run="run-1")

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            self.heard.append(data)
        writer.close()


async def acquired(
    site: RemoteSite, wanted: Allocation, endpoint: Endpoint, said: list[str]
) -> Any:
    """Processors of it; what it says goes to the list."""
    begun: Sequence[Any] = []

    def begin(processors: int | None = None, seconds: float | None = None) -> None:
        assert not begun

    return await site.acquire(wanted, endpoint, rigid=False, begin=begin, on_event=said.append)
