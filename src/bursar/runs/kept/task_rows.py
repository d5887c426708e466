"""The tasks of a run as rows: one for each, to be filtered, sorted and printed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bursar.classad import Ad, evaluate, parse, references
from bursar.model.errors import InputError, spelling_hint
from bursar.report.result_files import result_rows
from bursar.runs.run_record import RunRecord

SLOWEST = 20
"""Rows that ``--slow`` leaves."""
_STREAMS = ("stdout", "stderr", "stdout_file", "stderr_file")


def task_rows(record: RunRecord) -> list[dict[str, Any]]:
    """Return a row for each task as ``results.jsonl`` has it, without what the task printed."""
    tasks = record.campaign.workflow.tasks
    rows = result_rows(
        tasks,
        record.journal.records,
        skipped=record.skipped,
        log_files=lambda _: (None, None),
        reused=record.reused,
    )
    return [{name: row[name] for name in row if name not in _STREAMS} for row in rows]


def selected(
    rows: Sequence[dict[str, Any]],
    *,
    failed: bool = False,
    slow: bool = False,
    condition: str | None = None,
) -> list[dict[str, Any]]:
    """
    Return the rows that are asked for.

    Parameters
    ----------
    failed
        Only tasks that ended without success, or cannot run because of one.
    slow
        Only the tasks that took longest, the longest first.
    condition
        ClassAd expression over the names of the columns, the parameters, and ``seconds``; only
        rows for which the expression is true. None: all.

    Raises
    ------
    InputError
        When the condition cannot be read, or names a column that does not exist.
    """
    found = list(rows if condition is None else _meeting(rows, condition))
    if failed:
        found = [row for row in found if row["status"] not in ("succeeded", "not-run")]
    if slow:
        took = [row for row in found if row.get("runtime_s") is not None]
        found = sorted(took, key=lambda row: -row["runtime_s"])[:SLOWEST]
    return found


def _meeting(rows: Sequence[dict[str, Any]], condition: str) -> Iterator[dict[str, Any]]:
    expression = parse(condition, where="--where")
    values = [_values(row) for row in rows]
    known = dict.fromkeys(name.lower() for row in values for name in row)
    for name in sorted(references(expression, Ad({}))):
        if rows and name not in known:
            raise InputError(
                f'no column "{name}"', where="--where", hint=spelling_hint(name, known)
            )
    for row, columns in zip(rows, values, strict=True):
        stated = {name: value for name, value in columns.items() if value is not None}
        if evaluate(expression, Ad(stated)) is True:
            yield row


def _values(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names that a condition may use, with their values; None: there is none."""
    columns = {name: value for name, value in row.items() if name not in ("parameters", "results")}
    columns |= row.get("results", {})
    parameters: Iterable[tuple[str, Any]] = row.get("parameters", {}).items()
    values = dict(parameters) | columns | {"seconds": row.get("runtime_s")}
    return values | {f"parameter_{name}": value for name, value in parameters if name in columns}
