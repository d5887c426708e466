"""
A run as a trace of OpenTelemetry, in the JSON encoding of OTLP 1.x.

One span stands for the run, one below it for each lease and one for each attempt. Ids follow from
the run, so that an export that is repeated sends the same spans.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from bursar.report.exports.exported_run import ExportedAttempt, ExportedRun, present, succeeded
from bursar.version import VERSION

_INTERNAL = 1
_OK, _ERROR = 1, 2
_SCOPE = {"name": "bursar", "version": VERSION}


def trace_requests(run: ExportedRun, spans: int | None = None) -> Iterator[dict[str, Any]]:
    """
    Yield the bodies of requests that export a run's trace.

    Parameters
    ----------
    spans
        Most spans in one body; None: all in one.
    """
    resource = {
        "attributes": _attributes(
            {
                "service.name": "bursar",
                "service.version": VERSION,
                "bursar.run": run.name,
                "bursar.campaign": run.campaign,
            }
        )
    }
    every = list(_spans(run))
    size = spans or max(1, len(every))
    for first in range(0, len(every), size):
        part = every[first : first + size]
        yield {
            "resourceSpans": [
                {"resource": resource, "scopeSpans": [{"scope": _SCOPE, "spans": part}]}
            ]
        }


def _spans(run: ExportedRun) -> Iterator[dict[str, Any]]:
    trace, root = _id(run, "trace", 16), _id(run, "run", 8)
    if run.begun is None or run.ended is None:
        return
    bill = run.bill
    # A lease may begin before the first task and end after the last one.
    bounds = [
        (begin, begin + item.seconds)
        for item in bill.leases
        for begin in (run.leases[item.lease].start,)
    ]
    bounds.append((run.begun, run.ended))
    yield _span(
        trace,
        root,
        f"run {run.name}",
        (min(begin for begin, _ in bounds), max(end for _, end in bounds)),
        {
            "bursar.state": run.state,
            "bursar.tasks": len(run.workflow.tasks),
            "bursar.attempts": len(run.attempts),
            "bursar.makespan_s": run.makespan,
            "bursar.deadline_s": run.goal.deadline,
            "bursar.budget": run.goal.budget,
            "bursar.cost_micros": bill.total,
            "bursar.currency": bill.currency,
        },
    ) | {"status": {"code": _OK} if run.state == "finished" else _failed(run.state)}
    for item, between in zip(bill.leases, bounds, strict=False):
        yield _span(
            trace,
            _id(run, f"lease {item.lease}", 8),
            f"lease {item.lease}",
            between,
            {
                "bursar.site": item.site,
                "bursar.processors": item.processors,
                "bursar.cost_micros": item.total,
                "bursar.tasks_micros": item.tasks,
                "bursar.remainder_micros": item.remainder,
            },
            parent=root,
        )
    for one in run.attempts:
        links = [
            {"traceId": trace, "spanId": _attempt_id(run, before)}
            for parent in run.workflow.parents[one.number]
            for before in run.by_task.get(parent, ())
            if before.record.final
        ]
        yield _attempt(trace, root, run, one) | present({"links": links})


def _attempt(trace: str, root: str, run: ExportedRun, one: ExportedAttempt) -> dict[str, Any]:
    record, task = one.record, one.task
    outcome = record.outcome
    parameters = {f"bursar.parameter.{name}": value for name, value in task.parameters.items()}
    command = run.command_of(task)
    return _span(
        trace,
        _attempt_id(run, one),
        task.name or task.id,
        (outcome.start, one.end),
        {
            "bursar.task": task.id,
            "bursar.attempt": outcome.attempt,
            "bursar.final": record.final,
            "bursar.status": str(outcome.status),
            "bursar.site": record.site,
            "bursar.lease": record.lease,
            "bursar.processors": task.processors,
            "bursar.wait_s": outcome.start - one.ready,
            "bursar.cost_micros": one.cost,
            "process.exit.code": outcome.exit_code,
            "process.command_line": " ".join(command) if command else None,
            "bursar.user_s": outcome.user_seconds,
            "bursar.system_s": outcome.system_seconds,
            "bursar.max_rss_bytes": outcome.max_rss,
        }
        | parameters,
        parent=root,
    ) | {
        "status": {"code": _OK}
        if succeeded(record)
        else _failed(outcome.reason or str(outcome.status))
    }


def _failed(message: str) -> dict[str, Any]:
    return {"code": _ERROR, "message": message}


def _span(
    trace: str,
    span: str,
    name: str,
    between: tuple[float, float],
    attributes: Mapping[str, Any],
    parent: str = "",
) -> dict[str, Any]:
    return present({"parentSpanId": parent}) | {
        "traceId": trace,
        "spanId": span,
        "name": name,
        "kind": _INTERNAL,
        "startTimeUnixNano": _nanoseconds(between[0]),
        "endTimeUnixNano": _nanoseconds(between[1]),
        "attributes": _attributes(attributes),
    }


def _nanoseconds(seconds: float) -> str:
    """Write a moment as OTLP does: 64-bit integers are texts in JSON."""
    return str(round(seconds * 1_000_000) * 1000)


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": _value(value)} for key, value in values.items() if value is not None
    ]


def _value(value: str | int | float | bool) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": str(value)}


def _attempt_id(run: ExportedRun, one: ExportedAttempt) -> str:
    return _id(run, f"attempt {one.number} {one.record.outcome.attempt}", 8)


def _id(run: ExportedRun, name: str, size: int) -> str:
    """Return an id of so many bytes, in hexadecimal digits."""
    return hashlib.sha256(f"{run.identity}\0{name}".encode()).digest()[:size].hex()
