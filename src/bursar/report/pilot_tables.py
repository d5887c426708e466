"""The requests of a run, as a table."""

from collections.abc import Mapping, Sequence
from typing import Any

from bursar.report.formatting import span


def print_pilots(requests: Sequence[Mapping[str, Any]], sites: Sequence[Mapping[str, Any]]) -> None:
    """
    Each request, and each site's sum.

    Parameters
    ----------
    requests, sites
        As ``bursar pilots --json`` has them.
    """
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("request", "site", "job", "width", "waited", *_HEADINGS, "", box=None)
    for column in table.columns[3:9]:
        column.justify = "right"
    for column in table.columns:
        column.no_wrap = True
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
