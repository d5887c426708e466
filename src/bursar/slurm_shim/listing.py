"""The lines of lists of jobs, and what ``squeue`` prints."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from bursar.model.errors import InputError, spelling_hint
from bursar.slurm_shim.jobs import COMPACT, JobElement
from bursar.slurm_shim.submitting import pattern_path

Column = Callable[["ListedElement"], str]
"""Returns what a column says of an element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedElement:
    """
    A line of a list: an element, or several of an array that wait.

    Parameters
    ----------
    now
        Seconds since the epoch.
    positions
        Indices of the elements, as Slurm writes them; empty: one element.
    step
        Whether the line is of the job step ``batch``.
    uid
        Number of the user.
    """

    element: JobElement
    now: float
    positions: str = ""
    step: bool = False
    uid: int = 0

    @property
    def id(self) -> str:
        """Number of the job, with index or indices, and the step."""
        if self.positions:
            return f"{self.element.job}_[{self.positions}]"
        return self.element.id + (".batch" if self.step else "")

    @property
    def host(self) -> str:
        """Name of the machine, which is not known before the end; empty: it has not begun."""
        return self.element.host or ("bursar" if self.element.state == "RUNNING" else "")


def listed(
    elements: Sequence[JobElement], now: float, uid: int, *, gather: bool = True
) -> list[ListedElement]:
    """
    Return a line for each element.

    Parameters
    ----------
    gather
        Whether those of an array that wait share a line, as long as they are neighbours.
    """
    found: list[ListedElement] = []
    waiting: dict[int, list[JobElement]] = {}
    for element in elements:
        if gather and element.index is not None and element.state == "PENDING":
            waiting.setdefault(element.job, []).append(element)
    seen: set[int] = set()
    for element in elements:
        together = waiting.get(element.job, ()) if element.state == "PENDING" else ()
        if not together:
            found.append(ListedElement(element=element, now=now, uid=uid))
        elif element.job not in seen:
            seen.add(element.job)
            text = _ranges([one.index or 0 for one in together])
            if element.facts.at_once:
                text += f"%{element.facts.at_once}"
            found.append(ListedElement(element=element, now=now, positions=text, uid=uid))
    return found


def _ranges(indices: Sequence[int]) -> str:
    """Return ascending numbers as ``1-3,7``."""
    parts: list[list[int]] = []
    for index in indices:
        if parts and index == parts[-1][1] + 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in parts)


# Words of columns.


def span(seconds: float | None) -> str:
    """Return a time as ``1-02:03:04``, or ``2:03``; None: no limit."""
    if seconds is None or not math.isfinite(seconds):
        return "UNLIMITED"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{seconds:02}"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def long_span(seconds: float | None) -> str:
    """Return a time as ``00:02:03``; None: no limit."""
    if seconds is None:
        return "UNLIMITED"
    days, rest = divmod(int(seconds), 86400)
    text = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days}-{text}" if days else text


def moment(seconds: float, otherwise: str = "N/A") -> str:
    """Return a moment in local time."""
    if not seconds:
        return otherwise
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%dT%H:%M:%S")


def memory(size: int | None) -> str:
    """Return an amount of memory such as ``4G`` or ``300M``; None: none was stated."""
    if size is None:
        return "0"
    for unit, letter in ((2**30, "G"), (2**20, "M")):
        if size % unit == 0:
            return f"{size // unit}{letter}"
    return f"{size // 2**10}K"


def _left(line: ListedElement) -> str:
    element = line.element
    if element.facts.limit is None:
        return "UNLIMITED"
    return span(max(0.0, element.facts.limit - element.elapsed(line.now)))


def reason_of(line: ListedElement) -> str:
    """Return why an element waits or did not succeed."""
    element = line.element
    if element.state != "PENDING":
        return element.reason
    if element.facts.after:
        return "Dependency"
    return "JobArrayTaskLimit" if element.facts.at_once else "Resources"


def _where(line: ListedElement) -> str:
    return line.host if line.element.state == "RUNNING" else f"({reason_of(line)})"


def _index(line: ListedElement) -> str:
    if line.positions:
        return line.positions
    return "N/A" if line.element.index is None else str(line.element.index)


def dependency_of(line: ListedElement) -> str:
    """Return the jobs that an element waits for."""
    facts = line.element.facts
    if line.element.state != "PENDING":
        return "(null)"
    jobs = (one.kind if one.kind == "singleton" else f"{one.kind}:{one.job}" for one in facts.after)
    return ",".join(f"{one}(unfulfilled)" for one in dict.fromkeys(jobs)) or "(null)"


