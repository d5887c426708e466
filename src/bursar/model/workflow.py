"""Tasks and the order their data imposes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from bursar.model.errors import InputError, spelling_hint
from bursar.model.task import File, Task


@dataclass(frozen=True, slots=True)
class Workflow:
    """
    Tasks with their dependencies; a bag of tasks is one without any.

    Parameters
    ----------
    tasks
        At least one. Ids unique; each file made by one task at most.

    Attributes
    ----------
    parents
        Indices of the tasks that must succeed before each task, those that register its
        data included, ascending,
        one tuple per task, in the order of ``tasks``.
    order
        Task indices such that parents come before children; among those free
        to go, the lowest index first.

    Raises
    ------
    InputError
        When there is no task, an id or an output is doubled, a parent is
        unknown, or the dependencies form a cycle (named task by task).
    """

    tasks: tuple[Task, ...]
    parents: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)
    order: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.tasks:
            raise InputError("a workflow needs at least one task")
        index = _index_by_id(self.tasks)
        makers, registrars = _makers(self.tasks), _registrars(self.tasks)
        parents = tuple(
            _parents_of(i, t, index, makers, registrars) for i, t in enumerate(self.tasks)
        )
        object.__setattr__(self, "parents", parents)
        object.__setattr__(self, "order", _topological_order(self.tasks, parents))

    @property
    def is_bag(self) -> bool:
        """Whether the tasks are independent and of one processor each."""
        return not any(self.parents) and all(task.processors == 1 for task in self.tasks)

    @property
    def children(self) -> list[list[int]]:
        """Indices of the tasks that wait for each task, ascending."""
        children: list[list[int]] = [[] for _ in self.tasks]
        for child, parents in enumerate(self.parents):
            for parent in parents:
                children[parent].append(child)
        return children

    @property
    def initial_files(self) -> tuple[File, ...]:
        """Files that some task reads and none makes, in order of first use."""
        made = {f.name for t in self.tasks for f in t.outputs}
        found: dict[str, File] = {}
        for task in self.tasks:
            for file in task.inputs:
                if file.name not in made:
                    found.setdefault(file.name, file)
        return tuple(found.values())


def _index_by_id(tasks: Sequence[Task]) -> dict[str, int]:
    """Return the index of each task by its id; refuse an id that two tasks have."""
    index: dict[str, int] = {}
    for i, task in enumerate(tasks):
        if task.id in index:
            raise InputError(f'duplicate task id "{task.id}"', where=f"tasks.{task.id}")
        index[task.id] = i
    return index


def _makers(tasks: Sequence[Task]) -> dict[str, int]:
    makers: dict[str, int] = {}
    for i, task in enumerate(tasks):
        for file in task.outputs:
            other = makers.setdefault(file.name, i)
            if other != i:
                raise InputError(
                    f'"{file.name}" is already made by task "{tasks[other].id}"',
                    where=f"tasks.{task.id}.outputs",
                )
    return makers


def _registrars(tasks: Sequence[Task]) -> dict[str, int]:
    """Map each logical file to the task that registers the file."""
    registrars: dict[str, int] = {}
    for i, task in enumerate(tasks):
        for name in task.registers.values():
            other = registrars.setdefault(name, i)
            if other != i:
                raise InputError(
                    f'"{name}" is already registered by task "{tasks[other].id}"',
                    where=f"tasks.{task.id}.register",
                )
    return registrars


def _parents_of(
    i: int,
    task: Task,
    index: dict[str, int],
    makers: dict[str, int],
    registrars: dict[str, int],
) -> tuple[int, ...]:
    found: set[int] = set()
    for name in task.after:
        if name not in index:
            raise InputError(
                f'unknown parent "{name}"',
                where=f"tasks.{task.id}.after",
                hint=spelling_hint(name, index),
            )
        found.add(index[name])
    for file in task.inputs:
        maker = makers.get(file.name)
        # A recorded task may list a file it updates as both input and output.
        if maker is not None and maker != i:
            found.add(maker)
    for name in task.data:
        registrar = registrars.get(name)
        if registrar is not None:
            found.add(registrar)
    return tuple(sorted(found))


def _topological_order(
    tasks: Sequence[Task], parents: Sequence[tuple[int, ...]]
) -> tuple[int, ...]:
    import heapq

    missing = [len(p) for p in parents]
    children: list[list[int]] = [[] for _ in tasks]
    for child, ps in enumerate(parents):
        for parent in ps:
            children[parent].append(child)
    # A heap by number: of several possible orders always the one nearest to the user's own.
    ready = [i for i, n in enumerate(missing) if n == 0]
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for child in children[i]:
            missing[child] -= 1
            if missing[child] == 0:
                heapq.heappush(ready, child)
    if len(order) < len(tasks):
        raise InputError("the tasks depend on each other in a cycle: " + _cycle(tasks, parents))
    return tuple(order)


def _cycle(tasks: Sequence[Task], parents: Sequence[tuple[int, ...]]) -> str:
    """One cycle, as "a -> b -> a". There must be one."""
    missing = {i: len(p) for i, p in enumerate(parents)}
    children: list[list[int]] = [[] for _ in tasks]
    for child, ps in enumerate(parents):
        for parent in ps:
            children[parent].append(child)
    free = [i for i, n in missing.items() if n == 0]
    while free:
        i = free.pop()
        del missing[i]
        for child in children[i]:
            missing[child] -= 1
            if missing[child] == 0:
                free.append(child)
    # Every task left has a parent that is left: walking up must come round.
    seen: dict[int, int] = {}
    walk: list[int] = []
    i = min(missing)
    while i not in seen:
        seen[i] = len(walk)
        walk.append(i)
        i = next(p for p in parents[i] if p in missing)
    loop = [*walk[seen[i] :], i]
    return " -> ".join(tasks[k].id for k in reversed(loop))
