"""
Nextflow's ``trace.txt``: a table of tab-separated fields, one row for each task execution.

Fields vary by ``trace.fields``; with ``trace.raw`` durations are milliseconds, memory is bytes and
dates are milliseconds since the epoch. Dates have no zone and are taken as local time.
"""

import re
from collections.abc import Mapping

from bursar.history.importing.imported_log import (
    ImportedLog,
    PassedOver,
    bad_field,
    collect,
    file_stem,
    fingerprint,
    is_absent,
    moment_of,
    number_of,
    size_of,
    stated,
    table_rows,
)
from bursar.history.observation import TaskObservation
from bursar.model.errors import InputError
from bursar.model.task import Status

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_STATUSES = {
    "COMPLETED": Status.SUCCEEDED,
    "FAILED": Status.FAILED,
    "ABORTED": Status.CANCELLED,
}
_PENDING = frozenset({"NEW", "SUBMITTED", "RUNNING"})


def read_nextflow(text: str, path: str) -> ImportedLog:
    """
    Read a trace.

    Rows of the status CACHED are passed over: they repeat what an earlier execution took.

    Parameters
    ----------
    path
        Path of the file, for messages and the name of the execution.

    Raises
    ------
    InputError
        When the text is no trace.
    """
    names, rows, problems = table_rows(
        text, path, separator="\t", needed=("status",), what="a Nextflow trace"
    )
    if "name" not in names and "process" not in names:
        raise InputError('has neither a column "name" nor "process"', where=f"{path}:1")
    if not {"realtime", "duration"} & set(names) and not {"start", "complete"} <= set(names):
        raise InputError(
            'has no column "realtime", which tells how long tasks ran', where=f"{path}:1"
        )
    # The first row stays when the file grows, so that it can be read again.
    first = "\t".join(rows[0][1].values()) if rows else ""
    execution = f"{file_stem(path)}@{fingerprint(first)}"
    log = collect(rows, lambda row: _observe(row, execution))
    log.problems.extend(problems)
    return log


def _observe(row: Mapping[str, str], execution: str) -> TaskObservation:
    status = row["status"]
    if status in _PENDING:
        raise PassedOver("not ended")
    if status == "CACHED":
        raise PassedOver("cached by an earlier execution")
    if status not in _STATUSES:
        raise bad_field("status", status, f"one of {', '.join(_STATUSES)}, CACHED")
    name = row.get("name", "")
    process, _, tag = name.partition(" (")
    kind = row["process"] if not is_absent(row.get("process")) else process
    if not is_absent(row.get("tag")):
        tag = row["tag"]
    submit, start, complete = (_moment(row, column) for column in ("submit", "start", "complete"))
    ran, duration = _seconds(row, "realtime"), _seconds(row, "duration")
    if ran is None:
        ran = complete - start if complete is not None and start is not None else duration
    if ran is None:
        raise PassedOver("no run time")
    waited = None
    if start is not None and submit is not None:
        waited = start - submit
    elif duration is not None:
        waited = duration - ran
    if start is None:
        start = complete - ran if complete is not None else (submit or 0.0) + max(0.0, waited or 0)
    share = (
        None
        if is_absent(row.get("%cpu"))
        else number_of({"%cpu": row["%cpu"].removesuffix("%")}, "%cpu")
    )
    task = next((row[c] for c in ("task_id", "hash", "name") if not is_absent(row.get(c))), kind)
    return TaskObservation(
        execution=execution,
        task=task,
        attempt=int(number_of(row, "attempt") or 1),
        kind=kind,
        parameters={"tag": tag.removesuffix(")")} if tag else {},
        site=row["queue"] if not is_absent(row.get("queue")) else "",
        processors=max(1, int(number_of(row, "cpus") or 1)),
        start=start,
        seconds=ran,
        # Nextflow rounds what it prints.
        waited=None if waited is None else max(0.0, waited),
        max_rss=size_of(row, "peak_rss") if "peak_rss" in row else size_of(row, "rss"),
        user_seconds=None if share is None else share / 100 * ran,
        status=_STATUSES[status],
        source="nextflow",
    )


def _seconds(row: Mapping[str, str], name: str) -> float | None:
    if (text := stated(row, name)) is None:
        return None
    if re.fullmatch(r"\d+", text):  # raw
        return int(text) / 1000
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text).strip():
        raise bad_field(name, text, "a time such as 1m 3s, or milliseconds")
    return float(sum(float(count) * _UNITS[unit] for count, unit in parts))


def _moment(row: Mapping[str, str], name: str) -> float | None:
    text = row.get(name)
    if text is not None and re.fullmatch(r"\d{9,}", text):  # raw
        return int(text) / 1000
    return moment_of(row, name)
