"""Sites are asked, or tell, on virtual time; who is slow or lies holds up nobody."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from bursar.broker.information_index import InformationIndex
from bursar.broker.status_feeds import StatusPoller
from bursar.model.errors import InputError, SiteError
from bursar.model.matching import SiteStatus
from bursar.simulation.virtual_loop import VirtualLoop


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())  # type: ignore[arg-type]


def now() -> float:
    return asyncio.get_running_loop().time()


def status(site: str, free: int = 1, **more: Any) -> SiteStatus:
    return SiteStatus(site=site, at=now(), free_processors=free, **more)


def directory(told: list[tuple[float, str, str]], expiry: float = 100.0) -> InformationIndex:
    """On the loop's clock; faults are written down with their moment."""
    return InformationIndex(
        clock=asyncio.get_running_loop().time,
        expiry=expiry,
        on_fault=lambda site, reason: told.append((now(), site, reason)),
    )


def test_all_are_asked_in_turns_and_a_slow_one_holds_up_nobody() -> None:
    """
    Of four sites one answers at once, one after 3 s, one never, and one fails. By hand: asked
    at 0, 30, 60; the slow one is known since 3, 33, 63, as it was then.
    """

    async def slow() -> SiteStatus:
        await asyncio.sleep(3)
        return status("slow")

    async def never() -> None:
        await asyncio.Event().wait()

    def broken() -> SiteStatus:
        raise OSError("no route")

    async def main() -> None:
        told: list[tuple[float, str, str]] = []
        rounds: list[float] = []
        index = directory(told)
        sites = {"slow": slow, "never": never, "broken": broken, "fast": lambda: status("fast")}
        async with StatusPoller(
            index, sites, every=30, patience=10, on_round=lambda: rounds.append(now())
        ) as poller:
            await asyncio.sleep(1)
            assert set(index.read()) == {"fast"}
            await poller.wait_for_all()
            assert now() == 10
            await asyncio.sleep(65)  # to 75
            readings = index.read()
        assert {site: reading.age for site, reading in readings.items()} == {"fast": 15, "slow": 12}
        assert rounds == [10, 40, 70]
        assert told == [
            (0, "broken", "OSError: no route"),
            (10, "never", "does not answer within 10 s"),
        ]
        await asyncio.sleep(1000)
        assert not index.read()  # nobody is asked any more

    run(main)


def test_a_site_is_forgotten_when_it_expires_and_known_again_when_it_answers() -> None:
    """It fails from 35 to 155: known until 30 + 100, and again since 180."""

    async def main() -> None:
        told: list[tuple[float, str, str]] = []
        index = directory(told)

        def site() -> SiteStatus:
            if 35 <= now() < 155:
                raise SiteError("site: is down")
            return status("site")

        async with StatusPoller(index, {"site": site}, every=30):
            known = []
            for _ in range(41):
                await asyncio.sleep(5)
                known.append((now(), "site" in index.read()))
        assert [moment for moment, there in known if not there] == list(range(135, 180, 5))
        assert told == [(60, "site", "site: is down")]

    run(main)


@pytest.mark.parametrize(
    "garbage",
    [
        None,
        "busy",
        {"free_processors": 3},
        SiteStatus(site="other", at=0.0, free_processors=1),
        SiteStatus(site="site", at=math.nan, free_processors=1),
        SiteStatus(site="site", at=1e9, free_processors=1),
        SiteStatus(site="site", at=0.0, free_processors=-1),
        SiteStatus(site="site", at=0.0, free_processors=1, traversal_time=math.nan),
    ],
    ids=str,
)
def test_garbage_leaves_what_was_known_and_is_told_once(garbage: object) -> None:
    async def main() -> None:
        told: list[tuple[float, str, str]] = []
        index = directory(told, expiry=45.0)
        async with StatusPoller(
            index, {"site": lambda: status("site", 7) if now() < 5 else garbage}, every=10
        ):
            await asyncio.sleep(42)
            assert index.read()["site"].status.free_processors == 7
            await asyncio.sleep(10)
            assert not index.read()
        assert [(moment, site) for moment, site, _ in told] == [(10, "site")]

    run(main)


def test_equal_seeds_give_equal_traces() -> None:
    """Sites that take their time, fail and come back, by a generator."""

    def trace(seed: int) -> list[tuple[float, str, float]]:
        async def main() -> list[tuple[float, str, float]]:
            rng = np.random.default_rng(seed)
            index = directory([], expiry=60.0)

            def site(name: str) -> Callable[[], Awaitable[SiteStatus]]:
                async def ask() -> SiteStatus:
                    await asyncio.sleep(float(rng.exponential(5)))
                    if rng.random() < 0.3:
                        raise SiteError("down")
                    return status(name, int(rng.integers(9)))

                return ask

            found = []
            names = [f"site-{i}" for i in range(10)]
            async with StatusPoller(
                index, {name: site(name) for name in names}, every=20, patience=10
            ):
                for _ in range(100):
                    await asyncio.sleep(3)
                    found += [(now(), name, r.age) for name, r in index.read().items()]
            return found

        return run(main)  # type: ignore[no-any-return]

    assert trace(1) == trace(1) != trace(2)


def test_times_that_are_none_are_refused() -> None:
    async def main() -> None:
        with pytest.raises(InputError, match="every: must be positive"):
            StatusPoller(directory([]), {}, every=0)
        with pytest.raises(InputError, match="patience: must be positive"):
            StatusPoller(directory([]), {}, patience=math.nan)

    run(main)
