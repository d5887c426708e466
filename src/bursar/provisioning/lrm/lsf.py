"""
IBM Spectrum LSF adapter: not run live, tested on recorded outputs.

``-o ... -json`` prints a list of records; should it be no valid JSON, each record is read for
itself. Times come without a zone, and without a year unless LSB_DISPLAY_YEAR asks for one.
"""

import contextlib
import math
import re
import time
from collections.abc import Mapping, Sequence
from typing import ClassVar

from bursar.provisioning.lrm.command_adapter import (
    UTC,
    CommandAdapter,
    Entry,
    ListedJob,
    parse_json_list,
    parse_moment,
    read_or_unknown,
    seconds,
    unknown_report,
)
from bursar.provisioning.lrm.command_runner import (
    KnownComplaint,
    command_error,
    unreadable_output_error,
)
from bursar.provisioning.lrm.resource_manager import (
    ClusterNode,
    JobEnding,
    JobRequest,
    JobState,
    ManagerCapabilities,
    QueueState,
)
from bursar.provisioning.lrm.submission import (
    JobIds,
    element,
    plain_folder,
    plain_name,
)

# Parse the output of ``bjobs``, ``bhosts``, ``bqueues`` and ``bacct``.

JOB_FIELDS = (
    "jobid jobindex stat user queue job_name submit_time start_time finish_time run_time"
    " runtimelimit nreq_slot slots exec_host exit_code exit_reason pend_reason"
    " estimated_start_time"
)
HOST_FIELDS = "host_name status max njobs"

_STATES: Mapping[str, JobState] = {
    "PEND": "pending",
    "PROV": "pending",  # its host is being made ready
    "WAIT": "pending",  # in a chunk, for others of it
    "PSUSP": "held",
    "RUN": "running",
    "USUSP": "running",  # suspended
    "SSUSP": "running",
    "DONE": "ended",
    "EXIT": "ended",
    "ZOMBI": "ended",  # killed while its host was out of reach
}
_TERMS: Mapping[str, JobEnding] = {
    "OWNER": "cancelled",
    "ADMIN": "cancelled",
    "FORCE_OWNER": "cancelled",
    "FORCE_ADMIN": "cancelled",
    "BUCKET_KILL": "cancelled",
    "ORPHAN_SYSTEM": "cancelled",
    "REMOVE_HUNG_JOB": "cancelled",
    "RUNLIMIT": "timeout",
    "DEADLINE": "timeout",
    "PREEMPT": "preempted",
    "LOAD": "preempted",
    "WINDOW": "preempted",
    "REQUEUE_OWNER": "preempted",
    "REQUEUE_ADMIN": "preempted",
    "RC": "preempted",
    "ZOMBIE": "node-fail",
    "SLURM": "node-fail",
    "CWD_NOTEXIST": "rejected",
    "PRE_EXEC_FAIL": "rejected",
    "CSM_ALLOC": "rejected",
}
"""After ``TERM_`` (termination reasons of bacct, bhist and bjobs); others have failed."""

_UP = re.compile(r"ok|closed_(Full|Excl|EGO|RC|cu_excl)", re.IGNORECASE)
_JOBID = re.compile(r'"JOBID"\s*:\s*"(\d+)(?:\[(\d+)\])?"')
_INDEX = re.compile(r'"JOBINDEX"\s*:\s*"(\d+)"')


def id_of(entry: Entry) -> str:
    """``7``, or ``7[2]`` of an array."""
    number = str(entry["JOBID"])
    index = str(entry.get("JOBINDEX", "")).strip()
    return f"{number}[{index}]" if index not in ("", "0", "-") and "[" not in number else number


def id_in(block: str) -> str | None:
    """Find the job id in a record that cannot be parsed."""
    number = _JOBID.search(block)
    if number is None:
        return None
    index = number[2] or (found[1] if (found := _INDEX.search(block)) else "0")
    return number[1] if index == "0" else f"{number[1]}[{index}]"


def read_job(entry: Entry, now: float) -> ListedJob:
    """
    Parse one job.

    Parameters
    ----------
    now
        Seconds since the epoch; by it a time without a year is understood.
    """
    id = str(entry.get("JOBID", ""))
    with contextlib.suppress(KeyError):
        id = id_of(entry)
    return read_or_unknown(id, "bjobs", lambda: _read_job(entry, now))


