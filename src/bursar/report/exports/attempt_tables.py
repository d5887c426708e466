"""The attempts of a run as a table: Batsim's ``jobs.csv``, which evalys reads, and Parquet."""

import csv
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from bursar.model.errors import InputError
from bursar.model.task import Status
from bursar.planning.building import consecutive_runs, number_processors
from bursar.report.exports.exported_run import ExportedAttempt, ExportedRun

if TYPE_CHECKING:
    import pyarrow

JOB_COLUMNS = (
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
    "task",
    "attempt",
    "site",
    "lease",
    "started_at",
    "user_s",
    "system_s",
    "max_rss_bytes",
    "cost_micros",
    "currency",
)
"""Batsim's columns up to ``metadata``; those that follow are Bursar's."""

_FINAL_STATES = {
    Status.SUCCEEDED: "COMPLETED_SUCCESSFULLY",
    Status.FAILED: "COMPLETED_FAILED",
    Status.TIMED_OUT: "COMPLETED_WALLTIME_REACHED",
    Status.LOST: "COMPLETED_KILLED",
    Status.CANCELLED: "COMPLETED_KILLED",
}


def write_jobs(run: ExportedRun, file: TextIO) -> None:
    """
    Write a line for each attempt, in the order of their ends; times count from the run's begin.

    Processors are numbered over all sites. Attempts do not record which ones they held: they get
    the lowest numbers of their site that are free.
    """
    table = csv.writer(file, lineterminator="\n")
    table.writerow(JOB_COLUMNS)
    zero = run.begun or 0.0
    held = _allocations(run)
    order = sorted(range(len(run.attempts)), key=lambda i: run.attempts[i].end)
    for i in order:
        one = run.attempts[i]
        outcome, task = one.record.outcome, one.task
        start, end = outcome.start - zero, one.end - zero
        turnaround = one.end - one.ready
        limit = task.wall_limit or task.runtime
        table.writerow(
            [
                _cell(task.id if outcome.attempt == 1 else f"{task.id}/{outcome.attempt}"),
                _cell(run.campaign),
                _cell(task.name or task.id),
                one.ready - zero,
                task.processors,
                -1 if limit is None else limit,
                int(outcome.status is Status.SUCCEEDED),
                _FINAL_STATES[outcome.status],
                start,
                end - start,
                end,
                outcome.start - one.ready,
                turnaround,
                turnaround / one.seconds if one.seconds > 0 else "",
                " ".join(held[i]),
                -1,
                "",
                _cell(task.id),
                outcome.attempt,
                _cell(one.record.site),
                one.record.lease,
                outcome.start,
                outcome.user_seconds,
                outcome.system_seconds,
                outcome.max_rss,
                one.cost,
                run.bill.currency,
            ]
        )


def _cell(text: str) -> str:
    """Return a text for a cell: a carriage return that is not quoted ends a row for readers."""
    return text.replace("\r", " ")


def _allocations(run: ExportedRun) -> list[list[str]]:
    """Return the processors of each attempt, as intervals; sites follow one another."""
    by_site: dict[str, list[int]] = {}
    for i, one in enumerate(run.attempts):
        by_site.setdefault(one.record.site, []).append(i)
    offered = {site.name: site.processors for site in run.sites}
    held: list[list[str]] = [[] for _ in run.attempts]
    first = 0
    for site, members in by_site.items():
        numbers = number_processors([_interval(run.attempts[i]) for i in members])
        for i, given in zip(members, numbers, strict=True):
            runs = consecutive_runs(given)
            held[i] = [
                str(first + low) if width == 1 else f"{first + low}-{first + low + width - 1}"
                for low, width in runs
            ]
        most = max((max(given, default=0) + 1 for given in numbers), default=0)
        first += max(offered.get(site, 0), most)
    return held


def _interval(one: ExportedAttempt) -> tuple[float, float, int]:
    # Rounded, or the last digits of times that are equal would make two processors of one.
    outcome = one.record.outcome
    return round(outcome.start, 6), round(one.end, 6), one.task.processors


