"""Failed tasks explained: what was run, what its end means, and which failed alike."""

import re
import shlex
import signal
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from bursar.dispatch.journal_records import AttemptRecord
from bursar.formats.units import rounded_size
from bursar.model.surroundings import Container
from bursar.model.task import Call, Exec, Outcome, Shell, Status, Task
from bursar.report.tables import plain

if TYPE_CHECKING:
    from rich.console import Console

ReadError = Callable[[AttemptRecord], bytes]
"""Returns the end of what an attempt wrote to its standard error."""

MOST_LINES = 8
"""Lines of standard error that are kept of a failure, the last ones."""
MOST_GROUPS = 5
"""Groups of failures that a summary prints."""
MOST_TASKS = 20
"""Ids of tasks that are kept of a group."""
MOST_WIDE = 200
"""Characters of a line that is shown."""
_HINT = re.compile(r"(Run|See) '(docker|podman) run --help'").match
"""A last line of a container's runtime that says nothing about a failure."""
_KILLED = 128
"""A shell ends with this and the signal's number when a signal killed its command."""


class TaskFailure(msgspec.Struct, frozen=True, kw_only=True):
    """
    A task that failed for good.

    Parameters
    ----------
    parameters
        Values of the sweep's parameters.
    command
        What was run, as a line for a shell; empty where nothing of the kind was.
    exit_code
        Of the last step that ran; negative for a signal; None when none ran.
    reason
        What the worker said.
    meaning
        What the end means, and what may mend it; empty: nothing beyond the reason is known.
    stderr
        The last lines that the task wrote to its standard error.
    """

    task: str
    attempt: int
    status: str
    parameters: dict[str, Any]
    command: str
    exit_code: int | None
    reason: str
    meaning: str
    stderr: str


class FailureGroup(msgspec.Struct, frozen=True, kw_only=True):
    """
    Tasks that failed alike.

    Parameters
    ----------
    count
        Number of tasks.
    what
        What they have in common: the last line of their standard error, else the reason.
    tasks
        Ids of the first of them.
    first
        The first of them.
    """

    count: int
    what: str
    tasks: list[str]
    first: TaskFailure


def group_failures(
    tasks: Sequence[Task], ends: Iterable[AttemptRecord], read_error: ReadError
) -> list[FailureGroup]:
    """
    Explain the tasks that failed for good, those that failed alike together.

    Two failures are alike if their status is, and the last line of their standard error (or else
    the reason) differs in numbers only.

    Parameters
    ----------
    ends
        The final attempt of each task.
    read_error
        Reads the end of an attempt's standard error.

    Returns
    -------
    list
        The largest group first.
    """
    groups: dict[tuple[str, str], list[TaskFailure]] = {}
    for record in ends:
        if record.outcome.status is Status.SUCCEEDED:
            continue
        failure = explain_failure(tasks[record.outcome.task], record, read_error)
        alike = re.sub(r"\d+(\.\d+)?", "0", common_line(failure))
        groups.setdefault((failure.status, alike), []).append(failure)
    found = [
        FailureGroup(
            count=len(alike),
            what=common_line(alike[0]),
            tasks=[one.task for one in alike[:MOST_TASKS]],
            first=alike[0],
        )
        for alike in groups.values()
    ]
    return sorted(found, key=lambda group: -group.count)


def explain_failure(task: Task, record: AttemptRecord, read_error: ReadError) -> TaskFailure:
    """Explain the end of an attempt that did not succeed."""
    outcome = record.outcome
    text = read_error(record).decode(errors="replace")
    lines = [line[:MOST_WIDE] for line in text.splitlines() if line.strip() and not _HINT(line)]
    return TaskFailure(
        task=task.id,
        attempt=outcome.attempt,
        status=str(outcome.status),
        parameters=dict(task.parameters),
        command=command_of(task),
        exit_code=outcome.exit_code,
        reason=outcome.reason,
        meaning=meaning_of(outcome, task, lines),
        stderr="\n".join(lines[-MOST_LINES:]),
    )


def command_of(task: Task) -> str:
    """Return what a task runs, as a line for a shell."""
    parts = []
    for step in task.steps:
        if isinstance(step, Shell):
            parts.append(step.line)
        elif isinstance(step, Exec):
            parts.append(shlex.join(step.argv))
        elif isinstance(step, Call):
            parts.append("(a Python function)")
    return "; ".join(parts)


def common_line(failure: TaskFailure) -> str:
    """Return the line that names a failure: what the program said last, else the reason."""
    # A program that was killed did not write its last line about that.
    if failure.status == Status.FAILED and (failure.exit_code or 0) > 0 and failure.stderr:
        return failure.stderr.splitlines()[-1].strip()
    return failure.reason or failure.status


