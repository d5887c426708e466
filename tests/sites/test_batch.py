"""A cluster as a site, on virtual time under a simulated scheduler."""

import asyncio
import math
import re
import stat
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cli.conftest import PATIENCE

from bursar.dispatch.credential import PilotTerms
from bursar.model.allocation import Allocation, AllocationLoss
from bursar.model.errors import BudgetStop, InputError, SiteError
from bursar.model.provisioning import STARTING, AcquisitionPolicy, BatchScheduler
from bursar.model.site import SiteFacts
from bursar.provisioning.accounting import PilotUsage
from bursar.provisioning.lrm.resource_manager import JobReport, JobRequest, JobUsage, QueueState
from bursar.simulation.virtual_loop import VirtualLoop
from bursar.sites.batch import BatchSite
from bursar.sites.protocol import HeldProcessors
from bursar.sites.start_ups import WORKER_STARTS, with_start_ups
from bursar.worker.launch import Endpoint
from bursar_devtools.simulated_jobs import SchedulerLatency, cluster_with_timetable
from bursar_devtools.simulated_manager import SimulatedResourceManager

THERE = ("pending", "held", "running")


class Gate:
    """Lets workers in, and remembers whom."""

    def __init__(self) -> None:
        self.joins: dict[str, Callable[[], None]] = {}
        self.leaves: dict[str, Callable[[], None]] = {}
        self.revoked: set[str] = set()

    async def credential(self, terms: PilotTerms) -> bytes:
        assert terms.on_join is not None
        assert terms.on_leave is not None
        self.joins[terms.lease] = terms.on_join
        self.leaves[terms.lease] = terms.on_leave
        return b"secret"

    def revoke(self, lease: str) -> None:
        self.revoked.add(lease)


class Manager:
    """
    A simulated scheduler whose every answer takes a while, before and after it is carried out.

    Parameters
    ----------
    takes
        Seconds on each side.
    """

    def __init__(self, takes: float = 0.0, processors: int = 8, **more: Any) -> None:
        self.inside = SimulatedResourceManager(
            cluster_with_timetable(processors, policy="easy"), **more
        )
        self.takes = takes
        self.requests: list[JobRequest] = []
        self.words: dict[str, SiteError] = {}  # what it says instead, by method
        self.calls: list[str] = []
        self.names: list[str] = []  # that it was asked to find

    @property
    def abilities(self) -> Any:
        return self.inside.abilities

    async def _do(self, what: str, *given: Any) -> Any:
        self.calls.append(what)
        await asyncio.sleep(self.takes)
        if what in self.words:
            raise self.words[what]
        answer = await getattr(self.inside, what)(*given)
        await asyncio.sleep(self.takes)
        return answer

    async def submit(self, request: JobRequest) -> list[str]:
        self.requests.append(request)
        return await self._do("submit", request)  # type: ignore[no-any-return]

    async def cancel(self, ids: Sequence[str]) -> None:
        await self._do("cancel", ids)

    async def poll(self, ids: Sequence[str]) -> Mapping[str, JobReport]:
        return await self._do("poll", ids)  # type: ignore[no-any-return]

    async def queue(self) -> QueueState:
        return await self._do("queue")  # type: ignore[no-any-return]

    async def usage(self, ids: Sequence[str]) -> Mapping[str, JobUsage]:
        return await self._do("usage", ids)  # type: ignore[no-any-return]

    async def reserve(self, *given: Any) -> None:
        await self._do("reserve", *given)

    async def unreserve(self, name: str) -> None:
        await self._do("unreserve", name)

    async def expected_start(self, request: JobRequest) -> float | None:
        return await self.inside.expected_start(request)

    async def named(self, name: str) -> list[str]:
        self.names.append(name)
        return [id for id, job in self.inside._jobs.items() if job.request.name == name]

    @property
    def there(self) -> list[str]:
        """Jobs that have not ended."""
        return [id for id, job in self.inside._jobs.items() if job.state in THERE]


