"""Jobs as processes of this machine."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.provisioning.lrm.contract import EACH, Ground, has_ended, is_running

from bursar_devtools.fork_manager import ForkManager

PATIENCE = 30.0
"""Seconds until a process that was killed must be gone."""


async def ground_of(folder: Path, check: Callable[[Ground], Awaitable[None]]) -> None:
    manager = ForkManager(4)
    calls = 0

    def counting(name: str) -> None:
        inner = getattr(manager, name)

        async def outer(*given: object) -> object:
            nonlocal calls
            calls += 1
            return await inner(*given)

        setattr(manager, name, outer)

    for name in ("submit", "cancel", "poll"):
        counting(name)
    try:
        await check(Ground(manager=manager, processors=4, folder=folder, commands=lambda: calls))
    finally:
        await manager.close()


@EACH
def test_processes_keep_the_contract(
    check: Callable[[Ground], Awaitable[None]], tmp_path: Path
) -> None:
    """Each check, on four processors of this machine."""
    asyncio.run(ground_of(tmp_path, check))


def test_nothing_of_a_job_is_left_when_it_ends(tmp_path: Path) -> None:
    """What a script started in the background goes with it, also when it does not want to."""

    async def run() -> list[int]:
        manager = ForkManager(2)
        ground = Ground(manager=manager, processors=2, folder=tmp_path, commands=lambda: 0)
        stubborn = 'trap "" TERM; sleep 300 & echo $! > pid; echo $$ >> pid; wait; sleep 300'
        (id,) = await manager.submit(ground.request("stubborn", stubborn))
        file = tmp_path / "pid"
        while not file.exists() or len(file.read_text().split()) < 2:
            await asyncio.sleep(0.02)
        await manager.cancel([id])
        assert (await manager.poll([id]))[id].how == "cancelled"
        await manager.close()
        return [int(word) for word in file.read_text().split()]

    # The kernel ends who was killed when a processor is free for that.
    give_up = time.monotonic() + PATIENCE
    for pid in asyncio.run(run()):
        while is_alive(pid):
            assert time.monotonic() < give_up
            time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def test_jobs_start_in_their_order(tmp_path: Path) -> None:
    """A narrow job does not overtake a wide one that came before it."""

    async def run() -> None:
        manager = ForkManager(2)
        ground = Ground(manager=manager, processors=2, folder=tmp_path, commands=lambda: 0)
        (first,) = await manager.submit(ground.request("first"))
        (wide,) = await manager.submit(ground.request("wide", processors=2))
        (narrow,) = await manager.submit(ground.request("narrow"))
        reports = await manager.poll([first, wide, narrow])
        assert [r.state for r in reports.values()] == ["running", "pending", "pending"]
        until = reports[first].until
        assert until is not None
        assert reports[wide].expected == until
        assert reports[narrow].expected == until + 60
        await manager.cancel([first, wide])
        await ground.wait([narrow], is_running)
        await manager.close()
        assert has_ended((await manager.poll([narrow]))[narrow])

    asyncio.run(run())


def test_scripts_are_nobody_elses(tmp_path: Path) -> None:
    """A script lies where only its owner reads it, and goes with its job."""

    async def run() -> None:
        manager = ForkManager(1)
        ground = Ground(manager=manager, processors=1, folder=tmp_path, commands=lambda: 0)
        (id,) = await manager.submit(ground.request("mine", "sleep 30 # word"))
        end = time.monotonic() + 20
        while not (found := list(tmp_path.glob("*.sh"))) and time.monotonic() < end:
            await asyncio.sleep(0.02)
        assert os.stat(found[0]).st_mode & 0o777 == 0o600
        await manager.cancel([id])
        assert not list(tmp_path.glob("*.sh"))

    asyncio.run(run())
