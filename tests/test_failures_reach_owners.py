"""Faults of ours in tasks that nobody awaits reach their owners: each was once lost in silence."""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from bursar.broker.information_index import InformationIndex
from bursar.broker.status_feeds import StatusPoller
from bursar.dispatch.worker_listener import WorkerListener
from bursar.model.allocation import Allocation
from bursar.model.matching import SiteStatus
from bursar.provisioning.lrm.resource_manager import JobRequest
from bursar.runs import campaign_run
from bursar.service import runner
from bursar.service.config import HttpLimits
from bursar.service.http.http_messages import StreamingResponse
from bursar.service.http.limiters import ConnectionAcceptor
from bursar.service.http.sending import send_streaming_response
from bursar.simulation.virtual_loop import VirtualLoop
from bursar.sites.remote.held import HeldInstance
from bursar.store import DiskBroken, RealDisk, RecordStore
from bursar.worker import launch
from bursar.worker.launch import Endpoint, LocalWorkers
from bursar_devtools.faults import seed_verdict
from bursar_devtools.faults.fault_simulation import FaultSimulation
from bursar_devtools.fork_manager import ForkManager

T = TypeVar("T")

WRONG = ArithmeticError("of ours")


def run(story: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a story on virtual time; what waits for ever fails."""
    with asyncio.Runner(loop_factory=VirtualLoop) as on:
        return on.run(story())


async def fails(*_: object, **__: object) -> Any:
    raise WRONG


def raises(*_: object) -> Any:
    raise WRONG


def test_who_waits_for_the_first_round_hears_that_there_will_be_none() -> None:
    """
    A round whose report failed was heard of at the end of the run only; no site was asked again.
    """

    async def block(heard: list[BaseException]) -> None:
        loop = asyncio.get_running_loop()
        index = InformationIndex(clock=loop.time, expiry=100.0)
        sites = {"a": lambda: SiteStatus(site="a", at=loop.time(), free_processors=1)}
        async with StatusPoller(index, sites, on_round=raises) as poller, asyncio.timeout(50):
            try:
                await poller.wait_for_all()
            except ArithmeticError as error:
                heard.append(error)

    async def story() -> list[BaseException]:
        heard: list[BaseException] = []
        with pytest.raises(ArithmeticError, match="of ours"):
            await block(heard)
        return heard

    assert run(story) == [WRONG]


def test_a_site_whose_answer_cannot_be_taken_in_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The task that asked the site ended, and the site's entry expired without a word.
    """

    async def story() -> tuple[int, list[str]]:
        loop = asyncio.get_running_loop()
        asked: list[float] = []
        told: list[str] = []
        index = InformationIndex(
            clock=loop.time, expiry=100.0, on_fault=lambda site, reason: told.append(reason)
        )
        monkeypatch.setattr(index, "receive_status", raises)
        async with StatusPoller(index, {"a": lambda: asked.append(loop.time())}, every=10):
            await asyncio.sleep(35)
        return len(asked), told[:1]

    assert run(story) == (4, ["ArithmeticError: of ours"])


def test_a_worker_that_cannot_be_watched_is_given_up_aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Its watch ended, the worker was never replaced, and nobody was told.
    """

    class Process:
        pid = 1
        killed = False

        async def wait(self) -> int:
            raise WRONG

        def kill(self) -> None:
            self.killed = True

        def close(self) -> None: ...

    process = Process()

    class Starter:
        def adopt(self, name: str, run: str) -> Process:
            return process

        async def clear(self, lease: str) -> None: ...

    async def story() -> tuple[int, list[str]]:
        told: list[str] = []
        workers = LocalWorkers(
            "here", "lease-1", 1, rigid=True, on_event=told.append, starter=cast(Any, Starter())
        )
        await workers.start(Endpoint(address=("127.0.0.1", 1), token="", run="run"))
        await asyncio.sleep(1)
        left = workers.workers
        await workers.release()
        return left, told

    monkeypatch.setattr(launch, "kill_leftovers", lambda *_: None)
    assert run(story) == (0, ["worker here-lease-1-0 is given up: ArithmeticError: of ours"])
    assert process.killed


def test_a_listener_that_accepts_no_more_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The task that accepted connections ended, and no worker got in any more.
    """
    monkeypatch.setattr(WorkerListener, "_make_room", fails)

    async def story() -> list[BaseException]:
        heard: list[BaseException] = []
        failed = asyncio.Event()

        def hear(error: BaseException) -> None:
            heard.append(error)
            failed.set()

        listener = WorkerListener(cast(Any, None), 30.0, hear)
        monkeypatch.setattr("bursar.dispatch.worker_listener.Handshakes", lambda *_, **__: None)
        address = listener.open("127.0.0.1", lambda: cast(Any, None))
        with socket.create_connection(address):
            async with asyncio.timeout(60):
                await failed.wait()
        await listener.close()
        return heard

    assert asyncio.run(story()) == [WRONG]


def test_a_connection_that_fails_by_a_fault_of_ours_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """
    Only the garbage collector said so, if at all; the connection is closed.
    """

    async def story() -> bytes:
        acceptor = ConnectionAcceptor(cast(Any, raises), None, HttpLimits())
        await acceptor.bind("127.0.0.1", 0)
        acceptor.start()
        reader, writer = await asyncio.open_connection(*acceptor.sockets[0].getsockname()[:2])
        async with asyncio.timeout(60):
            said = await reader.read()
        writer.close()
        await acceptor.close()
        return said

    with caplog.at_level(logging.ERROR):
        assert asyncio.run(story()) == b""
    assert "a connection could not be accepted" in caplog.text


@pytest.mark.parametrize("part", ["_write", "_inspect"])
def test_a_fault_of_ours_in_the_store_ends_the_service(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, part: str
) -> None:
    """
    A commit that nobody awaited was lost; without a look at the disk, it would stay full for ever.
    """

    async def story() -> str:
        disk = RealDisk(tmp_path)
        store = RecordStore(disk, reserve=0, least_free=1 << 60)
        await store.open()
        monkeypatch.setattr(store, part, fails)
        if part == "_write":
            store.append(1, b"x", essential=True)
            store._commit_soon()
        else:
            assert store.problem
        async with asyncio.timeout(60):
            reason = await store.failed()
        with contextlib.suppress(DiskBroken):
            await store.close()
        disk.close()
        return reason

    assert "ArithmeticError: of ours" in run(story)


def test_processors_whose_watch_fails_are_lost() -> None:
    """
    An answer of the service that could not be understood ended the watch: the processors were
    counted as held for ever.
    """

    async def story() -> object:
        session = SimpleNamespace(handle="i1", client=None)
        held = HeldInstance(
            cast(Allocation, SimpleNamespace(name="p", site="far", processors=1)),
            cast(Any, session),
            cast(Any, None),
            fails,
            fails,
            "data",
        )
        monkey = SimpleNamespace(open=lambda: None, close=lambda: None)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("bursar.sites.remote.held.ProxyWorker", lambda *_, **__: monkey)
            held.open(cast(Any, None))
        async with asyncio.timeout(60):
            return await held.lost()

    assert run(story) == ("lost", "ArithmeticError: of ours")


def test_a_failed_watch_beside_a_run_is_told_and_the_run_goes_on() -> None:
    """
    Nobody heard when goals could not be changed any more, or an account was no longer charged.
    """
    said: list[str] = []

    async def story() -> None:
        execution = SimpleNamespace(notify=said.append, finish=lambda: asyncio.sleep(5))
        await campaign_run._finish(cast(Any, execution), {"the watch for a better plan": fails()})

    run(story)
    assert said == [
        "the watch for a better plan has failed, the run goes on: ArithmeticError: of ours"
    ]


def test_a_job_that_cannot_be_started_for_any_reason_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """
    An error other than the system's left the job running for ever, with its processors.
    """
    monkeypatch.setattr(asyncio, "create_subprocess_exec", fails)

    async def story() -> tuple[str, str]:
        manager = ForkManager(1)
        request = JobRequest(
            name="job", processors=1, seconds=60.0, script="true", folder=str(tmp_path)
        )
        jobs = await manager.submit(request)
        end = time.monotonic() + 60
        while (report := (await manager.poll(jobs))[jobs[0]]).state != "ended":
            assert time.monotonic() < end
            await asyncio.sleep(0.01)
        await manager.close()
        return str(report.how), report.reason

    assert asyncio.run(story()) == ("failed", "it cannot be started: ArithmeticError: of ours")


PARTS = ("_follow_clock", "_notify_watchdog", "_forecast")


@pytest.mark.parametrize("part", PARTS)
def test_a_service_does_not_go_on_without_its_clock_or_its_watchdog(part: str) -> None:
    """
    The service went on serving: billing by a clock that nobody followed.
    """

    async def story() -> None:
        serving = object.__new__(runner.ServiceRunner)
        serving._ending = asyncio.Event()
        for name in PARTS:
            setattr(serving, name, fails if name == part else lambda *_: asyncio.sleep(1e6))
        service = SimpleNamespace(failed=asyncio.Event().wait)
        async with asyncio.timeout(60):
            await serving._serve(cast(Any, service))

    with pytest.raises(ArithmeticError, match="of ours"):
        run(story)


def test_a_drain_that_fails_is_not_taken_for_one_that_is_done() -> None:
    """
    The service ended as if all tasks had been waited for.
    """

    async def story() -> None:
        serving = object.__new__(runner.ServiceRunner)
        serving._second_signal = asyncio.Event()
        await serving._drain(cast(Any, SimpleNamespace(drain=fails)), 5.0)

    with pytest.raises(ArithmeticError, match="of ours"):
        run(story)


def test_a_stream_whose_end_cannot_be_awaited_is_no_stream_that_has_ended() -> None:
    """
    The client got a whole answer that was not whole.
    """

    async def pieces() -> Any:
        yield b"a"
        await asyncio.sleep(1e6)

    async def story() -> list[str]:
        sent: list[str] = []

        async def send(message: Any) -> None:
            sent.append(message["type"])

        stream = StreamingResponse(pieces(), "text/plain")
        with pytest.raises(ArithmeticError, match="of ours"):
            await send_streaming_response(stream, send, bare=False, over=fails, seconds=None)
        return sent

    assert run(story)[:1] == ["http.response.start"]


def test_a_check_of_the_fault_simulation_that_fails_is_a_violation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The simulation went on without its checks and found nothing wrong.
    """
    monkeypatch.setattr(FaultSimulation, "_watch", fails)
    verdict = seed_verdict.simulate(0)
    assert "not watched: ArithmeticError('of ours')" in verdict.wrong
