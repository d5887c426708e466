"""A run's key figures, its tasks, and the list of runs, as tables for people."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bursar.formats.units import rounded_size
from bursar.report.failures import print_failures
from bursar.report.tables import amount, money, plain, span, table_of

if TYPE_CHECKING:
    from rich.console import Console


def print_summary(summary: Mapping[str, Any], console: "Console | None" = None) -> None:
    """
    Print a run's key figures as a table, and the command that resumes the run if one can.

    Parameters
    ----------
    summary
        The key figures, as ``bursar run --json`` prints them, or ``bursar simulate --json``.
    console
        Console to print on; None: one on stdout.
    """
    from rich.console import Console
    from rich.table import Table

    console = console or Console()
    table = Table.grid(padding=(0, 2))
    how = f", {summary['provisioning']}" if "provisioning" in summary else ""
    table.add_row("run", f"{summary['run']}  ({summary['state']}{how})")
    table.add_row("tasks", _tasks(summary))
    if summary.get("reused"):
        table.add_row("reused", f"{summary['reused']} of them, from {summary['reused_from']}")
    table.add_row(
        "makespan",
        f"{span(summary['makespan_s'])}  "
        f"({_foreseen(summary)} {span(summary['predicted_makespan_s'])})",
    )
    table.add_row("cost", _cost(summary))
    if summary.get("copies"):
        import msgspec

        from bursar.report.copy_costs import CopiesItem

        copies = msgspec.convert(summary["copies"], CopiesItem)
        table.add_row("copies", copies.words(summary["currency"]))
    if summary.get("recorded_cpu_s") is not None:
        table.add_row("record", _record(summary))
    if summary.get("unsettled"):
        table.add_row(
            "unsettled", f"{', '.join(summary['unsettled'])}: their cost is not known yet"
        )
    if summary["deadline_s"] is not None:
        met = {None: "open", True: "met", False: "missed"}[summary["deadline_met"]]
        table.add_row("deadline", f"{span(summary['deadline_s'])}  ({met})")
    for site, others in summary.get("others", {}).items():
        table.add_row("others", _others(site, others))
    if summary["folder"] is not None:
        table.add_row("folder", summary["folder"], style="bold")
    console.print(table)
    if summary.get("failures"):
        kept = not summary.get("simulated")
        print_failures(summary["failures"], summary["run"], console, simulated=not kept)
    if summary.get("simulated"):
        return
    if summary["state"] in ("new", "running"):
        console.print(f"look at it with: bursar attach {summary['run']}", soft_wrap=True)
    # Only where resuming does something: other runs have ended.
    if summary["state"] in ("probed", "interrupted", "budget-stopped", "unsettled"):
        more = " --budget AMOUNT" if summary["state"] == "budget-stopped" else ""
        console.print(f"go on with: bursar run --resume {summary['run']}{more}", soft_wrap=True)


def _others(site: str, others: Mapping[str, Any]) -> str:
    """Describe the effect of a simulation on a site's own jobs."""
    waits = f"{span(others['mean_wait_s'])} on average"
    return (
        f"{others['jobs']} jobs of {site}'s own wait {waits}, "
        f"{span(others['mean_wait_without_s'])} without this campaign"
    )


def print_runs(rows: Sequence[Mapping[str, Any]], console: "Console | None" = None) -> None:
    """
    The list of runs.

    Parameters
    ----------
    rows
        As ``bursar runs --json`` prints them.
    """
    from rich.console import Console

    console = console or Console()
    if not rows:
        console.print("no runs")
        return
    shown = [
        (
            *(str(row[key]) for key in ("run", "state", "succeeded", "failed", "tasks")),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(row["created"])),
            " ".join(row["tags"]),
        )
        for row in rows
    ]
    titles = ["run", "state", "done", "failed", "tasks", "created", "tags"]
    if not any(row["tags"] for row in rows):
        titles.pop()
    table = table_of(
        *titles,
        rows=[cells[: len(titles)] for cells in shown],
        right=slice(2, 5),
        whole=slice(0, 1),
    )
    console.print(table)


def print_tasks(rows: Sequence[Mapping[str, Any]], count: int) -> None:
    """
    A line for each task of a run.

    Parameters
    ----------
    rows
        As ``bursar tasks --json`` has them.
    count
        Number of tasks that the run has.
    """
    from rich.console import Console

    console = Console()
    shown = []
    for row in rows:
        values = row.get("parameters", {})
        said = ", ".join(f"{name}={value}" for name, value in values.items())
        if row.get("reason"):
            said = f"{said}: {row['reason']}" if said else row["reason"]
        took = "" if row.get("runtime_s") is None else span(row["runtime_s"])
        state = str(row["status"])
        if row["attempts"] > 1:
            state += f" ({row['attempts']} attempts)"
        shown.append(
            [plain(cell) for cell in (row["task"], state, took, row.get("site", ""), said)]
        )
    if shown:
        console.print(
            table_of("task", "state", "took", "site", "", rows=shown, right=slice(2, 3)),
            highlight=False,
            markup=False,
        )
    if len(rows) < count or not rows:
        console.print(f"{len(rows)} of {count} tasks", highlight=False)


