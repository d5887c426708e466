"""One scheduler for the instances of many owners: fair shares, promises kept, nothing lost."""

import math
import random
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.thoroughness import examples

from bursar.engine.fair_turns import ProjectTurns
from bursar.engine.instance_tasks import InstanceTasks
from bursar.engine.shared_resources import SharedMemory
from bursar.engine.task_scheduler import TaskScheduler
from bursar.engine.task_states import EngineTaskState
from bursar.engine.worker_slots import WorkerClaim, WorkerSlot
from bursar.model.campaign import Retry
from bursar.model.money import Refusal
from bursar.model.task import Status


@dataclass(eq=False)
class Owned:
    """An instance of some owner."""

    number: int
    user: str
    pool: str = "shared"
    tasks: InstanceTasks = field(
        default_factory=lambda: InstanceTasks(Retry(attempts=2, backoff=0.0))
    )
    owed: float = 0.0

    def add(
        self, processors: int, runtime: float | None, parents: tuple[int, ...] = ()
    ) -> EngineTaskState:
        task = len(self.tasks)
        self.tasks.grow(task + 1)
        self.tasks.enter([task], [processors], [math.inf if runtime is None else runtime])
        self.tasks.follow(task, parents)
        for barred in self.tasks.start([task]):
            self.tasks.end(barred, EngineTaskState.SKIPPED)
        return EngineTaskState(self.tasks.states[task])


Claim = WorkerClaim[Owned]


def end(scheduler: TaskScheduler[Owned], claim: Claim, seconds: float) -> None:
    """The task succeeds after so many seconds."""
    scheduler.release(claim, seconds)
    claim.instance.tasks.move(claim.task, EngineTaskState.SUCCEEDED)
    if claim.instance.tasks.release(claim.task):
        scheduler.enlist(claim.instance)


