"""Workers over real sockets."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.service.engine.engine_rig import FakeJournal
from tests.service.workers.server_rig import Wire, ended, running
from tests.thoroughness import examples

from bursar.dispatch.credential import (
    PilotTerms,
    client_context,
    decode_credential,
    make_certificate,
)
from bursar.dispatch.linux_processes import RUN, WORKER
from bursar.dispatch.wire import (
    BATCH_SIZE,
    LONGEST_REASON,
    CancelTasks,
    Hello,
    JobAssignment,
    JobRecall,
    LeaveOrder,
    LeaveRequest,
    OutcomeAck,
    OutcomeReport,
    ReturnedJobs,
    SealKey,
    frame,
)
from bursar.engine.core import SPILL
from bursar.model.errors import SiteError
from bursar.model.task import Outcome, Status
from bursar.service.engine.instance_homes import InstanceHomes
from bursar.service.workers import connection
from bursar.service.workers.connection import LARGEST_VALUE, WORKER_FRAME, SealKeyFile
from bursar.service.workers.worker_server import MOST_UNAUTHENTICATED
from bursar.worker.attempt import MOST_PRINTED, MOST_RETURNED
from bursar.worker.dispatcher_connection import TlsDispatcherConnection, WorkerSettings


@pytest.fixture
def journal() -> FakeJournal:
    return FakeJournal()


def test_a_worker_is_given_tasks_and_told_what_is_durable(journal: FakeJournal) -> None:
    """
    It is told to outlive the service, gets no more than it has room for, and can forget what is
    recorded.
    """

    async def work() -> None:
        async with running(journal) as floor:
            await floor.submit(3)
            worker = await floor.worker(processors=2)
            assert (await worker.welcome()).outlives > 0
            jobs = await worker.jobs(2)
            worker.end(jobs[0])
            heard = [await worker.hear(), await worker.hear()]
            assert OutcomeAck(1) in heard
            assert any(isinstance(message, JobAssignment) for message in heard)
            assert [r["host"] for r in await floor.results()] == ["node"]
            (seen,) = floor.engine.dispatching.workers()
            assert (seen.busy, seen.connected, seen.pool) == (2, True, "shared")
            (load,) = floor.worker_server.leases().values()
            assert (load.ready, load.busy, load.idle_since) == (2, 2, None)
            await worker.close()

    asyncio.run(work())


@pytest.mark.parametrize(
    "hello",
    [
        {"token": "wrong"},
        {"token": ""},
        {"name": "here-m-0"},
        {"name": "there-l-0"},
        {"processors": 0},
        {"processors": 3},
        {"lease": "other"},
    ],
)
def test_nobody_is_let_in_who_should_not_be(journal: FakeJournal, hello: dict[str, Any]) -> None:
    """
    Another's token, another's name, or more processors than the lease has.
    """

    async def knock() -> None:
        async with running(journal) as floor:
            token = floor.expect("l", 2)
            floor.expect("other", 2)
            worker = await floor.worker(**({"token": token} | hello))
            assert await worker.hear() is None
            assert floor.engine.dispatching.workers() == []
            await worker.close()

    asyncio.run(knock())


@settings(
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    known=st.booleans(),
    data=st.binary(max_size=64).map(lambda body: len(body).to_bytes(4, "big") + body)
    | st.binary(max_size=64)
    | st.sampled_from(
        [frame(ReturnedJobs([(1 << 70 - 7, -1)])), frame(OutcomeReport([])), b"\xff" * 8]
    )
    | st.just(frame(Hello("x", "y", "z", 1, "l"))),
)
def test_whatever_is_said_ends_at_most_its_own_connection(known: bool, data: bytes) -> None:
    """
    Noise of strangers and of workers gone mad: the service goes on with the others.
    """

    async def rave() -> None:
        async with running(FakeJournal()) as floor:
            await floor.submit(1)
            if known:
                wire = await floor.worker("here-m-0", lease="m")
                (job,) = await _jobs(wire)
                wire.write(data)
                wire.write(frame(LeaveRequest(must=True)))
            else:
                wire = await Wire.connect(floor.address)
                wire.write(data)
            await wire.close()
            if known:
                floor.worker_server.revoke("m")
            other = await floor.worker()
            (job,) = await _jobs(other)
            other.end(job)
            assert len(await floor.results()) == 1
            await other.close()

    asyncio.run(rave())


async def _jobs(wire: Wire) -> Any:
    await wire.welcome()
    return await wire.jobs(1)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ((WORKER_FRAME + 1).to_bytes(4, "big"), "a frame of"),
        (
            frame(
                OutcomeReport([Outcome(task=1, attempt=1, status=Status.FAILED, value=bytes(101))])
            ),
            "a value",
        ),
        (
            frame(OutcomeReport([Outcome(task=1, attempt=1, status=Status.FAILED)] * 11)),
            "11 outcomes",
        ),
        (frame(Hello("x", "y", "z", 1, "l")), "a second hello"),
    ],
)
def test_a_worker_that_says_more_than_ours_do_is_hung_up_on(
    journal: FakeJournal,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    data: bytes,
    complaint: str,
) -> None:
    """
    Whoever has a lease's secret does not fill the service's memory; and somebody reads of it.
    """
    monkeypatch.setattr(connection, "LARGEST_VALUE", 100)
    monkeypatch.setattr(connection, "MOST_OUTCOMES", 10)

    async def rave() -> None:
        async with running(journal) as floor:
            worker = await floor.worker()
            await worker.welcome()
            worker.write(data)
            assert await worker.hear() is None
            await worker.close()

    asyncio.run(rave())
    (said,) = (record.getMessage() for record in caplog.records if "worker" in record.getMessage())
    assert said.startswith(f"the worker 'here-l-0' on 'node' says what no worker says ({complaint}")


@pytest.mark.parametrize("over_tls", [False, True])
def test_a_worker_that_babbles_again_and_again_does_not_fill_the_log(
    journal: FakeJournal, caplog: pytest.LogCaptureFixture, over_tls: bool
) -> None:
    """
    At whichever port: some lines, then how many more there were.
    """
    certificate, key = make_certificate()

    async def rave() -> None:
        async with running(journal) as floor:
            address, context = floor.address, None
            if over_tls:
                address = (
                    "127.0.0.1",
                    floor.worker_server.open_listener("127.0.0.1", 0, certificate, key),
                )
                context = client_context(certificate)
            hello = Hello(floor.expect("l"), "here-l-0", "here", 1, "l")
            for _ in range(30):
                worker = Wire(*await asyncio.open_connection(*address, ssl=context))
                worker.say(hello)
                await worker.welcome()
                worker.say(hello)
                assert await worker.hear() is None
                await worker.close()

    asyncio.run(rave())
    said = [r.getMessage() for r in caplog.records if "what no worker says" in r.getMessage()]
    assert len(said) == 11
    assert said[-1].startswith("20 more lines of this kind within 60 s, the last: the worker")


def test_streams_and_reasons_are_no_longer_than_ours(journal: FakeJournal) -> None:
    """
    A worker puts longer ones in files, and cuts reasons; what comes all the same is cut here.
    """

    async def tell() -> None:
        async with running(journal) as floor:
            await floor.submit(1)
            worker = await floor.worker()
            (job,) = await _jobs(worker)
            text = b"x" * (SPILL + 1)
            long = msgspec.structs.replace(
                ended(job), stdout=text, stderr=text, reason="y" * (LONGEST_REASON + 1)
            )
            worker.say(OutcomeReport([long]))
            (result,) = await floor.results()
            assert (len(result["stdout"]), len(result["stderr"])) == (SPILL, SPILL)
            assert len(result["reason"]) == LONGEST_REASON
            await worker.close()

    asyncio.run(tell())


def test_all_that_ours_may_say_is_heard() -> None:
    """
    The largest sealed outcome, and the largest value with its streams, fit a frame.
    """
    room = WORKER_FRAME - (1 << 16)  # what sealing and framing add is less

    assert room > 2 * MOST_PRINTED + MOST_RETURNED + 4 * LONGEST_REASON
    assert room > LARGEST_VALUE + 2 * SPILL + 4 * LONGEST_REASON
    assert room > BATCH_SIZE * 4  # all of it reasons, of four bytes a character


def test_workers_are_told_the_key_of_sealed_tasks_before_these(
    journal: FakeJournal, tmp_path: Path
) -> None:
    """
    And again once the file has changed, before the next task, or soon where none is given. One
    that cannot be read changes nothing.
    """
    key = tmp_path / "key.pem"

    async def change() -> None:
        async with running(journal, seal_key=SealKeyFile(key)) as floor:
            worker = await floor.worker(processors=3, has_seal_key=True)
            await worker.welcome()
            told: list[str] = []
            for renewed in ("first", "second", None):
                if renewed is None:
                    key.unlink()
                else:
                    key.write_text(renewed)
                await floor.submit(1)
                while not isinstance(message := await worker.hear(), JobAssignment):
                    if isinstance(message, SealKey):
                        told.append(message.pem)
                assert told[-1] == (renewed or "second")
            assert told == ["first", "second"]
            floor.worker_server.tick()
            key.write_text("third, for what waits there")
            floor.worker_server.tick()
            assert await worker.hear() == SealKey("third, for what waits there")
            await worker.close()

    asyncio.run(change())


def test_workers_that_read_the_key_themselves_are_not_told_it(
    journal: FakeJournal, tmp_path: Path
) -> None:
    """
    Nor are those that an earlier version has started, which would not know the message and would
    break off each connection at it.
    """
    key = tmp_path / "key.pem"
    key.write_text("secret")

    async def work() -> None:
        async with running(journal, seal_key=SealKeyFile(key)) as floor:
            worker = await floor.worker()
            await worker.welcome()
            await floor.submit(1)
            assert isinstance(await worker.hear(), JobAssignment)
            await worker.close()

    asyncio.run(work())


def test_strangers_have_little_time_and_room(
    journal: FakeJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    One that says nothing, or announces too much, is hung up on; workers come in all the same.
    """
    monkeypatch.setattr("bursar.engine.worker_connection.AUTHENTICATION", 0.1)

    async def loiter() -> None:
        async with running(journal) as floor:
            silent = await Wire.connect(floor.address)
            greedy = await Wire.connect(floor.address)
            greedy.write((1 << 21).to_bytes(4, "big"))
            assert await greedy.hear() is None
            assert await silent.hear() is None
            crowd = [await Wire.connect(floor.address) for _ in range(MOST_UNAUTHENTICATED + 1)]
            assert await crowd[0].hear() is None
            for wire in (silent, greedy, *crowd):
                await wire.close()
            await asyncio.sleep(0.15)
            worker = await floor.worker()
            await worker.welcome()
            await worker.close()

    asyncio.run(loiter())


