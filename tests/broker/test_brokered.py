"""Jobs matched one by one: through files that come late or never, failures, and lost sites."""

import math
from collections.abc import Callable, Collection
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.thoroughness import examples

from bursar.broker.brokered_scheduler import BrokeredScheduler, FreezableClock
from bursar.broker.decision_reasons import DECISION, PlacementDecision
from bursar.broker.dynamic_scheduler import ResumeState
from bursar.broker.held_pilots import AHEAD, MOST_FAILURES
from bursar.broker.matchmaking.broker_interfaces import BrokerJob
from bursar.cluster.element import ComputingElement
from bursar.model.allocation import Allocation
from bursar.model.campaign import Goal, Retry, Workflow
from bursar.model.errors import InputError
from bursar.model.money import Refusal
from bursar.model.site import SiteFacts
from bursar.model.task import File, Outcome, Status, Task


class InTurn:
    """A broker that takes the sites in turn; it may refuse everything, and keeps count."""

    def __init__(self, sites: list[SiteFacts]) -> None:
        self.sites = sites
        self.refuses = False
        self.is_final = False
        self.error: InputError | None = None
        self.out: set[str] = set()
        self.in_flight: dict[int, str] = {}
        self.arrived_: set[int] = set()
        self._turn = 0

    def choose(self, job: BrokerJob) -> Any:
        if self.error is not None:
            raise self.error
        able = [s for s in self.sites if s.processors >= job.processors and s.name not in self.out]
        if self.refuses or not able:
            return Refusal("no site will do", final=self.is_final)
        self._turn += 1
        return _Chosen(able[self._turn % len(able)].name)

    def sent(self, job: BrokerJob, site: str) -> None:
        assert job.number not in self.in_flight, "matched twice"
        self.in_flight[job.number] = site

    def arrived(self, number: int) -> None:
        assert number in self.in_flight
        self.arrived_.add(number)

    def began(self, number: int) -> None:
        assert number in self.in_flight

    def ended(self, number: int, *, well: bool) -> None:
        del self.in_flight[number]
        self.arrived_.discard(number)


class _Chosen:
    def __init__(self, site: str) -> None:
        self.site = site

    def reason_of(self, site: str) -> str:
        return "its turn" if site == self.site else "not its turn"

    def best(self, many: int) -> list[str]:
        return [self.site]


class Carriers:
    """Haulage that does nothing until it is told to."""

    def __init__(self) -> None:
        self.bringing: dict[int, tuple[str, Callable[[str], None]]] = {}
        self.keeping: dict[int, Callable[[str], None]] = {}
        self.there: set[tuple[int, str]] = set()

    def bring(self, task: int, site: str, done: Callable[[str], None]) -> None:
        assert task not in self.bringing
        self.bringing[task] = (site, done)

    def keep(self, task: int, site: str, done: Callable[[str], None]) -> None:
        self.keeping[task] = done

    def release(self, task: int) -> None:
        self.bringing.pop(task, None)

    def deliver(self, task: int, problem: str = "") -> None:
        site, done = self.bringing.pop(task)
        if not problem:
            self.there.add((task, site))
        done(problem)


