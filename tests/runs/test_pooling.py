"""Pools that are carried out, on virtual time: goals, money, sites that fail."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

import bursar
from bursar.dispatch.journal import read_journal
from bursar.dispatch.journal_records import JournalState
from bursar.market.lease import Lease
from bursar.market.ledger import Ledger
from bursar.model.errors import SiteError
from bursar.model.provisioning import AcquisitionPolicy
from bursar.model.site import BackgroundLoad
from bursar.model.task import Status
from bursar.provisioning.counting import PARTING, SILENCE, STARTING
from bursar.runs.incarnations import leases_of
from bursar.runs.pool_controller import ASKED, AllocationStep, last_number
from bursar.simulation.simulated_site import SimulatedSite, SimulatedWorker


def site(
    name: str = "here", processors: int = 8, price: float | None = 1.0, **rules: Any
) -> bursar.SiteFacts:
    """A cluster with a queue; its price is per processor-second."""
    return bursar.SiteFacts(
        name=name,
        kind="simulated",
        processors=processors,
        unit_price=price,
        fixed_price=None if price is None else 0.0,
        currency="EUR",
        background=BackgroundLoad(policy="easy"),
        acquiring=AcquisitionPolicy(**rules),
    )


def tasks(
    count: int, runtime: float = 60.0, processors: int = 1, name: str = "t"
) -> list[bursar.Task]:
    return [
        bursar.Task(
            id=f"{name}{i}",
            steps=(bursar.Shell("x"),),
            runtime=runtime,
            processors=processors,
        )
        for i in range(count)
    ]


def campaign(*of: bursar.Task, **goal: Any) -> bursar.Campaign:
    return bursar.Campaign(
        name="c", workflow=bursar.Workflow(of or tasks(20)), goal=bursar.Goal(**goal)
    )


class Ran:
    """A simulated run and what is journalled of it."""

    def __init__(
        self,
        runs: Path,
        wanted: bursar.Campaign,
        sites: bursar.SiteFacts | Sequence[bursar.SiteFacts],
        name: str = "r",
    ) -> None:
        # Anyway: what a pool does with a goal that no plan meets is of interest, too.
        self.result = bursar.simulate(
            wanted, sites, provisioning="dynamic", name=name, runs=runs, anyway=True
        )
        self.journal: JournalState = read_journal(runs / name / "journal.sqlite")
        self.leases = leases_of(self.journal.events)
        self.budget = wanted.goal.budget

    @property
    def messages(self) -> str:
        return "\n".join(e.text for e in self.journal.events if e.kind == "message")

    @property
    def steps(self) -> list[AllocationStep]:
        return [
            msgspec.json.decode(event.text, type=AllocationStep)
            for event in self.journal.events
            if event.kind == ASKED
        ]

    def moments(self, step: str) -> list[float]:
        """When a step was taken, seconds since the epoch."""
        events = [event for event in self.journal.events if event.kind == ASKED]
        return [
            e.time for e in events if msgspec.json.decode(e.text, type=AllocationStep).step == step
        ]

    def check(self) -> None:
        """What holds of every run: the ledger balances, and what is paid is what was held."""
        ledger = Ledger(self.journal.transfers)
        assert sum(ledger.balances.values()) == 0
        assert ledger.held == 0
        held = sum(
            # What stays a moment past its end, for what ends with it, is not paid for that.
            lease.processors
            * (min(lease.end, lease.until or lease.end) - lease.start)
            * (lease.unit_price or 0.0)
            for lease in self.leases.values()
            if lease.end is not None
        )
        assert all(lease.end is not None for lease in self.leases.values())
        assert ledger.spent / 1e6 == pytest.approx(held, abs=1e-4)
        if self.budget is not None:
            assert ledger.spent <= self.budget * 1e6
            assert self.most_promised <= self.budget + 1e-6
        asked = {step.name for step in self.steps if step.step == "asked"}
        ended = {s.name for s in self.steps if s.step in ("ended", "lost", "refused")}
        assert set(self.leases) <= asked
        assert ended <= asked

    @property
    def most_promised(self) -> float:
        """The most that was ever spent and held together, currency units."""
        most = 0
        for count in range(1, len(self.journal.transfers) + 1, 7):
            ledger = Ledger(self.journal.transfers[:count])
            most = max(most, ledger.spent + ledger.held)
        return most / 1e6


def test_all_is_done_and_nothing_is_held_longer(tmp_path: Path) -> None:
    """20 tasks of 60 s on 8 processors: three rounds."""
    ran = Ran(tmp_path, campaign(), site())

    assert ran.result.exit_status == 0
    assert ran.result.makespan == pytest.approx(180.0)
    ran.check()


def test_with_a_deadline_no_more_is_held_than_it_takes(tmp_path: Path) -> None:
    """1,200 processor-seconds in 700 s: fewer than all, in time, and cheaper."""
    ran = Ran(tmp_path, campaign(deadline=700.0), site())

    assert ran.result.exit_status == 0
    assert max(lease.processors for lease in ran.leases.values()) < 8
    assert ran.result.cost is not None
    assert ran.result.cost < 1440.0
    ran.check()


@pytest.mark.parametrize("budget", [59.0, 106.0, 210.0, 400.0, 777.0, 1200.0, 1300.0, 1500.0])
@pytest.mark.parametrize("several", [False, True])
def test_the_budget_is_never_exceeded_and_the_run_ends(
    tmp_path: Path, budget: float, several: bool
) -> None:
    """
    Nor promised; what is pending counts. A run without the money for another task stops.

    A task of 60 s is asked for with a margin: 105 s. What is left may pay the task and not the
    margin: then nothing more will come, and it must not be waited for.
    """
    sites = [site("a", 4, 1.0, most=3), site("b", 4, 2.0)] if several else [site()]
    ran = Ran(tmp_path, campaign(budget=budget), sites)

    done = ran.result.to_dict()["succeeded"]
    assert (ran.result.exit_status == 0) == (done == 20)
    if done < 20:
        assert ran.result.exit_status == 4
        assert "a task costs up to" in ran.messages
    if budget < 105:
        assert done == 0
    ran.check()


def test_fewest_and_most_are_kept(tmp_path: Path) -> None:
    ran = Ran(tmp_path, campaign(), site(fewest=2, most=3))

    assert ran.result.exit_status == 0
    moments = sorted(lease.start for lease in ran.leases.values())
    held = [
        sum(one.processors for one in ran.leases.values() if one.start <= t < (one.end or t + 1))
        for t in moments
    ]
    assert max(held) == 3
    ran.check()


def test_a_workflow_follows_its_order(tmp_path: Path) -> None:
    """One, then eight, then one: what is idle in between goes back, and is asked for again."""
    first, last = tasks(1, name="first"), tasks(1, name="last")
    middle = tasks(8, runtime=300.0, name="m")
    middle = [replace(task, after=("first0",)) for task in middle]
    last = [replace(task, after=tuple(other.id for other in middle)) for task in last]
    wanted = campaign(*first, *middle, *last)
    ran = Ran(tmp_path, wanted, site())

    assert ran.result.exit_status == 0
    ends = {r.outcome.task: r.outcome for r in ran.journal.records}
    assert ends[0].end <= min(ends[i].start for i in range(1, 9))
    assert max(ends[i].end for i in range(1, 9)) <= ends[9].start
    # 60 + 300 + 60 s; one processor of eight would be idle for no longer than the rules say.
    assert ran.result.makespan == pytest.approx(420.0, abs=10.0)
    ran.check()


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ({"processors": 20}, "a task needs 20 processors, the largest allocation at here has 8"),
        ({"runtime": 5000.0}, "a task needs 1.39 h, the longest allocation at here is 1 h"),
    ],
)
def test_what_no_site_can_run_stops_with_the_reason(
    tmp_path: Path, task: dict[str, Any], words: str
) -> None:
    """Nothing is bought for it."""
    ran = Ran(tmp_path, campaign(*tasks(2, **task)), site(processors=32, most=8))

    assert ran.result.exit_status == 4
    assert words in ran.messages
    assert ran.messages.count(words) == 1
    assert ran.leases == {}
    ran.check()


def refusing(monkeypatch: pytest.MonkeyPatch, name: str, *, transient: bool) -> list[str]:
    """A site that takes no pilot; whom it refused."""
    acquire = SimulatedSite.acquire
    asked: list[str] = []

    async def maybe(self: SimulatedSite, pilot: Any, *given: Any, **more: Any) -> Any:
        if self.facts.name == name:
            asked.append(pilot.name)
            raise SiteError(f"{name}: account is not permitted", transient=transient)
        return await acquire(self, pilot, *given, **more)

    monkeypatch.setattr(SimulatedSite, "acquire", maybe)
    return asked


@pytest.mark.parametrize("transient", [False, True])
def test_where_one_site_takes_nothing_another_does_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transient: bool
) -> None:
    """The cheaper one refuses, or is away: it is asked ever more rarely, and said to be so."""
    asked = refusing(monkeypatch, "bad", transient=transient)
    ran = Ran(tmp_path, campaign(), [site("bad", 8, 0.5), site("good", 4, 1.0)])

    assert ran.result.exit_status == 0
    assert {lease.site for lease in ran.leases.values()} == {"good"}
    assert "account is not permitted" in ran.messages
    assert len(asked) < 20
    ran.check()


def test_where_no_site_takes_anything_the_run_ends_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(monkeypatch, "here", transient=False)
    ran = Ran(tmp_path, campaign(), site())

    assert ran.result.exit_status == 4
    assert "here: account is not permitted" in ran.messages
    assert ran.leases == {}
    ran.check()


def losing(monkeypatch: pytest.MonkeyPatch, lost: Mapping[str, float]) -> None:
    """Workers of pilots are lost, by the pilots' names so many seconds after they joined."""
    acquire = SimulatedSite.acquire

    async def crashing(self: SimulatedSite, pilot: Any, *given: Any, **more: Any) -> Any:
        held = await acquire(self, pilot, *given, **more)
        if pilot.name in lost:
            assert held._worker is not None
            asyncio.get_running_loop().call_later(lost[pilot.name], held._worker.leave)
        return held

    monkeypatch.setattr(SimulatedSite, "acquire", crashing)


