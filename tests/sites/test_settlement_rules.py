"""What a job is charged for, by each of a scheduler's answers; on a scheduler made of them."""

import asyncio
from collections.abc import Coroutine, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bursar.market.lease import Lease
from bursar.model.errors import SiteError
from bursar.provisioning.accounting import PilotUsage
from bursar.provisioning.lrm.resource_manager import JobReport, JobUsage
from bursar.simulation.virtual_loop import VirtualLoop
from bursar.sites.job_settlement import LATE, UNRECORDED, JobSettlement, _number
from bursar.sites.job_watch import LATEST
from bursar.sites.pilot_job_journal import PilotJobJournal
from bursar.sites.protocol import MeteredTime

BEGIN = 5_000.0
"""By the scheduler's clock, seconds since the epoch, when virtual time begins."""


def run(work: Coroutine[object, object, None]) -> None:
    """On virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work)


def now() -> float:
    return BEGIN + asyncio.get_running_loop().time()


class Words:
    """A manager that says what it was told to."""

    def __init__(self) -> None:
        self.reports: dict[str, JobReport] = {}
        self.used: dict[str, JobUsage] = {}
        self.names: dict[str, list[str]] = {}
        self.cancelled: list[tuple[float, list[str]]] = []
        self.looked: list[float] = []
        self.asked: list[list[str]] = []
        self.error: SiteError | None = None

    async def poll(self, ids: Sequence[str]) -> dict[str, JobReport]:
        self.looked.append(now() - BEGIN)
        if self.error is not None:
            raise self.error
        return {id: self.reports.get(id, JobReport(id=id, state="unknown")) for id in ids}

    async def usage(self, ids: Sequence[str]) -> dict[str, JobUsage]:
        self.asked.append(list(ids))
        return {id: self.used[id] for id in ids if id in self.used}

    async def cancel(self, ids: Sequence[str]) -> None:
        self.cancelled.append((now() - BEGIN, list(ids)))

    async def named(self, name: str) -> list[str]:
        return self.names.get(name, [])


class Scene:
    """The settlement of one site, of which job 1 is lease-1's pilot."""

    def __init__(self, folder: Path) -> None:
        self.manager = Words()
        self.record = PilotJobJournal(folder / "jobs")
        self.usage = folder / "usage"
        self.said: list[str] = []
        self.settlement = JobSettlement(
            self.manager,  # type: ignore[arg-type]
            self.record,
            self.usage,
            ready=self._ready,
            clock=now,
            notify=self.said.append,
        )

    async def _ready(self) -> None:
        await asyncio.sleep(0)

    def says(self, state: Any, *, id: str = "1", **more: Any) -> None:
        self.manager.reports[id] = JobReport(id=id, state=state, **more)

    def used(
        self, seconds: float, *, processors: int = 2, how: Any = "completed", **more: Any
    ) -> None:
        self.manager.used["1"] = JobUsage(
            id="1", processors=processors, seconds=seconds, how=how, **more
        )

    async def meter(
        self, watched: float | None = None, *, within: float = 1e4, **more: Any
    ) -> MeteredTime:
        async with asyncio.timeout(within):
            return await self.settlement.meter(lease(**more), watched)

    @property
    def rows(self) -> list[PilotUsage]:
        lines = self.usage.read_bytes().splitlines() if self.usage.exists() else []
        return [msgspec.json.decode(line, type=PilotUsage) for line in lines]


def lease(name: str = "lease-1", **more: Any) -> Lease:
    usual = {
        "processors": 2,
        "unit_price": 1.0,
        "fixed_price": 0.0,
        "start": BEGIN,
        "unwatched": 90.0,
    }
    return Lease(id=name, site="c1", **{**usual, **more})


def test_a_job_that_has_ended_is_charged_by_its_record(tmp_path: Path) -> None:
    """And its figure is kept, once."""

    async def main() -> None:
        scene = Scene(tmp_path)
        scene.record.has("r", {"1": "lease-1"})
        scene.says("ended", began=BEGIN + 1.0)
        scene.used(30.0, processors=3, how="timeout")
        assert await scene.meter() == MeteredTime(began=BEGIN + 1.0, seconds=30.0)
        assert scene.rows == [
            PilotUsage(pilot="lease-1", job="1", processors=3, seconds=30.0, how="timeout")
        ]
        assert scene.settlement.notified == {"1"}
        assert scene.manager.asked == [["1"]]
        assert scene.manager.cancelled == []
        assert not scene.settlement.is_owed

    run(main())