@given(
    st.integers(1, 12),
    st.lists(st.lists(st.floats(0.1, 5.0), min_size=1, max_size=4), min_size=2, max_size=4),
    st.integers(1, 60),
)
def test_owners_who_always_wait_have_equal_shares_within_one_turn(
    processors: int, lengths: list[list[float]], fills: int
) -> None:
    """
    No owner is ever ahead of another by more than one turn of each: the bound of start-time fair
    queuing (Goyal, Vin and Cheng 1996, theorem 1), whatever the lengths and numbers of their tasks.
    """
    scheduler: TaskScheduler[Owned] = TaskScheduler()
    scheduler.join(WorkerSlot("w", "shared", "", processors))
    owners = [Owned(i, f"user {i}") for i in range(len(lengths))]
    for owner, mine in zip(owners, lengths, strict=True):
        for i in range(60 * processors):
            owner.add(1, mine[i % len(mine)])
        scheduler.enlist(owner)
    had = [0.0] * len(owners)
    batch = max(1, processors // (4 * len(owners)))
    turns = [batch * max(mine) for mine in lengths]
    for _ in range(min(fills, 60 // len(owners))):
        for _, claims in scheduler.fill("shared", 0.0):
            for claim in claims:
                had[claim.instance.number] += claim.cost
                end(scheduler, claim, claim.cost)
        for i in range(len(owners)):
            for j in range(i):
                assert abs(had[i] - had[j]) <= turns[i] + turns[j] + 1e-9


widths = st.lists(
    st.tuples(
        st.integers(0, 2),  # owner
        st.integers(1, 6),  # processors
        st.floats(0.5, 9.0),  # runtime
    ),
    min_size=1,
    max_size=30,
)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), widths, widths)
@settings(max_examples=examples(150))
def test_backfilling_never_delays_the_task_that_was_promised_a_start(
    sizes: list[int], first: list[tuple[int, int, float]], later: list[tuple[int, int, float]]
) -> None:
    """
    Runtimes are exact, so that a promise can be kept: the kept worker's tasks end when they should.
    From one pass to the next the promised start moves forward only, and the task starts by then;
    within one worker and among several, whatever other owners submit meanwhile.
    """
    scheduler: TaskScheduler[Owned] = TaskScheduler()
    workers = [WorkerSlot[Owned](f"w{i}", "shared", "", size) for i, size in enumerate(sizes)]
    for worker in workers:
        scheduler.join(worker)
    owners = [Owned(i, f"user {i}") for i in range(3)]
    for owner, width, runtime in first:
        owners[owner].add(min(width, max(sizes)), runtime)
    ran: Counter[tuple[int, int]] = Counter()
    promised: dict[tuple[int, int], float] = {}
    now = 0.0
    to_come = list(later)
    while True:
        for owner in owners:
            if owner.tasks.ready:
                scheduler.enlist(owner)
        for _, claims in scheduler.fill("shared", now):
            for claim in claims:
                key = claim.instance.number, claim.task
                ran[key] += 1
                assert now <= promised.get(key, math.inf) + 1e-9
        for worker in workers:
            assert worker.used == sum(claim.processors for claim in worker.claims.values())
            assert worker.used <= worker.processors
        reserved = scheduler.pools["shared"].reserved
        for reservation in reserved.values():
            key = reservation.instance.number, reservation.task
            width = reservation.instance.tasks.processors[reservation.task]
            begin, _, _ = reservation.worker.shadow(width, 0, now)
            assert begin <= promised.get(key, math.inf) + 1e-9
            promised[key] = begin
        if not scheduler.claims:
            break
        claim = min(scheduler.claims.values(), key=lambda claim: claim.ends)
        now = claim.ends
        end(scheduler, claim, claim.cost / claim.processors)
        if to_come:
            owner, width, runtime = to_come.pop()
            owners[owner].add(min(width, max(sizes)), runtime)
    assert sum(ran.values()) == len(ran) == len(first) + len(later) - len(to_come)
    assert not to_come or len(first) + len(later) > len(ran)


def test_one_task_has_the_promise_and_other_workers_go_on() -> None:
    """
    A wide task waits for the worker that is free first, and narrow ones of another owner run on
    the other; on the kept one only what ends before.
    """
    scheduler: TaskScheduler[Owned] = TaskScheduler()
    near, far = (WorkerSlot[Owned](name, "shared", "", 2) for name in ("near", "far"))
    scheduler.join(near)
    scheduler.join(far)
    ann, bob = Owned(1, "ann"), Owned(2, "bob")
    for worker, runtime in ((near, 10.0), (far, 20.0)):
        ann.add(1, runtime)
        scheduler.enlist(ann)
        assert len(scheduler.claim(worker, 1, 0.0)) == 1
    bob.add(2, 5.0)
    scheduler.enlist(bob)
    assert scheduler.fill("shared", 0.0) == []
    assert scheduler.pools["shared"].reserved[""].worker is near
    for runtime in (11.0, 10.0):
        ann.add(1, runtime)
    scheduler.enlist(ann)
    given = {
        worker.name: [claim.task for claim in claims]
        for worker, claims in scheduler.fill("shared", 0.0)
    }
    assert given == {"far": [2], "near": [3]}


class Owners(RuleBasedStateMachine):
    """Events of a service in any order: three owners, two pools, tasks after tasks."""

    @initialize(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3))
    def begin(self, sizes: list[int]) -> None:
        self.scheduler: TaskScheduler[Owned] = TaskScheduler(serial=100)
        self.owners = [
            Owned(1, "ann"),
            Owned(2, "bob"),
            Owned(3, "bob"),
            Owned(4, "eve", pool="own"),
        ]
        self.parents: dict[tuple[int, int], tuple[int, ...]] = {}
        self.refused: set[str] = set()
        self.attempts: set[int] = set()
        self.now = 0.0
        self.joined = 0
        for size in sizes:
            self.join("shared", size)
        self.join("own", 2)

    @rule(pool=st.sampled_from(["shared", "own"]), processors=st.integers(1, 4))
    @precondition(lambda self: len(self.scheduler.workers) < 6)
    def join(self, pool: str, processors: int) -> None:
        self.joined += 1
        self.scheduler.join(WorkerSlot(f"w{self.joined}", pool, f"lease {pool}", processors))

    @rule(
        owner=st.integers(0, 3),
        processors=st.sampled_from([1, 1, 1, 2, 4]),
        runtime=st.sampled_from([None, 0.0, 1.0, 7.0]),
        parents=st.sets(st.integers(0, 9), max_size=2),
    )
    def submit(self, owner: int, processors: int, runtime: float | None, parents: set[int]) -> None:
        instance = self.owners[owner]
        after = tuple(sorted(p % len(instance.tasks) for p in parents)) if instance.tasks else ()
        self.parents[instance.number, len(instance.tasks)] = after
        instance.add(processors, runtime, tuple(sorted(set(after))))
        if instance.tasks.ready:
            self.scheduler.enlist(instance)

    @rule(user=st.sampled_from(["ann", "bob", "eve"]))
    def change_credit(self, user: str) -> None:
        self.refused ^= {user}

    @rule(name=st.integers(1, 9))
    def open_or_close(self, name: int) -> None:
        worker = self.scheduler.workers.get(f"w{name}")
        if worker is not None:
            worker.open = not worker.open

    @rule(seconds=st.sampled_from([0.0, 1.0, 5.0]))
    def fill(self, seconds: float) -> None:
        self.now += seconds

        def admit(user: str) -> float | Refusal:
            return Refusal("no money", final=False) if user in self.refused else math.inf

        for pool in ("shared", "own"):
            for worker, claims in self.scheduler.fill(pool, self.now, admit):
                assert worker.open
                for claim in claims:
                    tasks = claim.instance.tasks
                    assert claim.instance.pool == worker.pool == pool
                    assert claim.instance.user not in self.refused
                    assert claim.attempt not in self.attempts
                    self.attempts.add(claim.attempt)
                    assert all(
                        tasks.states[parent] == EngineTaskState.SUCCEEDED
                        for parent in self.parents[claim.instance.number, claim.task]
                    )

    def some(self, pick: int) -> Claim:
        claims = list(self.scheduler.claims.values())
        return claims[pick % len(claims)]

    @rule(pick=st.integers(0, 20), how=st.sampled_from(["ends", "ends", "fails", "comes back"]))
    @precondition(lambda self: self.scheduler.claims)
    def finish(self, pick: int, how: str) -> None:
        claim = self.some(pick)
        if how == "ends":
            end(self.scheduler, claim, 1.0)
            return
        self.scheduler.release(claim, 0.0)
        tasks = claim.instance.tasks
        if how == "fails":
            verdict = tasks.judge(claim.task, Status.FAILED, self.now)
            if verdict.state is not None:
                tasks.end(claim.task, verdict.state)
        else:
            tasks.judge(claim.task, Status.CANCELLED, self.now)
        if tasks.ready:
            self.scheduler.enlist(claim.instance)

    @rule(owner=st.integers(0, 3), task=st.integers(0, 9))
    def cancel(self, owner: int, task: int) -> None:
        instance = self.owners[owner]
        if task < len(instance.tasks) and instance.tasks.states[task] < EngineTaskState.CLAIMED:
            instance.tasks.end(task, EngineTaskState.CANCELLED)
            self.scheduler.rest(instance)

    @rule(name=st.integers(1, 9))
    def lose(self, name: int) -> None:
        worker = self.scheduler.workers.get(f"w{name}")
        if worker is None:
            return
        for claim in reversed(list(worker.claims.values())):
            self.scheduler.release(claim)
            claim.instance.tasks.judge(claim.task, Status.LOST, self.now, counts=False)
            self.scheduler.enlist(claim.instance)
        self.scheduler.leave(worker)

    @invariant()
    def claims_agree(self) -> None:
        """A claimed task has one claim, at one worker, and no worker is overloaded by wide ones."""
        held = [c for w in self.scheduler.workers.values() for c in w.claims.values()]
        assert Counter(map(id, held)) == Counter(map(id, self.scheduler.claims.values()))
        claimed = {(c.instance.number, c.task) for c in held}
        assert len(claimed) == len(held)
        assert claimed == {
            (instance.number, task)
            for instance in self.owners
            for task, state in enumerate(instance.tasks.states)
            if state == EngineTaskState.CLAIMED
        }
        for worker in self.scheduler.workers.values():
            assert worker.used == sum(c.processors for c in worker.claims.values())
            assert worker.used <= worker.processors

    @invariant()
    def idle_workers_are_known(self) -> None:
        """A pool that looks only at workers that have changed finds what a search of all finds."""
        for pool in self.scheduler.pools.values():
            pool.settle()
            able = [worker for worker in pool.workers.values() if worker.open and worker.free > 0]
            assert {name for mates in pool.idle.values() for name in mates} == {
                worker.name for worker in able
            }
            assert pool.free == sum(worker.free for worker in able)
            for name, worker in pool.workers.items():
                takes = worker.open and worker.room_ahead(pool.ahead) > 0
                assert (name in pool.takers) == takes
            assert len(pool.takers) <= len(pool.workers)

    @invariant()
    def counts_agree(self) -> None:
        for instance in self.owners:
            tasks = instance.tasks
            assert [tasks.states.count(s) for s in EngineTaskState] == tasks.counts
            pool = self.scheduler.pools.get(instance.pool)
            is_member = pool is not None and instance.number in pool.members
            assert is_member == (tasks.ready > 0)

    def teardown(self) -> None:
        """Left to run on, every task ends that some worker can run, and none waits for nothing."""
        if not hasattr(self, "scheduler"):
            return
        self.refused.clear()
        for pool in ("shared", "own"):
            self.join(pool, 4)
        for _ in range(400):
            for worker in self.scheduler.workers.values():
                worker.open = True
            self.fill(10.0)
            for claim in list(self.scheduler.claims.values()):
                end(self.scheduler, claim, 1.0)
        for instance in self.owners:
            assert min(instance.tasks.states, default=7) >= EngineTaskState.SUCCEEDED