def meaning_of(outcome: Outcome, task: Task, lines: Sequence[str]) -> str:
    """
    Say what the end of an attempt means and what may mend it; empty: nothing more is known.

    Parameters
    ----------
    lines
        Lines of standard error.
    """
    match outcome.status:
        case Status.TIMED_OUT:
            return "give the task more time with wall_limit, or split it"
        case Status.LOST:
            return "the worker or its machine went away; the task itself may be sound"
        case Status.CANCELLED:
            return ""
    if found := re.search(r"used (.+), memory allows ", outcome.reason):
        needed = found[1].removeprefix("more than ")
        return (
            f"killed for its memory: state what it needs, more than {needed}, "
            "with memory, or split the task"
        )
    code = outcome.exit_code
    container = next((step for step in task.steps if isinstance(step, Container)), None)
    if container is not None and (text := _of_container(code, container, task, lines)):
        return text
    if code is None:
        return _of_start(outcome.reason)
    if code == 0:
        return "the command ended well, but left a declared output out of its working directory"
    if code == 127:
        name = _found(r"([^\s:]+): (?:command )?not found", lines)
        program = f'no program "{name}"' if name else "no such program"
        return (
            f"127: the shell found {program} on PATH; if it is a file of yours, list it in inputs"
        )
    if code == 126:
        name = _found(r"([^\s:]+): [Pp]ermission denied", lines)
        return f"126: the file may not be executed; chmod +x {name or 'FILE'}"
    number = -code if code < 0 else code - _KILLED
    return _of_signal(number, outcome) if code < 0 or 0 < number < signal.NSIG else ""


def _of_container(code: int | None, container: Container, task: Task, lines: Sequence[str]) -> str:
    """Say what the end of a container means where that is not what a program's end means."""
    image = f'the image "{container.image}"'
    match code:
        case 125:
            return f"125: the runtime could not start a container of {image}"
        case 126:
            return f"126: {image} has the program, but does not let it be executed"
        case 127:
            return f"127: {image} has no such program"
        case 137 if task.memory:
            allowed = rounded_size(task.memory)
            return (
                f"137: killed in its container, most often since it used more than memory allows, "
                f"{allowed}; state what it needs with memory"
            )
        case 255 if any(line.startswith("FATAL") for line in lines):
            return f"255: apptainer could not start a container of {image}"
    return ""


def _of_start(reason: str) -> str:
    """Say what may mend a program that could not be started."""
    if found := re.search(r"there is no (.+) on PATH ", reason):
        return f"install {found[1]} where the task runs, or load it with modules"
    if "not on PATH" in reason or "No such file" in reason:
        return "if it is a file of yours, list it in inputs and write ./ before its name"
    if "ermission denied" in reason:
        name = _found(r'"([^"]+)"', [reason])
        return f"the file may not be executed; chmod +x {name or 'FILE'}"
    return ""


def _of_signal(number: int, outcome: Outcome) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return ""
    match name:
        case "SIGKILL":
            held = f"it held {outcome.max_rss / 1e6:.0f} MB" if outcome.max_rss else ""
            text = "SIGKILL: somebody killed it, often the kernel when memory runs out"
            return f"{text}; {held}" if held else text
        case "SIGSEGV" | "SIGBUS":
            return f"{name}: the program touched memory that is not its own, a fault of the program"
        case "SIGABRT":
            return "SIGABRT: the program gave up by itself"
        case "SIGXCPU":
            return "SIGXCPU: a limit of processor time was reached"
        case "SIGXFSZ":
            return "SIGXFSZ: a limit of file sizes was reached"
    return f"{name}: a signal ended it"


def _found(pattern: str, lines: Sequence[str]) -> str:
    for line in reversed(lines):
        if hit := re.search(pattern, line):
            return hit[1]
    return ""


def failures_to_dict(groups: Sequence[FailureGroup]) -> list[dict[str, Any]]:
    """Return groups of failures as JSON objects."""
    found: list[dict[str, Any]] = msgspec.to_builtins(list(groups))
    return found


def print_failures(
    groups: Sequence[dict[str, Any]], run: str, console: "Console", *, simulated: bool = False
) -> None:
    """
    Print groups of failures: what they have in common, the first of them, what to type next.

    Parameters
    ----------
    groups
        As :func:`failures_to_dict` returns them.
    run
        Name of the run, for the commands to type.
    """
    if not groups:
        return
    from rich.padding import Padding
    from rich.text import Text

    def say(text: str, style: str = "", indent: int = 0) -> None:
        console.print(Padding(Text(plain(text), style=style), (0, 0, 0, indent)))

    for group in groups[:MOST_GROUPS]:
        say(f"{group['count']} x {group['what'][:MOST_WIDE]}", style="red")
        first = group["first"]
        values = ", ".join(f"{name}={value}" for name, value in first["parameters"].items())
        where = f"{first['task']} ({values})" if values else first["task"]
        say(
            f"    {'such as ' if group['count'] > 1 else ''}{where}: {first['command'][:MOST_WIDE]}"
        )
        if first["meaning"]:
            say(f"    {first['meaning']}")
    if len(groups) > MOST_GROUPS:
        rest = sum(group["count"] for group in groups[MOST_GROUPS:])
        say(f"and {rest} that failed in other ways: bursar tasks {run} --failed")
    if not simulated:
        say(f"read one: bursar logs {run} {groups[0]['first']['task']}")
        say(f"try them again: bursar retry {run}")
