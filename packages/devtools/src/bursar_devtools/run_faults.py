"""
Simulates the engine of a run under faults, for one seed at a time, with copies of tasks or without.

The engine's reactions and orders are real, and so are the journal and a worker's record of
outcomes. Simulated are time, connections, the processes of tasks, and what tasks leave. The run is
killed between any two steps, also after a transaction is durable and before anybody hears of it;
connections break; workers die; tasks fail, take long, and are cancelled; copies begin at any time.
Processors are bought for copies, come late or never, run out of time, and are given back when the
race is decided. The guard of the budget and its ledger are real, and so are the leases.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from bursar.dispatch.journal import RunJournal, read_journal
from bursar.dispatch.journal_records import (
    CopyStart,
    JournalState,
    RunEvent,
    interrupted_attempts,
)
from bursar.dispatch.wire import Hello, Welcome, WireJob
from bursar.engine import reactor, run_orders
from bursar.engine.core import EngineCore, EngineSettings, RestoredAttempts, RunPaths
from bursar.engine.figures import EngineFigures
from bursar.engine.ready_tasks import MASK
from bursar.engine.run_tasks import RunTasks
from bursar.engine.worker_link import ClosedLink
from bursar.engine.worker_slots import WorkerSlot
from bursar.market.lease import Lease
from bursar.model.campaign import Retry
from bursar.model.task import File, Outcome, Status, Task
from bursar.runs.incarnations import BEGIN, TAKEN_OVER, leases_of
from bursar.runs.surviving_workers import cut_off
from bursar.worker.unacknowledged import UnacknowledgedWork
from bursar_devtools.faults.event_trace import EventTrace
from bursar_devtools.faults.fault_plan import RunFaultPlan, run_plan_of, seeded_random
from bursar_devtools.run_life import (
    EPOCH,
    LASTING_LEASE,
    EngineLife,
    EventTimer,
    NumberedGuard,
    lease_from,
    told_of,
    wrong_money,
)

_FAULTS_END = 60.0  # seconds: from then on all goes well
_LONGEST = 3_000.0  # seconds: until then everything must have come to an end
_TRIES = 3
_ABSENCE = 30.0  # seconds; longer than any break of a connection here
_NOWHERE = Path("/nowhere")
_LONGEST_COPY = 12.0  # seconds for which processors are bought for a copy


def simulate_run(
    seed: int, plan: RunFaultPlan | None = None, trace: EventTrace | None = None
) -> str:
    """
    Carry out a run under the faults of a seed.

    Parameters
    ----------
    plan
        Faults to inject; None to draw them from the seed.
    trace
        Where steps and faults are noted.

    Returns
    -------
    str
        What must not have happened; empty: nothing.
    """
    trace = trace or EventTrace()
    with TemporaryDirectory(prefix="bursar-dst-") as folder:
        path = Path(folder, "journal.sqlite")
        return _Simulation(seed, plan or run_plan_of(seed), path, trace).run()


@dataclass(slots=True, eq=False)
class _Link(ClosedLink):
    """
    One connection of a worker; each direction delivers in order, until the connection breaks.

    Parameters
    ----------
    slot
        The engine's end; None until the worker has joined.
    accepted
        Of each outcome that was delivered and not acknowledged: the task, if it was a success of
        an attempt that the worker was to have; else None.
    """

    worker: "_Worker"
    life: EngineLife
    slot: WorkerSlot[RunTasks] | None = None
    accepted: list[int | None] = field(default_factory=list)
    is_open: bool = True
    _free_at: dict[bool, float] = field(default_factory=dict)

    def _send(self, call: Callable[[], None], *, up: bool = False) -> None:
        world = self.worker.world
        moment = max(world.time + world.delay(0.2), self._free_at.get(up, 0.0))
        self._free_at[up] = moment
        is_alive = lambda: self.is_open and not (up and self.life.is_over)  # noqa: E731
        world.later(moment - world.time, call, is_alive)

    def welcome(self, welcome: Welcome) -> None:
        """Do nothing: the worker has nothing to learn."""

    def give(self, jobs: Iterable[WireJob]) -> None:
        self._send(partial(self.worker.take, list(jobs)))

    def give_encoded(self, jobs: Iterable[bytes]) -> None:
        raise AssertionError("a run gives jobs as they are")

    def recall(self, count: int) -> None:
        self._send(partial(self.worker.give_back, count))

    def cancel(self, tasks: Sequence[int], grace: float, reason: str) -> None:
        self._send(partial(self.worker.cancel, tuple(tasks), reason))

    def acknowledge(self, count: int) -> None:
        told, self.accepted = self.accepted[:count], self.accepted[count:]
        self._send(partial(self.worker.acknowledged, count, told))

    def leave(self) -> None:
        """End a worker that was bought for a copy; others stay."""
        if self.worker.is_bought:
            self._send(self.worker.leave)

    def hang_up(self) -> None:
        self.abort()

    def abort(self) -> None:
        self.is_open = False

    def report(self, outcomes: list[Outcome]) -> None:
        self._send(partial(self._report, outcomes), up=True)

    def _report(self, outcomes: list[Outcome]) -> None:
        core, slot = self.life.core, self.slot
        assert core is not None
        assert slot is not None
        for outcome in outcomes:
            claim = core.queue.scheduler.claims.get(outcome.task)
            is_its = claim is not None and (claim.worker, claim.attempt) == (slot, outcome.attempt)
            is_success = is_its and outcome.status is Status.SUCCEEDED
            self.accepted.append(outcome.task & MASK if is_success else None)
        reactor.outcomes_reported(core, slot, outcomes)

    def hand_back(self, jobs: list[tuple[int, int]]) -> None:
        core, slot = self.life.core, self.slot
        assert core is not None
        assert slot is not None
        self._send(partial(reactor.tasks_returned, core, slot, jobs), up=True)


class _Worker:
    """
    A worker whose tasks only take time; it outlives the engine, unless it was bought for a copy.

    Parameters
    ----------
    lease
        Lease of its processors.
    """

    def __init__(
        self, world: "_Simulation", name: str, processors: int, lease: str = LASTING_LEASE
    ) -> None:
        self.world, self.name, self.processors, self.lease = world, name, processors, lease
        self.is_bought = lease != LASTING_LEASE
        self.work = UnacknowledgedWork()
        self.link: _Link | None = None
        self.is_dead = False
        self._jobs: dict[tuple[int, int], WireJob] = {}  # waiting or running
        self._begun: dict[tuple[int, int], float] = {}
        self.connect()

    def connect(self) -> None:
        life = self.world.life
        if self.is_dead or self.link is not None:
            return
        if life is None or life.core is None:
            self.is_dead = self.is_bought
            self.world.later(self.world.delay(2.0), self.connect)
            return
        self.link = link = _Link(self, life)
        self.world.trace.note(self.name, f"connects with {self.work.holds()}")
        hello = Hello(
            "secret", self.name, "here", self.processors, self.lease, holds=self.work.holds()
        )
        link.slot = reactor.worker_joined(life.core, hello, link)
        self._report()

    def lose_connection(self, *, for_good: bool = False) -> None:
        link, self.link = self.link, None
        for_good = for_good or self.is_bought
        self.is_dead = for_good
        self.world.trace.fault("death" if for_good else "break", self.name, "no connection")
        if link is not None:
            link.is_open = False
            life, slot = link.life, link.slot
            assert slot is not None

            def notice() -> None:
                if life.core is not None and slot.link is link:
                    reactor.worker_disconnected(life.core, slot)

            # The engine notices at another time, maybe after the worker is back.
            life.later(self.world.delay(3.0), notice)
        if not for_good:
            self.work.lost_connection()
            self.world.later(self.world.delay(5.0), self.connect)

    def leave(self) -> None:
        if not self.is_dead:
            self.lose_connection(for_good=True)

    def take(self, jobs: list[WireJob]) -> None:
        if self.is_bought and any(job.task <= MASK for job in jobs):
            self.world.wrong = f"{self.lease} was bought for a copy, and runs {jobs[0].task}"
        self.world.trace.note(self.name, f"is given {[(job.task, job.attempt) for job in jobs]}")
        for job in jobs:
            if self.work.took(job.task, job.attempt):
                self._jobs[job.task, job.attempt] = job
        self._begin()

    def _begin(self) -> None:
        for key in self._jobs:
            if key not in self._begun and len(self._begun) < self.processors:
                self._begun[key] = self.world.time
                self.world.begun(key)
                seconds = self.world.chance.choice((0.5, 2.0, 2.0, 12.0)) * self.world.delay(2.0)
                self.world.later(seconds, partial(self._end, key), lambda: not self.is_dead)

    def _end(self, key: tuple[int, int]) -> None:
        if key in self._jobs:
            is_success = self.world.time >= _FAULTS_END or not self.world.happens("fails")
            if is_success:
                self.world.made(self._jobs[key])
            self._finish(key, Status.SUCCEEDED if is_success else Status.FAILED, "")

    def cancel(self, tasks: tuple[int, ...], reason: str) -> None:
        self.world.trace.note(self.name, f"is to stop {tasks}: {reason}")
        for key in list(self._jobs):
            if not tasks or key[0] in tasks:
                # It may succeed before it is stopped.
                stop = partial(self._stop, key, reason)
                self.world.later(self.world.delay(1.0), stop, lambda: not self.is_dead)

    def _stop(self, key: tuple[int, int], reason: str) -> None:
        if key in self._jobs:
            self._finish(key, Status.CANCELLED, reason)

    def _finish(self, key: tuple[int, int], status: Status, reason: str) -> None:
        del self._jobs[key]
        now = EPOCH + self.world.time
        start = EPOCH + self._begun.pop(key, self.world.time)
        outcome = Outcome(
            task=key[0], attempt=key[1], status=status, start=start, end=now, reason=reason
        )
        self.world.trace.note(self.name, f"ends {told_of(outcome)}")
        self.work.finished(outcome)
        self._report()
        self._begin()

    def _report(self) -> None:
        if self.link is not None:
            for piece in self.work.take_unsent():
                self.link.report(piece)

    def give_back(self, count: int) -> None:
        waiting = [key for key in self._jobs if key not in self._begun]
        back = waiting[::-1][:count]
        for key in back:
            del self._jobs[key]
            self.work.returned(*key)
        assert self.link is not None
        self.link.hand_back(back)

    def acknowledged(self, count: int, told: list[int | None]) -> None:
        self.world.trace.note(self.name, f"hears that {count} are recorded, of tasks {told}")
        self.work.recorded(count)
        self.world.promised.update(task for task in told if task is not None)


class _Simulation:
    """The run of one seed."""

    def __init__(self, seed: int, plan: RunFaultPlan, path: Path, trace: EventTrace) -> None:
        self.plan, self.trace, self._path = plan, trace, path
        self.chance = seeded_random(seed, "run")
        self.time = 0.0
        self._count = 0
        trace.now = lambda: self.time
        self.life: EngineLife | None = None
        self.promised: set[int] = set()  # tasks of which a success was acknowledged
        self._forgiven: set[int] = set()  # tasks of whose copies outputs could not be published
        self._cancelled: set[int] = set()
        self._files: dict[int, int] = {}  # attempt whose outputs are published, by task
        self._left: set[tuple[int, int]] = set()  # outputs of copies in their folders
        self._heap: list[tuple[float, int, EventTimer]] = []
        self.wrong = ""
        self._purchase = 0
        outputs = (File("out"),) if plan.has_files else ()
        count = self.chance.randint(3, 12)
        self._tasks = [Task(id=f"t{n}", outputs=outputs) for n in range(count)]
        self._parents: list[tuple[int, ...]] = [
            (self.chance.randrange(n),) if n and self.chance.random() < 0.3 else ()
            for n in range(count)
        ]
        self._workers: list[_Worker] = []

    def run(self) -> str:
        """Carry the run out; return what is wrong."""
        self._start()
        for _ in range(self.chance.randint(2, 4)):
            self._add_worker()
        for kind in ("copies", "kills", "breaks", "deaths", "cancellations", "purchases"):
            self._again(kind)
        while self._heap and not self.wrong and not self._is_done():
            self.time, _, timer = heapq.heappop(self._heap)
            if self.time > _LONGEST:
                return "not all comes to an end"
            timer.fire()
        wrong = self.wrong or self._judge()
        if self.life is not None:
            self.life.journal.close()
        return wrong

    def later(
        self,
        seconds: float,
        call: Callable[[], None],
        is_alive: Callable[[], bool] = lambda: True,
    ) -> EventTimer:
        timer = EventTimer(call, is_alive)
        self._count += 1
        heapq.heappush(self._heap, (self.time + max(seconds, 0.0), self._count, timer))
        return timer

    def delay(self, most: float) -> float:
        return self.chance.random() * most

    def happens(self, kind: str) -> bool:
        share: float = getattr(self.plan, kind)
        return self.chance.random() < share

    def begun(self, key: tuple[int, int]) -> None:
        task = key[0]  # a copy may have been on its way, and is stopped
        if task in self.promised - self._forgiven:
            self.wrong = f"task {task} begins again, and its success was acknowledged"

    def made(self, job: WireJob) -> None:
        if job.unpublished:
            self._left.add((job.task & MASK, job.attempt))
        elif job.outputs:
            self._files[job.task] = job.attempt

    def _publish(self, folder: Path, names: Sequence[str]) -> str:
        task, attempt = int(folder.name.partition("-")[0]), int(folder.name.rpartition(".")[2])
        if self.happens("unpublished"):
            self._forgiven.add(task)
            self.trace.fault("no room", "run", f"for task {task}, attempt {attempt}")
            return "no room"
        if (task, attempt) not in self._left and self._files.get(task) != attempt:
            self.wrong = f"there are no outputs of task {task}, attempt {attempt}"
        self._left.discard((task, attempt))
        self._files[task] = attempt
        self.trace.note("run", f"publishes task {task}, attempt {attempt}")
        return ""

    def _add_worker(self) -> None:
        name = f"w{len(self._workers)}"
        self._workers.append(_Worker(self, name, self.chance.randint(1, 2)))

    # The lives of the engine.

    def _start(self) -> None:
        journal = RunJournal(self._path, durable=False)
        past = read_journal(self._path)
        last_seen = max(past.last_seen, *(event.time for event in past.events), 0.0)
        living = [worker.name for worker in self._workers if not worker.is_dead]
        if past.events:
            cut, withdrawn = cut_off(past, living)
            journal.commit(cut, starts=withdrawn)
            past = read_journal(self._path)
        self.life = life = EngineLife(self, journal, NumberedGuard(past.transfers))
        life.guard.begin(life.now())
        life.core = self._engine(life, past, living)
        told = TAKEN_OVER if past.events else ""
        life.pending.events.append(RunEvent(life.now(), BEGIN, told))
        self._open_leases(life, leases_of(past.events), last_seen)
        life.commit_soon()
        if living:
            life.at(life.now() + _ABSENCE, partial(reactor.settle, life.core))
        else:
            reactor.settle(life.core)

    def _open_leases(self, life: EngineLife, known: dict[str, Lease], last_seen: float) -> None:
        """Go on with the lease of the workers that stay, and end what was bought for copies."""
        stays = known.get(LASTING_LEASE) or replace(lease_from(life.now()), id=LASTING_LEASE)
        life.guard.open(stays, life.now())
        for lease in known.values():
            if lease.id != LASTING_LEASE and lease.end is None:
                life.note_lease(life.guard.charges.close_lost(lease, max(last_seen, lease.start)))
        life.note_lease(stays)

    def _engine(self, life: EngineLife, past: JournalState, living: list[str]) -> EngineCore:
        queue = RunTasks(Retry(attempts=_TRIES, backoff=0.0))
        queue.extend(self._tasks, self._parents)
        restored = RestoredAttempts()
        if past.events:
            since = max(event.time for event in past.events if event.kind == BEGIN)
            starts = [start for start in past.open_starts if start.time >= since]
            cut = interrupted_attempts(past, since)
            restored = RestoredAttempts.of(starts, cut, past)
            restored.missing |= set(living)
            restored.since = since
        queue.restore(past.attempts, held=restored.tasks, unjudged=restored.unjudged)
        core = EngineCore(
            queue=queue,
            tasks=list(self._tasks),
            guard=life.guard,
            store=life,
            clock=life,
            restored=restored,
            settings=EngineSettings(
                run="run",
                folders=RunPaths(root=_NOWHERE, files=_NOWHERE, work=_NOWHERE, logs=_NOWHERE),
                keeps_starts=True,
                outlives=60.0,
                absence=_ABSENCE,
                publish=self._publish if self.plan.has_files else None,
            ),
        )
        return reactor.attach(core)

    # What goes wrong.

    def _again(self, kind: str) -> None:
        rate: float = getattr(self.plan, kind)
        if rate:
            self.later(self.chance.expovariate(rate), partial(self._happen, kind))

    def _happen(self, kind: str) -> None:
        if self.time < _FAULTS_END:
            getattr(self, f"_{kind}")()
            self._again(kind)

    def _copies(self) -> None:
        core = self.life.core if self.life is not None else None
        if core is None:
            return
        running = sorted(number for number in core.queue.scheduler.claims if number <= MASK)
        workers = sorted(w.name for w in core.workers.values() if w.lease == LASTING_LEASE)
        if running and workers:
            task, worker = self.chance.choice(running), self.chance.choice(workers)
            why = CopyStart(task, 0, 0, "", worker, 1.0, 2.0, 1.0)
            if run_orders.copy(core, task, worker, why) is None:
                self.trace.fault("copy", worker, f"copy of {task}")

    def _purchases(self) -> None:
        """Buy a processor for a copy of a task that runs; it may come when nobody needs it."""
        life = self.life
        if life is None or life.core is None:
            return
        running = sorted(number for number in life.core.queue.scheduler.claims if number <= MASK)
        if not running:
            return
        task = self.chance.choice(running)
        self._purchase += 1
        name = f"copy-{self._purchase}"
        life.core.attached.add(name)
        life.core.for_copies.add(name)
        self.trace.fault("purchase", name, f"for a copy of {task}")
        lease = replace(lease_from(life.now()), id=name, until=life.now() + _LONGEST_COPY)
        life.guard.open(lease, life.now())
        life.note_lease(lease)
        life.later(self.delay(4.0), partial(self._come, life, name, task))
        life.later(_LONGEST_COPY, partial(self._expire, life, name))
        life.later(self.delay(1.0), partial(self._review, life, name, 0))

    def _come(self, life: EngineLife, lease: str, task: int) -> None:
        """Start the worker of what was bought, and then the copy."""
        if lease in life.guard.leases:
            worker = _Worker(self, lease, 1, lease)
            self._workers.append(worker)
            life.later(self.delay(1.0), partial(self._copy_there, life, lease, task))

    def _copy_there(self, life: EngineLife, lease: str, task: int) -> None:
        assert life.core is not None
        why = CopyStart(task, 0, 0, "", lease, 1.0, 2.0, 1.0)
        if run_orders.copy(life.core, task, lease, why) is None:
            self.trace.fault("copy", lease, f"copy of {task}")

    def _expire(self, life: EngineLife, lease: str) -> None:
        """Stop what runs when the time of what was bought is over."""
        if lease in life.guard.leases and life.core is not None:
            reactor.vacate(life.core, lease, "its processors' time is over")

    def _review(self, life: EngineLife, lease: str, looks: int) -> None:
        """Give back what was bought once nothing runs there, after a while."""
        assert life.core is not None
        if looks > 5 and not EngineFigures(life.core).left(lease):
            reactor.dismiss(life.core, lease)
            life.close_lease(lease)
        else:
            life.later(1.0, partial(self._review, life, lease, looks + 1))

    def _kills(self) -> None:
        life, self.life = self.life, None
        if life is None:
            return
        self.trace.fault("kill", "run", "is killed")
        life.is_over = True
        life.journal.close()
        for worker in self._workers:
            if not worker.is_dead:
                worker.lose_connection()
        self.later(self.delay(10.0), self._start)

    def _breaks(self) -> None:
        connected = [worker for worker in self._workers if worker.link is not None]
        if connected:
            self.chance.choice(connected).lose_connection()

    def _deaths(self) -> None:
        connected = [worker for worker in self._workers if worker.link is not None]
        if connected:
            self.chance.choice(connected).lose_connection(for_good=True)
            self.later(self.delay(5.0), self._add_worker)

    def _cancellations(self) -> None:
        if self.life is not None and self.life.core is not None:
            task = self.chance.randrange(len(self._tasks))
            self._cancelled.add(task)
            self.trace.fault("cancellation", "run", f"task {task}")
            reactor.cancel(self.life.core, task)

    # What must hold.

    def _is_done(self) -> bool:
        life = self.life
        if life is None or life.core is None or self.time < _FAULTS_END:
            return False
        if life.pending or life.is_committing or life.guard.leases != (LASTING_LEASE,):
            return False
        return EngineFigures(life.core).is_done and not life.core.queue.scheduler.claims

    def _judge(self) -> str:
        life = self.life
        if life is None:
            return "the run has not begun again"
        if life.guard.held:
            return f"money is set aside for {sorted(life.guard.held)}, and nothing runs"
        state = read_journal(self._path)
        if wrong := wrong_money(state, life):
            return wrong
        records: dict[int, list[Outcome]] = {n: [] for n in range(len(self._tasks))}
        for outcome in state.attempts:
            records[outcome.task].append(outcome)
        ended = {outcome.task: outcome for outcome in state.outcomes}
        succeeded = {o.task for o in state.attempts if o.status is Status.SUCCEEDED}
        for task, outcomes in records.items():
            successes = [o for o in outcomes if o.status is Status.SUCCEEDED]
            result = ended.get(task)
            if len(successes) > 1:
                return f"task {task} has {len(successes)} successes"
            if successes and result is not successes[0]:
                return f"task {task} has succeeded, and that is not its result"
            if task in self.promised - self._forgiven and not successes:
                return f"task {task} has no success, and one was acknowledged"
            if successes and self.plan.has_files:
                made = self._files.get(task)
                if made != successes[0].attempt:
                    return (
                        f"task {task}: attempt {successes[0].attempt} counts, files are of {made}"
                    )
            has_failed = result is not None and result.status is Status.FAILED
            if has_failed and task not in self._cancelled:
                failures = Counter(o.status for o in outcomes)
                if failures[Status.FAILED] + failures[Status.LOST] < _TRIES:
                    return f"task {task} has failed after {len(outcomes)} attempts"
            is_skipped = any(parent not in succeeded for parent in self._parents[task])
            if result is None and task not in self._cancelled and not is_skipped:
                return f"task {task} has no result"
        return ""