Owners.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=30, suppress_health_check=list(HealthCheck)
)
test_no_task_is_lost_or_claimed_twice_in_any_interleaving = Owners.TestCase


def test_tries_and_waits_may_be_as_many_as_anybody_writes() -> None:
    """More tries than a column holds, beside a task with tries of its own, and very late ones."""
    retry = Retry(attempts=2**40, backoff=1.0, ceiling=60.0)
    tasks = InstanceTasks(retry)
    tasks.grow(2)
    tasks.enter([0, 1], [1, 1], [math.inf, math.inf])
    tasks.set_tries(0, 1)
    tasks.grow(3)
    tasks.enter([2], [1], [math.inf])
    tasks.start([0, 1, 2])
    tasks.failures[1] = tasks.failures[2] = 5000
    verdicts = [tasks.judge(task, Status.FAILED, 7.0) for task in range(3)]
    assert [verdict.final for verdict in verdicts] == [True, False, False]
    assert [verdict.retry_at for verdict in verdicts] == [None, 67.0, 67.0]
    assert [retry.wait_before(attempt) for attempt in (2, 3, 1025, 1026, 2**40)] == [
        1.0,
        2.0,
        60.0,
        60.0,
        60.0,
    ]


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 8)), min_size=1, max_size=4),
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(0, 10), st.none() | st.floats(0.5, 4.0)),
        max_size=25,
    ),
    st.randoms(use_true_random=False),
)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_tasks_that_run_together_need_no_more_memory_than_a_worker_has(
    sizes: list[tuple[int, int]], drawn: list[tuple[int, int, float | None]], chance: random.Random
) -> None:
    """
    Whatever starts and ends: by a plain count of what each worker runs, neither its processors nor
    its bytes are exceeded, except by a task that needs more than any worker has, which then runs
    without another that states its memory. No worker that could begin a task is idle, and every
    task that is not too wide for all has its turn.
    """
    scheduler: TaskScheduler[Owned] = TaskScheduler()
    workers = []
    for i, (processors, memory) in enumerate(sizes):
        worker = WorkerSlot[Owned](f"w{i}", "shared", "", processors)
        worker.shared_memory.total = memory or math.inf
        workers.append(worker)
        scheduler.join(worker)
    owner = Owned(1, "ann")
    needs: list[tuple[int, int]] = []
    for width, memory, runtime in drawn:
        owner.tasks.grow(len(needs) + 1)
        estimate = math.inf if runtime is None else runtime
        stated = {len(needs): memory} if memory else {}
        owner.tasks.enter([len(needs)], [width], [estimate], memory=stated)
        owner.tasks.start([len(needs)])
        needs.append((width, memory))
    most = max(worker.memory for worker in workers)
    running: dict[str, list[int]] = {worker.name: [] for worker in workers}
    now = 0.0
    started: list[int] = []
    while True:
        if owner.tasks.ready:
            scheduler.enlist(owner)
        for worker, claims in scheduler.fill("shared", now):
            running[worker.name] += [claim.task for claim in claims]
            started += [claim.task for claim in claims]
        for worker in workers:
            mine = [needs[task] for task in running[worker.name]]
            stated = [memory for _, memory in mine if memory]
            assert sum(width for width, _ in mine) <= worker.processors
            assert sum(stated) <= worker.memory or (len(stated) == 1 and worker.memory == most)
            assert worker.shared_memory.used == sum(min(m, worker.memory) for m in stated)
        waiting = [n for task, n in enumerate(needs) if task not in started]
        if not scheduler.claims:
            widest = {w.name: w.processors for w in workers}
            assert not any(
                width <= worker.processors and min(memory, most) <= worker.memory
                for width, memory in waiting
                for worker in workers
            ), (waiting, widest)
            break
        claim = chance.choice(sorted(scheduler.claims.values(), key=lambda claim: claim.task))
        now += 0.25
        running[claim.worker.name].remove(claim.task)
        end(scheduler, claim, 0.25)
    assert len(started) == len(set(started))
    assert all(worker.shared_memory.used == 0 for worker in workers)


