"""
Workload traces in files: logs in the Standard Workload Format, schedules as Batsim's tables.

One line for each job, 18 numbers, -1 where a value is not known; comment lines
begin with ``;`` and may state facts of the machine. Version 2.2 of the format
(Feitelson and others, Parallel Workloads Archive).
"""

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bursar.formats.file_text import read_lines, replacing
from bursar.memory import collector_paused
from bursar.model.errors import InputError
from bursar.model.trace import Trace, TraceFinding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bursar.model.trace import FloatArray, IntArray, Trace


# Logs of parallel machines in the Standard Workload Format.

Width = Literal["requested", "allocated"]

FIELDS = 18
LONGEST_LINE = 1 << 16
"""Bytes of a line; a longer one shows that the file is no log."""

_USED = (0, 1, 2, 3, 4, 7, 8, 10, 11, 13)
_used_of = itemgetter(*_USED)
_NAMES = (
    "job number", "submit time", "wait time", "run time", "allocated processors",
    "average CPU time", "used memory", "requested processors", "requested time",
    "requested memory", "status", "user", "group", "executable", "queue",
    "partition", "preceding job", "think time",
)  # fmt: skip
_PART = (2, 3, 4)  # status of a line that is a part of a job, which has a line of its own
_HEADER_BYTES = 1 << 20
_LARGEST = 2.0**53
"""Largest number up to which a float tells whole numbers apart."""
_YEAR_10000 = 253_402_300_800.0  # seconds since the epoch
_OURS = ("MaxProcs", "MaxNodes", "UnixStartTime", "MaxJobs", "MaxRecords")
"""Facts of a log's header that are written from the trace, or may no longer hold."""


def read_swf(path: Path, *, processors: int | None = None, width: Width = "requested") -> Trace:
    """
    Read the jobs of a log that a simulation can use, in order of submission.

    What cannot be used is dropped and what is missing is filled in by fixed
    rules; :attr:`Trace.cleaning` counts each.

    Parameters
    ----------
    path
        Path of the log; also compressed (``.gz``, ``.xz``).
    processors
        Size of the machine; None: from the header. Wider jobs are dropped.
    width
        Which number of processors a job holds, where both are known.

    Raises
    ------
    InputError
        When a line is not of the format, or there is no job; names the line.
    """
    header: list[str] = []
    numbers = array("d")
    # Packed arrays, not lists: logs have millions of jobs, and a list of floats takes four times
    # the memory.
    lines = array("q")
    size = 0
    for number, line in read_lines(path, longest=LONGEST_LINE):
        text = line.strip()
        if not text:
            continue
        if text.startswith(";"):
            size += len(text)
            # A file of comments only must not fill the memory.
            if size <= _HEADER_BYTES:
                header.append(text.lstrip("; ").rstrip())
            continue
        fields = text.split()
        if len(fields) < FIELDS:
            raise InputError(
                f"expected {FIELDS} numbers, got {len(fields)}", where=f"{path}:{number}"
            )
        try:
            numbers.extend(map(float, _used_of(fields)))
        except ValueError:
            raise _not_a_number(path, number, fields) from None
        lines.append(number)
    if not lines:
        raise InputError("holds no job", where=str(path))
    return _clean(path, header, numbers, lines, processors, width)


def write_swf(
    path: Path,
    trace: Trace,
    *,
    wait: "FloatArray | None" = None,
    runtime: "FloatArray | None" = None,
    status: "IntArray | None" = None,
    header: Sequence[str] = (),
) -> None:
    """
    Write a trace as a log, compressed where the name ends in ``.gz`` or ``.xz``.

    Parameters
    ----------
    wait
        Seconds that each job waits; None: as recorded.
    runtime
        Seconds that each job runs; None: as in the trace.
    status
        How each job ended, as the format numbers it: 0 failed, 1 completed, 5
        cancelled. None: all completed.
    header
        Comment lines. Facts of the machine are added, and what the trace's own
        header says besides, such as whom to thank for the log.

    Raises
    ------
    BursarError
        When the file cannot be written; the old one is then unharmed.
    """
    import numpy as np

    columns = (
        trace.number,
        trace.submit,
        trace.wait if wait is None else wait,
        trace.runtime if runtime is None else runtime,
        trace.processors,
        trace.estimate,
        np.ones(len(trace), dtype=np.int64) if status is None else status,
        trace.user,
    )
    with replacing(path) as file:
        for text in (*header, *_stated(trace)):
            file.write(f"; {' '.join(text.splitlines())}\n")
        for number, submit, waited, ran, width, estimate, ended, user in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            file.write(
                f"{number} {_plain(submit)} {_plain(waited)} {_plain(ran)} {width} -1 -1 "
                f"{width} {_plain(estimate)} -1 {ended} {user} -1 -1 -1 -1 -1 -1\n"
            )


