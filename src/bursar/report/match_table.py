"""How sites fare with the jobs of a campaign, as tables."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bursar.report.formatting import share, span

if TYPE_CHECKING:
    from rich.console import Console

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
    from rich.table import Table
    from rich.text import Text

    titles = ("site", "chance", "rank", "rank_expr", "access", "transfer", "wait", "run", "done in")
    table = Table(*titles, box=None, pad_edge=True)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(
            Text(row["site"]),
            share(row["probability"]),
            _figure(row["rank"]),
            _figure(row["rank_expr"]),
            span(row["access_s"]),
            span(row["transfer_s"]),
            span(row["wait_s"]),
            span(row["execution_s"]),
            span(row["completion_s"]),
        )
    console.print(table)


def _print_outsiders(rows: list[Mapping[str, Any]], console: "Console") -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table("does not match", "why", box=None, pad_edge=True)
    for row in rows[:MOST_OUTSIDERS]:
        table.add_row(Text(row["site"]), Text("\n".join(row["reasons"])))
    console.print(table)
    if len(rows) > MOST_OUTSIDERS:
        _print_line(console, f"  and {len(rows) - MOST_OUTSIDERS} more")


def _figure(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.6g}"


def _print_line(console: "Console", text: str, style: str | None = None) -> None:
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)
