"""Real workers return jobs that wait behind a long one; none of them runs twice."""

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.worker.minimal_dispatcher import Server, job, working

import bursar
from bursar.dispatch.wire import JobRecall, LeaveOrder
from bursar.engine.dispatcher import Dispatcher
from bursar.model.campaign import Retry
from bursar.model.task import Shell, Status, Task
from bursar.worker.launch import LocalWorkers

Until = Callable[[Callable[[], bool]], Awaitable[None]]


@pytest.mark.parametrize("outlives", [0.0, 20.0])
def test_a_worker_returns_unasked_what_waits_behind_a_long_job(
    tmp_path: Path, until: Until, outlives: float
) -> None:
    """
    All of it comes back, the last first, while the long job runs on; jobs that come later while it
    runs come back, too.
    """

    async def main() -> None:
        server = Server(tmp_path, outlives)
        server.records, server.gives_again = bool(outlives), False
        gate = tmp_path / "gate"
        os.mkfifo(gate)
        async with working(server, processors=1):
            await until(lambda: bool(server.hellos))
            server.give(job(1, f"read line < {gate}"), job(2), job(3), job(4))
            await until(lambda: bool(server.returned))
            assert server.returned == [[(4, 1), (3, 1), (2, 1)]]
            server.give(job(5))
            await until(lambda: len(server.returned) == 2)
            assert server.returned[1] == [(5, 1)]
            assert server.heard == []
            await asyncio.to_thread(gate.write_text, "on\n")
            await until(lambda: 1 in server.results)
            server.give(job(2, attempt=2))
            await until(lambda: 2 in server.results)
            assert list(server.results) == [1, 2]

    asyncio.run(main())


def test_a_worker_answers_although_it_has_nothing_to_return(tmp_path: Path, until: Until) -> None:
    """
    Who asks for jobs back knows then that all have begun.
    """

    async def main() -> None:
        server = Server(tmp_path, 0.0)
        async with working(server):
            await until(lambda: bool(server.hellos))
            server.say(JobRecall(7))
            await until(lambda: bool(server.returned))
            assert server.returned == [[]]

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(3))
def test_each_job_is_begun_or_returned_and_never_both(
    tmp_path: Path, until: Until, seed: int
) -> None:
    """
    The worker is asked for jobs back at random moments while it begins others.
    """
    count = 300
    chance = random.Random(seed)
    begun = tmp_path / "begun"
    begun.touch()

    async def main() -> None:
        server = Server(tmp_path, 0.0)
        server.records = server.gives_again = False
        async with working(server) as process:
            await until(lambda: bool(server.hellos))
            given = asked = 0
            while given < count:
                more = min(chance.randint(1, 40), count - given)
                server.give(*(job(given + i, f"echo {given + i} >> {begun}") for i in range(more)))
                given += more
                for _ in range(chance.randint(0, 3)):
                    await asyncio.sleep(chance.uniform(0, 0.01))
                    server.say(JobRecall(chance.randint(1, 10)))
                    asked += 1
            returned: set[int] = set()

            def is_over() -> bool:
                returned.update(task for jobs in server.returned for task, _ in jobs)
                return len(server.results) + len(returned) >= count

            await until(is_over)
            await until(lambda: len(server.returned) >= asked)
            server.say(LeaveOrder())
            await asyncio.wait_for(process.wait(), 20)

            assert returned.isdisjoint(server.results)
            assert returned | set(server.results) == set(range(count))
            assert sum(map(len, server.returned)) == len(returned)
            assert Counter(map(int, begun.read_text().split())) == Counter(list(server.results))

    asyncio.run(main())


def _kill_at_random(room: Any, seed: int, kills: int) -> None:
    """Tasks that may run once, some long, on workers that are killed; none begins twice."""
    chance = random.Random(seed)
    begun = room.path / "begun"
    begun.touch()
    count = 60 * kills
    tasks = [
        Task(
            id=f"t{i}",
            steps=(Shell(f"echo {i} >> {begun}; sleep {0.4 if chance.random() < 0.03 else 0}"),),
        )
        for i in range(count)
    ]

    async def kill(dispatcher: Dispatcher, workers: LocalWorkers) -> None:
        returned = 0
        hear = dispatcher._local_workers.on_message

        def heard(connection: Any, message: Any) -> None:
            nonlocal returned
            hear(connection, message)
            if hasattr(message, "jobs") and message.jobs:
                returned += 1

        dispatcher._local_workers.on_message = heard  # type: ignore[method-assign]
        for _ in range(kills):
            seen = returned
            # Just when something is handed back, or a moment later.
            while returned == seen and not dispatcher.figures.is_done:
                await asyncio.sleep(0.002)
            await asyncio.sleep(chance.choice((0.0, chance.uniform(0, 0.02))))
            pids = list(workers.pids.values())
            if pids and not dispatcher.figures.is_done:
                os.kill(chance.choice(pids), signal.SIGKILL)

    outcomes = room.carry_out(tasks, retry=Retry(attempts=1), meanwhile=kill)

    assert Counter(outcome.task for outcome in outcomes) == Counter(range(count))
    succeeded = {o.task for o in outcomes if o.status is Status.SUCCEEDED}
    assert {o.status for o in outcomes} <= {Status.SUCCEEDED, Status.LOST}
    times = Counter(map(int, begun.read_text().split()))
    assert set(times.values()) <= {1}, "a task began twice"
    assert succeeded <= set(times)


def test_no_task_begins_twice_when_workers_are_killed_as_they_return_jobs(room: Any) -> None:
    """
    A task that may run only once and was handed back runs elsewhere; one that may have begun where
    the worker was killed does not.
    """
    _kill_at_random(room, seed=0, kills=3)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 21))
def test_no_task_begins_twice_over_many_kills(room: Any, seed: int) -> None:
    """
    Twenty runs of ten kills each.
    """
    _kill_at_random(room, seed=seed, kills=10)


def _nothing() -> None:
    pass


def _meet(mine: str, other: str) -> bool:
    """Whether another call begins while this one runs; waited for at length, not for a time."""
    import time
    from pathlib import Path

    Path(mine).touch()
    give_up = time.monotonic() + 60
    while not Path(other).exists():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.01)
    return True


def _long_calls_meet(folder: Path, short: int) -> bool:
    """Whether two calls that wait for each other, with short ones behind, run side by side."""
    folder.mkdir()
    one, two = str(folder / "one"), str(folder / "two")
    with bursar.Executor(2) as executor:
        executor.submit(_nothing).result()
        long = [executor.submit(_meet, one, two), executor.submit(_meet, two, one)]
        others = [executor.submit(_nothing) for _ in range(short)]
        for future in others:
            future.result()
        return all(future.result() for future in long)


def test_two_long_calls_of_an_executor_run_side_by_side(tmp_path: Path) -> None:
    """
    They follow each other at once, so that a worker gets both when it takes them for short.
    """
    assert _long_calls_meet(tmp_path / "calls", 200)


@pytest.mark.long
def test_two_long_calls_run_side_by_side_in_all_of_many_trials(tmp_path: Path) -> None:
    """
    One short call, then two long ones and 2,000 short ones, a hundred times.
    """
    met = [_long_calls_meet(tmp_path / str(trial), 2000) for trial in range(100)]

    assert met == [True] * 100