def test_a_crowd_of_strangers_does_not_keep_workers_out(journal: FakeJournal) -> None:
    """
    The one that has said nothing for longest makes room.
    """

    async def crowd() -> None:
        async with running(journal) as floor:
            strangers = [await Wire.connect(floor.address) for _ in range(MOST_UNAUTHENTICATED)]
            worker = await floor.worker()
            await worker.welcome()
            assert await strangers[0].hear() is None
            for wire in (worker, *strangers):
                await wire.close()

    asyncio.run(crowd())


def test_a_connection_that_is_lost_costs_nothing(journal: FakeJournal) -> None:
    """
    The worker comes back before its end was noticed, or after, and says again what was not durable.
    """

    async def stumble(noticed: bool) -> None:
        async with running(FakeJournal()) as floor:
            await floor.submit(2)
            worker = await floor.worker(processors=2)
            await worker.welcome()
            jobs = await worker.jobs(2)
            if noticed:
                await worker.close()
                while floor.worker_server.leases():
                    await asyncio.sleep(0.001)
            holds = [(job.task, job.attempt) for job in jobs]
            again = await floor.worker(processors=2, holds=holds)
            await again.welcome()
            again.end(*jobs)
            assert await again.hear() == OutcomeAck(2)
            again.end(*jobs)
            assert await again.hear() == OutcomeAck(2)
            assert len(await floor.results()) == 2
            assert floor.engine.counters.lost == 0
            await again.close()
            await worker.close()

    asyncio.run(stumble(noticed=True))
    asyncio.run(stumble(noticed=False))