class Ground:
    """A site with all that it needs, and what became of it."""

    def __init__(
        self,
        folder: Path,
        manager: Manager | None = None,
        *,
        lasting: bool = False,
        history: Path | None = None,
        **rules: Any,
    ) -> None:
        self.folder = folder
        self.manager = manager or Manager()
        self.gate = Gate()
        self.said: list[str] = []
        self.begun: dict[str, tuple[int | None, float | None]] = {}
        self.site = BatchSite(
            SiteFacts(
                name="c1",
                kind="batch",
                processors=8,
                unit_price=1.0,
                batch=BatchScheduler(manager="slurm", reach="127.0.0.1"),
                acquiring=AcquisitionPolicy(**rules),
            ),
            run="abcdef",
            folder=folder,
            manager=self.manager,
            clock=lambda: asyncio.get_running_loop().time(),
            lasting=lasting,
            history=history,
        )

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(address=("127.0.0.1", 1), token="t", run="abcdef", admission=self.gate)

    async def adopt(self, *pilots: Allocation) -> Mapping[str, HeldProcessors]:
        """What an earlier life held of these; all else goes."""
        held = await self.site.adopt(
            pilots, {pilot.name: self.endpoint for pilot in pilots}, self.said.append
        )
        await self.site.end_others(held.keys())
        return held

    def acquire(
        self, pilot: Allocation, *, rigid: bool = False, begin: Any = None
    ) -> Coroutine[Any, Any, HeldProcessors]:
        def begun(processors: int | None = None, seconds: float | None = None) -> None:
            self.begun[pilot.name] = (processors, seconds)

        return self.site.acquire(
            pilot,
            self.endpoint,
            rigid=rigid,
            begin=begin or begun,
            on_event=self.said.append,
        )

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.rglob("*.json*") if path.is_file())

    def usages(self) -> list[PilotUsage]:
        text = (self.folder / "c1.usage.jsonl").read_bytes()
        return [msgspec.json.decode(line, type=PilotUsage) for line in text.splitlines()]


def pilot(
    name: str = "lease-1", processors: int = 2, duration: float = 600.0, **more: Any
) -> Allocation:
    return Allocation(
        **{
            "name": name,
            "site": "c1",
            "processors": processors,
            "start": None,
            "duration": duration,
            "unit_price": 1.0,
            "fixed_price": 0.0,
        }
        | more
    )


def run(work: Coroutine[object, object, None]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work)


# Held and given back.


def test_a_pilot_is_a_job_until_it_is_released(tmp_path: Path) -> None:
    """It begins with its job, has a credential that only its owner reads, and leaves nothing."""

    async def main() -> None:
        ground = Ground(tmp_path)
        async with ground.site.opened():
            held = await ground.acquire(pilot())
            assert ground.begun == {"lease-1": (None, None)}
            assert held.workers == 1
            (job,) = ground.manager.there
            (request,) = ground.manager.requests
            assert (request.processors, request.seconds, request.copies) == (2, 600.0, 1)
            assert request.name.startswith("bursar-abcdef-lease-1")
            (credential,) = tmp_path.rglob("lease-1.json")
            assert stat.S_IMODE(credential.stat().st_mode) == 0o600
            assert stat.S_IMODE(credential.parent.stat().st_mode) == 0o700
            assert str(credential) in request.script
            assert "secret" not in request.script
            assert ground.site.status().free_processors == 6
            await asyncio.sleep(100)
            await held.release()
            assert ground.manager.there == []
            assert ground.gate.revoked == {"lease-1"}
            assert ground.files == []
        (used,) = ground.usages()
        assert (used.pilot, used.job, used.processors, used.how) == (
            "lease-1", job, 2, "cancelled",
        )  # fmt: skip
        assert used.seconds == pytest.approx(100, abs=1)

    run(main())


