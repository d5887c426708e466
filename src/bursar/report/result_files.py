"""Results of tasks as JSON Lines and as CSV."""

import csv
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec

from bursar.dispatch.journal_records import AttemptRecord
from bursar.model.errors import BursarError
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
)
"""First columns of the CSV file; a column for each parameter follows."""


def write_results(
    jsonl: Path,
    table: Path,
    tasks: Sequence[Task],
    records: Sequence[AttemptRecord],
    *,
    skipped: Collection[int],
    log_files: LogFiles,
) -> None:
    """
    Write a line for each task into both files; each file whole or not at all.

    Parameters
    ----------
    jsonl, table
        Paths of the JSON Lines and the CSV file.
    tasks
        Tasks of the campaign.
    records
        Every attempt, by task and attempt.
    skipped
        Numbers of tasks that cannot run because one before them failed.
    log_files
        Files of an attempt's stdout and stderr, where they are too long for the line.

    Raises
    ------
    BursarError
        When a file cannot be written.
    """
    last: dict[int, tuple[AttemptRecord, int]] = {}
    for record in records:
        number = record.outcome.task
        # Only the last attempt of each task is written, with the number of attempts.
        last[number] = (record, last[number][1] + 1 if number in last else 1)

    def rows() -> Iterator[dict[str, Any]]:
        return _rows(tasks, last, skipped, log_files)

    _write(jsonl, lambda file: _write_lines(file, rows()))
    _write(table, lambda file: _write_table(file, tasks, rows()))


def _rows(
    tasks: Sequence[Task],
    last: dict[int, tuple[AttemptRecord, int]],
    skipped: Collection[int],
    log_files: LogFiles,
) -> Iterator[dict[str, Any]]:
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


def _write_lines(file: TextIO, rows: Iterator[dict[str, Any]]) -> None:
    encode = msgspec.json.Encoder().encode
    for row in rows:
        file.write(encode(row).decode())
        file.write("\n")


def _write_table(file: TextIO, tasks: Sequence[Task], rows: Iterator[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(name for task in tasks for name in task.parameters))
    # A parameter may be called as a column is.
    titles = [f"parameter_{name}" if name in COLUMNS else name for name in names]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*COLUMNS, *titles])
    for row in rows:
        parameters = row.get("parameters", {})
        writer.writerow(
            [*(row.get(column) for column in COLUMNS), *(parameters.get(name) for name in names)]
        )


def _write(path: Path, write: Callable[[TextIO], None]) -> None:
    # In the same folder, as a rename is atomic within one file system only; with the process
    # number, as two commands may write at once.
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(fresh, "w", encoding="utf-8", newline="") as file:
            write(file)
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise BursarError(f"{path}: cannot be written: {error.strerror}") from None