@pytest.mark.parametrize(
    ("began", "seconds", "stints", "whole", "found", "processors"),
    [
        # Never began: nothing was held, and processors that are not told are none.
        (None, 0.0, [], False, None, 0),
        (BEGIN, 0.0, [], False, 0.0, 0),
        # Two times, of which the scheduler knows the last; or both.
        (None, 5.0, [(BEGIN - 50.0, BEGIN - 40.0), (BEGIN, None)], False, 15.0, 2),
        (None, 15.0, [(BEGIN - 50.0, BEGIN - 40.0), (BEGIN, None)], True, 15.0, 2),
        # Cancelled after it had been put back, so that no processors are told.
        (None, 0.0, [(BEGIN - 50.0, BEGIN - 40.0)], False, 10.0, 2),
    ],
)
def test_times_before_a_job_was_put_back_count(
    tmp_path: Path,
    began: float | None,
    seconds: float,
    stints: list[tuple[float, float | None]],
    whole: bool,
    found: float | None,
    processors: int,
) -> None:
    async def main() -> None:
        scene = Scene(tmp_path)
        scene.record.has("r", {"1": "lease-1"})
        for since, requeued in stints:
            scene.record.began("1", since, None)
            if requeued is not None:
                scene.record.requeued("1", requeued)
        scene.says("ended", began=began)
        scene.used(seconds, processors=0, is_whole=whole)
        first = stints[0][0] if stints else began
        assert await scene.meter() == MeteredTime(began=first, seconds=found)
        assert [row.processors for row in scene.rows] == [processors]
        assert [row.seconds for row in scene.rows] == [found or 0.0]

    run(main())


@pytest.mark.parametrize("state", ["pending", "held", "running"])
def test_a_job_that_is_there_is_told_to_end_again_and_again(tmp_path: Path, state: str) -> None:
    """At once, and every five seconds; it is no unknown one, however long that takes."""

    async def main() -> None:
        scene = Scene(tmp_path)
        scene.record.has("r", {"1": "lease-1"})
        scene.says(state, began=BEGIN if state == "running" else None)
        metering = asyncio.create_task(scene.meter())
        await asyncio.sleep(30.0)
        times = [at for at, _ in scene.manager.cancelled]
        assert times[0] == 0.0
        assert all(5.0 <= b - a <= 7.0 for a, b in pairwise(times))
        assert 4 <= len(times) <= 6
        pauses = [b - a for a, b in pairwise(scene.manager.looked)]
        assert pauses[:3] == pytest.approx([0.2, 0.26, 0.338])
        assert max(pauses) == pytest.approx(2.0)
        scene.says("ended", began=BEGIN)
        scene.used(31.0)
        assert (await metering).seconds == 31.0

    run(main())


def test_questions_are_quick_again_for_the_next_lease(tmp_path: Path) -> None:
    async def main() -> None:
        scene = Scene(tmp_path)
        scene.record.has("r", {"1": "lease-1", "2": "lease-2"})
        scene.says("running", began=BEGIN)
        first = asyncio.create_task(scene.meter())
        await asyncio.sleep(30.0)
        second = asyncio.create_task(scene.meter(name="lease-2"))
        await asyncio.sleep(3.0)
        assert len([at for at in scene.manager.looked if at > 30.0]) >= 4
        for task in (first, second):
            task.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        assert scene.settlement.is_owed
        await scene.settlement.close()
        asked = len(scene.manager.looked)
        await asyncio.sleep(30.0)
        assert len(scene.manager.looked) == asked

    run(main())


def test_a_job_that_has_stopped_is_charged_up_to_then(tmp_path: Path) -> None:
    """Once it has for three seconds: its nodes may not be heard of for minutes."""

    async def main() -> None:
        scene = Scene(tmp_path)
        scene.record.has("r", {"1": "lease-1"})
        scene.says("running", began=BEGIN - 8.0, ended=BEGIN - 1.0, processors=4)
        assert await scene.meter() == MeteredTime(began=BEGIN - 8.0, seconds=7.0)
        assert 3.0 <= now() - BEGIN <= 5.0
        assert scene.rows == [
            PilotUsage(pilot="lease-1", job="1", processors=4, seconds=7.0, how="unknown")
        ]

    run(main())