@pytest.mark.parametrize("bundled", [False, True])
def test_cancelled_at_any_moment_no_job_is_left(tmp_path: Path, bundled: bool) -> None:
    """
    While it is submitted, has been, or runs: the job goes at once, not only at the end.

    Every answer of the scheduler takes 1 s before and 1 s after it is carried out; the
    submission lasts from 2 s to 4 s.
    """

    async def main(moment: float, folder: Path) -> list[str]:
        manager = Manager(takes=1.0, latency=SchedulerLatency(start=3.0))
        ground = Ground(folder, manager)
        more = {"bundle": "b", "copies": 2} if bundled else {}
        async with ground.site.opened():
            names = ["lease-1", "lease-2"][: 1 + bundled]
            tasks = [asyncio.create_task(ground.acquire(pilot(name, **more))) for name in names]
            await asyncio.sleep(moment)
            was = list(manager.inside._jobs)
            for task in tasks:
                task.cancel()
            for answer in await asyncio.gather(*tasks, return_exceptions=True):
                if not isinstance(answer, asyncio.CancelledError):
                    assert not isinstance(answer, BaseException)
                    await answer.release()
            await asyncio.sleep(6.0)
            assert manager.there == []
            assert ground.gate.revoked == set(ground.gate.joins)
            assert ground.files == []
            assert len(manager.requests) <= 1
        return was

    seen = set()
    for step in range(50):
        folder = tmp_path / f"{step}"
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            seen.add(len(runner.run(main(step * 0.25, folder))))
    assert seen == {0, 1 + bundled}  # before and after it was submitted


def test_closed_while_a_job_is_handed_in_it_goes_too(tmp_path: Path) -> None:
    """The end waits for the answer, and takes it back."""

    async def main(moment: float, folder: Path) -> int:
        manager = Manager(takes=1.0)
        ground = Ground(folder, manager)
        async with ground.site.opened():
            task = asyncio.create_task(ground.acquire(pilot()))
            await asyncio.sleep(moment)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert manager.there == []
        assert (folder / "c1.jobs").read_bytes() == b""
        return len(manager.inside._jobs)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        made = [runner.run(main(step * 0.2, tmp_path / f"{step}")) for step in range(16)]
    assert set(made) == {0, 1}


def test_what_cannot_be_ended_now_is_ended_later(tmp_path: Path) -> None:
    """A controller that is away when a pilot goes back: said once, and tried again."""

    async def main() -> None:
        ground = Ground(tmp_path, probe_every=10.0)
        async with ground.site.opened():
            held = await ground.acquire(pilot())
            ground.manager.words["cancel"] = SiteError("no controller", transient=True)
            await held.release()
            await asyncio.sleep(30)
            assert ground.manager.there
            assert [s for s in ground.said if "no controller" in s] == [
                f"c1: jobs {ground.manager.there[0]} are to be ended later: no controller"
            ]
            del ground.manager.words["cancel"]
            await asyncio.sleep(11)
            assert ground.manager.there == []

    run(main())


def test_many_that_go_together_go_by_one_command(tmp_path: Path) -> None:
    async def main() -> None:
        ground = Ground(tmp_path)
        async with ground.site.opened():
            names = [f"lease-{i}" for i in range(8)]
            held = await asyncio.gather(
                *(ground.acquire(pilot(name, processors=1)) for name in names)
            )
            before = ground.manager.calls.count("cancel")
            await asyncio.gather(*(one.release() for one in held))
            assert ground.manager.calls.count("cancel") - before == 1
            assert ground.manager.there == []

    run(main())


# Shapes of requests.


def test_a_bundle_is_one_submission_however_long_one_of_it_takes(tmp_path: Path) -> None:
    """The folder of one is slow to write to; all the same they are one array."""

    async def main() -> None:
        ground = Ground(tmp_path)
        write = ground.site._shell.write
        pauses = iter([0.0, 3.0, 0.0])

        async def slowly(path: str, data: bytes) -> None:
            await asyncio.sleep(next(pauses))
            await write(path, data)

        ground.site._shell.write = slowly  # type: ignore[method-assign]
        async with ground.site.opened():
            pilots = [pilot(f"lease-{i}", bundle="b", copies=3) for i in range(3)]
            await asyncio.gather(*(ground.acquire(one) for one in pilots))
            (request,) = ground.manager.requests
            assert request.copies == 3
            assert len(ground.manager.there) == 3
            assert set(ground.begun) == {"lease-0", "lease-1", "lease-2"}

    run(main())