class World:
    """A run, as far as a supply sees it."""

    def __init__(
        self,
        tasks: list[Task],
        sites: list[SiteFacts],
        retry: Retry,
        ended: Collection[int] = (),
    ) -> None:
        self.now = 0.0
        self.sites = {site.name: site for site in sites}
        self.workflow = Workflow(tuple(tasks))
        self.broker = InTurn(sites)
        self.carriers = Carriers()
        self.alerts = 0
        self.held: dict[str, Allocation] = {}
        self.running: dict[int, str] = {}
        self.succeeded: set[int] = set()
        self.ended: set[int] = set()
        self.sent: list[tuple[int, str, str]] = []
        self.attempts: dict[int, int] = {}
        elements = {s.name: ComputingElement(s.processors, s.speed) for s in sites}
        self.supply = BrokeredScheduler(
            self.workflow,
            sites,
            self.broker,  # type: ignore[arg-type]
            elements,
            choice="in turn",
            moment=FreezableClock(lambda: self.now),
            staging=self.carriers,
            retry=retry,
        )
        past = ResumeState(
            ended=frozenset(ended),
            succeeded=frozenset(ended),
            attempts=(),
            pilots=0,
            clock=lambda: self.now,
            spent=lambda: 0.0,
            alert=self._alert,
        )
        self.take(self.supply.begin(past))

    def _alert(self) -> None:
        self.alerts += 1

    def take(self, pilots: list[Allocation]) -> None:
        """As a run does."""
        for pilot in pilots:
            self.held[pilot.name] = pilot
            for task in pilot.tasks:
                self._start(task, pilot)
        for kind, text in self.supply.take_events():
            if kind == DECISION:
                self.sent += msgspec.json.decode(text, type=PlacementDecision).sent
        for name in [n for n in self.held if not self.supply.holds(n)]:
            assert name not in self.running.values(), "a pilot goes back with its job"
            del self.held[name]

    def on(self, pilot: str) -> list[int]:
        """Jobs on a pilot, in their order."""
        return [task for task, name in self.running.items() if name == pilot]

    def _start(self, task: int, pilot: Allocation) -> None:
        assert task not in self.running, "sent twice"
        assert task not in self.ended
        tasks = self.workflow.tasks
        data = tasks[task].data
        assert not data or (task, pilot.site) in self.carriers.there, "before its files"
        for parent in self.workflow.parents[task]:
            assert parent in self.succeeded, "before its parents"
        others = self.on(pilot.name)
        runtimes = [tasks[other].runtime for other in others]
        assert None not in runtimes, "a job waits behind one that may take any time"
        assert sum(r for r in runtimes if r is not None) < AHEAD
        assert all(tasks[t].processors == tasks[task].processors for t in others)
        self.running[task] = pilot.name

    def end(self, task: int, status: Status, *, final: bool = True) -> None:
        """An attempt ends; with it, what follows from that."""
        del self.running[task]
        self.attempts[task] = self.attempts.get(task, 0) + 1
        if final:
            self.ended.add(task)
            if status is Status.SUCCEEDED:
                self.succeeded.add(task)
        outcome = Outcome(
            task=task, attempt=self.attempts[task], status=status, start=self.now, end=self.now
        )
        self.take(self.supply.ended([(outcome, final)]))

    def poll(self) -> None:
        """What a run does when its supply is due."""
        if self.supply.wake <= self.now:
            self.take(self.supply.poll())


TWO = [SiteFacts(name="a", processors=2), SiteFacts(name="b", processors=3)]


def test_a_job_starts_when_its_files_are_there_and_not_before() -> None:
    world = World([Task(id="t", data=("f",))], TWO, Retry(backoff=0.0))

    assert not world.running
    world.carriers.deliver(0)
    assert world.alerts == 1
    world.poll()

    assert list(world.running) == [0]
    assert world.sent == [(0, "b", "lease-1")]


def test_processors_are_held_while_the_queue_has_jobs_and_then_go_back() -> None:
    world = World([Task(id=f"t{i}") for i in range(4)], TWO[:1], Retry(backoff=0.0))

    assert set(world.held) == {"lease-1", "lease-2"}
    world.end(0, Status.SUCCEEDED)
    world.end(1, Status.SUCCEEDED)
    assert set(world.held) == {"lease-1", "lease-2"}
    world.end(2, Status.SUCCEEDED)
    assert set(world.held) == {world.running[3]}


def test_files_that_cannot_be_brought_are_tried_again_and_then_given_up_with_the_reason() -> None:
    retry = Retry(attempts=2, backoff=1.0)
    world = World([Task(id="t", data=("f",)), Task(id="u")], TWO, retry)

    world.carriers.deliver(0, "f: no copy can be reached")
    world.poll()
    assert world.supply.wake == 1.0
    world.now = 1.0
    world.poll()
    world.carriers.deliver(0, "f: no copy can be reached")
    world.poll()

    assert world.supply.verdict == ""  # the other still runs
    world.end(1, Status.SUCCEEDED)
    assert world.supply.verdict == "no site for t: f: no copy can be reached"


def test_what_no_site_would_have_waits_for_the_index_to_know_more() -> None:
    world = World([Task(id="t"), Task(id="u", after=("t",))], TWO, Retry(backoff=0.0))
    world.broker.refuses = True
    world.end(0, Status.SUCCEEDED)

    assert not world.running
    assert world.supply.verdict == ""
    world.supply.index_asked()
    world.poll()
    assert world.supply.verdict == "no site for u: no site will do"
    world.broker.refuses = False
    world.supply.index_asked()
    world.poll()
    assert list(world.running) == [1]
    assert world.supply.verdict == ""


def test_a_site_that_fails_again_and_again_gets_no_more_jobs() -> None:
    world = World([Task(id=f"t{i}") for i in range(8)], TWO, Retry(backoff=0.0))

    for _ in range(MOST_FAILURES):
        pilot = next(p for p in world.held.values() if p.site == "b")
        del world.held[pilot.name]
        del world.running[pilot.tasks[0]]
        if world.supply._queues["b"].failures == MOST_FAILURES - 1:
            world.broker.out.add("b")  # as the index then says
        world.take(world.supply.lost(pilot, "b does not answer") or [])

    assert world.supply.is_broken("b")
    while world.running:
        world.end(next(iter(world.running)), Status.SUCCEEDED)
    assert world.succeeded == set(range(8))


