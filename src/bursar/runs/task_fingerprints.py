"""
Fingerprints of tasks, by which a result of an earlier run is known to be a result of this one.

Pure: data in, data out. A fingerprint covers what a task's result can depend on: its steps after
substitution, the environment that the campaign declares, its inputs by content, its declared
outputs, the code files of the campaign, and the fingerprints of the tasks before it. It does not
cover a task's name, its place in the campaign, nor what only says where and when it runs.
"""

import difflib
import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import msgspec

from bursar.model.campaign import Workflow
from bursar.model.task import Call, Copy, Exec, Shell, Step, Task
from bursar.runs.file_states import FileState

_FORMAT = 1
"""Part of each fingerprint; another way to make them makes others."""

_ENCODE = msgspec.msgpack.Encoder(order="deterministic").encode

_NUMBER, _PROCESSORS = b"BURSAR_TASK", b"BURSAR_PROCESSORS"
"""Variables that tell a task its number and its processors."""

_MOST_WORDS = 2000
_MOST_HUNKS = 3
_LONGEST = 60

# What tasks read and make.


@dataclass(frozen=True, slots=True)
class TaskFiles:
    """
    Names of the files of each task of a workflow.

    Parameters
    ----------
    reads, makes
        Names by task, ascending; also of files that are copied from and to the root.
    makers
        Number of the task that makes a file, by name.
    excluded
        Why a task's result can never be reused, by number.
    """

    reads: list[tuple[str, ...]]
    makes: list[tuple[str, ...]]
    makers: Mapping[str, int]
    excluded: Mapping[int, str]

    def initial(self, task: int) -> list[str]:
        """Return the names of the files that a task reads from the campaign's folder."""
        return [name for name in self.reads[task] if self.makers.get(name, task) == task]


def files_of(workflow: Workflow) -> TaskFiles:
    """Return the files of all tasks of a workflow."""
    reads: list[tuple[str, ...]] = []
    makes: list[tuple[str, ...]] = []
    excluded: dict[int, str] = {}
    for number, task in enumerate(workflow.tasks):
        read = {file.name for file in task.inputs}
        made = {file.name for file in task.outputs}
        if task.data or task.registers:
            excluded[number] = "logical files can change without a trace in the campaign"
        if not task.steps or any(isinstance(step, Call) for step in task.steps):
            excluded[number] = "it has no command"
        for step in task.steps:
            if isinstance(step, Copy):
                read |= {step.source} if step.source_at_root else set()
                if step.target_at_root and (step.target.endswith("/") or step.target in ("", ".")):
                    excluded[number] = f'it copies into the folder "{step.target}"'
                elif step.target_at_root:
                    made.add(step.target)
        reads.append(tuple(sorted(read)))
        makes.append(tuple(sorted(made)))
    makers: dict[str, int] = {}
    for number, names in enumerate(makes):
        for name in names:
            first = makers.setdefault(name, number)
            if first != number:
                for each in (first, number):
                    excluded.setdefault(each, f'two tasks write "{name}"')
    within: dict[str, set[int]] = defaultdict(set)
    for number, names in enumerate(makes):
        for name in names:
            for folder in _folders_of(name):
                within[folder].add(number)
    for number, names in enumerate(reads):
        before = {number, *workflow.parents[number]}
        for name in names:
            # Also a folder that holds what others make, and a file in a folder that one makes.
            makers_of = {makers[part] for part in (name, *_folders_of(name)) if part in makers}
            if not (makers_of <= before and within.get(name, before) <= before):
                excluded.setdefault(number, f'it reads "{name}", which another task may change')
    return TaskFiles(reads, makes, makers, excluded)


def _folders_of(name: str) -> list[str]:
    """Return the folders that a file lies in, the nearest last."""
    parts = name.split("/")[:-1]
    return ["/".join(parts[: i + 1]) for i in range(len(parts))]


# Fingerprints.


@dataclass(frozen=True, kw_only=True)
class TaskDefinitions:
    """
    Everything that the results of a campaign's tasks can depend on.

    Parameters
    ----------
    inputs, code
        States of the files of the campaign's folder that tasks read, and of its code files.
    fingerprints
        One for each task; None where a result can never be reused.
    """

    workflow: Workflow
    files: TaskFiles
    inputs: Mapping[str, FileState]
    code: Mapping[str, FileState]
    fingerprints: list[bytes | None] = field(repr=False)