@pytest.mark.parametrize("acquisition", ["adaptive", "all-at-once", "array", "one-at-a-time"])
def test_silent_workers_are_replaced_while_the_scheduler_says_that_they_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, acquisition: str
) -> None:
    """
    The first pilot's worker is lost after 130 s, as with a node that dies unnoticed.

    What it ran, runs again elsewhere, each task has one result, and the pilot goes back: paid for
    no longer than it takes to be sure.
    """
    wanted = campaign(*tasks(40, runtime=60.0))
    losing(monkeypatch, {"lease-1": 130.0})
    ran = Ran(tmp_path, wanted, site(processors=16, most=8, acquisition=acquisition))

    assert ran.result.exit_status == 0
    assert ran.result.to_dict()["succeeded"] == 40
    final = [r.outcome for r in ran.journal.records if r.final]
    assert sorted(outcome.task for outcome in final) == list(range(40))
    again = [r.outcome for r in ran.journal.records if r.outcome.status is Status.LOST]
    size = ran.leases["lease-1"].processors
    assert len(again) == size  # all of them were busy
    (back,) = [s for s in ran.steps if s.name == "lease-1" and s.step == "given back"]
    assert back.reason == SILENCE
    lease = ran.leases["lease-1"]
    assert lease.end is not None
    assert lease.end - lease.start <= 130.0 + PARTING + 1.0
    replaced = [moment for moment in ran.moments("asked") if moment > lease.start + 130.0]
    assert replaced[0] <= lease.end + 0.2
    ran.check()