@pytest.mark.parametrize("unknown", ["began", "ended", "processors"])
def test_a_job_that_may_not_have_stopped_is_waited_for(tmp_path: Path, unknown: str) -> None:
    async def main() -> None:
        scene = Scene(tmp_path)
        scene.record.has("r", {"1": "lease-1"})
        known = {"began": BEGIN, "ended": BEGIN + 1.0, "processors": 2}
        scene.says("running", **(known | {unknown: None}))
        with pytest.raises(TimeoutError):
            await scene.meter(within=60.0)
        await scene.settlement.close()

    run(main())


def test_a_clock_that_was_set_back_costs_nothing(tmp_path: Path) -> None:
    """An end before the begin is no time, and no negative one."""

    async def main() -> None:
        scene = Scene(tmp_path)
        scene.record.has("r", {"1": "lease-1"})
        scene.says("running", began=BEGIN, ended=BEGIN - 5.0, processors=2)
        assert await scene.meter() == MeteredTime(began=BEGIN, seconds=0.0)

    run(main())


def test_a_running_record_is_no_final_one(tmp_path: Path) -> None:
    """The list says that the job has ended, the record does not yet."""

    async def main() -> None:
        scene = Scene(tmp_path)
        scene.record.has("r", {"1": "lease-1"})
        scene.says("ended", began=BEGIN)
        scene.used(3.0, how=None)
        metering = asyncio.create_task(scene.meter())
        await asyncio.sleep(UNRECORDED - 2.5)
        assert not metering.done()
        scene.used(4.0)
        assert (await metering) == MeteredTime(began=BEGIN, seconds=4.0)

    run(main())


@pytest.mark.parametrize(
    ("watched", "stints", "more", "began", "end"),
    [
        # What ends first: now, the life and its unwatched time, the lease's own end, the limit.
        (None, [(-50.0, None)], {}, -50.0, None),
        (-120.0, [(-150.0, None)], {}, -150.0, -30.0),
        (-20.0, [(-50.0, None)], {"until": BEGIN - 95.0}, -50.0, -5.0),
        (-20.0, [(-150.0, -100.0)], {}, -150.0, -10.0),
        (-20.0, [(-250.0, -220.0), (-150.0, -100.0)], {}, -250.0, -10.0),
        (None, [], {"start": BEGIN - 30.0}, -30.0 - LATEST, None),
        (None, [], {"start": BEGIN - 200.0, "asked": True}, -200.0, -110.0),
        (None, [], {"start": BEGIN - 20.0, "asked": True}, -20.0, None),
        (-500.0, [(-50.0, None)], {}, -50.0, -50.0),
        # The clock was set back: the request seems to be of a time to come.
        (None, [], {"start": BEGIN + 900.0, "asked": True}, 900.0, 900.0),
    ],
)
def test_without_a_record_the_most_that_a_job_may_have_held_is_paid(
    tmp_path: Path,
    watched: float | None,
    stints: list[tuple[float, float | None]],
    more: dict[str, Any],
    began: float,
    end: float | None,
) -> None:
    """Nothing after the moment at which that is found; all relative to the begin."""

    async def main() -> None:
        scene = Scene(tmp_path)
        scene.record.has("r", {"1": "lease-1"})
        for since, until in stints:
            scene.record.began("1", BEGIN + since, None if until is None else BEGIN + until)
        found = await scene.meter(None if watched is None else BEGIN + watched, **more)
        at = now() - BEGIN
        assert UNRECORDED <= at <= UNRECORDED + 2.5
        seconds = (at if end is None else end) - began
        assert found.began == BEGIN + began
        assert found.seconds == pytest.approx(seconds)
        assert not found.is_recorded
        assert scene.said == [
            f"no record of lease-1 is left: it is paid for the {seconds:.0f} s that it may have"
            " held at the most"
        ]
        assert scene.rows == []

    run(main())


