"""Tasks go where they can end in time, and what fits nowhere is told of."""

import asyncio
import math
import time
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.dispatch.queue_rig import QueueRig
from tests.thoroughness import examples

from bursar.engine.pool_demand import GUESS, UnplaceableTasks
from bursar.model.allocation import AllocationLoad
from bursar.model.campaign import Retry
from bursar.model.task import Outcome, Shell, Status, Task

ESTIMATES = st.sampled_from([None, 0.0, 0.9, 1.0, 2.1, 2.2, 10.0])


def queue_of(*seconds: float | None, **more: Any) -> QueueRig:
    """Tasks of one processor that should take so long, in this order; two workers are there."""
    queue = QueueRig(Retry())
    queue.extend([Task(id=f"t{i}", runtime=s) for i, s in enumerate(seconds)], **more)
    queue.join("short", "short lease", 4)
    queue.join("long", "long lease", 4)
    queue.ends("short lease", 100.0)
    return queue


def take(queue: QueueRig, worker: str, room: int = 4, now: float = 0.0) -> list[int]:
    """What a worker gets."""
    return [c.task for c in queue.claim(worker, room, now, lambda task, lease: math.inf)]


def end(queue: QueueRig, worker: str, task: int, seconds: float) -> None:
    """A task has succeeded after so long."""
    outcome = Outcome(task=task, attempt=1, status=Status.SUCCEEDED, start=5.0, end=5.0 + seconds)
    assert queue.finish(worker, outcome, 0.0) is not None


def test_a_task_that_would_be_cut_off_goes_elsewhere() -> None:
    """
    A short lease gets what ends in time, out of turn; the rest waits for one that lasts.
    """
    queue = queue_of(150.0, 90.0, 100.0, 101.0)

    assert take(queue, "short") == [1, 2]
    assert take(queue, "long") == [0, 3]


def test_time_passes_and_is_given() -> None:
    """
    What fits early does not fit late, and does again when the lease is prolonged.
    """
    queue = queue_of(50.0)

    assert take(queue, "short", now=60.0) == []
    queue.ends("short lease", 111.0)
    assert take(queue, "short", now=60.0) == [0]


def test_a_fast_site_does_more_in_its_time() -> None:
    """
    Estimates hold for speed 1: at speed 2 a task of 150 s takes 75.
    """
    queue = queue_of(150.0)
    queue.ends("short lease", 100.0, speed=2.0)

    assert take(queue, "short") == [0]


def test_estimates_are_stretched_by_what_was_learnt() -> None:
    """
    Two tasks took 3 times as long as thought: one of 40 s does not fit into 100 s any more.
    """
    queue = queue_of(10.0, 20.0, 40.0, 30.0)
    assert take(queue, "long", 2) == [0, 1]
    end(queue, "long", 0, 25.0)
    end(queue, "long", 1, 65.0)  # 90 s for 30 s

    assert take(queue, "short") == [3]


def test_a_task_without_an_estimate_takes_as_long_as_others_did() -> None:
    """
    Nothing is held back while nothing is known; then the mean holds.
    """
    queue = queue_of(None, None, None)
    assert take(queue, "short", 2) == [0, 1]
    end(queue, "short", 0, 90.0)
    end(queue, "short", 1, 130.0)

    assert take(queue, "short") == []
    assert take(queue, "long") == [2]


def test_what_waits_at_the_worker_counts() -> None:
    """
    A task that is handed out ahead of time begins after those before it: 4 processors with 4
    tasks of 60 s have no time for another one of 60 s within 100 s.
    """
    queue = queue_of(*[60.0] * 5, 30.0)

    assert take(queue, "short", 8) == [0, 1, 2, 3, 5]


def test_what_only_a_lease_may_run_it_gets() -> None:
    """
    A task that is bound to a lease has nowhere else to go.
    """
    queue = queue_of(500.0, placed=["short lease"])

    assert take(queue, "short") == [0]


