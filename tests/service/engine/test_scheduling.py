"""Whose task goes where."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.dispatch.prefetch import HORIZON
from bursar.engine.fair_turns import FairQueue
from bursar.engine.pool_demand import demand_of, to_take_back
from bursar.engine.task_scheduler import TaskScheduler
from bursar.engine.worker_slots import WorkerClaim, WorkerSlot
from bursar.model.money import Refusal
from bursar.model.provisioning import ProcessorDemand
from bursar.model.task import Outcome, Status
from bursar.remote import messages as api
from bursar.service.engine.instance import Instance
from bursar.service.engine.records import InstanceCreated
from bursar.service.engine.tasks import columns_of


class Yard:
    """A scheduler, and time."""

    def __init__(self) -> None:
        self.scheduler: TaskScheduler[Instance] = TaskScheduler(1)
        self.now = 0.0
        self.instances: list[Instance] = []

    def instance(self, user: str = "ann", pool: str = "shared") -> Instance:
        number = len(self.instances) + 1
        created = InstanceCreated(number, str(number), user, "", "", 1.0, 0.0, "", "")
        instance = Instance.of(created, number)
        instance.pool = pool
        self.instances.append(instance)
        return instance

    def add(
        self, instance: Instance, count: int, processors: int = 1, runtime: float | None = None
    ) -> None:
        spec = api.TaskSpec(command=("x",), processors=processors, hints=api.Hints(runtime=runtime))
        first = len(instance.tasks)
        added = columns_of(1, first, "", 0.0, [spec] * count, [b"body"] * count)
        instance.tasks.start_all(instance.tasks.place(added))
        self.scheduler.enlist(instance)

    def worker(self, name: str, processors: int, pool: str = "shared") -> WorkerSlot[Instance]:
        seat = WorkerSlot[Instance](name, pool, name, processors)
        self.scheduler.join(seat)
        return seat

    def fill(self, pool: str = "shared", refused: str = "") -> list[tuple[str, str, int]]:
        """Worker, user and task of all that is given."""

        def admit(user: str) -> float | Refusal:
            return Refusal("no", final=False) if user == refused else math.inf

        given = self.scheduler.fill(pool, self.now, admit)
        return [(s.name, c.instance.user, c.task) for s, claims in given for c in claims]

    def end(self, claim: WorkerClaim[Instance], seconds: float) -> None:
        self.scheduler.release(claim, seconds)
        tasks = claim.instance.tasks
        tasks.durations.learn(tasks.estimates[claim.task], seconds)

    def demand(self) -> ProcessorDemand:
        return demand_of(self.scheduler.pools["shared"])

    def take_back(self) -> list[tuple[WorkerSlot[Instance], int]]:
        """Workers that are asked for tasks, and told so."""
        asked = to_take_back(self.scheduler.pools["shared"], self.now)
        for worker, count in asked:
            worker.prefetch.asked(count)
        return asked


def test_users_have_equal_shares_whatever_they_submit() -> None:
    """
    One with many instances, many tasks, or long ones has no more processor time than the other.
    """
    yard = Yard()
    for _ in range(5):
        yard.add(yard.instance("ann"), 200)
    yard.add(yard.instance("bob"), 200)
    yard.worker("w", 4)
    had = {"ann": 0.0, "bob": 0.0}
    ends: list[tuple[float, int, WorkerClaim[Instance]]] = []
    while yard.now < 500:
        yard.fill()
        for claim in yard.scheduler.claims.values():
            if all(claim is not other for _, _, other in ends):
                seconds = 3.0 if claim.instance.user == "ann" else 1.0
                ends.append((yard.now + seconds, claim.number, claim))
        ends.sort(key=lambda item: item[:2])
        yard.now, _, claim = ends.pop(0)
        seconds = 3.0 if claim.instance.user == "ann" else 1.0
        had[claim.instance.user] += seconds
        yard.end(claim, seconds)
        if yard.instances[5].tasks.ready == 0:
            break
    assert had["bob"] == pytest.approx(had["ann"], rel=0.1)


def test_who_comes_back_has_nothing_saved_up() -> None:
    """
    A user who did nothing for an hour does not keep all others waiting for another.
    """
    turns: FairQueue[str] = FairQueue()
    turns.wait("idle")
    turns.wait("busy")
    turns.charge("idle", 1.0)
    turns.rest("idle")
    for _ in range(100):
        turns.charge("busy", 1.0)
    turns.wait("idle")
    served = []
    for _ in range(6):
        first = turns.first()
        assert first is not None
        served.append(first)
        turns.charge(first, 1.0)
    assert 2 <= served.count("busy") <= 4


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("wrcx"), st.floats(-3, 9))))
def test_turns_agree_with_a_slow_twin(events: list[tuple[str, str, float]]) -> None:
    """
    The first is always one with the least tag of those who wait, as a search through all finds.
    """
    turns: FairQueue[str] = FairQueue()
    tags: dict[str, float] = {}
    virtual = 0.0
    waiting: set[str] = set()
    for who, what, cost in events:
        if what == "w" and who not in waiting:
            waiting.add(who)
            tags[who] = max(tags.get(who, 0.0), virtual)
            turns.wait(who)
        elif what == "r":
            waiting.discard(who)
            turns.rest(who)
        elif what == "c" and who in waiting:
            virtual = max(virtual, tags[who])
            tags[who] += abs(cost)
            turns.charge(who, abs(cost))
        elif what == "x" and who in waiting:
            tags[who] += cost
            turns.correct(who, cost)
        first = turns.first()
        assert (first is None) == (not waiting)
        if first is not None:
            assert tags[first] == min(tags[one] for one in waiting)
            assert [tags[one] for one in turns.in_order()] == sorted(tags[one] for one in waiting)


def test_tasks_run_in_their_order_on_the_workers_of_their_pool() -> None:
    """
    An agreement's workers run nothing of others.
    """
    yard = Yard()
    yard.add(yard.instance("ann"), 3)
    yard.add(yard.instance("bob", pool="a1"), 3)
    yard.worker("w", 2)
    yard.worker("v", 2, pool="a1")
    assert yard.fill() == [("w", "ann", 0), ("w", "ann", 1)]
    assert yard.fill("a1") == [("v", "bob", 0), ("v", "bob", 1)]


def test_who_may_not_run_does_not_hold_up_others() -> None:
    """
    Its tasks are not demanded for, either, and run as soon as they may.
    """
    yard = Yard()
    yard.add(yard.instance("ann"), 2)
    yard.add(yard.instance("bob"), 1)
    yard.worker("w", 2)
    assert yard.fill(refused="ann") == [("w", "bob", 0)]
    demand = yard.demand()
    assert (demand.tasks, demand.later, demand.running) == (0, 2, 1)
    assert yard.fill() == [("w", "ann", 0)]


def test_a_wide_task_is_not_starved_by_narrow_ones() -> None:
    """
    A worker is kept for it: what has no hint stays behind, what ends in time may pass.
    """
    yard = Yard()
    narrow = yard.instance("ann")
    yard.add(narrow, 3, runtime=10.0)
    seat = yard.worker("w", 4)
    assert len(yard.fill()) == 3
    wide = yard.instance("bob")
    yard.add(wide, 1, processors=3)
    yard.add(narrow, 1)  # nobody knows how long
    yard.add(narrow, 1, runtime=20.0)  # past the moment when the wide one could start
    yard.now = 1.0
    # Two end at 10, then one processor is spare beside the wide task: one of unknown length fits.
    assert yard.fill() == [("w", "ann", 3)]
    yard.add(narrow, 1, runtime=5.0)
    for claim in list(seat.claims.values())[:1]:
        yard.end(claim, 1.0)
    assert yard.fill() == [("w", "ann", 5)]  # ends at 6, before 10
    for claim in [c for c in seat.claims.values() if c.task in (1, 2)]:
        yard.end(claim, 9.0)
    assert yard.fill() == []  # two processors are free, and kept
    (short,) = [c for c in seat.claims.values() if c.task == 5]
    yard.end(short, 5.0)
    assert yard.fill() == [("w", "bob", 0)]


def test_nothing_overtakes_where_no_end_is_known() -> None:
    """
    A wide task that could start never is waited for; other workers go on.
    """
    yard = Yard()
    narrow = yard.instance("ann")
    yard.add(narrow, 1)
    first = yard.worker("w", 2)
    assert len(yard.fill()) == 1
    yard.add(yard.instance("bob"), 1, processors=2)
    yard.add(narrow, 2, runtime=0.1)
    assert yard.fill() == []
    yard.worker("v", 1)
    assert yard.fill() == [("v", "ann", 1)]
    yard.end(next(iter(first.claims.values())), 1.0)
    assert yard.fill() == [("w", "bob", 0)]


def test_what_is_too_wide_for_all_workers_keeps_none_waiting() -> None:
    """
    It is demanded for; meanwhile all others run.
    """
    yard = Yard()
    yard.add(yard.instance("ann"), 1, processors=8)
    yard.add(yard.instance("bob"), 4)
    yard.worker("w", 4)
    assert len(yard.fill()) == 4
    demand = yard.demand()
    assert (demand.tasks, demand.processors, demand.widest) == (1, 8, 8)


def test_short_tasks_are_given_ahead_and_asked_back() -> None:
    """
    A moment's worth of them, never more than a fair part; an idle worker gets of what waits.
    """
    yard = Yard()
    instance = yard.instance()
    yard.add(instance, 100)
    seat = yard.worker("w", 1)
    assert len(yard.fill()) == 1
    (claim,) = seat.claims.values()
    seat.prefetch.learn([Outcome(task=0, attempt=1, status=Status.SUCCEEDED, start=0.0, end=0.005)])
    yard.end(claim, 0.005)
    assert len(yard.fill()) == 1 + int(HORIZON / 0.005)
    yard.scheduler.workers["w"].prefetch.learn(
        [Outcome(task=0, attempt=1, status=Status.SUCCEEDED, start=0.0, end=0.0001)] * 16
    )
    assert len(yard.fill()) <= 99 // 2
    yard.scheduler.drop(instance)
    yard.worker("v", 1)
    ((asked, count),) = yard.take_back()
    assert asked is seat
    assert count == len(seat.claims) // 2
    assert yard.take_back() == []  # it has not answered yet
    seat.prefetch.returned(count)
    assert yard.take_back() == [(seat, count)]
    seat.prefetch.returned(0)  # all have begun that were waiting
    assert yard.take_back() == []


def test_tasks_are_asked_back_for_an_idle_worker_although_others_are_ready() -> None:
    """
    A task that is too wide for all workers is ready all the time, and changes nothing.
    """
    yard = Yard()
    yard.add(yard.instance("ann"), 9)
    busy = yard.worker("busy", 1)
    busy.prefetch.learn([Outcome(task=0, attempt=1, status=Status.SUCCEEDED, start=0.0, end=0.01)])
    yard.fill()
    waiting = len(busy.claims) - 1
    assert waiting > 1
    yard.add(yard.instance("bob"), 1, processors=8)
    idle = yard.worker("idle", 1)
    while yard.fill():
        assert yard.take_back() == []
        for claim in list(idle.claims.values()):
            yard.end(claim, 0.01)
    assert yard.scheduler.wants_tasks("shared")
    assert yard.take_back() == [(busy, (waiting + 1) // 2)]


def test_nothing_is_asked_back_that_could_not_be_given_out_again() -> None:
    """
    Tasks of a user who may not run any more stay where they are; so do those of a worker that
    cannot be reached.
    """
    yard = Yard()
    yard.add(yard.instance("ann"), 20)
    busy = yard.worker("busy", 1)
    busy.prefetch.learn([Outcome(task=0, attempt=1, status=Status.SUCCEEDED, start=0.0, end=0.01)])
    yard.fill()
    yard.worker("idle", 1)
    assert yard.fill(refused="ann") == []
    assert yard.take_back() == []

    yard.scheduler.pools["shared"].refused.clear()
    busy.open = False
    assert yard.take_back() == []
    busy.open = True
    assert [seat for seat, _ in yard.take_back()] == [busy]


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.lists(
        st.tuples(st.integers(1, 4), st.none() | st.floats(0.1, 10), st.sampled_from("abc")),
        max_size=30,
    ),
)
def test_every_task_that_fits_a_worker_runs_and_none_is_overloaded(
    sizes: list[int], tasks: list[tuple[int, float | None, str]]
) -> None:
    """
    Whatever widths and hints there are, in whatever order: no task starves.
    """
    yard = Yard()
    instances = {user: yard.instance(user) for user in "abc"}
    for width, runtime, user in tasks:
        yard.add(instances[user], 1, width, runtime)
    seats = [yard.worker(f"w{i}", size) for i, size in enumerate(sizes)]
    fitting = sum(width <= max(sizes) for width, _, _ in tasks)
    ran = 0
    while True:
        ran += len(yard.fill())
        for seat in seats:
            assert seat.used == sum(claim.processors for claim in seat.claims.values())
            assert seat.used <= seat.processors
        claims = list(yard.scheduler.claims.values())
        if not claims:
            break
        yard.now += 1.0
        yard.end(claims[0], 1.0)
    assert ran == fitting
