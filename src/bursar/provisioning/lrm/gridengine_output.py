"""
Parse the output of ``qstat -xml``, ``qrstat -xml`` and ``qacct``.

Each job is read for itself, by the tags that enclose it: one that is no XML, or of a state without
a name here, spoils its own answer and no other.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import defusedxml.ElementTree as ElementTree

from bursar.provisioning.lrm.command_adapter import ListedJob, parse_moment, seconds
from bursar.provisioning.lrm.resource_manager import (
    ClusterNode,
    JobEnding,
    JobState,
    QueueReservation,
)

# Parse the output of ``qacct`` about jobs that are gone.

_RULE = re.compile(r"^={20,}\s*$", re.MULTILINE)
_LIMIT = re.compile(r"\bh_rt=(\S+?)(?=[,\s]|$)")
_CTIME = ("%a %b %d %H:%M:%S %Y", "%m/%d/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S.%f")

_KILLED = 128 + 9
_ENFORCED = 37
"""``failed``: the queue master enforced a limit (accounting(5))."""

_AFTER = 100
"""``failed``: after the job began; then its exit status tells more."""

_LOST = frozenset({21, 22, 23, 34})
"""``failed``: the host came back without the job, or was not heard of."""

_RESCHEDULED = frozenset({24, 25, 30})
"""``failed``: moved, rescheduled: this was not its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QacctRecord:
    """
    Accounting record of a job that has ended.

    Parameters
    ----------
    task
        Number of the array task; None: the job is no array.
    slots
        Number of slots held by the job.
    began, ended
        Seconds since the epoch; None for a job that never began.
    seconds
        Seconds that the job ran.
    limit
        Limit ``h_rt`` of the job, seconds; None if not recorded.
    failed
        Code of Grid Engine's own failure, 0 for none.
    words
        Meaning of that code, in Grid Engine's words.
    deleted
        User who deleted the job, where the version records this.
    """

    number: str
    task: int | None
    slots: int
    began: float | None
    ended: float | None
    seconds: float
    limit: float | None
    failed: int
    words: str
    status: int
    deleted: str = ""
    host: str = ""

    @property
    def how(self) -> JobEnding:
        """
        Ending of the job.

        Grid Engine does not say whether a job was killed by its time limit or by ``qdel``: what ran
        as long as it might is taken for the former, anything else that was killed for the latter.
        """
        if self.failed == _ENFORCED:
            return "timeout"
        if self.failed in _LOST:
            return "node-fail"
        if self.failed in _RESCHEDULED:
            return "preempted"
        if self.failed in (0, _AFTER):
            if self.deleted:
                return "cancelled"
            if self.status == _KILLED:
                over = self.limit is not None and self.seconds >= self.limit
                return "timeout" if over else "cancelled"
            return "completed" if self.failed == self.status == 0 else "failed"
        return "rejected"  # something before the job, such as its folder or its shell

    @property
    def reason(self) -> str:
        """Reason of the ending, in Grid Engine's words."""
        if self.failed == 0:
            return "" if self.status == 0 else f"exit status {self.status}"
        by = f", deleted by {self.deleted}" if self.deleted else ""
        return f"failed {self.failed}: {self.words}, exit status {self.status}{by}"


def parse_records(text: str) -> list[QacctRecord]:
    """
    Parse records in order, leaving out unreadable ones.

    A job that was rescheduled has several, the last one last.
    """
    records = []
    for block in _RULE.split(text):
        values: dict[str, str] = {}
        for line in block.splitlines():
            name, _, value = line.strip().partition(" ")
            values.setdefault(name, value.strip())
        if "jobnumber" not in values:
            continue
        try:
            records.append(_record(values))
        except (KeyError, ValueError):
            continue
    return records


