"""
Reads what Slurm prints: of queues, nodes and reservations, and of jobs that have left the queue.

Formats are asked for (``-o``) rather than ``--json``: in 22.05, JSON lists each job there is
whatever ``--jobs`` says, takes the elements of an array that wait as one job, and for 800 jobs
is a megabyte where this is 30 kB; and from 21.08 to 24.05 its shape changed with each release.
No text that users choose is asked for. What may hold the sign between fields, a reason, is the
last, so that every line stands for itself.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from bursar.formats.job_files.sbatch_options import parse_time_limit
from bursar.provisioning.lrm import slurm_states
from bursar.provisioning.lrm.command_adapter import expand_hostlist, padded_numbers
from bursar.provisioning.lrm.command_runner import CommandRunner
from bursar.provisioning.lrm.resource_manager import (
    ClusterNode,
    JobReport,
    JobUsage,
    QueuedJob,
    QueueReservation,
)

# Parse the text that Slurm's commands print.

_MARK = "job"
"""Mark at the beginning of each line, so that the rest of a broken line passes for no line."""

STATUS = f"--format={_MARK}|%i|%A|%T|%S|%e|%C|%N|%r"
STATUS_FIELDS = 8
QUEUE = f"--format={_MARK}|%i|%T|%V|%S|%l|%C|%u|%Q|%P|%N|%r"
QUEUE_FIELDS = 11
NODES = f"--format={_MARK}|%N|%C|%m|%P|%a|%l|%T"
NODES_FIELDS = 7
RECORDS = "JobID,JobIDRaw,State,Start,End,AllocCPUS,ElapsedRaw,NodeList"
COMPLETIONS = "JobIDRaw,State,Start,End,NCPUS,ElapsedRaw"
"""The fields that sacct knows of jobs whose end was written to a file (``--completion``)."""


def parse_slurm_time(word: str) -> float | None:
    """
    Seconds since the epoch; None for none.

    With SLURM_TIME_FORMAT=%s times come as such. Others are in a zone that nobody names.
    """
    word = word.strip()
    return float(word) if re.fullmatch(r"[1-9]\d{0,11}", word) else None


def _fields(line: str, count: int) -> list[str]:
    """
    The fields of a line.

    Raises
    ------
    ValueError
        When it is not one of ours, or not whole.
    """
    parts = line.split("|", count)
    if parts[0] != _MARK or len(parts) != count + 1:
        raise ValueError(f"no line of that form: {line[:80]!r}")
    return parts[1:]


class SqueueStatus(NamedTuple):
    """
    State of jobs by one ``squeue``.

    Parameters
    ----------
    reports
        Reports by listed id; ``7`` may stand for all elements of array 7 that are not listed.
    raw
        Job number by which the accounting knows an element of an array.
    odd
        Lines that could not be read.
    """

    reports: dict[str, JobReport]
    raw: dict[str, str]
    odd: list[str]


def read_status(text: str) -> SqueueStatus:
    """Parse the output of ``squeue`` with :data:`STATUS`. The first line of a job counts."""
    status = SqueueStatus({}, {}, [])
    spoilt: dict[str, JobReport] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        try:
            id, raw, state, start, end, count, nodes, reason = _fields(line, STATUS_FIELDS)
            ids = list(_elements(id))
        except ValueError:
            # The id alone may still be readable: then this job is unknown, which is better than not
            # listed.
            start_of = re.match(rf"{_MARK}\|(\d+(?:_\d+)?)\|", line)
            if start_of:
                odd = JobReport(
                    id=start_of[1], state="unknown", reason=f"squeue said {line[:80]!r}"
                )
                spoilt.setdefault(start_of[1], odd)
            status.odd.append(line[:200])
            continue
        for one in ids:
            if one not in status.reports:
                report = _report(one, state, start, end, count, nodes, reason)
                status.reports[one] = report
                status.raw[one] = raw
    for one, odd in spoilt.items():
        status.reports.setdefault(one, odd)
    return status


def _elements(id: str) -> Iterator[str]:
    """``7``, ``7_2``, or each of ``7_[0-3,5%2]``."""
    array = re.fullmatch(r"(\d+)_\[([\d,\-]+)(?:%\d+)?\]", id)
    if array:
        for number in padded_numbers(array[2]):
            yield f"{array[1]}_{number}"
    elif re.fullmatch(r"\d+(_\d+)?(\+\d+)?", id):
        yield id
    else:
        raise ValueError(f"no job: {id!r}")


def _report(
    id: str, state: str, start: str, end: str, count: str, nodes: str, reason: str
) -> JobReport:
    meaning, reason_text = slurm_states.of_job(state, reason)
    try:
        processors = int(count)
        where = expand_hostlist(nodes)
    except ValueError as error:
        return JobReport(id=id, state="unknown", reason=str(error))
    begin, finish = parse_slurm_time(start), parse_slurm_time(end)
    waits = meaning.state in ("pending", "held")
    # Slurm counts a job that is completing up to when it stopped, however long it takes to tidy up.
    has_stopped = meaning.state == "ended" or "COMPLETING" in state.upper()
    # A job that was withdrawn while it waited has the moment of that as its start.
    began = None if waits or not where else begin
    return JobReport(
        id=id,
        state=meaning.state,
        how=meaning.how,
        reason=reason_text,
        began=began,
        ended=finish if has_stopped else None,
        until=finish if meaning.state == "running" else None,
        processors=processors if processors > 0 else None,
        nodes=() if waits else where,
        expected=begin if meaning.state == "pending" else None,
    )


def read_records(text: str) -> SqueueStatus:
    """Parse the output of ``sacct`` with :data:`RECORDS`."""
    status = SqueueStatus({}, {}, [])
    for line in text.splitlines():
        parts = line.split("|", 7)
        try:
            if len(parts) != 8:
                raise ValueError("not whole")
            id, raw, state, start, end, count, _, nodes = parts
            ids = list(_elements(id))
        except ValueError:
            status.odd.append(line[:200])
            continue
        for one in ids:
            state_word = state.split(" by ")[0]  # "CANCELLED by 1000"
            report = _report(one, state_word, start, end, count, nodes, "")
            status.reports.setdefault(one, report)
            status.raw.setdefault(one, raw)
    return status


def read_completions(text: str) -> SqueueStatus:
    """Parse the output of ``sacct --completion`` with :data:`COMPLETIONS`; ids are raw."""
    status = SqueueStatus({}, {}, [])
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) != 6 or not re.fullmatch(r"\d+", parts[0]) or not parts[1]:
            status.odd.append(line[:200])
            continue
        raw, state, start, end, count, _ = parts
        meaning, reason_text = slurm_states.of_job(state.split(" by ")[0], "")
        if meaning.state != "ended":  # the file has ends only
            status.odd.append(line[:200])
            continue
        processors = int(count) if count.isdecimal() else 0
        report = JobReport(
            id=raw,
            state="ended",
            how=meaning.how,
            reason=reason_text,
            began=parse_slurm_time(start) if processors else None,
            ended=parse_slurm_time(end),
            processors=processors or None,
        )
        status.reports[raw] = report  # the last of a job that was requeued
    return status


def read_stints(text: str) -> dict[str, list[tuple[int, float]]]:
    """
    Read processors and seconds of each time that a job ran, by raw job id.

    A job that was requeued has one line for each time.
    """
    found: dict[str, list[tuple[int, float]]] = {}
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) != 6 or not parts[0].isdecimal() or not parts[4].isdecimal():
            continue
        start, end, processors = (
            parse_slurm_time(parts[2]),
            parse_slurm_time(parts[3]),
            int(parts[4]),
        )
        if start is not None and end is not None and processors:
            found.setdefault(parts[0], []).append((processors, max(0.0, end - start)))
    return found


def usage_of(report: JobReport, now: float) -> JobUsage | None:
    """Return the usage of a job; None when the record does not determine the usage."""
    if report.state not in ("running", "ended"):
        return None
    if report.began is None or report.processors is None:
        return JobUsage(id=report.id, processors=0, seconds=0.0, how=report.how)
    end = report.ended if report.state == "ended" else now
    if end is None:
        return None
    return JobUsage(
        id=report.id,
        processors=report.processors,
        seconds=max(0.0, end - report.began),
        how=report.how,
    )


class SlurmPartition(NamedTuple):
    """
    A partition and its nodes by one ``sinfo``.

    Parameters
    ----------
    longest
        Longest time of a job, seconds; None: no limit.
    odd
        Lines that could not be read.
    """

    name: str
    nodes: tuple[ClusterNode, ...]
    longest: float | None
    up: bool
    odd: list[str]


_UP = {"idle", "mixed", "allocated", "completing", "planned", "reserved"}
_FLAGS = "*~#!%$@^-+"
"""Signs at the end of a node's state (sinfo(1), "NODE STATE CODES")."""
_NOT_NOW = "*!%$^@"
"""Marks of node states: not responding, going down, in maintenance, or rebooting."""