def test_a_job_that_is_known_again_is_not_unknown_for_long(tmp_path: Path) -> None:
    """The time for which a job is in no list begins anew when it was there in between."""

    async def main() -> None:
        scene = Scene(tmp_path)
        scene.record.has("r", {"1": "lease-1"})
        metering = asyncio.create_task(scene.meter())
        await asyncio.sleep(UNRECORDED - 3.0)
        scene.says("pending")
        await asyncio.sleep(4.0)
        del scene.manager.reports["1"]
        await asyncio.sleep(UNRECORDED - 3.0)
        assert not metering.done()
        assert not (await metering).is_recorded

    run(main())


def test_begins_and_returns_to_the_queue_are_written_down_once(tmp_path: Path) -> None:
    async def main() -> None:
        scene = Scene(tmp_path)
        heard = scene.settlement.record_report

        def told(state: Any, began: float | None = None, until: float | None = None) -> None:
            heard(JobReport(id="1", state=state, began=began, until=until))

        told("pending")
        told("running")
        told("ended", 3.0)
        assert scene.record.read().stints == {}
        told("running", 3.0, 60.0)
        told("running", 3.0, 61.0)
        told("ended", 3.0)
        told("held")
        told("pending")
        told("running", 9.0)
        told("running", 8.0)
        stints = scene.record.read().stints["1"]
        assert [(s.began, s.until, s.requeued) for s in stints] == [
            (3.0, 60.0, BEGIN),
            (9.0, None, None),
            (8.0, None, None),
        ]

    run(main())


# Requests whose answer nobody wrote down.


def test_a_lease_that_was_never_handed_in_costs_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        scene = Scene(tmp_path)
        scene.record.has("r", {"1": "another"})
        assert await scene.meter() == MeteredTime(seconds=None)
        assert scene.manager.looked == []

    run(main())


@pytest.mark.parametrize("known", [True, False])
def test_jobs_that_requests_became_are_adopted(tmp_path: Path, known: bool) -> None:
    """In the order in which they were handed in; those that are known already are not meant."""

    async def main() -> None:
        scene = Scene(tmp_path)
        scene.record.has("old", {"7": "before"})
        pilots = ["lease-1", "lease-2", "lease-3"] if known else []
        scene.record.asks("r", pilots, BEGIN, host="elsewhere")
        scene.manager.names["r"] = ["10_10", "7", "10_9", "9"]
        found = await scene.settlement.adopt(scene.record.read())
        if known:
            assert found == {"9": "lease-1", "10_9": "lease-2", "10_10": "lease-3"}
            assert scene.record.read().jobs == {"7": "before", **found}
            assert scene.record.read().requests == {}
        else:
            assert found == {"9": "", "10_9": "", "10_10": ""}
            assert list(scene.record.read().requests) == ["r"]

    run(main())


def test_jobs_of_several_requests_are_adopted(tmp_path: Path) -> None:
    async def main() -> None:
        scene = Scene(tmp_path)
        for name, job in (("r", "1"), ("empty", ""), ("s", "2")):
            scene.record.asks(name, [f"pilot of {name}"], BEGIN)
            scene.manager.names[name] = [job] if job else []
        found = await scene.settlement.adopt(scene.record.read())
        assert found == {"1": "pilot of r", "2": "pilot of s"}
        assert list(scene.record.read().requests) == ["empty"]

    run(main())


def test_jobs_of_an_earlier_run_of_that_name_are_not_meant(tmp_path: Path) -> None:
    """Those that ended more than a minute, the clocks' difference, before the request."""

    async def main() -> None:
        scene = Scene(tmp_path)
        for id, ended in (("1", -60.5), ("2", -60.0), ("3", None)):
            scene.says("ended", id=id, ended=None if ended is None else BEGIN + ended)
        scene.manager.names["r"] = ["1", "2", "3"]
        scene.record.asks("r", ["a", "b", "c"], BEGIN)
        assert await scene.settlement.adopt(scene.record.read()) == {"2": "a", "3": "b"}
        scene.record.asks("r", ["a", "b", "c"])  # at no known moment
        scene.record.clear()
        scene.record.asks("r", ["a", "b", "c"])
        assert await scene.settlement.adopt(scene.record.read()) == {"1": "a", "2": "b", "3": "c"}

    run(main())


