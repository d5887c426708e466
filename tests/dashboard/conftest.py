"""A dashboard that serves runs of this machine in a thread, and a client that is signed in."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import bursar
from bursar.dashboard.access import PageAccess
from bursar.dashboard.server import serve_dashboard

SWEEP = """
[campaign]
name = "sweep"
command = "echo out {i}; echo err {i} >&2; test {i} -ne 7"
[parameters]
i = { from = 1, to = 20, step = 1 }
[task]
runtime = "0.1"
[goal]
deadline = "10 min"
budget = "40 SU"
"""


class Served:
    """A dashboard that runs, with what is needed to ask it."""

    def __init__(self, address: str, access: PageAccess, runs: Path) -> None:
        self.address = address
        self.access = access
        self.runs = runs
        self.client = httpx.Client(
            base_url=address, headers={"Authorization": f"Bearer {access.token}"}, timeout=60
        )


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of 20 tasks, of which one fails."""
    file = tmp_path_factory.mktemp("campaign") / "sweep.toml"
    file.write_text(SWEEP)
    return file


@pytest.fixture(scope="module")
def runs(campaign: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one run that has ended."""
    folder = tmp_path_factory.mktemp("runs")
    bursar.run(campaign, runs=folder, name="first", history="none")
    return folder


@pytest.fixture(scope="module")
def served(runs: Path) -> Iterator[Served]:
    """A dashboard over that folder."""
    yield from serving(runs)


def serving(runs: Path) -> Iterator[Served]:
    """Serve a folder's runs until the generator is closed."""
    access, ready = PageAccess(), threading.Event()
    address: list[str] = []
    loop = asyncio.new_event_loop()

    def tell(page: str) -> None:
        address.append(page)
        ready.set()

    async def serve() -> None:
        await serve_dashboard(runs, access, "127.0.0.1", 0, None, (), tell)

    work = loop.create_task(serve())

    def go() -> None:
        try:
            loop.run_until_complete(work)
        except asyncio.CancelledError:
            pass
        finally:
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    thread = threading.Thread(target=go)
    thread.start()
    assert ready.wait(30)
    one = Served(address[0], access, runs)
    try:
        yield one
    finally:
        one.client.close()
        loop.call_soon_threadsafe(work.cancel)
        thread.join(30)
        assert not thread.is_alive()
