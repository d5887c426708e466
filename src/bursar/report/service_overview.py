"""A service at a glance: its instances, workers, throughput and money."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from bursar.model.money import format_amount
from bursar.remote.messages import AccountInfo, InstanceInfo, Overview, WorkerInfo
from bursar.report.words import plain, span

_SHOWN = 15
"""Rows of a table."""

_RATES = ("submitted", "started", "finished", "delivered")


def rates_between(before: Overview, now: Overview) -> dict[str, float] | None:
    """
    Tasks per second between two looks, by what became of them.

    None when no time has passed, or the service was started anew.
    """
    seconds = now.at - before.at
    if seconds <= 0 or now.since != before.since:
        return None
    return {name: (getattr(now, name) - getattr(before, name)) / seconds for name in _RATES}


def overview_panel(site: str, seen: Overview, rates: Mapping[str, float] | None) -> Any:
    """
    What an administrator sees.

    Parameters
    ----------
    site
        Name of the service.
    rates
        As :func:`rates_between` has them; None: not known yet.
    """
    from rich.console import Group
    from rich.text import Text

    busy = sum(worker.busy for worker in seen.workers)
    processors = sum(worker.processors for worker in seen.workers if worker.connected)
    state = seen.problem or ("draining" if seen.draining else "up")
    first = Text.assemble(
        (site, "bold"),
        "  ",
        (state, "red" if seen.problem else "yellow" if seen.draining else "green"),
        f" for {span(seen.at - seen.since)}  {busy}/{processors} processors busy  "
        f"{format_amount(seen.spent, seen.currency)} spent  "
        f"journal {seen.journal_bytes / 1e6:,.1f} MB",
    )
    tasks = "  ".join(
        f"{getattr(seen, name):,} {name}" + ("" if rates is None else f" ({rates[name]:.4g}/s)")
        for name in _RATES
    )
    return Group(
        first,
        Text(tasks),
        Text(),
        _instances(seen.instances, seen.owners),
        Text(),
        _workers(seen.workers),
    )


def own_panel(site: str, instances: Sequence[InstanceInfo], account: AccountInfo | None) -> Any:
    """What a user sees: instances of one's own, and money."""
    from rich.console import Group
    from rich.text import Text

    first = Text.assemble((site, "bold"))
    if account is not None:
        first.append(
            f"  {account.user}: {format_amount(account.balance, account.currency)} left, "
            f"{format_amount(account.held, account.currency)} held, "
            f"{format_amount(account.spent, account.currency)} spent"
        )
    return Group(first, Text(), _instances(instances, None))


def print_instances(instances: Sequence[InstanceInfo]) -> None:
    """All of them, with their whole ids."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not instances:
        console.print("no instances")
        return
    table = Table("instance", "done", "running", "failed", "created", "label", box=None)
    for column in table.columns[1:4]:
        column.justify = "right"
    for column in table.columns[:5]:
        column.no_wrap = True  # its id is to be copied
    for info in instances:
        counts = info.counts
        table.add_row(
            _text(info.id),
            f"{counts.succeeded:,}/{counts.total:,}",
            f"{counts.running:,}",
            f"{counts.failed:,}",
            time.strftime("%m-%d %H:%M", time.localtime(info.created)),
            _text(info.label),
        )
    console.print(table)


_COUNTS = ("total", "waiting", "running", "done", "failed")


def _counts(info: InstanceInfo) -> list[str]:
    counts = info.counts
    numbers = (counts.total, counts.waiting, counts.running, counts.succeeded, counts.failed)
    return [f"{number:,}" for number in numbers]


def _instances(instances: Sequence[InstanceInfo], owners: Sequence[str] | None) -> Any:
    """Those with most to do first; ``owners`` None: all are one's own."""
    from rich.table import Table

    whose = ["user"] if owners is not None else []
    table = Table("instance", *whose, "label", *_COUNTS, "", box=None)
    for column in table.columns[2 + len(whose) : 7 + len(whose)]:
        column.justify = "right"
    rows = list(zip(instances, owners or [""] * len(instances), strict=True))
    rows.sort(key=lambda row: row[0].counts.waiting + row[0].counts.running, reverse=True)
    for info, owner in rows[:_SHOWN]:
        user = [_text(owner)] if owners is not None else []
        cells = (_text(info.id[:12]), *user, _text(info.label))
        table.add_row(*cells, *_counts(info), _text(info.note))
    return _with_rest(table, len(rows))


def _workers(workers: Sequence[WorkerInfo]) -> Any:
    from rich.table import Table

    table = Table("worker", "host", "pool", "busy", "", box=None)
    table.columns[3].justify = "right"
    for worker in sorted(workers, key=lambda one: one.busy, reverse=True)[:_SHOWN]:
        table.add_row(
            _text(worker.name),
            _text(worker.host),
            _text(worker.pool),
            f"{worker.busy}/{worker.processors}",
            "" if worker.connected else "away",
        )
    return _with_rest(table, len(workers))


def _with_rest(table: Any, rows: int) -> Any:
    if rows > _SHOWN:
        table.add_row(f"and {rows - _SHOWN:,} more")
    return table


def _text(text: str) -> Any:
    """Without markup: what it holds was written by others."""
    from rich.text import Text

    return Text(plain(text))
