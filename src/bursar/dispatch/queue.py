"""
The task queue as a pure state machine.

No clock, no input or output: the queue is told events and the present time, and returns
decisions. Most errors that a dispatcher can make would be made here, so the
property tests drive every interleaving through this module.

A task is *waiting* (for parents), *ready*, *delayed* (until its next try),
*claimed* by a worker, or at its end: *succeeded*, *failed*, *skipped* (a parent
failed), *cancelled*, or *refused* (there is no money for it). Each task takes
some dozens of bytes in arrays, and no object.
"""

import heapq
import itertools
import math
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from bursar.model.campaign import Retry
from bursar.model.money import Refusal
from bursar.model.provisioning import ProcessorDemand
from bursar.model.task import Outcome, Status, Task

BACKFILL_DEPTH = 128
"""Ready tasks examined, at most, behind one that does not fit."""

GUESS = 60.0
"""Seconds that a task without an estimate is thought to take before any has ended."""

_TOO_LONG = 16
"""Tasks of one bucket found too long for a worker before the rest of the bucket is passed over."""

_ANYWHERE = 0
_MOST_TRIES = 2**32 - 1  # what the array holds


class DispatchState(IntEnum):
    """State of a task in the queue."""

    WAITING = 0
    READY = 1
    DELAYED = 2
    CLAIMED = 3
    SUCCEEDED = 4
    FAILED = 5
    SKIPPED = 6
    CANCELLED = 7
    REFUSED = 8


@dataclass(frozen=True, slots=True)
class TaskClaim:
    """
    A task in the hands of a worker.

    Parameters
    ----------
    task, attempt
        Numbers of the task and of the attempt, from 1.
    seconds
        Seconds that the attempt may run; infinite for no limit.
    """

    task: int
    attempt: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """
    The queue's decision after an attempt: the task's end, or another try.

    Parameters
    ----------
    final
        Whether the task has ended for good.
    retry_at
        Time on the queue's clock of the next try; None: at once, or never.
    """

    final: bool
    retry_at: float | None = None


@dataclass(frozen=True, slots=True)
class UnplaceableTasks:
    """
    Ready tasks that no worker can take.

    Parameters
    ----------
    tasks
        Number of such tasks.
    processors
        Processors of the widest of them.
    longest
        Seconds that the longest of them should take at speed 1; 0 when nothing is known.
    """

    tasks: int = 0
    processors: int = 0
    longest: float = 0.0


@dataclass(slots=True)
class QueueWorker:
    """
    Processors and claimed tasks of one worker, as counted by the queue.

    Parameters
    ----------
    place
        Number of the worker's lease.
    processors
        Number of processors.
    claimed
        Estimated end of each task that the worker has claimed, infinite when
        unknown.
    used
        Processors that the claimed tasks hold, or will hold when they begin.
    work
        Processor-seconds that the claimed tasks should take by their estimates.
    unknown
        Processors of the claimed tasks without an estimate.
    """

    place: int
    processors: int
    claimed: dict[int, float] = field(default_factory=dict)
    used: int = 0
    work: float = 0.0
    unknown: int = 0


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """Number of tasks in each state; ``waiting`` counts all that have not started."""

    total: int
    waiting: int
    running: int
    succeeded: int
    failed: int
    skipped: int
    cancelled: int
    refused: int


@dataclass(slots=True, eq=False)
class _ReadyBucket:
    """
    Ready tasks of one place, one width and about one length.

    A claim skips buckets that are too wide for the worker or too long for the worker's time, so
    that any number of tasks that do not fit hides none that fits.

    Parameters
    ----------
    place
        Number of the lease whose processors run them.
    processors
        Processors that each task holds.
    shortest
        Seconds by estimate that each task takes at least; infinite when nothing is known.
    heap
        Keys of ready tasks, and stale keys of tasks that are not ready here any more.
    left
        Number of tasks, ready or not, that are not at an end.
    ready
        Number of ready tasks.
    work
        Sum of the estimates of the ready tasks, seconds.
    longest
        Upper limit of the estimates of the ready tasks, seconds.
    """

    place: int
    processors: int
    shortest: float
    heap: list[int] = field(default_factory=list)
    left: int = 0
    ready: int = 0
    work: float = 0.0
    longest: float = 0.0


