"""
Slurm's ``sacct --parsable2``: a header line, then fields separated by ``|``.

A job has a row of its own, and one for each of its steps (``123.batch``, ``123.0``), which tell
its memory. Dates are local time.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping

from bursar.history.importing.imported_log import (
    ImportedLog,
    PassedOver,
    bad_field,
    clock_of,
    collect,
    is_absent,
    moment_of,
    number_of,
    size_of,
    table_rows,
    without_numbering,
)
from bursar.history.observation import TaskObservation
from bursar.model.errors import InputError
from bursar.model.task import Status

STATUSES = {
    "COMPLETED": Status.SUCCEEDED,
    "FAILED": Status.FAILED,
    "OUT_OF_MEMORY": Status.FAILED,
    "TIMEOUT": Status.TIMED_OUT,
    "DEADLINE": Status.TIMED_OUT,
    "CANCELLED": Status.CANCELLED,
    "PREEMPTED": Status.CANCELLED,
    "NODE_FAIL": Status.LOST,
    "BOOT_FAIL": Status.LOST,
    "REQUEUED": Status.LOST,
}
"""How each state of Slurm's accounting counts."""

_PENDING = frozenset({"PENDING", "RUNNING", "SUSPENDED", "RESIZING", "COMPLETING", "CONFIGURING"})
_ELSEWHERE = frozenset({"REVOKED"})


def read_slurm(text: str, path: str) -> ImportedLog:
    """
    Read the output of ``sacct --parsable2`` (or ``--parsable``).

    Jobs of one array are one execution; other jobs are one for each day on which they began.

    Parameters
    ----------
    path
        Path of the file, for messages.

    Raises
    ------
    InputError
        When the text is no such output.
    """
    lines = text.splitlines()
    if lines and lines[0].rstrip().endswith("|"):  # --parsable: a separator at the end, too
        text = "\n".join(line.rstrip().removesuffix("|") for line in lines)
    names, rows, problems = table_rows(
        text, path, separator="|", needed=("JobID", "State"), what="output of sacct --parsable2"
    )
    if not {"Elapsed", "ElapsedRaw"} & set(names) and not {"Start", "End"} <= set(names):
        raise InputError(
            'has no column "Elapsed"',
            where=f"{path}:1",
            hint="sacct --parsable2 --format=JobID,JobName,State,Elapsed,Submit,Start,End,"
            "AllocCPUS,MaxRSS,TotalCPU,Timelimit,NodeList,Cluster",
        )
    jobs = [(where, row) for where, row in rows if "." not in row["JobID"]]
    steps: dict[str, list[tuple[str, Mapping[str, str]]]] = defaultdict(list)
    known = {row["JobID"] for _, row in jobs}
    orphans = 0
    for where, row in rows:
        job, dot, _ = row["JobID"].partition(".")
        if dot and job in known:
            steps[job].append((where, row))
        elif dot:
            orphans += 1
    tries: Counter[str] = Counter()

    def observe(row: Mapping[str, str]) -> TaskObservation:
        job = row["JobID"]
        peaks = []
        for where, step in (("", row), *steps.get(job, ())):
            try:
                peaks.append(size_of(step, "MaxRSS"))
            except InputError as error:
                raise error.within(where.rpartition("/")[2]) if where else error from None
        tries[job] += 1
        return _observe(row, tries[job], max((p for p in peaks if p is not None), default=None))

    log = collect(jobs, observe)
    if orphans:
        log.passed_over["a step without its job"] += orphans
    log.problems.extend(problems)
    return log


def _observe(row: Mapping[str, str], attempt: int, max_rss: int | None) -> TaskObservation:
    # "CANCELLED by 1000", and "COMPLETED+" where more has happened.
    state = (row["State"].split() or [""])[0].rstrip("+")
    if state in _PENDING:
        raise PassedOver("not ended")
    if state in _ELSEWHERE:
        raise PassedOver("moved to another cluster")
    if state not in STATUSES:
        raise bad_field("State", row["State"], f"one of {', '.join(STATUSES)}")
    submit, start, end = (moment_of(row, column) for column in ("Submit", "Start", "End"))
    ran = number_of(row, "ElapsedRaw")
    if ran is None:
        ran = clock_of(row, "Elapsed")
    if ran is None and start is not None and end is not None:
        ran = end - start
    if ran is None or ("Start" in row and start is None):
        raise PassedOver("never began")
    processors = number_of(row, "AllocCPUS")
    if processors is None:
        processors = number_of(row, "NCPUS")
    job, cluster = row["JobID"], row.get("Cluster", "")
    array = job.partition("_")[0] if "_" in job else ""
    prefix = f"slurm-{cluster}" if cluster else "slurm"
    day = next((row[c][:10] for c in ("Start", "Submit") if not is_absent(row.get(c))), "undated")
    name = row.get("JobName", "")
    return TaskObservation(
        execution=f"{prefix}-{array or day}",
        task=job,
        attempt=attempt,
        kind=without_numbering(name) if not is_absent(name) else "job",
        site=cluster,
        host=row["NodeList"]
        if not is_absent(row.get("NodeList")) and row["NodeList"] != "None assigned"
        else "",
        processors=max(1, int(processors or 1)),
        start=start if start is not None else (end or ran) - ran if end is not None else 0.0,
        seconds=ran,
        waited=None if start is None or submit is None else max(0.0, start - submit),
        max_rss=max_rss,
        user_seconds=clock_of(row, "UserCPU") if "UserCPU" in row else clock_of(row, "TotalCPU"),
        system_seconds=clock_of(row, "SystemCPU"),
        status=STATUSES[state],
        estimate=_limit(row),
        source="slurm",
    )


def _limit(row: Mapping[str, str]) -> float | None:
    """Return the wall limit, which is what users expect a job to take at most."""
    if row.get("Timelimit") in ("UNLIMITED", "Partition_Limit"):
        return None
    return clock_of(row, "Timelimit")
