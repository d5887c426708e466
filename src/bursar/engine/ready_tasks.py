"""
The ready tasks of an instance, in buckets.

A bucket holds tasks of one place, one width, one need of memory and, where workers' time is
limited, about one length.
A worker skips buckets that are too wide for the worker or too long for the worker's time, so that
any number of tasks that do not fit hides none that fits: in one heap for all, 128 tasks too wide
for a worker hid every narrower one behind them.
"""

import heapq
import math
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from bursar.engine.shared_resources import ResourceNeeds
from bursar.engine.task_states import CLAIMED, READY

BITS = 32
"""Bits of a task's number within the instance; the bits above hold a priority, or the instance."""

MASK = (1 << BITS) - 1

ANYWHERE = ""
"""Place of tasks that the workers of every lease may run."""


@dataclass(slots=True, eq=False)
class ReadyBucket:
    """
    Ready tasks of one place, one width, one need of memory and resources, and about one length.

    Parameters
    ----------
    place
        Name of the lease whose processors run them.
    processors
        Processors that each task holds.
    shortest
        Seconds by estimate that each task takes at least; infinite when none has an estimate.
    memory
        Bytes that each task needs; 0: not stated.
    resources
        Counted resources of the site that each task holds: pairs of a name and a number.
    heap
        Keys of ready tasks, and stale keys of tasks that are not ready here any more.
    ready, unknown
        Number of ready tasks, and of those without an estimate.
    work
        Sum of the estimates of the ready tasks, seconds.
    longest
        Upper limit of the estimates of the ready tasks, seconds.
    """

    place: str
    processors: int
    shortest: float
    memory: int = 0
    resources: ResourceNeeds = ()
    heap: list[int] = field(default_factory=list)
    ready: int = 0
    unknown: int = 0
    work: float = 0.0
    longest: float = 0.0

    @property
    def is_choosy(self) -> bool:
        """Whether a free processor alone does not do for its tasks."""
        return self.processors > 1 or self.memory > 0 or bool(self.resources)


