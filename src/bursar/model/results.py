"""Columns of results: where each value stands in what a task printed or made."""

from dataclasses import dataclass
from typing import Literal

ResultForm = Literal["text", "json", "csv", "regex", "xml"]
"""How a value is found in a text: all of it, a pointer, a cell, a match, a path."""

RESULT_FORMS: tuple[ResultForm, ...] = ("text", "json", "csv", "regex", "xml")

ResultType = Literal["number", "integer", "text"]

STREAMS = ("stdout", "stderr")
"""Sources of results that are no files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultColumn:
    """
    A column of a run's table of results.

    Parameters
    ----------
    name
        Title of the column. Not empty.
    form
        How the value is found.
    where
        ``json``: a JSON Pointer (RFC 6901). ``csv``: title of a column, or the number of a field,
        from 0, in a file without titles. ``regex``: a regular expression of Python, whose group
        named as the column, else the first group, else the whole match is the value. ``xml``: a
        path as ElementTree takes it, from the root element on, possibly with ``/@attribute`` at
        its end. Empty for ``text``.
    source
        ``stdout``, ``stderr``, or name of a file that the task makes; may hold ``{parameter}``,
        ``{id}``, and ``*`` for one output of the task.
    task
        Name of the tasks that have the value (:attr:`bursar.Task.name`); None: all that can.
    pick
        Row of a CSV file or match of an expression: 0 is the first, -1 the last.
    separator
        Character between the fields of a CSV file; None: a tab in ``.tsv`` files, else a comma.
    type
        Type of the values; None: a number where the text is one, else text.
    required
        Whether a table in which a task that succeeded has no value is refused.
    """

    name: str
    form: ResultForm
    where: str | int = ""
    source: str = "stdout"
    task: str | None = None
    pick: int = -1
    separator: str | None = None
    type: ResultType | None = None
    required: bool = False

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable():
            raise ValueError("a column needs a name of printable characters")
        if not self.source or "\0" in self.source:
            raise ValueError("source must be stdout, stderr or the name of a file")
        if isinstance(self.where, int) and (self.form != "csv" or self.where < 0):
            raise ValueError("a field of a CSV file has a number from 0")
        if self.separator is not None and len(self.separator) != 1:
            raise ValueError(f'separator must be one character, got "{self.separator}"')