def _read_job(entry: Entry, now: float) -> ListedJob:
    values = {name: _plain(value) for name, value in entry.items()}
    id, letters = id_of(entry), values["STAT"]
    state = _STATES.get(letters, "unknown")
    how: JobEnding | None = None
    reason = values.get("PEND_REASON", "")
    if state == "ended":
        how, reason = _end_of(letters, values.get("EXIT_REASON", ""), values.get("EXIT_CODE", ""))
    elif letters == "UNKWN":
        reason = "its host is out of reach"
    elif state == "unknown":
        reason = f"in a state that is not known: {letters!r}"
    elif letters in ("USUSP", "SSUSP"):
        reason = f"suspended {reason}".strip()
    hosts = values.get("EXEC_HOST", "")
    slots = values.get("SLOTS") or values.get("NREQ_SLOT") or ""
    spent = re.match(r"\d+", values.get("RUN_TIME", ""))
    began = parse_time(values.get("START_TIME", ""), now)
    ended = parse_time(values.get("FINISH_TIME", ""), now)
    return ListedJob(
        id=id,
        state=state,
        how=how,
        reason=reason,
        name=values.get("JOB_NAME", "").partition("[")[0],
        owner=values.get("USER", ""),
        queue=values.get("QUEUE", ""),
        submitted=parse_time(values.get("SUBMIT_TIME", ""), now),
        began=began,
        ended=ended if state == "ended" else None,
        expected=parse_time(values.get("ESTIMATED_START_TIME", ""), now),
        limit=_limit(values.get("RUNTIMELIMIT", "")),
        processors=int(slots.partition(",")[0]) if slots else 1,
        nodes=_hosts(hosts),
        spent=float(spent[0]) if spent and began is not None else None,
    )


def _end_of(letters: str, why: str, code: str) -> tuple[JobEnding, str]:
    if letters == "DONE":
        return "completed", ""
    if letters == "ZOMBI":
        return "node-fail", "killed while its host was out of reach"
    term = re.search(r"TERM_(\w+)", why)
    words = "; ".join(word for word in (why, f"exit code {code}" if code else "") if word)
    return (_TERMS.get(term[1], "failed") if term else "failed"), words


def parse_time(text: str, now: float) -> float | None:
    """
    Parse a time such as ``Dec 28 19:56:30 2026``; seconds, year and a qualifying letter at the end
    are optional.

    One without a year is the last that is no more than some months from now.
    """
    plain = re.sub(r"\s+[A-Z]$", "", text.strip())
    found = parse_moment(plain, "%b %d %H:%M:%S %Y", "%b %d %H:%M %Y")
    if found is not None or not plain or plain == "-":
        return found
    year = time.gmtime(now).tm_year
    for one in (year + 1, year, year - 1):
        found = parse_moment(f"{plain} {one}", "%b %d %H:%M:%S %Y", "%b %d %H:%M %Y")
        if found is not None and found < now + 180 * 86400:
            return found
    return None


def read_host(entry: Entry) -> ClusterNode:
    """
    Parse one host.

    Raises
    ------
    ValueError, KeyError
        When it cannot be read.
    """
    status = _plain(entry["STATUS"])
    slots = int(entry["MAX"])
    taken = min(slots, int(entry["NJOBS"]))
    return ClusterNode(
        name=_plain(entry["HOST_NAME"]),
        processors=slots,
        allocated=slots if status == "closed_Excl" else taken,
        up=_UP.fullmatch(status) is not None,
        state=status,
    )


def parse_queue(text: str) -> tuple[float | None, bool]:
    """Parse ``bqueues -l``: longest time of a job, seconds, and whether jobs are started."""
    maximum = text.partition("MAXIMUM LIMITS")[2] or text
    found = re.search(r"^\s*RUNLIMIT[^\n]*\n\s*([\d.]+)\s*min", maximum, re.MULTILINE)
    status = re.search(r"\b(Open|Closed):(Active|Inact\w*)", text)
    up = status is None or status[2] == "Active"
    return (float(found[1]) * 60 if found else None), up


