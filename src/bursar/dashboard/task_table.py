"""The tasks of a run for the page: pages of a table that is searched and sorted, and one task."""

import codecs
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bursar.api.result_table import ResultReader
from bursar.dashboard.run_feed import HEARTBEAT, frame
from bursar.dashboard.run_page import RunPage
from bursar.dispatch.journal_records import AttemptRecord
from bursar.model.errors import BursarError, InputError
from bursar.model.task import Task
from bursar.report.failures import command_of
from bursar.report.result_files import TABLE_COLUMNS
from bursar.runs.explanations import why
from bursar.runs.folder import RunFolder
from bursar.runs.kept.task_output import TaskFollower
from bursar.runs.kept.task_rows import selected, task_rows
from bursar.runs.run_record import RunRecord, log_files

MOST_ROWS = 1000
"""Rows of one page of the table."""

SHARE = 0.05
"""Part of a processor that the rows of a run that goes on may take to be made."""


class TableQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Which rows of the table are wanted.

    Parameters
    ----------
    offset, limit
        First row, and number of rows.
    state
        Only tasks of this state; empty: all.
    search
        Only rows with this text in task, name, parameters or reason; small and large letters count
        as the same.
    where
        ClassAd expression as of ``bursar tasks --where``.
    sort
        Column to sort by; empty: the order of the campaign. Rows without a value come last.
    """

    offset: int = 0
    limit: int = 100
    state: str = ""
    search: str = ""
    where: str = ""
    sort: str = ""
    descending: bool = False


@dataclass(slots=True)
class TaskPages:
    """
    Rows of one run's tasks, made anew when the run has gone on and the last ones are not too young.
    """

    _version: int = -1
    _rows: Sequence[dict[str, Any]] = ()
    _columns: Sequence[str] = ()
    _made: float = 0.0
    _price: float = 0.0
    _running: frozenset[int] = field(default=frozenset())
    _results: dict[int, dict[str, Any]] = field(default_factory=dict)

    def read(self, page: RunPage, query: TableQuery) -> dict[str, Any]:
        """
        Return a page of the table: columns, rows, and how many rows there are and meet the query.

        Raises
        ------
        InputError
            When the query has a number out of range, an unknown column, or a condition that cannot
            be read.
        """
        if not 0 < query.limit <= MOST_ROWS:
            raise InputError(f"expected 1 to {MOST_ROWS}, got {query.limit}", where="limit")
        if query.offset < 0:
            raise InputError(f"expected 0 or more, got {query.offset}", where="offset")
        self._refresh(page)
        if query.sort and query.sort not in self._columns:
            raise InputError(f'no column "{query.sort}"', where="sort")
        rows: Sequence[dict[str, Any]] = self._rows
        if query.where:
            rows = selected(rows, condition=query.where)
        if query.state:
            rows = [row for row in rows if row["status"] == query.state]
        if query.search:
            wanted = query.search.casefold()
            rows = [row for row in rows if wanted in _searched(row)]
        if query.sort:
            rows = _sorted(rows, query.sort, descending=query.descending)
        shown = rows[query.offset : query.offset + query.limit]
        return {
            "total": len(self._rows),
            "matched": len(rows),
            "columns": self._columns,
            "rows": [[_value(row, column) for column in self._columns] for row in shown],
        }

    def _refresh(self, page: RunPage) -> None:
        running = frozenset(page.running) if page.is_live else frozenset[int]()
        now = time.monotonic()
        if page.version == self._version and running == self._running:
            return
        if self._rows and page.is_live and now - self._made < self._price / SHARE:
            return
        begin = time.process_time()
        record = page.record
        first = record.incarnations[0][0] if record.incarnations else 0.0
        names: dict[str, None] = {}
        rows = task_rows(record)
        for number, row in enumerate(rows):
            row["number"] = number
            if "start" in row:
                row["start_s"] = row["start"] - first
            if number in running and row["status"] == "not-run":
                row["status"] = "running"
                row["site"] = page.running[number].site
            names |= dict.fromkeys(f"parameters.{name}" for name in row.get("parameters", ()))
        names |= dict.fromkeys(f"results.{column.name}" for column in record.campaign.results)
        self._fill_results(record, rows)
        self._rows, self._columns = rows, (*TABLE_COLUMNS, *names)
        self._version, self._running, self._made = page.version, running, now
        self._price = time.process_time() - begin

    def _fill_results(self, record: RunRecord, rows: Sequence[dict[str, Any]]) -> None:
        """Add the results of tasks that have succeeded, each read once."""
        if not record.campaign.results:
            return
        reader = ResultReader(record, record.campaign.results)
        for number, row in enumerate(rows):
            if row["status"] != "succeeded":
                continue
            if number not in self._results:
                try:
                    self._results[number] = reader.values(number) or {}
                except BursarError:  # a required value is missing: bursar table says which
                    self._results[number] = {}
            row["results"] = self._results[number]


def _value(row: Mapping[str, Any], column: str) -> Any:
    """Return a cell; the columns of parameters and results look into these."""
    kind, dot, name = column.partition(".")
    return row.get(kind, {}).get(name) if dot else row.get(column)


def _searched(row: Mapping[str, Any]) -> str:
    values = (
        row["task"],
        row["name"],
        row.get("reason") or "",
        *row.get("parameters", {}).values(),
    )
    return "\n".join(map(str, values)).casefold()


def _sorted(
    rows: Sequence[dict[str, Any]], column: str, *, descending: bool
) -> Sequence[dict[str, Any]]:
    """Return rows in the order of a column: numbers before texts, and rows without a value last."""
    there: list[dict[str, Any]] = []
    absent: list[dict[str, Any]] = []
    for row in rows:
        (absent if _value(row, column) in (None, "") else there).append(row)

    def key(row: Mapping[str, Any]) -> tuple[bool, Any]:
        value = _value(row, column)
        number = isinstance(value, int | float)
        return not number, value if number else str(value)

    return sorted(there, key=key, reverse=descending) + absent


def task_details(page: RunPage, number: int) -> dict[str, Any]:
    """
    Return all that is known of one task: command, parameters, attempts, and why it ran where.

    Raises
    ------
    InputError
        When there is no task of this number.
    """
    record = page.record
    task = task_of(record, number)
    first = record.incarnations[0][0] if record.incarnations else 0.0
    return {
        "number": number,
        "task": task.id,
        "name": task.name,
        "parameters": dict(task.parameters),
        "command": command_of(task),
        "after": list(task.after),
        "inputs": [file.name for file in task.inputs],
        "outputs": [file.name for file in task.outputs],
        "processors": task.processors,
        "estimate_s": task.runtime,
        "running": number in page.running and page.is_live,
        "reused_from": record.reused.get(number),
        "results": _results_of(record, number),
        "attempts": [_attempt(one, first) for one in _attempts(record, number)],
        "why": [reason.to_dict() for reason in why(record, task.id)],
    }


def _results_of(record: RunRecord, number: int) -> dict[str, Any]:
    try:
        return dict(ResultReader(record, record.campaign.results).values(number) or {})
    except BursarError:
        return {}


def read_stream(
    page: RunPage, number: int, stream: str, attempt: int | None, offset: int, most: int
) -> tuple[bytes, int]:
    """
    Return a part of what an attempt printed, and the size of the whole.

    Parameters
    ----------
    stream
        ``"stdout"`` or ``"stderr"``.
    attempt
        Number of the attempt; None: the last one.
    offset, most
        First byte, and number of bytes at most.

    Raises
    ------
    InputError
        When there is no such task or attempt, or it has not ended.
    BursarError
        When the file with its output cannot be read.
    """
    record = page.record
    task = task_of(record, number)
    found = _attempts(record, number)
    if attempt is not None:
        found = [one for one in found if one.outcome.attempt == attempt]
    if not found:
        which = "has not ended" if attempt is None else f"has no attempt {attempt} that has ended"
        raise InputError(f'task "{task.id}" {which}')
    last = found[-1]
    files = log_files(record.folder, number, task.id, last)
    if stream == "stdout":
        content, size, file = last.outcome.stdout, last.outcome.stdout_size, files[0]
    else:
        content, size, file = last.outcome.stderr, last.outcome.stderr_size, files[1]
    if file is None:
        return content[offset : offset + most], size
    try:
        with file.open("rb") as source:
            source.seek(offset)
            return source.read(most), size
    except OSError as error:
        raise BursarError(f"{file}: cannot be read: {error.strerror}") from None


STREAM_NAMES = ("stdout", "stderr")
"""Names of the streams by number."""


async def output_events(
    folder: RunFolder, number: int, attempt: int | None, tail: int | None
) -> AsyncGenerator[bytes, None]:
    """
    Yield what a task prints as server-sent events, until the task or the attempt has ended.

    ``begin`` comes first: what a viewer has of an earlier connection comes again, as far as the
    tail reaches. ``output`` has stream, attempt, offset in bytes, and text, in which bytes that are
    no UTF-8 are replaced; ``note`` a line for people; ``end`` how the task ended. Between them come
    comments.

    Parameters
    ----------
    attempt, tail
        See :class:`bursar.runs.kept.task_output.TaskFollower`.
    """
    # A piece may end within a character.
    decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in STREAM_NAMES]
    shown, told = [0, 0], time.monotonic()
    yield frame("begin", {})
    async for one in TaskFollower(folder, number, attempt, tail).follow():
        found = []
        if one.stream is not None:
            decoder = decoders[one.stream]
            if one.attempt != shown[one.stream]:
                shown[one.stream] = one.attempt
                decoder.reset()
            told_of = {"stream": STREAM_NAMES[one.stream], "attempt": one.attempt}
            text = decoder.decode(one.content)
            found.append(frame("output", told_of | {"offset": one.offset, "text": text}))
        if one.note:
            found.append(frame("note", {"attempt": one.attempt, "text": one.note}))
        if one.status:
            found.append(frame("end", {"attempt": one.attempt, "status": one.status}))
        if not found and time.monotonic() - told > HEARTBEAT:
            found.append(b": still here\n\n")
        for event in found:
            told = time.monotonic()
            yield event


def task_of(record: RunRecord, number: int) -> Task:
    """Return a task by its number, from 0."""
    tasks = record.campaign.workflow.tasks
    if not 0 <= number < len(tasks):
        raise InputError(f"no task {number}: the run has {len(tasks)} tasks, from 0")
    return tasks[number]


def _attempts(record: RunRecord, number: int) -> list[AttemptRecord]:
    found = [one for one in record.journal.records if one.outcome.task == number]
    return sorted(found, key=lambda one: one.outcome.attempt)


def _attempt(one: AttemptRecord, first: float) -> dict[str, Any]:
    outcome = one.outcome
    return {
        "attempt": outcome.attempt,
        "status": str(outcome.status),
        "final": one.final,
        "site": one.site,
        "lease": one.lease,
        "start_s": outcome.start - first,
        "runtime_s": outcome.end - outcome.start,
        "user_s": outcome.user_seconds,
        "system_s": outcome.system_seconds,
        "max_rss": outcome.max_rss,
        "exit_code": outcome.exit_code,
        "reason": outcome.reason,
        "stdout_size": outcome.stdout_size,
        "stderr_size": outcome.stderr_size,
    }