def test_who_stays_away_is_given_up(journal: FakeJournal) -> None:
    """
    What it had runs elsewhere, and it is told so when it comes back after all.
    """

    async def stray() -> None:
        async with running(journal, absence=0.05) as floor:
            await floor.submit(1)
            worker = await floor.worker()
            (job,) = await _jobs(worker)
            await worker.close()
            other = await floor.worker("here-m-0", lease="m")
            (again,) = await _jobs(other)
            assert again.task == job.task
            back = await floor.worker(holds=[(job.task, job.attempt)])
            await back.welcome()
            stop = await back.hear()
            assert isinstance(stop, CancelTasks)
            assert stop.tasks == [job.task]
            back.end(job)
            assert await back.hear() == OutcomeAck(1)
            assert await floor.results(wait=0.0) == []
            other.end(again)
            assert len(await floor.results()) == 1
            for wire in (back, other):
                await wire.close()

    asyncio.run(stray())


def test_workers_know_the_next_life_and_it_knows_them(journal: FakeJournal) -> None:
    """
    Their tokens are good again as soon as their leases are expected; tasks wait for all of them.
    """

    async def restart() -> None:
        async with running(journal) as floor:
            await floor.submit(3)
            token = floor.expect("l", 2)
            workers = [await floor.worker(f"here-l-{i}", token=token) for i in range(2)]
            jobs = [(await _jobs(worker))[0] for worker in workers]
            handle = floor.handle
        for worker in workers:
            assert await worker.hear() is None  # and nobody was told to leave
            await worker.close()
        async with running(journal) as floor:
            floor.handle = handle
            early = await floor.worker("here-l-0", token=token)
            assert await early.hear() is None  # it will try again
            floor.expect("l", 2)
            floor.worker_server.gathered()
            first = await floor.worker("here-l-0", token=token, holds=[_of(jobs[0])])
            await first.welcome()
            first.end(jobs[0])
            assert await first.hear() == OutcomeAck(1)
            assert len(await floor.results()) == 1
            second = await floor.worker("here-l-1", token=token, holds=[_of(jobs[1])])
            await second.welcome()
            (third,) = await first.jobs(1)
            assert third.task not in {job.task for job in jobs}
            second.end(jobs[1])
            first.end(third)
            assert await second.hear() == OutcomeAck(1)
            assert {r["task"] for r in await floor.results()} >= {0, 1}
            for wire in (early, first, second):
                await wire.close()

    asyncio.run(restart())


