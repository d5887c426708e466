"""A history as tables for people: its kinds, one kind, imports, and what is forgotten."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from bursar.formats.units import rounded_size
from bursar.report.tables import span, table_of


def print_kinds(rows: Sequence[Mapping[str, Any]], path: str) -> None:
    """Print the kinds of a history, as ``bursar history list --json`` has them."""
    from rich.console import Console

    console = Console()
    if not rows:
        console.print(f"{path}: no task has ended yet", highlight=False, markup=False)
        return
    shown = [
        (
            row["kind"],
            str(row["observations"]),
            *_spread(row["seconds"]),
            _unsuccessful(row),
            ", ".join(name or "unknown" for name in row["seen_at"]),
            _date(row["last_seen"]),
        )
        for row in rows
    ]
    table = table_of(
        "kind", "n", "median", "p10 to p90", "without success", "sites", "last seen",
        rows=shown, right=slice(1, 4),
    )  # fmt: skip
    console.print(table, highlight=False, markup=False)


def print_kind(found: Mapping[str, Any]) -> None:
    """Print one kind, as ``bursar history show --json`` has it."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    grid = Table.grid(padding=(0, 2))
    median, spread = _spread(found["seconds"])
    grid.add_row("kind", found["kind"])
    grid.add_row("observed", ", ".join(f"{n} {name}" for name, n in found["statuses"].items()))
    grid.add_row("run time", f"{median}  (p10 to p90: {spread}), of those that succeeded")
    if found["censored"]:
        grid.add_row("cut short", f"{found['censored']}: these would have taken longer")
    if (waited := found["waited_s"]) is not None:
        grid.add_row("waited", f"{span(waited['median'])}  (p90: {span(waited['p90'])})")
    if (memory := found["max_rss"]) is not None:
        most = rounded_size(memory["p90"])
        grid.add_row("memory", f"{rounded_size(memory['median'])}  (p90: {most})")
    if (ratio := found["actual_over_estimate"]) is not None:
        grid.add_row(
            "estimates",
            f"tasks took {ratio['median']:.2f} times what was expected "
            f"(p10 to p90: {ratio['p10']:.2f} to {ratio['p90']:.2f})",
        )
    for one in found["templates"]:
        if one["template"]:
            grid.add_row("command", f"{one['template']}  ({one['observations']})")
    console.print(grid, highlight=False, markup=False)
    for what in ("site", "execution"):
        rows = [
            (
                part[what] or "unknown",
                str(part["observations"]),
                *_spread(part["seconds"]),
                _unsuccessful(part),
                _date(part["last_seen"]),
            )
            for part in found[f"{what}s"]
        ]
        table = table_of(
            what, "n", "median", "p10 to p90", "without success", "last seen",
            rows=rows[:_MOST], right=slice(1, 4),
        )  # fmt: skip
        console.print(table, highlight=False, markup=False)
        if len(rows) > _MOST:
            console.print(f"and {len(rows) - _MOST} older ones: --json lists all", highlight=False)


_MOST = 20
"""Sites and executions that are shown."""


def print_forgotten(counts: Mapping[str, int], *, deleted: bool) -> None:
    """Print what was forgotten of each kind, or would be."""
    from rich.console import Console

    console = Console()
    done = "forgotten" if deleted else "would be forgotten"
    if counts:
        rows = [(name, str(count)) for name, count in counts.items()]
        console.print(
            table_of("kind", "n", rows=rows, right=slice(1, 2)), highlight=False, markup=False
        )
    console.print(f"{sum(counts.values())} observations {done}", highlight=False)
    if counts and not deleted:
        console.print("forget them with --yes", highlight=False)


def _spread(spread: Mapping[str, float] | None) -> tuple[str, str]:
    if spread is None:
        return "-", "-"
    return span(spread["median"]), f"{span(spread['p10'])} to {span(spread['p90'])}"


def _unsuccessful(row: Mapping[str, Any]) -> str:
    counts = {name: n for name, n in row["statuses"].items() if name != "succeeded"}
    return ", ".join(f"{n} {name}" for name, n in counts.items()) or "-"


def _date(moment: float | None) -> str:
    return "-" if moment is None else datetime.fromtimestamp(moment).strftime("%Y-%m-%d %H:%M")
