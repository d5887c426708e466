"""Schedules of clusters as charts."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bursar.cluster.machine import Machine
from bursar.cluster.metrics import averaged, processors_busy, queue_length
from bursar.cluster.simulation import SimulatedSchedule
from bursar.formats.batsim import allocate
from bursar.model.errors import InputError
from bursar.model.trace import Trace

if TYPE_CHECKING:
    import altair

    from bursar.model.trace import FloatArray, IntArray

MOST_BARS = 20_000
"""Rectangles that a picture can show and a browser can draw."""

POINTS = 400
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
    begins, means = averaged(times, values, POINTS)
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