def attempt_table(run: ExportedRun) -> "pyarrow.Table":
    """
    Return a table with a row for each attempt, and one for each task that has none.

    Parameters are columns ``parameter.NAME``; moments are in UTC, to the microsecond.

    Raises
    ------
    InputError
        When pyarrow is not installed.
    """
    try:
        import pyarrow as arrow
    except ImportError:
        raise InputError(
            "needs pyarrow, which is not installed",
            where="parquet",
            hint="pip install 'bursar[table]'",
        ) from None
    moments = arrow.timestamp("us", tz="UTC")
    whole, real, text = arrow.int64(), arrow.float64(), arrow.string()
    names = {
        "run": text, "campaign": text, "task": text, "name": text, "status": text,
        "attempt": whole, "final": arrow.bool_(), "exit_code": whole, "reason": text,
        "site": text, "lease": text, "processors": whole, "ready": moments, "start": moments,
        "end": moments, "wait_s": real, "runtime_s": real, "user_s": real, "system_s": real,
        "max_rss_bytes": whole, "cost_micros": whole, "currency": text, "reused_from": text,
    }  # fmt: skip
    rows = list(_rows(run))
    columns: dict[str, Any] = {
        name: arrow.array([row.get(name) for row in rows], type=kind)
        for name, kind in names.items()
    }
    parameters = dict.fromkeys(name for task in run.workflow.tasks for name in task.parameters)
    for name in parameters:
        kind, values = column_of_one_type([row["parameters"].get(name) for row in rows])
        kinds = {bool: arrow.bool_(), int: whole, float: real}
        columns[f"parameter.{name}"] = arrow.array(values, type=kinds.get(kind, text))
    table = arrow.table(columns)
    facts = {"bursar.state": run.state, "bursar.total_micros": str(run.bill.total)}
    return table.replace_schema_metadata(facts)


def _rows(run: ExportedRun) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table of attempts, by task and attempt."""
    for number, task in enumerate(run.workflow.tasks):
        facts = {
            "run": run.name,
            "campaign": run.campaign,
            "task": task.id,
            "name": task.name,
            "processors": task.processors,
            "parameters": task.parameters,
        }
        attempts = run.by_task.get(number, ())
        for one in attempts:
            outcome = one.record.outcome
            yield facts | {
                "status": str(outcome.status),
                "attempt": outcome.attempt,
                "final": one.record.final,
                "exit_code": outcome.exit_code,
                "reason": outcome.reason,
                "site": one.record.site,
                "lease": one.record.lease,
                "ready": round(one.ready * 1e6),
                "start": round(outcome.start * 1e6),
                "end": round(one.end * 1e6),
                "wait_s": outcome.start - one.ready,
                "runtime_s": one.seconds,
                "user_s": outcome.user_seconds,
                "system_s": outcome.system_seconds,
                "max_rss_bytes": outcome.max_rss,
                "cost_micros": one.cost,
                "currency": run.bill.currency,
            }
        if not attempts:
            yield facts | {"status": run.status(number), "reused_from": run.reused.get(number)}


def column_of_one_type(values: Sequence[Any]) -> tuple[type, list[Any]]:
    """Return values as the narrowest of bool, int, float and str that holds them all."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int} and all(value is None or -(2**63) <= value < 2**63 for value in values):
        # A column without any value is one of numbers, which the most results are.
        return (int if kinds else float), list(values)
    if len(kinds) == 1 and int not in kinds:
        return kinds.pop(), list(values)
    if kinds <= {int, float}:
        return float, [None if value is None else float(value) for value in values]
    return str, [None if value is None else str(cell_value(value)) for value in values]


def cell_value(value: Any) -> Any:
    """Return a value as it stands in a cell of CSV: truth values as TOML has them."""
    return str(value).lower() if isinstance(value, bool) else value
