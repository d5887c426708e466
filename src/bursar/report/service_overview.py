"""A service at a glance: its instances, workers, throughput and money."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bursar.model.money import format_amount
from bursar.remote.admin_messages import Overview, WorkerInfo
from bursar.remote.messages import AccountInfo, InstanceInfo
from bursar.report.formatting import plain, span

_SHOWN = 15
"""Rows of a table where there is no screen to fill."""

_RATES = ("submitted", "started", "finished", "delivered")


def rates_between(before: Overview, now: Overview) -> dict[str, float] | None:
    """
    Return tasks per second between two overviews, by outcome.

    None when no time has passed, or the service was started anew.
    """
    seconds = now.at - before.at
    # Counts of two incarnations of the service cannot be compared.
    if seconds <= 0 or now.since != before.since:
        return None
    return {name: (getattr(now, name) - getattr(before, name)) / seconds for name in _RATES}


def overview_panel(
    site: str, seen: Overview, rates: Mapping[str, float] | None, height: int | None = None
) -> Any:
    """
    Make the panel that an administrator sees.

    Parameters
    ----------
    site
        Name of the service.
    rates
        As :func:`rates_between` has them; None: not known yet.
    height
        Lines of the screen that it is to fit; None: it may be as long as it likes.
    """
    from rich.text import Text

    busy = sum(worker.busy for worker in seen.workers)
    processors = sum(worker.processors for worker in seen.workers if worker.connected)
    state = seen.problem or ("draining" if seen.draining else "up")
    first = Text.assemble(
        (plain(site), "bold"),
        "  ",
        (plain(state), "red" if seen.problem else "yellow" if seen.draining else "green"),
        f" for {span(seen.at - seen.since)}  {busy}/{processors} processors busy  "
        f"{format_amount(seen.spent, seen.currency)} spent  "
        f"journal {seen.journal_bytes / 1e6:,.1f} MB",
    )
    tasks = "  ".join(
        f"{getattr(seen, name):,} {name}" + ("" if rates is None else f" ({rates[name]:.4g}/s)")
        for name in _RATES
    )
    head = [first, Text(tasks)]
    if seen.degraded:
        head.append(Text(plain(seen.degraded), style="yellow"))
    return _FittedTables(
        height,
        head,
        (len(seen.instances), lambda rows: _instances(seen.instances, seen.owners, rows)),
        (len(seen.workers), lambda rows: _workers(seen.workers, rows)),
    )


def own_panel(
    site: str,
    instances: Sequence[InstanceInfo],
    account: AccountInfo | None,
    height: int | None = None,
) -> Any:
    """Make the panel of a user: own instances and money; see :func:`overview_panel`."""
    from rich.text import Text

    first = Text.assemble((plain(site), "bold"))
    if account is not None:
        first.append(
            f"  {account.user}: {format_amount(account.balance, account.currency)} left, "
            f"{format_amount(account.held, account.currency)} held, "
            f"{format_amount(account.spent, account.currency)} spent"
        )
    return _FittedTables(
        height, [first], (len(instances), lambda rows: _instances(instances, None, rows))
    )


class _FittedTables:
    """
    Lines above tables that share the rest of the screen.

    Parameters
    ----------
    height
        Height of the screen, lines; None: no limit.
    head
        Lines above the tables.
    tables
        Number of rows of each table, and the function that makes a table of at most n rows.
    """

    def __init__(
        self, height: int | None, head: Sequence[Any], *tables: tuple[int, Callable[[int], Any]]
    ) -> None:
        self._height = height
        self._head = head
        self._tables = tables

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        rows = [_SHOWN] * len(self._tables)
        if self._height is not None:
            lines = sum(len(console.render_lines(line, options)) for line in self._head)
            # Each table has an empty line above it, its head, and how many more there are.
            room = self._height - lines - 3 * len(self._tables)
            rows = _shares(room, [wanted for wanted, _ in self._tables])
        yield from self._head
        for (_, make), shown in zip(self._tables, rows, strict=True):
            yield ""
            yield make(shown)


def _shares(room: int, wanted: Sequence[int]) -> list[int]:
    """Rows for each table: what they want, or else evenly, and at least one."""
    shares = [0] * len(wanted)
    smallest_first = sorted(range(len(wanted)), key=wanted.__getitem__)
    for done, i in enumerate(smallest_first):
        # The smallest first: what they leave of their share goes to the larger ones.
        fair = (room - sum(shares)) // (len(wanted) - done)
        shares[i] = max(1, min(wanted[i], fair))
    return shares


def print_instances(instances: Sequence[InstanceInfo]) -> None:
    """Print all instances, with whole ids."""
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
    for info in sorted(instances, key=_age):
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


def _age(info: InstanceInfo) -> tuple[float, str]:
    """Return the sorting key of instances, by which rows keep their places."""
    return info.created, info.id


def _instances(instances: Sequence[InstanceInfo], owners: Sequence[str] | None, shown: int) -> Any:
    """Return a table of the busiest instances, the oldest first; ``owners`` None: one user's."""
    from rich.table import Table

    whose = ["user"] if owners is not None else []
    table = Table("instance", *whose, "label", *_COUNTS, "", box=None, pad_edge=False)
    for column in table.columns[1 + len(whose) + 1 : 1 + len(whose) + 1 + len(_COUNTS)]:
        column.justify = "right"
        column.no_wrap = True
    table.columns[0].no_wrap = True
    rows = list(zip(instances, owners or [""] * len(instances), strict=True))
    rows.sort(key=lambda row: (-row[0].counts.waiting - row[0].counts.running, _age(row[0])))
    # Chosen by work, listed by age: rows would otherwise change places with every update.
    for info, owner in sorted(rows[:shown], key=lambda row: _age(row[0])):
        user = [_line(owner)] if owners is not None else []
        cells = (_text(info.id[:12]), *user, _line(info.label))
        table.add_row(*cells, *_counts(info), _line(info.note))
    return _with_rest(table, len(rows) - shown)


def _workers(workers: Sequence[WorkerInfo], shown: int) -> Any:
    """Return a table of the busiest workers, by host and name."""
    from rich.table import Table

    table = Table("worker", "host", "pool", "busy", "", box=None, pad_edge=False)
    table.columns[3].justify = "right"
    table.columns[3].no_wrap = True
    busiest = sorted(workers, key=lambda one: (-one.busy, one.host, one.name))[:shown]
    for worker in sorted(busiest, key=lambda one: (one.host, one.name)):
        table.add_row(
            _line(worker.name),
            _line(worker.host),
            _line(worker.pool),
            f"{worker.busy}/{worker.processors}",
            "" if worker.connected else "away",
        )
    return _with_rest(table, len(workers) - shown)


def _with_rest(table: Any, rest: int) -> Any:
    if rest > 0:
        table.add_row(f"and {rest:,} more")
    return table


def _text(text: str) -> Any:
    """Return foreign text without markup."""
    from rich.text import Text

    return Text(plain(text))


def _line(text: str) -> Any:
    """Return foreign text without markup, cut to one line."""
    from rich.text import Text

    return Text(plain(text), no_wrap=True, overflow="ellipsis")
