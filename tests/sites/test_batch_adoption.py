"""A cluster whose pilots outlive who asked for them, and are adopted by another life."""

import asyncio
from pathlib import Path

import pytest
from tests.sites.test_batch import Ground, Manager, pilot, run

from bursar.model.errors import SiteError
from bursar.provisioning.lrm.resource_manager import JobRequest
from bursar.sites import batch


@pytest.mark.parametrize("killed", [False, True])
def test_pilots_are_adopted_and_others_end(tmp_path: Path, killed: bool) -> None:
    """Closed or killed: what is still wanted goes on, what is not ends, and is not asked again."""

    async def main() -> None:
        manager = Manager()
        first = Ground(tmp_path, manager, lasting=True)
        async with first.site.opened():
            for name in ("lease-1", "lease-2", "lease-3"):
                await first.acquire(pilot(name))
            if killed:
                first.site._leave = _nothing  # type: ignore[method-assign]
        one, two, three = manager.there

        second = Ground(tmp_path, manager, lasting=True)
        async with second.site.opened():
            assert manager.there == [one, two, three]
            held = await second.adopt(pilot("lease-1"), pilot("lease-3"), pilot("never"))
            assert sorted(held) == ["lease-1", "lease-3"]
            assert manager.there == [one, three]
            await held["lease-1"].release()
            assert manager.there == [three]
            assert second.gate.revoked == {"lease-1"}
        assert manager.there == [three]

        third = Ground(tmp_path, manager, lasting=True)
        async with third.site.opened():
            held = await third.adopt(pilot("lease-1"), pilot("lease-3"))
            assert sorted(held) == ["lease-1", "lease-3"]  # of the first it hears at once:
            assert (await held["lease-1"].lost())[0] in ("ended", "lost")
            await manager.cancel([three])
            assert (await held["lease-3"].lost())[0] == "lost"

    run(main())


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
def test_one_that_waits_keeps_its_place_however_long_the_service_takes_to_end(
    tmp_path: Path, turns: int
) -> None:
    """
    Who waits for it is cancelled, some turns of the loop before the site is left; what else has
    to be written down then may take a while.
    """

    async def main() -> None:
        ground = Ground(tmp_path, lasting=True)
        async with ground.site.opened():
            await ground.acquire(pilot("lease-1", processors=8))
            waiting = asyncio.create_task(ground.acquire(pilot("lease-2")))
            await asyncio.sleep(30)
            there, files = ground.manager.there, ground.files
            assert (len(there), len(files)) == (2, 2)
            waiting.cancel()
            for _ in range(turns):
                await asyncio.sleep(0)
            await ground.site.leave()
            await asyncio.sleep(5)
            assert (ground.manager.there, ground.files) == (there, files)

    run(main())


def test_jobs_of_no_lease_end_though_the_controller_was_away_and_nobody_asks_for_more(
    tmp_path: Path,
) -> None:
    """A new life tries again by itself to end what an earlier one left in the queue."""

    async def main() -> None:
        manager = Manager()
        first = Ground(tmp_path, manager, lasting=True)
        async with first.site.opened():
            await first.acquire(pilot("lease-1"))
            await first.acquire(pilot("lease-2"))
            first.site._leave = _nothing  # type: ignore[method-assign]
        one, two = manager.there
        manager.words["cancel"] = SiteError("no controller", transient=True)

        second = Ground(tmp_path, manager, lasting=True, probe_every=10.0)
        async with second.site.opened():
            await second.adopt(pilot("lease-2"))
            await asyncio.sleep(60.0)
            assert manager.there == [one, two]
            del manager.words["cancel"]
            await asyncio.sleep(20.0)
            assert manager.there == [two]

    run(main())


def test_a_job_whose_answer_was_lost_ends_while_the_service_goes_on(tmp_path: Path) -> None:
    """
    The pilot was given up, so its job would wait, and start, for nobody.

    The scheduler takes the request 8 s after the answer was given up.
    """

    async def main() -> None:
        ground = Ground(tmp_path, lasting=True, probe_every=10.0)
        submit = ground.manager.submit
        late: list[asyncio.Task[list[str]]] = []

        async def submit_late(request: JobRequest) -> list[str]:
            async def carry_out() -> list[str]:
                await asyncio.sleep(8.0)
                return await submit(request)

            late.append(asyncio.create_task(carry_out()))
            raise SiteError("no answer", transient=True)

        async with ground.site.opened():
            ground.manager.submit = submit_late  # type: ignore[method-assign]
            with pytest.raises(SiteError, match="no answer"):
                await ground.acquire(pilot("lease-1"))
            ground.manager.submit = submit  # type: ignore[method-assign]
            await ground.acquire(pilot("lease-2"))
            (wanted,) = ground.manager.there
            (unheard,) = await late[0]
            assert ground.manager.there == [wanted, unheard]
            await asyncio.sleep(20.0)
            assert ground.manager.there == [wanted]
            await asyncio.sleep(300.0)  # then it cannot come any more, and nobody asks for it
            ground.manager.names.clear()
            await asyncio.sleep(100.0)
            assert ground.manager.names == []

    run(main())


def test_the_record_of_jobs_does_not_grow_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that are gone are left out of it, those that are there are not."""
    monkeypatch.setattr(batch, "MOST_LINES", 20)

    async def main() -> None:
        ground = Ground(tmp_path, lasting=True)
        async with ground.site.opened():
            await ground.adopt()
            await ground.acquire(pilot("lease-stays"))
            sizes = []
            for number in range(50):
                held = await ground.acquire(pilot(f"lease-{number}"))
                await held.release()
                sizes.append(len((tmp_path / "c1.jobs").read_bytes()))
            assert max(sizes[25:]) <= max(sizes[:25])
        again = Ground(tmp_path, ground.manager, lasting=True)
        async with again.site.opened():
            assert list(await again.adopt(pilot("lease-stays"))) == ["lease-stays"]

    run(main())


async def _nothing() -> None:
    """What a process that is killed does at its end."""
