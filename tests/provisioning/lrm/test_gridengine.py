"""Grid Engine: the real one of Debian, and what it printed once."""

import asyncio
import contextlib
import os
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.provisioning.lrm.contract import CHECKS, Ground, has_ended, is_running
from tests.provisioning.lrm.recorded import Recorded, text_of

from bursar.model.errors import InputError, SiteError
from bursar.model.provisioning import BatchScheduler
from bursar.provisioning.lrm import gridengine, gridengine_output
from bursar.provisioning.lrm.command_runner import CommandResult, CommandRunner
from bursar.provisioning.lrm.gridengine import GridEngine
from bursar.provisioning.lrm.gridengine_output import parse_records
from bursar.provisioning.lrm.resource_manager import JobReport, JobRequest, QueueState
from bursar_devtools.testgrid.gridengine import PACKAGES, PROGRAMS, QUEUES, missing_programs
from bursar_devtools.testgrid.gridengine import GridEngineCluster as Cluster

# One fixture carries out all checks; each may wait as long as the contract allows.
pytestmark = pytest.mark.timeout(300)

SLOTS = 6
QSTAT = text_of("gridengine/qstat.xml")
QSTAT_F = text_of("gridengine/qstat-f.xml")
QACCT = text_of("gridengine/qacct.txt")
QSTAT_J = text_of("gridengine/qstat-j.txt")
QRSTAT = text_of("gridengine/qrstat.xml")


LANES = tuple(f"lane{number}.q" for number in range(9))
"""Queues of their own, so that checks that mostly wait can wait side by side."""