def parse_accounting(text: str) -> dict[str, tuple[JobEnding, str]]:
    """Parse ``bacct -l``: how jobs ended, and LSF's words for it."""
    ends: dict[str, tuple[JobEnding, str]] = {}
    plain = re.sub(r"\n {10,}", "", text)  # long lines go on, far to the right
    for block in re.split(r"^(?=Job <)", plain, flags=re.MULTILINE):
        head = re.match(r"Job <(\d+(?:\[\d+\])?)>", block)
        done = re.search(r"Completed <(\w+)>(?:;\s*([^\n.]*))?", block)
        if head is None or done is None:
            continue
        why = (done[2] or "").strip()
        ends[head[1]] = _end_of("DONE" if done[1] == "done" else "EXIT", why, "")
    return ends


def _plain(value: object) -> str:
    text = str(value).strip()
    return "" if text == "-" else text


def _limit(text: str) -> float | None:
    """Parse a limit, for example ``1440.0`` (minutes) or ``00:10:00``, into seconds."""
    text = text.partition("/")[0].strip()
    if ":" in text:
        return seconds(text)
    number = re.match(r"[\d.]+", text)
    return float(number[0]) * 60 if number else None


def _hosts(text: str) -> tuple[str, ...]:
    """Parse the host names of a list, for example ``4*n1:n2``."""
    names = (re.sub(r"^\d+\*", "", part) for part in re.split(r"[:\s]+", text))
    return tuple(dict.fromkeys(name for name in names if name))


# Run LSF's commands and parse the output.

_GIVEN = re.compile(r"Job <(\d+)> is submitted")
_ASK = {**UTC, "LSB_DISPLAY_YEAR": "Y"}

COMPLAINTS = (
    KnownComplaint(
        r"cannot connect|please wait|batch system (daemon|is) (not responding|down)"
        r"|lim is down|failed in an lsf library call|communication time|slave lim"
        r"|mbatchd|timed? ?out",
        "LSF does not answer",
        transient=True,
    ),
    KnownComplaint(
        r"no such queue|unknown queue|queue .*not exist", 'name one that "bqueues" lists'
    ),
    KnownComplaint(r"queue (has been|is) closed", 'the queue is closed: name another "queue"'),
    KnownComplaint(r"project", 'look at "account": it is a project of LSF'),
    KnownComplaint(
        r"run ?limit|cannot exceed queue|tasklimit|proclimit|too many processors|hard limit",
        "ask for less time or fewer processors, or name another queue",
    ),
    KnownComplaint(
        r"pending job (slot )?(limit|threshold)|job slot limit|limit .*jobs",
        'your share of jobs is used up: lower "max_pending"',
    ),
    KnownComplaint(
        r"permission denied|not permitted|user .*not", "ask the administrators for access"
    ),
    KnownComplaint(r"bad resource|illegal option|syntax", 'look at the site\'s "directives"'),
)