def print_result_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """
    Print parameters and results of tasks; numbers stand on the right.

    Parameters
    ----------
    columns
        Titles.
    rows
        Values in the order of the titles; None where there is none.
    """
    from rich.console import Console

    shown = [["" if value is None else plain(str(value)) for value in row] for row in rows]
    table = table_of(*columns, rows=shown)
    for column, values in zip(table.columns, zip(*rows, strict=True), strict=False):
        if all(isinstance(value, int | float | None) for value in values):
            column.justify = "right"
    console = Console()
    console.print(table, highlight=False)
    console.print(f"{len(rows)} {'task' if len(rows) == 1 else 'tasks'}", highlight=False)


def _tasks(summary: Mapping[str, Any]) -> str:
    parts = [f"{summary['succeeded']} of {summary['tasks']} succeeded"]
    for key, word in (("failed", "failed"), ("skipped", "skipped"), ("not_run", "not run")):
        if summary[key]:
            parts.append(f"{summary[key]} {word}")
    return ", ".join(parts)


def _record(summary: Mapping[str, Any]) -> str:
    """Processor time by the sites' own records beside what is billed."""
    billed, theirs = summary["billed_cpu_s"], summary["recorded_cpu_s"]
    text = f"{theirs:.0f} CPU s by the sites' own records, {billed:.0f} billed"
    if summary["agrees"]:
        return f"{text}: they agree"
    return f"{text}: they DIFFER ({', '.join(summary['differing'])})"


def _cost(summary: Mapping[str, Any]) -> str:
    text = amount(summary["cost"], summary["currency"])
    text += f"  ({_foreseen(summary)} {money(summary['predicted_cost'])}"
    if summary["budget"] is not None:
        text += f", budget {money(summary['budget'])}"
    return text + ")"


def _foreseen(summary: Mapping[str, Any]) -> str:
    """Word for figures of before the run: what a plan says, or what a strategy lets expect."""
    return "planned" if summary["processors"] else "expected"


def print_comparison(found: Mapping[str, Any]) -> None:
    """
    Two runs side by side.

    Parameters
    ----------
    found
        As ``bursar compare --json`` has it.
    """
    from rich.console import Console

    console = Console()
    shown = [
        (title, *(_figure(row["name"], row[side]) for side in ("first", "second")), _ratio(row))
        for title, row in ((_TITLES.get(row["name"]), row) for row in found["figures"])
        if title is not None and not row["first"] is row["second"] is None
    ]
    table = table_of("", *found["runs"], "ratio", rows=shown, right=slice(3, 4))
    console.print(table, highlight=False, markup=False)
    tasks, runtimes = found["tasks"], found["runtimes"]
    console.print(
        f"{tasks['both']} tasks in both, {tasks['first_only']} only in the first, "
        f"{tasks['second_only']} only in the second",
        highlight=False,
    )
    if runtimes["median"] is not None:
        console.print(
            f"{runtimes['tasks']} tasks succeeded in both and took {runtimes['median']:.3g} times "
            f"as long in the second ({runtimes['least']:.3g} to {runtimes['most']:.3g})",
            highlight=False,
        )
    for word, side in (
        ("failed only in the first", "first_only"),
        ("failed only in the second", "second_only"),
        ("failed in both", "both"),
    ):
        if names := found["failures"][side]:
            listed = ", ".join(map(plain, names[:_MOST])) + (", ..." if len(names) > _MOST else "")
            console.print(f"{len(names)} {word}: {listed}", highlight=False, markup=False)
    for name, values in found["parameters"].items():
        for word, side in (("first", "first_only"), ("second", "second_only")):
            if some := values[side]:
                listed = ", ".join(plain(str(value)) for value in some[:_MOST])
                more = ", ..." if len(some) > _MOST else ""
                console.print(
                    f"{plain(name)} only in the {word}: {listed}{more}",
                    highlight=False,
                    markup=False,
                )


_MOST = 8
"""Ids or values that a line lists."""
_TITLES = {
    "campaign": "campaign",
    "state": "state",
    "tasks": "tasks",
    "succeeded": "succeeded",
    "failed": "failed",
    "attempts": "attempts",
    "makespan_s": "makespan",
    "predicted_makespan_s": "expected makespan",
    "processors": "processors",
    "cost": "cost",
    "predicted_cost": "expected cost",
    "currency": "currency",
    "budget": "budget",
    "deadline_s": "deadline",
    "deadline_met": "deadline met",
}
"""Figures that are printed, and their names."""


def _figure(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name.endswith("_s"):
        return span(value)
    if name in ("cost", "predicted_cost", "budget"):
        return money(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return plain(str(value))


def _ratio(row: Mapping[str, Any]) -> str:
    ratio = row["ratio"]
    return "" if ratio is None or row["name"] in ("tasks", "processors") else f"{ratio:.3g}"


def print_cleaning(rows: Sequence[Mapping[str, Any]], *, deleted: bool) -> None:
    """
    Runs that are deleted, or would be, and those that stay.

    Parameters
    ----------
    rows
        As ``bursar clean --json`` has them.
    """
    from rich.console import Console

    console = Console()
    done = "deleted" if deleted else "would be deleted"
    shown = [
        (
            row["run"],
            rounded_size(row["size"]),
            done if row["kept"] is None else f"stays: {row['kept']}",
        )
        for row in rows
    ]
    if shown:
        table = table_of("run", "size", "", rows=shown, right=slice(1, 2))
        console.print(table, highlight=False, markup=False)
    total = sum(row["size"] for row in rows if row["kept"] is None)
    count = sum(row["kept"] is None for row in rows)
    console.print(f"{count} runs, {rounded_size(total)} {done}", highlight=False)
    if count and not deleted:
        console.print("delete them with --yes", highlight=False)
