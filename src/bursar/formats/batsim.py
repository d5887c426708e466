"""Schedules as tables that other tools read: Batsim's ``jobs.csv``."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from bursar.model.errors import BursarError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bursar.model.trace import FloatArray, IntArray, Trace

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
        Number of the machine's processors. Each job is given the free ones with the lowest
        numbers.

    Raises
    ------
    BursarError
        When the file cannot be written; the old one is then unharmed.
    """
    import numpy as np

    held = [
        _as_text(intervals) for intervals in allocate(start, finish, trace.processors, processors)
    ]
    name = "".join("_" if c in ',"\r\n' else c for c in trace.name)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with fresh.open("w", encoding="utf-8") as file:
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
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise BursarError(f"{path}: cannot be written: {error.strerror}") from None


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
            free = _joined(free, given[event])
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
    return " ".join(f"{a}" if b == a + 1 else f"{a}-{b - 1}" for a, b in intervals)


def _joined(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Unite two sets of intervals; adjoining ones are merged."""
    merged: list[tuple[int, int]] = []
    for first, after in sorted([*one, *other]):
        if merged and merged[-1][1] == first:
            merged[-1] = (merged[-1][0], after)
        else:
            merged.append((first, after))
    return merged