def test_where_there_is_room_a_lost_worker_is_replaced_within_two_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lost pilot goes back later, or when it has been replaced."""
    losing(monkeypatch, {"lease-1": 130.0})
    ran = Ran(tmp_path, campaign(*tasks(8, runtime=600.0)), site(processors=16))
    lease = ran.leases["lease-1"]
    lost = lease.start + 130.0
    (replaced, *_) = [moment for moment in ran.moments("asked") if moment > lost]
    assert replaced <= lost + 2.0
    assert ran.result.to_dict()["succeeded"] == 8
    ran.check()


def test_processors_whose_workers_never_come_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler says that the job runs, and its node cannot reach the run."""
    made = SimulatedWorker.connection_made

    def unheard(self: SimulatedWorker, transport: asyncio.BaseTransport) -> None:
        if self._hello.lease != "lease-1":
            made(self, transport)

    monkeypatch.setattr(SimulatedWorker, "connection_made", unheard)
    rules = {"release": "no-tasks", "shortest": 3000.0}
    ran = Ran(tmp_path, campaign(*tasks(8, runtime=600.0)), site(processors=16, **rules))
    began = ran.leases["lease-1"].start
    replaced = [moment for moment in ran.moments("asked") if moment > began]
    assert replaced
    assert replaced[0] <= began + 2 * STARTING
    assert ran.result.to_dict()["succeeded"] == 8
    ran.check()