@pytest.mark.parametrize(
    "longer", [lambda i: 1000.0, lambda i: 1000.0 + i, lambda i: 1e9 / (i + 1)]
)
def test_any_number_of_long_ones_hides_no_short_one(longer: Any) -> None:
    """
    The short lease finds the one task that it can run behind tens of thousands.
    """
    queue = queue_of(*[longer(i) for i in range(50_000)], 5.0)

    assert take(queue, "short", 1) == [50_000]
    assert take(queue, "long", 1) == [0]


def test_longest_first_hides_nothing_that_is_clearly_shorter() -> None:
    """
    In the order that schedules like best, what is too long comes first: all that fits with an
    eighth to spare is found, however much stands before it.
    """
    queue = queue_of(*[200.0 - i / 100 for i in range(20_000)])
    (found,) = take(queue, "short", 1)

    assert 100.0 / 1.125 <= 200.0 - found / 100 <= 100.0


@settings(max_examples=examples(300))
@given(
    history=st.lists(st.tuples(ESTIMATES, st.sampled_from([1.0, 3.0, 8.0])), max_size=4),
    estimates=st.lists(ESTIMATES, max_size=12),
    processors=st.integers(1, 4),
    ahead=st.integers(0, 4),
    left=st.sampled_from([0.4, 1.3, 2.7, 5.1, 11.3, 40.9]),
    speed=st.sampled_from([0.5, 1.0, 2.0]),
)
def test_a_worker_gets_what_ends_in_time_by_the_definition(
    history: list[tuple[float | None, float]],
    estimates: list[float | None],
    processors: int,
    ahead: int,
    left: float,
    speed: float,
) -> None:
    """
    Whatever has been learnt: best first, each that should end in time, behind what it waits
    for there, and no other.
    """
    queue = QueueRig(Retry())
    first = len(history)
    tasks = [
        Task(id=f"t{i}", runtime=e) for i, e in enumerate([*(e for e, _ in history), *estimates])
    ]
    queue.extend(tasks)
    queue.join("old", "another lease", max(first, 1))
    assert take(queue, "old", first) == list(range(first))
    for i, (_, seconds) in enumerate(history):
        end(queue, "old", i, seconds)
    queue.join("w", "lease", processors)
    queue.ends("lease", 50.0 + left, speed)

    known = [(e, took) for e, took in history if e]
    stretch = sum(took for _, took in known) / sum(e for e, _ in known) if known else 1.0
    mean = sum(took for _, took in history) / len(history) if history else 0.0
    expected, work = [], 0.0
    for i, estimate in enumerate(estimates, first):
        seconds = mean if estimate is None else estimate * stretch
        wait = work / processors if len(expected) >= processors else 0.0
        # At the very end of a lease, rounding decides.
        assume(abs(wait + seconds - left * speed) > 1e-9)
        if len(expected) < processors + ahead and wait + seconds <= left * speed:
            expected.append(i)
            work += seconds

    assert take(queue, "w", processors + ahead, now=50.0) == expected


def test_a_wide_task_without_time_blocks_nobody() -> None:
    """
    One that waits for another worker reserves nothing here, unlike one that waits for room.
    """
    queue = QueueRig(Retry())
    queue.extend(
        [
            Task(id="wide and long", processors=4, runtime=500.0),
            Task(id="a", runtime=90.0),
            Task(id="b", runtime=90.0),
        ]
    )
    queue.join("short", "short lease", 4)
    queue.ends("short lease", 100.0)

    assert take(queue, "short") == [1, 2]


def test_misfits_are_counted() -> None:
    """
    What is too long or too wide for all that is there, and only that.
    """
    queue = QueueRig(Retry())
    queue.extend(
        [
            Task(id="fits", runtime=50.0),
            Task(id="long", runtime=300.0),
            Task(id="longer", runtime=400.0),
            Task(id="wide", processors=8, runtime=1.0),
            Task(id="unknown"),
        ]
    )
    queue.join("w", "lease", 4)
    assert queue.unplaceable(0.0, ["w"]) == UnplaceableTasks(tasks=1, processors=8, longest=1.0)
    queue.ends("lease", 100.0)

    assert queue.unplaceable(0.0, ["w"]) == UnplaceableTasks(tasks=3, processors=8, longest=400.0)
    assert queue.unplaceable(60.0, ["w"]).tasks == 4
    assert queue.unplaceable(0.0, []) == UnplaceableTasks(tasks=5, processors=8, longest=400.0)
    queue.drain()
    assert queue.unplaceable(0.0, []) == UnplaceableTasks()