def define(
    workflow: Workflow,
    files: TaskFiles,
    inputs: Mapping[str, FileState],
    code: Mapping[str, FileState],
) -> TaskDefinitions:
    """Return the definitions of the tasks of a workflow, with the states of all files they read."""
    tasks = workflow.tasks
    code_part = [(name, state.digest) for name, state in sorted(code.items())]
    code_is_numbered = any(state.numbered for state in code.values())
    found: list[bytes | None] = [None] * len(tasks)
    for number in workflow.order:
        task = tasks[number]
        above = [found[parent] for parent in workflow.parents[number]]
        parents = [fingerprint for fingerprint in above if fingerprint is not None]
        # What was gathered without some inputs must not pass for what all of them give.
        if number in files.excluded or len(parents) < len(above) or task.needs is not None:
            continue
        command = _ENCODE((task.steps, dict(task.environment)))
        numbered = _NUMBER in command or code_is_numbered
        reads: list[tuple[str, Any]] = []
        for name in files.reads[number]:
            maker = files.makers.get(name, number)
            if maker != number:
                reads.append((name, found[maker]))
            else:
                reads.append((name, inputs[name].digest))
                numbered = numbered or inputs[name].numbered
        # Only then, so that results survive another order of the tasks.
        place = (number if numbered else None, task.processors if _PROCESSORS in command else None)
        parts = (
            _FORMAT, command, reads, files.makes[number], code_part, sorted(parents),
            place,
        )  # fmt: skip
        found[number] = hashlib.sha256(_ENCODE(parts)).digest()
    return TaskDefinitions(
        workflow=workflow, files=files, inputs=inputs, code=code, fingerprints=found
    )


# Reuse: which tasks of a campaign have a result in an earlier run, and why others have none.

RerunKind = Literal[
    "new", "command", "environment", "input", "code", "outputs", "other", "upstream",
    "unsuccessful", "lost", "never",
]  # fmt: skip
"""Kind of a reason for which a task runs."""

_COUNTED: Mapping[RerunKind, tuple[str, str]] = {
    "new": ("is new", "are new"),
    "command": ("has another command", "have another command"),
    "environment": ("has another environment", "have another environment"),
    "input": ("has a changed input", "have changed inputs"),
    "code": ("has changed code", "have changed code"),
    "outputs": ("declares other outputs", "declare other outputs"),
    "other": ("has another number or width", "have other numbers or widths"),
    "upstream": ("is downstream of a task that reruns", "are downstream of tasks that rerun"),
    "unsuccessful": ("had not succeeded", "had not succeeded"),
    "lost": ("has a result that cannot be used", "have results that cannot be used"),
    "never": ("is never reused", "are never reused"),
}


class Rerun(NamedTuple):
    """
    Why a task runs.

    Parameters
    ----------
    kind
        For counts.
    why
        In a few words: ``"command changed: --seed 3 -> 4"``.
    """

    kind: RerunKind
    why: str


@dataclass(frozen=True, kw_only=True)
class ReuseDecision:
    """
    What a campaign takes from an earlier run.

    Parameters
    ----------
    reused
        Number of the earlier task whose result a task takes, by the task's number.
    reruns
        Why each other task runs, by number.
    """

    reused: Mapping[int, int]
    reruns: Mapping[int, Rerun]


def decide_reuse(
    now: TaskDefinitions, before: TaskDefinitions, obstacle: Callable[[int], Rerun | None]
) -> ReuseDecision:
    """
    Decide which results of an earlier run stand for which tasks.

    A result stands for one task at most: two tasks with one definition may differ by chance.

    Parameters
    ----------
    obstacle
        Returns why the result of an earlier task cannot be used; None: it is there, as recorded.
        Asked only about tasks whose definition is as it was.
    """
    matched = _match(now, before)
    taken = set(matched.values())
    tasks, parents = now.workflow.tasks, now.workflow.parents
    by_id = {task.id: i for i, task in enumerate(before.workflow.tasks) if i not in taken}
    by_outputs = {
        names: i for i, names in enumerate(before.files.makes) if names and i not in taken
    }
    reused: dict[int, int] = {}
    reruns: dict[int, Rerun] = {}
    for number in now.workflow.order:
        again = next((parent for parent in parents[number] if parent in reruns), None)
        upstream = None if again is None else Rerun("upstream", f"upstream {tasks[again].id}")
        earlier = matched.get(number)
        if number in now.files.excluded:
            reruns[number] = Rerun("never", f"never reused: {now.files.excluded[number]}")
        elif earlier is not None and upstream is None:
            problem = obstacle(earlier)
            if problem is None:
                reused[number] = earlier
            else:
                reruns[number] = problem
        elif earlier is not None and upstream is not None:
            reruns[number] = upstream
        else:
            other = by_id.get(tasks[number].id, by_outputs.get(now.files.makes[number]))
            own = None if other is None else difference(before, other, now, number)
            if other is None:
                reruns[number] = Rerun("new", "new")
            else:
                reruns[number] = own or upstream or Rerun("other", "other number or processors")
    return ReuseDecision(reused=reused, reruns=reruns)


