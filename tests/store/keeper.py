"""An owner of records that keeps payloads, and stores on simulated disks."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from bursar.store import Position, RecordStore
from bursar_devtools.faults.event_trace import EventTrace
from bursar_devtools.faults.simulated_disk import SimulatedDisk, SimulatedStorage
from bursar_devtools.faults.simulated_process import ProcessLoop, SimulatedProcess, run_processes

KIND = 7

T = TypeVar("T")


class Keeper:
    """Payloads by position, as they live in the store."""

    def __init__(self) -> None:
        self.living: dict[Position, bytes] = {}

    def restore(self, kind: int, position: Position, payload: bytes) -> None:
        assert kind == KIND
        assert position > max(self.living, default=0)
        self.living[position] = payload

    def add(self, store: RecordStore, payload: bytes, *, essential: bool = False) -> Position:
        position = store.append(KIND, payload, essential=essential)
        self.living[position] = payload
        return position

    def drop(self, store: RecordStore, index: int) -> None:
        if self.living:
            position = sorted(self.living)[index % len(self.living)]
            del self.living[position]
            store.kill(position)

    @property
    def contents(self) -> list[tuple[Position, bytes]]:
        return sorted(self.living.items())


def simulated(story: Callable[[SimulatedStorage], Coroutine[Any, Any, T]], seed: int = 0) -> T:
    """Run a story over a simulated disk, in virtual time."""

    async def main(loop: ProcessLoop) -> T:
        storage = SimulatedStorage(random.Random(seed), EventTrace(loop.time))
        # As a process, whose tasks are closed at the end if the story fails.
        return await SimulatedProcess(loop, "story").spawn(story(storage))

    return run_processes(main)


def process_of_its_own() -> SimulatedProcess:
    """Return a process whose kill does not end the test."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ProcessLoop)
    return SimulatedProcess(loop, "server")


def store_on(
    storage: SimulatedStorage, process: SimulatedProcess | None = None, **settings: Any
) -> tuple[RecordStore, Keeper]:
    """Return a store that is not open yet, and its only owner of records."""
    disk = SimulatedDisk(storage, process or process_of_its_own())
    defaults = {"log_size": 16_384, "reserve": 0, "least_free": 0}
    store, keeper = RecordStore(disk, **{**defaults, **settings}), Keeper()
    store.register([KIND], keeper)
    return store, keeper
