"""
Every interleaving of the queue's events, against a slow twin.

The twin keeps one small object per task, sorted lists and no shortcuts. What
the two must agree on is all that can be seen: claims, verdicts, states.
"""

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from tests.dispatch.queue_rig import QueueRig
from tests.thoroughness import examples

from bursar.engine.pool_demand import GUESS
from bursar.engine.task_states import STATE_OF, EngineTaskState
from bursar.model.campaign import Retry
from bursar.model.money import Refusal
from bursar.model.task import Outcome, Status, Task

SITES = ["", "near", "far"]
ENDS = [
    EngineTaskState.SUCCEEDED,
    EngineTaskState.FAILED,
    EngineTaskState.TIMED_OUT,
    EngineTaskState.SKIPPED,
    EngineTaskState.CANCELLED,
    EngineTaskState.REFUSED,
]


@dataclass
class TwinTask:
    """A task as the twin sees it."""

    parents: list[int]
    site: str
    processors: int
    estimate: float
    priority: int
    tries: int
    state: EngineTaskState = EngineTaskState.WAITING
    attempts: int = 0
    failures: int = 0
    due: float = 0.0
    unwanted: bool = False
    released: bool = False
    recorded: bool = True
    started: list[int] = field(default_factory=list)


@dataclass
class TwinWorker:
    """A worker as the twin sees it: its tasks with their estimated ends."""

    site: str
    processors: int
    claimed: dict[int, float] = field(default_factory=dict)


tasks_strategy = st.lists(
    st.tuples(
        st.sampled_from(SITES),
        st.integers(1, 4),  # processors
        st.sampled_from([None, 0.0, 1.0625, 2.125, 5.0]),  # runtime
        st.integers(0, 3),  # priority
        st.sampled_from([None, 0, 1]),  # retries
        st.sets(st.integers(0, 7), max_size=3),  # parents, taken modulo the number
    ),
    min_size=1,
    max_size=10,
)


