"""Tables of decisions and their reasons."""

from collections.abc import Mapping, Sequence
from typing import Any

from bursar.report.formatting import amount, span


def print_placements(task: str, placed: Sequence[Mapping[str, Any]]) -> None:
    """
    Each time a task was sent somewhere.

    Parameters
    ----------
    placed
        As ``bursar why --json`` has them.
    """
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not placed:
        console.print(f"{task} has not been sent anywhere", highlight=False, markup=False)
    for one in placed:
        ended = "" if one["status"] is None else f", {one['status']}"
        console.print(
            f"{task} went to {one['site']} ({one['lease']}) after {span(one['at_s'])}{ended}",
            style="bold",
            highlight=False,
            markup=False,
        )
        console.print(f"  {one['why']}", highlight=False, markup=False)
        if one["sites"]:
            table = Table("site", "price", "busy", "jobs", "why", box=None, pad_edge=True)
            for site in one["sites"]:
                busy = f"{site['busy']} of {site['processors']}"
                price = f"{site['price']:.6g}"
                table.add_row(site["site"], price, busy, str(site["given"]), site["reason"])
            console.print(table)


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
    from rich.table import Table

    console = Console()
    console.print(f"{tasks} tasks ended at {site}", style="bold", highlight=False, markup=False)
    table = Table("from", "to", "jobs", "why", box=None, pad_edge=True)
    for one in held:
        table.add_row(span(one["begin_s"]), span(one["end_s"]), str(one["given"]), one["reason"])
    console.print(table)


def print_replay(replay: Mapping[str, Any]) -> None:
    """
    A run under several policies.

    Parameters
    ----------
    replay
        As ``bursar simulate --replay --json`` has it.
    """
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(
        "policy", "tasks done", "makespan", "cost", "saved", "deadline", box=None, pad_edge=True
    )
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
