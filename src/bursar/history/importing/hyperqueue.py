"""
HyperQueue's records of tasks: the exported journal, and jobs as JSON.

``hq journal export`` prints a line of JSON for each event, which tells starts, attempts, workers
and submissions. ``hq job info JOBS --output-mode json`` prints jobs with their tasks, of which the
last attempt is known.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bursar.history.importing.imported_log import (
    ImportedLog,
    PassedOver,
    bad_field,
    file_stem,
    fingerprint,
    moment_of,
    without_numbering,
)
from bursar.history.observation import TaskObservation
from bursar.model.errors import InputError
from bursar.model.task import Status

_STATES = {"finished": Status.SUCCEEDED, "failed": Status.FAILED, "canceled": Status.CANCELLED}
_PENDING = frozenset({"waiting", "running"})
_FRACTIONS = 10_000
"""Parts of one resource in which HyperQueue counts."""


def read_hyperqueue(text: str, path: str) -> ImportedLog:
    """
    Read an exported journal, or jobs as JSON.

    Raises
    ------
    InputError
        When the text is neither.
    """
    try:
        document = msgspec.json.decode(text)
    except msgspec.DecodeError:
        document = None
    if isinstance(document, dict) and "event" not in document:
        if "info" in document:
            document = [document]
        else:
            raise InputError(
                "tells no job of its tasks, expected a journal or jobs of HyperQueue",
                where=path,
                hint="hq journal export FILE, or hq job info all --output-mode json",
            )
    if isinstance(document, list):
        return _read_jobs(document, path)
    return _read_journal(text, path)


# Jobs as JSON.


def _read_jobs(jobs: list[Any], path: str) -> ImportedLog:
    log = ImportedLog()
    for number, job in enumerate(jobs):
        where = f"{path}: job {number + 1}"
        if not isinstance(job, dict) or not isinstance(job.get("info"), dict):
            log.problems.append(InputError("is no job of HyperQueue", where=where))
            continue
        if not isinstance(job.get("tasks"), list):
            log.problems.append(
                InputError(
                    "has no tasks", where=where, hint="hq job info all --output-mode json has them"
                )
            )
            continue
        info = {key: str(value) for key, value in job["info"].items()}
        name, submitted = info.get("name", ""), str(job.get("started_at") or "")
        execution = f"hq-{name or 'job'}-{info.get('id', number)}@{fingerprint(submitted)}"
        for task in job["tasks"]:
            try:
                log.observations.append(
                    _observe_task(task, execution, name, submitted, _processors(job))
                )
            except PassedOver as reason:
                log.passed_over[str(reason)] += 1
            except InputError as error:
                log.problems.append(error.within(where))
            except ValueError as error:
                log.problems.append(InputError(str(error), where=where))
    return log


def _observe_task(
    task: Any, execution: str, name: str, submitted: str, processors: int
) -> TaskObservation:
    if not isinstance(task, dict) or "id" not in task:
        raise InputError("is no task with an id", where="tasks")
    row = {key: str(value) for key, value in task.items() if value is not None}
    state = row.get("state", "")
    if state in _PENDING:
        raise PassedOver("not ended")
    if state not in _STATES:
        raise bad_field(f"task {row['id']}: state", state, f"one of {', '.join(_STATES)}")
    start, end = moment_of(row, "started_at"), moment_of(row, "finished_at")
    if start is None or end is None:
        raise PassedOver("never began")
    ready = moment_of({"started_at": submitted}, "started_at")
    return TaskObservation(
        execution=execution,
        task=row["id"],
        kind=without_numbering(name) or "job",
        host=f"worker {row['worker']}" if "worker" in row else "",
        processors=processors,
        start=start,
        seconds=end - start,
        waited=None if ready is None else max(0.0, start - ready),
        status=_STATES[state],
        source="hyperqueue",
    )


def _processors(job: Mapping[str, Any]) -> int:
    """Return the processors that a job's tasks ask for; 1 where the form is not known."""
    try:
        variant = job["task-desc"]["array"]["resources"][0]["resources"]
        request = next(one["request"] for one in variant if one["resource"] == "cpus")
    except (KeyError, IndexError, TypeError, StopIteration):
        return 1
    amount = next(iter(request.values())) if isinstance(request, dict) and request else request
    match = re.match(r"\d+", str(amount))
    count = int(match[0]) if match else 1
    return max(1, count // _FRACTIONS if count >= _FRACTIONS else count)


# The journal.


@dataclass(slots=True)
class _JournalReading:
    """Facts that earlier events of a journal have told."""

    names: dict[int, str] = field(default_factory=dict)
    submitted: dict[int, float] = field(default_factory=dict)
    hosts: dict[int, str] = field(default_factory=dict)
    running: dict[tuple[int, int], tuple[int, float, str]] = field(default_factory=dict)
    server: str = ""


def _read_journal(text: str, path: str) -> ImportedLog:
    log, reading = ImportedLog(), _JournalReading(server=file_stem(path))
    sound = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            record = msgspec.json.decode(line)
            event = record["event"]
            kind = event["type"]
            time = moment_of(record, "time")
            if time is None:
                raise bad_field("time", "", "a date")
            sound += 1
            log.observations.extend(_on_event(reading, kind, event, time))
        except msgspec.DecodeError as error:
            log.problems.append(InputError(f"is not JSON: {error}", where=where))
        except InputError as error:
            log.problems.append(error.within(where))
        except (KeyError, TypeError, AttributeError):
            log.problems.append(InputError("is no event of HyperQueue", where=where))
        except ValueError as error:
            log.problems.append(InputError(str(error), where=where))
    if not sound:
        raise InputError("holds no event, expected a journal of HyperQueue", where=path)
    if reading.running:
        log.passed_over["not ended"] += len(reading.running)
    return log


def _on_event(
    reading: _JournalReading, kind: str, event: Mapping[str, Any], time: float
) -> Iterator[TaskObservation]:
    match kind:
        case "server-start":
            # What the last server ran has ended with it, nobody knows when.
            reading.running.clear()
            reading.server = str(event.get("server_uid") or reading.server)
        case "worker-connected":
            configuration = event.get("configuration") or {}
            reading.hosts[event["id"]] = str(configuration.get("hostname", ""))
        case "job-created" | "job-open":
            job = event["job"] if "job" in event else event["job_id"]
            described = event.get("job_desc") or event
            reading.names[job] = str(described.get("name") or "")
            reading.submitted.setdefault(job, time)
        case "task-started":
            key = (event["job"], event["task"])
            if key in reading.running:  # its worker went away
                yield _ended(reading, key, Status.LOST, time)
            workers: list[int] = event["workers"] if "workers" in event else [event["worker"]]
            host = reading.hosts.get(workers[0], "") if workers else ""
            reading.running[key] = (int(event.get("instance") or 0), time, host)
        case "task-finished":
            yield from _end(reading, (event["job"], event["task"]), Status.SUCCEEDED, time)
        case "task-failed":
            yield from _end(reading, (event["job"], event["task"]), Status.FAILED, time)
        case "task-canceled":
            for key in _cancelled(event):
                yield from _end(reading, key, Status.CANCELLED, time)


def _cancelled(event: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """Yield the tasks of a cancellation: one, or a list in one of the forms of versions."""
    if "task" in event:
        yield event["job"], event["task"]
    for one in event.get("tasks", ()):
        if isinstance(one, dict):
            yield one["job_id"], one["job_task_id"]
        elif isinstance(one, list):
            yield one[0], one[1]
        else:
            job, _, task = str(one).partition("@")
            yield int(job), int(task)


def _end(
    reading: _JournalReading, key: tuple[int, int], status: Status, time: float
) -> Iterator[TaskObservation]:
    if key in reading.running:  # else it never began
        yield _ended(reading, key, status, time)


def _ended(
    reading: _JournalReading, key: tuple[int, int], status: Status, time: float
) -> TaskObservation:
    job, task = key
    instance, start, host = reading.running.pop(key)
    name, submitted = reading.names.get(job, ""), reading.submitted.get(job)
    return TaskObservation(
        execution=f"hq-{name or 'job'}-{job}@{fingerprint(f'{reading.server} {submitted}')}",
        task=str(task),
        attempt=instance + 1,
        kind=without_numbering(name) or "job",
        host=host,
        start=start,
        seconds=max(0.0, time - start),
        waited=None if submitted is None else max(0.0, start - submitted),
        status=status,
        source="hyperqueue",
    )
