"""The keeper of an allocation gives the processors back, whatever the site says meanwhile."""

import asyncio
from typing import cast

import pytest

from bursar.model.allocation import Allocation, AllocationState
from bursar.model.errors import SiteError
from bursar.provisioning.allocation_life import AllocationLife
from bursar.sites.allocation_keeper import AllocationKeeper
from bursar.sites.protocol import HeldProcessors


class _Held:
    def __init__(self) -> None:
        self.released = 0

    async def lost(self) -> tuple[str, str]:
        raise SiteError("s: the scheduler does not answer")

    async def release(self) -> None:
        self.released += 1


class _Holder:
    def __init__(self, held: _Held) -> None:
        self.held = held

    async def while_expiring(self) -> None:
        raise AssertionError("its time is not over")

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def present(self, keeper: AllocationKeeper) -> int:
        return 0

    async def acquire(self, keeper: AllocationKeeper) -> HeldProcessors:
        return cast(HeldProcessors, self.held)

    async def begun(self, keeper: AllocationKeeper) -> None:
        pass

    async def expired(self, keeper: AllocationKeeper) -> None:
        await self.while_expiring()
        keeper.life.expire(self.now())

    def dismiss(self, keeper: AllocationKeeper) -> None:
        pass


def test_processors_go_back_when_their_site_cannot_say_whether_they_are_lost() -> None:
    held = _Held()

    async def kept() -> AllocationKeeper:
        terms = Allocation(name="lease-1", site="s", processors=2, duration=1000.0)
        keeper = AllocationKeeper(AllocationLife(terms), _Holder(held))
        with pytest.raises(SiteError, match="does not answer"):
            await keeper.run()
        return keeper

    keeper = asyncio.run(kept())
    assert held.released == 1
    assert keeper.allocation.state is AllocationState.ENDED


class _Vanishing(_Held):
    def __init__(self) -> None:
        super().__init__()
        self.goes = asyncio.Event()

    async def lost(self) -> tuple[str, str]:
        await self.goes.wait()
        return "lost", "the node died"


class _Expiring(_Holder):
    async def while_expiring(self) -> None:
        """Wait for the tasks to stop, while the processors go."""
        assert isinstance(self.held, _Vanishing)
        self.held.goes.set()
        await asyncio.sleep(0.01)


def test_what_is_lost_while_its_tasks_are_stopped_is_lost_and_has_not_ended() -> None:
    """The holder awaits the stop of its tasks, and the site takes the processors meanwhile."""

    async def kept() -> Allocation:
        terms = Allocation(name="lease-1", site="s", processors=2, duration=0.05)
        keeper = AllocationKeeper(AllocationLife(terms), _Expiring(_Vanishing()))
        await keeper.run()
        return keeper.allocation

    allocation = asyncio.run(kept())
    assert (allocation.loss, allocation.reason) == ("lost", "the node died")
    assert allocation.state is AllocationState.LOST
