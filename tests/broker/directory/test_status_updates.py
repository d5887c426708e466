"""Sites are asked, or tell, on virtual time; who is slow or lies holds up nobody."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from bursar.broker.directory.information_index import InformationIndex
from bursar.broker.directory.status_feeds import (
    StatusPoller,
    StatusPublisher,
    is_significant_change,
)
from bursar.model.errors import InputError, SiteError
from bursar.model.status import SiteStatus
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


class Busy:
    """A site that says how many processors are free, and an index that hears of it."""

    def __init__(self) -> None:
        self.free = 100
        self.heard: list[tuple[float, int]] = []
        self.is_cut_off = False

    def status(self) -> SiteStatus:
        return status("site", self.free)

    async def send(self, said: SiteStatus) -> None:
        await asyncio.sleep(0.5)
        if self.is_cut_off:
            raise ConnectionError("no route")
        self.heard.append((now(), said.free_processors))


def test_a_site_tells_at_intervals_and_when_much_has_changed() -> None:
    """
    By hand: begun at 0, it takes half a second to be heard. A change of 5 of 100 is no news,
    one of 20 is, at 13; what follows within a second is told together, as it is then.
    """

    async def main() -> None:
        site = Busy()
        async with StatusPublisher(
            site.status, site.send, every=60, least=1, threshold=0.1
        ) as publisher:
            for moment, free in ((10, 95), (13, 80), (13.1, 60), (13.9, 40), (14.9, 40)):
                await asyncio.sleep(moment - now())
                site.free = free
                publisher.poll()
            await asyncio.sleep(200 - now())
        assert site.heard == [
            (0.5, 100),
            (13.5, 80),
            (15.0, 40),
            (75.5, 40),
            (136.0, 40),
            (196.5, 40),
        ]

    run(main)


def test_what_cannot_be_sent_is_told_once_and_sent_later() -> None:
    async def main() -> None:
        site, told = Busy(), []
        async with StatusPublisher(
            site.status, site.send, every=10, on_fault=lambda reason: told.append((now(), reason))
        ):
            await asyncio.sleep(5)
            site.is_cut_off = True
            await asyncio.sleep(40)
            site.is_cut_off = False
            await asyncio.sleep(10)
        assert told == [(11.0, "ConnectionError: no route")]
        assert [moment for moment, _ in site.heard] == [0.5, 53.0]

    run(main)


def test_an_index_that_does_not_listen_is_given_up_for_this_time() -> None:
    async def main() -> None:
        told: list[str] = []

        async def hang(_: SiteStatus) -> None:
            await asyncio.Event().wait()

        async with StatusPublisher(lambda: status("a"), hang, patience=5, on_fault=told.append):
            await asyncio.sleep(100)
        assert len(told) == 1

    run(main)


def test_news_is_what_differs_by_more_than_a_share() -> None:
    async def main() -> None:
        before = status("a", 100, traversal_time=50.0, waiting=0)
        for changes, events in (
            ({}, False),
            ({"free_processors": 90}, False),
            ({"free_processors": 89}, True),
            ({"traversal_time": 50.9}, False),
            ({"traversal_time": 60.0}, True),
            ({"traversal_time": None}, True),
            ({"waiting": 1}, True),
            ({"state": "Draining"}, True),
            ({"attributes": {"Mpi": True}}, True),
        ):
            fields = {"free_processors": 100, "traversal_time": 50.0, "waiting": 0} | changes
            after = SiteStatus(site="a", at=1.0, **fields)  # type: ignore[arg-type]
            assert (
                is_significant_change(before, after, 0.1)
                is is_significant_change(after, before, 0.1)
                is events
            ), changes

    run(main)


def test_times_that_are_none_are_refused() -> None:
    async def main() -> None:
        with pytest.raises(InputError, match="every: must be positive"):
            StatusPoller(directory([]), {}, every=0)
        with pytest.raises(InputError, match="patience: must be positive"):
            StatusPoller(directory([]), {}, patience=math.nan)
        with pytest.raises(InputError, match="threshold: must not be negative"):
            StatusPublisher(lambda: status("a"), print, threshold=-1)

    run(main)
