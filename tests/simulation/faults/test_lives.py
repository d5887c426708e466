"""Parties that are killed between two steps."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from bursar_devtools.faults.simulated_process import (
    ProcessLoop,
    SimulatedProcess,
    current_process,
    run_processes,
)


@pytest.mark.parametrize("steps", range(1, 8))
def test_a_life_ends_in_place_of_any_step(steps: int) -> None:
    """Every await is a place to die at: what was done is what lay before it."""

    async def main(loop: ProcessLoop) -> list[int]:
        life = SimulatedProcess(loop, "a")
        done: list[int] = []

        async def work() -> None:
            for number in range(5):
                done.append(number)
                await asyncio.sleep(1)

        life.end_after(steps)
        life.spawn(work())
        await asyncio.sleep(100)
        assert not life.is_alive or steps > 11
        return done

    # Each sleep takes two steps: its timer, and the task that goes on.
    assert run_processes(main) == list(range(5))[: steps // 2]


def test_what_a_life_had_begun_is_over_with_it() -> None:
    """Timers, tasks of its tasks and calls: nothing of it happens after its death."""

    async def main(loop: ProcessLoop) -> list[str]:
        life = SimulatedProcess(loop, "a")
        seen: list[str] = []

        async def child() -> None:
            await asyncio.sleep(2)
            seen.append("child")

        async def work() -> None:
            asyncio.get_running_loop().call_later(3, seen.append, "timer")
            children = [asyncio.create_task(child())]
            await asyncio.gather(*children)

        life.spawn(work())
        life.call_later(1.5, seen.append, "call")
        await asyncio.sleep(1)
        life.kill()
        await asyncio.sleep(100)
        return seen

    assert run_processes(main) == []


def test_the_way_out_of_a_killed_task_starts_nothing() -> None:
    """Its finally blocks run, but what they begin is nobody's, and what they await never comes."""

    async def main(loop: ProcessLoop) -> list[str]:
        life = SimulatedProcess(loop, "a")
        seen: list[str] = []

        async def rescue() -> None:
            seen.append("rescued")

        async def work() -> None:
            try:
                await asyncio.sleep(10)
            finally:
                rescuer = rescue()
                task = asyncio.create_task(rescuer)
                with contextlib.suppress(BaseException):
                    await task
                seen.append("after")

        life.spawn(work())
        await asyncio.sleep(1)
        life.kill()
        await asyncio.sleep(100)
        return seen

    assert "rescued" not in run_processes(main)


def test_others_live_on() -> None:
    """One party's future that another sets wakes the one that waits, in its own life."""

    async def main(loop: ProcessLoop) -> list[str]:
        one, other = SimulatedProcess(loop, "one"), SimulatedProcess(loop, "other")
        future = loop.create_future()
        seen: list[str] = []

        async def wait() -> None:
            await future
            life = current_process()
            assert life is not None
            seen.append(life.party)

        async def tell() -> None:
            await asyncio.sleep(1)
            future.set_result(None)
            await asyncio.sleep(1)
            seen.append("never")

        one.spawn(wait())
        other.spawn(tell())
        other.call_later(1.5, other.kill)
        await asyncio.sleep(10)
        return seen

    assert run_processes(main) == ["one"]


def test_generators_of_the_dead_are_not_closed_by_others() -> None:
    """The garbage collector would run their ``finally`` blocks at a moment of its own."""

    async def main(loop: ProcessLoop) -> list[str]:
        life = SimulatedProcess(loop, "a")
        seen: list[str] = []

        async def numbers() -> AsyncIterator[int]:
            try:
                yield 1
                await asyncio.sleep(5)
                yield 2
            finally:
                await asyncio.sleep(1)
                seen.append("closed")

        async def work() -> None:
            async for _ in numbers():
                pass

        life.spawn(work())
        await asyncio.sleep(1)
        life.kill()
        await asyncio.sleep(100)
        return seen

    assert run_processes(main) == []
