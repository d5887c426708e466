"""Runtimes of the tasks that two runs have in common, as a picture."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import altair

MOST_TASKS = 5_000
"""Tasks drawn; of more, evenly many."""


def comparison_chart(found: Mapping[str, Any]) -> "altair.LayerChart":
    """
    Return a point for each task that succeeded in both runs, and the line of equal runtimes.

    Parameters
    ----------
    found
        As :func:`bursar.runs.kept.comparison.compare_runs` returns it.
    """
    import altair as alt

    first, second = found["runs"]
    rows = found["runtimes"]["rows"]
    step = -(-len(rows) // MOST_TASKS) or 1
    points = [{"task": t, "first": a, "second": b} for t, a, b in rows[::step]]
    most = max((max(p["first"], p["second"]) for p in points), default=1.0)
    line = alt.Chart(alt.InlineData(values=[{"s": 0.0}, {"s": most}]))
    equal = line.mark_line(strokeDash=[4, 4], color="#888").encode(x="s:Q", y="s:Q")
    dots = (
        alt.Chart(alt.InlineData(values=points))
        .mark_circle(size=30, color="#2563a8", opacity=0.6)
        .encode(
            x=alt.X("first:Q", title=f"seconds in {first}"),
            y=alt.Y("second:Q", title=f"seconds in {second}"),
            tooltip=["task:N", "first:Q", "second:Q"],
        )
    )
    chart = alt.LayerChart(layer=[equal, dots])
    return chart.properties(width=480, height=480, title="Tasks that succeeded in both runs")