def test_a_bundle_does_without_one_that_failed_or_never_came(tmp_path: Path) -> None:
    """Of four, one cannot be written down, and one is never asked for: two are handed in."""

    async def main() -> None:
        ground = Ground(tmp_path)
        write = ground.site._shell.write

        async def broken(path: str, data: bytes) -> None:
            if "lease-1" in path:
                raise SiteError("cannot write: no space left")
            await write(path, data)

        ground.site._shell.write = broken  # type: ignore[method-assign]
        async with ground.site.opened():
            pilots = [pilot(f"lease-{i}", bundle="b", copies=4) for i in range(3)]
            answers = await asyncio.gather(
                *(ground.acquire(one) for one in pilots), return_exceptions=True
            )
            assert [isinstance(answer, SiteError) for answer in answers] == [False, True, False]
            assert [request.copies for request in ground.manager.requests] == [2]

    run(main())


def test_a_node_range_begins_with_what_there_is(tmp_path: Path) -> None:
    """
    Of four nodes of 2 processors one is taken: 6 processors begin, and that is said.

    A worker that comes before the scheduler has said so begins nothing: nobody would know
    with how many.
    """

    async def main() -> None:
        manager = Manager(per_node=2)
        ground = Ground(tmp_path, manager)
        async with ground.site.opened():
            await ground.acquire(pilot("lease-1"))
            look = manager.poll

            async def late(ids: Sequence[str]) -> Mapping[str, JobReport]:
                return {id: JobReport(id=id, state="unknown") for id in ids}

            await asyncio.sleep(1)
            manager.poll = late  # type: ignore[method-assign]
            wanted = pilot("lease-2", processors=8, least_processors=2)
            task = asyncio.create_task(ground.acquire(wanted))
            await asyncio.sleep(0.1)
            ground.gate.joins["lease-2"]()
            assert "lease-2" not in ground.begun
            manager.poll = look  # type: ignore[method-assign]
            await task
            assert manager.requests[1].nodes == (1, 4)
            assert manager.requests[1].processors == 2
            assert ground.begun["lease-2"] == (6, None)

    run(main())


def test_a_time_that_may_be_cut_shortens_the_lease(tmp_path: Path) -> None:
    """All processors are kept from 300 s on: of 600 s, at least 120, it gets what is there."""

    async def main() -> None:
        manager = Manager(may_reserve=True)
        ground = Ground(tmp_path, manager)
        await manager.inside.reserve("other", 300.0, 1000.0, 8)
        async with ground.site.opened():
            await ground.acquire(pilot(least_duration=120.0))
            processors, seconds = ground.begun["lease-1"]
            assert processors is None
            assert seconds is not None
            assert 120 <= seconds <= 300
            assert manager.requests[0].least_seconds == 120.0

    run(main())


def test_no_job_is_asked_for_longer_than_the_queue_allows(tmp_path: Path) -> None:
    """A pilot without an end has the one of its job."""

    async def main() -> None:
        ground = Ground(tmp_path, Manager(longest=500.0), longest=900.0)
        async with ground.site.opened():
            assert ground.site.view().longest == 500.0
            await ground.acquire(pilot(duration=math.inf))
            assert ground.manager.requests[0].seconds == 500.0
            assert ground.begun["lease-1"] == (None, 500.0)

    run(main())


def test_a_pilot_of_a_plan_has_time_to_start_its_workers(tmp_path: Path) -> None:
    """A plan counts its tasks only; the site lets it stay so much longer, and says so."""

    async def main() -> None:
        ground = Ground(tmp_path)
        async with ground.site.opened():
            await ground.acquire(pilot(duration=100.0, tasks=(1, 2)))
            assert ground.manager.requests[0].seconds == 100.0 + STARTING
            assert ground.begun["lease-1"] == (None, 100.0 + STARTING)

    run(main())


@pytest.mark.parametrize(
    ("processors", "nodes", "each", "begun"),
    [(2, None, 2, None), (4, None, 4, None), (8, (2, 2), 4, None), (7, (2, 2), 3, 6)],
)
def test_wide_tasks_find_their_processors_on_one_node(
    tmp_path: Path, processors: int, nodes: tuple[int, int] | None, each: int, begun: int | None
) -> None:
    """Nodes of 4: up to that together on one; more than that, as many on each of several."""

    async def main() -> None:
        ground = Ground(tmp_path, Manager(per_node=4))
        async with ground.site.opened():
            await ground.acquire(pilot(processors=processors), rigid=True)
            (request,) = ground.manager.requests
            assert (request.nodes, request.processors) == (nodes, each)
            assert request.together is (nodes is None)
            assert ground.begun["lease-1"] == (begun, None)

    run(main())


