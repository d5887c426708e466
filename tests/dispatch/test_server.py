"""The dispatcher at its edges: strangers, money, retries, stopping, a journal that fails."""

import asyncio
import contextlib
import gc
import itertools
import math
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bursar.dispatch.wire import Hello, frame
from bursar.engine.dispatcher import Dispatcher
from bursar.model.campaign import Retry
from bursar.model.errors import BursarError
from bursar.model.money import Refusal, Transfer
from bursar.model.task import Exec, Outcome, Shell, Status, Task
from bursar_devtools.unlimited_spending import UnlimitedSpending


def nothing(count: int) -> list[Task]:
    """So many tasks that do nothing."""
    return [Task(id=f"t{i}") for i in range(count)]


def shell(line: str, id: str = "t", **more: Any) -> Task:
    """A task of one line."""
    return Task(id=id, steps=(Shell(line),), **more)


@pytest.mark.parametrize(
    "words",
    [
        frame(Hello("a guess", "w", "local", 1, "lease-1")),
        frame(Hello("", "w", "local", 1, "lease-1")),
        b"GET / HTTP/1.1\r\n\r\n",
        (5000).to_bytes(4, "big"),
        b"\0\0\0\2\xc1\xc1",
    ],
)
def test_a_stranger_is_hung_up_on(room: Any, words: bytes) -> None:
    """
    Whoever does not show the token is told nothing, not even a welcome.
    """

    async def knock() -> bytes:
        dispatcher = room.dispatcher(nothing(1))
        await dispatcher.start()
        reader, writer = await asyncio.open_connection(*dispatcher.address)
        writer.write(words)
        try:
            heard = await asyncio.wait_for(reader.read(), 5)
        except ConnectionResetError:
            heard = b""
        writer.close()
        assert dispatcher.figures.running() == {}
        await dispatcher.close()
        return heard

    assert asyncio.run(knock()) == b""


def test_only_this_machine_can_connect(room: Any) -> None:
    """
    The dispatcher listens on the loopback interface.
    """

    async def look() -> tuple[str, int]:
        dispatcher = room.dispatcher([])
        await dispatcher.start()
        address = dispatcher.address
        with socket.create_connection(address):
            pass
        await dispatcher.close()
        return address

    host, port = asyncio.run(look())

    assert host == "127.0.0.1"
    assert port > 0


def test_an_outcome_is_durable_before_anybody_is_told(room: Any) -> None:
    """
    Whatever the caller hears of, and whatever follows, has its cause in the journal.
    """
    commit = room.journal.commit
    order: list[str] = []

    def slow(records: Sequence[Any] = (), *more: Any) -> None:
        time.sleep(0.05)
        commit(records, *more)
        order.extend(f"written {r.outcome.task}" for r in records)

    room.journal.commit = slow
    mark = room.path / "started"
    tasks = [Task(id="a"), shell(f"date +%s.%N > {mark}", "b")]
    seen: list[float] = []

    class Told(list[Any]):
        def append(self, told: Any) -> None:
            order.append(f"told {told[0].task}")
            seen.append(time.time())

    room.told = Told()
    room.carry_out(tasks, [[], [0]])

    assert order == ["written 0", "told 0", "written 1", "told 1"]
    assert float(mark.read_text()) > seen[0] - 0.01


def test_a_failed_task_is_tried_again_and_succeeds(room: Any) -> None:
    """
    Each attempt is journalled; only the last one is final.
    """
    mark = room.path / "tries"
    line = f"echo x >> {mark}; test $(wc -l < {mark}) -ge 3"
    outcomes = room.carry_out([shell(line)])

    assert [(o.attempt, o.status) for o in outcomes] == [
        (1, Status.FAILED),
        (2, Status.FAILED),
        (3, Status.SUCCEEDED),
    ]
    assert [final for _, final in room.told] == [False, False, True]


def test_a_retry_waits(room: Any) -> None:
    """
    Backoff doubles: 0.1 s, then 0.2 s.
    """
    outcomes = room.carry_out([shell("false")], retry=Retry(attempts=3, backoff=0.1))

    gaps = [b.start - a.end for a, b in itertools.pairwise(outcomes)]
    assert len(gaps) == 2
    assert 0.1 <= gaps[0] < 0.2 <= gaps[1] < 0.5


