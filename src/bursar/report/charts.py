"""The trade-off curve and the chosen plan: as a table, as JSON, and as charts."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bursar.model.campaign import Campaign
from bursar.model.errors import BursarError, InputError
from bursar.model.plan import Plan
from bursar.model.site import SiteFacts
from bursar.planning.building import consecutive_runs
from bursar.planning.front import ParetoFront, PlanBounds, PlanOption
from bursar.planning.plan_choice import GoalCounterOffer, PlanChoice
from bursar.report.forecast_columns import (
    EXPLAINED_FORECASTS,
    forecast_cells,
    forecast_titles,
)
from bursar.report.tables import UNKNOWN, amount, money, share, span

if TYPE_CHECKING:
    import altair
    from rich.console import Console

    from bursar.forecasts.campaign_forecast import CampaignForecast


# The trade-off curve as a table, and as JSON.

GAPS = ("time gap", "cost gap")
"""Columns of the gaps: to the fastest plan on the same slots, and to the cheapest as fast."""
_WITHOUT_WHERE = 72
"""Width of the table of options without the column of sites, about."""
SMALL_GAP = 0.0005
"""Gap that is printed as 0.0 %."""

ROWS = 24
"""Options shown; of more, evenly many and the chosen one."""


def print_plan(
    campaign: Campaign,
    front: ParetoFront,
    choice: PlanChoice,
    console: "Console | None" = None,
    *,
    forecast_of: "Callable[[PlanOption], CampaignForecast | None] | None" = None,
) -> None:
    """
    Print the curve, the bounds, and the chosen option with the reason.

    Parameters
    ----------
    forecast_of
        Returns the forecast of a plan, which takes the place of its gaps; None: run times are only
        stated.
    """
    from rich.console import Console
    from rich.table import Table

    console = console or Console()
    count = len(campaign.workflow.tasks)
    console.print(
        f"{campaign.name}: {count} task{'s' if count > 1 else ''}", style="bold", highlight=False
    )
    options = _shown(front, choice)
    gaps = _gaps(options) if forecast_of is None else None
    several = len(front.sites) > 1 or not all(
        p.slot.leased for o in front.options for p in o.purchases
    )
    longest = max((len(line) for o in options for line in _where(o)), default=0) if several else 0
    if longest > console.width - _WITHOUT_WHERE:
        gaps = None  # names and prices come first where the terminal is narrow
    titles: tuple[str, ...] = ("processors", "makespan", f"cost, {front.currency}", "utilisation")
    if forecast_of is not None:
        titles = ("processors", *forecast_titles(front.currency))
    table = Table("", *titles, *(GAPS if gaps else ()), box=None, padding=(0, 1))
    for column in table.columns[1:]:
        column.justify = "right"
        column.no_wrap = True
    if several:
        # The only column that gives way: its cells are folded, a name is never cut short.
        table.add_column("where", overflow="fold")
    for option in options:
        row = [
            "→" if option is choice.option else "",
            str(option.processors),
            span(option.makespan),
            money(option.cost),
            share(option.utilisation),
        ]
        if forecast_of is not None:
            row[2:] = forecast_cells(option, forecast_of(option), campaign.goal)
        if gaps:
            row += [_percent(option.gap), _percent(option.cost_gap)]
        if several:
            row.append("\n".join(_where(option)))
        table.add_row(*row, style="bold green" if option is choice.option else "")
    console.print(table)
    if gaps is not None:
        console.print(_explained_gaps(gaps), style="dim", highlight=False)
    if forecast_of is not None:
        console.print(EXPLAINED_FORECASTS, style="dim", highlight=False)
    if bounds := _bounds(front.bounds):
        console.print(bounds, highlight=False)
    for said in exchange_lines(front.sites):
        console.print(said, highlight=False)
    for note in front.notes:
        console.print(f"note: {note}", highlight=False)
    print_choice(
        choice.option is not None, choice.reason, choice.counter_offers, front.currency, console
    )


def print_choice(
    feasible: bool,
    reason: str,
    offers: Sequence[GoalCounterOffer],
    currency: str,
    console: "Console | None" = None,
    *,
    note: str = "",
) -> None:
    """
    Print the reason of a choice, and counter-offers for a goal out of reach.

    Parameters
    ----------
    note
        Line that is printed below the reason; empty: none.
    """
    from rich.console import Console

    console = console or Console()
    if feasible:
        console.print(f"→ {reason}", style="bold", highlight=False)
        if note:
            console.print(f"  {note}", highlight=False)
        return
    console.print(f"{reason}. Instead:", style="bold red", highlight=False)
    for offer in offers:
        console.print(f"  {describe(offer, currency)}", highlight=False)
    if not offers:
        console.print("  nothing that is sure to hold: not even one task", highlight=False)


def describe(offer: GoalCounterOffer, currency: str) -> str:
    """Describe a counter-offer in words."""
    what = f"{span(offer.makespan)} for {amount(offer.cost, currency)}"
    match offer.kind:
        case "time":
            text = f"in more time: {what}, the shortest at this budget"
        case "budget":
            text = f"for more money: {what}, the cheapest in this time"
        case _:
            text = f"a part: {offer.tasks} of the tasks ({offer.share:.0%}), {what}"
    return text + _margins(offer, currency)


def _margins(offer: GoalCounterOffer, currency: str) -> str:
    """Describe the margins of an offer and their purpose; empty where the offer has none."""
    parts = []
    if offer.margin_seconds > _CLOSE * offer.makespan:
        parts.append(span(offer.margin_seconds))
    if offer.cost is not None and offer.margin_cost > _CLOSE * offer.cost:
        parts.append(amount(offer.margin_cost, currency))
    if not parts:
        return ""
    return f" ({' and '.join(parts)} of that for starting workers, first jobs, holds and rounding)"


_CLOSE = 1e-6


def _shown(front: ParetoFront, choice: PlanChoice) -> list[PlanOption]:
    options = front.options
    if len(options) <= ROWS:
        return list(options)
    # Evenly many, both ends included: the fastest and the cheapest are always shown.
    step = (len(options) - 1) / (ROWS - 1)
    kept = {round(i * step) for i in range(ROWS)}
    return [o for i, o in enumerate(options) if i in kept or o is choice.option]


def exchange_lines(sites: Iterable[SiteFacts]) -> list[str]:
    """Say by which rates prices were changed into the currency that is shown, a line for each."""
    by_rate: dict[str, list[str]] = {}
    for site in sites:
        if (rate := site.exchange) is not None:
            said = f"1 {rate.currency} = {rate.rate:g} {site.currency} (rate since {rate.since})"
            by_rate.setdefault(said, []).append(site.name)
    return [f"prices of {', '.join(names)}: {said}" for said, names in by_rate.items()]


def _bounds(bounds: PlanBounds) -> str:
    """Say what no plan can beat; empty where nothing is known."""
    parts = []
    if bounds.makespan is not None:
        known = [
            f"{name} {span(value)}"
            for name, value in (
                ("critical path", bounds.critical_path),
                ("work / processors", bounds.work),
                ("energetic", bounds.energetic),
                ("CP-SAT", bounds.exact),
            )
            if value is not None
        ]
        parts.append(f"takes less than {span(bounds.makespan)} ({', '.join(known)})")
    if bounds.cost is not None:
        parts.append(f"costs less than {amount(bounds.cost, bounds.currency)}")
    if not parts:
        return ""
    text = f"no plan {' or '.join(parts)}"
    if bounds.unknown_tasks:
        text += f"; {bounds.unknown_tasks} tasks of unknown runtime count as nothing"
    return text


def _gaps(options: Sequence[PlanOption]) -> bool | None:
    """Return whether a plan may be beaten by one that was not found; None where that is unknown."""
    known = [gap for o in options for gap in (o.gap, o.cost_gap) if gap is not None]
    return any(gap >= SMALL_GAP for gap in known) if known else None


def _explained_gaps(gaps: bool) -> str:
    if not gaps:
        return "no other plan is faster on the same processors, or cheaper and as fast"
    return (
        "time gap: no plan on the same processors is faster by more than this; "
        "cost gap: no plan that is as fast is cheaper by more than this"
    )


def _percent(gap: float | None) -> str:
    return UNKNOWN if gap is None else f"{gap:.1%}"


def _where(option: PlanOption) -> list[str]:
    """
    Describe the purchases, a line for each site: processors of a lease, else slots.

    A site that opens later than now is said to.
    """
    lines = []
    for site in dict.fromkeys(p.slot.site for p in option.purchases):
        there = [p.slot for p in option.purchases if p.slot.site == site]
        opens = min(slot.start for slot in there)
        later = f" in {span(opens)}" if opens > 0 else ""
        leased = sum(slot.processors for slot in there if slot.leased)
        slots = sum(not slot.leased for slot in there)
        what = [f"{leased} {site}"] if leased else []
        what += [f"{site} x{slots}"] if slots else []
        lines.append(", ".join(what) + later)
    return lines


# The trade-off curve and the chosen plan as charts: in a notebook, as a page, as a picture.

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


def check_chart_libraries() -> None:
    """
    Refuse to draw where the libraries that draw pictures are absent.

    Raises
    ------
    InputError
        With the command that installs them.
    """
    try:
        import altair  # noqa: F401
        import vl_convert  # noqa: F401
    except ModuleNotFoundError as error:
        raise InputError(
            f"charts need the package {error.name}, which is not installed",
            hint="pip install 'bursar[charts]'",
        ) from None


def save_chart(chart: "altair.TopLevelMixin", path: Path) -> None:
    """
    Write a chart in the format of the file's suffix; HTML pages need no network.

    Raises
    ------
    InputError
        When the extra ``charts`` is not installed.
    BursarError
        When it cannot be written.
    """
    check_chart_libraries()
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
