"""The table of a run's parameters and results: a row for each task, in several forms."""

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from bursar.dispatch.journal_records import AttemptRecord
from bursar.formats.result_columns import FIRST_COLUMNS, ResultSource
from bursar.formats.result_values import NoResultError, ResultText, extract
from bursar.model.campaign import Campaign
from bursar.model.errors import BursarError, InputError
from bursar.model.results import ResultColumn
from bursar.model.task import Status, Task, Value
from bursar.report.exports.attempt_tables import cell_value, column_of_one_type
from bursar.runs.kept.task_rows import selected, task_rows
from bursar.runs.run_record import RunRecord, log_files

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

LARGEST_TEXT = 64 * 1024 * 1024
"""Bytes of a file or stream in which values are looked for."""


class MissingValues(msgspec.Struct, frozen=True, kw_only=True):
    """
    Tasks that succeeded and have no value for a column.

    Parameters
    ----------
        Title, as ``[results]`` writes the key.
        Name of the column.
    missing, tasks
        How many have no value, and how many should have one.
    example
        Id of one that has none.
    reason
        Why that one has none.
    """

    column: str
    missing: int
    tasks: int
    example: str
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.column}: no value in {self.missing} of {self.tasks} tasks, "
            f"such as {self.example}: {self.reason}"
        )


@dataclass(frozen=True)
class RunTable:
    """
    Parameters and results of a run's tasks, a row for each task.

    Attributes
    ----------
    columns
        Titles: ``task``, ``name`` where tasks have several, ``status``, the parameters (one that
        has the title of another column is ``parameter_...``), and the results.
    rows
        Values in the order of the columns; None where there is none.
    missing
        Columns without a value in tasks that succeeded.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Value | None, ...], ...]
    missing: tuple[MissingValues, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Value | None]]:
        """Yield each row by the titles of its columns."""
        return (dict(zip(self.columns, row, strict=True)) for row in self.rows)

    def column(self, title: str) -> list[Value | None]:
        """
        Return the values of a column.

        Raises
        ------
        KeyError
            When there is no such column.
        """
        if title not in self.columns:
            raise KeyError(title)
        at = self.columns.index(title)
        return [row[at] for row in self.rows]

    def write_csv(self, file: TextIO) -> None:
        """Write titles and rows as CSV; a value that is missing is empty."""
        table = csv.writer(file, lineterminator="\n")
        table.writerow(self.columns)
        table.writerows([[cell_value(value) for value in row] for row in self.rows])

    def to_dict(self) -> dict[str, Any]:
        """Return columns, rows and what is missing as a JSON object."""
        return {
            "columns": list(self.columns),
            "rows": list(self),
            "missing": [msgspec.structs.asdict(one) for one in self.missing],
        }

    def to_arrow(self) -> "pyarrow.Table":
        """
        Return an Arrow table; a column of mixed values is one of texts.

        Raises
        ------
        InputError
            When pyarrow is not installed.
        """
        try:
            import pyarrow as arrow
        except ImportError:
            raise _absent("pyarrow") from None
        kinds = {bool: arrow.bool_(), int: arrow.int64(), float: arrow.float64()}
        return arrow.table(
            {
                title: arrow.array(values, type=kinds.get(kind, arrow.string()))
                for title, kind, values in self._typed
            }
        )

    def to_pandas(self) -> "pandas.DataFrame":
        """
        Return a data frame; integers with missing values are pandas' ``Int64``.

        Raises
        ------
        InputError
            When pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise _absent("pandas") from None
        nullable = {bool: "boolean", int: "Int64"}
        plain = {bool: "bool", int: "int64", float: "float64"}
        series = {}
        for title, kind, values in self._typed:
            kinds = nullable if None in values and kind in nullable else plain
            series[title] = pandas.Series(values, dtype=kinds.get(kind, "object"))
        return pandas.DataFrame(series)

    def to_polars(self) -> "polars.DataFrame":
        """
        Return a data frame of polars.

        Raises
        ------
        InputError
            When polars is not installed.
        """
        try:
            import polars
        except ImportError:
            raise _absent("polars") from None
        kinds = {bool: polars.Boolean, int: polars.Int64, float: polars.Float64}
        return polars.DataFrame(
            [
                polars.Series(title, values, dtype=kinds.get(kind, polars.String))
                for title, kind, values in self._typed
            ]
        )

    def write_parquet(self, path: Path | str) -> None:
        """
        Write a Parquet file, whole or not at all.

        Raises
        ------
        InputError
            When pyarrow is not installed.
        BursarError
            When the file cannot be written.
        """
        table = self.to_arrow()
        from pyarrow import parquet

        _write(Path(path), lambda target: parquet.write_table(table, target))

    def write_arrow(self, path: Path | str) -> None:
        """
        Write an Arrow file (IPC, also called Feather), whole or not at all.

        Raises
        ------
        InputError
            When pyarrow is not installed.
        BursarError
            When the file cannot be written.
        """
        table = self.to_arrow()
        from pyarrow import feather

        _write(Path(path), lambda target: feather.write_feather(table, target))

    @cached_property
    def _typed(self) -> list[tuple[str, type, list[Any]]]:
        """Title, type and values of each column, all of the type or None."""
        columns = zip(*self.rows, strict=True) if self.rows else ([] for _ in self.columns)
        return [
            (title, *column_of_one_type(list(values)))
            for title, values in zip(self.columns, columns, strict=True)
        ]


_EXTRAS = {"pyarrow": "'bursar[table]'"}
"""What brings a library, where that is not the library by its own name."""


