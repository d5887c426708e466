"""What a simulated site says of itself, on virtual time."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.simulation.test_loaded import trace

from bursar.model.allocation import Allocation
from bursar.model.campaign import Workflow
from bursar.model.site import BackgroundLoad, SiteFacts
from bursar.model.slot import Slot
from bursar.model.task import Task
from bursar.simulation.execution_model import ExecutionModel, ExecutionUncertainty
from bursar.simulation.loaded_cluster import LoadedCluster
from bursar.simulation.simulated_grid import SimulatedGrid
from bursar.simulation.simulated_site import SimulatedSite
from bursar.simulation.virtual_loop import VirtualLoop
from bursar.sites.protocol import Site
from bursar.worker.launch import Endpoint

WORK = Workflow((Task(id="a", runtime=1.0),))


def opened(facts: SiteFacts) -> SimulatedSite:
    return SimulatedGrid([facts]).open(WORK, ExecutionUncertainty())[facts.name]


def pilot(processors: int, start: float | None, duration: float = 60.0) -> Allocation:
    return Allocation(
        name="lease-1",
        site="s",
        processors=processors,
        start=start,
        duration=duration,
        unit_price=None,
        fixed_price=None,
    )


async def held(site: SimulatedSite, asked: Allocation) -> Any:
    """A pilot there, whose worker reports to somebody who does not answer."""
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "broker", 0)
    endpoint = Endpoint(address=server.sockets[0].getsockname()[:2], token="t", run="r")
    return await site.acquire(
        asked, endpoint, rigid=True, begin=lambda: None, on_event=lambda text: None
    )


def told(site: Site) -> tuple[int, int, int, float | None]:
    said = site.status()
    assert said.site == site.facts.name
    assert said.at == asyncio.get_running_loop().time()
    return said.free_processors, said.running, said.waiting, said.traversal_time


def run(main: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())  # type: ignore[arg-type]


def test_a_cluster_of_a_log_says_what_its_machine_does() -> None:
    """As time goes on, in step with a cluster of the same log beside it."""

    async def main() -> None:
        facts = SiteFacts(name="s", processors=32, background=BackgroundLoad(policy="easy"))
        clusters = [LoadedCluster(trace(3), 32, at=3000.0, policy="easy") for _ in "ab"]
        site = SimulatedSite(facts, ExecutionModel(WORK, [facts]), clusters[0])
        waited = 0
        for _ in range(20):
            machine = clusters[1].machine
            wait = clusters[1].traversal_time()
            waited += wait > 0
            assert told(site) == (machine.free, len(machine.running), len(machine.waiting), wait)
            await asyncio.sleep(50)
            clusters[1].advance(3000.0 + asyncio.get_running_loop().time())
        assert 0 < waited < 20

    run(main)


def test_what_came_through_the_queue_is_a_job_like_others() -> None:
    async def main() -> None:
        site = opened(SiteFacts(name="s", processors=4))
        assert told(site) == (4, 0, 0, 0.0)
        first = await held(site, pilot(4, None))
        assert told(site) == (0, 1, 0, 60.0)
        second = asyncio.create_task(held(site, pilot(2, None)))
        await asyncio.sleep(10)
        assert told(site) == (0, 1, 1, 50.0)  # beside the one that waits there is room
        await first.release()
        await second
        assert told(site) == (2, 1, 0, 0.0)

    run(main)


@pytest.mark.parametrize("duration", [60.0, math.inf])
def test_what_was_bought_is_not_free(duration: float) -> None:
    """Reserved or leased; what is reserved is counted once, held or not."""

    async def main() -> None:
        site = opened(SiteFacts(name="s", processors=4))
        if duration < math.inf:
            await site.reserve([pilot(3, 0.0, duration)])
            assert told(site)[0] == 1
        first = await held(site, pilot(3, 0.0, duration))
        assert told(site) == (1, 1, 0, 0.0)
        second = await held(site, pilot(1, 0.0, math.inf))
        assert told(site)[0] == 0
        await second.release()
        await second.release()
        await first.release()
        await site.reserve([])
        assert told(site) == (4, 0, 0, 0.0)

    run(main)


def test_a_site_of_slots_offers_what_they_do_now() -> None:
    """Four processors from 10 to 30; it has no queue, so that nobody knows how long one waits."""

    async def main() -> None:
        slot = Slot(site="s", start=10.0, duration=20.0, processors=4, unit_price=1.0)
        site = opened(SiteFacts(name="s", kind="advertised", processors=4, slots=(slot,)))
        assert told(site) == (0, 0, 0, None)
        await asyncio.sleep(10)
        assert told(site) == (4, 0, 0, 0.0)
        one = await held(site, pilot(4, 0.0, 20.0))
        assert told(site) == (0, 1, 0, None)
        await one.release()
        await asyncio.sleep(20)
        assert told(site) == (0, 0, 0, None)

    run(main)