class _DurationEstimate:
    """Estimates how long tasks take, from the durations of tasks that have ended."""

    def __init__(self) -> None:
        self._guessed = 0.0  # seconds, of those with an estimate, at the speed they had
        self._taken = 0.0
        self._ended = 0
        self._seconds = 0.0  # at speed 1, of all

    def learn(self, estimate: float, seconds: float, speed: float) -> None:
        """Count an ended task: its estimate at speed 1, and its seconds at the given speed."""
        self._ended += 1
        self._seconds += seconds * speed
        if 0 < estimate < math.inf:
            self._guessed += estimate / speed
            self._taken += seconds

    @property
    def stretch(self) -> float:
        """Mean ratio of the seconds that tasks took to their estimates; 1 while unknown."""
        return self._taken / self._guessed if self._guessed else 1.0

    @property
    def mean(self) -> float:
        """Mean seconds of a task at speed 1; 0 while none has ended."""
        return self._seconds / self._ended if self._ended else 0.0

    def expect(self, estimate: float) -> float:
        """Return the seconds that a task should take at speed 1."""
        return self.mean if math.isinf(estimate) else estimate * self.stretch


class TaskQueue:
    """
    The states, priorities and workers of all tasks of a run.

    Parameters
    ----------
    retry
        Rules for tries after failures.
    again_at
        Place to which tasks go that will run again, whatever place they were bound to;
        None: they stay bound to it.
    """

    def __init__(self, retry: Retry, again_at: str | None = None) -> None:
        self._retry = retry
        self._again_at = again_at
        self._places: dict[str, int] = {"": _ANYWHERE}
        # Columns and not objects: a campaign of a million tasks takes some dozens of bytes for
        # each.
        self._state = bytearray()
        self._attempts = array("I")
        self._failures = array("I")
        self._tries = array("I")
        self._processors = array("I")
        self._lane = array("I")
        self._priority = array("q")
        self._estimate = array("d")
        self._missing = array("I")
        self._child_start = array("I", [0])
        self._child = array("I")
        self._lanes: list[_ReadyBucket] = []
        self._lanes_at: list[list[_ReadyBucket]] = [[]]  # by place
        self._lane_numbers: dict[tuple[int, int, float], int] = {}
        self._ends: dict[int, tuple[float, float]] = {}  # of places: until when, and how fast
        self._insist = _DurationEstimate()
        self._sequences: dict[int, deque[int]] = {}  # of places that run in order, what is left
        self._had_turn: set[int] = set()  # tasks that were claimed from there
        self._due: dict[int, float] = {}  # when tasks that wait will have their data
        self._delayed: list[tuple[float, int]] = []
        self._unwanted: set[int] = set()  # cancelled while claimed
        self._workers: dict[str, QueueWorker] = {}
        self._by_state = [0] * len(DispatchState)
        self.draining = False

    # Tasks.

    def extend(
        self,
        tasks: Sequence[Task],
        parents: Sequence[Sequence[int]] | None = None,
        *,
        order: Sequence[int] | None = None,
        placed: Sequence[str] | None = None,
    ) -> range:
        """
        Add tasks to the queue.

        Parameters
        ----------
        parents
            Parents of each task, as numbers in the queue; only in the first call.
        order
            Priority of each, smaller first; None: as listed.
        placed
            Name of the lease whose processors run each; None: any.

        Returns
        -------
        range
            Numbers of the new tasks.
        """
        first = len(self._state)
        numbers = range(first, first + len(tasks))
        if parents is not None and first:
            raise ValueError("parents belong to the first tasks only")
        self._state.extend(bytes(len(tasks)))
        self._attempts.extend([0] * len(tasks))
        self._failures.extend([0] * len(tasks))
        default = self._retry.attempts
        self._tries.extend(
            # A campaign may ask for more retries than 32 bits count; nobody will see the
            # difference.
            default if t.retries is None else min(t.retries + 1, _MOST_TRIES)
            for t in tasks
        )
        self._processors.extend(t.processors for t in tasks)
        self._estimate.extend(math.inf if t.runtime is None else t.runtime for t in tasks)
        places = placed if placed is not None else [""] * len(tasks)
        for number, place in zip(numbers, places, strict=True):
            lane = self._lane_number(place, number)
            self._lanes[lane].left += 1
            self._lane.append(lane)
        self._priority.extend(order if order is not None else numbers)
        self._by_state[DispatchState.WAITING] += len(tasks)
        if parents is None:
            self._missing.extend([0] * len(tasks))
            self._child_start.extend([len(self._child)] * len(tasks))
        else:
            # Counted and not kept as sets: each parent is released once, so a counter is enough.
            self._missing.extend(map(len, parents))
            self._set_children(parents)
        for task in numbers:
            if not self._missing[task]:
                self._make_ready(task)
        return numbers

    def restore(self, attempts: Iterable[Outcome], *, retry_failed: bool = False) -> None:
        """
        Take in the attempts that earlier incarnations journalled, before anything is claimed.

        Parameters
        ----------
        attempts
            All of them, in any order.
        retry_failed
            Whether tasks that failed for good are tried again.
        """
        best: dict[int, Status] = {}
        for outcome in attempts:
            task = outcome.task
            # Numbers of attempts go on where they ended: an attempt is the journal's primary key.
            self._attempts[task] = max(self._attempts[task], outcome.attempt)
            if outcome.status is Status.SUCCEEDED:
                best[task] = outcome.status
            # A cancelled attempt was cut off by us: it counts for no failure, as in finish().
            elif outcome.status is not Status.CANCELLED and not retry_failed:
                self._failures[task] += 1
        # Parents before children need not hold here: each end only counts down.
        for task in best:
            self._move(task, DispatchState.SUCCEEDED)
            self.release(task)
        # After the successes: a task may have failed in one life, and succeeded when its failures
        # were forgiven in the next.
        for task, failures in enumerate(self._failures):
            if failures >= self._tries[task] and self._state[task] < DispatchState.SUCCEEDED:
                self._fail(task)
        for lane in self._lanes:
            # In bulk, since most keys of a run that is resumed may be stale: else the first claims
            # would pop them one by one.
            lane.heap[:] = [
                key for key in lane.heap if self._state[key & _MASK] == DispatchState.READY
            ]
            heapq.heapify(lane.heap)

    def state(self, task: int) -> DispatchState:
        """Return the state of a task."""
        return DispatchState(self._state[task])

    def is_at_end(self, task: int) -> bool:
        """Whether a task will not run any more."""
        return self._state[task] >= DispatchState.SUCCEEDED

    def cancel(self, task: int) -> str | None:
        """
        Cancel a task.

        Returns
        -------
        str or None
            The worker that has the task and must be told to stop it; None when the
            task has ended now, or had before.
        """
        state = self._state[task]
        if state == DispatchState.CLAIMED:
            # Its worker decides: it may succeed before the cancellation arrives, and a success
            # counts.
            self._unwanted.add(task)
            return next(name for name, w in self._workers.items() if task in w.claimed)
        if state < DispatchState.CLAIMED:
            self._move(task, DispatchState.CANCELLED)
            self._skip_children(task)
        return None

    def assign(
        self,
        placed: Mapping[int, str],
        order: Mapping[int, int],
        in_order: Collection[str] = (),
    ) -> None:
        """
        Give tasks that are not claimed another place and priority.

        Parameters
        ----------
        placed
            Task to the name of the lease whose processors run it.
        order
            Task to its priority, smaller first.
        in_order
            New places where no task starts before those that come before it there have
            started. Then none starts later than a schedule in that order has it, as long as
            none takes longer; tasks that start whenever there is room may do so at the
            expense of others.
        """
        sequences: dict[str, list[int]] = {place: [] for place in in_order}
        for task, place in placed.items():
            state = self._state[task]
            if state >= DispatchState.CLAIMED:
                continue
            if place in sequences:
                sequences[place].append(task)
            self._bind(task, place)
            # A new schedule gives it a new place in line, whatever it had in the former one.
            self._had_turn.discard(task)
            self._priority[task] = order[task]
            if state == DispatchState.READY and place not in sequences:
                self._push(task)
        for place, tasks in sequences.items():
            tasks.sort(key=lambda task: order[task])
            self._sequences[self._place_number(place)] = deque(tasks)

    def left(self, lease: str) -> int:
        """Return how many tasks bound to a lease are not at an end."""
        place = self._places.get(lease)
        return 0 if place is None else sum(lane.left for lane in self._lanes_at[place])

    def drain(self) -> None:
        """Let no more tasks be claimed, and do not try failed ones again."""
        self.draining = True

    # Workers.

    def join(self, worker: str, lease: str, processors: int) -> None:
        """Add a worker that has connected, with processors of a lease."""
        if worker in self._workers:
            raise ValueError(f"worker {worker} is there already")
        self._workers[worker] = QueueWorker(self._place_number(lease), processors)

    def lose(self, worker: str) -> list[tuple[int, int]]:
        """
        Return the claims of a worker that has disconnected.

        Returns
        -------
        list
            Task and attempt of each claim; the caller finishes each as lost, under
            the same worker's name, before :meth:`leave`.
        """
        return [(task, self._attempts[task]) for task in self._workers[worker].claimed]

    def leave(self, worker: str) -> None:
        """Remove a worker that has no claimed tasks."""
        if self._workers[worker].claimed:
            raise ValueError(f"worker {worker} still has tasks")
        del self._workers[worker]

    @property
    def workers(self) -> dict[str, QueueWorker]:
        """Connected workers, by name."""
        return self._workers

    def ends(self, lease: str, moment: float | None, speed: float = 1.0) -> None:
        """
        Set the time at which a lease's processors are taken away.

        From then on its workers get no task, of those that others may run too, that should
        not have ended by then: by its estimate and how much longer than that tasks took so
        far; without an estimate, by how long tasks took in the mean. Before any has ended
        only those with an estimate are held back.

        Parameters
        ----------
        moment
            Seconds on the clock of :meth:`claim`; None: never.
        speed
            Work per second, relative to what estimates hold for.
        """
        place = self._place_number(lease)
        self._ends[place] = (math.inf if moment is None else moment, speed)

    def claim(
        self,
        worker: str,
        room: int,
        now: float,
        admit: Callable[[int], float | Refusal],
    ) -> list[TaskClaim]:
        """
        Claim the best ready tasks that a worker can take.

        Parameters
        ----------
        room
            Processors that may be claimed on top of those in use. More than are
            free means prefetching.
        now
            Present time on the queue's clock, for estimates of when other tasks end.
        admit
            Called for each task before it is claimed; decides whether it may start.

        Returns
        -------
        list of Claim
            Best first. A task that does not fit holds back those behind it,
            but for such as cannot delay it (EASY backfilling). One that would
            not end before the worker's time is over holds back no other: it
            waits for another worker, see :meth:`ends`.
        """
        claims: list[TaskClaim] = []
        if self.draining:
            return claims
        who = self._workers[worker]
        # Such a lease has a plan to keep: backfilling could delay what the plan has first.
        if who.place in self._sequences:
            return self._claim_in_order(who, room, now, admit)
        time_left = self._time_left(who, now)
        # A merge of heaps: the best task of all lanes is always at lanes[0]. The number i decides
        # between equal keys, as buckets have no order.
        lanes = [(lane.heap[0], i, lane) for i, lane in enumerate(self._lanes_for(who, time_left))]
        heapq.heapify(lanes)
        not_here: list[tuple[_ReadyBucket, int]] = []
        put_back: list[tuple[list[int], int]] = []
        blocked = False
        shadow = -math.inf
        spare = 0
        try:
            # The limit keeps a claim short where thousands of tasks wait behind one that does not
            # fit.
            while room > 0 and lanes and len(put_back) < BACKFILL_DEPTH:
                _, i, lane = lanes[0]
                heap = lane.heap
                key = heapq.heappop(heap)
                if heap:
                    heapq.heapreplace(lanes, (heap[0], i, lane))
                else:
                    heapq.heappop(lanes)
                task = key & _MASK
                # Keys are not taken out of heaps, which would mean a search, but passed over here.
                if self._state[task] != DispatchState.READY or self._key_of(task) != (lane, key):
                    continue  # cancelled, or assigned elsewhere, while it was in the heap
                processors = self._processors[task]
                end = now + self._estimate[task]
                if time_left != math.inf and not self._is_in_time(who, task, time_left):
                    not_here.append((lane, key))  # for others; those behind it may fit
                    # Tasks of a bucket are about as long. When several were too long the others
                    # hardly fit, and looking at all of them would make each claim as slow as the
                    # bucket is long.
                    tried = sum(other is lane for other, _ in not_here)
                    if tried >= _TOO_LONG and heap:
                        lanes.remove((heap[0], i, lane))
                        heapq.heapify(lanes)
                    continue
                if processors > room or (blocked and end > shadow and processors > spare):
                    if not blocked:
                        # EASY: only the first task that waits is promised a start; a later one may
                        # overtake it if it ends before that, or runs on processors that are to
                        # spare then.
                        shadow, spare = self._shadow(who, processors, now)
                    blocked = True
                    put_back.append((heap, key))
                    continue
                # Before admit(), which may raise: the task must not get lost between heap and
                # claim.
                put_back.append((heap, key))
                answer = admit(task)
                if isinstance(answer, Refusal) and not answer.final:
                    # For now there is no money: whatever is cheaper may not start either, or it
                    # would use up what this one waits for.
                    break
                put_back.pop()
                if isinstance(answer, Refusal):
                    self._move(task, DispatchState.REFUSED)
                    continue
                # It goes on beyond the promised start, so it takes from the processors to spare
                # then.
                if blocked and end > shadow:
                    spare -= processors
                room -= processors
                claims.append(self._claim_one(who, task, now, answer))
        finally:
            # Also after an error in admit(): no task may vanish from the queue.
            for heap, key in put_back:
                heapq.heappush(heap, key)
            for lane, key in not_here:
                heapq.heappush(lane.heap, key)
        return claims

    def _claim_in_order(
        self, who: QueueWorker, room: int, now: float, admit: Callable[[int], float | Refusal]
    ) -> list[TaskClaim]:
        """Claim tasks in order of priority, up to the first that is not ready or does not fit."""
        claims: list[TaskClaim] = []
        sequence = self._sequences[who.place]
        while sequence:
            task = sequence[0]
            state, processors = self._state[task], self._processors[task]
            if state == DispatchState.READY:
                if processors > room:
                    break
                answer = admit(task)
                if isinstance(answer, Refusal):
                    if not answer.final:
                        break
                    self._move(task, DispatchState.REFUSED)
                else:
                    room -= processors
                    claims.append(self._claim_one(who, task, now, answer))
                    # Remembered for a retry: the task then goes back to the front.
                    self._had_turn.add(task)
            # Waiting or delayed: what comes after it waits with it, as the plan has them in this
            # order.
            elif state < DispatchState.CLAIMED:
                break
            sequence.popleft()
        return claims

    def _claim_one(self, who: QueueWorker, task: int, now: float, seconds: float) -> TaskClaim:
        # The number names this claim: reports of any other attempt are dropped in finish().
        self._attempts[task] += 1
        self._move(task, DispatchState.CLAIMED)
        # Sums by worker, so that what waits there is known without looking at each claim.
        estimate, processors = self._estimate[task], self._processors[task]
        who.claimed[task] = now + estimate
        who.used += processors
        if estimate == math.inf:
            who.unknown += processors
        else:
            who.work += estimate * processors
        return TaskClaim(task, self._attempts[task], seconds)

    def to_ask_back(
        self, now: float, takers: Iterable[str], donors: Iterable[str]
    ) -> list[tuple[str, int]]:
        """
        Choose workers that are to return tasks which wait there and could begin elsewhere at once.

        Only tasks of one processor wait at workers, since only these are claimed ahead of time.

        Parameters
        ----------
        now
            On the clock of :meth:`claim`.
        takers
            Workers that may get tasks; those without a free processor are passed over.
        donors
            Workers that may be asked.

        Returns
        -------
        list of (str, int)
            Workers, and how many tasks each is to return, the last claimed first: half of those
            that wait, and as many as it takes to reach one that a taker could begin. As many
            workers as are needed to occupy the takers, those with most waiting tasks first.
        """
        idle: dict[int, QueueWorker] = {}  # one of each place: the others there are as good
        wanted = 0
        for name in takers:
            who = self._workers[name]
            if who.used < who.processors:
                idle[who.place] = who
                wanted += who.processors - who.used
        if not idle or self.draining:
            return []
        waiting = [
            (self._workers[name].used - self._workers[name].processors, name) for name in donors
        ]
        chosen: list[tuple[str, int]] = []
        for count, name in sorted(waiting, reverse=True):
            if count <= 0 or wanted <= 0:
                break
            reach = self._reach(self._workers[name], count, idle, now)
            if reach:
                # Half, so that the donor keeps work for the time that the answer takes.
                asked = max(reach, (count + 1) // 2)
                chosen.append((name, asked))
                wanted -= asked
        return chosen

    def _reach(
        self, donor: QueueWorker, waiting: int, idle: Mapping[int, QueueWorker], now: float
    ) -> int:
        """
        Count a worker's waiting tasks, the last first, up to one that an idle worker may run.

        0 when there is none.
        """
        # Dictionaries keep the order of insertion: the last claimed are those that wait, and a
        # worker returns the last ones first.
        for reach, task in enumerate(itertools.islice(reversed(donor.claimed), waiting), 1):
            place = self._lanes[self._lane[task]].place
            if place != _ANYWHERE:
                if place in idle:
                    return reach
            elif any(
                who.place not in self._sequences
                and self._is_in_time(who, task, self._time_left(who, now))
                for who in idle.values()
            ):
                return reach
        return 0

    def give_back(self, worker: str, task: int, attempt: int) -> bool:
        """
        Take back a claimed task that was not started; the attempt does not count.

        Returns
        -------
        bool
            False when the worker did not have it.
        """
        if not self._release(worker, task, attempt):
            return False
        # The same number is given again, so that retries and journal see only what has begun.
        self._attempts[task] -= 1
        if task in self._unwanted:
            self._unwanted.discard(task)
            self._move(task, DispatchState.CANCELLED)
            self._skip_children(task)
        else:
            self._make_ready(task)
        return True

    def finish(
        self, worker: str, outcome: Outcome, now: float, *, hold: bool = False
    ) -> RetryDecision | None:
        """
        Record the end of an attempt.

        Parameters
        ----------
        hold
            A success lets nothing follow until :meth:`release`: what follows
            must not start before the success is durable.

        Returns
        -------
        Verdict or None
            None when the outcome does not count: another worker's, of an earlier
            attempt, or reported twice. The caller must then drop the outcome.
        """
        task = outcome.task
        if not self._release(worker, task, outcome.attempt):
            return None
        unwanted = task in self._unwanted
        self._unwanted.discard(task)
        # A success counts even of a task that was to be cancelled: its work is done and paid for.
        if outcome.status is Status.SUCCEEDED:
            place = self._workers[worker].place
            speed = self._ends[place][1] if place in self._ends else 1.0
            # Only of successes: a failure may come at once and says nothing of how long the task
            # takes.
            self._insist.learn(self._estimate[task], outcome.end - outcome.start, speed)
            self._move(task, DispatchState.SUCCEEDED)
            if not hold:
                self.release(task)
            return RetryDecision(final=True)
        if unwanted:
            self._move(task, DispatchState.CANCELLED)
            self._skip_children(task)
            return RetryDecision(final=True)
        if outcome.status is Status.CANCELLED:
            self._send_back(task)
            self._make_ready(task)
            return RetryDecision(final=False)
        self._failures[task] += 1
        if self._failures[task] >= self._tries[task]:
            self._fail(task)
            return RetryDecision(final=True)
        self._send_back(task)
        wait = self._retry.wait_before(self._failures[task] + 1)
        if wait <= 0:
            self._make_ready(task)
            return RetryDecision(final=False)
        self._move(task, DispatchState.DELAYED)
        heapq.heappush(self._delayed, (now + wait, task))
        return RetryDecision(final=False, retry_at=now + wait)

    def release(
        self, task: int, now: float = 0.0, delay: Callable[[int], float] | None = None
    ) -> None:
        """
        Let the children of a task that succeeded start, as far as this parent goes; once.

        Parameters
        ----------
        delay
            Seconds until the data of this task have arrived for a child; None: no time.
        """
        for child in self._children(task):
            self._missing[child] -= 1
            due = now if delay is None else now + delay(child)
            if due > now:
                # The latest of all parents' data counts, whichever parent ends last.
                self._due[child] = due = max(due, self._due.get(child, due))
            if not self._missing[child] and self._state[child] == DispatchState.WAITING:
                due = self._due.pop(child, now)
                if due > now:
                    self._move(child, DispatchState.DELAYED)
                    heapq.heappush(self._delayed, (due, child))
                else:
                    self._make_ready(child)

    # Time.

    def next_wake(self) -> float | None:
        """Return the time at which :meth:`wake` has something to do next; None for never."""
        return self._delayed[0][0] if self._delayed else None

    def wake(self, now: float) -> int:
        """Make delayed tasks ready whose time has come; return how many."""
        woken = 0
        while self._delayed and self._delayed[0][0] <= now:
            _, task = heapq.heappop(self._delayed)
            # Cancelled tasks stay in the heap until they come up: removing one would mean a search.
            if self._state[task] == DispatchState.DELAYED:
                self._make_ready(task)
                woken += 1
        return woken

    # Looking.

    @property
    def counts(self) -> TaskCounts:
        """Number of tasks in each state."""
        n = self._by_state
        return TaskCounts(
            total=len(self._state),
            waiting=n[DispatchState.WAITING] + n[DispatchState.READY] + n[DispatchState.DELAYED],
            running=n[DispatchState.CLAIMED],
            succeeded=n[DispatchState.SUCCEEDED],
            failed=n[DispatchState.FAILED],
            skipped=n[DispatchState.SKIPPED],
            cancelled=n[DispatchState.CANCELLED],
            refused=n[DispatchState.REFUSED],
        )

    def demand(self) -> ProcessorDemand:
        """Return the demand of ready tasks that are bound to no lease, and of tasks to come."""
        n = self._by_state
        # Tasks claimed ahead of time hold no processor yet.
        running = sum(min(w.used, w.processors) for w in self._workers.values())
        # A drained queue wants no more processors, however many tasks are left.
        if self.draining:
            return ProcessorDemand(running=running)
        lanes = [lane for lane in self._lanes_at[_ANYWHERE] if lane.ready]
        # Demand must be more than nothing before any task has ended, or no pool would ever begin.
        stretch, mean = self._insist.stretch, self._insist.mean or GUESS
        return ProcessorDemand(
            tasks=sum(lane.ready for lane in lanes),
            processors=sum(lane.ready * lane.processors for lane in lanes),
            widest=max((lane.processors for lane in lanes), default=0),
            work=sum(
                lane.processors
                * (lane.ready * mean if lane.shortest == math.inf else lane.work * stretch)
                for lane in lanes
            ),
            longest=max(
                (mean if lane.shortest == math.inf else lane.longest * stretch for lane in lanes),
                default=0.0,
            ),
            running=running,
            later=n[DispatchState.WAITING] + n[DispatchState.DELAYED],
        )

    def misfits(self, now: float, workers: Iterable[str]) -> UnplaceableTasks:
        """
        Count the ready tasks that none of the given workers could take if all were idle.

        Tasks about as long as the time of a worker all count as soon as one of them does
        not fit.
        """
        if self.draining:
            return UnplaceableTasks()
        room: dict[int, float] = {}
        # For each width only the worker with most time left matters.
        for name in workers:
            who = self._workers[name]
            room[who.processors] = max(
                room.get(who.processors, -math.inf), self._time_left(who, now)
            )
        lanes = [
            lane
            for lane in self._lanes_at[_ANYWHERE]
            if lane.ready
            and self._longest_of(lane)
            > max((room[p] for p in room if p >= lane.processors), default=-math.inf)
        ]
        return UnplaceableTasks(
            tasks=sum(lane.ready for lane in lanes),
            processors=max((lane.processors for lane in lanes), default=0),
            longest=max(map(self._longest_of, lanes), default=0.0),
        )

    @property
    def ready(self) -> int:
        """Number of tasks that could start now."""
        return self._by_state[DispatchState.READY]

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing more will start unless tasks are added."""
        n = self._by_state
        if n[DispatchState.CLAIMED]:
            return False
        return self.draining or not (n[DispatchState.READY] or n[DispatchState.DELAYED])

    # Inside.

    def _place_number(self, name: str) -> int:
        number = self._places.get(name)
        if number is None:
            number = self._places[name] = len(self._places)
            self._lanes_at.append([])
        return number

    def _bind(self, task: int, place: str) -> None:
        """Move a task to another place; the key in the old bucket is stale from now on."""
        ready = self._state[task] == DispatchState.READY
        lane = self._lanes[self._lane[task]]
        lane.left -= 1
        if ready:
            # The old heap keeps the key; claim() finds it stale, as its bucket is not the task's
            # any more.
            self._count_out(lane, task)
        self._lane[task] = self._lane_number(place, task)
        lane = self._lanes[self._lane[task]]
        lane.left += 1
        if ready:
            self._count_in(lane, task)

    def _count_in(self, lane: _ReadyBucket, task: int) -> None:
        lane.ready += 1
        estimate = self._estimate[task]
        if estimate != math.inf:
            lane.work += estimate
            if estimate > lane.longest:
                lane.longest = estimate

    def _count_out(self, lane: _ReadyBucket, task: int) -> None:
        lane.ready -= 1
        if not lane.ready:
            lane.work = lane.longest = 0.0  # nothing is left of what rounding made
        elif lane.shortest != math.inf:
            lane.work -= self._estimate[task]

    def _lane_number(self, place: str, task: int) -> int:
        key = (
            self._place_number(place),
            self._processors[task],
            _shortest_like(self._estimate[task]),
        )
        number = self._lane_numbers.get(key)
        if number is None:
            number = self._lane_numbers[key] = len(self._lanes)
            lane = _ReadyBucket(*key)
            self._lanes.append(lane)
            self._lanes_at[lane.place].append(lane)
        return number

    def _key_of(self, task: int) -> tuple[_ReadyBucket, int]:
        """Return the bucket of a ready task, and the task's key there."""
        # One integer of priority and number compares faster than a tuple, and takes less memory.
        return self._lanes[self._lane[task]], self._priority[task] << _BITS | task

    def _lanes_for(self, worker: QueueWorker, time_left: float = math.inf) -> list[_ReadyBucket]:
        """Return the buckets with ready tasks that a worker could run when idle."""
        # Skipped as a whole: in one heap for all, 128 tasks too wide for a worker hid every
        # narrower one behind them.
        lanes = [
            lane
            for lane in self._lanes_at[_ANYWHERE]
            if lane.heap
            and lane.processors <= worker.processors
            and self._insist.expect(lane.shortest) <= time_left
        ]
        if worker.place != _ANYWHERE:
            lanes += [
                lane
                for lane in self._lanes_at[worker.place]
                if lane.heap and lane.processors <= worker.processors
            ]
        return lanes

    def _longest_of(self, lane: _ReadyBucket) -> float:
        """Return seconds that the longest ready task of a bucket should take at speed 1."""
        return self._insist.expect(math.inf if lane.shortest == math.inf else lane.longest)

    def _time_left(self, who: QueueWorker, now: float) -> float:
        """Return seconds of work at speed 1 that a processor of a worker can do until the end."""
        if who.place not in self._ends:
            return math.inf
        until, speed = self._ends[who.place]
        return (until - now) * speed

    def _is_in_time(self, who: QueueWorker, task: int, time_left: float) -> bool:
        """Whether a task should end before a worker's lease; always for tasks bound to a lease."""
        if self._lanes[self._lane[task]].place != _ANYWHERE:
            return True
        expect = self._insist.expect
        seconds = expect(self._estimate[task])
        if who.used + self._processors[task] > who.processors:
            # It will wait there until what was claimed before makes room.
            ahead = who.work * self._insist.stretch + who.unknown * expect(math.inf)
            seconds += ahead / who.processors
        return seconds <= time_left

    def _shadow(self, who: QueueWorker, processors: int, now: float) -> tuple[float, int]:
        """
        Return when a task that does not fit now could start, and the processors to spare then.

        Without estimates that time is unknown: then nothing overtakes the task.
        """
        free = who.processors - who.used
        shadow = -math.inf
        # All tasks that end at the same moment make room together: processors to spare are counted
        # when the last of them has ended.
        for end, width in sorted((end, self._processors[t]) for t, end in who.claimed.items()):
            if math.isinf(end) or (free >= processors and end > shadow):
                break
            free += width
            shadow = end
        # Some end is unknown, and without it there is no room: any task that overtakes could delay
        # the start.
        if free < processors:
            return -math.inf, 0
        return max(shadow, now), free - processors

    def _set_children(self, parents: Sequence[Sequence[int]]) -> None:
        # Compressed sparse rows, by a counting sort: children of a task lie side by side in one
        # array, 4 bytes for each edge.
        count = array("I", [0]) * (len(parents) + 1)
        for row in parents:
            for parent in row:
                count[parent + 1] += 1
        for i in range(1, len(count)):
            count[i] += count[i - 1]
        fill = array("I", count)
        child = array("I", [0]) * count[-1]
        for task, row in enumerate(parents):
            for parent in row:
                child[fill[parent]] = task
                fill[parent] += 1
        self._child_start, self._child = count, child

    def _children(self, task: int) -> "array[int]":
        return self._child[self._child_start[task] : self._child_start[task + 1]]

    def _move(self, task: int, state: DispatchState) -> None:
        before = self._state[task]
        # Kept with every move, as counts are asked for several times a second and tasks may be a
        # million.
        self._by_state[before] -= 1
        self._by_state[state] += 1
        if before == DispatchState.READY:
            self._count_out(self._lanes[self._lane[task]], task)
        elif state == DispatchState.READY:
            self._count_in(self._lanes[self._lane[task]], task)
        if state >= DispatchState.SUCCEEDED:
            self._lanes[self._lane[task]].left -= 1
        self._state[task] = state

    def _make_ready(self, task: int) -> None:
        self._move(task, DispatchState.READY)
        self._push(task)

    def _send_back(self, task: int) -> None:
        if self._again_at is not None:
            self._bind(task, self._again_at)

    def _push(self, task: int) -> None:
        sequence = self._sequences.get(self._lanes[self._lane[task]].place)
        if sequence is not None:
            if task in self._had_turn:
                self._had_turn.discard(task)
                # It had its turn before those that wait now.
                sequence.appendleft(task)
            return
        lane, key = self._key_of(task)
        heapq.heappush(lane.heap, key)

    def _release(self, worker: str, task: int, attempt: int) -> bool:
        who = self._workers.get(worker)
        # A report may come late, twice, or from a worker that was taken to be gone: only who has
        # the very attempt may end it.
        if who is None or task not in who.claimed or self._attempts[task] != attempt:
            return False
        del who.claimed[task]
        estimate, processors = self._estimate[task], self._processors[task]
        who.used -= processors
        if estimate == math.inf:
            who.unknown -= processors
        elif who.claimed:
            who.work -= estimate * processors
        else:
            who.work = 0.0  # nothing is left of what rounding made
        return True

    def _fail(self, task: int) -> None:
        self._move(task, DispatchState.FAILED)
        self._skip_children(task)

    def _skip_children(self, task: int) -> None:
        # A stack of our own: a chain of tasks may be longer than Python recurses.
        stack = list(self._children(task))
        while stack:
            child = stack.pop()
            # Reached over several parents a child is skipped once.
            if self._state[child] == DispatchState.WAITING:
                self._move(child, DispatchState.SKIPPED)
                stack.extend(self._children(child))


_BITS = 32
_MASK = (1 << _BITS) - 1


def _shortest_like(seconds: float) -> float:
    """Round seconds down to an eighth of the step to the next power of 2: the bucket's shortest."""
    if seconds == 0 or seconds == math.inf:
        return seconds
    mantissa, exponent = math.frexp(seconds)
    return math.ldexp(math.floor(16 * mantissa) / 16, exponent)
