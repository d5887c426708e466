"""What ``sacct``, ``scontrol show job`` and ``sinfo`` print."""

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from bursar.model.errors import InputError, spelling_hint
from bursar.slurm_shim.listing import (
    Column,
    ListedElement,
    dependency_of,
    end_or_limit,
    errors_of,
    long_span,
    memory,
    moment,
    output_of,
    reason_of,
)

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


def _tres(line: ListedElement) -> str:
    """Return what an element holds, in Slurm's words."""
    facts = line.element.facts
    held = "" if facts.memory is None else f",mem={memory(facts.memory)}"
    return f"billing={facts.processors},cpu={facts.processors}{held},node=1"


def _waited(line: ListedElement) -> float:
    element = line.element
    return max(0.0, (element.start or element.end or line.now) - element.submitted)


def _of_job(say: Column) -> Column:
    return lambda line: "" if line.step else say(line)


_SACCT: Mapping[str, tuple[str, int, Column]] = {
    "account": ("Account", 10, lambda x: x.element.facts.account),
    "alloctres": ("AllocTRES", 10, lambda x: _tres(x) if x.element.start else ""),
    "averss": ("AveRSS", 10, lambda x: _max_rss(x)),
    "eligible": ("Eligible", 19, lambda x: moment(x.element.submitted, "Unknown")),
    "planned": ("Planned", 10, _of_job(lambda x: long_span(_waited(x)))),
    "priority": ("Priority", 10, _of_job(lambda _: "1")),
    "reqtres": ("ReqTRES", 10, _of_job(lambda x: _tres(x))),
    "restarts": ("Restarts", 8, lambda x: str(x.element.restarts)),
    "stdout": ("StdOut", 20, _of_job(output_of)),
    "stderr": ("StdErr", 20, _of_job(errors_of)),
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
    "reason": ("Reason", 22, _of_job(reason_of)),
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
            + (f" ArrayTaskThrottle={facts.at_once}" if facts.at_once else "")
        ]
    )
    seconds = element.elapsed(line.now)
    rows = [
        " ".join([f"JobId={element.number}", *array, f"JobName={facts.name}"]),
        f"UserId={facts.user}({line.uid}) GroupId={facts.user}({line.uid}) MCS_label=N/A",
        f"Priority=1 Nice=0 Account={facts.account or '(null)'} QOS=normal",
        f"JobState={element.state} Reason={reason_of(line)} Dependency={dependency_of(line)}",
        f"Requeue={int(facts.requeues)} Restarts={element.restarts} BatchFlag=1 Reboot=0 "
        f"ExitCode={element.exit_pair}",
        f"RunTime={long_span(seconds)} TimeLimit={long_span(facts.limit)} TimeMin=N/A",
        f"SubmitTime={moment(element.submitted)} EligibleTime={moment(element.submitted)}",
        f"StartTime={moment(element.start, 'Unknown')} "
        f"EndTime={moment(end_or_limit(line), 'Unknown')} Deadline=N/A",
        f"Partition={facts.partition} AllocNode:Sid=bursar:0",
        f"NodeList={line.host} BatchHost={line.host}",
        f"NumNodes=1 NumCPUs={facts.processors} NumTasks=1 CPUs/Task={facts.processors}",
        f"MinCPUsNode={facts.processors} MinMemoryNode={memory(facts.memory)}",
        f"OverSubscribe=OK Contiguous=0 Licenses={facts.licenses or '(null)'} Network=(null)",
        f"Command={facts.command}",
        f"WorkDir={facts.folder}",
        f"Comment={facts.comment}" if facts.comment else "",
        f"StdErr={errors_of(line)}",
        "StdIn=/dev/null",
        f"StdOut={output_of(line)}",
        *(f"TresPer{what.title()}={stated}" for what, stated in facts.tres.items()),
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

    def is_in(self, states: Collection[str] | None) -> bool:
        """Whether the node is in one of some states, short or long; None: in any."""
        names = {self.state, _SHORT.get(self.state, self.state), "all"}
        return states is None or any(one.lower() in names for one in states)


_SHORT = {"allocated": "alloc", "mixed": "mix"}

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
    "e": ("CPUS/NODE", lambda x: str(x.processors)),
    "f": ("AVAIL_FEATURES", lambda _: "(null)"),
    "G": ("GRES", lambda _: "(null)"),
    "R": ("PARTITION", lambda x: x.partition),
    "z": ("S:C:T", lambda x: f"{x.processors}:1:1"),
    "t": ("STATE", lambda x: _SHORT.get(x.state, x.state)),
    "T": ("STATE", lambda x: x.state),
}

SUMMARY = "%9P %.5a %.10l %.16F %N"
BY_NODE = "%9N %.6D %9P %6t"
NODES = "%9P %.5a %.10l %.6D %.6t %N"


def sinfo_lines(text: str, sites: Sequence[SiteLine], *, header: bool) -> list[str]:
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
    for site in sites:
        words = {letter: say(site) for letter, (_, say) in _SINFO.items()}
        found.append(line(words.__getitem__))
    return found