@pytest.mark.parametrize(
    "acquisition",
    [
        pytest.param("adaptive", marks=pytest.mark.ci),
        pytest.param("exponential", marks=pytest.mark.ci),
        "array",
        pytest.param("one-at-a-time", marks=pytest.mark.ci),
    ],
)
def test_the_same_campaign_gives_the_same_decisions(tmp_path: Path, acquisition: str) -> None:
    """To the byte, times included."""
    sites = [site("a", 6, 1.0, acquisition=acquisition), site("b", 6, 1.5)]
    wanted = campaign(*tasks(30, runtime=100.0), *tasks(4, processors=4, name="wide"))
    one = Ran(tmp_path, wanted, sites, "one")
    two = Ran(tmp_path, wanted, sites, "two")

    def told(ran: Ran) -> list[tuple[float, str, str]]:
        return [(e.time, e.kind, e.text) for e in ran.journal.events]

    assert told(one) == told(two)
    assert one.result.exit_status == 0
    one.check()


def test_names_go_on_after_those_that_never_began(tmp_path: Path) -> None:
    """A request that was only asked for has a name, and a job may have it still."""
    ran = Ran(tmp_path, campaign(), site())
    events = list(ran.journal.events)
    last = max(int(step.name.rpartition("-")[2]) for step in ran.steps)
    assert last_number(events) == last
    step = AllocationStep(name=f"lease-{last + 7}", site="here", step="asked", processors=1)
    text = msgspec.json.encode(step).decode()
    later = type(events[0])(events[0].time, ASKED, text)
    assert last_number([*events, later]) == last + 7
    assert last_number([]) == 0


def test_a_site_that_grants_an_allocation_again_is_not_paid_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later word changes neither lease nor processors."""
    acquire = SimulatedSite.acquire

    async def twice(self: SimulatedSite, *given: Any, begin: Any, **more: Any) -> Any:
        held = await acquire(self, *given, begin=begin, **more)
        await asyncio.sleep(5.0)
        begin(1, 10_000.0)
        return held

    monkeypatch.setattr(SimulatedSite, "acquire", twice)
    ran = Ran(tmp_path, campaign(), site())

    assert ran.result.exit_status == 0
    told = [
        msgspec.json.decode(event.text, type=Lease)
        for event in ran.journal.events
        if event.kind == "lease"
    ]
    starts = {(lease.id, lease.start, lease.processors) for lease in told}
    assert len(starts) == len(ran.leases)
    assert all(lease.until - lease.start < 5_000.0 for lease in told if lease.until is not None)
    ran.check()