def need_grid_engine() -> None:
    """Skips a test where there is no Grid Engine, and says what would bring it."""
    if absent := missing_programs():
        pytest.skip(f"no Grid Engine here ({', '.join(absent)}): install the packages {PACKAGES}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Grid Engine with one node; nothing is left of it."""
    need_grid_engine()
    queues = {**QUEUES, **dict.fromkeys(LANES, "INFINITY")}
    folder = tmp_path_factory.mktemp("sge") / "c"
    cluster = Cluster.up(folder, slots=SLOTS, queues=queues, shared=False)
    try:
        yield cluster
    finally:
        cluster.down()


def manager_on(cluster: Cluster, **site: object) -> GridEngine:
    # Debian's wrappers of the programs start twenty processes each to find out where they are.
    environment = {**cluster.environment, "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
    plain = BatchScheduler(manager="gridengine", queue="all.q", environment=environment)
    return GridEngine(replace(plain, **site))  # type: ignore[arg-type]


def ground_on(cluster: Cluster, folder: Path, **site: object) -> Ground:
    manager = manager_on(cluster, **site)

    @contextlib.contextmanager
    def unreachable() -> Iterator[None]:
        shell = manager._shell
        nobody = {**cluster.environment, "SGE_QMASTER_PORT": "9"}
        manager._shell = CommandRunner(environment=nobody, scheduler="Grid Engine")
        try:
            yield
        finally:
            manager._shell = shell

    return Ground(
        manager=manager,
        processors=SLOTS,
        folder=folder,
        commands=lambda: manager.shell.commands,
        unreachable=unreachable,
        step=0.2,
    )


async def jobs_see_the_sites_own_lines_and_not_our_zone(ground: Ground) -> None:
    """Setup runs before the script; our commands' TZ stays ours; output is in the folder."""
    assert isinstance(ground.manager, GridEngine)
    site = replace(ground.manager._batch, setup=("export MINE='a b'",))
    there = replace(ground, manager=GridEngine(site))
    script = 'echo "$MINE ${TZ-none} $NSLOTS $PWD $BURSAR_ELEMENT"'
    (id,) = await there.manager.submit(there.request("9lines", script, processors=2, together=True))
    ended = await there.wait([id], has_ended)
    assert ended[id].how == "completed"
    assert ended[id].processors == 2
    (output,) = ground.folder.iterdir()
    assert output.name.startswith("j9lines.o")
    assert output.read_text() == f"a b none 2 {ground.folder} 0\n"


async def a_job_with_a_folder_that_is_gone_is_held_with_the_reason(ground: Ground) -> None:
    """Grid Engine puts it in error, and would leave it there: held, not waiting."""
    request = ground.request("lost", "true", folder=f"{ground.folder}/gone")
    (id,) = await ground.manager.submit(request)
    report = (await ground.wait([id], lambda report: report.state == "held"))[id]
    assert "No such file or directory" in report.reason
    assert "qmod -cj" in report.reason
    await ground.manager.cancel([id])
    await ground.wait([id], has_ended)


async def an_answer_that_was_lost_makes_no_second_job(ground: Ground) -> None:
    """The job was taken, but nobody heard: it is found by its name, and adopted."""
    manager = ground.manager
    assert isinstance(manager, GridEngine)
    real = manager._shell

    class Deaf:
        """Hands commands on; of the first submission the answer is lost."""

        lost = False

        async def run(self, command: list[str], **more: object) -> CommandResult:
            answer = await real.run(command, **more)  # type: ignore[arg-type]
            if command[0] == "qsub" and not self.lost:
                self.lost = True
                raise SiteError("qsub gave no answer within 60 s", transient=True)
            return answer

    manager._shell = Deaf()  # type: ignore[assignment]
    ids = await manager.submit(ground.request("heard", copies=3))
    assert len(ids) == 3
    own = [job for job in (await manager.queue()).jobs if job.own]
    assert sorted(job.id for job in own) == sorted(ids)
    await manager.cancel(ids)
    await ground.wait(ids, has_ended)


ALL_CHECKS = (
    *CHECKS,
    jobs_see_the_sites_own_lines_and_not_our_zone,
    a_job_with_a_folder_that_is_gone_is_held_with_the_reason,
    an_answer_that_was_lost_makes_no_second_job,
)
Check = Callable[[Ground], Awaitable[None]]


def crash_a_node(folder: Path) -> tuple[QueueState, JobReport]:
    """The queue while its only node is gone, and the job that ran there once it is back."""
    folder.mkdir(exist_ok=True)
    cluster = Cluster.up(folder / "c", slots=SLOTS)
    try:
        ground = ground_on(cluster, folder)
        begun = folder / "begun"

        async def begin() -> str:
            script = f"touch '{begun}'; sleep 300"
            (id,) = await ground.manager.submit(ground.request("crash", script))
            await ground.wait([id], is_running)
            # A job that crashes before its script puts its queue into an error state.
            while not begun.exists():
                await asyncio.sleep(0.05)
            return id

        id = asyncio.run(begin())
        cluster.stop_node()
        end = time.monotonic() + 40
        while (state := asyncio.run(ground.manager.queue())).up:
            assert time.monotonic() < end
            time.sleep(0.3)
        cluster.start_node()
        return state, asyncio.run(ground.wait([id], has_ended))[id]
    finally:
        cluster.down()


@pytest.fixture(scope="module")
def crash(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Future[tuple[QueueState, JobReport]]]:
    """That of a cluster of its own, beside the others: it takes the queue master a while."""
    need_grid_engine()
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(crash_a_node, tmp_path_factory.mktemp("crash"))


@pytest.fixture(scope="module")
def outcomes(
    crash: object, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> dict[Check, BaseException | None]:
    """What came of each check: one after the other in each queue, the queues side by side."""
    folder = tmp_path_factory.mktemp("checks")
    waiting = list(reversed(ALL_CHECKS))
    came: dict[Check, BaseException | None] = {}

    async def work(lane: str) -> None:
        while waiting:
            check = waiting.pop()
            (mine := folder / check.__name__).mkdir()
            ground = ground_on(cluster, mine, queue=lane)
            await ground.manager.queue()  # asks once who we are
            try:
                await check(ground)
            except (Exception, pytest.skip.Exception) as error:
                came[check] = error
            else:
                came[check] = None

    async def all_of_them() -> None:
        await asyncio.gather(*(work(lane) for lane in LANES))

    asyncio.run(all_of_them())
    return came


@pytest.mark.parametrize("check", ALL_CHECKS, ids=lambda check: check.__name__)
def test_grid_engine_keeps_the_contract(
    check: Check, outcomes: dict[Check, BaseException | None]
) -> None:
    """Each check, on a real queue master."""
    error = outcomes[check]
    if isinstance(error, pytest.skip.Exception):
        raise error
    assert error is None, "".join(traceback.format_exception(error))


REFUSALS = [
    ({"queue": "nope"}, {}, 'unknown queue "nope"', '"queue"'),
    ({"account": "nope"}, {}, 'project "nope" does not exist', '"account"'),
    ({"directives": ("-pe nope",)}, {"processors": 2}, '"nope" does not exist', "-pe NAME"),
    ({"directives": ("-l nope=1",)}, {}, 'unknown resource "nope"', '"directives"'),
    ({"queue": "short.q"}, {"seconds": 4000.0}, "h_rt=4000", "ask for less time"),
    ({}, {"processors": 1000}, "no suitable queues", "fewer processors"),
    ({}, {"nodes": (2, 3), "processors": 2}, "smp ($pe_slots)", "-pe NAME"),
    ({}, {"reservation": "nope"}, "no reservation nope", "of yours"),
    ({"environment": {"SGE_ROOT": "/nowhere"}}, {}, "/nowhere", '"environment"'),
    ({"environment": {"PATH": "/nowhere"}}, {}, "not found", "PATH"),
]


@pytest.mark.parametrize(("site", "more", "words", "hint"), REFUSALS)
def test_a_refusal_says_why_and_what_to_change(
    site: dict[str, object],
    more: dict[str, object],
    words: str,
    hint: str,
    cluster: Cluster,
    tmp_path: Path,
) -> None:
    """In Grid Engine's own words; such an error is for good."""
    request = JobRequest(name="no", processors=1, seconds=60, script="true", folder=str(tmp_path))
    with pytest.raises(SiteError) as error:
        asyncio.run(manager_on(cluster, **site).submit(replace(request, **more)))  # type: ignore[arg-type]
    assert words in str(error.value)
    assert hint in str(error.value)
    assert not error.value.transient


def test_a_queue_that_is_not_there_is_told_with_those_that_are(cluster: Cluster) -> None:
    """The words name what could be meant."""
    with pytest.raises(SiteError, match=r"no queue nope, but all\.q, lane0\.q"):
        asyncio.run(manager_on(cluster, queue="nope").queue())


def test_a_queue_tells_its_longest_time(cluster: Cluster) -> None:
    """From its h_rt; the other one has no limit."""
    assert asyncio.run(manager_on(cluster, queue="short.q").queue()).longest == 600
    assert asyncio.run(manager_on(cluster).queue()).longest is None


@pytest.mark.ci
def test_jobs_outlive_the_queue_master(cluster: Cluster, tmp_path: Path) -> None:
    """Killed and started again, it knows its jobs; between, nobody says that they ended."""
    ground = ground_on(cluster, tmp_path)

    async def begin() -> str:
        (id,) = await ground.manager.submit(ground.request("outlives", "sleep 2"))
        await ground.wait([id], is_running)
        return id

    async def look(id: str) -> JobReport:
        return (await ground.manager.poll([id]))[id]

    id = asyncio.run(begin())
    cluster.stop_controller()
    with pytest.raises(SiteError) as error:
        asyncio.run(look(id))
    assert error.value.transient
    cluster.start_controller()
    assert asyncio.run(look(id)).state == "running"
    cluster.stop_node()  # otherwise its daemon looks for the queue master a minute later
    cluster.start_node()
    asyncio.run(ground.wait([id], has_ended))


@pytest.mark.ci
def test_a_node_that_is_gone_takes_no_jobs(crash: Future[tuple[QueueState, JobReport]]) -> None:
    """Its queue is down, and so it is told; when it is back its job has ended badly."""
    down, job = crash.result()
    assert [node.up for node in down.nodes] == [False]
    assert down.free == 0
    assert job.state == "ended"
    assert job.how != "completed"


@pytest.mark.ci
def test_it_comes_down_without_a_trace(tmp_path: Path) -> None:
    """No process and no file is left, also of a job; two of them do not see each other's jobs."""
    need_grid_engine()
    first = Cluster.up(tmp_path / "a", slots=1)
    try:
        second = Cluster.up(tmp_path / "b", slots=2)
        try:
            assert first.environment != second.environment
            first.run("qsub", "-b", "y", "-o", "/dev/null", "-j", "y", "sleep", "300")
            assert "sleep" in first.run("qstat")
            assert second.run("qstat") == ""
            with pytest.raises(InputError, match="runs here already"):
                Cluster.up(tmp_path / "b")
        finally:
            Cluster.at(tmp_path / "b").down()
        assert second.processes() == {}
    finally:
        first.down()
    assert first.processes() == {}
    assert list(tmp_path.iterdir()) == []


def look_at(answers: dict[str, CommandResult], *ids: str) -> dict[str, JobReport]:
    manager = GridEngine(BatchScheduler(manager="gridengine"), Recorded(answers))
    return dict(asyncio.run(manager.poll(ids)))


def listed(text: str = QSTAT, accounting: str = QACCT) -> dict[str, CommandResult]:
    return {
        "id -un": CommandResult(0, "root\n", ""),
        "qstat -xml": CommandResult(0, text, ""),
        "qacct": CommandResult(0, accounting, ""),
        "qstat -j": CommandResult(0, QSTAT_J, ""),
        "qstat -f": CommandResult(0, QSTAT_F, ""),
        "qrstat": CommandResult(0, QRSTAT, ""),
    }


def test_every_state_of_a_listing_is_told() -> None:
    """Suspended, running, queued, on hold, in error, ended; and each for itself."""
    reports = look_at(listed(), "28.1", "28.2", "29", "30.3", "30.4", "31", "32", "999")
    assert {id: report.state for id, report in reports.items()} == {
        "28.1": "running",
        "28.2": "running",
        "29": "pending",
        "30.3": "held",
        "30.4": "unknown",  # tasks 1-9:2
        "31": "pending",
        "32": "held",
        "999": "unknown",
    }
    assert reports["28.1"].reason == "suspended"
    assert reports["28.2"].nodes == ("localhost",)
    assert reports["28.2"].processors == 2
    # 2026-11-22T05:31:42 UTC, and 60 s of h_rt.
    assert reports["28.2"].began == 1795325502
    assert reports["28.2"].until == 1795325562
    assert "can't chdir to /nonexistent" in reports["32"].reason


def test_every_end_of_the_accounting_is_told() -> None:
    """Each by its code; killed before its time it was deleted, after it it timed out."""
    ends = {(record.number, record.task): record.how for record in parse_records(QACCT)}
    assert ends["2", 1] == "failed"
    assert ends["2", 2] == "timeout"
    assert ends["3", None] == "completed"
    assert ends["4", 1] == "cancelled"
    assert ends["5", None] == "timeout"


@pytest.mark.parametrize(
    ("failed", "status", "wallclock", "how"),
    [
        ("0    ", "0", "5", "completed"),
        ("0    ", "7", "5", "failed"),
        ("100 : assumedly after job", "137 (Killed)", "5", "cancelled"),
        ("100 : assumedly after job", "137 (Killed)", "60", "timeout"),
        ("100 : assumedly after job", "139", "5", "failed"),
        ("37  : qmaster enforced h_rt, h_cpu, or h_vmem limit", "137", "61", "timeout"),
        ("21  : in recognizing job", "0", "0", "node-fail"),
        ("25  : rescheduling", "0", "0", "preempted"),
        ("26  : opening input/output file", "0", "0", "rejected"),
    ],
)
def test_codes_of_failure(failed: str, status: str, wallclock: str, how: str) -> None:
    """As accounting(5) has them."""
    text = (
        f"{'=' * 62}\njobnumber    8\ntaskid       undefined\nslots        1\n"
        f"failed       {failed}\nexit_status  {status}\nru_wallclock {wallclock}s\n"
        "category     -l h_rt=60 -pe smp 2\n"
    )
    (record,) = parse_records(text)
    assert record.how == how


def test_a_queue_is_read_from_one_listing() -> None:
    """Slots of the host are shared by both queues; jobs in their order, tasks one by one."""
    manager = GridEngine(BatchScheduler(manager="gridengine", queue="all.q"), Recorded(listed()))
    state = asyncio.run(manager.queue())
    (node,) = state.nodes
    # 6 slots; two tasks with 2 each run, of which one is suspended.
    assert (node.name, node.processors, node.allocated, node.up) == ("localhost", 6, 4, True)
    assert node.memory == pytest.approx(23.541 * 2**30)
    assert [job.id for job in state.jobs if job.running] == ["28.1", "28.2"]
    held = [job.id for job in state.jobs if job.held]
    assert held == ["32", "30.1", "30.3", "30.5", "30.7", "30.9"]
    assert all(job.own for job in state.jobs)
    assert [window.processors for window in state.windows] == [2]


BLOCK = QSTAT[QSTAT.index("    <job_list") : QSTAT.index("</job_list>") + len("</job_list>\n")]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), max_size=4))
def test_an_odd_job_spoils_its_own_answer_only(odd: list[str]) -> None:
    """Whatever stands in the name or the state of one, the others are told as before."""
    expected = look_at(listed(), "29", "30.3", "31")
    clean = [text.replace("</job_list>", "").replace("<job_list", "") for text in odd]
    blocks = "".join(
        f"<job_list state='x'><JB_job_number>{77 + n}</JB_job_number><JB_name>{text}</JB_name>"
        f"<state>{text}</state></job_list>\n"
        for n, text in enumerate(clean)
    )
    spoiled = QSTAT.replace("  <job_info>\n", f"  <job_info>\n{blocks}")
    reports = look_at(listed(spoiled, ""), "29", "30.3", "31", "77")
    assert {id: reports[id] for id in expected} == expected
    assert reports["77"].how is None or reports["77"].state == "ended"