def _record(values: dict[str, str]) -> QacctRecord:
    failed, _, words = values["failed"].partition(":")
    began = parse_moment(values.get("start_time", ""), *_CTIME)
    ended = parse_moment(values.get("end_time", ""), *_CTIME)
    wallclock = re.match(r"[\d.]+", values.get("ru_wallclock", ""))
    limit = _LIMIT.search(values.get("category", ""))
    deleted = values.get("deleted_by", "NONE")
    return QacctRecord(
        number=str(int(values["jobnumber"])),
        task=int(values["taskid"]) if values.get("taskid", "").isdigit() else None,
        slots=int(values.get("slots", "1")),
        began=began,
        ended=ended if began is None or ended is None or ended >= began else None,
        seconds=float(wallclock[0]) if wallclock else 0.0,
        limit=seconds(limit[1]) if limit else None,
        failed=int(failed),
        words=words.strip(),
        status=int(re.match(r"\d+", values.get("exit_status", "0"))[0]),  # type: ignore[index]
        deleted="" if deleted in ("NONE", "") else deleted,
        host=values.get("hostname", ""),
    )


# Parse the output of ``qstat -xml`` and ``qrstat -xml``.

_QUEUE = re.compile(r"<Queue-List>(.*?)</Queue-List>", re.DOTALL)
_JOB = re.compile(r"<job_list\b[^>]*>.*?</job_list>", re.DOTALL)
_NUMBER = re.compile(r"<JB_job_number>\s*(\d+)\s*<")
_RESOURCE = re.compile(r'<resource name="(\w+)" type="(\w+)">([^<]*)</resource>')
_RESERVATION = re.compile(r"<ar_summary>.*?</ar_summary>", re.DOTALL)
_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
_LETTERS = frozenset("dEhrRsStTwqzPN")
"""Letters of job states (qstat(1)); P and N: preempted, as Univa's successors have it."""