class ReadyTasks:
    """
    Buckets of ready tasks, and the order in which the tasks of a bucket start.

    Parameters
    ----------
    states, processors, estimates
        Columns of the instance's tasks; the same objects, which the instance extends.
    by_length
        Whether tasks of different lengths lie in different buckets.

    Attributes
    ----------
    wide
        Number of ready tasks that need several processors, or state their memory or resources.
    states_memory, states_resources
        Whether any task has stated the memory, or the resources, that it needs.
    has_stale_keys
        Whether a ready task may have keys in other buckets, or with other priorities.
    bound
        Number of tasks that are bound to a place and not at an end, by place.
    sequences
        Tasks that are left, by place, where tasks start in a given order only.
    """

    def __init__(
        self,
        states: bytearray,
        processors: "array[int]",
        estimates: "array[float]",
        *,
        by_length: bool,
    ) -> None:
        self._states = states
        self._processors = processors
        self._estimates = estimates
        self._by_length = by_length
        self._bucket = array("H")
        self._priority: array[int] | None = None  # None: tasks start in order of their numbers
        self.has_stale_keys = False
        self.states_memory = self.states_resources = False
        self._numbers: dict[tuple[str, int, float, int, ResourceNeeds], int] = {}
        self._plain: dict[int, int] = {}  # by width, of tasks bound to no place, if not by length
        self.buckets: list[ReadyBucket] = []
        self._at: dict[str, list[ReadyBucket]] = {ANYWHERE: []}
        self.wide = 0
        self.bound: dict[str, int] = {}
        self.sequences: dict[str, deque[int]] = {}
        self._had_turn: set[int] = set()  # tasks that were claimed from a sequence

    def grow(self, count: int) -> None:
        """Extend the columns for so many more tasks, which lie in no bucket yet."""
        self._bucket.frombytes(bytes(self._bucket.itemsize * count))
        if self._priority is not None:
            self._priority.extend(range(len(self._priority), len(self._priority) + count))

    def add(
        self,
        tasks: Iterable[int],
        places: Iterable[str],
        memory: Mapping[int, int] = MappingProxyType({}),
        resources: Mapping[int, ResourceNeeds] = MappingProxyType({}),
    ) -> None:
        """Put tasks that are not ready yet into the buckets of their places and their needs."""
        processors, plain, bound = self._processors, self._plain, self.bound
        for task, place in zip(tasks, places, strict=True):
            number = None
            if place != ANYWHERE:
                bound[place] = bound.get(place, 0) + 1
            elif task not in memory and task not in resources:
                number = plain.get(processors[task])
            if number is None:
                number = self._number_of(place, task, memory.get(task, 0), resources.get(task, ()))
            # Looked up each time: the column is replaced when numbers grow beyond two bytes.
            self._bucket[task] = number

    def set_order(self, order: Iterable[tuple[int, int]]) -> None:
        """Give tasks another priority each, smaller first; ready ones are to be bound anew."""
        self.has_stale_keys = True
        priority = self._priority
        if priority is None:
            priority = self._priority = array("q", range(len(self._states)))
            # Keys are bare numbers until there are priorities.
            for bucket in self.buckets:
                bucket.heap[:] = [self.key_of(key) for key in bucket.heap]
        for task, rank in order:
            priority[task] = rank

    def bind(self, task: int, place: str) -> None:
        """Move a task to another place; the key in the old bucket is stale from now on."""
        self.has_stale_keys = True
        ready = self._states[task] == READY
        self.ended(task)
        if ready:
            # The old heap keeps the key: taking it out would mean a search. A walk finds it stale,
            # as its bucket is not the task's any more.
            self.count_out((task,))
        bucket = self.bucket_of(task)
        self.add(
            (task,),
            (place,),
            {task: bucket.memory} if bucket.memory else {},
            {task: bucket.resources} if bucket.resources else {},
        )
        if ready:
            self.count_in((task,))

    def assign(
        self, placed: Mapping[int, str], order: Mapping[int, int], in_order: Iterable[str]
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
        self.set_order((task, order[task]) for task in placed if self._states[task] < CLAIMED)
        sequences: dict[str, list[int]] = {place: [] for place in in_order}
        for task, place in placed.items():
            if self._states[task] >= CLAIMED:
                continue
            if place in sequences:
                sequences[place].append(task)
            self.bind(task, place)
            # A new schedule gives it a new place in line, whatever it had in the former one.
            self._had_turn.discard(task)
            if self._states[task] == READY and place not in sequences:
                self.push((task,))
        for place, tasks in sequences.items():
            self.sequences[place] = deque(sorted(tasks, key=lambda task: order[task]))

    def count_in(self, tasks: Iterable[int]) -> None:
        """Count tasks that have become ready."""
        buckets, numbers, estimates = self.buckets, self._bucket, self._estimates
        for task in tasks:
            bucket = buckets[numbers[task]]
            bucket.ready += 1
            if bucket.is_choosy:
                self.wide += 1
            estimate = estimates[task]
            if estimate == math.inf:
                bucket.unknown += 1
            else:
                bucket.work += estimate
                if estimate > bucket.longest:
                    bucket.longest = estimate

    def count_out(self, tasks: Iterable[int]) -> None:
        """Count tasks that are not ready any more."""
        buckets, numbers, estimates = self.buckets, self._bucket, self._estimates
        for task in tasks:
            bucket = buckets[numbers[task]]
            bucket.ready -= 1
            if bucket.is_choosy:
                self.wide -= 1
            estimate = estimates[task]
            if estimate == math.inf:
                bucket.unknown -= 1
            else:
                bucket.work -= estimate
            if not bucket.ready:
                # With the last ready task goes what is stale, and what rounding made.
                bucket.heap.clear()
                bucket.work = bucket.longest = 0.0

    def push(self, tasks: Iterable[int]) -> None:
        """Queue ready tasks; one that had its turn in a sequence is first there again."""
        buckets, numbers, sequences = self.buckets, self._bucket, self.sequences
        for task in tasks:
            bucket = buckets[numbers[task]]
            if sequences and (sequence := sequences.get(bucket.place)) is not None:
                if task in self._had_turn:
                    self._had_turn.discard(task)
                    # It had its turn before those that wait now.
                    sequence.appendleft(task)
            else:
                heapq.heappush(bucket.heap, task if self._priority is None else self.key_of(task))

    def ended(self, task: int) -> None:
        """Count a task that has come to its end, if the task is bound to a place."""
        place = self.bucket_of(task).place
        if place != ANYWHERE:
            self.bound[place] -= 1

    def take_turn(self, place: str) -> None:
        """Take the first task out of a sequence, in which a retry goes back to the front."""
        self._had_turn.add(self.sequences[place].popleft())

    def left(self, place: str) -> int:
        """Return how many tasks bound to a place are not at an end."""
        return self.bound.get(place, 0)

    def bucket_of(self, task: int) -> ReadyBucket:
        """Return the bucket of a task."""
        return self.buckets[self._bucket[task]]

    def key_of(self, task: int) -> int:
        """Return the key of a task in the heap of its bucket."""
        # One integer of priority and number compares faster than a tuple, and takes less memory.
        return task if self._priority is None else self._priority[task] << BITS | task

    def at(self, place: str) -> list[ReadyBucket]:
        """Return the buckets of a place."""
        return self._at.get(place, [])

    def purge(self) -> None:
        """Remove stale keys in bulk, since popping them one by one would slow the first claims."""
        states = self._states
        for bucket in self.buckets:
            bucket.heap[:] = [key for key in bucket.heap if states[key & MASK] == READY]
            heapq.heapify(bucket.heap)

    def _number_of(self, place: str, task: int, memory: int, resources: ResourceNeeds) -> int:
        length = _shortest_like(self._estimates[task]) if self._by_length else 0.0
        key = (place, self._processors[task], length, memory, resources)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.buckets)
            if number == 1 << 16:
                # Two bytes a task suffice for all that is real; some millions of widths and places
                # need four.
                self._bucket = array("I", self._bucket)
            bucket = ReadyBucket(*key)
            self.states_memory |= memory > 0
            self.states_resources |= bool(resources)
            self.buckets.append(bucket)
            self._at.setdefault(place, []).append(bucket)
            if not self._by_length and place == ANYWHERE and not memory and not resources:
                self._plain[bucket.processors] = number
        return number