def read_nodes(text: str, queue: str | None) -> SlurmPartition:
    """
    Parse the output of ``sinfo -N`` with :data:`NODES`.

    Parameters
    ----------
    queue
        None: the default partition.
    """
    chosen = queue or ""
    nodes: dict[str, ClusterNode] = {}
    longest: float | None = None
    up = True
    odd: list[str] = []
    for line in text.splitlines():
        try:
            name, counts, memory, partition, available, most, state = _fields(line, NODES_FIELDS)
            if partition.rstrip("*") != queue if queue else not partition.endswith("*"):
                continue
            held, _, _, all_ = (int(count) for count in counts.split("/"))
            word = state.strip().lower()
            base = word.rstrip(_FLAGS)
            flags = word[len(base) :]
            chosen = partition.rstrip("*")
            longest = parse_time_limit(most)
            up = available.strip().lower() == "up"
            nodes[name] = ClusterNode(
                name=name,
                processors=all_,
                allocated=held,
                up=base in _UP and not any(flag in flags for flag in _NOT_NOW),
                state=state.strip(),
                memory=int(memory) << 20 if memory.isdecimal() else None,
            )
        except ValueError:
            odd.append(line[:200])
    return SlurmPartition(chosen, tuple(nodes.values()), longest, up, odd)


