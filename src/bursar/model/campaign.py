"""A campaign: a workflow of tasks, a goal, how failures are met, facts of a recorded execution."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bursar.model.errors import InputError, spelling_hint
from bursar.model.money import check_currency
from bursar.model.results import ResultColumn
from bursar.model.task import File, Task, Value

# Tasks and the order their data imposes.


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
        Indices of the tasks that must succeed before each task, those that register its data
        included, ascending, one tuple per task, in the order of ``tasks``.
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
        makers = _first_of(self.tasks, lambda t: (f.name for f in t.outputs), "made", "outputs")
        registrars = _first_of(self.tasks, lambda t: t.registers.values(), "registered", "register")
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


def _first_of(
    tasks: Sequence[Task], names: Callable[[Task], Iterable[str]], done: str, key: str
) -> dict[str, int]:
    """Map each file to the task that makes or registers the file; two tasks may not."""
    first: dict[str, int] = {}
    for i, task in enumerate(tasks):
        for name in names(task):
            other = first.setdefault(name, i)
            if other != i:
                raise InputError(
                    f'"{name}" is already {done} by task "{tasks[other].id}"',
                    where=f"tasks.{task.id}.{key}",
                )
    return first


def _parents_of(
    i: int,
    task: Task,
    index: dict[str, int],
    makers: dict[str, int],
    registrars: dict[str, int],
) -> tuple[int, ...]:
    if not (task.after or task.inputs or task.data):
        return ()
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

    if not any(parents):
        return tuple(range(len(tasks)))
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


# Which tasks cannot run any more when others have ended without success.


def spare_parents(parents: int, needs: float | None) -> int:
    """
    Return how many of a task's parents may end without success for the task to run all the same.

    Parameters
    ----------
    parents
        How many the task has.
    needs
        Share that must succeed, see :class:`bursar.model.task.Task`.
    """
    if needs is None or not parents:
        return 0
    # Less a rounding: 7 % of 100 are 7 tasks, and 7.000000000000001 as a float.
    return parents - max(1, math.ceil(needs * parents - 1e-9))


class UnreachableTasks:
    """
    Follows which tasks of a workflow cannot run, as tasks before them ended without success.

    It is what :class:`bursar.engine.instance_tasks.InstanceTasks` does with tasks in columns.
    """

    def __init__(self, workflow: Workflow) -> None:
        self._children = workflow.children
        self._spare = {
            number: spare_parents(len(parents), task.needs)
            for number, (task, parents) in enumerate(
                zip(workflow.tasks, workflow.parents, strict=True)
            )
            if task.needs is not None
        }
        self._gone: set[int] = set()

    def end(self, task: int) -> list[int]:
        """Return the tasks that cannot run any more as a task ended without success; once each."""
        if task in self._gone:
            return []
        self._gone.add(task)
        stack, found = [task], []
        while stack:
            for child in self._children[stack.pop()]:
                spare = self._spare.get(child, 0)
                if spare:
                    self._spare[child] = spare - 1
                # Counted once, though several of its ancestors may have failed.
                elif child not in self._gone:
                    self._gone.add(child)
                    found.append(child)
                    stack.append(child)
        return found


# Goals of campaigns: deadline, budget and the trade-off between them.

BudgetAction = Literal["warn", "drain", "stop"]
"""At a share of the budget: say so; start nothing more; stop what runs."""


CONFIDENCE = 0.9
"""Probability with which a goal is to be kept, unless the user says another."""


def odds_in_words(probability: float) -> str:
    """Return a probability as printed: never 0 or 100 %, since nothing is sure."""
    return f"{min(max(round(100 * probability), 1), 99)} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """
    Deadline, budget and preference. All may be absent.

    Parameters
    ----------
    deadline
        Seconds from the start of the run; None for none. Positive.
    budget
        Currency units; None for none. Not negative.
    currency
        The budget's currency; None: the sites' own.
    trade_off
        Weight of cost against makespan, 0 (only time counts) to 1 (only cost),
        as alpha in HPDC'07 equation 8; None: no preference given.
    on_budget
        Share of the budget, in (0, 1], to what happens when spending reaches it.
    confidence
        Probability with which the deadline and the budget are to be kept, where earlier runs say
        how long tasks take. Above 0 and below 1.
    """

    deadline: float | None = None
    budget: float | None = None
    currency: str | None = None
    trade_off: float | None = None
    on_budget: Mapping[float, BudgetAction] = field(default_factory=dict)
    confidence: float = field(default=CONFIDENCE, repr=False)

    def __post_init__(self) -> None:
        if self.deadline is not None and not (0 < self.deadline < math.inf):
            raise ValueError(f"deadline must be positive, got {self.deadline}")
        if self.budget is not None and not (0 <= self.budget < math.inf):
            raise ValueError(f"budget must not be negative, got {self.budget}")
        if self.currency is not None:
            check_currency(self.currency)
        if self.trade_off is not None and not (0 <= self.trade_off <= 1):
            raise ValueError(f"trade_off must be between 0 and 1, got {self.trade_off}")
        if not (0 < self.confidence < 1):
            raise ValueError(f"confidence must be between 0 and 1, got {self.confidence}")
        for share in self.on_budget:
            if not (0 < share <= 1):
                raise ValueError(f"on_budget: a share must be in (0 %, 100 %], got {share:.0%}")


# Facts of the execution that a recorded workflow comes from.


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedMachine:
    """
    A machine that tasks were recorded on.

    Parameters
    ----------
    processors
        Cores; None when unknown. Positive.
    megahertz
        Clock; None when unknown. Positive.
    memory
        Bytes as recorded; None when unknown. Positive.
    architecture, system
        Architecture and operating system, as recorded; empty if unknown.
    """

    name: str
    processors: int | None = None
    megahertz: float | None = None
    memory: int | None = None
    architecture: str = ""
    system: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name must not be empty")
        for what, value in (
            ("processors", self.processors),
            ("megahertz", self.megahertz),
            ("memory", self.memory),
        ):
            if value is not None and not (0 < value < math.inf):
                raise ValueError(f"{what} must be positive, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """
    The execution as a whole.

    Parameters
    ----------
    makespan
        Seconds from the first start to the last end; None when unknown.
    machines
        In the order of the source.
    machine_of
        Id of a task to the names of the machines it ran on, where known.
    programs
        Id of a task to the program that it ran, where known.
    begun
        When the execution began, seconds since the epoch; None when unknown.
    """

    makespan: float | None = None
    machines: tuple[RecordedMachine, ...] = ()
    machine_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    programs: Mapping[str, str] = field(default_factory=dict)
    begun: float | None = None

    def __post_init__(self) -> None:
        if self.makespan is not None and not (0 <= self.makespan < math.inf):
            raise ValueError(f"makespan must be finite and not negative, got {self.makespan}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierJob:
    """
    A job of a workflow whose run time another program keeps beside the workflow.

    Parameters
    ----------
    task
        Id that the job has as a task, also where it need not run again.
    kind
        Kind of task: the rule.
    template
        Command of the rule before values are put in; empty when unknown.
    parameters
        Values that tell the job from others of its kind.
    input_bytes
        Sum of the sizes of its input files; None when one is unknown.
    processors
        Processors that it held then; where that is unknown, those that it would hold now.
    growth
        Number of its input files, beside their number then.
    began
        When it began the last time, seconds since the epoch; None when unknown.
    seconds
        How long it ran then; None when unknown.
    benchmark
        Path of a file with its measured run times, which may be absent; None: it has none.
    """

    task: str
    kind: str
    template: str = ""
    parameters: Mapping[str, Value] = field(default_factory=dict)
    input_bytes: int | None = None
    processors: int = 1
    growth: float = 1.0
    began: float | None = None
    seconds: float | None = None
    benchmark: str | None = None


# A campaign: a workflow, a goal, and how failures are met.


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """
    Policy of repeating a task after a failed or lost attempt.

    Parameters
    ----------
    attempts
        Tries in all, the first included. Positive.
    backoff
        Seconds before the second try; doubled for each further one.
    ceiling
        Longest wait between tries, seconds.
    copies
        Whether a task that takes long may have a second attempt at the same time, on processors
        that nothing else needs; the first success counts.
    buys_copies
        Whether processors may be bought for such attempts; only where these are allowed.
    """

    attempts: int = 3
    backoff: float = 1.0
    ceiling: float = 60.0
    copies: bool = False
    buys_copies: bool = False

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts must be at least 1, got {self.attempts}")
        if self.backoff < 0 or self.ceiling < 0:
            raise ValueError("backoff and ceiling must not be negative")
        if self.buys_copies and not self.copies:
            raise ValueError("no processors are bought for copies where there are none")

    def wait_before(self, attempt: int) -> float:
        """Seconds to wait before try number ``attempt`` (2 for the first retry)."""
        # Beyond 1000 doublings the wait is the ceiling, and a float would soon overflow.
        return min(self.backoff * 2.0 ** min(attempt - 2, 1000), self.ceiling)


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """
    A campaign as stated by the user: tasks, files, goal and settings.

    Parameters
    ----------
    name
        For reports and run folders.
    root
        Folder that relative input files are found in.
    recorded
        True when the tasks come from a recorded execution and have no program
        of their own; running them needs a replay.
    recording
        What is known of the recorded execution, also in its replay; None for
        a campaign that was not recorded.
    source
        The file it was read from; None when built in Python.
    account
        User of a book who pays when the campaign is run; None: nobody is charged.
    book
        File of that book; None: the usual one.
    code
        Names of files below ``root`` that the tasks' programs are made of: a result of an earlier
        run is reused only while these are as they were. They are not put into working directories.
    project
        Project by whose weight its runs share this machine with others; None: none.
    results
        Columns of the table of results of its runs.
    remarks
        What its reader warns of, each in one line that names the place.
    templates
        Command of each kind of task before values are put in, by the tasks' name; kinds whose
        command has no such form are absent.
    at_once
        Tasks that may run at a time, of all sites together; None: any number.
    resources
        Countable resources of no site in particular: how many of each the tasks hold at a time, at
        most, at all sites together.
    earlier
        Jobs of which another program knows how long they ran before, from which run times are
        learned beside those of the history.
    """

    name: str
    workflow: Workflow
    goal: Goal = field(default_factory=Goal)
    root: Path = field(default_factory=Path.cwd)
    retry: Retry = field(default_factory=Retry)
    recorded: bool = False
    recording: Recording | None = None
    source: Path | None = None
    account: str | None = None
    book: Path | None = None
    code: tuple[str, ...] = ()
    project: str | None = None
    results: tuple[ResultColumn, ...] = ()
    remarks: tuple[str, ...] = ()
    templates: Mapping[str, str] = field(default_factory=dict)
    at_once: int | None = None
    resources: Mapping[str, int] = field(default_factory=dict)
    earlier: tuple[EarlierJob, ...] = ()