def test_what_needs_a_failed_task_is_skipped(room: Any) -> None:
    """
    The others run; the failed one's descendants never do.
    """
    outcomes = room.carry_out(
        [shell("false", "a", retries=0), shell("true", "b"), shell("true", "c"), Task(id="d")],
        [[], [0], [1], []],
    )

    assert {o.task for o in outcomes} == {0, 3}
    assert (room.counts.failed, room.counts.skipped, room.counts.succeeded) == (1, 2, 1)


def test_a_diamond_runs_in_order(room: Any) -> None:
    """
    No task starts before its parents have ended.
    """
    lines = [shell("sleep 0.01", f"t{i}") for i in range(8)]
    parents: list[list[int]] = [[], [0], [0], [0], [1, 2], [2, 3], [4, 5], [6]]
    outcomes = room.carry_out(lines, parents)

    for outcome in outcomes:
        for parent in parents[outcome.task]:
            assert outcomes[parent].end <= outcome.start


def test_tasks_may_be_submitted_while_it_runs(room: Any) -> None:
    """
    The executor does nothing else.
    """
    found: list[int] = []

    async def submit(dispatcher: Dispatcher, workers: Any) -> None:
        for i in range(5):
            found.extend(dispatcher.submit([shell(f"echo {i}", f"s{i}")]))
            await dispatcher.wait()

    outcomes = room.carry_out([], meanwhile=submit)

    assert found == [0, 1, 2, 3, 4]
    assert [o.stdout for o in outcomes] == [b"0\n", b"1\n", b"2\n", b"3\n", b"4\n"]


def test_a_task_is_cancelled_running_or_not(room: Any, until: Any) -> None:
    """
    The running one is killed; the waiting one never starts; both are at their end.
    """
    mark = room.path / "up"

    async def cancel(dispatcher: Dispatcher, workers: Any) -> None:
        await until(mark.exists)
        assert dispatcher.cancel(1)
        assert not dispatcher.cancel(0)
        await dispatcher.wait()

    tasks = [shell(f"echo > {mark}; sleep 60", "a"), shell("true", "b")]
    outcomes = room.carry_out(tasks, [[], [0]], meanwhile=cancel)

    assert [(o.task, o.status) for o in outcomes] == [(0, Status.CANCELLED)]
    assert room.counts.cancelled == 2


def test_a_stopped_run_is_taken_up_again(room: Any, until: Any) -> None:
    """
    What had succeeded stays; what was stopped runs again and nothing runs twice.
    """
    flag = room.path / "second-life"
    line = f"test -e {flag} || {{ echo > {room.path}/up; sleep 60; }}"
    tasks = [shell("echo once", "a"), shell(line, "b"), shell("echo late", "c")]
    parents: list[list[int]] = [[], [0], [1]]

    async def stop(dispatcher: Dispatcher, workers: Any) -> None:
        await until((room.path / "up").exists)
        await dispatcher.stop("interrupted", grace=1.0)

    first = room.carry_out(tasks, parents, meanwhile=stop)
    flag.touch()
    both = room.carry_out(tasks, parents, past=first)

    assert [(o.task, o.attempt, o.status) for o in both] == [
        (0, 1, Status.SUCCEEDED),
        (1, 1, Status.CANCELLED),
        (1, 2, Status.SUCCEEDED),
        (2, 1, Status.SUCCEEDED),
    ]


def test_a_worker_that_outlives_its_connection_goes_on_with_its_task(room: Any, until: Any) -> None:
    """
    The connection breaks while a task runs: the worker comes back with it, and says how it ended.
    """
    up, go_on = room.path / "up", room.path / "go-on"

    async def lives() -> None:
        line = f"echo > {up}; until test -e {go_on}; do sleep 0.05; done"
        dispatcher = room.dispatcher([shell(line)], outlives=120.0, absence=120.0)
        async with room.running(dispatcher, 1):
            await until(up.exists)
            (worker,) = dispatcher._core.workers.values()
            before = worker.link
            before.abort()
            await until(lambda: worker.connected and worker.link is not before)
            go_on.touch()
            await dispatcher.wait()

    asyncio.run(lives())
    assert [(o.attempt, o.status, final) for o, final in room.told] == [(1, Status.SUCCEEDED, True)]


