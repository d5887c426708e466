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

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def present(self, keeper: AllocationKeeper) -> int:
        return 0

    async def acquire(self, keeper: AllocationKeeper) -> HeldProcessors:
        return cast(HeldProcessors, self.held)

    async def begun(self, keeper: AllocationKeeper) -> None:
        pass

    async def expired(self, keeper: AllocationKeeper) -> None:
        raise AssertionError("its time is not over")

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