def output_of(line: ListedElement) -> str:
    """Return the path of the file that gets what a script prints."""
    return pattern_path(line.element, line.element.facts.output, line.host)


def errors_of(line: ListedElement) -> str:
    """Return the path of the file that gets what a script prints to standard error."""
    facts = line.element.facts
    return pattern_path(line.element, facts.error or facts.output, line.host)


def end_or_limit(line: ListedElement) -> float:
    """Return when an element ended, or will be ended; 0: that is not known."""
    element = line.element
    if element.end or not element.start or element.facts.limit is None:
        return element.end
    return element.start + element.facts.limit


_SQUEUE: Mapping[str, tuple[str, str, Column]] = {
    "a": ("ACCOUNT", "Account", lambda x: x.element.facts.account or "(null)"),
    "A": ("JOBID", "JobID", lambda x: str(x.element.number)),
    "b": ("TRES_PER_NODE", "tres-per-node", lambda x: x.element.facts.tres.get("node", "N/A")),
    "B": ("EXEC_HOST", "BatchHost", lambda x: x.host or "n/a"),
    "c": ("MIN_CPUS", "MinCpus", lambda x: str(x.element.facts.processors)),
    "C": ("CPUS", "NumCPUs", lambda x: str(x.element.facts.processors)),
    "d": ("MIN_TMP_DISK", "MinTmpDisk", lambda _: "0"),
    "D": ("NODES", "NumNodes", lambda _: "1"),
    "e": ("END_TIME", "EndTime", lambda x: moment(end_or_limit(x))),
    "E": ("DEPENDENCY", "Dependency", dependency_of),
    "f": ("FEATURES", "Feature", lambda _: "(null)"),
    "F": ("ARRAY_JOB_ID", "ArrayJobID", lambda x: str(x.element.job)),
    "h": ("OVER_SUBSCRIBE", "OverSubscribe", lambda _: "OK"),
    "i": ("JOBID", "JobArrayID", lambda x: x.id),
    "j": ("NAME", "Name", lambda x: x.element.facts.name),
    "k": ("COMMENT", "Comment", lambda x: x.element.facts.comment or "(null)"),
    "K": ("ARRAY_TASK_ID", "ArrayTaskID", _index),
    "l": ("TIME_LIMIT", "TimeLimit", lambda x: span(x.element.facts.limit)),
    "L": ("TIME_LEFT", "TimeLeft", _left),
    "m": ("MIN_MEMORY", "MinMemory", lambda x: memory(x.element.facts.memory)),
    "M": ("TIME", "TimeUsed", lambda x: span(x.element.elapsed(x.now))),
    "n": ("REQ_NODES", "ReqNodes", lambda _: ""),
    "N": ("NODELIST", "NodeList", lambda x: x.host),
    "o": ("COMMAND", "Command", lambda x: x.element.facts.command),
    "O": ("CONTIGUOUS", "Contiguous", lambda _: "0"),
    "p": ("PRIORITY", "Priority", lambda _: "0.00000001"),
    "P": ("PARTITION", "Partition", lambda x: x.element.facts.partition),
    "q": ("QOS", "QOS", lambda _: "normal"),
    "Q": ("PRIORITY", "PriorityLong", lambda _: "1"),
    "r": ("REASON", "Reason", reason_of),
    "R": ("NODELIST(REASON)", "ReasonList", _where),
    "S": ("START_TIME", "StartTime", lambda x: moment(x.element.start)),
    "t": ("ST", "StateCompact", lambda x: COMPACT[x.element.state]),
    "T": ("STATE", "State", lambda x: x.element.state),
    "u": ("USER", "UserName", lambda x: x.element.facts.user),
    "U": ("USER", "UserID", lambda x: str(x.uid)),
    "v": ("RESERVATION", "Reservation", lambda _: "(null)"),
    "V": ("SUBMIT_TIME", "SubmitTime", lambda x: moment(x.element.submitted)),
    "w": ("WCKEY", "WCKey", lambda _: "(null)"),
    "W": ("LICENSES", "Licenses", lambda x: x.element.facts.licenses or "(null)"),
    "x": ("EXC_NODES", "ExcNodes", lambda _: ""),
    "X": ("CORE_SPEC", "CoreSpec", lambda _: "N/A"),
    "y": ("NICE", "Nice", lambda _: "0"),
    "Y": ("SCHEDNODES", "SchedNodes", lambda _: "(null)"),
    "z": ("S:C:T", "sct", lambda _: "*:*:*"),
    "Z": ("WORK_DIR", "WorkDir", lambda x: x.element.facts.folder),
}
"""Columns of squeue by the letter of ``--format``: header, name for ``--Format``, and content."""