def _of(job: Any) -> tuple[int, int]:
    return job.task, job.attempt


def test_a_dismissed_lease_ends_when_its_tasks_have(journal: FakeJournal) -> None:
    """
    Its workers give back what waits and get nothing more; they leave when all is recorded.
    """

    async def dismiss() -> None:
        async with running(journal) as floor:
            await floor.submit(1)
            worker = await floor.worker()
            (job,) = await _jobs(worker)
            floor.worker_server.dismiss("l")
            assert isinstance(await worker.hear(), JobRecall)
            await floor.submit(1)
            late = await floor.worker("here-l-1", token=floor.expect("l", 2))
            await late.welcome()
            assert await late.hear() == LeaveOrder()
            worker.end(job)
            assert [await worker.hear(), await worker.hear()] == [OutcomeAck(1), LeaveOrder()]
            assert len(await floor.results()) == 1
            for wire in (worker, late):
                await wire.close()

    asyncio.run(dismiss())


def test_a_revoked_lease_ends_at_once(journal: FakeJournal) -> None:
    """
    Its tasks are killed and wait again; its workers, present or late, are told to leave.
    """

    async def revoke() -> None:
        async with running(journal) as floor:
            floor.worker_server.gathered()
            await floor.submit(1)
            worker = await floor.worker()
            (job,) = await _jobs(worker)
            token = floor.expect("l")
            floor.worker_server.revoke("l")
            assert isinstance(await worker.hear(), CancelTasks)
            worker.end(job, status=Status.CANCELLED)
            assert [await worker.hear(), await worker.hear()] == [OutcomeAck(1), LeaveOrder()]
            late = await floor.worker(token=token)
            assert await late.hear() == LeaveOrder()
            other = await floor.worker("here-m-0", lease="m")
            (again,) = await _jobs(other)
            assert again.task == job.task
            for wire in (worker, late, other):
                await wire.close()

    asyncio.run(revoke())


def test_a_worker_leaves_when_it_must_or_has_nothing_to_do(journal: FakeJournal) -> None:
    """
    One that would like to go stays when a task is on its way to it.
    """

    async def leave() -> None:
        async with running(journal) as floor:
            worker = await floor.worker()
            await worker.welcome()
            await floor.submit(2)
            worker.say(LeaveRequest(must=False))
            (job,) = await worker.jobs(1)
            worker.say(LeaveRequest(must=True))
            assert isinstance(await worker.hear(), JobRecall)
            worker.end(job, status=Status.CANCELLED)
            assert [await worker.hear(), await worker.hear()] == [OutcomeAck(1), LeaveOrder()]
            await worker.close()
            assert await floor.results(wait=0.0) == []

    asyncio.run(leave())


