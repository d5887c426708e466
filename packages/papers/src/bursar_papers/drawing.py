"""The few kinds of chart that the papers' figures are."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from bursar_papers.experiment import Row
from bursar_papers.summary import Summary, grouped

if TYPE_CHECKING:
    import altair

WIDTH, HEIGHT = 420, 260


def curves(
    rows: Sequence[Row],
    *,
    x: str,
    y: str,
    by: str,
    titles: tuple[str, str],
    zero: bool = False,
    log: bool = False,
    spread: Callable[[Summary], float] = lambda sample: sample.deviation,
) -> "altair.TopLevelMixin":
    """
    Draw the mean of ``y`` against ``x``, a line for each ``by``, with the spread as bars.

    Parameters
    ----------
    titles
        Of the axes, with units.
    zero
        Whether the vertical axis begins at 0.
    log
        Whether it is logarithmic (but for what is near 0).
    spread
        Of a sample, to either side of its mean; the standard deviation, unless said otherwise.
    """
    import altair as alt

    values = [
        {x: at, by: kind, "mean": s.mean, "low": s.mean - spread(s), "high": s.mean + spread(s)}
        for (at, kind), s in grouped(rows, (x, by), y).items()
    ]
    base = alt.Chart(_inline(values)).encode(
        x=alt.X(f"{x}:Q", title=titles[0], scale=alt.Scale(zero=False)),
        color=alt.Color(f"{by}:N", title=None),
    )
    scale = alt.Scale(type="symlog") if log else alt.Scale(zero=zero)
    axis = alt.Axis(values=[0, *(10**power for power in range(10))]) if log else alt.Axis()
    line = base.mark_line(point=True).encode(
        y=alt.Y("mean:Q", title=titles[1], scale=scale, axis=axis),
        tooltip=[f"{x}:Q", f"{by}:N", alt.Tooltip("mean:Q", format=",.4g")],
    )
    bars = base.mark_rule(opacity=0.4).encode(y=alt.Y("low:Q", scale=scale), y2="high:Q")
    return alt.layer(bars, line).properties(width=WIDTH, height=HEIGHT)


def bars(
    rows: Sequence[Row], *, x: str, y: str, by: str | None, titles: tuple[str, str]
) -> "altair.TopLevelMixin":
    """The mean of ``y`` for each ``x``, side by side for each ``by``."""
    import altair as alt

    factors = (x,) if by is None else (x, by)
    values = [
        {**dict(zip(factors, key, strict=True)), "mean": s.mean}
        for key, s in grouped(rows, factors, y).items()
    ]
    encoding: dict[str, Any] = {
        "x": alt.X(f"{x}:O", title=titles[0], sort=None),
        "y": alt.Y("mean:Q", title=titles[1]),
        "tooltip": [*(f"{f}:N" for f in factors), alt.Tooltip("mean:Q", format=",.4g")],
    }
    if by is not None:
        encoding["color"] = alt.Color(f"{by}:N", title=None)
        encoding["xOffset"] = alt.XOffset(f"{by}:N", sort=None)
    chart: altair.Chart = alt.Chart(_inline(values)).mark_bar().encode(**encoding)
    return chart.properties(width=WIDTH, height=HEIGHT)


def points(
    rows: Sequence[Row], *, x: str, y: str, by: str, titles: tuple[str, str]
) -> "altair.TopLevelMixin":
    """A mark for each row, by colour and shape."""
    import altair as alt

    marks = alt.Chart(_inline([{k: row[k] for k in (x, y, by)} for row in rows]))
    chart: altair.Chart = marks.mark_point(size=24, opacity=0.7).encode(
        x=alt.X(f"{x}:Q", title=titles[0], scale=alt.Scale(zero=False)),
        y=alt.Y(f"{y}:Q", title=titles[1], scale=alt.Scale(zero=False)),
        color=alt.Color(f"{by}:N", title=None),
        shape=alt.Shape(f"{by}:N", title=None),
    )
    return chart.properties(width=WIDTH, height=HEIGHT)


def rectangles(rows: Sequence[Row], *, titles: tuple[str, str], by: str) -> "altair.TopLevelMixin":
    """Rectangles from ``begin`` to ``end`` and from ``low`` to ``high``, named in their middle."""
    import altair as alt

    base = alt.Chart(_inline(list(rows)))
    boxes = base.mark_rect(stroke="white").encode(
        x=alt.X("begin:Q", title=titles[0]),
        x2="end:Q",
        y=alt.Y("low:Q", title=titles[1]),
        y2="high:Q",
        color=alt.Color(f"{by}:N", title=None),
    )
    names = base.transform_calculate(
        x="(datum.begin + datum.end) / 2", y="(datum.low + datum.high) / 2"
    )
    text = names.mark_text().encode(x="x:Q", y="y:Q", text="name:N")
    return alt.layer(boxes, text).properties(width=WIDTH, height=HEIGHT)


def _inline(values: list[Row]) -> Any:
    import altair as alt

    return alt.InlineData(values=values)
