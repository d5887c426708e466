"""Job logs of GNU parallel (``--joblog``): a table of tab-separated fields, a row for each job."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from bursar.history.importing.imported_log import (
    ImportedLog,
    bad_field,
    collect,
    file_stem,
    fingerprint,
    number_of,
    plain_value,
    program_of,
    table_rows,
)
from bursar.history.observation import TaskObservation
from bursar.model.task import Status, Value

_COLUMNS = ("Seq", "Host", "Starttime", "JobRuntime", "Exitval", "Signal", "Command")
_STOPPED = frozenset({2, 9, 15})
"""Signals by which jobs are stopped from outside, as at a time limit."""

_MOST_WORDS = 200


def read_parallel(text: str, path: str) -> ImportedLog:
    """
    Read a job log.

    Words in which the commands of one program differ become parameters, named by their position.

    Parameters
    ----------
    path
        Path of the file, for messages and the name of the execution.

    Raises
    ------
    InputError
        When the text is no job log.
    """
    text = "\n".join(_one_line(line) for line in text.splitlines())
    _, rows, problems = table_rows(
        text, path, separator="\t", needed=_COLUMNS, what="a job log of GNU parallel"
    )
    first = rows[0][1]["Starttime"] + rows[0][1]["Command"] if rows else ""
    execution = f"{file_stem(path)}@{fingerprint(first)}"
    by_program: dict[str, list[Sequence[str]]] = defaultdict(list)
    for _, row in rows:
        by_program[program_of(row["Command"])].append(row["Command"].split())
    templates = {program: _template(commands) for program, commands in by_program.items()}
    tries: Counter[str] = Counter()

    def observe(row: Mapping[str, str]) -> TaskObservation:
        sequence = row["Seq"]
        start, ran = number_of(row, "Starttime"), number_of(row, "JobRuntime")
        ended, signal = number_of(row, "Exitval"), number_of(row, "Signal")
        for name, value in (
            ("Starttime", start), ("JobRuntime", ran), ("Exitval", ended), ("Signal", signal)
        ):  # fmt: skip
            if value is None:
                raise bad_field(name, row[name], "a number")
        assert start is not None
        assert ran is not None
        program = program_of(row["Command"])
        words = row["Command"].split()
        template = templates[program]
        parameters: dict[str, Value] = {}
        if template is not None:
            parameters = {
                str(i): plain_value(word.rstrip(";"))
                for i, (word, fixed) in enumerate(zip(words, template, strict=True))
                if fixed is None
            }
            shown = " ".join(
                f"{{{i}}}" if word is None else word for i, word in enumerate(template)
            )
        # A job that is run again (--resume-failed) has a row for each try.
        tries[sequence] += 1
        status = Status.SUCCEEDED if not ended and not signal else Status.FAILED
        if signal in _STOPPED:
            status = Status.CANCELLED
        return TaskObservation(
            execution=execution,
            task=sequence,
            attempt=tries[sequence],
            kind=program,
            template="" if template is None else shown,
            parameters=parameters,
            host="" if row["Host"] == ":" else row["Host"],
            start=start,
            seconds=ran,
            status=status,
            source="parallel",
        )

    log = collect(rows, observe)
    log.problems.extend(problems)
    return log


def _one_line(line: str) -> str:
    """Return a row whose command has no tabs: the command is the last field."""
    fields = line.split("\t")
    return "\t".join([*fields[:8], " ".join(fields[8:])]) if len(fields) > 9 else line


def _template(commands: Sequence[Sequence[str]]) -> list[str | None] | None:
    """Return the words that all commands share, None for those that differ; None: no such form."""
    lengths = {len(words) for words in commands}
    if len(lengths) != 1 or max(lengths) > _MOST_WORDS:
        return None
    return [column[0] if len(set(column)) == 1 else None for column in zip(*commands, strict=True)]