def _match(now: TaskDefinitions, before: TaskDefinitions) -> dict[int, int]:
    """Return an earlier task of the same fingerprint for each task that has one, by number."""
    tasks, ids = now.workflow.tasks, {task.id: i for i, task in enumerate(before.workflow.tasks)}
    matched: dict[int, int] = {}
    # First those that keep their name, so that twins are not exchanged without need.
    for number, fingerprint in enumerate(now.fingerprints):
        earlier = ids.get(tasks[number].id, -1)
        if earlier >= 0 and fingerprint is not None and fingerprint == before.fingerprints[earlier]:
            matched[number] = earlier
    taken = set(matched.values())
    free: dict[bytes, list[int]] = defaultdict(list)
    for earlier in reversed(range(len(before.fingerprints))):
        fingerprint = before.fingerprints[earlier]
        if fingerprint is not None and earlier not in taken:
            free[fingerprint].append(earlier)
    for number, fingerprint in enumerate(now.fingerprints):
        if fingerprint is not None and number not in matched and free.get(fingerprint):
            matched[number] = free[fingerprint].pop()
    return matched


def difference(
    before: TaskDefinitions, earlier: int, now: TaskDefinitions, number: int
) -> Rerun | None:
    """
    Return what differs between two definitions, without that of tasks before them.

    Returns
    -------
    Rerun or None
        The first kind of difference, with all differences in words; None: there is none.
    """
    one, two = before.workflow.tasks[earlier], now.workflow.tasks[number]
    found: list[Rerun] = []
    if one.steps != two.steps:
        found.append(Rerun("command", f"command changed: {_steps_differ(one.steps, two.steps)}"))
    found += [
        Rerun("environment", f"environment changed: {text}")
        for text in _values_differ(one.environment, two.environment)
    ]
    found += [Rerun("input", text) for text in _inputs_differ(before, earlier, now, number)]
    read = {*before.files.initial(earlier), *now.files.initial(number)}
    found += [
        Rerun("code", f"code {text}")
        for text in _states_differ(
            before.code.keys() - read, now.code.keys() - read, before.code, now.code
        )
    ]
    was, is_now = set(before.files.makes[earlier]), set(now.files.makes[number])
    if was != is_now:
        changes = [f"+ {name}" for name in sorted(is_now - was)]
        changes += [f"- {name}" for name in sorted(was - is_now)]
        found.append(Rerun("outputs", f"outputs changed: {_listed(changes)}"))
    if not found:
        return None
    return Rerun(found[0].kind, "; ".join(one.why for one in found[:_MOST_HUNKS]))


def count_differences(before: TaskDefinitions, now: TaskDefinitions) -> str:
    """
    Return in words how the tasks of two definitions differ; empty: they do not.

    Contents of files do not count, only which files tasks read: both are of one folder.
    """
    old = {task.id: i for i, task in enumerate(before.workflow.tasks)}
    here = replace(
        before,
        inputs={**before.inputs, **now.inputs},
        code={name: now.code.get(name, state) for name, state in before.code.items()},
    )
    counts: Counter[RerunKind] = Counter()
    for number, task in enumerate(now.workflow.tasks):
        earlier = old.pop(task.id, None)
        found = Rerun("new", "") if earlier is None else difference(here, earlier, now, number)
        if found is not None:
            counts[found.kind] += 1
    texts = [_counted(kind, n) for kind, n in counts.most_common()]
    if old:
        texts.append(f"{len(old)} {'is' if len(old) == 1 else 'are'} gone")
    return ", ".join(texts)


def _counted(kind: RerunKind, count: int) -> str:
    return f"{count} {_COUNTED[kind][count > 1]}"


