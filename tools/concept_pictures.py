"""
Draw the pictures of docs/concepts/index.md: one idea of each paper, computed by this code.

    python tools/concept_pictures.py [--check]

Each SVG states the SHA-256 of its chart (data and encoding) in a comment. With --check nothing is
written, and the exit status is 1 if a picture was made of another chart: text is measured with the
fonts of the machine, so that the same chart may differ by fractions of a pixel between machines.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import altair as alt

import bursar
from bursar_papers.catalogue import find

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "images"
NO_DATA = Path("nowhere")
"""Folder of logs, which none of these experiments reads."""
SIZE = {"width": 560, "height": 260}
COLOURS = ["#00796b", "#c2410c", "#4338ca", "#64748b", "#b45309"]

Row = dict[str, Any]


def rows_of(paper: str, figure: str, **factors: Iterable[Any]) -> list[Row]:
    """Measure the cells of a figure whose factors have one of the values stated."""
    (experiment,) = find(paper, figure)
    cells = [
        cell
        for cell in experiment.cells("quick")
        if all(cell[name] in values for name, values in factors.items())
    ]
    return [dict(row) for cell in cells for row in experiment.measure(cell, NO_DATA)]


def trade_off_plans() -> list[tuple[float, float]]:
    """Return makespan, s, and cost of the plans on the front of sixty tasks on three sites."""
    tasks = tuple(bursar.Task(id=f"task-{i}", runtime=120.0 + 60 * (i % 5)) for i in range(60))
    campaign = bursar.Campaign(name="example", workflow=bursar.Workflow(tasks))
    sites = [
        bursar.SiteFacts(name="cheap", processors=4, unit_price=1 / 3600),
        bursar.SiteFacts(name="middle", processors=8, unit_price=2 / 3600),
        bursar.SiteFacts(name="fast", processors=16, unit_price=5 / 3600, speed=2.0),
    ]
    front = bursar.plan(campaign, sites=sites, history="none").to_dict()["front"]
    return [(option["makespan_s"], option["cost"]) for option in front]


def lines(
    rows: list[Row], x: str, y: str, by: str, titles: tuple[str, str], *, step: bool = False
) -> alt.Chart:
    """Return a chart with a line for each value of a column, in the order in which these come."""
    names = list(dict.fromkeys(row[by] for row in rows))
    return (
        alt.Chart(alt.InlineData(values=rows))
        .mark_line(strokeWidth=2.5, interpolate="step-after" if step else "linear")
        .encode(
            x=alt.X(f"{x}:Q", title=titles[0], scale=alt.Scale(nice=False)),
            y=alt.Y(f"{y}:Q", title=titles[1]),
            color=alt.Color(
                f"{by}:N", title=None, sort=names, scale=alt.Scale(domain=names, range=COLOURS)
            ),
        )
    )


def trade_off() -> alt.LayerChart:
    """HPDC 2007: all plans worth choosing, and the one that a deadline picks."""
    plans = [{"minutes": m / 60, "cost": c} for m, c in trade_off_plans()]
    deadline = 45.0
    chosen = min((one for one in plans if one["minutes"] <= deadline), key=lambda one: one["cost"])
    curve = (
        alt.Chart(alt.InlineData(values=plans))
        .mark_line(
            point={"size": 40, "color": COLOURS[0]}, interpolate="step-after", color=COLOURS[0]
        )
        .encode(
            x=alt.X("minutes:Q", title="makespan (min)", scale=alt.Scale(zero=True)),
            y=alt.Y("cost:Q", title="cost (SU)", scale=alt.Scale(zero=True)),
        )
    )
    marks = [{"minutes": deadline, "words": f"deadline {deadline:.0f} min"}]
    rule = alt.Chart(alt.InlineData(values=marks)).encode(x="minutes:Q")
    pick = alt.Chart(alt.InlineData(values=[chosen | {"words": "chosen"}])).encode(
        x="minutes:Q", y="cost:Q"
    )
    return alt.layer(
        rule.mark_rule(strokeDash=[6, 4], color=COLOURS[1], strokeWidth=2),
        rule.mark_text(align="left", dx=6, y=12, color=COLOURS[1], fontSize=12).encode(
            text="words:N"
        ),
        curve,
        pick.mark_point(size=220, strokeWidth=3, color=COLOURS[1]),
        pick.mark_text(align="right", dx=-14, dy=14, color=COLOURS[1], fontSize=12).encode(
            text="words:N"
        ),
    )


def total_cost() -> alt.LayerChart:
    """e-Science 2006: time and money as one figure; where it is least depends on the weight."""
    plans = trade_off_plans()
    second = min(cost for _, cost in plans) / min(span for span, _ in plans)
    rows: list[Row] = []
    least: list[Row] = []
    for weight in (0.5, 0.8, 0.95):
        words = f"weight of cost {weight}"
        total = [
            {"minutes": m / 60, "total": weight * c + (1 - weight) * second * m, "weight": words}
            for m, c in plans
        ]
        rows += total
        least.append(min(total, key=lambda row: row["total"]))
    curves = lines(rows, "minutes", "total", "weight", ("makespan of the plan (min)", "total cost"))
    point = (
        alt.Chart(alt.InlineData(values=least))
        .mark_point(size=200, strokeWidth=3)
        .encode(x="minutes:Q", y="total:Q", color="weight:N")
    )
    return alt.layer(curves, point)


def strategies() -> alt.Chart:
    """Nimrod/G 2000: how many of ten queues each strategy keeps in use."""
    words = {"time": "least time within the budget", "cost": "least cost by the deadline"}
    rows = [
        row | {"strategy": words[name], "minutes": row["time"] / 60}
        for figure, name in (("4", "time"), ("3", "cost"))
        for row in rows_of("nimrodg", figure, budget=[252_000])
    ]
    titles = ("time (min); deadline 33 min, budget 252,000", "queues in use")
    return lines(rows, "minutes", "queues", "strategy", titles, step=True)


def acquisition() -> alt.Chart:
    """DRP 2006: processors that each policy of asking gets on a busy machine."""
    policies = ["all-at-once", "exponential", "one-at-a-time"]
    rows = rows_of("drp", "2", scenario=["busy"], policy=policies)
    titles = ("time (s)", "workers that have begun")
    return lines(rows, "time", "workers", "policy", titles, step=True)


def stale_information() -> alt.Chart:
    """DataGrid 2003: what the age of information does to the choice of a site."""
    words = {
        "random": "any site",
        "current": "best rank, as the index says",
        "completion": "expected end, own jobs counted",
    }
    rows = [
        row | {"words": words[row["policy"]], "minutes": row["lifetime"] / 60}
        for row in rows_of("datagrid", "4", policy=list(words), seed=[0])
    ]
    rows.sort(key=lambda row: (list(words).index(row["policy"]), row["gap"]))
    titles = ("seconds between two jobs", "mean time of a job (min)")
    return lines(rows, "gap", "minutes", "words", titles)


def prices() -> alt.Chart:
    """Economy models: prices that owners adjust while two users buy."""
    owners = ["owner-28", "owner-22", "owner-16", "owner-10"]
    rows = rows_of("market", "prices", users=[2], seed=[0])
    rows = [row | {"minutes": row["time"] / 60} for row in rows if row["owner"] in owners]
    rows.sort(key=lambda row: (owners.index(row["owner"]), row["time"]))
    titles = ("time (min)", "price of a processor-second")
    return lines(rows, "minutes", "price", "owner", titles, step=True)


PICTURES: dict[str, Callable[[], alt.Chart | alt.LayerChart]] = {
    "trade-off": trade_off,
    "total-cost": total_cost,
    "strategies": strategies,
    "acquisition": acquisition,
    "stale-information": stale_information,
    "prices": prices,
}
"""Pictures by the names of their files."""


def specification(name: str) -> dict[str, Any]:
    """Return a picture's chart in Vega-Lite, with its data rounded to six digits."""
    axis = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
    legend = {"labelFontSize": 12, "orient": "bottom", "labelLimit": 300, "direction": "horizontal"}
    chart = PICTURES[name]().properties(**SIZE).configure(background="white", padding=8)
    chart = chart.configure_axis(**axis, gridColor="#e5e7eb").configure_legend(**legend)
    return dict(rounded(chart.configure_view(stroke=None).to_dict()))


def rounded(value: Any) -> Any:
    """Return a document with all its fractions rounded to six digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    return [rounded(part) for part in value] if isinstance(value, list) else value


def mark(name: str) -> str:
    """Return the comment that names a picture's chart by its digest."""
    document = json.dumps(specification(name), sort_keys=True)
    return f"<!-- chart sha256:{hashlib.sha256(document.encode()).hexdigest()} -->\n"


def main() -> int:
    """Write all pictures, or say which were made of another chart."""
    import vl_convert

    differing = []
    for name in PICTURES:
        file = FOLDER / f"{name}.svg"
        if "--check" in sys.argv:
            if not file.is_file() or mark(name) not in file.read_text(encoding="utf-8"):
                differing.append(file.name)
            continue
        FOLDER.mkdir(exist_ok=True)
        svg = vl_convert.vegalite_to_svg(json.dumps(specification(name)))
        file.write_text(svg.rstrip() + "\n" + mark(name), encoding="utf-8")
    for one in differing:
        print(f"{one}: made of another chart: python tools/concept_pictures.py writes all anew")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
