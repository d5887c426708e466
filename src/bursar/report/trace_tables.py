"""Logs and their simulation as tables, and as JSON."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bursar.cluster.metrics import ScheduleMetrics, averaged, processors_busy, queue_length
from bursar.cluster.simulation import SimulatedSchedule
from bursar.model.trace import Trace
from bursar.report.formatting import UNKNOWN, span

if TYPE_CHECKING:
    from rich.console import Console

    from bursar.model.trace import FloatArray

WEEK = 7 * 86_400.0

POINTS = 200
"""Pieces of time that the queue and the processors busy are averaged over, at most."""


def trace_to_dict(trace: Trace, processors: int | None) -> dict[str, Any]:
    """
    Summarise the jobs of a log.

    Parameters
    ----------
    processors
        Of the machine; None when unknown: then so is the load.
    """
    widths = trace.processors
    return {
        "log": trace.name,
        "jobs": len(trace),
        "users": len(set(trace.user[trace.user >= 0].tolist())),
        "begin": trace.begin,
        "span_s": float(trace.submit[-1] - trace.submit[0]),
        "work_s": trace.work,
        "processors": processors,
        "load": _load(trace, processors),
        "load_by_week": _load_by_week(trace, processors),
        "widest": int(widths.max()),
        "serial_share": float((widths == 1).mean()),
        "median_runtime_s": float(np.median(trace.runtime)),
        "longest_runtime_s": float(trace.runtime.max()),
        "median_estimate_s": float(np.median(trace.estimate)),
        "accuracy": float(np.minimum(1.0, trace.runtime / trace.estimate).mean()),
        "cleaning": [
            {"reason": f.reason, "jobs": f.jobs, "dropped": f.dropped, "line": f.line}
            for f in trace.cleaning
        ],
    }


def result_to_dict(
    trace: Trace, result: SimulatedSchedule, metrics: ScheduleMetrics
) -> dict[str, Any]:
    """A simulation: what was simulated, on how much, how, and what came of it."""
    return {
        "log": trace.name,
        "processors": result.processors,
        "policy": result.policy,
        "estimates": result.estimates,
        "semantics": result.semantics,
        "early": result.early,
        "overrun": result.overrun,
        **metrics.to_dict(),
        "over_time": {
            "waiting": _pairs(*averaged(*queue_length(trace, result), POINTS)),
            "busy": _pairs(*averaged(*processors_busy(trace, result), POINTS)),
        },
    }


def _pairs(times: "FloatArray", values: "FloatArray") -> list[tuple[float, float]]:
    return [
        (round(t, 3), round(v, 3)) for t, v in zip(times.tolist(), values.tolist(), strict=True)
    ]


def print_trace(found: Mapping[str, Any], console: "Console | None" = None) -> None:
    """Print a summary of a log made by :func:`trace_to_dict`."""
    from rich.console import Console
    from rich.table import Table

    console = console or Console()
    table = Table.grid(padding=(0, 2))
    processors = UNKNOWN if found["processors"] is None else str(found["processors"])
    load = UNKNOWN if found["load"] is None else f"{found['load']:.1%} of {processors} processors"
    for title, value in (
        ("log", found["log"]),
        ("jobs", f"{found['jobs']} of {found['users']} users"),
        ("span", span(found["span_s"])),
        ("processors", processors),
        ("load", load),
        ("widest job", f"{found['widest']} processors; {found['serial_share']:.0%} need one"),
        ("run time", f"median {span(found['median_runtime_s'])}, "
                     f"longest {span(found['longest_runtime_s'])}"),
        ("estimate", f"median {span(found['median_estimate_s'])}; "
                     f"{found['accuracy']:.0%} of it is used, on average"),
    ):  # fmt: skip
        table.add_row(title, value)
    console.print(table, highlight=False)
    _print_cleaning(found["cleaning"], console)
    weeks = found["load_by_week"]
    if weeks:
        top = max(weeks) or 1.0
        console.print("load by week", highlight=False)
        for number, share in enumerate(weeks, 1):
            bar = "█" * round(30 * share / top)
            console.print(f"  {number:3d}  {share:6.1%}  {bar}", highlight=False)


def print_results(
    rows: Sequence[Mapping[str, Any]],
    cleaning: Sequence[Mapping[str, Any]],
    console: "Console | None" = None,
) -> None:
    """Print simulations side by side, each made by :func:`result_to_dict`."""
    from rich.console import Console
    from rich.table import Table

    console = console or Console()
    first = rows[0]
    console.print(
        f"{first['log']}: {first['jobs']} jobs on {first['processors']} processors, "
        f"{first['estimates']} estimates, {first['semantics']} semantics",
        style="bold",
        highlight=False,
    )
    _print_cleaning(cleaning, console)
    table = Table("", *(row["policy"] for row in rows), box=None, padding=(0, 2))
    for column in table.columns[1:]:
        column.justify = "right"
    lines: tuple[tuple[str, Callable[[Mapping[str, Any]], str]], ...] = (
        ("average wait", lambda r: span(r["average_wait_s"])),
        ("  90 % wait at most", lambda r: span(r["waits_s"]["90"])),
        ("average response", lambda r: span(r["average_response_s"])),
        (
            f"bounded slowdown (tau {first['tau_s']:g} s)",
            lambda r: f"{r['average_bounded_slowdown']:.4g}",
        ),
        ("  90 % at most", lambda r: f"{r['bounded_slowdowns']['90']:.4g}"),
        ("utilisation", lambda r: f"{r['utilisation']:.1%}"),
        ("makespan", lambda r: span(r["makespan_s"])),
        ("queue, average and most", lambda r: f"{r['average_queue']:.1f}, {r['longest_queue']}"),
        ("ended at the estimate", lambda r: str(r["killed"])),
    )
    for title, show in lines:
        table.add_row(title, *(show(row) for row in rows))
    console.print(table, highlight=False)


def _print_cleaning(cleaning: Sequence[Mapping[str, Any]], console: "Console") -> None:
    for finding in cleaning:
        what = "dropped" if finding["dropped"] else "kept"
        console.print(
            f"{finding['jobs']} jobs {what}: {finding['reason']} (first: line {finding['line']})",
            highlight=False,
        )


def _load(trace: Trace, processors: int | None) -> float | None:
    length = float(trace.submit[-1] - trace.submit[0])
    return trace.work / (processors * length) if processors and length else None


def _load_by_week(trace: Trace, processors: int | None) -> list[float]:
    """Return the load of each week: work submitted over the machine's capacity."""
    if not processors:
        return []
    week = ((trace.submit - trace.submit[0]) // WEEK).astype(np.int64)
    work = np.bincount(week, weights=trace.runtime * trace.processors)
    return [float(share) for share in work / (processors * WEEK)]