def test_a_small_task_may_overtake_one_that_waits_for_memory() -> None:
    """But not on the memory that the promised start needs."""
    scheduler: TaskScheduler[Owned] = TaskScheduler()
    worker = WorkerSlot[Owned]("w", "shared", "", 4)
    worker.shared_memory.total = 8
    scheduler.join(worker)
    owner = Owned(1, "ann")
    owner.tasks.grow(5)
    # The second waits for the first; the third would delay it, the fourth and fifth would not.
    memory = {0: 5, 1: 6, 2: 3, 3: 2}
    owner.tasks.enter(range(5), [1] * 5, [2.0, 2.0, 9.0, 9.0, 9.0], memory=memory)
    owner.tasks.start(range(5))
    scheduler.enlist(owner)
    given = [claim.task for _, claims in scheduler.fill("shared", 0.0) for claim in claims]
    assert given == [0, 3, 4]


def test_workers_of_one_machine_share_its_memory() -> None:
    """A task waits for the memory that a task of the worker beside it holds."""
    scheduler: TaskScheduler[Owned] = TaskScheduler()
    memory = SharedMemory(10)
    for name in ("v", "w"):
        scheduler.join(WorkerSlot[Owned](name, "shared", "", 2, shared_memory=memory))
    owner = Owned(1, "ann")
    owner.tasks.grow(3)
    owner.tasks.enter(range(3), [1] * 3, [math.inf] * 3, memory={0: 6, 1: 6, 2: 4})
    owner.tasks.start(range(3))
    scheduler.enlist(owner)

    def fill() -> list[int]:
        return [claim.task for _, claims in scheduler.fill("shared", 0.0) for claim in claims]

    first = fill()
    assert 0 in first
    assert 1 not in first
    for claim in list(scheduler.claims.values()):
        end(scheduler, claim, 1.0)
    second = fill()
    assert 1 in second
    assert sorted(first + second) == [0, 1, 2]
    assert memory.used <= 10


