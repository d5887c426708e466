"""
Logs of parallel machines in the Standard Workload Format.

One line for each job, 18 numbers, -1 where a value is not known; comment lines
begin with ``;`` and may state facts of the machine. Version 2.2 of the format
(Feitelson and others, Parallel Workloads Archive).
"""

import math
import os
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bursar.formats.compressed import read_lines
from bursar.model.errors import BursarError, InputError
from bursar.model.trace import Finding, Trace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bursar.model.trace import FloatArray

Width = Literal["requested", "allocated"]

FIELDS = 18
LONGEST_LINE = 1 << 16
"""Bytes; a longer one means that this is no log."""

_USED = (0, 1, 2, 3, 4, 7, 8, 10, 11)
_NAMES = (
    "job number", "submit time", "wait time", "run time", "allocated processors",
    "average CPU time", "used memory", "requested processors", "requested time",
    "requested memory", "status", "user", "group", "executable", "queue",
    "partition", "preceding job", "think time",
)  # fmt: skip
_PART = (2, 3, 4)  # status of a line that is a part of a job, which has a line of its own
_HEADER_BYTES = 1 << 20


def read_swf(path: Path, *, processors: int | None = None, width: Width = "requested") -> Trace:
    """
    The jobs of a log that a simulation can use, in order of submission.

    What cannot be used is dropped and what is missing is filled in by fixed
    rules; :attr:`Trace.cleaning` counts each.

    Parameters
    ----------
    path
        Of the log; also compressed (``.gz``, ``.xz``).
    processors
        Of the machine, where its size is not to be taken from the header.
        Wider jobs are dropped.
    width
        Which number of processors a job holds, where both are known.

    Raises
    ------
    InputError
        When a line is not of the format, or there is no job; names the line.
    """
    header: list[str] = []
    numbers = array("d")
    lines = array("q")
    size = 0
    for number, line in read_lines(path, longest=LONGEST_LINE):
        text = line.strip()
        if not text:
            continue
        if text.startswith(";"):
            size += len(text)
            if size <= _HEADER_BYTES:
                header.append(text.lstrip("; ").rstrip())
            continue
        fields = text.split()
        if len(fields) < FIELDS:
            raise InputError(
                f"expected {FIELDS} numbers, got {len(fields)}", where=f"{path}:{number}"
            )
        try:
            numbers.extend([float(fields[i]) for i in _USED])
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
    header: Sequence[str] = (),
) -> None:
    """
    Writes a trace as a log.

    Parameters
    ----------
    wait
        Seconds that each job waits; None: as recorded.
    runtime
        Seconds that each job runs; None: as in the trace.
    header
        Comment lines; facts of the machine are added.

    Raises
    ------
    BursarError
        When the file cannot be written; the old one is then unharmed.
    """
    waits = trace.wait if wait is None else wait
    runtimes = trace.runtime if runtime is None else runtime
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with fresh.open("w", encoding="utf-8") as file:
            for line in header:
                file.write(f"; {line}\n")
            if trace.max_processors is not None:
                file.write(f"; MaxProcs: {trace.max_processors}\n")
            if trace.begin is not None:
                file.write(f"; UnixStartTime: {_plain(trace.begin)}\n")
            for number, submit, waited, ran, width, estimate, user in zip(
                trace.number.tolist(),
                trace.submit.tolist(),
                waits.tolist(),
                runtimes.tolist(),
                trace.processors.tolist(),
                trace.estimate.tolist(),
                trace.user.tolist(),
                strict=True,
            ):
                file.write(
                    f"{number} {_plain(submit)} {_plain(waited)} {_plain(ran)} {width} -1 -1 "
                    f"{width} {_plain(estimate)} -1 1 {user} -1 -1 -1 -1 -1 -1\n"
                )
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise BursarError(f"{path}: cannot be written: {error.strerror}") from None


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
    number, submit, wait, runtime, allocated, requested, estimate, status, user = table.T
    first, second = (requested, allocated) if width == "requested" else (allocated, requested)
    widths = np.where(first >= 1, first, second)
    facts = _facts(header)
    stated = facts.get("MaxProcs", facts.get("MaxNodes"))
    machine = int(stated) if stated and math.isfinite(stated) and stated >= 1 else None
    limit = machine if processors is None else processors

    findings: list[Finding] = []
    kept = np.ones(len(table), dtype=np.bool_)

    def note(reason: str, which: "NDArray[np.bool_]", *, drop: bool) -> None:
        nonlocal kept
        which = np.logical_and(which, kept)
        count = int(which.sum())
        if count:
            at = int(line[np.argmax(which)])
            findings.append(Finding(reason=reason, jobs=count, dropped=drop, line=at))
        if drop:
            kept &= ~which

    endless = ~np.isfinite(table[:, [0, 1, 3, 4, 5, 6]])
    note("a number that is not finite", endless.sum(axis=1) > 0, drop=True)
    part = (status == _PART[0]) | (status == _PART[1]) | (status == _PART[2])
    note("part of a job that has a line of its own", part, drop=True)
    note("submit time unknown", submit < 0, drop=True)
    note("run time unknown or not positive", ~(runtime > 0), drop=True)
    note("number of processors unknown", ~(widths >= 1), drop=True)
    if limit is not None:
        note(f"wider than {limit} processors", widths > limit, drop=True)
    note("no estimate: the run time is taken", ~(estimate > 0), drop=False)
    note("ran longer than its estimate", (estimate > 0) & (runtime > estimate), drop=False)
    if not kept.any():
        raise InputError(
            f"none of its {len(table)} jobs can be used: {findings[0].reason}", where=str(path)
        )
    rows = np.flatnonzero(kept)
    late = np.zeros(len(table), dtype=np.bool_)
    late[rows[1:]] = np.diff(submit[rows]) < 0
    note("submitted before the job above: sorted", late, drop=False)
    rows = rows[np.argsort(submit[rows], kind="stable")]
    return Trace(
        name=path.name.split(".swf")[0],
        number=number[rows].astype(np.int64),
        submit=submit[rows].copy(),
        runtime=runtime[rows].copy(),
        estimate=np.where(estimate[rows] > 0, estimate[rows], runtime[rows]),
        processors=widths[rows].astype(np.int64),
        wait=np.where(wait[rows] >= 0, wait[rows], math.nan),
        user=np.where(np.isfinite(user[rows]), user[rows], -1).astype(np.int64),
        max_processors=machine,
        begin=facts.get("UnixStartTime"),
        header=tuple(header),
        cleaning=tuple(findings),
    )


def _facts(header: Sequence[str]) -> dict[str, float]:
    """What the header says in numbers: ``MaxProcs: 100``."""
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
    """A number as the format has it: whole where it is, -1 where unknown."""
    if math.isnan(value):
        return "-1"
    return str(int(value)) if value == int(value) else repr(value)