# What goes wrong.


@pytest.mark.parametrize(
    ("method", "transient"),
    [("submit", False), ("submit", True), ("queue", True), ("queue", False)],
)
def test_what_the_scheduler_says_is_told_in_its_words(
    tmp_path: Path, method: str, transient: bool
) -> None:
    """With the site's name, once; whether trying again helps is passed on."""

    async def main() -> None:
        ground = Ground(tmp_path)
        ground.manager.words[method] = SiteError("Slurm: invalid partition", transient=transient)
        async with ground.site.opened():
            with pytest.raises(SiteError) as told:
                await ground.acquire(pilot())
            assert f"{told.value}" == "c1: Slurm: invalid partition"
            assert told.value.transient is transient
            assert ground.files == []
            assert ground.gate.revoked >= set(ground.gate.joins)
            ground.manager.words.clear()
            await ground.acquire(pilot("lease-2"))

    run(main())


def test_however_many_ask_an_unreachable_scheduler_is_asked_once(tmp_path: Path) -> None:
    async def main() -> None:
        ground = Ground(tmp_path, Manager(takes=1.0))
        ground.manager.words["queue"] = SiteError("no controller", transient=True)
        async with ground.site.opened():
            before = ground.manager.calls.count("queue")
            answers = await asyncio.gather(
                *(ground.acquire(pilot(f"lease-{i}")) for i in range(50)), return_exceptions=True
            )
            assert all(isinstance(answer, SiteError) for answer in answers)
            assert ground.manager.calls.count("queue") - before <= 2

    run(main())


def test_impossible_requests_fail_and_do_not_hang(tmp_path: Path) -> None:
    """What an adapter finds wrong before it asks anybody reaches who asked for the pilot."""

    async def main() -> None:
        ground = Ground(tmp_path)
        ground.manager.words["submit"] = InputError("a directive is one line")  # type: ignore[assignment]
        async with ground.site.opened():
            with pytest.raises(SiteError, match="c1: a directive is one line"):
                await ground.acquire(pilot())

    run(main())


def test_a_job_that_is_held_is_given_up(tmp_path: Path) -> None:
    """It would wait for ever; the scheduler's reason is told, and the job taken back."""

    async def main() -> None:
        ground = Ground(tmp_path, Manager(latency=SchedulerLatency(start=50.0)))

        async def held(ids: Sequence[str]) -> Mapping[str, JobReport]:
            reason = "JobHeldUser: release it"
            return {id: JobReport(id=id, state="held", reason=reason) for id in ids}

        look, ground.manager.poll = ground.manager.poll, held  # type: ignore[method-assign]
        async with ground.site.opened():
            with pytest.raises(SiteError, match=r"c1: lease-1 .*is held: JobHeldUser: release it"):
                await ground.acquire(pilot())
            assert ground.manager.there == []
            ground.manager.poll = look  # type: ignore[method-assign]

    run(main())


@pytest.mark.parametrize(
    ("how", "loss"),
    [("node-fail", "lost"), ("cancelled", "lost"), ("timeout", "ended"), ("completed", "ended")],
)
def test_a_job_that_ends_by_itself_is_told(tmp_path: Path, how: Any, loss: AllocationLoss) -> None:
    """Once, with how it ended; its release asks for nothing more."""

    async def main() -> None:
        ground = Ground(tmp_path)
        async with ground.site.opened():
            held = await ground.acquire(pilot())
            (job,) = ground.manager.there
            ground.manager.inside.lose(job, how)
            async with asyncio.timeout(30):
                found, reason = await held.lost()
            assert found == loss
            assert f"{how}" in reason
            assert "lease-1" in reason
            assert held.workers == 0
            before = ground.manager.calls.count("cancel")
            await held.release()
            assert ground.manager.calls.count("cancel") == before

    run(main())


