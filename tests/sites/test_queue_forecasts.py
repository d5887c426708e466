"""Forecasts of waits of a whole batch site, and of all sites of a campaign."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.sites.test_batch import Ground, Manager, pilot, run

from bursar.api.queues import wait_forecasts
from bursar.model.provisioning import BatchScheduler
from bursar.model.site import SiteFacts
from bursar.provisioning.wait_prediction import WaitPredictor
from bursar.runs.pool_controller import write_waits
from bursar.sites.batch import BatchSite


def site_of(ground: Ground, history: Path | None) -> BatchSite:
    """The site of a ground, with a folder for what it learns."""
    return BatchSite(
        ground.site.facts,
        run="abcdef",
        folder=ground.folder,
        manager=ground.manager,
        clock=lambda: asyncio.get_running_loop().time(),
        history=history,
    )


def test_a_site_learns_from_run_to_run(tmp_path: Path) -> None:
    """
    All 8 processors are held by jobs that may take 600 s and take 100 s, 30 in turn; each is
    submitted when the one before has run for 50 s.

    After 6 s of such a job, one of 60 s would wait for 594 s as far as is asked. A later process
    knows better from its first look on, and one without the file does not.
    """
    ground = Ground(tmp_path, Manager(), probe_every=5.0)

    async def first() -> None:
        site = ground.site = site_of(ground, tmp_path)
        assert site.queue.wait_forecast(1, 60.0) is None
        async with site.opened():
            held = await ground.acquire(pilot("lease-0", processors=8))
            for number in range(1, 31):
                await asyncio.sleep(50.0)
                task = asyncio.create_task(ground.acquire(pilot(f"lease-{number}", processors=8)))
                await asyncio.sleep(50.0)
                await held.release()
                held = await task
            await held.release()

    async def second(history: Path | None) -> tuple[int, float]:
        ground = Ground(tmp_path, Manager(), probe_every=5.0)
        site = ground.site = site_of(ground, history)
        async with site.opened():
            held = await ground.acquire(pilot("lease-x", processors=8))
            await asyncio.sleep(6.0)
            forecast = site.queue.wait_forecast(1, 60.0)
            await held.release()
        assert forecast is not None
        assert forecast.basis == "queue"
        assert site.queue.wait_forecast(9, 60.0) is None
        return forecast.seen, forecast.wait_quantiles((0.5,))[0]

    run(first())
    kept = json.loads((tmp_path / "queue-c1.json").read_bytes())
    assert len(kept["ended"]) >= 28  # no look misses the last ones
    found: list[tuple[int, float]] = []

    async def later(history: Path | None) -> None:
        found.append(await second(history))

    run(later(tmp_path))
    run(later(None))
    (many, known), (none, unknown) = found
    assert known == pytest.approx(95.0, abs=15.0)
    assert (many >= 20, none) == (True, 0)
    assert unknown > 200.0


def past(site: str) -> WaitPredictor:
    """20 requests that waited for 0 to 190 s."""
    waits = WaitPredictor()
    for number in range(20):
        waits.asked(f"{number}", site, 4, 600.0, 1e4 * number)
        waits.began(f"{number}", 1e4 * number + 10.0 * number)
    return waits


def test_sites_without_a_queue_are_forecast_by_their_history(tmp_path: Path) -> None:
    """And a batch scheduler that does not answer, likewise; of others nothing is known."""
    write_waits(tmp_path, past("far"))
    batch: dict[str, Any] = {"kind": "batch", "processors": 8}
    sites = [
        SiteFacts(name="far", batch=BatchScheduler(manager="slurm"), **batch),
        SiteFacts(name="new", kind="local", processors=8),
    ]

    found = wait_forecasts(sites, 4, 600.0, tmp_path)

    forecast, same = found["far"], past("far").forecast("far", 4, 600.0)
    assert forecast is not None
    assert same is not None
    assert (forecast.basis, forecast.seen) == ("history", 20)
    assert forecast.wait_quantiles((0.1, 0.5)) == same.wait_quantiles((0.1, 0.5))
    assert found["new"] is None


def test_a_request_is_expected_by_the_queue_before_it(tmp_path: Path) -> None:
    """
    All 8 processors are held for 600 s, and two requests of 8 wait. The first should wait as long
    as one made before it was in the queue, though a new one would wait for it, too.
    """
    ground = Ground(tmp_path, Manager(), probe_every=5.0)

    async def two() -> tuple[float, float]:
        site = ground.site = site_of(ground, None)
        async with site.opened():
            held = await ground.acquire(pilot("lease-1", processors=8))
            await asyncio.sleep(10.0)
            asked = asyncio.create_task(ground.acquire(pilot("lease-2", processors=8)))
            await asyncio.sleep(20.0)
            expected = site.queue.expected_wait("lease-2")
            new = site.queue.wait_forecast(8, 600.0)
            assert expected is not None
            assert new is not None
            assert site.queue.expected_wait("lease-9") is None
            await held.release()
            await (await asked).release()
            assert site.queue.expected_wait("lease-2") is None
        return expected.wait_quantiles((0.9,))[0], new.wait_quantiles((0.9,))[0]

    found: list[tuple[float, float]] = []

    async def both() -> None:
        found.append(await two())

    run(both())
    expected, new = found[0]
    assert 0.0 < expected < new