def test_a_worker_leaves_that_asked_while_its_last_outcome_was_not_durable(
    journal: FakeJournal,
) -> None:
    """A worker asks once: one that is refused would stay, and be paid for, without a task."""

    async def leave() -> None:
        async with running(journal) as floor:
            await floor.submit(1)
            worker = await floor.worker()
            await worker.welcome()
            (job,) = await worker.jobs(1)
            journal.is_full = True
            worker.end(job)
            worker.say(LeaveRequest(must=False))
            async with asyncio.timeout(30):
                while not floor.worker_server._dispatching.registered["here-l-0"].leaving:
                    await asyncio.sleep(0.01)
            journal.is_full = False
            assert [await worker.hear(), await worker.hear()] == [OutcomeAck(1), LeaveOrder()]
            await worker.close()

    asyncio.run(leave())


def test_what_comes_back_unbegun_is_given_again_in_order(journal: FakeJournal) -> None:
    """
    As other attempts, so that no outcome of the former ones counts.
    """

    async def give_back() -> None:
        async with running(journal) as floor:
            await floor.submit(3)
            worker = await floor.worker(processors=3)
            await worker.welcome()
            jobs = await worker.jobs(3)
            worker.say(ReturnedJobs([_of(job) for job in reversed(jobs[1:])]))
            again = await worker.jobs(2)
            assert [job.task for job in again] == [job.task for job in jobs[1:]]
            assert not {_of(job) for job in again} & {_of(job) for job in jobs}
            await worker.close()

    asyncio.run(give_back())


def test_pilots_come_over_tls_with_a_certificate_that_stays(journal: FakeJournal) -> None:
    """
    A credential leads to the service's own port; nobody has one whose lease is not expected.
    """

    async def visit() -> None:
        certificate, key = make_certificate()
        async with running(journal) as floor:
            joined: list[bool] = []
            terms = PilotTerms(
                lease="l",
                site="here",
                host="localhost",
                processors=1,
                on_join=lambda: joined.append(True),
            )
            with pytest.raises(SiteError, match="nobody expects"):
                await floor.worker_server.credential(terms)
            floor.expect("l")
            with pytest.raises(SiteError, match="does not listen"):
                await floor.worker_server.credential(terms)
            port = floor.worker_server.open_listener("localhost", 0, certificate, key)
            data = await floor.worker_server.credential(terms)
            credential = decode_credential(data, "here")
            assert (credential.port, credential.certificate) == (port, certificate)
            hello = Hello(credential.token, "here-l-0", "here", 1, "l")
            line = await asyncio.to_thread(
                TlsDispatcherConnection, "localhost", port, certificate, 15.0
            )
            line.send(bytearray(frame(hello)))
            while not joined:
                await asyncio.sleep(0.001)
            line.close()

    asyncio.run(visit())


def test_a_real_worker_outlives_the_service(journal: FakeJournal, tmp_path: Path) -> None:
    """
    A task that began in one life of the service is recorded in the next, begun only once.
    """

    async def outlive() -> None:
        homes = InstanceHomes(tmp_path / "homes")
        async with contextlib.AsyncExitStack() as stack:
            async with running(journal, homes=homes) as floor:
                token, port = floor.expect(), floor.address[1]
                process = await stack.enter_async_context(real_worker(port, token))
                await floor.submit(1, line=f"echo x >> begun; {UNTIL_TOLD}; echo $BURSAR_TASK")
                handle = floor.handle
                files = floor.engine.home("ann", handle) / "files"
                while not (files / "begun").exists():
                    await asyncio.sleep(0.01)
            async with running(journal, homes=homes, port=port) as floor:
                floor.handle = handle
                floor.expect()
                floor.worker_server.gathered()
                while not floor.worker_server.leases():
                    await asyncio.sleep(0.01)
                assert floor.engine.running == 1
                (files / "go").touch()
                (result,) = await floor.results()
                assert (result["state"], result.get("attempt", 1)) == ("succeeded", 1)
                assert result["stdout"]
                assert (files / "begun").read_text() == "x\n"
                floor.worker_server.dismiss("l")
                await process.wait()

    asyncio.run(outlive())


UNTIL_TOLD = "until [ -e go ]; do sleep 0.01; done"


@contextlib.asynccontextmanager
async def real_worker(port: int, token: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "bursar.worker.worker",
        stdin=asyncio.subprocess.PIPE,
        env={**os.environ, RUN: "service", WORKER: "here-l-0"},
    )
    assert process.stdin is not None
    told = WorkerSettings(
        host="127.0.0.1",
        port=port,
        token=token,
        worker="here-l-0",
        site="here",
        lease="l",
        processors=1,
    )
    process.stdin.write(msgspec.json.encode(told))
    process.stdin.close()
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