def test_registered_outputs_are_kept_before_those_who_read_them_are_matched() -> None:
    made = Task(id="t", outputs=(File("o"),), registers={"o": "lfn/o"})
    world = World([made, Task(id="u", data=("lfn/o",))], TWO, Retry(backoff=0.0))
    world.end(0, Status.SUCCEEDED)

    assert not world.carriers.bringing
    world.carriers.keeping.pop(0)("")
    world.poll()
    assert list(world.carriers.bringing) == [1]


def test_what_could_not_be_registered_leaves_its_readers_without_a_site() -> None:
    made = Task(id="t", outputs=(File("o"),), registers={"o": "lfn/o"})
    world = World([made, Task(id="u", data=("lfn/o",))], TWO, Retry(backoff=0.0))
    world.end(0, Status.SUCCEEDED)
    world.carriers.keeping.pop(0)("the disk is full")
    world.poll()

    assert world.supply.verdict == "no site for u: the disk is full"


def test_files_that_come_to_a_site_left_out_meanwhile_do_not_start_their_job_there() -> None:
    world = World([Task(id="t", data=("f",)), Task(id="u")], TWO, Retry(backoff=0.0))
    world.supply._queues["b"].failures = MOST_FAILURES
    world.broker.out.add("b")
    world.carriers.deliver(0)
    world.poll()

    assert list(world.running) == [1]
    assert world.carriers.bringing[0][0] == "a"


def test_a_job_that_names_a_site_that_is_left_out_ends_with_the_reason() -> None:
    """It is not sent there again and again."""
    world = World([Task(id="t")], TWO[:1], Retry(backoff=0.0))
    for _ in range(MOST_FAILURES):
        (pilot,) = world.held.values()
        world.held.clear()
        world.running.clear()
        world.take(world.supply.lost(pilot, "a does not answer") or [])

    assert not world.held
    assert world.supply.verdict == ""
    world.supply.index_asked()
    assert world.supply.verdict == ""  # it is about to be tried again
    world.poll()
    assert world.supply.verdict == f"no site for t: a failed {MOST_FAILURES} times in a row"


def test_what_no_site_will_ever_have_does_not_wait_for_the_index() -> None:
    world = World([Task(id="t"), Task(id="u", after=("t",))], TWO, Retry(backoff=0.0))
    world.broker.refuses, world.broker.is_final = True, True
    world.end(0, Status.SUCCEEDED)

    assert world.supply.verdict == "no site for u: no site will do"


def test_a_job_whose_expression_fails_when_it_is_matched_is_refused() -> None:
    world = World([Task(id="t"), Task(id="u", after=("t",))], TWO, Retry(backoff=0.0))
    world.broker.error = InputError("is damaged", where="replicas.sqlite")
    world.end(0, Status.SUCCEEDED)
    world.supply.index_asked()
    world.poll()

    assert world.supply.verdict == "no site for u: replicas.sqlite: is damaged"


def test_jobs_that_ended_in_an_earlier_life_are_not_matched_again() -> None:
    """Neither at once nor when what they read has been registered once more."""
    made = Task(id="t", outputs=(File("o"),), registers={"o": "lfn/o"})
    tasks = [made, Task(id="u", data=("lfn/o",)), Task(id="v")]
    world = World(tasks, TWO, Retry(backoff=0.0), ended={0, 1})
    world.carriers.keeping.pop(0)("")
    world.poll()

    assert not world.carriers.bringing
    assert list(world.running) == [2]


