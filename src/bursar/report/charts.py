"""The trade-off curve as a chart: in a notebook, as a page, as a picture."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bursar.model.errors import BursarError
from bursar.planning.choice import Choice
from bursar.planning.front import Front

if TYPE_CHECKING:
    import altair

SAVED_AS = (".html", ".png", ".svg")
"""Suffixes of the files a chart can be saved as."""


def front_chart(front: Front, choice: Choice) -> "altair.LayerChart":
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
        tooltip=["processors:Q", "makespan_s:Q", "cost:Q"],
    )
    layers = [line, dots]
    bounds = front.bounds
    if bounds.makespan is not None:
        rule = alt.Chart(_values([{"makespan_s": bounds.makespan}]))
        layers.append(rule.mark_rule(strokeDash=[4, 4], color="#888").encode(x=x))
    if bounds.cost is not None:
        rule = alt.Chart(_values([{"cost": bounds.cost}]))
        layers.append(rule.mark_rule(strokeDash=[4, 4], color="#888").encode(y=y))
    chart = alt.LayerChart(layer=layers)
    return chart.properties(width=520, height=320, title="Time against cost")


def _values(rows: list[dict[str, Any]]) -> Any:
    import altair as alt

    return alt.InlineData(values=rows)


def save_chart(chart: "altair.TopLevelMixin", path: Path) -> None:
    """
    Writes a chart in the form its suffix says; pages need no network.

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
    """A chart as a notebook shows it, with a picture for where it shows none."""
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
