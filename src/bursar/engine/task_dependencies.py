"""Which tasks of an instance follow which, and how much each waits for."""

from array import array
from collections.abc import Iterable, Iterator


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