_BY_NAME: Mapping[str, tuple[str, Column]] = {
    **{name.lower(): (header, say) for header, name, say in _SQUEUE.values()},
    "exit_code": ("EXIT_CODE", lambda x: str(x.element.exit_code)),
    "nodes": ("NODES", lambda _: "1"),
    "stdout": ("STDOUT", output_of),
    "stderr": ("STDERR", errors_of),
}

SHORT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
START = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R"
LONG = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"


@dataclass(frozen=True, slots=True)
class FormattedColumn:
    """
    A column of a table.

    Parameters
    ----------
    width
        Characters; longer texts are cut. 0: any.
    right
        Whether texts stand at the right.
    before, after
        Text around the column.
    """

    header: str
    say: Column
    width: int = 0
    right: bool = False
    before: str = ""
    after: str = ""

    def set(self, text: str) -> str:
        """Return a text of the column's width."""
        if self.width:
            text = text[: self.width]
            text = text.rjust(self.width) if self.right else text.ljust(self.width)
        return f"{self.before}{text}{self.after}"


def parse_squeue_format(text: str) -> list[FormattedColumn]:
    """
    Parse ``--format`` of squeue, as ``%.18i %t``.

    Raises
    ------
    InputError
        When a letter is not known.
    """
    found: list[FormattedColumn] = []
    rest = text
    while match := re.match(r"([^%]*)%(\.?)(\d*)(.)", rest):
        before, right, width, letter = match.groups()
        if letter not in _SQUEUE:
            raise InputError(f'expected a letter of squeue(1), got "%{letter}"', where="--format")
        header, _, say = _SQUEUE[letter]
        found.append(FormattedColumn(header, say, int(width or 0), bool(right), before))
        rest = rest[match.end() :]
    if not found:
        raise InputError(f'expected columns such as %i, got "{text}"', where="--format")
    return [*found[:-1], replace(found[-1], after=rest)]


def parse_squeue_names(text: str) -> list[FormattedColumn]:
    """
    Parse ``--Format`` of squeue, as ``JobID:.18,State``.

    Raises
    ------
    InputError
        When a name is not known.
    """
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\w+)\s*(?::(\.?)(\d*)(\S*))?", part)
        if match is None or match[1].lower() not in _BY_NAME:
            word = part.partition(":")[0].strip()
            raise InputError(
                f'no column "{word}" is known here',
                where="--Format",
                hint=spelling_hint(word.lower(), _BY_NAME),
            )
        header, say = _BY_NAME[match[1].lower()]
        found.append(
            FormattedColumn(header, say, int(match[3] or 20), bool(match[2]), after=match[4] or "")
        )
    return found


_ORDER: Mapping[str, Callable[[JobElement], Any]] = {
    "i": lambda one: one.number,
    "A": lambda one: one.number,
    "F": lambda one: one.job,
    "j": lambda one: one.facts.name,
    "u": lambda one: one.facts.user,
    "P": lambda one: one.facts.partition,
    "a": lambda one: one.facts.account,
    "t": lambda one: list(COMPACT).index(one.state),
    "T": lambda one: list(COMPACT).index(one.state),
    "S": lambda one: one.start,
    "V": lambda one: one.submitted,
    "M": lambda one: -one.start,
    "p": lambda one: 0,  # all have the same
    "Q": lambda one: 0,
}
"""What elements are ordered by, by the letter of ``--sort``."""


def sorted_elements(elements: Sequence[JobElement], text: str) -> list[JobElement]:
    """
    Return elements in the order that ``--sort`` of squeue asks for, as ``t,-i``.

    Raises
    ------
    InputError
        When elements are not ordered by such a column.
    """
    found = list(elements)
    for word in reversed(text.split(",")):
        letter = word.strip().lstrip("+-")
        if letter not in _ORDER:
            raise InputError(
                f'expected letters of {"".join(_ORDER)}, with - for descending, got "{word}"',
                where="--sort",
            )
        found.sort(key=_ORDER[letter], reverse=word.strip().startswith("-"))
    return found


def squeue_lines(
    columns: Sequence[FormattedColumn], lines: Sequence[ListedElement], *, header: bool
) -> list[str]:
    """Return what squeue prints."""
    found = ["".join(column.set(column.header) for column in columns)] if header else []
    found += ["".join(column.set(column.say(line)) for column in columns) for line in lines]
    return found
