"""Exports of a history: JSON lines and CSV, written and read back."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from bursar.history.importing.imported_log import ImportedLog
from bursar.history.observation import TaskObservation
from bursar.model.errors import InputError

_FIELDS = TaskObservation.__struct_fields__
_NUMBERS = frozenset(
    {
        "attempt", "input_bytes", "processors", "speed", "start", "seconds", "waited",
        "transferred", "max_rss", "user_seconds", "system_seconds", "estimate", "parameters",
    }
)  # fmt: skip


def to_json_lines(observations: Iterable[TaskObservation]) -> Iterator[str]:
    """Yield a JSON object for each observation; what has its usual value is left out."""
    encode = msgspec.json.Encoder().encode
    for one in observations:
        yield encode(one).decode()


def to_csv(observations: Iterable[TaskObservation]) -> Iterator[str]:
    """Yield a header and a row for each observation; parameters are a JSON object in one field."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(_FIELDS)
    for one in observations:
        fields: dict[str, Any] = {name: getattr(one, name) for name in _FIELDS}
        fields["parameters"] = msgspec.json.encode(one.parameters).decode()
        fields["status"] = str(one.status)
        writer.writerow(["" if value is None else value for value in fields.values()])
        yield buffer.getvalue().removesuffix("\n")
        buffer.seek(0)
        buffer.truncate()


def read_exported(text: str, path: str) -> ImportedLog:
    """
    Read what :func:`to_json_lines` or :func:`to_csv` wrote.

    Raises
    ------
    InputError
        When the text is neither.
    """
    first = next((line for line in text.splitlines() if line.strip()), "")
    if not first:
        raise InputError("is empty, expected an export of a history", where=path)
    log = ImportedLog()
    rows = _json_rows(text, log, path) if first.startswith("{") else _csv_rows(text, path)
    for where, fields in rows:
        try:
            log.observations.append(msgspec.convert(fields, TaskObservation, strict=False))
        except (msgspec.ValidationError, ValueError) as error:
            log.problems.append(InputError(str(error).replace("`", '"'), where=where))
    return log


def _json_rows(text: str, log: ImportedLog, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                yield f"{path}:{number}", msgspec.json.decode(line)
            except msgspec.DecodeError as error:
                problem = InputError(f"is not JSON: {error}", where=f"{path}:{number}")
                log.problems.append(problem)


def _csv_rows(text: str, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text))
    try:
        if reader.fieldnames is None or not {"execution", "task", "kind", "seconds"} <= set(
            reader.fieldnames
        ):
            raise InputError("is no export of a history", where=f"{path}:1")
        for row in reader:
            fields: dict[str, Any] = {
                name: value
                for name, value in row.items()
                if name is not None and value is not None and not (value == "" and name in _NUMBERS)
            }
            where = f"{path}:{reader.line_num}"
            try:
                fields["parameters"] = msgspec.json.decode(fields.get("parameters", "{}"))
            except msgspec.DecodeError:
                fields["parameters"] = None  # refused, as no object is
            yield where, fields
    except csv.Error as error:
        raise InputError(str(error), where=f"{path}:{reader.line_num}") from None