def test_a_lost_worker_makes_the_site_look_at_once(tmp_path: Path) -> None:
    """Half of eight pilots are cancelled by somebody; the scheduler takes 2 s for an answer."""

    async def main() -> None:
        ground = Ground(tmp_path, Manager(takes=1.0))
        async with ground.site.opened():
            names = [f"lease-{i}" for i in range(8)]
            asks = [ground.acquire(pilot(name, 1, duration=3600.0)) for name in names]
            held = await asyncio.gather(*asks)
            await asyncio.sleep(600.0)
            lost = [asyncio.ensure_future(one.lost()) for one in held[:4]]
            for name in names[:4]:
                ground.manager.inside.lose(ground.site._pilots[name].job, "cancelled")
                ground.gate.leaves[name]()
            async with asyncio.timeout(2.0 + 2.0):
                answers = await asyncio.gather(*lost)
            assert {loss for loss, _ in answers} == {"lost"}
            assert [one.workers for one in held] == [0] * 4 + [1] * 4

    run(main())


def test_how_long_workers_take_to_start_is_kept_for_later_runs(tmp_path: Path) -> None:
    """
    Three workers join 20 s after their jobs' begin, which the scheduler tells in whole seconds: 19
    or 20 s are kept. A second worker of a job says nothing, and one of a site of another name, or
    another file, is not one of these.
    """
    runs = tmp_path / "runs"

    async def main() -> None:
        ground = Ground(tmp_path / "pilots", history=runs)
        async with ground.site.opened():
            for number in range(3):
                held = await ground.acquire(pilot(f"lease-{number}"))
                await asyncio.sleep(20.0)
                ground.gate.joins[f"lease-{number}"]()
                ground.gate.joins[f"lease-{number}"]()
                await asyncio.sleep(10.0)
                await held.release()

        learned = with_start_ups(ground.site.facts, runs).batch.learned
        assert learned.count == 3
        assert learned.median == pytest.approx(19.5, abs=1.0)
        facts = ground.site.facts
        for other in (replace(facts, name="c2"), replace(facts, source="x")):
            assert with_start_ups(other, runs).batch.learned is None
        (runs / WORKER_STARTS).write_bytes(b'\0{"site":"c1"')
        assert with_start_ups(facts, runs).batch.learned is None

    run(main())


def test_a_job_that_is_put_back_into_the_queue_is_lost(tmp_path: Path) -> None:
    """Its processors are gone; it is not run a second time for nobody."""

    async def main() -> None:
        ground = Ground(tmp_path)
        async with ground.site.opened():
            held = await ground.acquire(pilot())
            await asyncio.sleep(1)
            look = ground.manager.poll

            async def again(ids: Sequence[str]) -> Mapping[str, JobReport]:
                return {id: JobReport(id=id, state="pending", reason="BeginTime") for id in ids}

            ground.manager.poll = again  # type: ignore[method-assign]
            async with asyncio.timeout(30):
                assert (await held.lost())[0] == "lost"
            ground.manager.poll = look  # type: ignore[method-assign]
            await asyncio.sleep(1)
            assert ground.manager.there == []

    run(main())


def test_no_money_at_the_begin_gives_the_job_back(tmp_path: Path) -> None:
    async def main() -> None:
        ground = Ground(tmp_path)

        def refused(processors: int | None = None, seconds: float | None = None) -> None:
            raise BudgetStop("no money")

        async with ground.site.opened():
            with pytest.raises(BudgetStop):
                await ground.acquire(pilot(), begin=refused)
            assert ground.manager.there == []
            assert ground.gate.revoked == {"lease-1"}

    run(main())


def test_a_pilot_that_cannot_start_says_why(tmp_path: Path) -> None:
    """The scheduler knows an exit status; what the program said is more."""

    class Failing(Manager):
        async def submit(self, request: JobRequest) -> list[str]:
            ids = await super().submit(request)
            body = request.script.replace(sys.executable, "/nowhere/python3")
            process = await asyncio.create_subprocess_exec("sh", "-c", body)
            await process.wait()
            for id in ids:
                self.inside.lose(id, "failed")
            return ids

    async def main() -> None:
        ground = Ground(tmp_path, Failing())
        async with ground.site.opened(), asyncio.timeout(PATIENCE):
            with pytest.raises(SiteError, match=r'has ended: failed.*it said ".*/nowhere/python3'):
                await ground.acquire(pilot())

    asyncio.run(main())


# Ahead of time.


