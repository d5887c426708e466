"""The trade-off curve and the chosen plan as charts: in a notebook, as a page, as a picture."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bursar.model.errors import BursarError
from bursar.model.plan import Plan
from bursar.planning.building import consecutive_runs
from bursar.planning.front import ParetoFront, PlanOption
from bursar.planning.plan_choice import PlanChoice

if TYPE_CHECKING:
    import altair

SAVED_AS = (".html", ".png", ".svg")
"""Suffixes of the files a chart can be saved as."""


MOST_POINTS = 2_000
"""Plans that were tried and are shown behind the curve; of more, evenly many."""
MOST_BARS = 20_000
"""Rectangles that a picture can show and a browser can draw."""


def proposal_chart(front: ParetoFront, choice: PlanChoice) -> "altair.TopLevelMixin":
    """
    Return the trade-off curve, with the chosen plan's chart below it.

    The plan is left out when none is chosen, when it does not say which task runs where, and when
    it has more rectangles than can be told apart.
    """
    curve = front_chart(front, choice)
    if choice.plan is None or not choice.plan.placements:
        return curve
    chart = plan_chart(front, choice.plan)
    if chart is None:
        return curve
    import altair as alt

    both: alt.VConcatChart = alt.vconcat(curve, chart).resolve_scale(color="independent")
    return both


def front_chart(front: ParetoFront, choice: PlanChoice) -> "altair.LayerChart":
    """
    Makespan against cost: every option of the curve, the chosen one, the bounds.

    Options of unknown makespan or cost have no place on it.
    """
    import altair as alt

    points = [
        {
            "makespan_s": option.makespan,
            "cost": option.cost,
            "processors": option.processors,
            "slots": len(option.purchases),
            "utilisation": option.utilisation,
            "time_above_bound": option.gap,
            "cost_above_bound": option.cost_gap,
            "bought": ", ".join(_counted(option)),
            "chosen": "chosen" if option is choice.option else "possible",
        }
        for option in front.options
        if option.makespan is not None and option.cost is not None
    ]
    x = alt.X("makespan_s:Q", title="makespan, s", scale=alt.Scale(zero=True))
    y = alt.Y("cost:Q", title=f"cost, {front.currency}", scale=alt.Scale(zero=True))
    base = alt.Chart(_values(points))
    line = base.mark_line(interpolate="step-after", color="#2563a8").encode(x=x, y=y)
    dots = base.mark_circle(opacity=1).encode(
        x=x,
        y=y,
        color=alt.Color(
            "chosen:N",
            title=None,
            scale=alt.Scale(domain=["chosen", "possible"], range=["#23864b", "#2563a8"]),
        ),
        size=alt.Size(
            "chosen:N",
            legend=None,
            scale=alt.Scale(domain=["chosen", "possible"], range=[160, 50]),
        ),
        tooltip=[
            alt.Tooltip("makespan_s:Q", title="makespan, s", format=",.5~g"),
            alt.Tooltip("cost:Q", title=f"cost, {front.currency}", format=",.5~g"),
            alt.Tooltip("bought:N", title="bought"),
            alt.Tooltip("utilisation:Q", format=".1%"),
            alt.Tooltip("time_above_bound:Q", title="time above bound, at most", format=".1%"),
            alt.Tooltip("cost_above_bound:Q", title="cost above bound, at most", format=".1%"),
        ],
    )
    layers = [*_tried(front, x, y), line, dots, *_cost_bound(front, x, y)]
    bounds = front.bounds
    if bounds.makespan is not None:
        rule = alt.Chart(_values([{"makespan_s": bounds.makespan}]))
        layers.append(rule.mark_rule(strokeDash=[4, 4], color="#888").encode(x=x))
    if bounds.cost is not None:
        rule = alt.Chart(_values([{"cost": bounds.cost}]))
        layers.append(rule.mark_rule(strokeDash=[4, 4], color="#888").encode(y=y))
    chart = alt.LayerChart(layer=layers)
    return chart.properties(width=520, height=320, title="Time against cost")


def _counted(option: PlanOption) -> list[str]:
    """Describe the purchases of an option, one line for each site."""
    slots = Counter(p.slot.site for p in option.purchases)
    processors: Counter[str] = Counter()
    for purchase in option.purchases:
        processors[purchase.slot.site] += purchase.slot.processors
    return [
        f"{site}: {processors[site]} processors in {n} slot{'s' if n > 1 else ''}"
        for site, n in slots.items()
    ]


def _tried(front: ParetoFront, x: Any, y: Any) -> list[Any]:
    """Return a layer of the plans tried, at most MOST_POINTS evenly chosen."""
    import altair as alt

    # Rounded up, and at least 1 where nothing was tried.
    step = -(-len(front.tried) // MOST_POINTS) or 1
    rows = [{"makespan_s": m, "cost": c} for m, c in front.tried[::step]]
    if not rows:
        return []
    return [alt.Chart(_values(rows)).mark_circle(size=8, color="#bbb").encode(x=x, y=y)]


def _cost_bound(front: ParetoFront, x: Any, y: Any) -> list[Any]:
    """Return the layer of the cost bounds, below which no plan lies."""
    import altair as alt

    rows = [
        {"makespan_s": o.makespan, "cost": o.cost_bound}
        for o in front.options
        if o.makespan is not None and o.cost_bound is not None
    ]
    least = front.bounds.cost or 0.0
    # Bounds are sums of floats: a last digit is no second line.
    if not any(row["cost"] > least * (1 + 1e-9) for row in rows):
        return []  # the rule at the least cost says it all
    line = alt.Chart(_values(rows)).mark_line(
        interpolate="step-before", strokeDash=[4, 4], color="#888"
    )
    return [line.encode(x=x, y=y)]


def plan_chart(front: ParetoFront, plan: Plan) -> "altair.LayerChart | None":
    """
    Where each task runs: processors of each site against time, the slots behind.

    None when there are more rectangles than can be told apart.
    """
    import altair as alt

    base: dict[str, int] = {}
    rows: list[dict[str, Any]] = []
    slots: list[dict[str, Any]] = []
    first = 0
    for site in front.sites:
        bought = [p for p in plan.purchases if p.slot.site == site.name]
        if not bought:
            continue
        base[site.name] = first
        for number, purchase in enumerate(bought, 1):
            slot = purchase.slot
            slots.append(
                {
                    "slot": f"{site.name} {number}",
                    "start": slot.start,
                    "end": slot.end,
                    "from": first,
                    "to": first + slot.processors,
                    "cost": purchase.cost,
                }
            )
            first += slot.processors
    for place in plan.placements:
        task = front.workflow.tasks[place.task]
        for lowest, width in consecutive_runs(place.processors):
            if place.finish > place.start:
                rows.append(
                    {
                        "task": task.id,
                        "start": place.start,
                        "end": place.finish,
                        "from": base[place.site] + lowest,
                        "to": base[place.site] + lowest + width,
                    }
                )
    if len(rows) > MOST_BARS:
        return None
    y = alt.Y("from:Q", title="processors bought, slot by slot", scale=alt.Scale(domain=[0, first]))
    behind = (
        alt.Chart(_values(slots))
        .mark_rect(fill="#eef2f7", stroke="#5b6b7d", strokeWidth=0.7)
        .encode(
            x=alt.X("start:Q", title="time, s"),
            x2="end:Q",
            y=y,
            y2="to:Q",
            tooltip=["slot:N", "start:Q", "end:Q", "cost:Q"],
        )
    )
    bars = (
        alt.Chart(_values(rows))
        .mark_rect(stroke="white", strokeWidth=0.3)
        .encode(
            x="start:Q",
            x2="end:Q",
            y=y,
            y2="to:Q",
            color=alt.Color("task:N", legend=None, scale=alt.Scale(scheme="tableau20")),
            tooltip=["task:N", "start:Q", "end:Q"],
        )
    )
    chart = alt.LayerChart(layer=[behind, bars])
    return chart.properties(width=720, height=max(120, min(600, 6 * first)), title="Chosen plan")


def _values(rows: list[dict[str, Any]]) -> Any:
    import altair as alt

    return alt.InlineData(values=rows)


def save_chart(chart: "altair.TopLevelMixin", path: Path) -> None:
    """
    Write a chart in the format of the file's suffix; HTML pages need no network.

    Raises
    ------
    BursarError
        When it cannot be written.
    """
    import vl_convert

    spec = chart.to_json()
    match path.suffix:
        case ".html":
            content = vl_convert.vegalite_to_html(spec, bundle=True).encode()
        case ".svg":
            content = vl_convert.vegalite_to_svg(spec).encode()
        case _:
            content = vl_convert.vegalite_to_png(spec, scale=2)
    try:
        path.write_bytes(content)
    except OSError as error:
        raise BursarError(f"{path}: cannot be written: {error.strerror}") from None


def mimebundle(chart: "altair.LayerChart") -> dict[str, Any]:
    """Return a chart as a notebook's MIME bundle, with a picture as fallback."""
    import altair as alt
    import vl_convert

    spec = chart.to_dict()
    # A notebook without this version of the grammar shows the picture.
    version = alt.VEGALITE_VERSION.split(".")[0]
    return {
        f"application/vnd.vegalite.v{version}+json": spec,
        "image/png": vl_convert.vegalite_to_png(chart.to_json(), scale=2),
        "text/plain": "<trade-off curve>",
    }