def _stated(trace: Trace) -> Iterator[str]:
    """Write the header of a trace: facts of the machine, and the remarks of its log."""
    if trace.max_processors is not None:
        yield f"MaxProcs: {trace.max_processors}"
    if trace.begin is not None:
        yield f"UnixStartTime: {_plain(trace.begin)}"
    for text in trace.header:
        if text.partition(":")[0].strip() not in _OURS:
            yield text


def _not_a_number(path: Path, line: int, fields: list[str]) -> InputError:
    for i in _USED:
        try:
            float(fields[i])
        except ValueError:
            return InputError(
                f'field {i + 1} ({_NAMES[i]}): expected a number, got "{fields[i][:40]}"',
                where=f"{path}:{line}",
            )
    raise AssertionError


def _clean(
    path: Path,
    header: list[str],
    numbers: "array[float]",
    lines: "array[int]",
    processors: int | None,
    width: Width,
) -> Trace:
    import numpy as np

    table = np.frombuffer(numbers).reshape(-1, len(_USED))
    line = np.frombuffer(lines, dtype=np.int64)
    number, submit, wait, runtime, allocated, requested, estimate, status, user, program = table.T
    first, second = (requested, allocated) if width == "requested" else (allocated, requested)
    widths = np.where(first > 0, first, second)
    facts = _facts(header)
    sizes = (facts.get(name, -1.0) for name in ("MaxProcs", "MaxNodes"))
    machine = next((int(size) for size in sizes if 1 <= size <= _LARGEST), None)
    begin = facts.get("UnixStartTime", -1.0)
    limit = machine if processors is None else processors

    findings: list[TraceFinding] = []
    kept = np.ones(len(table), dtype=np.bool_)

    def note(reason: str, which: "NDArray[np.bool_]", *, drop: bool) -> None:
        nonlocal kept
        which = np.logical_and(which, kept)
        count = int(which.sum())
        if count:
            at = int(line[np.argmax(which)])
            findings.append(TraceFinding(reason=reason, jobs=count, dropped=drop, line=at))
        if drop:
            kept &= ~which

    # Negated, so that NaN, for which every comparison is false, counts as endless.
    endless = ~(np.abs(table[:, [0, 1, 3, 4, 5, 6]]) <= _LARGEST)
    note("a number that is not finite or too large", endless.sum(axis=1) > 0, drop=True)
    # Format version 2.2: a job that was suspended or checkpointed has a line for each part and one
    # for the whole; counting both would run it twice.
    part = (status == _PART[0]) | (status == _PART[1]) | (status == _PART[2])
    note("part of a job that has a line of its own", part, drop=True)
    note("submit time unknown", submit < 0, drop=True)
    note("run time unknown or not positive", ~(runtime > 0), drop=True)
    note("number of processors unknown", ~(widths > 0), drop=True)
    # Up, as a job needs all that was asked for.
    whole = np.ceil(widths)
    note("a fraction of a processor: rounded up", whole > widths, drop=False)
    widths = whole
    if limit is not None:
        note(f"wider than {limit} processors", widths > limit, drop=True)
    note("no estimate: the run time is taken", ~(estimate > 0), drop=False)
    note("ran longer than its estimate", (estimate > 0) & (runtime > estimate), drop=False)
    waited = (wait >= 0) & (wait <= _LARGEST)
    note("a recorded wait that cannot be: unknown", ~waited & (wait != -1), drop=False)
    if not kept.any():
        raise InputError(
            f"none of its {len(table)} jobs can be used: {findings[0].reason}", where=str(path)
        )
    rows = np.flatnonzero(kept)
    late = np.zeros(len(table), dtype=np.bool_)
    late[rows[1:]] = np.diff(submit[rows]) < 0
    note("submitted before the job above: sorted", late, drop=False)
    # Stable: jobs of one second keep the order of the log.
    rows = rows[np.argsort(submit[rows], kind="stable")]
    return Trace(
        name=path.name.split(".swf")[0],
        number=number[rows].astype(np.int64),
        submit=submit[rows].copy(),
        runtime=runtime[rows].copy(),
        estimate=np.where(estimate[rows] > 0, estimate[rows], runtime[rows]),
        processors=widths[rows].astype(np.int64),
        wait=np.where(waited[rows], wait[rows], math.nan),
        user=_whole_numbers(user[rows]),
        status=_whole_numbers(status[rows]),
        application=_whole_numbers(program[rows]),
        max_processors=machine,
        begin=begin if 0 < begin < _YEAR_10000 else None,
        header=tuple(header),
        cleaning=tuple(findings),
    )


def _whole_numbers(column: "FloatArray") -> "IntArray":
    """Return a column of numbers that name something; -1 for what cannot be one."""
    import numpy as np

    return np.where(np.abs(column) <= _LARGEST, column, -1).astype(np.int64)