@pytest.mark.parametrize(("clearly", "waits"), [(False, 0.0), (None, LATE)])
def test_a_request_that_became_no_job_is_waited_for(
    tmp_path: Path, clearly: bool | None, waits: float
) -> None:
    """While its command may be on its way; not when it has ended without an answer."""

    async def main() -> None:
        scene = Scene(tmp_path)
        scene.record.asks("r", ["lease-1"], BEGIN, host="elsewhere")
        if clearly is not None:
            scene.settlement.asks("r")
            scene.settlement.answered("r", clearly=clearly)
        assert await scene.meter() == MeteredTime(seconds=None)
        assert waits <= now() - BEGIN <= waits + 2.5
        assert scene.record.read().requests == {}

    run(main())


def test_a_request_is_late_after_its_time_and_not_at_its_end(tmp_path: Path) -> None:
    async def main() -> None:
        scene = Scene(tmp_path)
        scene.record.asks("r", ["lease-1"], BEGIN - LATE, host="elsewhere")
        assert await scene.meter() == MeteredTime(seconds=None)
        assert now() > BEGIN  # asked twice

    run(main())


def test_known_jobs_are_settled_at_once_though_others_are_looked_for(tmp_path: Path) -> None:
    async def main() -> None:
        scene = Scene(tmp_path)
        scene.record.has("q", {"1": "lease-1"})
        scene.record.asks("r", ["lease-2"], BEGIN, host="elsewhere")
        scene.manager.names["r"] = ["2"]
        for id in ("1", "2"):
            scene.says("ended", id=id, began=BEGIN)
            scene.manager.used[id] = JobUsage(id=id, processors=2, seconds=6.0, how="completed")
        found = await asyncio.gather(scene.meter(), scene.meter(name="lease-2"))
        assert found == [MeteredTime(began=BEGIN, seconds=6.0)] * 2
        assert (now(), scene.manager.looked) == (BEGIN, [0.0, 0.0])

    run(main())


def test_a_request_of_this_life_that_is_under_way_is_not_written_off(tmp_path: Path) -> None:
    """However long its command takes."""

    async def main() -> None:
        scene = Scene(tmp_path)
        scene.record.asks("r", ["lease-1"], BEGIN, host="elsewhere")
        scene.settlement.asks("r")
        metering = asyncio.create_task(scene.meter())
        await asyncio.sleep(LATE + 60.0)
        assert not metering.done()
        scene.says("ended", id="5", began=BEGIN)
        scene.manager.names["r"] = ["5"]
        scene.manager.used["5"] = JobUsage(id="5", processors=2, seconds=6.0, how="completed")
        scene.settlement.answered("r", clearly=True)
        assert await metering == MeteredTime(began=BEGIN, seconds=6.0)

    run(main())


def test_a_scheduler_that_is_away_is_said_once_each_time(tmp_path: Path) -> None:
    async def main() -> None:
        scene = Scene(tmp_path)
        scene.record.has("r", {"1": "lease-1"})
        scene.says("running", began=BEGIN)
        metering = asyncio.create_task(scene.meter())
        for _ in range(2):
            await asyncio.sleep(10.0)
            scene.manager.error = SiteError("nobody there", transient=True)
            await asyncio.sleep(10.0)
            scene.manager.error = None
        assert scene.said == ["nobody there; asked again until its jobs are settled"] * 2
        scene.says("ended", began=BEGIN)
        scene.used(9.0)
        assert (await metering).seconds == 9.0

    run(main())


def test_a_fault_of_our_own_ends_all_waits(tmp_path: Path) -> None:
    async def main() -> None:
        scene = Scene(tmp_path)
        scene.record.has("r", {"1": "lease-1"})
        scene.manager.poll = None  # type: ignore[assignment]
        with pytest.raises(TypeError):
            await scene.meter()

    run(main())


def test_jobs_are_in_the_order_of_their_numbers() -> None:
    """Elements of an array as they count; ids that hold letters by their digits."""
    jobs = ["12", "3", "3_10", "3_9", "3_x", "7.server", "server"]
    assert [_number(job) for job in ("server", "s12_3", "4_x")] == [(0, 0), (12, 3), (4, 0)]
    assert sorted(jobs, key=_number) == ["server", "3", "3_x", "3_9", "3_10", "7.server", "12"]