_ISO = "%Y-%m-%dT%H:%M:%S"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True, slots=True, kw_only=True)
class QstatJob:
    """
    A line of ``qstat``: a job, or some tasks of an array.

    Parameters
    ----------
    tasks
        Ranges of array tasks: first, last and step; empty for a job that is no array.
    state
        State letters of the job; empty where unreadable.
    slots
        Number of slots held or requested.
    began, submitted
        Seconds since the epoch; None if not listed.
    limit
        Limit ``h_rt`` of the job, seconds; None: no limit.
    nodes
        Hosts on which the job runs.
    queues
        Queues requested for the job; empty: any.
    odd
        Reason that the job could not be read; empty if it was read.
    """

    number: str
    tasks: tuple[tuple[int, int, int], ...] = ()
    state: str = ""
    name: str = ""
    owner: str = ""
    slots: int = 1
    began: float | None = None
    submitted: float | None = None
    limit: float | None = None
    nodes: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    odd: str = ""

    def __contains__(self, task: int | None) -> bool:
        """Whether the ranges hold a task; None stands for a job that is no array."""
        if task is None or not self.tasks:
            return task is None and not self.tasks
        return any(a <= task <= z and (task - a) % step == 0 for a, z, step in self.tasks)

    @property
    def count(self) -> int:
        """Number of tasks."""
        return sum((z - a) // step + 1 for a, z, step in self.tasks) if self.tasks else 1

    @property
    def ids(self) -> Iterator[str]:
        """Id of each task."""
        if not self.tasks:
            yield self.number
        for first, last, step in self.tasks:
            yield from (f"{self.number}.{task}" for task in range(first, last + 1, step))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInstance:
    """
    A queue on one host.

    Parameters
    ----------
    used, total
        Number of slots in use, and of all slots.
    state
        State letters; empty for a queue that accepts jobs.
    resources
        Value and kind of each resource by name, as ``-F`` lists them.
    """

    queue: str
    host: str
    used: int
    total: int
    state: str
    resources: dict[str, tuple[str, str]] = field(default_factory=dict)
    jobs: tuple[QstatJob, ...] = ()


def is_listing(text: str) -> bool:
    """Whether a text is the output of ``qstat -xml``, complete or cut off."""
    return "<job_info" in text


def parse_jobs(text: str) -> list[QstatJob]:
    """Parse all jobs of a listing in order, at any depth."""
    return [_job(block) for block in _JOB.findall(text)]


def parse_instances(text: str) -> list[QueueInstance]:
    """Parse queue instances, leaving out unreadable ones."""
    instances = []
    for block in _QUEUE.findall(text):
        head = block.partition("<job_list")[0]
        with suppress(KeyError, ValueError, ElementTree.ParseError):
            values = _values(f"<x>{head}</x>")
            queue, _, host = values["name"].partition("@")
            instance = QueueInstance(
                queue=queue,
                host=host,
                used=int(values["slots_used"]),
                total=int(values["slots_total"]),
                state=values.get("state", ""),
                resources={n: (value, kind) for n, kind, value in _RESOURCE.findall(head)},
                jobs=tuple(replace(job, nodes=(host,)) for job in parse_jobs(block)),
            )
            instances.append(instance)
    return instances


def waiting_jobs(text: str, queue: str | None) -> list[QstatJob]:
    """Jobs of ``qstat -f`` that are in no queue yet and do not ask for another queue."""
    jobs = parse_jobs(_QUEUE.sub("", text))
    return [job for job in jobs if queue is None or not job.queues or _asks_for(job, queue)]


def nodes_of(instances: list[QueueInstance], queue: str | None) -> list[ClusterNode]:
    """
    Return the hosts of a queue, or of all queues.

    Where a host's slots are limited (a consumable of the host), all its queues share them: what
    it has is what is free plus what all of them use.
    """
    hosts: dict[str, list[QueueInstance]] = {}
    for instance in instances:
        hosts.setdefault(instance.host, []).append(instance)
    nodes = []
    for host, there in hosts.items():
        ours = [instance for instance in there if queue in (None, instance.queue)]
        if not ours:
            continue
        total = sum(instance.total for instance in ours)
        free = sum(max(0, i.total - i.used) for i in ours if not i.state)
        limit = _limit(there)
        if limit is not None:
            total = min(total, limit + sum(instance.used for instance in there))
            free = min(free, limit)
        up = any(not instance.state for instance in ours)
        letters = "".join(dict.fromkeys("".join(instance.state for instance in ours)))
        nodes.append(
            ClusterNode(
                name=host,
                processors=total,
                allocated=total - free if up else min(total, sum(i.used for i in ours)),
                up=up,
                state=letters or "ok",
                memory=_memory(ours),
            )
        )
    return nodes


def running_of(instances: list[QueueInstance], queue: str | None) -> list[QstatJob]:
    """Return the running jobs of a queue, or of all; slots are summed over each job's hosts."""
    whole: dict[tuple[str, tuple[tuple[int, int, int], ...]], QstatJob] = {}
    for instance in instances:
        if queue not in (None, instance.queue):
            continue
        for job in instance.jobs:
            before = whole.get((job.number, job.tasks))
            if before is not None:
                nodes = tuple(dict.fromkeys((*before.nodes, *job.nodes)))
                job = replace(before, slots=before.slots + job.slots, nodes=nodes)
            whole[job.number, job.tasks] = job
    return list(whole.values())


def listed_job(id: str, line: QstatJob) -> ListedJob:
    """Return one of the jobs that a line stands for."""
    return ListedJob(
        id=id,
        state=state_of(line),
        reason=reason_of(line),
        owner=line.owner,
        submitted=line.submitted,
        began=line.began,
        limit=line.limit,
        processors=None if line.odd else line.slots,
        nodes=line.nodes,
    )


def longest_of(instances: list[QueueInstance]) -> float | None:
    """Return the longest time that any of the queues allows; None: no limit, or unknown."""
    limits = []
    for instance in instances:
        try:
            limit = seconds(instance.resources["h_rt"][0])
        except (KeyError, ValueError):
            return None
        if limit is None:
            return None
        limits.append(limit)
    return max(limits, default=None)


def state_of(job: QstatJob) -> JobState:
    """
    Return the state of a job by the letters of qstat(1).

    A suspended job, or one that is being deleted, holds its slots yet. One in error is not
    started again until somebody clears it: held.
    """
    letters = job.state
    if job.odd or not letters or not set(letters) <= _LETTERS:
        return "unknown"
    if "z" in letters:
        return "ended"
    if "E" in letters:
        return "held"
    if "w" in letters or "q" in letters:
        return "held" if "h" in letters else "pending"
    return "running" if set(letters) & set("rRtTsSPN") else "unknown"


def reason_of(job: QstatJob) -> str:
    """Return the reason that a job waits or is suspended, as far as the state letters show."""
    if job.odd:
        return job.odd
    letters = job.state
    if state_of(job) == "unknown":
        return f"in a state that is not known: {letters!r}"
    words = (
        ("E", "in error"),
        ("h", "on hold"),
        ("d", "being deleted"),
        ("q", "queued"),
        ("t", "being sent"),
    )
    suspended = "suspended" if set(letters) & set("sSTP") else ""
    reasons = [word for letter, word in words if letter in letters]
    return ", ".join([*reasons, *([suspended] if suspended else [])])


def parse_reservations(text: str) -> dict[str, QueueReservation]:
    """
    Parse advance reservations by number, leaving out unreadable ones.

    All users' reservations are returned. Starts are in seconds since the epoch. A listing that is
    not detailed names no slots: the processors are 0 then.
    """
    windows = {}
    for block in _RESERVATION.findall(text):
        try:
            values = _values(block)
            start, end = (parse_moment(values[x], _ISO) for x in ("start_time", "end_time"))
            if start is None or end is None:
                continue
            granted = re.findall(r'<granted_slots\b[^>]*\bslots="(\d+)"', block)
            windows[values["id"]] = QueueReservation(
                name=values.get("name") or values["id"],
                start=start,
                seconds=end - start,
                processors=sum(int(slots) for slots in granted),
            )
        except (KeyError, ValueError, ElementTree.ParseError):
            continue
    return windows


def owned(window: QueueReservation, own: bool) -> QueueReservation:
    """Return a reservation marked as this user's or another's."""
    return replace(window, own=own)


def parse_owners(text: str) -> dict[str, str]:
    """Parse the owners of advance reservations, by reservation number."""
    return dict(re.findall(r"<id>(\d+)</id>.*?<owner>([^<]*)</owner>", text, re.DOTALL))


def _asks_for(job: QstatJob, queue: str) -> bool:
    """Whether the job asks for the queue, by name, with a host, or by a pattern."""
    return any(fnmatchcase(queue, asked.partition("@")[0]) for asked in job.queues)


def _job(block: str) -> QstatJob:
    found = _NUMBER.search(block)
    number = found.group(1) if found else ""
    try:
        element = ElementTree.fromstring(block)
        values = {child.tag: (child.text or "").strip() for child in element}
        limit = None
        for request in element.iter("hard_request"):
            if request.get("name") == "h_rt":
                limit = seconds(request.text or "")
        queue = values.get("queue_name", "").partition("@")[2]
        return QstatJob(
            number=str(int(values["JB_job_number"])),
            tasks=_ranges(values.get("tasks", "")),
            state=values["state"],
            name=values.get("full_job_name") or values.get("JB_name", ""),
            owner=values.get("JB_owner", ""),
            slots=int(values.get("slots", "1")),
            began=parse_moment(values.get("JAT_start_time", ""), _ISO),
            submitted=parse_moment(values.get("JB_submission_time", ""), _ISO),
            limit=limit,
            nodes=(queue,) if queue else (),
            queues=tuple((it.text or "").strip() for it in element.iter("hard_req_queue")),
        )
    except (KeyError, ValueError, ElementTree.ParseError) as error:
        return QstatJob(number=number, odd=f"qstat said of it what cannot be read: {error}")


def _ranges(text: str) -> tuple[tuple[int, int, int], ...]:
    """Parse task ranges, for example ``1-5:2,9``."""
    ranges = []
    for part in text.split(",") if text and text != "undefined" else ():
        found = _RANGE.fullmatch(part.strip())
        if found is None:
            raise ValueError(f"no range of tasks: {text!r}")
        first = int(found[1])
        last, step = int(found[2] or first), int(found[3] or 1)
        if last < first or step < 1:
            raise ValueError(f"no range of tasks: {text!r}")
        ranges.append((first, last, step))
    return tuple(ranges)


def _values(block: str) -> dict[str, str]:
    element: Any = ElementTree.fromstring(block)
    return {child.tag: (child.text or "").strip() for child in element}


def _limit(instances: list[QueueInstance]) -> int | None:
    """Slots free under a host's own slot limit; None for a host without a limit."""
    for instance in instances:
        value, kind = instance.resources.get("slots", ("", ""))
        if kind == "hc":
            try:
                return max(0, int(float(value)))
            except ValueError:
                return None
    return None


def _memory(instances: list[QueueInstance]) -> int | None:
    for instance in instances:
        found = re.fullmatch(r"([\d.]+)([KMGT]?)", instance.resources.get("mem_total", ("",))[0])
        if found:
            return int(float(found[1]) * _UNITS[found[2]])
    return None