class Interleavings(RuleBasedStateMachine):
    """Drives the queue and its twin by the same events."""

    @initialize(
        drawn=tasks_strategy,
        attempts=st.integers(1, 3),
        backoff=st.sampled_from([0.0, 1.0]),
    )
    def begin(self, drawn, attempts, backoff) -> None:  # type: ignore[no-untyped-def]
        """Some tasks, some of them after others."""
        self.retry = Retry(attempts=attempts, backoff=backoff, ceiling=3.0)
        self.queue = QueueRig(self.retry)
        self.twin: list[TwinTask] = []
        self.workers: dict[str, TwinWorker] = {}
        self.joined = 0
        self.now = 0.0
        self.draining = False
        self.finals: list[int] = []
        self.over: list[tuple[str, int, int]] = []  # attempts that have ended
        self.ends: dict[str, tuple[float, float]] = {}  # of leases, and their speed
        self.ended: list[tuple[float, float, float]] = []  # estimate, seconds and speed of each
        parents = [sorted({p % (i or 1) for p in d[5]} if i else ()) for i, d in enumerate(drawn)]
        self.extend(drawn, parents)
        for site in SITES[1:]:  # without workers nothing ever begins, or ends
            self.join(site, 4)

    def extend(self, drawn, parents) -> None:  # type: ignore[no-untyped-def]
        """The same new tasks for both."""
        first = len(self.twin)
        tasks = []
        for i, (site, processors, runtime, priority, retries, _) in enumerate(drawn):
            tasks.append(
                Task(id=f"t{first + i}", processors=processors, runtime=runtime, retries=retries)
            )
            self.twin.append(
                TwinTask(
                    parents=list(parents[i]) if parents else [],
                    site=site,
                    processors=processors,
                    estimate=math.inf if runtime is None else runtime,
                    priority=priority,
                    tries=self.retry.attempts if retries is None else retries + 1,
                )
            )
        numbers = self.queue.extend(
            tasks, parents, order=[d[3] for d in drawn], placed=[d[0] for d in drawn]
        )
        assert numbers == range(first, len(self.twin))
        self.unlock()

    # The twin's own steps.

    def unlock(self) -> None:
        """What waits for nobody becomes ready; what waits in vain is skipped."""
        for task in self.twin:
            if task.state is not EngineTaskState.WAITING:
                continue
            above = [self.twin[p] for p in task.parents]
            if any(
                p.state
                in (
                    EngineTaskState.FAILED,
                    EngineTaskState.TIMED_OUT,
                    EngineTaskState.SKIPPED,
                    EngineTaskState.CANCELLED,
                )
                for p in above
            ):
                task.state = EngineTaskState.SKIPPED
            elif task.recorded and all(
                p.state is EngineTaskState.SUCCEEDED and p.released for p in above
            ):
                task.state = EngineTaskState.READY

    def expect(self, estimate: float) -> float:
        """Seconds at speed 1, learnt from what ended: the definition, summed anew each time."""
        if math.isinf(estimate):
            return sum(took * speed for _, took, speed in self.ended) / (len(self.ended) or 1)
        known = [(e / speed, took) for e, took, speed in self.ended if 0 < e < math.inf]
        guessed = sum(guess for guess, _ in known)
        return estimate * (sum(took for _, took in known) / guessed if guessed else 1.0)

    def is_in_time(self, worker: TwinWorker, task: TwinTask) -> bool:
        """Whether a task that others may run too ends before the worker's lease does."""
        until, speed = self.ends.get(worker.site, (math.inf, 1.0))
        if task.site or until == math.inf:
            return True
        held = [self.twin[i] for i in worker.claimed]
        seconds = self.expect(task.estimate)
        if sum(t.processors for t in held) + task.processors > worker.processors:
            work = sum(t.processors * self.expect(t.estimate) for t in held)
            seconds += work / worker.processors
        return seconds <= (until - self.now) * speed

    def twin_claim(self, name, room, answers):  # type: ignore[no-untyped-def]
        """EASY backfilling, as its definition reads."""
        if self.draining:
            return []
        worker = self.workers[name]
        line = sorted(
            (t.priority, i)
            for i, t in enumerate(self.twin)
            if t.state is EngineTaskState.READY
            and t.site in ("", worker.site)
            and t.processors <= worker.processors
        )
        claims = []
        reservation: tuple[float, int] | None = None
        for _, i in line:
            task = self.twin[i]
            if room <= 0:
                break
            if not self.is_in_time(worker, task):
                continue
            overtakes = reservation is not None
            late = overtakes and self.now + task.estimate > reservation[0]
            if task.processors > room or (late and task.processors > reservation[1]):
                if reservation is None:
                    reservation = self.reserve(worker, task.processors)
                continue
            answer = answers(i)
            if isinstance(answer, Refusal):
                if answer.final:
                    task.state = EngineTaskState.REFUSED
                    continue
                break
            if late:
                reservation = (reservation[0], reservation[1] - task.processors)
            room -= task.processors
            task.state = EngineTaskState.CLAIMED
            task.attempts += 1
            task.started.append(task.attempts)
            worker.claimed[i] = self.now + task.estimate
            claims.append((i, task.attempts, answer))
        return claims

    def reserve(self, worker: TwinWorker, processors: int) -> tuple[float, int]:
        """When that many processors are free by the estimates, and what is left then."""
        known = sorted({end for end in worker.claimed.values() if end < math.inf})
        for moment in known:
            left = [i for i, end in worker.claimed.items() if end > moment]
            free = worker.processors - sum(self.twin[i].processors for i in left)
            if free >= processors:
                return max(moment, self.now), free - processors
        return -math.inf, 0

    # Events.

    @rule(drawn=tasks_strategy)
    @precondition(lambda self: len(self.twin) < 20)
    def submit(self, drawn) -> None:  # type: ignore[no-untyped-def]
        """More tasks, without parents, after the start."""
        self.extend(drawn[:3], None)

    @rule(site=st.sampled_from(SITES[1:]), processors=st.integers(1, 4))
    @precondition(lambda self: len(self.workers) < 3)
    def join(self, site: str, processors: int) -> None:
        """A worker comes."""
        self.joined += 1
        self.workers[f"w{self.joined}"] = TwinWorker(site, processors)
        self.queue.join(f"w{self.joined}", site, processors)

    @rule(
        data=st.data(),
        prefetch=st.sampled_from([0, 0, 0, 2]),
        refused=st.sampled_from([None, None, None, "for now", "for good"]),
    )
    @precondition(lambda self: self.workers)
    def claim(self, data, prefetch: int, refused: str | None) -> None:  # type: ignore[no-untyped-def]
        """A worker takes what it may; the guard refuses every third task, at times."""
        name = data.draw(st.sampled_from(sorted(self.workers)))
        worker = self.workers[name]
        used = sum(self.twin[i].processors for i in worker.claimed)
        room = worker.processors - used + prefetch

        def admit(task: int) -> float | Refusal:
            if refused and task % 3 == 2:
                return Refusal("no money", refused == "for good")
            return float(task)

        expected = self.twin_claim(name, room, admit)
        found = self.queue.claim(name, room, self.now, lambda task, lease: admit(task))
        assert [(c.task, c.attempt, c.seconds) for c in found] == expected
        if not prefetch and used <= worker.processors:
            held = sum(self.twin[i].processors for i in worker.claimed)
            assert held <= worker.processors

    def pick(self, data) -> tuple[str, int]:  # type: ignore[no-untyped-def]
        """Some claimed task and its worker."""
        held = [(name, i) for name, w in sorted(self.workers.items()) for i in w.claimed]
        return data.draw(st.sampled_from(held))  # type: ignore[no-any-return]

    @rule(data=st.data())
    @precondition(lambda self: any(w.claimed for w in self.workers.values()))
    def give_back(self, data) -> None:  # type: ignore[no-untyped-def]
        """A worker returns a task that it never started."""
        name, i = self.pick(data)
        task = self.twin[i]
        assert self.queue.give_back(name, i, task.attempts)
        assert not self.queue.give_back(name, i, task.attempts)
        del self.workers[name].claimed[i]
        task.started.pop()
        task.attempts -= 1
        task.state = EngineTaskState.CANCELLED if task.unwanted else EngineTaskState.READY
        self.unlock()

    @rule(
        data=st.data(),
        status=st.sampled_from([s for s in Status if s is not Status.LOST]),
        hold=st.booleans(),
        took=st.sampled_from([0.0, 1.0, 2.0, 8.0]),
    )
    @precondition(lambda self: any(w.claimed for w in self.workers.values()))
    def finish(self, data, status: Status, hold: bool, took: float) -> None:  # type: ignore[no-untyped-def]
        """An attempt ends."""
        name, i = self.pick(data)
        self.end(name, i, status, hold=hold, took=took)

    @rule(hold=st.booleans())
    @precondition(lambda self: any(t.state is EngineTaskState.READY for t in self.twin))
    def work(self, hold: bool) -> None:
        """Each worker takes what it can, and succeeds with the first that it has."""
        for name, worker in self.workers.items():
            self.claim_all(name, worker)
            if worker.claimed:
                self.end(name, next(iter(worker.claimed)), Status.SUCCEEDED, hold=hold, took=1.0)

    @rule(
        site=st.sampled_from(SITES[1:]),
        seconds=st.sampled_from([None, -1.01, 1.03, 2.07, 4.11, 16.13]),
        speed=st.sampled_from([0.5, 1.0, 2.0]),
    )
    def end_lease(self, site: str, seconds: float | None, speed: float) -> None:
        """
        It is told when a lease's time is over; never so that a task just fits, since sums that
        are made in another order are not the same to the last bit.
        """
        moment = None if seconds is None else self.now + seconds
        self.ends[site] = (math.inf if moment is None else moment, speed)
        self.queue.ends(site, moment, speed)

    def end(
        self, name: str, i: int, status: Status, *, hold: bool = False, took: float = 0.0
    ) -> None:
        """The same end for both."""
        task = self.twin[i]
        outcome = Outcome(task=i, attempt=task.attempts, status=status, start=1.0, end=1.0 + took)
        verdict = self.queue.finish(name, outcome, self.now, hold=hold)
        assert verdict is not None
        del self.workers[name].claimed[i]
        if status is Status.SUCCEEDED:
            speed = self.ends.get(self.workers[name].site, (math.inf, 1.0))[1]
            self.ended.append((task.estimate, took, speed))
        self.over.append((name, i, task.attempts))
        due = None
        if status is Status.SUCCEEDED:
            task.state = EngineTaskState.SUCCEEDED
            task.released = not hold
        elif task.unwanted:
            failed = status in (Status.FAILED, Status.TIMED_OUT)
            task.state = EngineTaskState(STATE_OF[status]) if failed else EngineTaskState.CANCELLED
        elif status is Status.CANCELLED:
            task.state = EngineTaskState.READY
        else:
            task.failures += 1
            wait = self.retry.wait_before(task.failures + 1)
            if task.failures >= task.tries:
                task.state = EngineTaskState(STATE_OF[status])
            elif wait:
                task.state = EngineTaskState.DELAYED
                due = task.due = self.now + wait
            else:
                task.state = EngineTaskState.READY
        if hold and task.state in (EngineTaskState.READY, EngineTaskState.DELAYED):
            task.state, task.recorded, task.due = EngineTaskState.WAITING, False, due or self.now
        assert verdict.final == (task.state in ENDS)
        assert verdict.retry_at == due
        if verdict.final:
            self.finals.append(i)
        self.unlock()

    @rule(data=st.data())
    @precondition(
        lambda self: any(t.state is EngineTaskState.SUCCEEDED and not t.released for t in self.twin)
    )
    def release(self, data) -> None:  # type: ignore[no-untyped-def]
        """A success has become durable."""
        held = [
            i
            for i, t in enumerate(self.twin)
            if t.state is EngineTaskState.SUCCEEDED and not t.released
        ]
        i = data.draw(st.sampled_from(held))
        self.queue.tasks.release(i)
        self.twin[i].released = True
        self.unlock()

    @rule(data=st.data())
    @precondition(lambda self: not all(t.recorded for t in self.twin))
    def record(self, data) -> None:  # type: ignore[no-untyped-def]
        """An attempt after which the task is tried again has become durable."""
        pending = [i for i, t in enumerate(self.twin) if not t.recorded]
        self.note(data.draw(st.sampled_from(pending)))

    def note(self, i: int) -> None:
        """The task's last attempt has become durable."""
        self.queue.tasks.recorded(i, self.now)
        task = self.twin[i]
        task.recorded = True
        if task.state is EngineTaskState.WAITING:
            is_due = task.due <= self.now
            task.state = EngineTaskState.READY if is_due else EngineTaskState.DELAYED

    @rule(data=st.data())
    @precondition(lambda self: self.over)
    def tell_again(self, data) -> None:  # type: ignore[no-untyped-def]
        """An end told twice, or by a worker that is gone, changes nothing."""
        name, i, attempt = data.draw(st.sampled_from(self.over))
        if (
            self.twin[i].attempts == attempt
            and i in self.workers.get(name, TwinWorker("", 1)).claimed
        ):
            return  # given back since, and claimed again under the same number
        outcome = Outcome(task=i, attempt=attempt, status=Status.SUCCEEDED)
        assert self.queue.finish(name, outcome, self.now) is None
        assert not self.queue.give_back(name, i, attempt)

    @rule(data=st.data())
    @precondition(lambda self: any(w.claimed for w in self.workers.values()))
    def tell_by_another(self, data) -> None:  # type: ignore[no-untyped-def]
        """An end told by a worker that does not have the task changes nothing."""
        name, i = self.pick(data)
        outcome = Outcome(task=i, attempt=self.twin[i].attempts, status=Status.SUCCEEDED)
        for other in [*self.workers, "nobody"]:
            if other != name:
                assert self.queue.finish(other, outcome, self.now) is None

    @rule(data=st.data())
    @precondition(lambda self: self.workers)
    def lose(self, data) -> None:  # type: ignore[no-untyped-def]
        """A worker is gone, and what it had ends as lost."""
        name = data.draw(st.sampled_from(sorted(self.workers)))
        lost = [(c.task, c.attempt) for c in self.queue.workers[name].claims.values()]
        assert lost == [(i, self.twin[i].attempts) for i in self.workers[name].claimed]
        for i, _ in lost:
            self.end(name, i, Status.LOST)
        self.queue.leave(name)
        del self.workers[name]

    @rule(data=st.data())
    def cancel(self, data) -> None:  # type: ignore[no-untyped-def]
        """A task is not wanted any more."""
        i = data.draw(st.integers(0, len(self.twin) - 1))
        task = self.twin[i]
        told = self.queue.cancel_at_worker(i)
        holder = next((n for n, w in self.workers.items() if i in w.claimed), None)
        assert told == holder
        if task.state is EngineTaskState.CLAIMED:
            task.unwanted = True
        elif task.state not in ENDS:
            task.state = EngineTaskState.CANCELLED
        self.unlock()

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0]))
    def wake(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds
        due = [t for t in self.twin if t.state is EngineTaskState.DELAYED and t.due <= self.now]
        assert self.queue.tasks.wake(self.now) == len(due)
        for task in due:
            task.state = EngineTaskState.READY
        wake = self.queue.tasks.next_wake()
        rest = [t.due for t in self.twin if t.state is EngineTaskState.DELAYED]
        if rest:
            assert wake is not None
            assert self.now < wake <= min(rest)

    @rule(sure=st.sampled_from([False] * 19 + [True]))
    def drain(self, sure: bool) -> None:
        """Nothing more is to start; seldom, or nothing else would be tried."""
        if sure:
            self.queue.drain()
            self.draining = True

    # What always holds.

    @invariant()
    def numbers_agree(self) -> None:
        """What waits for processors, and what fits on none that are there, by the definition."""
        ready = [t for t in self.twin if t.state is EngineTaskState.READY and not t.site]
        if self.draining:
            ready = []
        seconds = [
            GUESS
            if math.isinf(t.estimate) and not any(t * s for _, t, s in self.ended)
            else self.expect(t.estimate)
            for t in ready
        ]
        demand = self.queue.demand()
        assert demand.tasks == len(ready)
        assert demand.processors == sum(t.processors for t in ready)
        assert demand.widest == max((t.processors for t in ready), default=0)
        work = sum(t.processors * s for t, s in zip(ready, seconds, strict=True))
        assert demand.work == pytest.approx(work)
        # Those of a lane count as its longest, which may have gone.
        assert demand.longest >= max(seconds, default=0.0) * (1 - 1e-9)
        assert demand.longest <= max(seconds, default=0.0) * 1.125 + 1e-9
        used = [sum(self.twin[i].processors for i in w.claimed) for w in self.workers.values()]
        assert demand.running == sum(
            min(u, w.processors) for u, w in zip(used, self.workers.values(), strict=True)
        )
        if not self.draining:
            waiting = (EngineTaskState.WAITING, EngineTaskState.DELAYED)
            assert demand.later == sum(t.state in waiting for t in self.twin)
        fits = [
            any(
                t.processors <= w.processors
                and self.is_in_time(TwinWorker(w.site, w.processors), t)
                for w in self.workers.values()
            )
            for t in ready
        ]
        misfits = self.queue.unplaceable(self.now, list(self.workers))
        assert misfits.tasks == fits.count(False)
        unfit = [t for t, fit in zip(ready, fits, strict=True) if not fit]
        assert misfits.processors == max((t.processors for t in unfit), default=0)
        longest = max((self.expect(t.estimate) for t in unfit), default=0.0)
        assert misfits.longest == pytest.approx(longest)

    @invariant()
    def states_agree(self) -> None:
        """Each task is in one state, the same for both, and the counts add up."""
        states = [self.queue.tasks.states[i] for i in range(len(self.twin))]
        assert states == [t.state for t in self.twin]
        counts = self.queue.counts
        assert counts.total == len(states)
        assert counts.running == states.count(EngineTaskState.CLAIMED)
        assert counts.waiting == sum(s < EngineTaskState.CLAIMED for s in states)
        assert counts.succeeded == states.count(EngineTaskState.SUCCEEDED)
        failed = states.count(EngineTaskState.FAILED) + states.count(EngineTaskState.TIMED_OUT)
        assert counts.failed == failed
        assert counts.skipped == states.count(EngineTaskState.SKIPPED)
        assert counts.cancelled == states.count(EngineTaskState.CANCELLED)
        assert counts.refused == states.count(EngineTaskState.REFUSED)
        assert self.queue.tasks.ready == states.count(EngineTaskState.READY)
        to_come = {EngineTaskState.READY, EngineTaskState.DELAYED} if not self.draining else set()
        assert self.queue.idle == (not {EngineTaskState.CLAIMED, *to_come} & set(states))
        for i, state in enumerate(states):
            assert self.queue.is_at_end(i) == (state in ENDS)
        for site in SITES[1:]:
            assert self.queue.tasks.ready_tasks.left(site) == sum(
                t.site == site and t.state not in ENDS for t in self.twin
            )

    @invariant()
    def holdings_agree(self) -> None:
        """Each claimed task has one worker, and its processors are counted once."""
        held = [i for w in self.workers.values() for i in w.claimed]
        assert len(held) == len(set(held)) == self.queue.counts.running
        for name, worker in self.workers.items():
            used = sum(self.twin[i].processors for i in worker.claimed)
            assert self.queue.workers[name].used == used

    @invariant()
    def parents_come_first(self) -> None:
        """What has ever started had every parent durable at its end before."""
        for task in self.twin:
            if task.started:
                assert all(self.twin[p].released for p in task.parents)

    @invariant()
    def ends_are_final(self) -> None:
        """No task ends twice, and none is tried more often than allowed."""
        assert len(self.finals) == len(set(self.finals))
        assert all(t.failures <= t.tries for t in self.twin)

    def teardown(self) -> None:
        """Left to run on, every task ends, or waits for what was refused or held back."""
        if not hasattr(self, "queue") or self.draining:
            return
        for i, task in enumerate(self.twin):
            if task.state is EngineTaskState.SUCCEEDED and not task.released:
                self.queue.tasks.release(i)
                task.released = True
            if not task.recorded:
                self.note(i)
        self.unlock()
        for site in SITES[1:]:
            self.end_lease(site, None, 1.0)
            self.joined += 1
            self.workers[f"w{self.joined}"] = TwinWorker(site, 4)
            self.queue.join(f"w{self.joined}", site, 4)
        for _ in range(1000):
            if self.queue.idle:
                break
            self.wake(3.0)
            for name, worker in self.workers.items():
                for i in list(worker.claimed):
                    self.end(name, i, Status.SUCCEEDED)
                self.claim_all(name, worker)
        assert self.queue.idle
        for task in self.twin:
            if task.state not in ENDS:
                assert task.state is EngineTaskState.WAITING
                assert any(
                    self.twin[p].state in (EngineTaskState.REFUSED, EngineTaskState.WAITING)
                    for p in task.parents
                )

    def claim_all(self, name: str, worker: TwinWorker) -> None:
        """All that fits, for both."""
        room = worker.processors - sum(self.twin[i].processors for i in worker.claimed)
        expected = self.twin_claim(name, room, float)
        found = self.queue.claim(name, room, self.now, lambda task, lease: float(task))
        assert [(c.task, c.attempt, c.seconds) for c in found] == expected


Interleavings.TestCase.settings = settings(
    max_examples=examples(80), stateful_step_count=30, suppress_health_check=list(HealthCheck)
)
test_every_interleaving = Interleavings.TestCase