def read_queue(text: str, queue: str, me: str) -> tuple[QueuedJob, ...]:
    """
    Parse the output of ``squeue`` with :data:`QUEUE` for a partition, but for unreadable lines.

    Running jobs come first, then those that wait by their priority, then those that are held.
    """
    found: list[tuple[tuple[int, float, int], QueuedJob]] = []
    for number, line in enumerate(text.splitlines()):
        with suppress(ValueError):
            id, state, sent, start, most, count, user, priority, queues, nodes, reason = _fields(
                line, QUEUE_FIELDS
            )
            if queue not in queues.split(","):  # a job that waits may name several
                continue
            ids = list(_elements(id))
            meaning, _ = slurm_states.of_job(state, reason)
            if meaning.state in ("ended", "unknown"):
                continue
            running = meaning.state == "running"
            held = meaning.state == "held"
            where = expand_hostlist(nodes) if running else ()
            rank = (0 if running else 2 if held else 1, 0.0 if running else -float(priority))
            for one in ids:
                job = QueuedJob(
                    id=one,
                    running=running,
                    processors=int(count),
                    submitted=parse_slurm_time(sent),
                    began=parse_slurm_time(start) if running else None,
                    seconds=parse_time_limit(most),
                    own=user == me,
                    held=held,
                    nodes=where,
                )
                found.append(((*rank, number), job))
    found.sort(key=lambda entry: entry[0])
    return tuple(job for _, job in found)


def read_windows(
    text: str, *, nodes: Sequence[ClusterNode], me: str, account: str | None
) -> tuple[QueueReservation, ...]:
    """
    Parse the output of ``scontrol -o show reservation`` for some nodes, but for unreadable lines.
    """
    sizes = {node.name: node.processors for node in nodes}
    found: list[QueueReservation] = []
    for line in text.splitlines():
        if not line.startswith("ReservationName="):
            continue  # "No reservations in the system", and what belongs to the line before
        with suppress(KeyError, ValueError):
            values = parse_pairs(line)
            start, end = parse_slurm_time(values["StartTime"]), parse_slurm_time(values["EndTime"])
            if start is None or end is None or end <= start:
                raise ValueError("no times")
            here = [
                sizes[name] for name in expand_hostlist(values.get("Nodes", "")) if name in sizes
            ]
            if not here:
                continue
            users = values.get("Users", "").split(",")
            accounts = values.get("Accounts", "").split(",")
            found.append(
                QueueReservation(
                    name=values["ReservationName"],
                    start=start,
                    seconds=end - start,
                    processors=min(_cpus(values), sum(here)),
                    own=me in users or (account is not None and account in accounts),
                )
            )
    return tuple(found)


def _cpus(values: Mapping[str, str]) -> int:
    match = re.search(r"\bcpu=(\d+)", values.get("TRES", ""))
    return int(match[1] if match else values["CoreCnt"])


def parse_pairs(line: str) -> dict[str, str]:
    """The ``Name=value`` pairs of a line of scontrol's, of which no value holds a space."""
    return dict(re.findall(r"(?:^|\s)([A-Za-z][\w:/]*)=(\S*)", line))


