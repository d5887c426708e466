"""Tasks that wait at one worker are taken back for another, on virtual time."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.dispatch.journal import RunJournal
from bursar.dispatch.prefetch import HORIZON, SOONEST, Prefetch, WaitLimit
from bursar.engine.core import RunPaths
from bursar.engine.dispatcher import Dispatcher, DispatchOptions
from bursar.model.campaign import Retry
from bursar.model.task import Outcome, Status, Task
from bursar.simulation.simulated_site import SimulatedWorker
from bursar.simulation.virtual_loop import VirtualLoop
from bursar.worker.launch import Endpoint
from bursar_devtools.unlimited_spending import UnlimitedSpending

SHORT = 0.001
LONG = 2.0
LOOK = 0.01  # seconds between two looks of a Watch


class Stage:
    """A world that is told how long each task takes, and sees when tasks begin."""

    def __init__(self, seconds: Sequence[float]) -> None:
        self.began: dict[int, list[float]] = {}
        self._seconds = seconds

    def data_at(self, task: int, site: str) -> float:
        self.began.setdefault(task, []).append(asyncio.get_running_loop().time())
        return 0.0

    def attempt(self, task: int, attempt: int, site: str) -> tuple[float, bool]:
        return self._seconds[task], True

    def succeeded(self, task: int, site: str, end: float) -> None:
        pass


class Watch:
    """
    Looks again and again at workers, and keeps for how long tasks wait at one while another idles.

    Attributes
    ----------
    longest
        Seconds, to :data:`LOOK`, for which any task waited somewhere while another worker that
        could have run it idled.
    """

    def __init__(self, workers: Sequence[SimulatedWorker], placed: Sequence[str] | None) -> None:
        self.longest = 0.0
        self._workers = workers
        self._placed = placed

    async def poll(self) -> None:
        """Looks until it is cancelled."""
        loop = asyncio.get_running_loop()
        since: dict[int, float] = {}
        while True:
            since = {task: since.get(task, loop.time()) for task in self._waiting()}
            if since:
                self.longest = max(self.longest, loop.time() - min(since.values()))
            await asyncio.sleep(LOOK)

    def _waiting(self) -> set[int]:
        idle = [worker for worker in self._workers if worker._free > 0]
        return {
            job.task
            for worker in self._workers
            for job in worker._queue
            if any(self._could_run(other, job.task) for other in idle if other is not worker)
        }

    def _could_run(self, worker: SimulatedWorker, task: int) -> bool:
        return self._placed is None or self._placed[task] in ("", worker._hello.lease)


@dataclass(frozen=True)
class Ran:
    """When each task began, how it ended, and the longest wait that a :class:`Watch` saw."""

    began: Mapping[int, Sequence[float]]
    outcomes: Mapping[int, Outcome]
    longest_wait: float


def carry_out(
    folder: Path,
    seconds: Sequence[float],
    *,
    workers: Sequence[tuple[str, int]],
    placed: Sequence[str] | None = None,
    first: int | None = None,
    joins: Mapping[int, float] | None = None,
) -> Ran:
    """
    Carries tasks out on simulated workers.

    Parameters
    ----------
    seconds
        How long each task takes.
    workers
        Lease and processors of each.
    placed
        Lease of each task; None: any.
    first
        How many tasks end before the others are submitted; None: all.
    joins
        Seconds after that submission at which workers join, by number; None: all are there from the
        start.
    """
    later = {} if joins is None else joins

    async def run() -> Ran:
        loop = asyncio.get_running_loop()
        stage = Stage(seconds)
        tasks = [Task(id=f"t{i}") for i in range(len(seconds))]
        told: dict[int, Outcome] = {}
        journal = RunJournal(folder / "journal.sqlite")
        dispatcher = Dispatcher(
            tasks[:first],
            journal=journal,
            guard=UnlimitedSpending(),
            retry=Retry(),
            folders=RunPaths(root=folder, files=folder, work=folder, logs=folder),
            run="virtual",
            options=DispatchOptions(placed=None if placed is None else placed[:first]),
            on_outcome=lambda record: told.__setitem__(record.outcome.task, record.outcome),
        )
        await dispatcher.start()
        endpoint = Endpoint(address=dispatcher.address, token=dispatcher.token, run="virtual")
        made = [
            SimulatedWorker(
                stage,  # type: ignore[arg-type]
                endpoint,
                name=f"w{i}",
                site="here",
                lease=lease,
                processors=processors,
            )
            for i, (lease, processors) in enumerate(workers)
        ]

        async def join(worker: SimulatedWorker, after: float) -> None:
            await asyncio.sleep(after)
            await loop.create_connection(lambda: worker, *dispatcher.address)

        for number, worker in enumerate(made):
            if number not in later:
                await join(worker, 0.0)
        watch = Watch(made, placed)
        watching = asyncio.ensure_future(watch.poll())
        await dispatcher.wait()
        for task in tasks[len(told) :]:
            dispatcher.submit([task])
        await asyncio.gather(*[join(made[number], after) for number, after in later.items()])
        await dispatcher.wait()
        watching.cancel()
        await dispatcher.close()
        journal.close()
        return Ran(stage.began, told, watch.longest)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run())


def test_long_calls_given_to_one_worker_run_side_by_side(tmp_path: Path) -> None:
    """
    One short task teaches a worker's prefetch that tasks are short; of all that follow at once it
    gets two long ones and many short ones. The second long one is taken back.
    """
    seconds = [SHORT, LONG, LONG, *[SHORT] * 200]
    ran = carry_out(tmp_path, seconds, workers=[("lease", 1), ("lease", 1)], first=1)

    first, second = ran.outcomes[1], ran.outcomes[2]
    # What the other worker has before it, and a look.
    assert second.start < first.start + SOONEST + HORIZON + LOOK
    assert max(outcome.end for outcome in ran.outcomes.values()) < first.start + LONG + 2 * HORIZON
    assert all(len(times) == 1 for times in ran.began.values()), "a task began twice"
    assert ran.longest_wait <= HORIZON + LOOK


def test_an_idle_worker_gets_all_that_waits_behind_a_long_task_with_its_first_request(
    tmp_path: Path,
) -> None:
    """
    Tasks took 25 ms, so that what waits would be returned unasked after 100 ms. A worker that idles
    before that has the next task at once, not after shares that are halved again and again.
    """
    usual, joins = 0.025, 0.06
    # The first worker gets both long tasks and three more; the other one begins with the last.
    seconds = [*[usual] * 4, LONG, LONG, *[usual] * 3, *[SHORT] * 3]
    ran = carry_out(
        tmp_path, seconds, workers=[("lease", 1), ("lease", 1)], first=4, joins={1: joins}
    )

    first, second = ran.outcomes[4], ran.outcomes[5]
    assert first.start + joins <= second.start < first.start + joins + 2 * LOOK
    assert all(len(times) == 1 for times in ran.began.values()), "a task began twice"


def test_what_waits_behind_a_long_task_is_handed_back_though_nobody_is_idle(
    tmp_path: Path,
) -> None:
    """
    The other worker has plenty to do; what waited behind the long task still comes first.
    """
    seconds = [SHORT, LONG, *[SHORT] * 1000]
    ran = carry_out(tmp_path, seconds, workers=[("lease", 1), ("lease", 1)], first=1)

    begun = ran.outcomes[1].start
    behind = [task for task in range(2, 30) if ran.outcomes[task].start < begun + LONG]
    assert len(behind) == 28
    assert max(ran.outcomes[task].start for task in behind) < begun + SOONEST + 2 * HORIZON


@settings(max_examples=examples(25))
@given(data=st.data())
def test_no_task_waits_while_a_worker_that_could_run_it_idles(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """
    Short and long tasks in any order, on workers of several leases; some tasks are bound to one.
    """
    chance = random.Random(data.draw(st.integers(0, 2**32), label="seed"))
    leases = ["a", "b"][: data.draw(st.integers(1, 2), label="leases")]
    workers = [(chance.choice(leases), chance.choice((1, 1, 2, 4))) for _ in range(3)]
    workers += [(lease, 1) for lease in leases]
    bound = data.draw(st.booleans(), label="bound")
    long = data.draw(st.sampled_from([0.0, 0.01, 0.1, 0.5]), label="share of long tasks")
    count = data.draw(st.integers(1, 400), label="tasks")
    seconds = [
        chance.uniform(0.3, 3.0) if chance.random() < long else chance.uniform(0.0005, 0.01)
        for _ in range(count)
    ]
    placed = [chance.choice(["", *leases]) for _ in seconds] if bound else None
    first = data.draw(st.integers(0, count), label="tasks there from the start")

    ran = carry_out(
        tmp_path_factory.mktemp("run"),
        seconds,
        workers=workers,
        placed=placed,
        first=None if bound else first,
    )

    assert sorted(ran.outcomes) == list(range(count))
    assert all(len(times) == 1 for times in ran.began.values()), "a task began twice"
    assert ran.longest_wait <= HORIZON + 2 * LOOK


def test_waiting_ends_soon_behind_a_task_that_is_longer_than_those_before() -> None:
    """Four times the mean of the last tasks, within two bounds; the upper one while none ended."""
    limit = WaitLimit()
    assert limit.seconds == HORIZON
    limit.learn(SHORT)
    assert limit.seconds == SOONEST
    limit.learn(LONG)
    assert limit.seconds == HORIZON
    for _ in range(30):
        limit.learn(0.02)
    assert limit.seconds == pytest.approx(0.08, rel=0.05)


def test_a_worker_that_is_asked_returns_all_only_behind_a_long_task() -> None:
    """All after twice the mean of the last tasks; before that as many as asked for and there."""
    limit = WaitLimit()
    assert limit.to_return(10, 4, LONG) == 4  # nothing is known
    limit.learn(0.02)
    assert limit.to_return(10, 4, 0.039) == 4
    assert limit.to_return(10, 4, 0.041) == 10
    assert limit.to_return(3, 4, 0.039) == 3
    assert limit.to_return(0, 4, LONG) == 0


def test_a_worker_is_asked_once_until_it_has_answered() -> None:
    """
    A worker that returned less than it was asked for is left alone until one of its tasks ends.
    """
    ended = [Outcome(task=0, attempt=1, status=Status.SUCCEEDED, start=0.0, end=0.001)]
    prefetch = Prefetch()
    assert prefetch.depth(1) == 0
    prefetch.learn(ended)
    assert prefetch.depth(1) == int(HORIZON / 0.001)

    prefetch.asked(10)
    assert not prefetch.may_ask
    prefetch.returned(10)
    assert prefetch.may_ask
    assert prefetch.depth(1) > 0

    prefetch.asked(10)
    prefetch.returned(9)
    assert not prefetch.may_ask
    assert prefetch.depth(1) == 0
    prefetch.learn(ended)
    assert prefetch.may_ask
    assert prefetch.depth(1) > 0

    prefetch.asked(2)
    prefetch.returned(4)  # more than it was asked for: a long task is in the way
    assert not prefetch.may_ask
    assert prefetch.depth(1) == 0
    prefetch.learn(ended)
    assert prefetch.may_ask

    prefetch.returned(3)  # unasked: a long task is in the way
    assert not prefetch.may_ask
    assert prefetch.depth(1) == 0

    prefetch.reconnected()
    assert prefetch.may_ask
