"""Slurm itself: the contract, and what can happen to a job."""

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from tests.provisioning.lrm.contract import (
    CHECKS,
    PATIENCE,
    Ground,
    a_limit_is_kept,
    has_ended,
    is_running,
)
from tests.testgrid.clusters import need_slurm

from bursar.model.errors import SiteError
from bursar.model.provisioning import BatchScheduler
from bursar.provisioning.lrm.resource_manager import JobReport
from bursar.provisioning.lrm.slurm import Slurm
from bursar_devtools.testgrid.slurm import SlurmCluster

Check = Callable[[Ground], Awaitable[None]]

LIMIT = 45.0
"""Slurm looks every 30 s for jobs that are over their limit."""


@pytest.fixture(scope="module", autouse=True)
def frail() -> Iterator[tuple[SlurmCluster, str]]:
    """
    Another cluster, of two nodes with two processors, for what nobody would want to share.

    And its job that is over its limit, from the begin: the last test looks what became of it.
    """
    need_slurm()
    folder = Path(tempfile.mkdtemp(prefix="bursar-frail-"))
    folder.chmod(0o755)  # so that another user finds the configuration
    cluster = SlurmCluster.up(folder / "c", name="frail", nodes=2, cpus=2)
    try:
        batch = BatchScheduler(
            manager="slurm", environment=cluster.environment, directives=("--nodelist=n2",)
        )
        manager = Slurm(batch)

        async def submit() -> str:
            ground = Ground(manager=manager, processors=4, folder=folder, commands=lambda: 0)
            (id,) = await manager.submit(ground.request("limited", "sleep 300"))
            await ground.wait([id], is_running)
            return id

        id = asyncio.run(submit())
        cluster.run("scontrol", "update", f"JobId={id}", "EndTime=now+1")
        yield cluster, id
    finally:
        cluster.down()
        shutil.rmtree(folder)


def on(slurm: SlurmCluster, folder: Path, check: Check, path: str = "", **more: object) -> None:
    """
    Runs a check on the cluster, and leaves no job behind, whatever comes of it.

    Parameters
    ----------
    path
        Where programs are looked for first.
    more
        Of the batch scheduler.
    """
    environment = dict(slurm.environment)
    if path:
        environment["PATH"] = f"{path}:{os.environ['PATH']}"
    batch = BatchScheduler(manager="slurm", environment=environment, **more)  # type: ignore[arg-type]
    manager = Slurm(batch)

    @contextlib.contextmanager
    def unreachable() -> Iterator[None]:
        slurm.stop_controller()
        try:
            yield
        finally:
            slurm.start_controller()

    ground = Ground(
        manager=manager,
        processors=16,
        folder=folder,
        commands=lambda: manager.shell.commands,
        unreachable=unreachable,
    )
    try:
        asyncio.run(check(ground))  # type: ignore[arg-type]
    finally:
        clear(slurm)


def clear(slurm: SlurmCluster) -> None:
    for job in slurm.run("squeue", "--noheader", "--format=job %A %j").splitlines():
        words = job.split()
        if words[0] == "job" and words[2:] != ["limited"]:
            slurm.run("scancel", words[1])
    if "bursar-window" in slurm.run("scontrol", "show", "reservation"):
        slurm.run("scontrol", "delete", "ReservationName=bursar-window")
    end = time.monotonic() + PATIENCE
    while any(
        name != "limited" for name in slurm.run("squeue", "--noheader", "--format=%.9j").split()
    ):
        assert time.monotonic() < end
        time.sleep(0.05)


def programs(folder: Path, **scripts: str) -> str:
    """A folder with programs that stand before Slurm's own, which they find under $REAL."""
    folder.mkdir()
    for name, script in scripts.items():
        real = shutil.which(name)
        (folder / name).write_text(f"#!/bin/sh\nREAL={real}\n{script}\n")
        (folder / name).chmod(0o755)
    return str(folder)


@pytest.mark.parametrize(
    "check",
    [check for check in CHECKS if check is not a_limit_is_kept],
    ids=lambda check: check.__name__,
)
def test_slurm_keeps_the_contract(slurm: SlurmCluster, check: Check, tmp_path: Path) -> None:
    """Each check, on a cluster of four nodes with four processors each."""
    on(slurm, tmp_path, check)


# What can happen to a job.


