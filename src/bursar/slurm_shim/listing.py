"""What ``squeue``, ``sacct``, ``scontrol`` and ``sinfo`` print."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

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
            if element.facts.step:
                text += f"%{element.facts.step}"
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


def _reason(line: ListedElement) -> str:
    element = line.element
    if element.state != "PENDING":
        return element.reason
    return "Dependency" if element.facts.dependency else "Resources"


def _where(line: ListedElement) -> str:
    return line.host if line.element.state == "RUNNING" else f"({_reason(line)})"


def _index(line: ListedElement) -> str:
    if line.positions:
        return line.positions
    return "N/A" if line.element.index is None else str(line.element.index)


def _depends(line: ListedElement) -> str:
    facts = line.element.facts
    if not facts.dependency or line.element.state != "PENDING":
        return "(null)"
    jobs = dict.fromkeys(job for job, _ in facts.after)
    return ",".join(f"{facts.dependency}:{job}" for job in jobs) or "(null)"


def _output(line: ListedElement) -> str:
    return pattern_path(line.element, line.element.facts.output, line.host)


def _errors(line: ListedElement) -> str:
    facts = line.element.facts
    return pattern_path(line.element, facts.error or facts.output, line.host)


def _limit_end(line: ListedElement) -> float:
    element = line.element
    if element.end or not element.start or element.facts.limit is None:
        return element.end
    return element.start + element.facts.limit


_SQUEUE: Mapping[str, tuple[str, str, Column]] = {
    "a": ("ACCOUNT", "Account", lambda x: x.element.facts.account or "(null)"),
    "A": ("JOBID", "JobID", lambda x: str(x.element.number)),
    "B": ("EXEC_HOST", "BatchHost", lambda x: x.host or "n/a"),
    "c": ("MIN_CPUS", "MinCpus", lambda x: str(x.element.facts.processors)),
    "C": ("CPUS", "NumCPUs", lambda x: str(x.element.facts.processors)),
    "D": ("NODES", "NumNodes", lambda _: "1"),
    "e": ("END_TIME", "EndTime", lambda x: moment(_limit_end(x))),
    "E": ("DEPENDENCY", "Dependency", _depends),
    "F": ("ARRAY_JOB_ID", "ArrayJobID", lambda x: str(x.element.job)),
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
    "p": ("PRIORITY", "Priority", lambda _: "0.00000001"),
    "P": ("PARTITION", "Partition", lambda x: x.element.facts.partition),
    "q": ("QOS", "QOS", lambda _: "normal"),
    "Q": ("PRIORITY", "PriorityLong", lambda _: "1"),
    "r": ("REASON", "Reason", _reason),
    "R": ("NODELIST(REASON)", "ReasonList", _where),
    "S": ("START_TIME", "StartTime", lambda x: moment(x.element.start)),
    "t": ("ST", "StateCompact", lambda x: COMPACT[x.element.state]),
    "T": ("STATE", "State", lambda x: x.element.state),
    "u": ("USER", "UserName", lambda x: x.element.facts.user),
    "U": ("USER", "UserID", lambda x: str(x.uid)),
    "V": ("SUBMIT_TIME", "SubmitTime", lambda x: moment(x.element.submitted)),
    "w": ("WCKEY", "WCKey", lambda _: "(null)"),
    "Z": ("WORK_DIR", "WorkDir", lambda x: x.element.facts.folder),
}
"""Columns of squeue by the letter of ``--format``: header, name for ``--Format``, and content."""

_BY_NAME: Mapping[str, tuple[str, Column]] = {
    **{name.lower(): (header, say) for header, name, say in _SQUEUE.values()},
    "exit_code": ("EXIT_CODE", lambda x: str(x.element.exit_code)),
    "nodes": ("NODES", lambda _: "1"),
    "stdout": ("STDOUT", _output),
    "stderr": ("STDERR", _errors),
}

SHORT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
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


def squeue_lines(
    columns: Sequence[FormattedColumn], lines: Sequence[ListedElement], *, header: bool
) -> list[str]:
    """Return what squeue prints."""
    found = ["".join(column.set(column.header) for column in columns)] if header else []
    found += ["".join(column.set(column.say(line)) for column in columns) for line in lines]
    return found


# sacct.


def _accounted_state(line: ListedElement) -> str:
    state = line.element.state
    # As Slurm says it, but for the step.
    return f"{state} by {line.uid}" if state == "CANCELLED" and not line.step else state


def _max_rss(line: ListedElement) -> str:
    # Slurm measures steps.
    size = line.element.max_rss
    return f"{size // 1024}K" if line.step and size else ""


def _used(line: ListedElement) -> str:
    seconds = line.element.user_seconds + line.element.system_seconds
    if seconds >= 3600:
        return long_span(seconds)
    return f"{int(seconds) // 60:02}:{seconds % 60:06.3f}"


def _of_job(say: Column) -> Column:
    return lambda line: "" if line.step else say(line)


_SACCT: Mapping[str, tuple[str, int, Column]] = {
    "account": ("Account", 10, lambda x: x.element.facts.account),
    "alloccpus": ("AllocCPUS", 10, lambda x: str(x.element.facts.processors)),
    "allocnodes": ("AllocNodes", 10, lambda x: "1" if x.element.start else "0"),
    "cluster": ("Cluster", 10, lambda _: "bursar"),
    "comment": ("Comment", 14, lambda x: x.element.facts.comment),
    "cputimeraw": (
        "CPUTimeRAW",
        10,
        lambda x: str(int(x.element.elapsed(x.now) * x.element.facts.processors)),
    ),
    "cputime": (
        "CPUTime",
        10,
        lambda x: long_span(x.element.elapsed(x.now) * x.element.facts.processors),
    ),
    "derivedexitcode": ("DerivedExitCode", 15, lambda x: x.element.exit_pair),
    "elapsed": ("Elapsed", 10, lambda x: long_span(x.element.elapsed(x.now))),
    "elapsedraw": ("ElapsedRaw", 10, lambda x: str(int(x.element.elapsed(x.now)))),
    "end": ("End", 19, lambda x: moment(x.element.end, "Unknown")),
    "exitcode": ("ExitCode", 8, lambda x: x.element.exit_pair),
    "jobid": ("JobID", -12, lambda x: x.id),
    "jobidraw": (
        "JobIDRaw",
        -12,
        lambda x: f"{x.element.number}{'.batch' if x.step else ''}",
    ),
    "jobname": ("JobName", 10, lambda x: "batch" if x.step else x.element.facts.name),
    "maxrss": ("MaxRSS", 10, _max_rss),
    "ncpus": ("NCPUS", 10, lambda x: str(x.element.facts.processors)),
    "nnodes": ("NNodes", 8, lambda _: "1"),
    "nodelist": ("NodeList", 15, lambda x: x.host or "None assigned"),
    "ntasks": ("NTasks", 8, lambda x: "1" if x.step else ""),
    "partition": ("Partition", 10, _of_job(lambda x: x.element.facts.partition)),
    "qos": ("QOS", 10, _of_job(lambda _: "normal")),
    "reason": ("Reason", 22, _of_job(_reason)),
    "reqcpus": ("ReqCPUS", 8, lambda x: str(x.element.facts.processors)),
    "reqmem": ("ReqMem", 10, _of_job(lambda x: memory(x.element.facts.memory))),
    "reqnodes": ("ReqNodes", 8, lambda _: "1"),
    "start": ("Start", 19, lambda x: moment(x.element.start, "Unknown")),
    "state": ("State", 10, _accounted_state),
    "submit": ("Submit", 19, lambda x: moment(x.element.submitted, "Unknown")),
    "systemcpu": ("SystemCPU", 10, lambda x: f"00:{x.element.system_seconds:06.3f}"),
    "timelimit": (
        "Timelimit",
        10,
        _of_job(lambda x: long_span(x.element.facts.limit)),
    ),
    "timelimitraw": (
        "TimelimitRaw",
        12,
        _of_job(
            lambda x: (
                "" if x.element.facts.limit is None else str(math.ceil(x.element.facts.limit / 60))
            )
        ),
    ),
    "totalcpu": ("TotalCPU", 10, _used),
    "uid": ("UID", 6, _of_job(lambda x: str(x.uid))),
    "user": ("User", 9, _of_job(lambda x: x.element.facts.user)),
    "usercpu": ("UserCPU", 10, lambda x: f"00:{x.element.user_seconds:06.3f}"),
    "workdir": ("WorkDir", 20, _of_job(lambda x: x.element.facts.folder)),
}
"""Fields of sacct: header, width (negative: at the left) and content."""

ACCOUNTED = "jobid,jobname,partition,account,alloccpus,state,exitcode"
BRIEF = "jobid,state,exitcode"


def parse_sacct_format(text: str) -> list[tuple[str, int, Column]]:
    """
    Parse ``--format`` of sacct, as ``JobID,State%20``, to headers, widths and contents.

    Raises
    ------
    InputError
        When a field is not known.
    """
    found = []
    for part in filter(None, text.split(",")):
        name, percent, width = part.strip().partition("%")
        if name.lower() not in _SACCT or (percent and not re.fullmatch(r"-?\d{1,4}", width)):
            raise InputError(
                f'no field "{part.strip()}" is known here',
                where="--format",
                hint=spelling_hint(name.lower(), _SACCT),
            )
        header, usual, say = _SACCT[name.lower()]
        found.append((header, int(width) if percent else usual, say))
    return found


def sacct_lines(
    fields: Sequence[tuple[str, int, Column]],
    lines: Sequence[ListedElement],
    *,
    header: bool,
    parsable: bool,
    delimiter: str = "|",
    trailing: bool = False,
) -> list[str]:
    """
    Return what sacct prints.

    Parameters
    ----------
    parsable
        Whether fields stand behind each other with a delimiter, also the last if ``trailing``.
    """
    if parsable:
        end = delimiter if trailing else ""
        found = [delimiter.join(field[0] for field in fields) + end] if header else []
        return found + [delimiter.join(say(x) for _, _, say in fields) + end for x in lines]
    found = []
    if header:
        # As Slurm does, names are cut without a sign for that.
        names = ((name[: abs(width)], width) for name, width, _ in fields)
        found.append("".join(f"{_set(name, width)} " for name, width in names))
        found.append("".join("-" * abs(width) + " " for _, width, _ in fields))
    return found + ["".join(f"{_set(say(x), w)} " for _, w, say in fields) for x in lines]


def _set(text: str, width: int) -> str:
    size = abs(width)
    if len(text) > size:
        text = text[: size - 1] + "+"
    return text.ljust(size) if width < 0 else text.rjust(size)


def with_steps(lines: Sequence[ListedElement]) -> list[ListedElement]:
    """Return lines with a further one for the step of each that has begun."""
    found = []
    for line in lines:
        found.append(line)
        if line.element.start:
            found.append(replace(line, step=True))
    return found


# scontrol show job.


def job_record(line: ListedElement, *, one_line: bool) -> str:
    """Return what ``scontrol show job`` says of an element."""
    element, facts = line.element, line.element.facts
    array = (
        []
        if element.index is None
        else [
            f"ArrayJobId={element.job} ArrayTaskId={line.positions or element.index}"
            + (f" ArrayTaskThrottle={facts.step}" if facts.step else "")
        ]
    )
    seconds = element.elapsed(line.now)
    rows = [
        " ".join([f"JobId={element.number}", *array, f"JobName={facts.name}"]),
        f"UserId={facts.user}({line.uid}) GroupId={facts.user}({line.uid}) MCS_label=N/A",
        f"Priority=1 Nice=0 Account={facts.account or '(null)'} QOS=normal",
        f"JobState={element.state} Reason={_reason(line)} Dependency={_depends(line)}",
        f"Requeue=0 Restarts=0 BatchFlag=1 Reboot=0 ExitCode={element.exit_pair}",
        f"RunTime={long_span(seconds)} TimeLimit={long_span(facts.limit)} TimeMin=N/A",
        f"SubmitTime={moment(element.submitted)} EligibleTime={moment(element.submitted)}",
        f"StartTime={moment(element.start, 'Unknown')} "
        f"EndTime={moment(_limit_end(line), 'Unknown')} Deadline=N/A",
        f"Partition={facts.partition} AllocNode:Sid=bursar:0",
        f"NodeList={line.host} BatchHost={line.host}",
        f"NumNodes=1 NumCPUs={facts.processors} NumTasks=1 CPUs/Task={facts.processors}",
        f"MinCPUsNode={facts.processors} MinMemoryNode={memory(facts.memory)}",
        f"Command={facts.command}",
        f"WorkDir={facts.folder}",
        f"Comment={facts.comment}" if facts.comment else "",
        f"StdErr={_errors(line)}",
        "StdIn=/dev/null",
        f"StdOut={_output(line)}",
    ]
    rows = [row for row in rows if row]
    return " ".join(rows) if one_line else "\n   ".join(rows) + "\n"


# sinfo.


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLine:
    """
    The one line of sinfo: a service is one partition of one node.

    Parameters
    ----------
    processors, used
        Processors of the service, and those that jobs hold.
    memory
        Bytes; None: not known.
    """

    name: str
    partition: str
    processors: int
    used: int
    memory: int | None = None

    @property
    def state(self) -> str:
        """State of the node."""
        if not self.used:
            return "idle"
        return "allocated" if self.used >= self.processors else "mixed"


_SINFO: Mapping[str, tuple[str, Callable[[SiteLine], str]]] = {
    "a": ("AVAIL", lambda _: "up"),
    "c": ("CPUS", lambda x: str(x.processors)),
    "C": (
        "CPUS(A/I/O/T)",
        lambda x: f"{x.used}/{max(x.processors - x.used, 0)}/0/{x.processors}",
    ),
    "D": ("NODES", lambda _: "1"),
    "F": ("NODES(A/I/O/T)", lambda x: "1/0/0/1" if x.used else "0/1/0/1"),
    "l": ("TIMELIMIT", lambda _: "infinite"),
    "m": ("MEMORY", lambda x: str((x.memory or 0) // 2**20)),
    "n": ("HOSTNAMES", lambda x: x.name),
    "N": ("NODELIST", lambda x: x.name),
    "P": ("PARTITION", lambda x: f"{x.partition}*"),
    "R": ("PARTITION", lambda x: x.partition),
    "t": ("STATE", lambda x: {"allocated": "alloc", "mixed": "mix"}.get(x.state, x.state)),
    "T": ("STATE", lambda x: x.state),
}

NODES = "%9P %.5a %.10l %.6D %.6t %N"


def sinfo_lines(text: str, site: SiteLine, *, header: bool) -> list[str]:
    """
    Return what sinfo prints.

    Parameters
    ----------
    text
        Columns, as ``%.18N %t``.

    Raises
    ------
    InputError
        When a letter is not known.
    """

    def line(of: Callable[[str], str]) -> str:
        def one(match: re.Match[str]) -> str:
            right, width, letter = match.groups()
            if letter not in _SINFO:
                raise InputError(
                    f'expected a letter of sinfo(1), got "%{letter}"', where="--format"
                )
            word, size = of(letter), int(width or 0)
            if not size:
                return word
            return word[:size].rjust(size) if right else word[:size].ljust(size)

        return re.sub(r"%(\.?)(\d*)(.)", one, text)

    found = [line(lambda letter: _SINFO[letter][0])] if header else []
    return [*found, line(lambda letter: _SINFO[letter][1](site))]
