"""The record of forecasts for people: how often they held, how far they missed, their width."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Literal

from bursar.history.forecast_records import GRID, ScoredForecast
from bursar.report.tables import plain, table_of

if TYPE_CHECKING:
    import altair
    from rich.console import Console

Quantity = Literal["end", "cost"]

MOST_GROUPS = 12
"""Campaigns, sites and kinds that are listed, those with most forecasts."""

_BAR = 40
_Z = 1.959964
"""Quantile of the normal distribution that leaves 5 % outside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastGroup:
    """
    Record of the forecasts of a group.

    Parameters
    ----------
    by, name
        What the group has in common: ``"basis"`` and ``"history"``.
    forecasts, runs
        Number of forecasts with a truth, and of the runs that they are of.
    held_50, held_90
        Shares of the truths within the intervals of 50 and 90 %.
    below_50, below_90
        Shares of the truths that were at most the quantiles of 50 and 90 %.
    interval_50, interval_90
        Intervals that hold the true share of ``held_50`` and ``held_90`` with 95 % (Wilson 1927),
        as if each run were one trial: its forecasts miss together.
    median_error, mean_error
        Distance of the truth from the quantile of 50 %, as a share of the truth.
    sharpness
        Width of the 90 % interval as a share of the truth, median.
    """

    by: str
    name: str
    forecasts: int
    runs: int
    held_50: float
    held_90: float
    below_50: float
    below_90: float
    interval_50: tuple[float, float]
    interval_90: tuple[float, float]
    median_error: float
    mean_error: float
    sharpness: float

    def to_dict(self) -> dict[str, Any]:
        """Return the group as JSON; the keys are in the documentation."""
        return {name: getattr(self, name) for name in self.__slots__}


def summarise_forecasts(
    forecasts: Sequence[ScoredForecast], quantity: Quantity = "end"
) -> list[ForecastGroup]:
    """Return how forecasts came out: all, then by basis, share, campaign, site and kind."""
    known = [one for one in forecasts if _truth(one, quantity) is not None]
    keys: tuple[tuple[str, Callable[[ScoredForecast], Iterable[str]]], ...] = (
        ("all", lambda one: ("",)),
        ("basis", lambda one: (one.forecast.basis,)),
        ("share", lambda one: (f"{100 * one.forecast.share:g} %",)),
        ("campaign", lambda one: (one.campaign,)),
        ("site", lambda one: one.forecast.sites),
        ("kind", lambda one: one.forecast.kinds),
    )
    groups = []
    for by, names in keys:
        members: dict[str, list[ScoredForecast]] = {}
        for one in known:
            for name in names(one):
                members.setdefault(name, []).append(one)
        if by == "share":
            order = sorted(members, key=lambda name: members[name][0].forecast.share)
        else:
            order = sorted(members, key=lambda name: (-len(members[name]), name))
        groups += [_group(by, name, members[name], quantity) for name in order[:MOST_GROUPS]]
    return groups


def calibration_of(
    forecasts: Sequence[ScoredForecast], quantity: Quantity = "end"
) -> list[tuple[float, float]]:
    """Return for each quantile that is kept: its share, and the share of truths at most it."""
    known = [(one, truth) for one in forecasts if (truth := _truth(one, quantity)) is not None]
    if not known:
        return []
    return [
        (share, fmean(truth <= _quantiles(one, quantity)[at] for one, truth in known))
        for at, share in enumerate(GRID)
    ]


def forecasts_to_dict(forecasts: Sequence[ScoredForecast]) -> dict[str, Any]:
    """Return what ``bursar forecasts --json`` prints; the keys are in the documentation."""
    reasons: dict[str, int] = {}
    for one in forecasts:
        if one.truth.without:
            reasons[one.truth.without] = reasons.get(one.truth.without, 0) + 1
    return {
        "forecasts": len(forecasts),
        "open": sum(one.truth.is_open for one in forecasts),
        "without_truth": reasons,
        **{
            quantity: {
                "groups": [one.to_dict() for one in summarise_forecasts(forecasts, quantity)],
                "calibration": [
                    {"share": share, "observed": observed}
                    for share, observed in calibration_of(forecasts, quantity)
                ],
            }
            for quantity in _QUANTITIES
        },
    }


_QUANTITIES: tuple[Quantity, ...] = ("end", "cost")


def print_forecasts(
    forecasts: Sequence[ScoredForecast], where: str, console: "Console | None" = None
) -> None:
    """
    Print the record as tables, and the calibration as a plot of plain characters.

    Parameters
    ----------
    where
        The history's file.
    """
    from rich.console import Console

    console = console or Console()

    def say(text: str, style: str | None = None) -> None:
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    told = forecasts_to_dict(forecasts)
    for quantity in _QUANTITIES:
        groups = summarise_forecasts(forecasts, quantity)
        if not groups:
            continue
        rows = [
            (
                f"{one.by} {plain(one.name)}".strip(),
                f"{one.forecasts}",
                f"{one.runs}",
                _with_interval(one.held_50, one.interval_50),
                _with_interval(one.held_90, one.interval_90),
                f"{one.median_error:.0%}",
                f"{one.mean_error:.0%}",
                f"{one.sharpness:.0%}",
            )
            for one in groups
        ]
        say(quantity, "bold")
        console.print(
            table_of(
                "forecasts", "n", "runs", "50 % held", "90 % held", "error", "mean error", "width",
                rows=rows,
            )
        )  # fmt: skip
        for line in calibration_plot(calibration_of(forecasts, quantity)):
            say(line)
    if told["end"]["groups"]:
        say(
            "held: truths within the interval (95 % interval of the share, by runs); error: of the "
            "median, as a share of the truth; width: of the 90 % interval",
            "dim",
        )
    else:
        say(f"{where}: no forecast has come to its truth yet")
    if told["open"]:
        say(f"{told['open']} forecasts of runs that have not ended")
    for reason, count in told["without_truth"].items():
        say(f"{count} without a truth: {reason}")