_START = re.compile(r"Job (\d+) to start at (\S+)", re.IGNORECASE)


def read_estimate(text: str) -> float | None:
    """Parse the expected start from ``sbatch --test-only``, seconds since the epoch."""
    match = _START.search(text)
    return parse_slurm_time(match[2]) if match else None


def read_submitted(text: str) -> str | None:
    """The job that ``sbatch --parsable`` names, ``12`` or ``12;cluster``; None: it names none."""
    for line in reversed(text.splitlines()):
        match = re.fullmatch(r"([1-9]\d*)(;[\w.\-]+)?", line.strip())
        if match:
            return match[1]
    return None


def parents(ids: Iterable[str]) -> list[str]:
    """The jobs and arrays of ids, each once."""
    return list(dict.fromkeys(id.split("_")[0] for id in ids))


# Reads Slurm's records of jobs that are no longer in the queue.

EPOCH = {"SLURM_TIME_FORMAT": "%s"}
"""Variables that make Slurm print seconds since the epoch; other times have a zone of their own."""

MOST_LISTED = 50_000
"""Limit on the characters of ids on one command line; ssh takes 128 kB for all."""


class SlurmRecords:
    """
    Reads a cluster's records, by accounting or by the list of completed jobs.

    Attributes
    ----------
    accounting
        Whether the cluster keeps accounting records; true until Slurm says otherwise.
    """

    def __init__(self, shell: CommandRunner) -> None:
        self._shell = shell
        self._raw: dict[str, str] = {}
        self.accounting = True

    def note(self, raw: Mapping[str, str]) -> None:
        """Record the numbers by which accounting knows jobs, by job id: array elements have two."""
        self._raw.update(raw)

    async def read(self, ids: Sequence[str]) -> tuple[SqueueStatus, dict[str, str]]:
        """
        Read accounting records or, without accounting, the list of completed jobs.

        Returns
        -------
        status : SqueueStatus
            State of the jobs.
        names : dict
            Names under which the records have jobs, where these differ from their ids.

        Raises
        ------
        SiteError
            When the records cannot be asked for now.
        """
        if self.accounting:
            jobs = ",".join(parents(ids)) if len(ids) < 5000 else ""
            which = [f"--jobs={jobs}"] if jobs and len(jobs) <= MOST_LISTED else []
            answer = await self._shell.run(
                ["sacct", "-X", "-n", "-P", *which, f"--format={RECORDS}"],
                environment=EPOCH,
            )
            if answer.status == 0:
                return read_records(answer.stdout), {}
            if "storage is disabled" not in answer.words:
                raise slurm_states.slurm_error("records cannot be read", answer.words)
            self.accounting = False
        # Asked for all jobs, sacct 22.05 breaks down when any job's name holds a line end.
        raw = [self._raw.get(id, id) for id in ids]
        jobs = ",".join(dict.fromkeys(id for id in (*raw, *parents(ids)) if "_" not in id))
        which = [f"--jobs={jobs}"] if len(jobs) <= MOST_LISTED else []
        answer = await self._shell.run(
            ["sacct", "--completion", "-n", "-P", *which, f"--format={COMPLETIONS}"],
            environment=EPOCH,
        )
        if answer.status != 0 and not answer.stdout:
            # Most sites have one of the two; without either, ended jobs are simply not known.
            if slurm_states.is_unreachable(answer.words):
                raise slurm_states.slurm_error("records cannot be read", answer.words)
            return SqueueStatus({}, {}, []), {}
        return read_completions(answer.stdout), self._raw

    async def stints(self, ids: Sequence[str]) -> dict[str, list[tuple[int, float]]]:
        """Return processors and seconds of each run of jobs that were requeued, where recorded."""
        if not ids:
            return {}
        raw = {self._raw.get(id, id): id for id in ids}
        answer = None
        for kind in ("--duplicates", "--completion"):  # a site has one of them, or neither
            if answer is None or answer.status != 0 or not answer.stdout.strip():
                answer = await self._shell.run(
                    ["sacct", kind, "-X", "-n", "-P", f"--jobs={','.join(raw)}",
                     f"--format={COMPLETIONS}"],
                    environment=EPOCH,
                )  # fmt: skip
        assert answer is not None
        stints = read_stints(answer.stdout) if answer.status == 0 else {}
        return {raw[job]: times for job, times in stints.items() if job in raw}
