"""A cluster whose pilots outlive who asked for them, and are adopted by another life."""

import asyncio
from pathlib import Path

import pytest
from tests.sites.test_batch import Ground, Manager, pilot, run

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


def test_one_that_waits_keeps_its_place_however_long_the_service_takes_to_end(
    tmp_path: Path,
) -> None:
    """Who waits for it is cancelled; what else has to be written down then may take a while."""

    async def main() -> None:
        ground = Ground(tmp_path, lasting=True)
        async with ground.site.opened():
            await ground.acquire(pilot("lease-1", processors=8))
            waiting = asyncio.create_task(ground.acquire(pilot("lease-2")))
            await asyncio.sleep(30)
            there, files = ground.manager.there, ground.files
            assert (len(there), len(files)) == (2, 2)
            waiting.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await ground.site.leave()
            await asyncio.sleep(5)
            assert (ground.manager.there, ground.files) == (there, files)

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