def calibration_plot(points: Sequence[tuple[float, float]]) -> list[str]:
    """Return a plot of how often quantiles held: a row for each, and a mark where it should end."""
    lines = ["quantile  held"]
    for share, observed in points:
        filled, mark = round(_BAR * observed), round(_BAR * share)
        bar = ["#" if at < filled else "." for at in range(_BAR + 1)]
        bar[mark] = "|"
        lines.append(f"{100 * share:6g} %  {100 * observed:3.0f} % {''.join(bar)}")
    return lines


def calibration_chart(forecasts: Sequence[ScoredForecast]) -> "altair.LayerChart":
    """Return the share of truths at most each quantile, for end and cost, and the diagonal."""
    import altair as alt

    rows: list[Mapping[str, Any]] = [
        {"quantile": share, "observed": observed, "of": quantity}
        for quantity in _QUANTITIES
        for share, observed in calibration_of(forecasts, quantity)
    ]
    x = alt.X("quantile:Q", title="forecast quantile", scale=alt.Scale(domain=[0, 1]))
    y = alt.Y("observed:Q", title="share of truths at most", scale=alt.Scale(domain=[0, 1]))
    ends = alt.InlineData(values=[{"quantile": at, "observed": at} for at in (0, 1)])
    diagonal = alt.Chart(ends).mark_line(strokeDash=[4, 4], color="#888").encode(x=x, y=y)
    colour = alt.Color(
        "of:N", title=None, scale=alt.Scale(domain=["end", "cost"], range=["#2563a8", "#23864b"])
    )
    base = alt.Chart(alt.InlineData(values=list(rows)))
    lines = base.mark_line(point=True).encode(
        x=x, y=y, color=colour, tooltip=["of:N", "quantile:Q", "observed:Q"]
    )
    chart = alt.LayerChart(layer=[diagonal, lines])
    return chart.properties(width=420, height=420, title="Calibration of forecasts")


def _truth(one: ScoredForecast, quantity: Quantity) -> float | None:
    return getattr(one.truth, quantity) if _quantiles(one, quantity) else None


def _quantiles(one: ScoredForecast, quantity: Quantity) -> Sequence[float]:
    return one.forecast.end if quantity == "end" else one.forecast.cost


_PLACE = {share: at for at, share in enumerate(GRID)}


def _group(
    by: str, name: str, members: Sequence[ScoredForecast], quantity: Quantity
) -> ForecastGroup:
    rows = []
    for one in members:
        truth = _truth(one, quantity)
        assert truth is not None
        values = _quantiles(one, quantity)
        rows.append((truth, *(values[_PLACE[s]] for s in (0.05, 0.25, 0.5, 0.75, 0.9, 0.95))))
    runs = len({one.run for one in members})
    held_50 = fmean(p25 <= t <= p75 for t, _, p25, _, p75, _, _ in rows)
    held_90 = fmean(p5 <= t <= p95 for t, p5, _, _, _, _, p95 in rows)
    errors = [abs(t - p50) / max(t, 1e-9) for t, _, _, p50, _, _, _ in rows if t > 0]
    widths = [(p95 - p5) / max(t, 1e-9) for t, p5, _, _, _, _, p95 in rows if t > 0]
    return ForecastGroup(
        by=by,
        name=name,
        forecasts=len(rows),
        runs=runs,
        held_50=held_50,
        held_90=held_90,
        below_50=fmean(t <= p50 for t, _, _, p50, _, _, _ in rows),
        below_90=fmean(t <= p90 for t, _, _, _, _, p90, _ in rows),
        interval_50=share_interval(held_50, runs),
        interval_90=share_interval(held_90, runs),
        median_error=median(errors) if errors else 0.0,
        mean_error=fmean(errors) if errors else 0.0,
        sharpness=median(widths) if widths else 0.0,
    )


def share_interval(share: float, trials: int) -> tuple[float, float]:
    """
    Return the interval that holds a true share with 95 %, by the share of so many trials.

    >>> tuple(round(bound, 3) for bound in share_interval(0.9, 10))
    (0.596, 0.982)

    References
    ----------
    .. [1] Wilson (1927). Probable inference, the law of succession, and statistical inference.
       JASA 22: 209-212.
    """
    square = _Z**2 / trials
    middle = (share + square / 2) / (1 + square)
    half = _Z / (1 + square) * math.sqrt(share * (1 - share) / trials + square / (4 * trials))
    return max(0.0, middle - half), min(1.0, middle + half)


def _with_interval(share: float, interval: tuple[float, float]) -> str:
    return f"{share:.0%} ({100 * interval[0]:.0f}-{100 * interval[1]:.0f})"
