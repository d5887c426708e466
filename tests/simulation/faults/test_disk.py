"""The disk that keeps what was synced, and of the rest what it likes."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.store import DiskFull
from bursar_devtools.faults.event_trace import EventTrace
from bursar_devtools.faults.simulated_disk import SECTOR, SimulatedDisk, SimulatedStorage
from bursar_devtools.faults.simulated_process import (
    ProcessKilled,
    ProcessLoop,
    SimulatedProcess,
    run_processes,
)

Story = Callable[[SimulatedStorage, SimulatedProcess], Coroutine[Any, Any, Any]]

FLAGS = [apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_READWRITE, 0]


def _run(story: Story, seed: int = 0) -> Any:
    async def main(loop: ProcessLoop) -> Any:
        storage = SimulatedStorage(random.Random(seed), EventTrace(loop.time))
        return await story(storage, SimulatedProcess(loop, "server"))

    return run_processes(main)


def _content(storage: SimulatedStorage, name: str) -> bytes | None:
    return bytes(storage.files[name].data) if name in storage.files else None


@given(
    st.integers(0, 10_000),
    st.binary(min_size=1, max_size=3000),
    st.integers(0, 3000),
    st.binary(max_size=3000),
)
@settings(max_examples=examples(150))
def test_a_power_cut_keeps_what_was_synced(
    seed: int, synced: bytes, offset: int, loose: bytes
) -> None:
    """What was written over later is there or not, sector by sector, or spoilt; nothing else is."""

    async def story(storage: SimulatedStorage, process: SimulatedProcess) -> None:
        disk = SimulatedDisk(storage, process)
        file = disk._vfs.xOpen("/log", FLAGS)
        file.xWrite(synced, 0)
        file.xSync(0)
        file.xWrite(loose, offset)
        after = bytes(storage.files["/log"].data)
        storage.cut_power()
        left = _content(storage, "/log")
        assert left is not None
        assert len(synced) <= len(left) <= len(after)
        for at, byte in enumerate(left):
            if at < len(synced) and not offset <= at < offset + len(loose):
                assert byte == synced[at]
        assert storage.files["/log"].durable == left

    _run(story, seed)


def test_sectors_reach_the_disk_in_any_order() -> None:
    async def story(storage: SimulatedStorage, process: SimulatedProcess) -> tuple[bool, ...]:
        file = SimulatedDisk(storage, process)._vfs.xOpen("/log", FLAGS)
        file.xWrite(bytes(3 * SECTOR), 0)
        file.xSync(0)
        file.xWrite(b"x" * 3 * SECTOR, 0)
        storage.cut_power()
        left = _content(storage, "/log")
        assert left is not None
        return tuple(left[at : at + SECTOR] == b"x" * SECTOR for at in (0, SECTOR, 2 * SECTOR))

    found = {_run(story, seed) for seed in range(100)}
    assert (False, True, False) in found
    assert (True, False, True) in found


def test_without_a_power_cut_what_was_written_outlives_the_process() -> None:
    async def story(storage: SimulatedStorage, process: SimulatedProcess) -> bytes | None:
        SimulatedDisk(storage, process)._vfs.xOpen("/log", FLAGS).xWrite(b"written", 0)
        process.kill()
        return _content(storage, "/log")

    assert _run(story) == b"written"


def test_the_name_of_a_new_file_is_durable_with_its_first_sync() -> None:
    """And with it that of a file that was removed before."""

    async def story(storage: SimulatedStorage, process: SimulatedProcess, syncs: bool) -> str:
        vfs = SimulatedDisk(storage, process)._vfs
        old = vfs.xOpen("/old", FLAGS)
        old.xWrite(b"old", 0)
        old.xSync(0)
        vfs.xDelete("/old", False)
        new = vfs.xOpen("/new", FLAGS)
        if syncs:
            new.xSync(0)
        storage.cut_power()
        return " ".join(sorted(storage.files))

    loose = {_run(lambda s, p: story(s, p, False), seed) for seed in range(30)}
    assert loose == {"", "/new", "/old", "/new /old"}
    assert {_run(lambda s, p: story(s, p, True), seed) for seed in range(30)} == {"/new"}


def test_a_full_disk_says_so_having_written_some() -> None:
    async def story(storage: SimulatedStorage, process: SimulatedProcess) -> None:
        disk = SimulatedDisk(storage, process)
        file = disk._vfs.xOpen("/log", FLAGS)
        storage.fill_up(10)
        with pytest.raises(apsw.FullError):
            file.xWrite(bytes(100), 0)
        assert (disk.free(), file.xFileSize()) == (0, 10)
        file.xWrite(bytes(10), 0)  # over what is there
        with pytest.raises(DiskFull):
            disk.replace("small", b"content")
        with pytest.raises(apsw.FullError):
            disk._vfs.xOpen("/other", FLAGS)
        storage.make_room()
        file.xWrite(bytes(100), 10)
        assert file.xFileSize() == 110

    _run(story)


def test_what_is_kept_back_is_there_when_it_is_full() -> None:
    async def story(storage: SimulatedStorage, process: SimulatedProcess) -> int:
        disk = SimulatedDisk(storage, process)
        assert disk.reserve(50)
        storage.fill_up(0)
        assert not disk.reserve(60)
        assert disk.reserve(0)
        return disk.free()

    assert _run(story) == 50


def test_a_sync_may_fail() -> None:
    async def story(storage: SimulatedStorage, process: SimulatedProcess) -> None:
        file = SimulatedDisk(storage, process)._vfs.xOpen("/log", FLAGS)
        file.xWrite(b"written", 0)
        storage.fails_next_sync = True
        with pytest.raises(apsw.IOError):
            file.xSync(0)
        assert storage.files["/log"].durable is None
        file.xSync(0)
        assert storage.files["/log"].durable == b"written"

    _run(story)


def test_the_dead_write_nothing() -> None:
    """Nor do they go on: work that outlives its process never returns."""

    async def story(storage: SimulatedStorage, process: SimulatedProcess) -> None:
        disk = SimulatedDisk(storage, process)
        file = disk._vfs.xOpen("/log", FLAGS)
        process.kill()
        file.xWrite(b"late", 0)
        file.xTruncate(0)
        file.xSync(0)
        disk.replace("small", b"late")
        disk._vfs.xDelete("/log", True)
        assert _content(storage, "/log") == b""
        assert storage.files["/log"].durable is None
        assert not disk.reserve(10)
        with pytest.raises(ProcessKilled):
            await disk.run(lambda: None)

    _run(story)


def test_a_process_is_killed_between_any_two_operations() -> None:
    async def story(storage: SimulatedStorage, process: SimulatedProcess) -> int:
        storage.deadly = 1.0
        disk = SimulatedDisk(storage, process)
        ended = asyncio.Event()
        process.on_death(ended.set)
        file = disk._vfs.xOpen("/log", FLAGS)

        def work() -> None:
            for at in range(50):
                file.xWrite(b"x", at)

        task = process.spawn(disk.run(work))
        await ended.wait()
        assert not task.done()
        return len(storage.files["/log"].data)

    sizes = {_run(story, seed) for seed in range(100)}
    assert {0, 1, 2} < sizes
    assert max(sizes) > 20