def _absent(library: str) -> InputError:
    """Return the error for a library that is not installed, with what brings it."""
    return InputError(
        f"needs {library}, which is not installed",
        where="table",
        hint=f"pip install {_EXTRAS.get(library, library)}",
    )


def _write(path: Path, write: Callable[[str], object]) -> None:
    fresh = path.with_name(f".{path.name}.part")
    try:
        write(str(fresh))
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise BursarError(f"{path}: cannot be written: {error.strerror or error}") from None


# The table of a run.


def result_table(
    record: RunRecord,
    condition: str | None = None,
    columns: Sequence[ResultColumn] | None = None,
) -> RunTable:
    """
    Look for the values of all columns in what a run's tasks printed and made.

    Parameters
    ----------
    condition
        ClassAd expression over parameters, results and the columns of ``bursar tasks``; only
        tasks for which the expression is true. None: all.
    columns
        Columns to look for; None: those of the run's campaign.

    Raises
    ------
    InputError
        When the condition cannot be read, or names a column that does not exist.
    BursarError
        When a required value is missing.
    """
    campaign = record.campaign
    wanted = campaign.results if columns is None else tuple(columns)
    reader = ResultReader(record, wanted)
    found = []
    for number, row in enumerate(task_rows(record)):
        values = reader.values(number)
        if values is not None or not wanted:
            results = dict.fromkeys(column.name for column in wanted) | (values or {})
            found.append(row | {"results": results})
    return _table(campaign, wanted, selected(found, condition=condition), reader.missing)


def _table(
    campaign: Campaign,
    wanted: Sequence[ResultColumn],
    rows: Sequence[dict[str, Any]],
    missing: Sequence[MissingValues],
) -> RunTable:
    first = [*FIRST_COLUMNS]
    if len({row["name"] for row in rows}) < 2:
        first.remove("name")
    names = list(dict.fromkeys(name for row in rows for name in row.get("parameters", {})))
    if not rows:  # the titles stay when a condition leaves no row
        names = list(dict.fromkeys(n for t in campaign.workflow.tasks for n in t.parameters))
    results = [column.name for column in wanted]
    taken = {*FIRST_COLUMNS, *results}
    titles = [f"parameter_{name}" if name in taken else name for name in names]
    return RunTable(
        columns=(*first, *titles, *results),
        rows=tuple(
            (
                *map(row.get, first),
                *map(row.get("parameters", {}).get, names),
                *map(row["results"].get, results),
            )
            for row in rows
        ),
        missing=tuple(missing),
    )


class ResultReader:
    """
    Finds the values of each task, and counts those that are missing.

    Parameters
    ----------
    columns
        Columns to look for.
    """

    def __init__(self, record: RunRecord, columns: Sequence[ResultColumn]) -> None:
        self._folder = record.folder
        self._files = record.folder.files.resolve()
        self._tasks = record.campaign.workflow.tasks
        self._final = record.final
        self._columns = [(column, ResultSource(column)) for column in columns]
        self._asked = dict.fromkeys((column.name for column in columns), 0)
        self._missing: dict[str, tuple[int, str, str]] = {}

    @property
    def missing(self) -> list[MissingValues]:
        """The columns that have no value in some tasks."""
        return [
            MissingValues(
                column=name, missing=count, tasks=self._asked[name], example=task, reason=why
            )
            for name, (count, task, why) in self._missing.items()
        ]

    def values(self, number: int) -> dict[str, Value] | None:
        """
        Return the values of a task by column; None: no column can have a value there.

        Raises
        ------
        BursarError
            When a required value is missing.
        """
        task = self._tasks[number]
        end = self._final.get(number)
        succeeded = end is not None and end.outcome.status is Status.SUCCEEDED
        found: dict[str, Value] = {}
        texts: dict[str, ResultText] = {}
        concerned = False
        for column, source in self._columns:
            name = column.source
            try:
                place = source.in_task(task)
                if place is None:
                    continue
                concerned = True
                if end is None or not succeeded:
                    continue
                name = place
                self._asked[column.name] += 1
                if name not in texts:
                    texts[name] = self._read(number, task, end, name)
                found[column.name] = extract(texts[name], column)
            except NoResultError as error:
                self._count(column, task, f"{name} {error}")
        return found if concerned else None

    def _count(self, column: ResultColumn, task: Task, reason: str) -> None:
        if column.required:
            raise BursarError(f'{task.id} has no value for "{column.name}": {reason}')
        count, example, first = self._missing.get(column.name, (0, task.id, reason))
        self._missing[column.name] = (count + 1, example, first)

    def _read(self, number: int, task: Task, end: AttemptRecord, name: str) -> ResultText:
        if name in ("stdout", "stderr"):
            out, err = log_files(self._folder, number, task.id, end)
            path = out if name == "stdout" else err
            if path is None:
                outcome = end.outcome
                return ResultText(outcome.stdout if name == "stdout" else outcome.stderr)
        else:
            path = (self._files / name).resolve()
            # A task may have made a link that leads out of the run's files.
            if not path.is_relative_to(self._files):
                raise NoResultError("leads out of the run's files")
        try:
            size = path.stat().st_size
            if not path.is_file():
                raise NoResultError("is no file")
            if size > LARGEST_TEXT:
                raise NoResultError(
                    f"has {size:,} bytes, of which at most {LARGEST_TEXT:,} are read"
                )
            return ResultText(path.read_bytes(), name)
        except OSError as error:
            why = "does not exist" if isinstance(error, FileNotFoundError) else error.strerror
            raise NoResultError(str(why)) from None