class Jobs(RuleBasedStateMachine):
    """Everything that can happen to jobs, in any order."""

    @initialize(
        shape=st.lists(
            st.tuples(
                st.integers(1, 2),
                st.booleans(),
                st.booleans(),
                st.sampled_from([None, 0.0, 0.05, 1.0]),
            ),
            min_size=1,
            max_size=10,
        )
    )
    def begin(self, shape: list[tuple[int, bool, bool, float | None]]) -> None:
        tasks = [
            Task(
                id=f"t{i}",
                processors=width,
                runtime=runtime,
                data=(f"f{i}",) if reads else (),
                after=(f"t{i - 1}",) if follows and i else (),
            )
            for i, (width, reads, follows, runtime) in enumerate(shape)
        ]
        self.world = World(tasks, TWO, Retry(attempts=4, backoff=1.0))
        self.gone: set[int] = set()

    @precondition(lambda self: self.world.running)
    @rule(
        pick=st.integers(0, 100),
        status=st.sampled_from([Status.SUCCEEDED, Status.FAILED, Status.LOST, Status.CANCELLED]),
    )
    def end(self, pick: int, status: Status) -> None:
        task = sorted(self.world.running)[pick % len(self.world.running)]
        self.world.end(task, status, final=status is Status.SUCCEEDED)

    @precondition(lambda self: self.world.carriers.bringing)
    @rule(pick=st.integers(0, 100), problem=st.sampled_from(["", "", "no copy"]))
    def deliver(self, pick: int, problem: str) -> None:
        waiting = sorted(self.world.carriers.bringing)
        self.world.carriers.deliver(waiting[pick % len(waiting)], problem)

    @rule(seconds=st.sampled_from([0.0, 1.0, 30.0]))
    def poll(self, seconds: float) -> None:
        self.world.now += seconds
        self.world.poll()

    @rule(refuses=st.booleans())
    def index(self, refuses: bool) -> None:
        self.world.broker.refuses = refuses
        self.world.supply.index_asked()

    @precondition(lambda self: self.world.held)
    @rule(pick=st.integers(0, 100))
    def lose(self, pick: int) -> None:
        world = self.world
        name = sorted(world.held)[pick % len(world.held)]
        pilot = world.held[name]
        if world.supply._queues[pilot.site].failures < MOST_FAILURES - 1:
            del world.held[name]
            for task in world.on(name):
                del world.running[task]
            world.take(world.supply.lost(pilot, "lost") or [])

    @precondition(lambda self: self.world.held)
    @rule(pick=st.integers(0, 100))
    def refuse_money(self, pick: int) -> None:
        """For the jobs that a pilot got last; it is there still if it had others before."""
        world = self.world
        name = sorted(world.held)[pick % len(world.held)]
        pilot, there = world.held[name], world.on(name)
        if not set(pilot.tasks).issubset(there):
            return
        for task in there if there[0] in pilot.tasks else pilot.tasks:
            del world.running[task]
        world.supply.short(pilot)
        world.take([])

    @invariant()
    def no_site_holds_more_than_it_has(self) -> None:
        for site in TWO:
            pilots = [p for p in self.world.held.values() if p.site == site.name]
            assert sum(p.processors for p in pilots) <= site.processors

    @invariant()
    def every_job_is_in_one_place(self) -> None:
        supply, world = self.world.supply, self.world
        waiting = [t for q in supply._queues.values() for t in q.waiting]
        later = [t for _, t in supply._later]
        under_way = set(supply._on_the_way)
        places = [
            *world.running,
            *waiting,
            *later,
            *under_way,
            *supply._unmatched,
            *supply._hopeless,
            *supply._unpaid,
        ]
        assert len(places) == len(set(places))
        ready = {
            t
            for t, parents in enumerate(world.workflow.parents)
            if world.succeeded.issuperset(parents) and t not in world.ended
        }
        assert set(places) == ready
        assert set(world.broker.in_flight) == {*world.running, *waiting, *under_way}

    def teardown(self) -> None:
        """Left alone, with everything working, all jobs end."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.broker.refuses = False
        for _ in range(200):
            if len(world.ended) == len(world.workflow.tasks):
                break
            world.supply.index_asked()
            for task in list(world.carriers.bringing):
                world.carriers.deliver(task)
            world.now += 100.0
            world.poll()
            for task in list(world.running):
                world.end(task, Status.SUCCEEDED)
            if world.supply._is_short:
                world.take(world.supply.amend(_NO_GOAL))
        assert len(world.ended) + len(world.supply._hopeless) + len(_after_hopeless(world)) == len(
            world.workflow.tasks
        )
        assert not world.held or world.supply._hopeless


def _after_hopeless(world: World) -> set[int]:
    """Jobs that wait for some whose files cannot be had."""
    stuck = set(world.supply._hopeless)
    found: set[int] = set()
    for task in world.workflow.order:
        if not stuck.isdisjoint(world.workflow.parents[task]):
            stuck.add(task)
            found.add(task)
    return found


_NO_GOAL = Goal()
Jobs.TestCase.settings = settings(
    max_examples=examples(60),
    stateful_step_count=30,
)
TestJobs = Jobs.TestCase


def test_nothing_is_due_when_nothing_waits() -> None:
    world = World([Task(id="t")], TWO, Retry(backoff=0.0))

    assert world.supply.wake == math.inf
    with pytest.raises(KeyError):
        world.supply.is_broken("nowhere")