def test_demand_is_what_could_start() -> None:
    """
    Tasks without an estimate count as a guess, then as the mean; bound ones not at all.
    """
    queue = QueueRig(Retry())
    queue.extend(
        [
            Task(id="a", runtime=10.0),
            Task(id="b", runtime=30.0, processors=3),
            Task(id="c"),
            Task(id="d", runtime=1000.0),
            Task(id="after a", runtime=5.0),
        ],
        [(), (), (), (), (0,)],
        placed=["", "", "", "lease", ""],
    )
    found = queue.demand()
    assert (found.tasks, found.processors, found.widest, found.later) == (3, 5, 3, 1)
    assert (found.work, found.longest) == (10.0 + 3 * 30.0 + GUESS, GUESS)

    queue.join("w", "other lease", 4)
    assert take(queue, "w", 1) == [0]
    assert queue.demand().running == 1
    end(queue, "w", 0, 20.0)  # twice as long as thought; the mean is 20 s
    found = queue.demand()
    assert (found.tasks, found.running, found.later) == (3, 0, 0)
    assert (found.work, found.longest) == (3 * 60.0 + 20.0 + 10.0, 60.0)


def test_demand_is_cheap() -> None:
    """
    It is asked for many times a second: 100,000 tasks must not be gone through for it. Five
    hundred answers within a generous time are out of reach for what looks at each task.
    """
    queue = queue_of(*[1.0 + i % 1000 for i in range(100_000)])
    began = time.process_time()
    for _ in range(500):
        assert queue.demand().tasks == 100_000
        queue.unplaceable(0.0, ["short", "long"])

    assert time.process_time() - began < 5


def test_the_dispatcher_holds_back_and_tells(room: Any, until: Any) -> None:
    """
    Through the whole of it: a lease that ends soon gets no long task; what it does is told.
    """
    tasks = [
        Task(id="long", runtime=500.0, steps=(Shell("true"),)),
        Task(id="short", runtime=0.1, steps=(Shell("sleep 0.1"),)),
    ]

    async def run() -> None:
        dispatcher = room.dispatcher(tasks)
        async with room.running(dispatcher, 1):
            dispatcher.ends("lease-1", dispatcher.now() + 100.0)
            await until(lambda: dispatcher.figures.counts.succeeded == 1)
            assert dispatcher.figures.demand().tasks == 1
            assert dispatcher.figures.misfits.tasks == 1
            load = dispatcher.figures.leases()["lease-1"]
            assert (load.ready, load.busy) == (1, 0)
            assert load.idle_since is not None
            assert 0 <= dispatcher.now() - load.idle_since < 20
            dispatcher.ends("lease-1", None)
            await dispatcher.wait()
            assert dispatcher.figures.misfits == UnplaceableTasks()

    asyncio.run(run())

    long, short = room.state.attempts
    assert short.end <= long.start


def test_a_busy_lease_is_not_idle(room: Any, until: Any) -> None:
    """
    Idle since the last of its tasks ended; busy while one runs.
    """

    async def run() -> None:
        dispatcher = room.dispatcher([Task(id="t", steps=(Shell("sleep 97"),))])
        async with room.running(dispatcher, 2):
            await until(lambda: sum(dispatcher.figures.running().values()) == 1)
            await until(lambda: dispatcher.figures.leases()["lease-1"].ready == 2)
            assert dispatcher.figures.leases() == {
                "lease-1": AllocationLoad(ready=2, busy=1, idle_since=None, joined=2)
            }
            dispatcher.cancel(0)
            await until(lambda: dispatcher.figures.leases()["lease-1"].idle_since is not None)
            assert dispatcher.figures.leases()["lease-1"].busy == 0

    asyncio.run(run())
