"""Which tasks of an instance follow which, how much each waits for, and which take turns."""

import heapq
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from bursar.engine.task_states import CLAIMED, HELD, WAITING


class TaskDependencies:
    """
    Edges from tasks to their children, and the number of parents that each task waits for.

    A task that runs again also waits until its last attempt is durable; see :meth:`hold`.

    Edges lie in linked lists, which grow with each submission: 8 bytes an edge, and 8 a task once
    one has parents.
    """

    __slots__ = ("_before", "_child", "_last", "_missing")

    def __init__(self) -> None:
        self._missing: array[int] = array("I")
        self._last: array[int] = array("I")  # the last edge of each task; 0: none
        self._before: array[int] = array("I", [0])
        self._child: array[int] = array("I", [0])

    def add(self, task: int, parents: Iterable[int]) -> None:
        """State which tasks must succeed before a task may start."""
        for parent in parents:
            self._grow(max(task, parent) + 1)
            self._before.append(self._last[parent])
            self._last[parent] = len(self._child)
            self._child.append(task)
            self._missing[task] += 1

    def hold(self, task: int) -> None:
        """Have a task wait for one thing more, until :meth:`satisfy` is called for it."""
        self._grow(task + 1)
        self._missing[task] += 1

    @property
    def waiting(self) -> bool:
        """Whether any task has ever had a parent."""
        return len(self._child) > 1

    def waits(self, task: int) -> bool:
        """Whether a task waits for some parent, or for the record of its last attempt."""
        return task < len(self._missing) and self._missing[task] > 0

    def missing(self, task: int) -> int:
        """Return how many parents, and records of its own, a task waits for."""
        return self._missing[task] if task < len(self._missing) else 0

    def children(self, task: int) -> Iterator[int]:
        """Yield the tasks that follow a task, the last added first."""
        edge = self._last[task] if task < len(self._last) else 0
        while edge:
            yield self._child[edge]
            edge = self._before[edge]

    def satisfy(self, task: int) -> bool:
        """Count one thing that a task waits for as done; True when it was the last."""
        # Counted and not kept as sets: each parent is released once, so a counter is enough.
        self._missing[task] -= 1
        return not self._missing[task]

    def _grow(self, count: int) -> None:
        more = count - len(self._last)
        if more > 0:
            self._last.frombytes(bytes(self._last.itemsize * more))
            self._missing.frombytes(bytes(self._missing.itemsize * more))


@dataclass(slots=True, eq=False)
class _TaskGroup:
    name: str
    members: int = 0
    under_way: set[int] = field(default_factory=set)  # ready, or at a worker
    unsettled: set[int] = field(default_factory=set)  # from before a restart, perhaps at a worker
    waiting: list[int] = field(default_factory=list)  # a heap: the smallest number first


class TaskGroups:
    """
    Groups of tasks of which only so many may be under way at a time.

    A task is under way from when it is ready until the end of its attempt. One that waits for its
    turn is not ready, so that it neither hides other tasks from workers nor has processors bought.

    Parameters
    ----------
    states
        States of the tasks, which the instance extends.
    dependencies
        What tasks wait for besides their turn.
    """

    __slots__ = ("_dependencies", "_groups", "_of", "_states")

    def __init__(self, states: bytearray, dependencies: TaskDependencies) -> None:
        self._states = states
        self._dependencies = dependencies
        self._of: dict[int, tuple[_TaskGroup, int]] = {}
        self._groups: dict[str, _TaskGroup] = {}

    def __contains__(self, task: int) -> bool:
        return task in self._of

    def add(self, task: int, name: str, most: int, *, is_restored: bool = False) -> None:
        """
        Put a task into a group.

        Parameters
        ----------
        most
            Tasks of the group that may be under way when this one is, itself included; at least 1.
        is_restored
            Whether a worker may have it since before a restart: none of the group becomes ready
            until that is known, by its first move.
        """
        group = self._groups.setdefault(name, _TaskGroup(name))
        self._of[task] = group, most
        group.members += 1
        if is_restored:
            group.unsettled.add(task)

    def forget(self, task: int) -> int:
        """Forget a task that has ended, and its group after the last; return the name's length."""
        if (found := self._of.pop(task, None)) is None:
            return 0
        group = found[0]
        group.members -= 1
        if not group.members:
            del self._groups[group.name]
        return len(group.name)

    def limits(self, tasks: Iterable[int]) -> dict[int, tuple[str, int]]:
        """Return name and limit of the group of each of some tasks; those of none are left out."""
        found = {task: self._of[task] for task in tasks if task in self._of}
        return {task: (group.name, most) for task, (group, most) in found.items()}

    def without_turn(self, tasks: Sequence[int]) -> list[int]:
        """Return which of some tasks that could start have to wait for their turn."""
        of = self._of
        return [task for task in tasks if task in of and task not in of[task][0].under_way]

    def in_turn(self, tasks: Sequence[int], waiting: Sequence[int]) -> list[int]:
        """
        Return which tasks start now; the others wait for their turn.

        Parameters
        ----------
        tasks
            Tasks that could start.
        waiting
            Those of them without their turn yet, in the state WAITING.
        """
        for task in waiting:
            heapq.heappush(self._of[task][0].waiting, task)
        late = set(waiting)
        found = [task for task in tasks if task not in late]
        for task in waiting:
            found += self._next_of(self._of[task][0])
        return found

    def moved(self, task: int, before: int, state: int) -> list[int]:
        """Take in that a task's state has changed, not to READY; return whose turn it is now."""
        if task not in self._of:
            return []
        group = self._of[task][0]
        if before == HELD:
            group.unsettled.discard(task)
        if state == CLAIMED:  # also from before a restart
            group.under_way.add(task)
        else:
            group.under_way.discard(task)
        return self._next_of(group)

    def _next_of(self, group: _TaskGroup) -> list[int]:
        found: list[int] = []
        while group.waiting and not group.unsettled:
            first = group.waiting[0]
            # What was cancelled while it waited is not searched for, but passed over here.
            if first in self._of and self._is_waiting(first) and first not in group.under_way:
                if len(group.under_way) >= self._of[first][1]:
                    break
                group.under_way.add(first)
                found.append(first)
            heapq.heappop(group.waiting)
        return found

    def _is_waiting(self, task: int) -> bool:
        return self._states[task] == WAITING and not self._dependencies.waits(task)
