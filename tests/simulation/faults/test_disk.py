"""The disk that keeps what was synced, and of the rest what it likes."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bursar.service.disk import DiskBroken, DiskFull
from bursar_devtools.faults.event_trace import EventTrace
from bursar_devtools.faults.simulated_disk import SimulatedDisk, SimulatedStorage
from bursar_devtools.faults.simulated_process import (
    ProcessKilled,
    ProcessLoop,
    SimulatedProcess,
    run_processes,
)

Story = Callable[[SimulatedStorage, SimulatedProcess], Coroutine[Any, Any, Any]]


def _run(story: Story, seed: int = 0) -> Any:
    async def main(loop: ProcessLoop) -> Any:
        platter = SimulatedStorage(random.Random(seed), EventTrace(loop.time))
        return await story(platter, SimulatedProcess(loop, "server"))

    return run_processes(main)


@given(st.integers(0, 10_000), st.binary(max_size=2000), st.binary(max_size=3000))
@settings(max_examples=100)
def test_a_power_cut_keeps_what_was_synced(seed: int, synced: bytes, loose: bytes) -> None:
    """The rest is a beginning of what was written, but for its last sector."""

    async def story(platter: SimulatedStorage, life: SimulatedProcess) -> None:
        disk = SimulatedDisk(platter, life)
        file = await disk.open("log", create=True)
        await file.append(synced)
        await file.sync()
        await file.append(loose)
        platter.cut_power()
        left = await disk.load("log")
        assert left is not None
        assert left[: len(synced)] == synced
        assert len(left) <= len(synced) + len(loose)
        whole = max(len(synced), (len(left) - 1) // 512 * 512)
        assert left[:whole] == (synced + loose)[:whole]

    _run(story, seed)


def test_without_a_power_cut_what_was_written_outlives_the_process() -> None:
    async def story(platter: SimulatedStorage, life: SimulatedProcess) -> bytes | None:
        file = await SimulatedDisk(platter, life).open("log", create=True)
        await file.append(b"written")
        life.kill()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ProcessLoop)
        return await SimulatedDisk(platter, SimulatedProcess(loop, "server")).load("log")

    assert _run(story) == b"written"


def test_what_was_not_synced_by_one_life_is_lost_in_the_next() -> None:
    """A power cut takes it although a process has read it in between."""

    async def story(platter: SimulatedStorage, life: SimulatedProcess) -> bytes | None:
        disk = SimulatedDisk(platter, life)
        file = await disk.open("log", create=True)
        await file.append(b"written")
        assert await disk.load("log") == b"written"
        platter.cut_power()
        return await disk.load("log")

    assert {_run(story, seed) for seed in range(20)} >= {b"", b"written"}


def test_a_name_may_be_undone_until_the_call_returns() -> None:
    """A file that was being made is there after a power cut, or not."""

    async def story(platter: SimulatedStorage, life: SimulatedProcess) -> bool:
        disk = SimulatedDisk(platter, life)
        life.spawn(disk.open("log", create=True))
        await asyncio.sleep(100e-6)
        platter.cut_power()
        return "log" in platter.files

    assert {_run(story, seed) for seed in range(20)} == {True, False}


def test_a_full_disk_says_so_having_written_some() -> None:
    async def story(platter: SimulatedStorage, life: SimulatedProcess) -> int:
        disk = SimulatedDisk(platter, life)
        file = await disk.open("log", create=True)
        platter.fill_up(10)
        with pytest.raises(DiskFull):
            await file.append(bytes(100))
        assert await disk.free() == 0
        await file.truncate(0)
        assert await disk.free() == 10
        platter.make_room()
        await file.append(bytes(100))
        return file.size

    assert _run(story) == 100


def test_what_is_kept_back_is_there_when_it_is_full() -> None:
    async def story(platter: SimulatedStorage, life: SimulatedProcess) -> int:
        disk = SimulatedDisk(platter, life)
        assert await disk.reserve(50)
        platter.fill_up(0)
        assert not await disk.reserve(60)
        assert await disk.reserve(0)
        return await disk.free()

    assert _run(story) == 50


def test_a_sync_may_fail() -> None:
    async def story(platter: SimulatedStorage, life: SimulatedProcess) -> None:
        file = await SimulatedDisk(platter, life).open("log", create=True)
        platter.fails_next_sync = True
        with pytest.raises(DiskBroken):
            await file.sync()
        await file.sync()

    _run(story)


def test_the_dead_cannot_write() -> None:
    async def story(platter: SimulatedStorage, life: SimulatedProcess) -> None:
        file = await SimulatedDisk(platter, life).open("log", create=True)
        life.kill()
        with pytest.raises(ProcessKilled):
            await file.append(b"late")
        assert platter.files["log"].data == b""

    _run(story)