def test_a_job_that_cannot_be_read_is_unknown_and_says_why() -> None:
    """It is listed, so that it has not ended; but nobody can say more."""
    spoiled = QSTAT.replace("<state>qw</state>", "<state>q&w</state>", 1)
    report = look_at(listed(spoiled), "29", "31")["29"]
    assert report.state == "unknown"
    assert "cannot be read" in report.reason
    strange = QSTAT.replace("<state>qw</state>", "<state>%</state>", 1)
    assert "'%'" in look_at(listed(strange), "29")["29"].reason


def test_what_is_cut_off_has_not_ended() -> None:
    """Jobs after the cut are unknown; a text that is no listing at all is worth asking again."""
    half = QSTAT[: QSTAT.index("<JB_job_number>30")]
    reports = look_at(listed(half, ""), "28.2", "30.3")
    assert reports["28.2"].state == "running"
    assert reports["30.3"].state == "unknown"
    with pytest.raises(SiteError) as error:
        look_at(listed("Sun Microsystems"), "28.2")
    assert error.value.transient


def test_parallel_environments_are_chosen_by_their_rule() -> None:
    """Slots together, spread, or so many on each host."""
    there = [
        gridengine.ParallelEnvironment("make", "$round_robin"),
        gridengine.ParallelEnvironment("mpi", "$fill_up"),
        gridengine.ParallelEnvironment("smp", "$pe_slots"),
        gridengine.ParallelEnvironment("mpi8", "8"),
    ]
    request = JobRequest(name="x", processors=8, seconds=1, script="", folder="/")
    assert gridengine.choose(there, request).name == "mpi"
    assert gridengine.choose(there, replace(request, together=True)).name == "smp"
    both = replace(request, nodes=(2, 4))
    assert gridengine.choose(there, both).name == "mpi8"
    assert gridengine.slots(both) == "16-32"
    with pytest.raises(SiteError, match=r"make \(\$round_robin\)"):
        gridengine.choose(there[:1], replace(request, together=True))
    assert gridengine.named(("-pe smp", "-l gpu=1")) == ("smp", ("-l gpu=1",))
    assert gridengine.named(("-pe smp 4",)) == (None, ("-pe smp 4",))


def test_tasks_of_arrays_are_counted() -> None:
    """1-9:2 has five tasks, and 4 is none of them."""
    job = next(job for job in gridengine_output.parse_jobs(QSTAT) if job.number == "30")
    assert job.count == 5
    assert list(job.ids) == ["30.1", "30.3", "30.5", "30.7", "30.9"]
    assert 4 not in job
    assert None not in job


def test_a_quality_of_service_is_refused_before_anything_is_tried() -> None:
    """Grid Engine has none; the reader of the sites file says where."""
    with pytest.raises(InputError, match="qos"):
        GridEngine(BatchScheduler(manager="gridengine", qos="high"))
