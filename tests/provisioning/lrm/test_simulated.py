"""A manager on virtual time."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from tests.provisioning.lrm.contract import EACH, Ground, has_ended, is_running

from bursar.model.errors import InputError, SiteError
from bursar.model.trace import Trace
from bursar.provisioning.lrm.resource_manager import JobRequest
from bursar.simulation.loaded_cluster import LoadedCluster
from bursar.simulation.virtual_loop import VirtualLoop
from bursar_devtools.simulated_jobs import (
    SchedulerLatency,
    SimulatedJob,
    cluster_with_timetable,
)
from bursar_devtools.simulated_manager import SimulatedResourceManager

REQUEST = JobRequest(name="job", processors=1, seconds=60.0, script="", folder="/nowhere")


def run(work: Coroutine[object, object, None]) -> None:
    """On virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work)


def obey(job: SimulatedJob) -> Callable[[], None]:
    """Does what a script of sleeps and an exit says."""
    said = job.request.script.replace('"$BURSAR_ELEMENT"', str(job.element))
    seconds = sum(float(word) for word in re.findall(r"sleep (\d+)", said))
    status = re.search(r"exit (\d+)", said)
    how = "failed" if status is not None and int(status[1]) else "completed"
    loop = asyncio.get_running_loop()
    return loop.call_later(seconds, job.end, how).cancel


def manager_of(processors: int = 4, **more: object) -> SimulatedResourceManager:
    return SimulatedResourceManager(cluster_with_timetable(processors), obey, **more)  # type: ignore[arg-type]


@EACH
@pytest.mark.parametrize("may_reserve", [False, True])
def test_the_simulated_manager_keeps_the_contract(
    check: Callable[[Ground], Awaitable[None]], may_reserve: bool, tmp_path: Path
) -> None:
    """Each check, on virtual time; operators and plain users."""

    async def go() -> None:
        manager = manager_of(may_reserve=may_reserve, latency=SchedulerLatency(start=0.25))

        @contextmanager
        def unreachable() -> Iterator[None]:
            manager.is_reachable = False
            yield
            manager.is_reachable = True

        ground = Ground(
            manager=manager,
            processors=4,
            folder=tmp_path,
            commands=lambda: manager.commands,
            unreachable=unreachable,
            now=asyncio.get_running_loop().time,
        )
        await check(ground)

    run(go())


def test_submissions_follow_one_another_and_starts_are_late() -> None:
    """Three submissions of 2 s at once are done at 2, 4 and 6 s; scripts begin 10 s later."""
    began: list[float] = []

    def launch(job: SimulatedJob) -> None:
        began.append(asyncio.get_running_loop().time())

    async def go() -> None:
        latency = SchedulerLatency(submission=2.0, start=10.0)
        manager = SimulatedResourceManager(cluster_with_timetable(3), launch, latency=latency)
        await asyncio.gather(*(manager.submit(REQUEST) for _ in range(3)))
        assert asyncio.get_running_loop().time() == 6.0
        await asyncio.sleep(20)
        assert began == [12.0, 14.0, 16.0]

    run(go())


def test_the_same_seed_gives_the_same_starts() -> None:
    """The spread lies in its bounds, differs from job to job, and repeats."""

    def starts(seed: int) -> list[float]:
        began: list[float] = []

        async def go() -> None:
            manager = SimulatedResourceManager(
                cluster_with_timetable(20),
                lambda job: began.append(asyncio.get_running_loop().time()),
                latency=SchedulerLatency(start=30.0, spread=20.0),
                rng=np.random.default_rng(seed),
            )
            await manager.submit(JobRequest(**{**_fields(REQUEST), "copies": 20}))
            await asyncio.sleep(55)

        run(go())
        return began

    assert starts(1) == starts(1) != starts(2)
    assert all(30 <= moment <= 50 for moment in starts(1))
    assert len(set(starts(1))) == 20


def _fields(request: JobRequest) -> dict[str, object]:
    return {name: getattr(request, name) for name in request.__dataclass_fields__}


@pytest.mark.ci
def test_processors_come_by_the_timetable() -> None:
    """Of 48 jobs 47 start at once and the last at 160 s, when its processor is given back."""

    async def go() -> None:
        manager = SimulatedResourceManager(cluster_with_timetable(48, [(0, 47), (160, 48)]))
        assert (await manager.queue()).free == 47
        many = JobRequest(**{**_fields(REQUEST), "copies": 48, "seconds": 600.0})
        ids = await manager.submit(many)
        reports = await manager.poll(ids)
        assert [r.state for r in reports.values()].count("running") == 47
        await asyncio.sleep(170)
        assert (await manager.poll(ids))[ids[-1]].began == 160.0
        wide = JobRequest(**{**_fields(REQUEST), "processors": 49})
        with pytest.raises(SiteError, match="48 processors"):
            await manager.submit(wide)

    run(go())
    with pytest.raises(InputError):
        cluster_with_timetable(4, [(10, 2), (5, 4)])
    with pytest.raises(InputError):
        cluster_with_timetable(4, [(0, 5)])


