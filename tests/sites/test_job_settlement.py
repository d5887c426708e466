"""Leases of a batch site are settled by its scheduler's own begin and end of their jobs."""

import asyncio
import subprocess
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import TypeVar

import pytest
from tests.sites.test_batch import Ground, Manager, pilot

from bursar.market.lease import Lease
from bursar.model.errors import SiteError
from bursar.model.provisioning import ENDING, PATIENCE
from bursar.provisioning.lrm.resource_manager import JobRequest
from bursar.simulation.virtual_loop import VirtualLoop
from bursar.sites.job_settlement import _SOONEST, LATE, UNRECORDED, is_submitting
from bursar.sites.pilot_job_journal import PilotJobJournal
from bursar.sites.protocol import MeteredTime, MeteringSite

T = TypeVar("T")


def run(work: Coroutine[object, object, T]) -> T:
    """On virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def kill(*left: "asyncio.Task[object]") -> None:
    """
    Nothing of what this process does goes on.

    ``left`` would tidy up when they are cancelled, which a killed process does not.
    """
    for task in asyncio.all_tasks() - {asyncio.current_task(), *left}:
        task.cancel()


def lease(name: str = "lease-1", start: float = 0.0, *, asked: bool = False) -> Lease:
    """Of two processors."""
    return Lease(
        id=name,
        site="c1",
        processors=2,
        unit_price=1.0,
        fixed_price=0.0,
        start=start,
        asked=asked,
        unwatched=PATIENCE + ENDING,
    )


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_pilot_that_was_cancelled_is_metered_to_its_end_and_not_to_when_we_noticed(
    tmp_path: Path,
) -> None:
    """It is cancelled at second 7, noticed later and given back at second 30."""

    async def main() -> MeteredTime | None:
        ground = Ground(tmp_path)
        assert isinstance(ground.site, MeteringSite)
        async with ground.site.opened():
            held = await ground.acquire(pilot())
            await asyncio.sleep(7.0 - now())
            await ground.manager.cancel(ground.manager.there)
            await asyncio.sleep(30.0 - now())
            await held.release()
            return await ground.site.meter(lease(start=0.5), None)

    assert run(main()) == MeteredTime(began=0.0, seconds=7.0)


def test_a_pilot_that_is_given_back_is_metered_until_its_job_has_ended(tmp_path: Path) -> None:
    """The command that ends it takes three seconds on its way."""

    async def main() -> MeteredTime | None:
        ground = Ground(tmp_path)
        async with ground.site.opened():
            held = await ground.acquire(pilot())
            await asyncio.sleep(10.0 - now())
            ground.manager.takes = 3.0
            await held.release()
            return await ground.site.meter(lease(), None)

    found = run(main())
    assert found is not None
    assert found.seconds == pytest.approx(13.0, abs=0.1)


def test_a_killed_life_is_metered_by_what_became_of_its_jobs(tmp_path: Path) -> None:
    """One ended by itself at second 40, one is there still at second 100, one begins at 40."""

    async def main() -> list[MeteredTime | None]:
        killed = Ground(tmp_path, Manager(processors=4))
        opened = killed.site.opened()
        await opened.__aenter__()
        for name in ("lease-1", "lease-2"):
            await killed.acquire(pilot(name))
        waiting = asyncio.create_task(killed.acquire(pilot("lease-3")))
        await asyncio.sleep(40.0 - now())
        kill(waiting)
        killed.manager.inside.lose("1", "failed")
        # The one that waited begins in its place, and nobody is there.
        await asyncio.sleep(100.0 - now())
        resumed = Ground(tmp_path, killed.manager)
        async with resumed.site.opened():
            found = [
                await resumed.site.meter(lease(name, 0.0, asked=name == "lease-3"), 40.0)
                for name in ("lease-1", "lease-2", "lease-3", "lease-4")
            ]
        waiting.cancel()
        return found

    one, two, three, four = run(main())
    assert one is not None
    assert one.seconds == pytest.approx(40.0, abs=0.1)
    assert two is not None
    assert two.seconds == pytest.approx(100.0, abs=0.5)
    assert three is not None
    assert three.began == pytest.approx(40.0, abs=0.1)
    assert three.seconds == pytest.approx(60.0, abs=0.5)
    assert four == MeteredTime(seconds=None)


def test_a_request_whose_answer_nobody_wrote_down_is_found_by_its_name(tmp_path: Path) -> None:
    """Killed between the submission of an array and the record of its jobs; resumed later."""

    async def main() -> list[MeteredTime | None]:
        ground = Ground(tmp_path)
        name = ground.site._job_name("lease-1")
        PilotJobJournal(tmp_path / "c1.jobs").asks(name, ["lease-1", "lease-2"], now())
        await ground.manager.submit(
            JobRequest(
                name=name, processors=2, seconds=600.0, script="", folder=str(tmp_path), copies=2
            )
        )
        await asyncio.sleep(25.0)
        async with ground.site.opened():
            return [
                await ground.site.meter(lease(name, asked=True), 0.0)
                for name in ("lease-1", "lease-2")
            ]

    for found in run(main()):
        assert found is not None
        assert (found.began, found.is_recorded) == (0.0, True)
        assert found.seconds == pytest.approx(25.0, abs=0.5)


def test_a_request_that_became_no_job_is_waited_for_and_then_costs_nothing(tmp_path: Path) -> None:
    """The command that carried it may outlive who started it."""

    async def main() -> tuple[MeteredTime | None, float]:
        ground = Ground(tmp_path)
        PilotJobJournal(tmp_path / "c1.jobs").asks("bursar-abcdef-lease-1", ["lease-1"], 1.0)
        async with ground.site.opened():
            return await ground.site.meter(lease(asked=True), 0.0), now()

    found, at = run(main())
    assert found == MeteredTime(seconds=None)
    assert LATE < at < LATE + 5


@pytest.mark.parametrize("asked", [False, True])
def test_without_any_record_the_most_that_may_have_been_held_is_taken_and_said(
    tmp_path: Path, asked: bool
) -> None:
    """Killed at second 20, resumed after an hour: the scheduler has forgotten the job."""

    async def main() -> tuple[MeteredTime | None, str]:
        killed = Ground(tmp_path)
        opened = killed.site.opened()
        await opened.__aenter__()
        await killed.acquire(pilot())
        await asyncio.sleep(20.0 - now())
        kill()
        if asked:  # and nobody had seen it begin
            (tmp_path / "c1.jobs").write_bytes(
                b"\n".join(
                    line
                    for line in (tmp_path / "c1.jobs").read_bytes().splitlines()
                    if b"began" not in line
                )
            )
        await asyncio.sleep(3600.0)
        killed.manager.inside._jobs.clear()
        resumed = Ground(tmp_path, killed.manager)
        resumed.site._on_event = resumed.said.append
        async with resumed.site.opened():
            found = await resumed.site.meter(lease(start=1.0, asked=asked), 20.0)
        return found, "\n".join(resumed.said)

    found, said = run(main())
    unwatched = PATIENCE + ENDING
    if asked:
        assert found == MeteredTime(began=1.0, seconds=unwatched, is_recorded=False)
    else:
        assert found == MeteredTime(began=0.0, seconds=20.0 + unwatched, is_recorded=False)
    assert "no record of lease-1 is left" in said


def test_a_record_that_is_late_is_waited_for(tmp_path: Path) -> None:
    """The job is in no list and no record for a few seconds: accounting lags behind the queue."""

    async def main() -> MeteredTime | None:
        ground = Ground(tmp_path)
        async with ground.site.opened():
            held = await ground.acquire(pilot())
            await asyncio.sleep(10.0 - now())
            await held.release()
            jobs = dict(ground.manager.inside._jobs)
            ground.manager.inside._jobs.clear()
            metering = asyncio.ensure_future(ground.site.meter(lease(), None))
            await asyncio.sleep(UNRECORDED / 2)
            ground.manager.inside._jobs.update(jobs)
            return await metering

    found = run(main())
    assert found is not None
    assert found.is_recorded
    assert found.seconds == pytest.approx(10.0, abs=0.5)


def test_a_scheduler_that_does_not_answer_is_asked_until_it_does(tmp_path: Path) -> None:
    """That is said once; a run that gives up leaves the record for the next life."""

    async def main() -> None:
        ground = Ground(tmp_path)
        async with ground.site.opened():
            held = await ground.acquire(pilot())
            await asyncio.sleep(10.0 - now())
            for what in ("poll", "cancel", "usage", "queue"):
                ground.manager.words[what] = SiteError("nobody there", transient=True)
            await held.release()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(30.0):
                    await ground.site.meter(lease(), None)
        assert sum("asked again until its jobs are settled" in said for said in ground.said) == 1
        ground.manager.words.clear()
        resumed = Ground(tmp_path, ground.manager)
        async with resumed.site.opened():
            found = await resumed.site.meter(lease(), 10.0)
        assert found is not None
        assert found.is_recorded
        assert found.seconds is not None
        assert found.seconds > 10.0

    run(main())


def test_a_job_that_was_put_back_into_the_queue_is_metered_for_both_times(tmp_path: Path) -> None:
    """Its scheduler remembers the last only: 12 s, then 5 s."""

    async def main() -> MeteredTime | None:
        ground = Ground(tmp_path)
        async with ground.site.opened():
            held = await ground.acquire(pilot())
            await asyncio.sleep(12.0 - now())
            job = next(iter(ground.manager.inside._jobs.values()))
            record = PilotJobJournal(tmp_path / "c1.jobs")
            record.requeued(job.id, 12.0)
            job.began = 20.0
            await asyncio.sleep(25.0 - now())
            await held.release()
            return await ground.site.meter(lease(), None)

    found = run(main())
    assert found is not None
    assert found.seconds == pytest.approx(17.0, abs=0.5)


def test_only_a_command_of_about_its_time_may_carry_a_request(tmp_path: Path) -> None:
    """Another run's command, started minutes before or after, is no reason to wait."""
    command = tmp_path / "sbatch"
    command.symlink_to("/bin/sleep")
    now = time.time()
    with subprocess.Popen([str(command), "60"]) as process:
        try:
            assert is_submitting(now)
            assert is_submitting(0.0)
            assert not is_submitting(now - 120.0)
            assert not is_submitting(now + 120.0)
        finally:
            process.kill()


def test_a_lease_that_is_metered_as_the_asking_ends_is_settled(tmp_path: Path) -> None:
    """Before its end is known to the supervisor, the task that asked has ended."""

    async def main() -> MeteredTime | None:
        ground = Ground(tmp_path)
        async with ground.site.opened(), asyncio.TaskGroup() as group:
            await ground.site.meter(lease("lease-1"), None)
            later: list[asyncio.Task[MeteredTime | None]] = []
            # The timer of the asking task's pause comes first, and the task ends one step before
            # this one begins.
            asyncio.get_running_loop().call_at(
                now() + _SOONEST,
                lambda: later.append(group.create_task(ground.site.meter(lease("lease-2"), None))),
            )
            await asyncio.sleep(2 * _SOONEST)
            return await asyncio.wait_for(later[0], 1000.0)

    assert run(main()) == MeteredTime(seconds=None)
