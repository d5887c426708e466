"""
The tasks of one instance: states, dependencies, retries, delays and priorities.

A run has one instance, a service has many. Each task takes some dozens of bytes in columns, and no
object; what few tasks have (failures, retries of their own, parents) takes nothing for the others.
Nothing here reads a clock, waits or sends.
"""

import heapq
import math
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from types import MappingProxyType

from bursar.engine.ready_tasks import ANYWHERE, ReadyTasks
from bursar.engine.shared_resources import ResourceNeeds
from bursar.engine.task_dependencies import TaskDependencies, TaskGroups
from bursar.engine.task_states import (
    ABSENT,
    CANCELLED,
    CLAIMED,
    DELAYED,
    FAILED,
    HELD,
    READY,
    SKIPPED,
    STATE_OF,
    SUCCEEDED,
    WAITING,
    EngineTaskState,
)
from bursar.model.campaign import Retry
from bursar.model.task import Status

MOST_TRIES = 2**32 - 1
"""Tries of a task, at most: what the column holds."""

NO_RETRY = Retry(attempts=1, backoff=0.0)


@dataclass(frozen=True, slots=True)
class RetryVerdict:
    """
    The decision after an attempt: the task's end, or another try.

    Parameters
    ----------
    state
        Final state of the task; None: the task is tried again.
    retry_at
        Time of the next try; None: at once, or never.
    """

    state: int | None = None
    retry_at: float | None = None

    @property
    def final(self) -> bool:
        """Whether the task has ended for good."""
        return self.state is not None


_SUCCESS = RetryVerdict(SUCCEEDED)


class DurationEstimate:
    """
    Estimates how long the tasks of an instance take, from those that have succeeded.

    Attributes
    ----------
    stretch
        Mean ratio of the seconds that tasks took to their estimates; 1 while unknown.
    mean
        Mean seconds of a task at speed 1; 0 while none has ended.
    """

    __slots__ = ("_ended", "_estimated", "_seconds", "_taken", "mean", "stretch")

    def __init__(self) -> None:
        self._estimated = 0.0  # seconds, of those with an estimate, at the speed they had
        self._taken = 0.0
        self._ended = 0
        self._seconds = 0.0  # at speed 1, of all
        self.stretch = 1.0
        self.mean = 0.0

    def learn(self, estimate: float, seconds: float, speed: float = 1.0) -> None:
        """Count an ended task: its estimate at speed 1, and its seconds at the given speed."""
        self._ended += 1
        self._seconds += seconds * speed
        self.mean = self._seconds / self._ended
        if math.inf > estimate > 0:
            self._estimated += estimate / speed
            self._taken += seconds
            self.stretch = self._taken / self._estimated

    def expect(self, estimate: float) -> float:
        """Return the seconds that a task should take at speed 1; infinite: it has no estimate."""
        return self.mean if estimate == math.inf else estimate * self.stretch


