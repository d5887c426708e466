"""The columns of results that a campaign file states, and which tasks have a value for each."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal
from xml.etree.ElementTree import Element

from bursar.formats.axes import NAME
from bursar.formats.decoding import decode
from bursar.formats.expansion import matching
from bursar.formats.file_text import joined, read_toml
from bursar.formats.result_values import NoResultError, compiled, pointer_tokens, split_path
from bursar.formats.sweep import Template, parse_template
from bursar.formats.tables import ResultColumnTable
from bursar.model.errors import InputError, errors_within, spelling_hint
from bursar.model.results import STREAMS, ResultColumn
from bursar.model.task import Task

FIRST_COLUMNS = ("task", "name", "status")
"""Columns of every table of results, before parameters and results."""

_ANY = re.compile(r"[*?]")


def result_columns(
    stated: Mapping[str, ResultColumnTable], tasks: Sequence[Task], place: str = "results"
) -> tuple[ResultColumn, ...]:
    """
    Return the columns that a campaign file states, checked against its tasks.

    Raises
    ------
    InputError
        At the column and key that is wrong.
    """
    return tuple(_column(name, table, tasks, joined(place, name)) for name, table in stated.items())


def read_result_columns(path: Path, tasks: Sequence[Task]) -> tuple[ResultColumn, ...]:
    """
    Read ``[results]`` of a campaign file, for tasks that exist already.

    Raises
    ------
    InputError
        With the file, the line where it can be told, and the key; also when it states no results.
    """
    return read_toml(path, lambda document: _read_columns(document, tasks))


def _read_columns(document: dict[str, object], tasks: Sequence[Task]) -> tuple[ResultColumn, ...]:
    if not document.get("results"):
        raise InputError("has no [results]")
    stated = decode(document["results"], dict[str, ResultColumnTable], "results")
    return result_columns(stated, tasks)


def _column(name: str, table: ResultColumnTable, tasks: Sequence[Task], place: str) -> ResultColumn:
    if not re.fullmatch(NAME, name) or name in FIRST_COLUMNS:
        raise InputError(
            f"expected a name of letters, digits, _ and -, and not {', '.join(FIRST_COLUMNS)}",
            where=place,
        )
    if table.task is not None:
        names = dict.fromkeys(task.name for task in tasks)
        if table.task not in names:
            raise InputError(
                f'unknown task "{table.task}", expected one of {", ".join(names)}',
                where=joined(place, "task"),
                hint=spelling_hint(table.task, names),
            )
    form = table.form
    where = getattr(table, form)
    check_where(form, where, joined(place, form))
    column = ResultColumn(
        name=name,
        form=form,
        where="" if form == "text" else where,
        source=table.from_,
        task=table.task,
        pick=_picked(table.match if form == "regex" else table.row),
        separator=table.separator,
        type=table.type,
        required=table.required,
    )
    _check_source(column, tasks, place)
    return column


def _picked(written: Literal["first", "last"] | int | None) -> int:
    if isinstance(written, int):
        return written
    return 0 if written == "first" else -1


def check_where(form: str, where: object, place: str) -> None:
    """
    Refuse a pointer, an expression or a path that can never be found anywhere.

    Raises
    ------
    InputError
        At the place.
    """
    if not isinstance(where, str) or form == "csv":
        return
    try:
        if form == "json":
            pointer_tokens(where)
        elif form == "regex":
            compiled(where)
        elif form == "xml":
            Element("document").find(split_path(where)[0])
    except re.error as error:
        raise InputError(f"is no regular expression: {error}", where=place) from None
    except (SyntaxError, KeyError, TypeError, RuntimeError):
        # ElementTree has no one error for a path that it cannot read.
        raise InputError("is no path, expected one such as /run/fit/@loss", where=place) from None
    except ValueError as error:
        raise InputError(str(error), where=place) from None


def _check_source(column: ResultColumn, tasks: Sequence[Task], place: str) -> None:
    """Refuse a column for which no task has a value, or whose name a parameter has."""
    checked: set[tuple[str, ...]] = set()
    for task in tasks:
        names = tuple(task.parameters)
        if names not in checked and column.name in names:
            raise InputError("is a parameter, too; choose another name", where=place)
        checked.add(names)
    with errors_within(joined(place, "from")):
        source = ResultSource(column)
        if column.source.startswith("/") or ".." in column.source.split("/"):
            raise InputError(f'expected a relative path without "..", got "{column.source}"')
        try:
            if any(source.in_task(task) is not None for task in tasks):
                return
        except NoResultError as error:
            raise InputError(str(error)) from None
        asked = [task for task in tasks if column.task in (None, task.name)]
        parameters = dict.fromkeys(name for task in asked for name in task.parameters)
        source.check([*parameters, "id"])
        made = dict.fromkeys(file.name for task in asked[:1000] for file in task.outputs)
        raise InputError(
            f'no task makes "{column.source}", expected stdout, stderr or an output of a task',
            hint=spelling_hint(column.source, [*STREAMS, *made]),
        )


class ResultSource:
    """
    Says from which of a task's texts a column is taken.

    Raises
    ------
    InputError
        When the name of the file has a brace that belongs to no parameter.
    """

    def __init__(self, column: ResultColumn) -> None:
        self._column = column
        self._is_stream = column.source in STREAMS

    @cached_property
    def _template(self) -> Template:
        return parse_template(self._column.source)

    def check(self, known: Iterable[str]) -> None:
        """
        Check that every value that the file's name needs is known.

        Raises
        ------
        InputError
            When one is not.
        """
        if not self._is_stream:
            self._template.check(list(known))

    def in_task(self, task: Task) -> str | None:
        """
        Return ``stdout``, ``stderr`` or the name of the file; None: the task cannot have a value.

        A file counts where the task states it as an output, or a folder above it; where the column
        names the tasks, they need not state the file.

        Raises
        ------
        NoResultError
            When several outputs of the task match the pattern.
        """
        column = self._column
        if column.task is not None and column.task != task.name:
            return None
        if self._is_stream:
            return column.source
        values = {**task.parameters, "id": task.id}
        if not self._template.names <= values.keys():
            return None
        name = "/".join(p for p in self._template.render(values).split("/") if p not in ("", "."))
        made = [file.name for file in task.outputs]
        if _ANY.search(name):
            found = matching(name, made)
            if len(found) > 1:
                raise NoResultError(f'has several outputs that match "{name}"')
            return found[0] if found else None
        stated = column.task is not None or any(
            name == one or name.startswith(f"{one}/") for one in made
        )
        return name if stated else None