def test_draining_lets_running_tasks_end(room: Any, until: Any) -> None:
    """
    Nothing more starts.
    """
    mark = room.path / "up"

    async def drain(dispatcher: Dispatcher, workers: Any) -> None:
        await until(mark.exists)
        dispatcher.drain()
        await dispatcher.wait()

    tasks = [shell(f"echo > {mark}; sleep 0.1", f"t{i}") for i in range(20)]
    outcomes = room.carry_out(tasks, processors=2, meanwhile=drain)

    assert 1 <= len(outcomes) <= 2
    assert {o.status for o in outcomes} == {Status.SUCCEEDED}
    assert room.counts.waiting == 20 - len(outcomes)


class Purse(UnlimitedSpending):
    """
    Money for so many tasks; then a refusal.

    Holds one unit for each task that may start.
    """

    def __init__(self, tasks: int, *, final: bool, limit: float = math.inf) -> None:
        self.left = tasks
        self.final = final
        self.limit = limit
        self.asked = 0
        self.moved: list[Transfer] = []

    def admit(self, task: int, site: str, now: float) -> float | Refusal:
        self.asked += 1
        if not self.left:
            return Refusal("the budget is spent", final=self.final)
        self.left -= 1
        self.moved.append(Transfer(0, now, "", "hold", "budget", "held", 1, memo=f"{task}"))
        return self.limit

    def withdraw(self, task: int, now: float) -> None:
        self.left += 1
        self.moved.append(Transfer(0, now, "", "release", "held", "budget", 1, memo=f"{task}"))

    def settle(self, outcomes: Sequence[Outcome], now: float) -> Sequence[Transfer]:
        return [
            Transfer(0, now, "", "settle", "held", "site", 1, memo=f"{o.task}") for o in outcomes
        ]

    def transfers(self) -> Sequence[Transfer]:
        moved, self.moved = self.moved, []
        return moved


def test_money_is_set_aside_before_and_paid_with_the_outcome(room: Any) -> None:
    """
    Each task's hold stands in the journal before its settlement, once each.
    """
    room.carry_out([shell("true", f"t{i}") for i in range(5)], guard=Purse(5, final=True))

    for task in range(5):
        kinds = [t.kind for t in room.state.transfers if t.memo == str(task)]
        assert kinds[-2:] == ["hold", "settle"]
        # What was given back to be run by the other worker was held before, and released.
        assert kinds[:-2] in ([], ["hold", "release"])


def test_work_is_sent_after_its_hold_is_durable(room: Any) -> None:
    """
    A crash between the two must not leave unpaid work running.
    """
    commit = room.journal.commit
    mark = room.path / "started"
    early: list[bool] = []

    def slow(records: Any = (), transfers: Sequence[Transfer] = (), *others: Any) -> None:
        if any(t.kind == "hold" for t in transfers):
            time.sleep(0.1)
            early.append(mark.exists())
        commit(records, transfers, *others)

    room.journal.commit = slow
    room.carry_out([shell(f"echo > {mark}")], guard=Purse(1, final=True))

    assert early == [False]
    assert mark.exists()


def test_a_final_refusal_ends_the_run(room: Any) -> None:
    """
    What there is money for runs; the rest is refused and the reason kept.
    """
    outcomes = room.carry_out(nothing(5), guard=Purse(3, final=True))

    assert len(outcomes) == 3
    assert (room.counts.succeeded, room.counts.refused) == (3, 2)


def test_a_refusal_for_now_is_asked_again(room: Any) -> None:
    """
    Even if nothing else happens that could bring it to mind.
    """
    purse = Purse(0, final=False)

    async def pay(dispatcher: Dispatcher, workers: Any) -> None:
        while purse.asked < 1:
            await asyncio.sleep(0.005)
        purse.left = 1
        await dispatcher.wait()

    (outcome,) = room.carry_out(nothing(1), guard=purse, meanwhile=pay)

    assert outcome.status is Status.SUCCEEDED


def test_no_task_runs_longer_than_its_money(room: Any) -> None:
    """
    The limit is the shorter one of the task's own and the admitted.
    """
    outcomes = room.carry_out(
        [shell("sleep 60", "a"), shell("sleep 60", "b", wall_limit=0.1)],
        guard=Purse(2, final=True, limit=0.2),
        retry=Retry(attempts=1),
    )

    assert [o.status for o in outcomes] == [Status.TIMED_OUT] * 2
    assert "0.2 s" in outcomes[0].reason
    assert "0.1 s" in outcomes[1].reason


