"""Workers that go on without their dispatcher: real ones, over real sockets that are cut."""

import asyncio
import os
import pickle
import random
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.worker.minimal_dispatcher import Server, job, working

from bursar.dispatch.prefetch import HORIZON
from bursar.dispatch.wire import (
    LONGEST_REASON,
    CancelTasks,
    Hello,
    LeaveOrder,
    LeaveRequest,
    OutcomeAck,
)
from bursar.model.task import Call, Exec, Outcome, Status
from bursar.worker.python_calls import encode_call

Until = Callable[[Callable[[], bool]], Awaitable[None]]


def test_a_task_outlives_the_connection_and_the_server(tmp_path: Path, until: Until) -> None:
    """
    The server is killed and comes again: the same process ends, and is told of once.
    """

    async def main() -> None:
        server = Server(tmp_path)
        async with working(server) as process:
            await until(lambda: bool(server.hellos))
            gate = tmp_path / "gate"
            os.mkfifo(gate)
            server.give(job(7, f"echo $$ > {tmp_path}/pid; read line < {gate}; echo $$ $line"))
            await until((tmp_path / "pid").exists)
            await server.close()
            await server.open()
            await until(lambda: len(server.hellos) == 2)
            assert server.hellos[0].holds == ()
            assert server.hellos[1].holds == ((7, 1),)
            assert server.hellos[1].host == os.uname().nodename
            await asyncio.to_thread(gate.write_text, "on\n")
            await until(lambda: 7 in server.results)
            pid = (tmp_path / "pid").read_text().strip()
            assert server.results[7].stdout.decode() == f"{pid} on\n"

            server.say(LeaveOrder())
            async with asyncio.timeout(20):
                assert await process.wait() == 0
        assert len(server.heard) == 1

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(3))
def test_cut_anywhere_every_result_comes(tmp_path: Path, until: Until, seed: int) -> None:
    """
    Connections break after a few frames, again and again; nothing is lost, nothing runs twice.
    """
    count = 60

    async def main() -> None:
        chance = random.Random(seed)
        server = Server(tmp_path)
        server.cut_after = lambda: chance.randint(1, 5)
        started = tmp_path / "started"
        given: set[int] = set()

        def give_some() -> None:
            missing = sorted(set(range(count)) - given - server.results.keys())[:4]
            given.update(missing)
            server.give(*(job(task, f"echo {task} >> {started}; echo {task}") for task in missing))

        def begin_with(hello: Hello) -> None:
            given.clear()
            given.update(task for task, _ in hello.holds)
            give_some()

        server.on_hello, server.on_results = begin_with, give_some
        async with working(server):
            await until(lambda: len(server.results) == count)
        assert len(server.hellos) > 2
        for task, outcome in server.results.items():
            assert (outcome.status, outcome.stdout) == (Status.SUCCEEDED, b"%d\n" % task)
        assert sorted(map(int, started.read_text().split())) == sorted(range(count))

    asyncio.run(main())


def test_what_is_not_durable_is_said_again_in_order(tmp_path: Path, until: Until) -> None:
    """
    The server heard them and died before it wrote them down.
    """

    async def main() -> None:
        server = Server(tmp_path)
        server.records = False
        async with working(server, processors=1) as process:
            await until(lambda: bool(server.hellos))
            server.give(*(job(task, f"echo {task}") for task in range(5)))
            await until(lambda: len(server.heard) == 5)
            server.say(OutcomeAck(2))
            await asyncio.sleep(0.05)  # else the word is lost with the connection
            server.cut()
            await until(lambda: len(server.hellos) == 2 and len(server.heard) == 8)
            assert server.hellos[1].holds == ((2, 1), (3, 1), (4, 1))
            assert [o.task for o in server.heard[5:]] == [2, 3, 4]
            # It leaves when the last is durable, not before: it even comes back for that.
            server.say(LeaveOrder())
            await asyncio.sleep(0.05)
            server.cut()
            await until(lambda: len(server.heard) == 11)
            server.say(OutcomeAck(3))
            async with asyncio.timeout(20):
                assert await process.wait() == 0

    asyncio.run(main())


def test_a_job_that_comes_again_does_not_run_again(tmp_path: Path, until: Until) -> None:
    """
    A server that forgot to whom it gave a task may give it to the same worker once more.
    """

    async def main() -> None:
        server = Server(tmp_path)
        server.records = False
        again = job(1, f"echo x >> {tmp_path}/ran")
        async with working(server):
            await until(lambda: bool(server.hellos))
            server.give(again)
            await until(lambda: bool(server.heard))
            server.give(again, job(2, "true"))
            await until(lambda: 2 in server.results)
            server.give(again)
            await asyncio.sleep(0.05)
        assert (tmp_path / "ran").read_text() == "x\n"

    asyncio.run(main())


def test_held_tasks_can_be_cancelled_after_coming_back(tmp_path: Path, until: Until) -> None:
    """
    Running and waiting ones alike, each with an outcome.

    What waits is behind an attempt that waits for the one before, not for a processor: jobs that
    wait for a processor are returned after a moment, which a busy machine takes to come here.
    """

    async def main() -> None:
        server = Server(tmp_path)
        async with working(server, processors=2):
            await until(lambda: bool(server.hellos))
            again = job(1, "echo never", attempt=2)
            server.give(job(1, f"touch {tmp_path}/on; sleep 60"), again, job(2, "echo never"))
            await until((tmp_path / "on").exists)
            await asyncio.sleep(2 * HORIZON)
            server.cut()
            await until(lambda: len(server.hellos) == 2)
            server.say(CancelTasks([1, 2, 99], 0.0, "not wanted"))
            await until(lambda: len(server.heard) == 3)
        assert server.returned == []
        assert server.hellos[1].holds == ((1, 1), (1, 2), (2, 1))
        assert {(o.task, o.attempt) for o in server.heard} == {(1, 1), (1, 2), (2, 1)}
        assert {o.status for o in server.heard} == {Status.CANCELLED}

    asyncio.run(main())


