"""Figures and tables for people: a run, the list of runs, requests, decisions and matches."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bursar.model.money import format_amount

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


# Formats figures for people: three digits, and a word for unknown values.

UNKNOWN = "unknown"


def span(seconds: float | None) -> str:
    """
    Format a length of time.

    >>> span(0.00123), span(36.3), span(75.2), span(7265)
    ('1.23 ms', '36.3 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds is None:
        return UNKNOWN
    if seconds < 1:
        return "0 s" if seconds <= 0 else f"{seconds * 1e3:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h"


def money(cost: float | None) -> str:
    """
    Format an amount of money without its currency: four digits, and all digits of whole units.

    Only a bill gives all digits.

    >>> money(0.0000413), money(1.23456), money(126000), money(1234567.8)
    ('0.0000413', '1.235', '126000', '1234568')
    """
    if cost is None:
        return UNKNOWN
    if not math.isfinite(cost):
        return f"{cost}"
    if abs(cost) >= 999.95:
        return f"{cost:.0f}"
    if abs(cost) >= 1e-4 or not cost:
        return f"{cost:.4g}"
    return f"{cost:.{3 - math.floor(math.log10(abs(cost)))}f}".rstrip("0")


def amount(cost: float | None, currency: str) -> str:
    """Format money as :func:`money` does, with its currency."""
    return UNKNOWN if cost is None else f"{money(cost)} {currency}"


def span_above(seconds: float) -> float:
    """
    Return the shortest time not below ``seconds`` that :func:`span` prints exactly.

    >>> span_above(8.001), span(span_above(8.001)), span_above(75.2)
    (8.01, '8.01 s', 76)
    """
    if seconds <= 0:
        return 0.0
    if seconds < 1:
        return _rounded_up(seconds * 1e3, 3) / 1e3
    if seconds < 60:
        return _rounded_up(seconds, 3)
    for unit, limit in ((1, 3600), (60, 48 * 3600)):
        above = math.ceil(seconds / unit - _EXACT) * unit
        if above < limit:
            return above
    return math.ceil(seconds / 3600 - _EXACT) * 3600


def amount_above(cost: float) -> float:
    """
    Return the least amount not below ``cost`` that :func:`amount` prints exactly.

    >>> amount_above(0.00444441), amount(amount_above(0.00444441), "SU")
    (0.004445, '0.004445 SU')
    """
    return _rounded_up(cost, 4) if cost > 0 else 0.0


def _rounded_up(value: float, digits: int) -> float:
    """Round up to significant digits; what floats lose does not count as more."""
    unit = digits - 1 - math.floor(math.log10(value))
    # Through text, as multiplying by a power of ten would bring back digits that were rounded away.
    return float(f"{math.ceil(round(value * 10.0**unit, 9) - _EXACT)}e{-unit}")


_EXACT = 1e-9


def share(value: float | None) -> str:
    """Format a part of a whole in per cent."""
    return UNKNOWN if value is None else f"{value:.0%}"


def plain(text: str) -> str:
    """Return foreign text as one line without characters that move a cursor."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def table_of(
    *titles: str,
    rows: Iterable[Sequence[Any]] = (),
    right: slice = slice(0),
    whole: slice = slice(0),
    pad_edge: bool = True,
) -> "Table":
    """
    Return a table without rules.

    Parameters
    ----------
    rows
        Text, or what else Rich prints, for each column.
    right
        Columns whose cells end at the same place, as numbers do.
    whole
        Columns whose cells are never broken over several lines, so that they can be copied.
    pad_edge
        Whether there is a space before the first column and behind the last.
    """
    from rich.table import Table

    table = Table(*titles, box=None, pad_edge=pad_edge)
    for column in table.columns:
        column.overflow = "fold"  # nothing is cut short where the terminal is narrow
    for column in table.columns[right]:
        column.justify = "right"
    for column in table.columns[whole]:
        column.no_wrap = True
    for row in rows:
        table.add_row(*row)
    return table


# The requests of a run, as a table.


def print_pilots(requests: Sequence[Mapping[str, Any]], sites: Sequence[Mapping[str, Any]]) -> None:
    """
    Each request, and each site's sum.

    Parameters
    ----------
    requests, sites
        As ``bursar pilots --json`` has them.
    """
    from rich.console import Console

    console = Console()
    titles = ("request", "site", "job", "width", "waited", *_HEADINGS, "")
    table = table_of(*titles, right=slice(3, 9), whole=slice(None))
    for one in requests:
        wait = "" if one["wait_s"] is None else span(one["wait_s"])
        fate = one["fate"]
        first = (one["name"], one["site"], one["job"] or "", str(one["processors"]), wait)
        table.add_row(*first, *_cpu(one), fate)
    for site in sites:
        table.add_row("", site["site"], "", "", "", *_cpu(site), "", style="bold")
    console.print(table)
    for site in sites:
        if site["bounds_given"]:
            console.print(
                f"{site['site']}: 90 % bounds on the wait given {site['bounds_given']} times, "
                f"held {site['bounds_held']}",
                highlight=False,
                markup=False,
            )
    console.print(
        "held, used, idle: processor-seconds; record: by the site's scheduler, and how much more "
        "that is",
        style="dim",
        highlight=False,
    )


_HEADINGS = ("held", "used", "idle", "record")


def _cpu(one: Mapping[str, Any]) -> list[str]:
    recorded, difference = one["recorded_cpu_s"], one["difference_cpu_s"]
    record = "" if recorded is None else f"{recorded:.0f} ({difference:+.0f})"
    if one["agrees"] is False:
        record += " !"
    own = (one[f"{what}_cpu_s"] for what in ("acquired", "used", "idle"))
    return [*(f"{seconds:.1f}" for seconds in own), record]


# Tables of decisions and their reasons.


def print_placements(task: str, placed: Sequence[Mapping[str, Any]]) -> None:
    """
    Each time a task was sent somewhere.

    Parameters
    ----------
    placed
        As ``bursar why --json`` has them.
    """
    from rich.console import Console

    console = Console()
    if not placed:
        console.print(f"{task} has not been sent anywhere", highlight=False, markup=False)
    for one in placed:
        ended = "" if one["status"] is None else f", {one['status']}"
        where = f"{one['site']} ({one['lease']}) after {span(one['at_s'])}"
        console.print(
            f"{task} went to {where}{ended}" if one["site"] else f"{task} did not run{ended}",
            style="bold",
            highlight=False,
            markup=False,
        )
        console.print(f"  {one['why']}", highlight=False, markup=False)
        for deal in one["deals"]:
            for line in _deal_lines(deal):
                console.print(f"  {line}", highlight=False, markup=False)
        if one["sites"]:
            rows = [
                (
                    site["site"],
                    f"{site['price']:.6g}",
                    f"{site['busy']} of {site['processors']}",
                    str(site["given"]),
                    site["reason"],
                )
                for site in one["sites"]
            ]
            console.print(table_of("site", "price", "busy", "jobs", "why", rows=rows))


_MARKETS = {"posted": "posted price", "bargain": "bargaining", "tender": "tender"}
_MARKETS |= {"english": "English auction", "dutch": "Dutch auction", "vickrey": "Vickrey auction"}
_MARKETS |= {"first-price": "sealed bids", "share": "proportional share"}


def _deal_lines(deal: Mapping[str, Any]) -> Iterator[str]:
    """Yield what was agreed, then what each owner answered, then the next best offer."""

    def money(micros: int | None) -> str:
        return "nothing" if micros is None else format_amount(micros, deal["currency"])

    agreed = "no agreement" if deal["amount"] is None else f"agreed on {money(deal['amount'])}"
    limit = "" if deal["limit"] is None else f", limit {money(deal['limit'])}"
    lot = f"{deal['processors']} processors for {span(deal['seconds'])}"
    yield f"{_MARKETS[deal['market']]}: {agreed} for {lot}{limit}"
    for answer in deal["answers"]:
        ours = "" if answer["ours"] is None else f", we offered up to {money(answer['ours'])}"
        reason = f": {plain(answer['reason'])}" if answer["reason"] else ""
        first = money(answer["first"])
        named = "" if answer["first"] is None else f", asked {first}, last {money(answer['price'])}"
        yield f"  {plain(answer['owner'])} {answer['state']}{named}{ours}{reason}"
    yield f"  next best: {deal['next_best'] or 'none'}"


def print_site_reasons(site: str, tasks: int, held: Sequence[Mapping[str, Any]]) -> None:
    """
    Print the reasons for and against a site over time.

    Parameters
    ----------
    tasks
        That ended there.
    held
        As ``bursar why-not --json`` has it.
    """
    from rich.console import Console

    console = Console()
    console.print(f"{tasks} tasks ended at {site}", style="bold", highlight=False, markup=False)
    rows = [
        (span(one["begin_s"]), span(one["end_s"]), str(one["given"]), one["reason"]) for one in held
    ]
    console.print(table_of("from", "to", "jobs", "why", rows=rows))


def print_replay(replay: Mapping[str, Any]) -> None:
    """
    A run under several policies.

    Parameters
    ----------
    replay
        As ``bursar simulate --replay --json`` has it.
    """
    from rich.console import Console

    console = Console()
    table = table_of("policy", "tasks done", "makespan", "cost", "saved", "deadline")
    for row in replay["rows"]:
        met = {None: "", True: "met", False: "missed"}[row["deadline_met"]]
        table.add_row(
            row["policy"],
            f"{row['succeeded']} of {row['tasks']}",
            span(row["makespan_s"]),
            amount(row["cost"], replay["currency"]),
            "" if row["saved_cost"] is None else amount(row["saved_cost"], replay["currency"]),
            met,
        )
    console.print(table)
    console.print(f"→ {replay['lesson']}", style="bold", highlight=False, markup=False)


# How sites fare with the jobs of a campaign, as tables.

MOST_OUTSIDERS = 20
"""Sites that do not match which are listed, of each kind of task."""


def print_matches(matches: Mapping[str, Any], console: "Console | None" = None) -> None:
    """
    A table of sites for each kind of task.

    Parameters
    ----------
    matches
        As ``bursar match --json`` prints it.
    """
    from rich.console import Console

    console = console or Console()
    for number, kind in enumerate(matches["kinds"]):
        if number:
            console.print()
        _print_kind(kind, console)


def _print_kind(kind: Mapping[str, Any], console: "Console") -> None:
    tasks = kind["tasks"]
    more = f" and {len(tasks) - 1} more" if len(tasks) > 1 else ""
    _print_line(console, f"{tasks[0]}{more}", style="bold")
    if kind["requirements"] is not None:
        _print_line(console, f"  requirements  {kind['requirements']}")
    _print_line(console, f"  rank          {kind['rank']}")
    weights = f"alpha {kind['alpha']:g}, beta {kind['beta']:g}"
    _print_line(console, f"  choice        {kind['choice']}, {weights}")
    if kind["site"] is not None:
        _print_line(console, f"  the job names the site {kind['site']}: it is not matched")
    if kind["assumed_runtime_s"] is not None:
        _print_line(
            console, f"  runtime       not stated, taken as {span(kind['assumed_runtime_s'])}"
        )
    if kind["matches"]:
        _print_candidates(kind["matches"], console)
    if kind["reason"] is not None:
        _print_line(console, f"→ {kind['reason']}", style="bold red")
    if kind["fails"]:
        _print_outsiders(kind["fails"], console)


def _print_candidates(rows: list[Mapping[str, Any]], console: "Console") -> None:
    """Print a table of the sites that match, with the figures that decided between them."""
    from rich.text import Text

    titles = ("site", "chance", "rank", "rank_expr", "access", "transfer", "wait", "run", "done in")
    times = ("access_s", "transfer_s", "wait_s", "execution_s", "completion_s")
    cells = [
        (
            Text(row["site"]),
            share(row["probability"]),
            _figure(row["rank"]),
            _figure(row["rank_expr"]),
            *(span(row[key]) for key in times),
        )
        for row in rows
    ]
    console.print(table_of(*titles, rows=cells, right=slice(1, None)))


def _print_outsiders(rows: list[Mapping[str, Any]], console: "Console") -> None:
    from rich.text import Text

    cells = [(Text(row["site"]), Text("\n".join(row["reasons"]))) for row in rows[:MOST_OUTSIDERS]]
    console.print(table_of("does not match", "why", rows=cells))
    if len(rows) > MOST_OUTSIDERS:
        _print_line(console, f"  and {len(rows) - MOST_OUTSIDERS} more")


def _figure(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.6g}"


def _print_line(console: "Console", text: str, style: str | None = None) -> None:
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)