def test_a_guard_that_fails_stops_the_run(room: Any) -> None:
    """
    An error always reaches who waits, however deep it came up.
    """

    class Broken(UnlimitedSpending):
        def admit(self, task: int, site: str, now: float) -> float | Refusal:
            raise RuntimeError("lost count")

    with pytest.raises(BursarError, match="RuntimeError: lost count"):
        room.carry_out(nothing(1), guard=Broken())


def test_a_full_disk_stops_the_run_with_nothing_acknowledged(room: Any) -> None:
    """
    One clear line, and nobody was told of what is not written.
    """
    limit = room.journal._db.execute("PRAGMA page_count").fetchone()[0] + 1
    room.journal._db.execute(f"PRAGMA max_page_count={limit}")
    tasks = [
        Task(id=f"t{i}", steps=(Exec(("head", "-c", "20000", "/dev/zero")),)) for i in range(9)
    ]

    with pytest.raises(BursarError, match=r"journal\.sqlite: database or disk is full"):
        room.carry_out(tasks)

    written = {(o.task, o.attempt) for o in room.state.attempts}
    assert {(o.task, o.attempt) for o, _ in room.told} == written
    assert len(written) < 9


def test_work_that_cannot_be_sent_fails_by_itself(room: Any, monkeypatch: Any) -> None:
    """
    One task too large must not stop the others.
    """
    monkeypatch.setattr("bursar.engine.worker_connection.MAX_PIECE", 5000)
    outcomes = room.carry_out(
        [shell("echo " + "x" * 6000, "large", retries=0), shell("echo small", "small")]
    )

    assert [o.status for o in outcomes] == [Status.FAILED, Status.SUCCEEDED]
    assert "bytes, more than" in outcomes[0].reason


def test_large_jobs_travel_in_several_frames(room: Any, monkeypatch: Any) -> None:
    """
    However much work waits, a frame stays small.
    """
    monkeypatch.setattr("bursar.engine.worker_connection.BATCH_SIZE", 20000)
    outcomes = room.carry_out([shell(": " + "x" * 9000 + "; exit 0", f"t{i}") for i in range(30)])

    assert {o.status for o in outcomes} == {Status.SUCCEEDED}


def test_an_error_in_who_is_told_stops_the_run(room: Any) -> None:
    """
    It is the caller's bug; swallowed, it would look like a run that never ends.
    """

    class Deaf(list[Any]):
        def append(self, told: Any) -> None:
            raise KeyError("whoever")

    room.told = Deaf()
    with pytest.raises(BursarError, match="KeyError"):
        room.carry_out(nothing(1))


@pytest.mark.parametrize("rounds", range(6))
def test_who_connects_while_it_closes_is_not_left_open(room: Any, rounds: int) -> None:
    """However far the loop has come with the connection: its socket is closed with the loop."""

    async def main() -> None:
        dispatcher = room.dispatcher([])
        await dispatcher.start()
        guests.append(socket.create_connection(dispatcher.address))
        for _ in range(rounds):
            await asyncio.sleep(0)
        await dispatcher.close()

    guests: list[socket.socket] = []
    asyncio.run(main())
    (guest,) = guests
    guest.settimeout(20.0)
    with guest, contextlib.suppress(ConnectionError):
        assert guest.recv(1) == b""
    gc.collect()  # would warn of a socket that was left open


def test_where_no_thread_is_to_be_had_the_run_ends(room: Any, monkeypatch: Any) -> None:
    """
    Nothing can be journalled then, and nobody would come back to it.
    """
    submit = ThreadPoolExecutor.submit

    def refuse(self: ThreadPoolExecutor, *given: Any, **more: Any) -> Any:
        if self._thread_name_prefix == "bursar-journal":
            raise RuntimeError("can't start new thread")
        return submit(self, *given, **more)

    async def carry_out() -> None:
        dispatcher = room.dispatcher([])
        await dispatcher.start()
        with monkeypatch.context() as patched:
            patched.setattr(ThreadPoolExecutor, "submit", refuse)
            dispatcher.store.note("begin", "")
            with pytest.raises(BursarError, match=r"the dispatcher stopped: .*start new thread"):
                await asyncio.wait_for(dispatcher.store.written(), 20)
            with pytest.raises(BursarError, match="start new thread"):
                await asyncio.wait_for(dispatcher.wait(), 20)
        await dispatcher.close()

    asyncio.run(carry_out())