class ReadyWalk:
    """
    Goes through the ready tasks of some buckets, the best first.

    Each task that is yielded leaves its bucket; those that are not claimed come back by
    :meth:`keep` and :meth:`close`.

    Parameters
    ----------
    ready
        The buckets' owner.
    states
        States of the tasks.
    buckets
        Buckets to go through.

    Attributes
    ----------
    kept
        Number of tasks that are to come back.
    """

    __slots__ = ("_bucket", "_buckets", "_key", "_lanes", "_put_back", "_ready", "_states", "kept")

    def __init__(
        self, ready: ReadyTasks, states: bytearray, buckets: Iterable[ReadyBucket]
    ) -> None:
        self._ready = ready
        self._states = states
        # A merge of heaps: the best task of all is always at lanes[0]. The number i decides
        # between equal keys, as buckets have no order.
        self._lanes = [(b.heap[0], i, b) for i, b in enumerate(buckets) if b.heap]
        heapq.heapify(self._lanes)
        self._put_back: list[tuple[ReadyBucket, int]] = []
        self._bucket: ReadyBucket | None = None
        self._key = 0
        self.kept = 0

    def __iter__(self) -> Iterator[int]:
        """Yield the tasks, the best first."""
        lanes, states, ready = self._lanes, self._states, self._ready
        while lanes:
            _, i, bucket = lanes[0]
            heap = bucket.heap
            if not heap:  # emptied since, with the bucket's last ready task
                heapq.heappop(lanes)
                continue
            key = heapq.heappop(heap)
            if not heap:
                heapq.heappop(lanes)
            elif len(lanes) > 1:  # a lane alone is the first one, whatever its key
                heapq.heapreplace(lanes, (heap[0], i, bucket))
            task = key & MASK
            # Keys are not taken out of heaps, which would mean a search, but passed over here.
            if states[task] != READY or (
                ready.has_stale_keys
                and (ready.bucket_of(task) is not bucket or ready.key_of(task) != key)
            ):
                continue
            self._bucket, self._key = bucket, key
            yield task

    @property
    def bucket(self) -> ReadyBucket:
        """Bucket of the task that was yielded last."""
        assert self._bucket is not None
        return self._bucket

    def keep(self) -> None:
        """Have the task that was yielded last come back when the walk is closed."""
        assert self._bucket is not None
        self._put_back.append((self._bucket, self._key))
        self.kept += 1

    def unkeep(self) -> None:
        """Have the task that was kept last not come back: it was claimed, or refused for good."""
        self._put_back.pop()
        self.kept -= 1

    def drop(self) -> None:
        """Yield no more tasks of the bucket of the task that was yielded last."""
        # In place: the iteration goes on with the same list.
        self._lanes[:] = [lane for lane in self._lanes if lane[2] is not self._bucket]
        heapq.heapify(self._lanes)

    def close(self) -> None:
        """Put the kept tasks back."""
        for bucket, key in self._put_back:
            heapq.heappush(bucket.heap, key)
        self._put_back.clear()


def _shortest_like(seconds: float) -> float:
    """Round seconds down to an eighth of the step to the next power of 2: the bucket's shortest."""
    if seconds == 0 or seconds == math.inf:
        return seconds
    mantissa, exponent = math.frexp(seconds)
    return math.ldexp(math.floor(16 * mantissa) / 16, exponent)