def test_where_it_may_it_keeps_processors_by_reservations(tmp_path: Path) -> None:
    """Each pilot to come has one, and its job runs in it; what is not used goes back."""

    async def main() -> None:
        ground = Ground(tmp_path, Manager(may_reserve=True))
        windows = ground.manager.inside._windows
        ahead = [pilot(f"lease-{i}", start=100.0 * i, duration=80.0, tasks=(i,)) for i in (0, 1, 2)]
        ahead.append(pilot("lease-3", start=150.0, works=False))  # pays for others only
        async with ground.site.opened():
            assert await ground.site.reserve(ahead) == 0.0
            assert sorted(windows) == ["bursar-abcdef-lease-1", "bursar-abcdef-lease-2"]
            await asyncio.sleep(101)
            held = await ground.acquire(ahead[1])
            assert ground.manager.requests[0].reservation == "bursar-abcdef-lease-1"
            await ground.site.reserve(())
            assert list(windows) == ["bursar-abcdef-lease-1"]  # in use
            await held.release()
            assert list(windows) == []
        assert (tmp_path / "c1.jobs").read_bytes() == b""

    run(main())


def test_where_it_may_not_jobs_are_handed_in_ahead(tmp_path: Path) -> None:
    """Said once; each job waits for its begin."""

    async def main() -> None:
        ground = Ground(tmp_path)
        ahead = pilot(start=100.0, duration=80.0, tasks=(1,))
        async with ground.site.opened():
            assert await ground.site.reserve([ahead]) == math.inf
            await ground.acquire(ahead)
            assert asyncio.get_running_loop().time() == pytest.approx(100.0, abs=11)
            assert ground.manager.requests[0].begin == pytest.approx(100.0)

    run(main())


def test_refused_reservations_leave_none_behind(tmp_path: Path) -> None:
    """The second is refused: the first goes back, and pilots are handed in ahead instead."""

    async def main() -> None:
        ground = Ground(tmp_path, Manager(may_reserve=True))
        ahead = [pilot(f"lease-{i}", processors=5, start=50.0) for i in (1, 2)]
        async with ground.site.opened():
            assert await ground.site.reserve(ahead) == math.inf
            assert ground.manager.inside._windows == {}

    run(main())


def test_reservations_that_are_cancelled_half_way_are_found(tmp_path: Path) -> None:
    async def main(moment: float, folder: Path) -> None:
        ground = Ground(folder, Manager(takes=1.0, may_reserve=True))
        ahead = [pilot(f"lease-{i}", start=50.0) for i in (1, 2)]
        async with ground.site.opened():
            task = asyncio.create_task(ground.site.reserve(ahead))
            await asyncio.sleep(moment)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert ground.manager.inside._windows == {}

    for step in range(12):
        run(main(step * 0.4, tmp_path / f"{step}"))


# What an earlier life left.


def test_what_a_killed_life_left_is_ended_by_the_next(tmp_path: Path) -> None:
    """Jobs that were written down, one that was only about to be, and a reservation."""

    async def main() -> None:
        manager = Manager(may_reserve=True)
        first = Ground(tmp_path, manager)
        context = first.site.opened()
        await context.__aenter__()
        await first.acquire(pilot())
        await first.site.reserve([pilot("lease-9", start=500.0)])
        # Killed while the scheduler has the request, and nobody the answer.
        has = first.site._record.has
        first.site._record.has = lambda *given: None  # type: ignore[method-assign]
        await first.acquire(pilot("lease-2"))
        first.site._record.has = has  # type: ignore[method-assign]
        assert len(manager.there) == 2

        second = Ground(tmp_path, manager)
        async with second.site.opened():
            assert manager.there == []
            assert manager.inside._windows == {}
            assert manager.names == ["bursar-abcdef-lease-2"]
        assert {used.pilot for used in second.usages()} >= {"lease-1"}

        third = Ground(tmp_path, manager)
        manager.names.clear()
        async with third.site.opened():
            assert manager.names == []
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    run(main())