def _inputs_differ(
    before: TaskDefinitions, earlier: int, now: TaskDefinitions, number: int
) -> list[str]:
    was, is_now = before.files.initial(earlier), now.files.initial(number)
    texts = _states_differ(was, is_now, before.inputs, now.inputs)
    made = set(before.files.reads[earlier]) - set(was), set(now.files.reads[number]) - set(is_now)
    texts += [f"{name} is new" for name in sorted(made[1] - made[0] - set(was))]
    texts += [f"{name} is gone" for name in sorted(made[0] - made[1] - set(is_now))]
    return [f"input {text}" for text in texts]


def _states_differ(
    was: Iterable[str],
    is_now: Iterable[str],
    before: Mapping[str, FileState],
    now: Mapping[str, FileState],
) -> list[str]:
    """Return in words how two sets of files differ, each with the states of its time."""
    old, new = set(was), set(is_now)
    texts = [
        f"{name} changed" for name in sorted(old & new) if before[name].digest != now[name].digest
    ]
    texts += [f"{name} is new" for name in sorted(new - old)]
    return texts + [f"{name} is gone" for name in sorted(old - new)]


def _values_differ(was: Mapping[str, str], is_now: Mapping[str, str]) -> list[str]:
    texts = []
    for name in sorted({*was, *is_now}):
        if name not in was:
            texts.append(f"{name} is new")
        elif name not in is_now:
            texts.append(f"{name} is gone")
        elif was[name] != is_now[name]:
            texts.append(f"{name} {_short(was[name])} -> {_short(is_now[name])}")
    return texts


def _steps_differ(was: Sequence[Step], is_now: Sequence[Step]) -> str:
    """Return the words in which two commands differ: ``--seed 3 -> 4``."""
    old = [word for step in was for word in _words(step)]
    new = [word for step in is_now for word in _words(step)]
    if old == new:
        return "the same words, run in another way"
    if max(len(old), len(new)) > _MOST_WORDS:
        return f"{len(old)} words -> {len(new)} words"
    texts = []
    for tag, i, j, k, m in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        gone, come = _short(" ".join(old[i:j])), _short(" ".join(new[k:m]))
        # The option whose value it is says what the value means.
        lead = f"{old[i - 1]} " if i and old[i - 1].startswith("-") else ""
        if tag == "replace":
            texts.append(f"{lead}{gone} -> {come}")
        else:
            texts.append(f"without {gone}" if tag == "delete" else f"with {come}")
    return _listed(texts)


def _words(step: Step) -> list[str]:
    match step:
        case Exec(argv):
            return list(argv)
        case Shell(line):
            return line.split()
    return [str(value) for value in (step.__struct_config__.tag, *msgspec.structs.astuple(step))]


def _short(text: str) -> str:
    text = text if text.isprintable() else ascii(text)[1:-1]
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _listed(texts: Sequence[str]) -> str:
    more = len(texts) - _MOST_HUNKS
    return ", ".join(texts[:_MOST_HUNKS]) + (f" and {more} more" if more > 0 else "")


# In words.


def count_reruns(decision: ReuseDecision) -> str:
    """Return how many tasks run for which kind of reason: ``"50 are new"``."""
    counts = Counter(rerun.kind for rerun in decision.reruns.values())
    return ", ".join(_counted(kind, n) for kind, n in counts.most_common())


_MOST_NAMED = 5
_MOST_ALIKE = 20


def explain_reruns(decision: ReuseDecision, tasks: Sequence[Task]) -> list[str]:
    """
    Return the reasons for which tasks run, one line for each, with the tasks.

    Of one kind, :data:`_MOST_ALIKE` reasons are listed, and the others counted.
    """
    alike: dict[Rerun, list[int]] = defaultdict(list)
    for number, rerun in sorted(decision.reruns.items()):
        alike[rerun].append(number)
    lines: list[str] = []
    listed: Counter[RerunKind] = Counter()
    left: Counter[RerunKind] = Counter()
    for rerun, numbers in alike.items():
        listed[rerun.kind] += 1
        if listed[rerun.kind] > _MOST_ALIKE:
            left[rerun.kind] += len(numbers)
            continue
        names = ", ".join(tasks[number].id for number in numbers[:_MOST_NAMED])
        more = f", ... {len(numbers)} in all" if len(numbers) > _MOST_NAMED else ""
        lines.append(f"{rerun.why}: {names}{more}")
    lines += [f"{n} more {_COUNTED[kind][n > 1]}" for kind, n in left.items()]
    return lines
