"""Results of tasks as JSON Lines and as CSV."""

import csv
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO

import msgspec

from bursar.dispatch.journal_records import AttemptRecord
from bursar.formats.file_text import replacing
from bursar.model.task import Task

LogFiles = Callable[[AttemptRecord], tuple[Path | None, Path | None]]

COLUMNS = (
    "task",
    "name",
    "status",
    "attempts",
    "exit_code",
    "reason",
    "site",
    "start",
    "end",
    "runtime_s",
    "user_s",
    "system_s",
    "max_rss",
    "stdout_size",
    "stderr_size",
    "reused_from",
)
"""First columns of the CSV file; a column for each parameter follows."""

TABLE_COLUMNS = (
    "number",
    "task",
    "name",
    "status",
    "attempts",
    "site",
    "start_s",
    "runtime_s",
    "user_s",
    "system_s",
    "max_rss",
    "exit_code",
    "reason",
    "reused_from",
)
"""Columns that the table of tasks on a page has; those of parameters and results follow."""

MOST_TEXT = 200
"""Characters of a text in that table."""

MOST_TASKS = 100_000
"""Tasks that the table in report.html holds; the result files have them all."""


def write_results(
    jsonl: Path,
    table: Path,
    tasks: Sequence[Task],
    records: Sequence[AttemptRecord],
    *,
    skipped: Collection[int],
    log_files: LogFiles,
    reused: Mapping[int, str] = MappingProxyType({}),
) -> None:
    """
    Write a line for each task into both files; each file whole or not at all.

    Parameters
    ----------
    jsonl, table
        Paths of the JSON Lines and the CSV file.
    records
        Every attempt, by task and attempt.
    skipped
        Numbers of tasks that cannot run because one before them failed.
    log_files
        Files of an attempt's stdout and stderr, where they are too long for the line.
    reused
        Run and task that a result was taken from, by the task's number.

    Raises
    ------
    BursarError
        When a file cannot be written.
    """
    rows = result_rows(tasks, records, skipped=skipped, log_files=log_files, reused=reused)
    # Both in one pass: to make the rows takes as long as to write them.
    with replacing(table, newline="") as cells, replacing(jsonl, newline="") as lines:
        _write_rows(lines, cells, tasks, rows)


def result_rows(
    tasks: Sequence[Task],
    records: Sequence[AttemptRecord],
    *,
    skipped: Collection[int],
    log_files: LogFiles,
    reused: Mapping[int, str] = MappingProxyType({}),
) -> Iterator[dict[str, Any]]:
    """Yield the row of each task, see :func:`write_results`."""
    last: dict[int, tuple[AttemptRecord, int]] = {}
    for record in records:
        number = record.outcome.task
        # Only the last attempt of each task is written, with the number of attempts; none that
        # another one has outrun.
        before, count = last.get(number, (record, 0))
        last[number] = (before if record.is_outrun else record, count + 1)
    for number, task in enumerate(tasks):
        row: dict[str, Any] = {"task": task.id, "name": task.name}
        if task.parameters:
            row["parameters"] = dict(task.parameters)
        if number not in last:
            row["status"] = "skipped" if number in skipped else "not-run"
            row["attempts"] = 0
            yield row
            continue
        record, attempts = last[number]
        outcome = record.outcome
        if number in reused:
            row["reused_from"] = reused[number]
        stdout_file, stderr_file = log_files(record)
        row.update(
            status=str(outcome.status),
            attempts=attempts,
            exit_code=outcome.exit_code,
            reason=outcome.reason,
            site=record.site,
            start=outcome.start,
            end=outcome.end,
            runtime_s=outcome.end - outcome.start,
            user_s=outcome.user_seconds,
            system_s=outcome.system_seconds,
            max_rss=outcome.max_rss,
            stdout_size=outcome.stdout_size,
            stderr_size=outcome.stderr_size,
        )
        for stream, content, file in (
            ("stdout", outcome.stdout, stdout_file),
            ("stderr", outcome.stderr, stderr_file),
        ):
            if file is None:
                row[stream] = content.decode(errors="replace")
            else:
                row[f"{stream}_file"] = file.name
        yield row


def table_columns(
    tasks: Sequence[Task],
    records: Sequence[AttemptRecord],
    *,
    skipped: Collection[int],
    reused: Mapping[int, str],
    begin: float,
    most: int,
) -> dict[str, list[Any]]:
    """
    Return the table of tasks that a page holds, column by column.

    Parameters
    ----------
    begin
        Moment from which ``start_s`` counts, on the clock of the records, seconds.
    most
        Tasks that are in the table; of more, the first.

    Returns
    -------
    dict
        Cells by the name of the column; ``parameters.x`` is the parameter ``x``. Columns without
        a value are left out. The cells of a column that are texts and repeat are
        ``[texts, index of each cell]``, others ``[cells]``.
    """
    rows = list(
        islice(
            result_rows(
                tasks, records, skipped=skipped, log_files=lambda _: (None, None), reused=reused
            ),
            most,
        )
    )
    for number, row in enumerate(rows):
        row["number"] = number
        if "start" in row:
            row["start_s"] = row["start"] - begin
    cells = {name: [_shown(row.get(name)) for row in rows] for name in TABLE_COLUMNS}
    for name in dict.fromkeys(name for row in rows for name in row.get("parameters", ())):
        cells[f"parameters.{name}"] = [_shown(row.get("parameters", {}).get(name)) for row in rows]
    return {
        name: _indexed(values)
        for name, values in cells.items()
        if any(value not in (None, "") for value in values)
    }


def _shown(value: Any) -> Any:
    """Return a value with the digits, and the part of a text, that a page shows."""
    match value:
        case float():
            return float(f"{value:.6g}")
        case str() if len(value) > MOST_TEXT:
            return value[:MOST_TEXT] + "…"
        case _:
            return value


def _indexed(values: Sequence[Any]) -> list[Any]:
    """Return texts that repeat once each, with where they stand."""
    if not all(isinstance(value, str) for value in values):
        return [values]
    places: dict[str, int] = {}
    at = [places.setdefault(value, len(places)) for value in values]
    return [list(places), at] if 2 * len(places) < len(values) else [values]


def _write_rows(
    lines: TextIO, cells: TextIO, tasks: Sequence[Task], rows: Iterator[dict[str, Any]]
) -> None:
    """Write rows as JSON Lines and as CSV."""
    encode = msgspec.json.Encoder().encode
    write_row = csv_writer(cells, tasks)
    for row in rows:
        lines.write(encode(row).decode())
        lines.write("\n")
        write_row(row)


def csv_writer(cells: TextIO, tasks: Sequence[Task]) -> Callable[[Mapping[str, Any]], object]:
    """Write the titles of ``results.csv``, and return what writes a row."""
    names = list(dict.fromkeys(name for task in tasks for name in task.parameters))
    # A parameter may be called as a column is.
    titles = [f"parameter_{name}" if name in COLUMNS else name for name in names]
    table = csv.writer(cells, lineterminator="\n")
    table.writerow([*COLUMNS, *titles])

    def write(row: Mapping[str, Any]) -> object:
        parameters = row.get("parameters", {})
        return table.writerow([*map(row.get, COLUMNS), *map(parameters.get, names)])

    return write