def _facts(header: Sequence[str]) -> dict[str, float]:
    """Return the numbers that the header states, as in ``MaxProcs: 100``."""
    facts: dict[str, float] = {}
    for text in header:
        name, colon, value = text.partition(":")
        words = value.split()
        if colon and words:
            try:
                facts.setdefault(name.strip(), float(words[0].rstrip(".,;")))
            except ValueError:
                continue
    return facts


def _plain(value: float) -> str:
    """Write a number: whole numbers without a point, -1 for unknown."""
    if math.isnan(value):
        return "-1"
    return str(int(value)) if value == int(value) else repr(value)


# Schedules as tables that other tools read: Batsim's ``jobs.csv``.

COLUMNS = (
    "job_id",
    "workload_name",
    "profile",
    "submission_time",
    "requested_number_of_resources",
    "requested_time",
    "success",
    "final_state",
    "starting_time",
    "execution_time",
    "finish_time",
    "waiting_time",
    "turnaround_time",
    "stretch",
    "allocated_resources",
    "consumed_energy",
    "metadata",
)


def write_jobs_csv(
    path: Path,
    trace: "Trace",
    start: "FloatArray",
    finish: "FloatArray",
    killed: "NDArray[np.bool_]",
    processors: int,
) -> None:
    """
    Write a line for each job, in the order of the jobs' ends.

    Parameters
    ----------
    start, finish, killed
        Start and end, seconds, and whether the job was killed, for each job of the trace.
    processors
        Number of the machine's processors. Each job is given the free ones with the lowest numbers.

    Raises
    ------
    BursarError
        When the file cannot be written; the old one is then unharmed.
    """
    import numpy as np

    with collector_paused():
        given = allocate(start, finish, trace.processors, processors)
        held = [_as_text(intervals) for intervals in given]
    name = "".join("_" if c in ',"\r\n' else c for c in trace.name)
    with replacing(path) as file:
        file.write(",".join(COLUMNS) + "\n")
        order = np.lexsort((trace.number, finish))
        for i, number, submitted, width, estimate, began, ended, cut in zip(
            order.tolist(),
            trace.number[order].tolist(),
            trace.submit[order].tolist(),
            trace.processors[order].tolist(),
            trace.estimate[order].tolist(),
            start[order].tolist(),
            finish[order].tolist(),
            killed[order].tolist(),
            strict=True,
        ):
            state = "0,COMPLETED_WALLTIME_REACHED" if cut else "1,COMPLETED_SUCCESSFULLY"
            run, turnaround = ended - began, ended - submitted
            file.write(
                f"{number},{name},{number},{submitted:.15g},{width},{estimate:.15g},{state},"
                f"{began:.15g},{run:.15g},{ended:.15g},{began - submitted:.15g},"
                f"{turnaround:.15g},{turnaround / run:.15g},{held[i]},-1,\n"
            )


def allocate(
    start: "FloatArray", finish: "FloatArray", width: "IntArray", processors: int
) -> list[list[tuple[int, int]]]:
    """
    Choose the processors of each job: those of the lowest numbers that were free.

    Parameters
    ----------
    start, finish, width
        Start and end, seconds, and processors of each job, shape ``(n,)``; together never wider
        than the machine.
    processors
        Number of the machine's processors.

    Returns
    -------
    list
        For each job, its intervals of processors: the first and the one after the last.
    """
    import numpy as np

    free: list[tuple[int, int]] = [(0, processors)]  # first and after last, ascending
    given: list[list[tuple[int, int]]] = [[] for _ in range(len(start))]
    # At one moment ends come before starts.
    moments = np.concatenate((finish, start))
    kinds = np.concatenate((np.zeros(len(finish)), np.ones(len(start))))
    for event in np.lexsort((kinds, moments)).tolist():
        if event < len(finish):
            # Merged with their neighbours, so that the lowest numbers come first and in few
            # intervals.
            _free(free, given[event])
            continue
        job = event - len(finish)
        wanted = int(width[job])
        taken = given[job]
        while wanted:
            first, after = free[0]
            count = min(wanted, after - first)
            taken.append((first, first + count))
            wanted -= count
            if first + count == after:
                free.pop(0)
            else:
                free[0] = (first + count, after)
    return given


def _as_text(intervals: list[tuple[int, int]]) -> str:
    """Write processors as Batsim writes sets: ``"0-3 7 9-12"``."""
    return " ".join([f"{a}" if b == a + 1 else f"{a}-{b - 1}" for a, b in intervals])


def _free(free: list[tuple[int, int]], given: list[tuple[int, int]]) -> None:
    """Add intervals to those that are free, ascending; adjoining ones are merged."""
    for first, after in given:
        at = bisect_left(free, (first,))
        end = at
        if end < len(free) and free[end][0] == after:
            after = free[end][1]
            end += 1
        if at and free[at - 1][1] == first:
            at -= 1
            first = free[at][0]
        free[at:end] = [(first, after)]
