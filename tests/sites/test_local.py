"""This machine as a site: what it says of itself."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bursar.model.allocation import Allocation
from bursar.model.errors import SiteError
from bursar.model.site import SiteFacts
from bursar.sites.local import LocalSite, available_memory
from bursar.sites.protocol import Site
from bursar.worker.launch import Endpoint, LocalWorkers

FACTS = SiteFacts(name="here", processors=4)
ENDPOINT = Endpoint(address=("127.0.0.1", 1), token="t", run="r")


def pilot(name: str, processors: int) -> Allocation:
    return Allocation(
        name=name,
        site="here",
        processors=processors,
        start=0.0,
        duration=60.0,
        unit_price=None,
        fixed_price=None,
    )


class NoWorkers(LocalWorkers):
    """Starts nobody, and fails where it is asked for an odd number."""

    async def start(self, endpoint: Endpoint) -> None:
        if sum(self._shares) % 2:
            raise SiteError("here: cannot start a worker")


async def held(site: LocalSite, name: str, processors: int) -> Any:
    return await site.acquire(
        pilot(name, processors), ENDPOINT, rigid=True, begin=lambda: None, on_event=print
    )


def test_processors_are_free_that_no_pilot_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that fails to start, or is released twice, leaves nothing behind."""
    monkeypatch.setattr("bursar.sites.local.LocalWorkers", NoWorkers)
    site: Site = (local := LocalSite(FACTS, clock=lambda: 7.0))

    def told() -> tuple[int, int, float | None]:
        said = site.status()
        assert (said.site, said.at, said.waiting) == ("here", 7.0, 0)
        return said.free_processors, said.running, said.traversal_time

    async def main() -> None:
        assert told() == (4, 0, 0.0)
        first = await held(local, "a", 2)
        with pytest.raises(SiteError):
            await held(local, "b", 1)
        assert told() == (2, 1, 0.0)
        second = await held(local, "c", 2)
        assert told() == (0, 2, None)  # it has no queue: nobody knows how long
        third = await held(local, "d", 2)
        assert told() == (0, 3, None)
        for one in (first, first, second, third):
            await one.release()
        assert told() == (4, 0, 0.0)

    asyncio.run(main())


def test_memory_is_what_the_system_says_and_at_most_the_sites(tmp_path: Path) -> None:
    said = LocalSite(FACTS).status().free_memory
    assert said is None or said > 0
    small = LocalSite(SiteFacts(name="here", memory=5)).status().free_memory
    assert small in (None, 5)
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:       100 kB\nMemAvailable:    24 kB\nHugePages_Total:   0\n")
    assert available_memory(file) == 24 * 1024


@pytest.mark.parametrize(
    "text", ["", "MemAvailable", "MemAvailable:", "MemAvailable: much kB", "MemAvailable: 5 MB"]
)
def test_what_the_system_does_not_say_is_unknown(tmp_path: Path, text: str) -> None:
    file = tmp_path / "meminfo"
    assert available_memory(file) is None
    file.write_text(text)
    assert available_memory(file) is None