def test_a_clock_far_from_the_loops_misses_nothing() -> None:
    """A cluster at second 1e9/3 of its trace: ends come, though the two clocks round otherwise."""

    async def go() -> None:
        cluster = cluster_with_timetable(3)
        cluster.advance(1e9 / 3)
        manager = SimulatedResourceManager(cluster)
        ids = []
        for number in range(200):
            request = JobRequest(**{**_fields(REQUEST), "seconds": 10 + number / 7})
            ids += await manager.submit(request)
        while any(r.state != "ended" for r in (await manager.poll(ids)).values()):
            await asyncio.sleep(100 / 3)
        for id, used in (await manager.usage(ids)).items():
            assert used.how == "timeout"
            assert used.seconds == pytest.approx(10 + (int(id) - 1) / 7, abs=1e-5)

    run(go())


def test_jobs_of_the_trace_come_first() -> None:
    """What others sent before our job is before it in the queue."""
    trace = Trace(
        name="others",
        number=np.array([1, 2]),
        submit=np.array([0.0, 50.0]),
        runtime=np.array([60.0, 60.0]),
        estimate=np.array([60.0, 60.0]),
        processors=np.array([2, 2]),
        wait=np.full(2, np.nan),
        user=np.zeros(2, dtype=np.int64),
    )

    async def go() -> None:
        manager = SimulatedResourceManager(LoadedCluster(trace, 2, at=10.0, policy="fcfs"))
        await asyncio.sleep(45)  # 55 on the trace's clock
        (id,) = await manager.submit(REQUEST)
        state = await manager.queue()
        assert [(job.own, job.running) for job in state.jobs] == [
            (False, True),
            (False, False),
            (True, False),
        ]
        assert (await manager.poll([id]))[id].expected == pytest.approx(110.0)
        await asyncio.sleep(70)
        assert (await manager.poll([id]))[id].began == pytest.approx(110.0)

    run(go())


def test_a_range_of_nodes_takes_what_is_free_at_its_start() -> None:
    """Of four nodes one is held: a job over one to four of them has three at once."""

    async def go() -> None:
        manager = SimulatedResourceManager(cluster_with_timetable(8), per_node=2)
        await manager.submit(JobRequest(**{**_fields(REQUEST), "processors": 2}))
        flexible = JobRequest(**{**_fields(REQUEST), "processors": 2, "nodes": (1, 4)})
        (id,) = await manager.submit(flexible)
        report = (await manager.poll([id]))[id]
        assert report.state == "running"
        assert report.processors == 6
        assert (await manager.queue()).free == 0
        await manager.cancel([id])
        assert (await manager.queue()).free == 6
        assert (await manager.usage([id]))[id].processors == 6

    run(go())


def test_a_time_is_cut_so_that_the_job_fits_before_what_is_kept() -> None:
    """With 100 s until all is reserved, a job of 50 s to 300 s runs for nearly 100 s now."""

    async def go() -> None:
        manager = SimulatedResourceManager(
            cluster_with_timetable(2, [(0, 2), (100, 0)], policy="easy")
        )
        flexible = JobRequest(**{**_fields(REQUEST), "seconds": 300.0, "least_seconds": 50.0})
        (id,) = await manager.submit(flexible)
        report = (await manager.poll([id]))[id]
        assert report.state == "running"
        assert report.until is not None
        assert 99 < report.until <= 100

    run(go())


def test_a_job_in_a_window_of_its_own_starts_with_it_and_ends_with_it() -> None:
    """Others wait meanwhile; what is in the window is there for as long as it is open."""

    async def go() -> None:
        manager = SimulatedResourceManager(cluster_with_timetable(4), may_reserve=True)
        await manager.reserve("mine", 100.0, 50.0, 3)
        (inside,) = await manager.submit(
            JobRequest(
                **{**_fields(REQUEST), "processors": 3, "reservation": "mine", "seconds": 99.0}
            )
        )
        (stranger,) = await manager.submit(JobRequest(**{**_fields(REQUEST), "reservation": "no"}))
        assert (await manager.poll([stranger]))[stranger].how == "rejected"
        await asyncio.sleep(99)
        (outside,) = await manager.submit(JobRequest(**{**_fields(REQUEST), "processors": 2}))
        await asyncio.sleep(2)
        reports = await manager.poll([inside, outside])
        assert reports[inside].began == 100.0
        assert reports[outside].state == "pending"
        await asyncio.sleep(50)
        reports = await manager.poll([inside, outside])
        assert (reports[inside].how, reports[inside].ended) == ("timeout", 150.0)
        assert reports[outside].began == 150.0

    run(go())


def test_a_lost_job_tells_its_script_and_frees_its_processors() -> None:
    """As when a node breaks down: the script is killed once, and others start."""
    killed: list[str] = []

    def launch(job: SimulatedJob) -> Callable[[], None]:
        return lambda: killed.append(job.id)

    async def go() -> None:
        manager = SimulatedResourceManager(cluster_with_timetable(1), launch)
        (first,) = await manager.submit(REQUEST)
        (second,) = await manager.submit(REQUEST)
        await asyncio.sleep(1)
        manager.lose(first)
        ground = Ground(
            manager=manager,
            processors=1,
            folder=Path("/nowhere"),
            commands=lambda: manager.commands,
            now=asyncio.get_running_loop().time,
        )
        assert (await ground.wait([first], has_ended))[first].how == "node-fail"
        await ground.wait([second], is_running)
        manager.lose(first)
        assert killed == [first]

    run(go())