def test_what_is_held_says_by_whom(slurm: SlurmCluster, tmp_path: Path) -> None:
    """An administrator's hold is no mere waiting; released, the job runs."""

    async def check(ground: Ground) -> None:
        (id,) = await ground.manager.submit(ground.request("kept", begin=time.time() + 300))
        slurm.run("scontrol", "hold", id)
        report = (await ground.manager.poll([id]))[id]
        assert report.state == "held"
        assert "JobHeldAdmin" in report.reason
        assert [job.held for job in (await ground.manager.queue()).jobs] == [True]
        slurm.run("scontrol", "update", f"JobId={id}", "StartTime=now")
        slurm.run("scontrol", "release", id)
        await ground.wait([id], is_running)

    on(slurm, tmp_path, check)


def test_a_job_that_can_never_start_is_held_with_advice(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    """Slurm takes a job above its partition's limit, and never starts it."""

    async def check(ground: Ground) -> None:
        (id,) = await ground.manager.submit(ground.request("slow", seconds=600.0))
        report = (await ground.wait([id], lambda r: r.state == "held"))[id]
        assert "Partition" in report.reason
        assert '"longest"' in report.reason
        assert (await ground.manager.queue()).longest == 120.0

    on(slurm, tmp_path, check, queue="short")


def test_what_slurm_does_not_take_is_said_in_its_words(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Each with what to change; none of these is worth trying again."""

    async def no_partition(ground: Ground) -> None:
        with pytest.raises(SiteError, match=r'[Ii]nvalid partition.*"queue" must name') as error:
            await ground.manager.submit(ground.request("lost"))
        assert not error.value.transient
        with pytest.raises(SiteError, match="nowhere"):
            await ground.manager.queue()

    async def no_option(ground: Ground) -> None:
        with pytest.raises(SiteError, match=r"--frobnicate.*directives") as error:
            await ground.manager.submit(ground.request("odd"))
        assert not error.value.transient

    async def no_such_nodes(ground: Ground) -> None:
        with pytest.raises(SiteError, match=r"not available|can not be satisfied"):
            await ground.manager.expected_start(ground.request("big", processors=99))
        with pytest.raises(SiteError, match=r"[Rr]eservation.*not there"):
            await ground.manager.submit(ground.request("kept", reservation="no-such"))

    on(slurm, tmp_path, no_partition, queue="nowhere")
    on(slurm, tmp_path, no_option, directives=("--frobnicate=3",))
    on(slurm, tmp_path, no_such_nodes)


@pytest.mark.ci
def test_a_requeued_job_waits_again(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Ours are not requeued; one that was is back in the queue, with nothing of its past."""

    async def check(ground: Ground) -> None:
        (ours,) = await ground.manager.submit(ground.request("ours"))
        await ground.wait([ours], is_running)
        told = slurm.run(
            "sbatch", "--parsable", "--requeue", "-t1", "--output=/dev/null", "--wrap", "sleep 60"
        )
        id = told.strip()
        await ground.wait([id], is_running)
        slurm.run("scontrol", "requeue", id)
        report = (await ground.wait([id], lambda r: r.state == "pending"))[id]
        assert (report.began, report.ended, report.nodes) == (None, None, ())

    on(slurm, tmp_path, check)


@pytest.mark.ci
def test_a_range_of_nodes_starts_with_what_is_free(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Of four nodes one is held: a job over two to four of them has three."""

    async def check(ground: Ground) -> None:
        (first,) = await ground.manager.submit(ground.request("first", processors=1))
        await ground.wait([first], is_running)
        wide = ground.request("wide", processors=4, nodes=(2, 4))
        (id,) = await ground.manager.submit(wide)
        report = (await ground.wait([id], is_running))[id]
        assert report.processors == 12
        assert len(report.nodes) == 3
        assert (await ground.manager.queue()).free == 3

    on(slurm, tmp_path, check)


def test_a_time_is_cut_to_start_before_a_reservation(slurm: SlurmCluster, tmp_path: Path) -> None:
    """All is kept in three minutes: a job of two to ten minutes runs now, for that long."""

    async def check(ground: Ground) -> None:
        await ground.manager.reserve("bursar-window", time.time() + 200, 60.0, 16)
        state = await ground.manager.queue()
        assert [(w.name, w.processors, w.own) for w in state.windows] == [
            ("bursar-window", 16, True)
        ]
        (id,) = await ground.manager.submit(
            ground.request("short", seconds=600.0, least_seconds=120.0)
        )
        report = (await ground.wait([id], is_running))[id]
        assert report.until is not None
        assert report.began is not None
        assert 120 <= report.until - report.began <= 200

    on(slurm, tmp_path, check)


@pytest.mark.ci
def test_many_jobs_are_looked_at_by_one_command(slurm: SlurmCluster, tmp_path: Path) -> None:
    """500 of them, those that wait as well."""

    async def check(ground: Ground) -> None:
        ids = await ground.manager.submit(ground.request("many", copies=500))
        await ground.wait(ids[:1], is_running)
        before = ground.commands()
        reports = await ground.manager.poll(ids)
        assert ground.commands() - before == 1
        states = [report.state for report in reports.values()]
        assert states.count("running") <= 16
        assert states.count("running") + states.count("pending") == 500
        # Elements that are cancelled while they wait leave no trace with Slurm: still no guess.
        await ground.manager.cancel([ids[400], ids[450]])
        await ground.manager.cancel(ids)
        reports = await ground.wait(ids, has_ended)
        assert {report.how for report in reports.values()} == {"cancelled"}

    on(slurm, tmp_path, check)


def test_odd_words_of_others_spoil_nothing(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Names, comments and folders with spaces, line ends and the sign between our fields."""
    odd = "a |b\njob|1|1|COMPLETED|1|2|3|n1|None\nReservationName=x"

    async def check(ground: Ground) -> None:
        (ours,) = await ground.manager.submit(ground.request("ours"))
        words = ("-J", odd, "--comment", odd, "--dependency=afterany:" + ours)
        told = slurm.run("sbatch", "--parsable", *words, "-t1", "--wrap", "sleep 60")
        reports = await ground.wait([ours, told.strip()], lambda r: r.state != "unknown")
        assert reports[told.strip()].state == "pending"
        await ground.wait([ours], is_running)
        state = await ground.manager.queue()
        assert [job.id for job in state.jobs] == [ours, told.strip()]

    on(slurm, tmp_path, check)


def test_script_and_directives_arrive(slurm: SlurmCluster, tmp_path: Path) -> None:
    """What a site sets up is there when the script runs, in the folder asked for."""
    folder = tmp_path / "with space"
    folder.mkdir()

    async def check(ground: Ground) -> None:
        request = ground.request(
            "words", 'printf "%s|%s|%s" "$SITE" "$BURSAR_ELEMENT" "$SLURM_JOB_COMMENT" > said'
        )
        ids = await ground.manager.submit(request)
        assert (await ground.wait(ids, has_ended))[ids[0]].how == "completed"
        assert (folder / "said").read_text() == "a b|0|x y"
        assert list(folder.glob("words-*.out"))

    on(
        slurm,
        folder,
        check,
        setup=("SITE='a b'", "SLURM_JOB_COMMENT='x y'"),
        directives=("--comment='line | one'", "--job-name=other|name"),
    )


# What can happen to a command.


def test_an_unanswered_submission_is_found_and_adopted(slurm: SlurmCluster, tmp_path: Path) -> None:
    """sbatch took it and fell silent: the one job is found, and no second one submitted."""
    silent = programs(
        tmp_path / "bin",
        sbatch='"$REAL" "$@" > /dev/null\n'
        'echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv '
        'operation" >&2; exit 1',
    )

    async def check(ground: Ground) -> None:
        for copies in (1, 3):
            ids = await ground.manager.submit(ground.request("silent", copies=copies))
            assert len(ids) == copies
            await ground.wait(ids, is_running)
            assert len((await ground.manager.queue()).jobs) == copies
            await ground.manager.cancel(ids)
            await ground.wait(ids, has_ended)

    on(slurm, tmp_path, check, silent)


@pytest.mark.ci
def test_a_late_submission_is_adopted_by_the_next_try(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Not found at first, it came through after all: asking again adopts it."""
    late = programs(
        tmp_path / "bin",
        sbatch='cat > script; (sleep 5; "$REAL" "$@" < script) > /dev/null 2>&1 &\n'
        'echo "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or '
        'received" >&2; exit 1',
    ).replace("script", str(tmp_path / "script"))
    fake = Path(late) / "sbatch"
    fake.write_text(fake.read_text().replace("script", str(tmp_path / "script")))

    async def check(ground: Ground) -> None:
        manager = ground.manager
        assert isinstance(manager, Slurm)
        with pytest.raises(SiteError, match="was not submitted") as error:
            await manager.submit(ground.request("late"))
        assert error.value.transient
        end = time.monotonic() + PATIENCE
        while not await manager.named("late"):
            assert time.monotonic() < end
            await asyncio.sleep(0.1)
        (id,) = await manager.submit(ground.request("late"))
        assert await manager.named("late") == [id]

    on(slurm, tmp_path, check, late)


@pytest.mark.ci
def test_a_job_that_is_listed_no_more_is_looked_up(slurm: SlurmCluster, tmp_path: Path) -> None:
    """The records know its end, its processors and its time; they are one command more."""
    path = programs(
        tmp_path / "bin", squeue=f'[ -e {tmp_path}/forget ] && exit 0; exec "$REAL" "$@"'
    )

    async def check(ground: Ground) -> None:
        ids = await ground.manager.submit(ground.request("three", "exit 3", processors=3))
        ids += await ground.manager.submit(ground.request("array", "sleep 1", copies=2))
        known = await ground.wait(ids, has_ended)
        (running,) = await ground.manager.submit(ground.request("runs"))
        await ground.wait([running], is_running)
        (tmp_path / "forget").touch()
        await ground.manager.poll(ids)  # learns that there is no accounting here
        before = ground.commands()
        reports = await ground.manager.poll([*ids, running])
        assert ground.commands() - before == 2
        for id in ids:
            assert reports[id].how == known[id].how
            assert reports[id].began == known[id].began
            assert reports[id].ended == known[id].ended
            assert reports[id].processors == known[id].processors
        assert reports[running].state == "unknown"
        usage = await ground.manager.usage(ids)
        assert usage[ids[0]].processors == 3
        (tmp_path / "forget").unlink()
        assert (await ground.manager.poll([running]))[running].state == "running"

    on(slurm, tmp_path, check, path)


def test_a_login_node_serves_as_well(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Through ssh, here one that stays: submit, look and cancel."""
    fake = programs(
        tmp_path / "bin",
        ssh='while [ "$1" != "--" ]; do shift; done; shift\nexec env -i PATH="$PATH" sh -c "$*"',
    )

    async def check(ground: Ground) -> None:
        ids = await ground.manager.submit(ground.request("far", copies=2))
        await ground.wait(ids, is_running)
        assert (await ground.manager.queue()).free == 14
        await ground.manager.cancel(ids)
        await ground.wait(ids, has_ended)

    old = os.environ["PATH"]
    os.environ["PATH"] = f"{fake}:{old}"
    try:
        on(slurm, tmp_path, check, ssh="login")
    finally:
        os.environ["PATH"] = old


# On the cluster that nobody shares.


def test_a_plain_user_learns_that_he_may_not_reserve(
    frail: tuple[SlurmCluster, str], tmp_path: Path
) -> None:
    """Slurm says no to a plain user, and the adapter what happens instead."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can be another user")
    as_nobody = 'exec setpriv --reuid=65534 --regid=65534 --clear-groups "$REAL" "$@"'
    path = programs(tmp_path / "bin", scontrol=as_nobody)

    async def check(ground: Ground) -> None:
        with pytest.raises(SiteError, match=r"only operators.*begin time") as error:
            await ground.manager.reserve("bursar-window", time.time() + 60, 60.0, 1)
        assert not error.value.transient

    on(frail[0], tmp_path, check, path)


def test_a_job_whose_node_dies_says_so(frail: tuple[SlurmCluster, str], tmp_path: Path) -> None:
    """And the node is not counted on until it is back."""
    cluster, _ = frail

    async def check(ground: Ground) -> None:
        (id,) = await ground.manager.submit(ground.request("doomed"))
        report = (await ground.wait([id], is_running))[id]
        assert report.nodes == ("n1",)
        cluster.stop_node("n1", at_once=True)

        def died(report: JobReport) -> bool:
            return report.state == "ended"

        assert (await ground.wait([id], died))[id].how == "node-fail"
        state = await ground.manager.queue()
        assert {node.name: node.up for node in state.nodes} == {"n1": False, "n2": True}
        assert state.processors == 2
        cluster.start_node("n1")

    on(cluster, tmp_path, check, directives=("--nodelist=n1",))


def test_over_its_limit_a_job_has_timed_out(frail: tuple[SlurmCluster, str]) -> None:
    """The last of these tests, since Slurm takes half a minute for it."""
    cluster, id = frail

    async def check() -> None:
        manager = Slurm(BatchScheduler(manager="slurm", environment=cluster.environment))
        end = time.monotonic() + LIMIT
        while not has_ended(report := (await manager.poll([id]))[id]):
            assert time.monotonic() < end
            await asyncio.sleep(0.2)
        assert report.how == "timeout"
        assert report.until is None
        assert report.ended is not None
        usage = (await manager.usage([id]))[id]
        assert report.began is not None
        assert usage.seconds == report.ended - report.began

    asyncio.run(check())