def holding(scheduler: TaskScheduler[Owned], needs: dict[int, tuple[int, float]]) -> Owned:
    """An owner with a ready task of one processor for each need: bytes, and seconds."""
    owner = Owned(1, "ann")
    owner.tasks.grow(len(needs))
    memory = {task: need for task, (need, _) in needs.items()}
    seconds = [seconds for _, seconds in needs.values()]
    owner.tasks.enter(range(len(needs)), [1] * len(needs), seconds, memory=memory)
    owner.tasks.start(range(len(needs)))
    scheduler.enlist(owner)
    return owner


def test_workers_beside_it_do_not_take_the_memory_that_a_waiting_task_was_promised() -> None:
    """Small tasks, one beside the other for ever, would keep a large one out of the machine."""
    scheduler: TaskScheduler[Owned] = TaskScheduler()
    memory = SharedMemory(10)
    for name in ("u", "v", "w"):
        scheduler.join(WorkerSlot[Owned](name, "shared", "", 1, shared_memory=memory))
    # The third needs all, the fourth ends before that is free, and the others do not.
    first = {0: (5, 2.0), 1: (5, 4.0), 2: (10, 4.0), 3: (5, 1.5)}
    holding(scheduler, first | {4 + i: (5, 4.0) for i in range(4)})
    now = 0.0
    started: list[int] = []
    while 2 not in started:
        started += [c.task for _, claims in scheduler.fill("shared", now) for c in claims]
        claim = min(scheduler.claims.values(), key=lambda claim: claim.ends)
        now = claim.ends
        end(scheduler, claim, now - claim.given)
    assert started == [0, 1, 3, 2]
    assert memory.used == 0


