"""Forecasts of waits of a whole batch site, and of all sites of a campaign."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.sites.test_batch import Ground, Manager, pilot, run
from tests.testgrid.test_slurm import until

import bursar
from bursar.api.queues import wait_forecasts
from bursar.history.observation import TaskObservation
from bursar.history.store import History
from bursar.model.provisioning import BatchScheduler
from bursar.model.site import SiteFacts
from bursar.provisioning.wait_prediction import WaitPredictor
from bursar.runs.pool_controller import write_waits
from bursar.sites.batch import BatchSite
from bursar_devtools.testgrid.slurm import SlurmCluster


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


@pytest.mark.ci
def test_a_full_cluster_makes_a_plan_wait(slurm: SlurmCluster, tmp_path: Path) -> None:
    """
    All 16 processors are held by a job that may take two minutes: a plan, and the pool that would
    run, end later by what is left of it, at most, and say so.
    """
    (tmp_path / "c.toml").write_text(
        '[campaign]\nname = "c"\n[parameters]\nx = { from = 1, to = 8, step = 1 }\n'
        '[task]\ncommand = "sim {x}"\n'
    )
    (tmp_path / "sites.toml").write_text(
        '[site.cluster]\nkind = "slurm"\nprocessors = 16\nunit_price = "1 SU/core-hour"\n'
        f'environment = {{ SLURM_CONF = "{slurm.environment["SLURM_CONF"]}" }}\n'
    )
    history = History(tmp_path / "history.sqlite")
    history.add(
        TaskObservation(
            execution=f"run-{run}",
            task=f"c-{x}",
            kind="c",
            template="sim {x}",
            parameters={"x": x},
            site="cluster",
            start=1e9 + 1e4 * run + x,
            seconds=10.0 + 0.1 * x + run,
        )
        for run in range(3)
        for x in range(1, 9)
    )

    def quote() -> dict[str, Any]:
        sites = tmp_path / "sites.toml"
        runs = tmp_path / "runs"
        found = bursar.plan(tmp_path / "c.toml", sites, history=history.path, runs=runs)
        return found.to_dict()

    free = quote()
    job = slurm.run(
        "sbatch", "--parsable", "-n16", "-t2", "-o/dev/null", "--wrap=sleep 600"
    ).strip()
    try:
        until(lambda: job in slurm.run("squeue", "--noheader", "--format=%i", "--states=R"))
        full = quote()
    finally:
        slurm.run("scancel", job)
        until(lambda: job not in slurm.run("squeue", "--noheader", "--format=%i"))
    assert free["forecast"]["waiting_s"] == {"p10": 0.0, "p50": 0.0, "p90": 0.0}
    assert free["forecast_basis"]["waits"]["cluster"]["known_from"] == "queue"
    for name in ("forecast", "pool_forecast"):
        waiting = full[name]["waiting_s"]
        assert 0.0 < waiting["p50"] <= waiting["p90"] <= 240.0
        later = full[name]["end_s"]["p90"] - free[name]["end_s"]["p90"]
        assert later > 0.3 * waiting["p90"]
