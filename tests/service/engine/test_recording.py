"""How often results are written down while more and more tasks end."""

import asyncio
import contextlib
from itertools import pairwise

from tests.service.engine.engine_rig import (
    Bench,
    BenchLink,
    FakeDesk,
    FakeJournal,
    NoHomes,
    outcome_of,
)

from bursar.dispatch.wire import Hello
from bursar.model.task import Status
from bursar.remote import messages as api
from bursar.service.engine.engine import ServiceEngine
from bursar.service.engine.recording import RECORDING_INTERVAL
from bursar.service.engine.records import ENDED
from bursar.simulation.virtual_loop import VirtualLoop

STEP = RECORDING_INTERVAL / 50
"""Seconds from one task's end to the next one's."""


class Diary(FakeJournal):
    """Notes when results were written down."""

    def __init__(self) -> None:
        super().__init__()
        self.moments: list[float] = []

    def append(self, kind: int, payload: bytes, *, essential: bool) -> int:
        if kind == ENDED:
            self.moments.append(asyncio.get_running_loop().time())
        return super().append(kind, payload, essential=essential)


def run_one_after_the_other(tasks: int) -> tuple[list[float], list[float], float]:
    """When results were written, when the worker was told, and when the last task ended."""
    loop = VirtualLoop()
    journal, bench = Diary(), Bench()
    told: list[float] = []

    async def go() -> float:
        engine = ServiceEngine(
            journal,
            FakeDesk(),
            clock=loop.time,
            entropy=lambda size: bytes(range(1, size + 1)),
            homes=NoHomes(),
        )
        await engine.open()
        bench.jobs["w"] = {}
        hello = Hello("", "w", "here", 1, "l", "far")
        engine.dispatching.join(hello, BenchLink(bench, "w"), pool="shared")
        info = await engine.create("ann", api.NewInstance(), "")
        await engine.submit("ann", info.id, [api.TaskSpec(command=("true",))] * tasks, "")
        for _ in range(tasks):
            await asyncio.sleep(STEP)
            _, job = bench.jobs["w"].popitem()
            outcome = outcome_of(job, Status.SUCCEEDED, loop.time(), end=loop.time())
            engine.dispatching.reactions.reported(
                engine.dispatching.registered.get("w"), [outcome], lambda: told.append(loop.time())
            )
        end = loop.time()
        while engine.instance("ann", info.id).counts.succeeded < tasks:
            await asyncio.sleep(STEP)
        await engine.close()
        return end

    try:
        return journal.moments, told, loop.run_until_complete(go())
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def test_results_wait_for_others_while_tasks_wait() -> None:
    """A record for each moment, not for each task; nobody waits longer than that."""
    moments, told, end = run_one_after_the_other(200)
    assert len(told) == 200
    assert len(moments) <= end / RECORDING_INTERVAL + 2
    gaps = [b - a for a, b in pairwise(moments)]
    assert max(gaps) <= RECORDING_INTERVAL + 2 * STEP


def test_the_last_result_waits_for_nobody() -> None:
    """It is written down when it comes, however short ago another one was."""
    moments, told, end = run_one_after_the_other(5)
    assert moments[-1] == end
    assert told[-1] - end < STEP
    assert len(moments) < 5


def test_a_result_that_comes_as_the_writer_ends_is_recorded() -> None:
    """Before its end is known to the supervisor, the writer has ended, and takes nothing more."""

    async def go() -> tuple[bool, bool]:
        loop = asyncio.get_running_loop()
        recorder = ServiceEngine(
            FakeJournal(),
            FakeDesk(),
            clock=loop.time,
            entropy=lambda size: bytes(size),
            homes=NoHomes(),
        )._recorder
        told, settled = asyncio.Event(), asyncio.Event()
        # What the last step of a task schedules runs before the callbacks of the task's end.
        recorder.record((), lambda: loop.call_soon(recorder.record, (), told.set) and None)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(told.wait(), 60.0)
        recorder.record((), lambda: loop.call_soon(recorder.record, (), settled.set) and None)
        await recorder.settle()
        return told.is_set(), settled.is_set()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(go()) == (True, True)