def test_what_waited_too_long_is_returned_before_it_can_be_cancelled(
    tmp_path: Path, until: Until
) -> None:
    """
    The connection is away for longer than a job waits: what is returned has no outcome.
    """

    async def main() -> None:
        server = Server(tmp_path)
        server.gives_again = False
        async with working(server, processors=1):
            await until(lambda: bool(server.hellos))
            server.give(job(1, f"touch {tmp_path}/on; sleep 60"), job(2, "echo never"))
            await until((tmp_path / "on").exists)
            await server.close()
            await asyncio.sleep(2 * HORIZON)
            await server.open()
            await until(lambda: bool(server.returned))
            server.say(CancelTasks([1, 2], 0.0, "not wanted"))
            await until(lambda: 1 in server.results)
        assert server.returned == [[(2, 1)]]
        assert [(o.task, o.status) for o in server.heard] == [(1, Status.CANCELLED)]

    asyncio.run(main())


def test_without_a_server_for_ever_it_ends_and_so_does_what_it_runs(
    tmp_path: Path, until: Until
) -> None:
    """
    When it has outlived the connection by as long as it was told to, nothing is left behind.
    """

    async def main() -> None:
        server = Server(tmp_path, outlives=0.3)
        async with working(server) as process:
            await until(lambda: bool(server.hellos))
            server.give(job(1, f"echo $$ > {tmp_path}/pid; exec sleep 60"))
            await until(
                lambda: (tmp_path / "pid").exists() and bool((tmp_path / "pid").read_text())
            )
            await server.close()
            async with asyncio.timeout(20):
                assert await process.wait() == 0
            await server.open()
        assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()

    asyncio.run(main())


def test_a_server_that_speaks_nonsense_is_left_and_found_again(
    tmp_path: Path, until: Until
) -> None:
    """
    Bytes that are no frame, durable outcomes nobody said: a new connection, the same tasks.
    """

    async def main() -> None:
        server = Server(tmp_path)
        async with working(server):
            await until(lambda: bool(server.hellos))
            os.mkfifo(tmp_path / "gate")
            server.give(job(1, f"read line < {tmp_path}/gate"))
            server.say(OutcomeAck(5))
            await until(lambda: len(server.hellos) == 2)
            assert server.writer is not None
            server.writer.write(b"\0\0\0\5hello")
            await until(lambda: len(server.hellos) == 3)
            server.writer.write(b"\xff" * 100)
            await until(lambda: len(server.hellos) == 4)
            assert server.hellos[3].holds == ((1, 1),)
            server.say(CancelTasks([], 0.0, "over"))
            await until(lambda: 1 in server.results)

    asyncio.run(main())


@pytest.mark.parametrize("is_there", [True, False])
def test_told_to_end_it_ends_its_tasks_and_says_so(
    tmp_path: Path, until: Until, is_there: bool
) -> None:
    """
    SIGTERM, with a server and without one that comes back in time.
    """

    async def main() -> None:
        server = Server(tmp_path)
        async with working(server) as process:
            await until(lambda: bool(server.hellos))
            server.give(job(1, f"touch {tmp_path}/on; sleep 60"))
            await until((tmp_path / "on").exists)
            if not is_there:
                await server.close()
            process.send_signal(signal.SIGTERM)
            if not is_there:
                await asyncio.sleep(0.1)
                await server.open()
            await until(lambda: 1 in server.results and bool(server.goodbyes))
            assert server.results[1].status is Status.CANCELLED
            assert server.goodbyes == [LeaveRequest(must=True)]
            server.say(LeaveOrder())
            async with asyncio.timeout(20):
                assert await process.wait() == 0

    asyncio.run(main())


def test_idle_and_alone_it_ends_at_once_when_told_to(tmp_path: Path, until: Until) -> None:
    """
    Nobody is there and there is nothing to tell: it does not wait for its parting to be over.
    """

    async def main() -> None:
        server = Server(tmp_path, outlives=1000.0)
        async with working(server) as process:
            await until(lambda: bool(server.hellos))
            await server.close()
            await asyncio.sleep(0.1)
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(4):  # less than a parting
                assert await process.wait() == 0
            await server.open()

    asyncio.run(main())


def test_a_worker_sends_no_more_than_its_dispatcher_takes(tmp_path: Path, until: Until) -> None:
    """
    A value that is too large fails the call; a reason that repeats a long word is cut. Else the
    connection would be ended for it, and the next one, too.
    """

    def call(size: int) -> tuple[Call, ...]:
        return (Call(encode_call(pickle.dumps((bytes, (size,), {})))),)

    async def main() -> dict[int, Outcome]:
        server = Server(tmp_path)
        server.largest_value = 1000
        async with working(server):
            await until(lambda: bool(server.hellos))
            server.give(
                job(1, steps=call(100)),
                job(2, steps=call(1000)),
                job(3, steps=(Exec(("/" + "x" * 10_000,)),)),
            )
            await until(lambda: len(server.results) == 3)
        return server.results

    results = asyncio.run(main())
    assert pickle.loads(results[1].value) == bytes(100)
    assert results[2].status is Status.FAILED
    assert results[2].reason.endswith("more than the 1000 there is room for")
    assert len(results[3].reason) == LONGEST_REASON