class InstanceTasks:
    """
    The tasks of an instance in columns, one entry for each task.

    Parameters
    ----------
    retry
        Rules for tries after failures.
    again_at
        Place to which tasks go that will run again, whatever place they were bound to;
        None: they stay bound to it.
    by_length
        Whether ready tasks are told apart by their estimates, which lets workers whose time is
        limited find those that fit.

    Attributes
    ----------
    states
        :class:`bursar.engine.task_states.EngineTaskState` of each task.
    processors, estimates
        Processors of each task, and its estimated seconds at speed 1; infinite: unknown.
    counts
        Number of tasks in each state.
    dependencies
        Which tasks follow which; to be stated before :meth:`start`.
    groups
        Of which tasks only so many may be under way at a time; None: of none.
    attempts
        Attempts that have ended or are numbered, by task; tasks without one are left out.
    limits
        Seconds after which each task is killed, infinite for none; None: no task has a limit.
    failures, losses
        Attempts that failed, and attempts lost with a worker, by task; tasks without one are left
        out.
    most_losses
        Number of times that each task may be lost with a worker; None: losses count as failures.
    spares
        How many more parents of a task may end without success, for the task to run all the same;
        tasks that need all of theirs are left out.
    barred
        Held or chained tasks with a parent that has ended without success.
    unchained
        Claimed tasks whose last parent has succeeded since somebody looked.
    doomed
        Cancelled tasks whose end a worker has yet to report.
    counted
        Serials of attempts that are counted and whose outcomes their workers may report again, by
        task; tasks without one are left out.
    restored
        Tasks with numbers below this one are from before the last restart.
    state_of_success
        State of a task that has succeeded, from the outcome on.
    """

    state_of_success = SUCCEEDED

    def __init__(
        self, retry: Retry = NO_RETRY, *, again_at: str | None = None, by_length: bool = False
    ) -> None:
        self._retry = retry
        # More than a column holds cannot be used up by anybody.
        self._usual_tries = min(retry.attempts, MOST_TRIES)
        self._again_at = again_at
        self.states = bytearray()
        self.processors: array[int] = array("I")
        self.estimates: array[float] = array("d")
        self.counts = [0] * len(EngineTaskState)
        self.ready_tasks = ReadyTasks(
            self.states, self.processors, self.estimates, by_length=by_length
        )
        self.durations = DurationEstimate()
        self.attempts: dict[int, int] = {}
        self.failures: dict[int, int] = {}
        self.losses: dict[int, int] = {}
        self.most_losses: bytearray | None = None
        self._tries: array[int] | None = None  # None: all tasks have as many as the rules say
        self.limits: array[float] | None = None  # None: no task has one
        self.dependencies = TaskDependencies()
        self.groups: TaskGroups | None = None
        self.spares: dict[int, int] = {}
        self.barred: set[int] = set()
        self.unchained: list[int] = []
        self.doomed: set[int] = set()
        self.counted: dict[int, tuple[int, ...]] = {}
        self.restored = 0
        self._due: dict[int, float] = {}  # when tasks that wait may start at the earliest
        self._delayed: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self.states)

    @property
    def ready(self) -> int:
        """Number of tasks that may start."""
        return self.counts[READY]

    @property
    def unfinished(self) -> int:
        """Number of tasks without a recorded result."""
        return sum(self.counts[HELD:SUCCEEDED])

    # Entering tasks.

    def grow(self, count: int) -> None:
        """Extend all columns to ``count`` tasks; the new ones are absent."""
        more = count - len(self.states)
        if more > 0:
            self.states.extend(bytes(more))
            self.processors.frombytes(bytes(self.processors.itemsize * more))
            self.estimates.frombytes(bytes(self.estimates.itemsize * more))
            self.ready_tasks.grow(more)
            if self._tries is not None:
                self._tries.extend([self._usual_tries] * more)
            if self.limits is not None:
                self.limits.extend([math.inf] * more)
            self.counts[ABSENT] += more

    def enter(
        self,
        tasks: Sequence[int],
        processors: Iterable[int],
        estimates: Iterable[float],
        places: Sequence[str] | None = None,
        memory: Mapping[int, int] = MappingProxyType({}),
        resources: Mapping[int, ResourceNeeds] = MappingProxyType({}),
    ) -> None:
        """
        Enter absent tasks in the state HELD; see :meth:`start`.

        Parameters
        ----------
        processors, estimates, places
            Processors of each task, its seconds at speed 1 (infinite: unknown), and the name of
            the lease to which it is bound; None: no task is bound to any.
        memory
            Bytes that tasks need, by task; tasks that state none are left out.
        resources
            Counted resources that tasks need, by task; tasks that need none are left out.
        """
        if isinstance(tasks, range) and tasks.step == 1:
            # Most submissions: slices take a tenth of the time of the loop.
            rows = slice(tasks.start, tasks.stop)
            self.processors[rows] = array("I", processors)
            self.estimates[rows] = array("d", estimates)
            self.states[rows] = bytes((HELD,)) * len(tasks)
        else:
            for task, width, estimate in zip(tasks, processors, estimates, strict=True):
                self.processors[task] = width
                self.estimates[task] = estimate
                self.states[task] = HELD
        self.ready_tasks.add(tasks, places or repeat(ANYWHERE, len(tasks)), memory, resources)
        self.counts[ABSENT] -= len(tasks)
        self.counts[HELD] += len(tasks)

    def set_tries(self, task: int, tries: int) -> None:
        """Give a task another number of tries than the rules say."""
        if self._tries is None:
            if tries == self._usual_tries:
                return
            self._tries = array("I", [self._usual_tries]) * len(self.states)
        # More than the column holds cannot be seen by anybody.
        self._tries[task] = min(tries, MOST_TRIES)

    def _tries_of(self, task: int) -> int:
        """Return the number of failures after which a task has failed for good."""
        return self._usual_tries if self._tries is None else self._tries[task]

    def set_limit(self, task: int, seconds: float) -> None:
        """Set the seconds after which a task is killed; infinite: it has no limit of its own."""
        if self.limits is None:
            if seconds == math.inf:
                return
            self.limits = array("d", [math.inf]) * len(self.states)
        self.limits[task] = seconds

    def limit(self, task: int) -> float:
        """Return the seconds after which a task is killed; infinite: it has no limit of its own."""
        return math.inf if self.limits is None else self.limits[task]

    def follow(self, task: int, parents: Collection[int], spare: int = 0) -> None:
        """
        State which tasks must succeed before a held task starts; some may have ended.

        Parameters
        ----------
        spare
            How many of the parents may end without success; the task waits for their end.
        """
        states = self.states
        lost = sum(states[parent] > SUCCEEDED for parent in parents)
        if spare:
            self.spares[task] = max(spare - lost, 0)
            parents = [p for p in parents if states[p] <= SUCCEEDED] if lost <= spare else parents
        self.dependencies.add(task, [p for p in parents if states[p] != SUCCEEDED])
        if lost > spare:
            self.barred.add(task)

    def start(self, tasks: Iterable[int]) -> list[int]:
        """
        Let held tasks start as soon as all parents of each have succeeded.

        Returns
        -------
        list of int
            Tasks with a parent that has ended without success: these are still held, and their
            end is for the caller to say.
        """
        dependencies, barred = self.dependencies, self.barred
        some_wait = dependencies.waiting
        stopped: list[int] = []
        ready: list[int] = []
        for task in tasks:
            if task in barred:
                barred.discard(task)
                stopped.append(task)
            elif some_wait and dependencies.waits(task):
                self.move(task, WAITING)
            else:
                ready.append(task)
        self.make_ready(*ready)
        return stopped

    # Moves.

    def move(self, task: int, state: int) -> None:
        """Change a task's state; a task becomes ready by :meth:`make_ready` only."""
        states, counts = self.states, self.counts
        before = states[task]
        # Counted with every move, as counts are asked for several times a second and tasks may be
        # a million.
        counts[before] -= 1
        counts[state] += 1
        states[task] = state
        if before == READY:
            self.ready_tasks.count_out((task,))
        if state >= SUCCEEDED > before and self.ready_tasks.bound:
            self.ready_tasks.ended(task)
        if self.groups is not None:
            self.make_ready(*self.groups.moved(task, before, state))

    def _move_all(self, tasks: Iterable[int], states: Iterable[int]) -> None:
        """Change the states of several tasks, as :meth:`move` does, without a call for each."""
        column, counts, ready = self.states, self.counts, self.ready_tasks
        for task, state in zip(tasks, states, strict=True):
            before = column[task]
            counts[before] -= 1
            counts[state] += 1
            column[task] = state
            if before == READY:
                ready.count_out((task,))
            if state >= SUCCEEDED > before and ready.bound:
                ready.ended(task)

    def make_ready(self, *tasks: int) -> None:
        """Queue tasks that may start now, and those of a group when it is their turn."""
        states, counts = self.states, self.counts
        if self.groups is not None and tasks:
            waiting = self.groups.without_turn(tasks)
            for task in waiting:
                self.move(task, WAITING)
            tasks = tuple(self.groups.in_turn(tasks, waiting))
        for task in tasks:
            counts[states[task]] -= 1
            states[task] = READY
        counts[READY] += len(tasks)
        self.ready_tasks.count_in(tasks)
        self.ready_tasks.push(tasks)

    def release(
        self, task: int, now: float = 0.0, delay: Callable[[int], float] | None = None
    ) -> bool:
        """
        Let the children of a task that succeeded start, as far as this parent goes; once.

        Parameters
        ----------
        delay
            Seconds until the data of this task have arrived for a child; None: no time.

        Returns
        -------
        bool
            Whether a task has become ready, or will at a known time.
        """
        found = False
        for child in self.dependencies.children(task):
            is_last = self.dependencies.satisfy(child)
            if self.states[child] == CLAIMED:  # chained: its worker has all that it needs
                if is_last:
                    self.unchained.append(child)
                continue
            due = now if delay is None else now + delay(child)
            if due > now:
                # The latest of all parents' data counts, whichever parent ends last.
                self._due[child] = due = max(due, self._due.get(child, due))
            if is_last and self.states[child] == WAITING:
                found = True
                self._wait_no_longer(child, now)
        return found

    def _wait_no_longer(self, task: int, now: float) -> None:
        """Make a waiting task ready, or have it become ready when its time has come."""
        due = self._due.pop(task, now)
        if due > now:
            self._make_ready_at(task, due)
        else:
            self.make_ready(task)

    def _skip_children(self, task: int) -> list[int]:
        """Skip all tasks that cannot start any more as a task ended without success."""
        skipped: list[int] = []
        # A stack of our own: a chain of tasks may be longer than Python recurses.
        stack = list(self.dependencies.children(task))
        while stack:
            child = stack.pop()
            if self.spares.get(child):
                self._spare_parent(child)
            # Reached over several parents a child is skipped once.
            elif self.states[child] == WAITING:
                self.move(child, SKIPPED)
                skipped.append(child)
                stack.extend(self.dependencies.children(child))
            elif self.states[child] in (HELD, CLAIMED):
                self.barred.add(child)
        return skipped

    def _spare_parent(self, task: int) -> None:
        """Count a parent that ended without success as one of those that the task can spare."""
        self.spares[task] -= 1
        if self.dependencies.satisfy(task) and self.states[task] == WAITING:
            due = self._due.pop(task, None)
            if due is None:
                self.make_ready(task)
            else:  # data of other parents may be on the way; the time may be over, too
                self._make_ready_at(task, due)

    def end(self, task: int, state: int) -> None:
        """End a task without success, and skip the tasks that follow from it."""
        self.move(task, state)
        self._skip_children(task)

    def judge(
        self, task: int, status: Status, now: float, *, counts: bool = True, hold: bool = False
    ) -> RetryVerdict:
        """
        Decide whether a task has ended with an attempt, and have it tried again if not.

        A task has ended when it succeeded, when somebody cancelled it, when it was lost
        ``most_losses`` times, or when it failed as often as it may be tried. Before that it is
        tried again: after a failure when the delay of the rules is over, else at once.

        Parameters
        ----------
        counts
            Whether the attempt uses up a try: not if it was taken from the task without a fault of
            the task. One that was stopped never does.
        hold
            Whether a task that is tried again waits for :meth:`recorded`. An engine that was killed
            before the attempt was durable would not know that there is another.
        """
        counts = counts and status is not Status.CANCELLED
        if status is Status.SUCCEEDED:
            self.doomed.discard(task)
            return _SUCCESS
        if task in self.doomed:
            self.doomed.discard(task)
            # One that failed by itself before it could be stopped has failed.
            has_failed = counts and status is not Status.LOST
            return RetryVerdict(STATE_OF[status] if has_failed else CANCELLED)
        wait = 0.0
        if counts and status is Status.LOST and self.most_losses is not None:
            self.losses[task] = losses = self.losses.get(task, 0) + 1
            if losses >= self.most_losses[task]:
                return RetryVerdict(FAILED)
        elif counts:
            self.failures[task] = failures = self.failures.get(task, 0) + 1
            tries, wait = self._rule_of(task, failures)
            if failures >= tries:
                return RetryVerdict(STATE_OF[status])
        elif self.most_losses is None and self.failures.get(task, 0) >= self._tries_of(task):
            # In a run: the last try failed while a copy ran, which has ended without success, too.
            return RetryVerdict(FAILED)
        self._send_back(task)
        if hold:
            self.dependencies.hold(task)
        retry_at = now + wait if wait > 0 else None
        self.requeue(task, retry_at)
        return RetryVerdict(retry_at=retry_at)

    def recorded(self, task: int, now: float) -> None:
        """Let a task be tried again whose last attempt, judged with ``hold``, is durable."""
        # The task may have been cancelled or skipped meanwhile.
        if self.dependencies.satisfy(task) and self.states[task] == WAITING:
            self._wait_no_longer(task, now)

    def may_repeat(self, task: int) -> bool:
        """Whether a task may begin again after an attempt that was lost while it ran."""
        most = self._tries_of(task) if self.most_losses is None else self.most_losses[task]
        return most > 1

    def _rule_of(self, task: int, failures: int) -> tuple[int, float]:
        """Return how often a task may be tried, and the seconds to wait after some failures."""
        return self._tries_of(task), self._retry.wait_before(failures + 1)

    def requeue(self, task: int, moment: float | None = None) -> None:
        """Let a claimed task start again, now or at a time, once it waits for nothing else."""
        if task in self.barred:
            self.barred.discard(task)
            self.end(task, SKIPPED)
        elif self.dependencies.waits(task):
            self.move(task, WAITING)
            if moment is not None:
                self._due[task] = max(moment, self._due.get(task, moment))
        elif moment is None:
            self.make_ready(task)
        else:
            self._make_ready_at(task, moment)

    def _send_back(self, task: int) -> None:
        """Bind a task that will run again to the place for such tasks, if there is one."""
        if self._again_at is not None:
            self.ready_tasks.bind(task, self._again_at)

    # Time.

    def _make_ready_at(self, task: int, moment: float) -> None:
        """Have a task become ready at a time; see :meth:`wake`."""
        self.move(task, DELAYED)
        heapq.heappush(self._delayed, (moment, task))

    def next_wake(self) -> float | None:
        """Return the time at which :meth:`wake` has something to do next; None for never."""
        # Cancelled tasks stay in the heap until they come up: removing one would mean a search.
        while self._delayed and self.states[self._delayed[0][1]] != DELAYED:
            heapq.heappop(self._delayed)
        return self._delayed[0][0] if self._delayed else None

    def wake(self, now: float) -> int:
        """Make delayed tasks ready whose time has come; return how many."""
        woken = 0
        while self._delayed and self._delayed[0][0] <= now:
            _, task = heapq.heappop(self._delayed)
            if self.states[task] == DELAYED:
                self.make_ready(task)
                woken += 1
        return woken

    # After a restart.

    def restore(
        self,
        succeeded: Collection[int],
        held: Collection[int] = (),
        confirm: Callable[[], None] | None = None,
        unjudged: Collection[int] = (),
    ) -> None:
        """
        End the tasks that succeeded or failed in an earlier life, before anything is claimed.

        Parameters
        ----------
        succeeded
            Tasks that succeeded; :attr:`failures` says which others failed for good.
        held
            Tasks that workers may still have.
        confirm
            Called when all these have ended: ends those that succeeded after others had failed.
        unjudged
            Tasks that have not failed although no try is left: each is tried once more.
        """
        self.restored = len(self.states)
        # Parents before children need not hold here: each end only counts down.
        for task in succeeded:
            self.move(task, SUCCEEDED)
            self.release(task)
        for task in unjudged:
            self.failures[task] = min(self.failures.get(task, 0), self._tries_of(task) - 1)
        # After the successes: a task may have failed in one life, and succeeded when its failures
        # were forgiven in the next.
        for task, failures in self.failures.items():
            if failures >= self._tries_of(task) and self.states[task] < SUCCEEDED:
                self.end(task, FAILED)
        if confirm is not None:
            confirm()
        for task in held:
            if self.states[task] == READY:
                self.move(task, HELD)
        self.ready_tasks.purge()
