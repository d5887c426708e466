"""A real service as a site, for tests."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.service.service_process import Served

from bursar.dispatch.wire import Hello
from bursar.engine.worker_link import WorkerLink
from bursar.model.allocation import Allocation
from bursar.model.provisioning import AcquisitionPolicy
from bursar.model.site import RemoteEndpoint, SiteFacts
from bursar.model.task import Outcome
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
    """An engine without tasks: workers of this process may join, and are never given any."""

    async def __aenter__(self) -> Endpoint:
        return Endpoint(address=("127.0.0.1", 0), token="secret", run="run-1", entrance=self)

    async def __aexit__(self, *_: object) -> None:
        pass

    def connect(self, hello: Hello, link: WorkerLink) -> "Dispatcher":
        return self

    def take_followers(self) -> None:
        pass

    def report(self, outcomes: Sequence[Outcome]) -> None:
        pass

    def hand_back(self, jobs: Sequence[tuple[int, int]]) -> None:
        pass

    def lose(self) -> None:
        pass


async def acquired(
    site: RemoteSite, wanted: Allocation, endpoint: Endpoint, said: list[str]
) -> Any:
    """Processors of it; what it says goes to the list."""
    begun: Sequence[Any] = []

    def begin(processors: int | None = None, seconds: float | None = None) -> None:
        assert not begun

    return await site.acquire(wanted, endpoint, rigid=False, begin=begin, on_event=said.append)