def test_leftovers_are_remembered_while_the_scheduler_is_away(tmp_path: Path) -> None:
    """A life that never reached it forgets nothing."""

    async def main() -> None:
        manager = Manager()
        first = Ground(tmp_path, manager)
        context = first.site.opened()
        await context.__aenter__()
        await first.acquire(pilot())
        manager.words = {
            name: SiteError("no controller", transient=True)
            for name in ("cancel", "poll", "queue", "usage")
        }
        async with Ground(tmp_path, manager).site.opened():
            pass
        manager.words = {}
        assert manager.there
        async with Ground(tmp_path, manager).site.opened():
            assert manager.there == []
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    run(main())


def test_a_record_that_a_crash_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    async def main() -> None:
        manager = Manager()
        first = Ground(tmp_path, manager)
        context = first.site.opened()
        await context.__aenter__()
        await first.acquire(pilot())
        with (tmp_path / "c1.jobs").open("ab") as file:
            file.write(b'{"kind":"job","name":"x","jo')
        await first.acquire(pilot("lease-2"))
        async with Ground(tmp_path, manager).site.opened():
            assert manager.there == []
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    run(main())


# What it shows.


def test_it_shows_what_the_queue_leaves_free(tmp_path: Path) -> None:
    """And asks for the queue no more often than it should, however often it is looked at."""

    async def main() -> None:
        ground = Ground(tmp_path, Manager(per_node=4), probe_every=30.0)
        with pytest.raises(SiteError, match="not been asked"):
            ground.site.status()
        assert ground.site.view().free is None
        async with ground.site.opened():
            for _ in range(100):
                view = ground.site.view()
                await asyncio.sleep(3)
            assert (view.free, view.per_node, view.batch, view.arrays) == (8, 4, True, True)
            assert view.backfill_windows
            assert ground.manager.calls.count("queue") <= 12
            (offer,) = ground.site.offers()
            assert (offer.processors, offer.start, offer.duration) == (8, 0.0, 3600.0)

    run(main())


def test_no_word_of_a_path_reaches_the_jobs_names(tmp_path: Path) -> None:
    """Schedulers take letters, digits and a few signs in names, whatever the site is called."""

    async def main() -> None:
        ground = Ground(tmp_path)
        facts = replace(ground.site.facts, name="my cluster/ü")
        site = BatchSite(facts, run="abc", folder=tmp_path, manager=ground.manager)
        ground.site = site
        async with site.opened():
            await ground.acquire(pilot())
            (request,) = ground.manager.requests
            assert re.fullmatch(r"[A-Za-z0-9_-]+", request.name)

    run(main())


def test_where_nothing_is_free_the_scheduler_is_asked_when_something_will_be(
    tmp_path: Path,
) -> None:
    """
    Its own word, once in so many seconds as courtesy allows, and only while all is taken: the
    job that holds everything ends after 600 s at the latest.
    """

    async def main() -> None:
        ground = Ground(tmp_path, probe_every=20.0)
        asked: list[JobRequest] = []
        inner = ground.manager.expected_start

        async def expected_start(request: JobRequest) -> float | None:
            asked.append(request)
            return await inner(request)

        ground.manager.expected_start = expected_start  # type: ignore[method-assign]
        async with ground.site.opened():
            await asyncio.sleep(30)
            assert asked == []
            assert ground.site.view().probed is None
            held = await ground.acquire(pilot(processors=8))
            begin = asyncio.get_running_loop().time()
            await asyncio.sleep(100)
            assert 4 <= len(asked) <= 6
            left = ground.site.view().probed
            assert left is not None
            assert 500 <= left <= 600 - (100 - 21)
            assert ground.site.status().traversal_time == left
            assert asyncio.get_running_loop().time() - begin == 100
            await held.release()
            await asyncio.sleep(30)
            assert ground.site.view().probed is None

    run(main())


def test_a_job_whose_answer_was_lost_goes_at_the_end(tmp_path: Path) -> None:
    """It was taken, nobody heard of it, and it waits under its name."""

    async def main() -> None:
        ground = Ground(tmp_path)
        manager = ground.manager
        inner = manager.inside.submit

        async def submit(request: JobRequest) -> list[str]:
            await inner(request)
            raise SiteError("no answer", transient=True)

        manager.inside.submit = submit  # type: ignore[method-assign]
        async with ground.site.opened():
            with pytest.raises(SiteError):
                await ground.acquire(pilot())
            assert len(manager.there) == 1
        assert manager.there == []

    run(main())