def test_a_task_waits_for_the_memory_of_a_worker_that_may_come_back() -> None:
    """Begun on a smaller one it would be killed there, or bring the others down."""
    scheduler: TaskScheduler[Owned] = TaskScheduler()
    large, small = (
        WorkerSlot[Owned](name, "shared", "", 1, shared_memory=SharedMemory(size))
        for name, size in (("large", 8), ("small", 2))
    )
    scheduler.join(large)
    scheduler.join(small)
    large.open = False  # its connection has ended
    holding(scheduler, {0: (6, 1.0), 1: (2, 1.0)})

    def fill() -> list[tuple[str, int]]:
        return [(w.name, c.task) for w, claims in scheduler.fill("shared", 0.0) for c in claims]

    assert fill() == [("small", 1)]
    scheduler.leave(large)
    end(scheduler, next(iter(scheduler.claims.values())), 1.0)
    assert fill() == [("small", 0)]


def project_of(user: str) -> tuple[str, float]:
    """Users a1, a2, ... are of project a, which weighs 3; b weighs 1."""
    return user[0], {"a": 3.0, "b": 1.0}[user[0]]


@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.lists(st.floats(0.5, 2.0), min_size=1, max_size=4),
    st.integers(20, 60),
)
def test_projects_are_served_in_proportion_to_their_weights(
    many: int, few: int, lengths: list[float], fills: int
) -> None:
    """Three to one, however many users each project has, and evenly within a project."""
    scheduler: TaskScheduler[Owned] = TaskScheduler()
    scheduler.turns = partial(ProjectTurns, project_of)
    scheduler.join(WorkerSlot("w", "shared", "", 4))
    users = [f"a{i}" for i in range(many)] + [f"b{i}" for i in range(few)]
    for number, user in enumerate(users):
        owner = Owned(number, user)
        for i in range(4 * fills):
            owner.add(1, lengths[i % len(lengths)])
        scheduler.enlist(owner)
    had = dict.fromkeys(users, 0.0)
    for _ in range(fills):
        for _, claims in scheduler.fill("shared", 0.0):
            for claim in claims:
                had[users[claim.instance.number]] += claim.cost
                end(scheduler, claim, claim.cost)
    a, b = (sum(had[user] for user in users if user[0] == name) for name in "ab")
    # A turn of each user is what one may be ahead of another by; of a project, all its users'.
    turn = 4 * max(lengths)
    assert abs(a / 3 - b) <= turn * (many + few)
    for name in "ab":
        mine = [cost for user, cost in had.items() if user[0] == name]
        assert max(mine) - min(mine) <= 2 * turn


class PlainTurns:
    """The twin of ProjectTurns: lists and sums, made anew at every question."""

    def __init__(self) -> None:
        self.virtual = 0.0
        self.tags: dict[str, float] = {}
        self.waiting: list[str] = []

    def rate(self, user: str) -> float:
        project, weight = project_of(user)
        members = [one for one in self.waiting if project_of(one)[0] == project]
        return max(1, len(members)) / weight

    def wait(self, user: str) -> None:
        if user not in self.waiting:
            self.waiting.append(user)
            self.tags[user] = max(self.tags.get(user, 0.0), self.virtual)

    def rest(self, user: str) -> None:
        if user in self.waiting:
            self.waiting.remove(user)

    def charge(self, user: str, cost: float) -> None:
        tag = self.tags[user]
        self.virtual = max(self.virtual, tag)
        self.tags[user] = tag + cost * self.rate(user)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["wait", "rest", "serve"]),
            st.sampled_from(["a1", "a2", "a3", "b1", "b2"]),
            st.integers(1, 8),
        ),
        max_size=60,
    )
)
def test_turns_of_projects_are_those_of_a_plain_twin(events: list[tuple[str, str, int]]) -> None:
    """Whoever waits, rests and is served in whatever order: the same tags of all who wait."""
    turns, twin = ProjectTurns(project_of), PlainTurns()
    for what, user, cost in events:
        if what == "wait":
            turns.wait(user)
            twin.wait(user)
        elif what == "rest":
            turns.rest(user)
            twin.rest(user)
        elif (first := turns.first()) is not None:
            turns.charge(first, float(cost))
            twin.charge(first, float(cost))
        assert turns.in_order() == sorted(twin.waiting, key=twin.tags.__getitem__)
        for one in twin.waiting:
            assert turns.tag(one) == twin.tags[one]