class LSF(CommandAdapter):
    """
    Adapter to an LSF cluster, with the rights of a plain user.

    Not run live: held to outputs recorded by others and to the documentation of 10.1, whose
    ``-o ... -json`` it needs.

    A site's account is a project; there is no quality of service.
    """

    title = "LSF"
    environment = _ASK
    complaints = COMPLAINTS
    cancelling = ("bkill",)
    mark = "#BSUB"
    options: ClassVar = {"queue": "-q {}", "account": "-P {}"}
    gone = r"no matching job found|job has already finished|is not found|no unfinished job"
    quality = 'name a service class by "directives"'

    @property
    def abilities(self) -> ManagerCapabilities:
        """Capabilities of the scheduler."""
        return ManagerCapabilities(arrays=True, node_ranges=True, begin=True, accounting=True)

    async def _hand_in(self, request: JobRequest, script: str) -> JobIds:
        # Without UTC: bsub hands its variables on to the job.
        answer = await self._shell.run(["bsub"], stdin=script, environment={"LC_ALL": "C"})
        if answer.status != 0:
            raise self._error("bsub", answer)
        found = _GIVEN.findall(answer.stdout)
        if not found:
            raise unreadable_output_error("bsub", answer.stdout)
        number = found[-1]
        if request.copies == 1:
            return [number]
        return [f"{number}[{index}]" for index in range(1, request.copies + 1)]

    async def queue(self) -> QueueState:
        """Read the queue by three commands, without reservations."""
        now, queue = time.time(), self._batch.queue
        only = ["-q", queue] if queue is not None else []
        jobs = ["bjobs", "-u", "all", *only, "-o", JOB_FIELDS, "-json"]
        records, _ = await self._records(jobs)
        hosts, _ = await self._records(["bhosts", "-o", HOST_FIELDS, "-json"])
        longest, up = None, True
        if queue is not None:
            answer = await self._run(["bqueues", "-l", queue])
            if answer.status != 0 or not answer.stdout.strip():
                raise self._error("bqueues", answer)
            longest, up = parse_queue(answer.stdout)
        seen = [read_job(entry, now) for entry in records]
        nodes = []
        for entry in hosts:
            with contextlib.suppress(ValueError, KeyError):  # "-" where there is no limit
                nodes.append(read_host(entry))
        return await self._queue_of(seen, nodes, longest=longest, up=up)

    async def _seen(self, ids: Sequence[str]) -> dict[str, ListedJob]:
        now = time.time()
        records, odd = await self._records(["bjobs", "-o", JOB_FIELDS, "-json", *ids])
        listed = {seen.id: seen for seen in (read_job(entry, now) for entry in records)}
        for block in odd:
            if (id := id_in(block)) is not None:
                listed[id] = unknown_report(id, "bjobs said of it what cannot be read")
        # bjobs forgets ended jobs after CLEAN_PERIOD, an hour by default.
        if gone := [id for id in ids if id not in listed]:
            answer = await self._run(["bacct", "-l", *gone])
            for id, (how, why) in parse_accounting(answer.stdout).items():
                listed[id] = ListedJob(id=id, state="ended", how=how, reason=why)
        nowhere = "neither listed nor in the accounting"
        return {id: listed.get(id) or unknown_report(id, nowhere) for id in ids}

    async def _script(self, request: JobRequest) -> str:
        folder, name = plain_folder(request), plain_name(request)
        array = f"[1-{request.copies}]" if request.copies > 1 else ""
        directives = [
            f'-J "{name}{array}"',
            f"-cwd {folder}",
            f"-o {folder}/{name}.%J.%I.out",
            # Not rerun: a pilot that is started twice would come with the same credential.
            "-rn",
            f"-W {max(1, math.ceil(request.seconds / 60))}",
            *_size(request),
            *self._site_options(),
        ]
        if request.reservation is not None:
            directives.append(f"-U {request.reservation}")
        if request.begin is not None:
            directives.append(f"-b {await self._date(request.begin)}")
        number = element("LSB_JOBINDEX", 1)
        return self._job_script(request, directives, f"cd {folder} || exit 1", number)

    async def _date(self, moment: float) -> str:
        """
        Format a time as ``year:month:day:hour:minute`` in the submitting machine's zone, rounded up
        to the minute.
        """
        # bsub takes minutes in the submitting machine's zone, which only that machine knows.
        whole = math.ceil(moment / 60) * 60
        answer = await self._shell.run(["date", "-d", f"@{whole}", "+%Y:%m:%d:%H:%M"])
        if answer.status != 0:
            raise command_error("date", answer, ())
        return answer.stdout.strip()

    async def _named(self, name: str, copies: int) -> JobIds:
        command = ["bjobs", "-a", "-J", name, "-o", JOB_FIELDS, "-json"]
        records, _ = await self._records(command)
        return [id_of(entry) for entry in records if "JOBID" in entry]

    async def _records(self, command: Sequence[str]) -> tuple[list[Entry], list[str]]:
        answer = await self._run(command)
        found = parse_json_list(answer.stdout, "RECORDS")
        if found is not None:
            return found
        output = f"{answer.stderr}\n{answer.stdout}"
        if re.search(self.gone, output, re.IGNORECASE):
            return [], []
        if answer.status != 0:
            raise self._error(command[0], answer)
        raise unreadable_output_error(command[0], answer.stdout)


def _size(request: JobRequest) -> list[str]:
    """Return the directives for the number of slots and the spread over hosts."""
    each = request.processors
    if request.nodes is not None:
        fewest, most = request.nodes[0] * each, request.nodes[1] * each
        slots = str(fewest) if fewest == most else f"{fewest},{most}"
        return [f"-n {slots}", f'-R "span[ptile={each}]"']
    if request.together and each > 1:
        return [f"-n {each}", '-R "span[hosts=1]"']
    return [f"-n {each}"]
