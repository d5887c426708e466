"""Logs of clusters and their simulation, as charts, as tables and as JSON."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bursar.cluster.machine import Machine
from bursar.cluster.simulation import (
    ScheduleMetrics,
    SimulatedSchedule,
    averaged,
    processors_busy,
    queue_length,
)
from bursar.formats.trace_files import allocate
from bursar.model.errors import InputError
from bursar.model.trace import Trace
from bursar.report.tables import UNKNOWN, span

if TYPE_CHECKING:
    import altair
    from rich.console import Console

    from bursar.model.trace import FloatArray, IntArray


# Schedules of clusters as charts.

MOST_BARS = 20_000
"""Rectangles that a picture can show and a browser can draw."""

CHART_POINTS = 400
"""Steps of a curve that are drawn, at most."""

HOUR = 3600.0


def gantt_chart(
    begin: "FloatArray",
    end: "FloatArray",
    width: "IntArray",
    processors: int,
    names: Sequence[str],
    *,
    first: float,
    last: float,
) -> "altair.Chart":
    """
    Return a chart of processors against hours, with a rectangle for each job.

    The input says how many processors a job holds, not which: these are chosen here, and a job
    that gets no adjacent ones has several rectangles.

    Parameters
    ----------
    begin, end, width, names
        Start and end of each job, seconds; its number of processors; its name. Jobs that run at a
        time never hold more processors than the machine has.
    processors
        Number of the machine's processors.
    first, last
        Seconds between which jobs are shown; a job that reaches beyond is cut off there.

    Raises
    ------
    InputError
        When there are more rectangles than can be told apart.
    """
    import altair as alt

    held = allocate(begin, end, width, processors)
    rows = [
        {
            "job": names[i],
            "start": max(float(begin[i]), first) / HOUR,
            "end": min(float(end[i]), last) / HOUR,
            "from": lowest,
            "to": after,
        }
        for i in np.flatnonzero((end > first) & (begin < last)).tolist()
        for lowest, after in held[i]
    ]
    if len(rows) > MOST_BARS:
        raise InputError(
            f"{len(rows)} rectangles are more than the {MOST_BARS} that a chart can show",
            hint="show less of it with --from and --until",
        )
    chart = alt.Chart(alt.InlineData(values=rows)).mark_rect(stroke="white", strokeWidth=0.3)
    shown: alt.Chart = chart.encode(
        x=alt.X("start:Q", title="time, h", scale=alt.Scale(nice=False, zero=False)),
        x2="end:Q",
        y=alt.Y("from:Q", title="processor", scale=alt.Scale(domain=[0, processors], nice=False)),
        y2="to:Q",
        color=alt.Color("job:N", legend=None, scale=alt.Scale(scheme="tableau20")),
        tooltip=["job:N", "start:Q", "end:Q"],
    ).properties(width=900, height=360)
    return shown


def comparison_chart(
    trace: Trace, results: Mapping[str, SimulatedSchedule]
) -> "altair.VConcatChart":
    """Queue length and processors busy over time, a curve for each policy."""
    import altair as alt

    curves = {
        "jobs waiting": [_curve(name, *queue_length(trace, r)) for name, r in results.items()],
        "processors busy": [
            _curve(name, *processors_busy(trace, r)) for name, r in results.items()
        ],
    }
    charts = []
    for title, parts in curves.items():
        rows = [row for part in parts for row in part]
        chart = alt.Chart(alt.InlineData(values=rows)).mark_line(
            interpolate="step-after", strokeWidth=1.2
        )
        charts.append(
            chart.encode(
                x=alt.X("day:Q", title="day"),
                y=alt.Y("value:Q", title=title),
                color=alt.Color("policy:N", title=None),
            ).properties(width=900, height=220)
        )
    return alt.vconcat(*charts)


def _curve(name: str, times: "FloatArray", values: "IntArray") -> list[dict[str, float | str]]:
    # Averages, not samples: a short peak between two points still raises the curve.
    begins, means = averaged(times, values, CHART_POINTS)
    return [
        {"policy": name, "day": begin / 86_400.0, "value": round(mean, 3)}
        for begin, mean in zip(begins.tolist(), means.tolist(), strict=True)
    ]


def state_chart(machine: Machine) -> "altair.Chart":
    """
    Chart the jobs that a machine runs and plans from now on, like :func:`gantt_chart`.

    Running jobs to their expected ends, waiting jobs where they will start by
    the estimates, and reservations.

    Raises
    ------
    InputError
        When nothing is running, waiting or reserved.
    """
    begin, end, width = machine.schedule()
    if not len(begin):
        raise InputError("nothing is running, waiting or reserved")
    names = [f"job {number}, runs" for number in machine.running.tolist()]
    names += [f"reservation {reservation.number}" for reservation in machine.reservations]
    names += [f"job {number}, waits" for number in machine.waiting.tolist()]
    return gantt_chart(
        np.maximum(begin, machine.now),
        end,
        width,
        machine.processors,
        names,
        first=machine.now,
        last=float(end.max()),
    )


# Logs and their simulation as tables, and as JSON.

WEEK = 7 * 86_400.0

TABLE_POINTS = 200
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
            "waiting": _pairs(*averaged(*queue_length(trace, result), TABLE_POINTS)),
            "busy": _pairs(*averaged(*processors_busy(trace, result), TABLE_POINTS)),
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
