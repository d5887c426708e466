"""What a person sees of a service: instances, workers, results, money and progress."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from bursar.model.campaign import odds_in_words
from bursar.model.money import MICROS, format_amount
from bursar.remote.admin_messages import Overview, WorkerInfo
from bursar.remote.forecast_messages import InstanceForecast
from bursar.remote.market_messages import InvoiceInfo
from bursar.remote.messages import AccountInfo, AgreementInfo, InstanceInfo, Result
from bursar.report.progress import LiveDisplay
from bursar.report.tables import UNKNOWN, money, plain, span, table_of

if TYPE_CHECKING:
    from rich.console import Console


# A user's money and agreements at a service, as tables.


def print_account(account: AccountInfo) -> None:
    """Print what a user's account at a service has left, holds and has spent, on one line."""
    left, held, spent = (
        format_amount(amount, account.currency)
        for amount in (account.balance, account.held, account.spent)
    )
    print(f"{plain(account.user)}: {left} left, {held} held, {spent} spent")


def print_agreements(agreements: Sequence[AgreementInfo]) -> None:
    """A row for each."""
    if not agreements:
        print("no agreements")
        return
    rows = [
        (
            _text(deal.id),
            deal.state,
            f"{deal.ready}/{deal.processors}",
            _date_text(deal.start),
            format_amount(deal.charged, deal.currency),
        )
        for deal in agreements
    ]
    _print_table("agreement", "state", "ready", "from", "charged", rows=rows)


def print_invoice(invoice: InvoiceInfo) -> None:
    """A row for each line, and their sum."""
    if invoice.lines:
        rows = [
            (
                _text(line.what),
                _date_text(line.since),
                f"{line.processor_seconds:,.1f}",
                format_amount(line.amount, invoice.currency),
            )
            for line in invoice.lines
        ]
        _print_table("what", "from", "processor-s", "amount", rows=rows)
    total = format_amount(invoice.total, invoice.currency)
    print(f"{plain(invoice.user)} to {plain(invoice.owner)}: {total}")


def _print_table(*titles: str, rows: Iterable[Sequence[Any]]) -> None:
    """Print a table whose first column, an id, can be copied."""
    from rich.console import Console

    Console().print(table_of(*titles, rows=rows, whole=slice(1)))


def _date_text(at: float) -> str:
    return time.strftime("%m-%d %H:%M", time.localtime(at))


# Prints results of a service's tasks, one line each, on arrival.

_WIDTHS = (9, 4, 8, 12)  # of state, exit status, time and host

_MOST_NAME = 30
"""Characters of a task's number and label, for the width of their column."""

_STYLES = {"succeeded": "green", "cancelled": "yellow", "skipped": "yellow"}


class ResultTable:
    """
    Prints results, the column heads before the first.

    Parameters
    ----------
    console
        To write to; None: stdout.
    """

    def __init__(self, console: "Console | None" = None) -> None:
        from rich.console import Console

        self._console = console or Console()
        self._width = 0
        self._counts: dict[str, int] = {}

    def print(self, results: Sequence[Result]) -> None:
        """Print a line for each result."""
        from rich.text import Text

        lines = []
        if not self._width:
            widest = max(len(_task_name(result)) for result in results)
            self._width = max(5, min(widest, _MOST_NAME))
            heads = ("state", "exit", "time", "host")
            lines.append(Text(self._row("task", heads, "printed, or why it failed"), style="bold"))
        for result in results:
            self._counts[result.state] = self._counts.get(result.state, 0) + 1
            style = _STYLES.get(result.state, "red") if self._console.is_terminal else ""
            lines.append(Text(self._line(result), style=style))
        # A line each on a terminal; whatever reads it otherwise has it all.
        terminal = self._console.is_terminal
        self._console.print(
            Text("\n").join(lines),
            no_wrap=True,
            overflow="ellipsis" if terminal else "ignore",
            soft_wrap=not terminal,
            highlight=False,
        )

    def end(self, cursor: int) -> None:
        """Print a summary; ``cursor`` is the last result's, after which to continue."""
        if not self._counts:
            self._console.print("no results", highlight=False)
            return
        text = ", ".join(f"{count} {state}" for state, count in self._counts.items())
        self._console.print(f"{text}; cursor {cursor}", highlight=False)

    def _line(self, result: Result) -> str:
        code = "" if result.exit_code is None else str(result.exit_code)
        taken = span(result.end - result.start) if result.end else ""
        cells = (result.state, code, taken, plain(result.host))
        return self._row(_task_name(result), cells, _ending_text(result))

    def _row(self, name: str, cells: Sequence[str], last: str) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True))
        return "  ".join((name.ljust(self._width), *padded, last)).rstrip()


def _task_name(result: Result) -> str:
    return f"{result.task} {plain(result.label)}".rstrip()


def _ending_text(result: Result) -> str:
    """Return a failure's reason with the last line of stderr, or a success's first line."""
    if result.reason:
        complaint = result.stderr.strip().rpartition("\n")[2]
        return plain(f"{_first_line(result.reason)}: {complaint}".removesuffix(": "))
    text = result.stdout or result.stderr
    if not text and (result.raw or result.stdout_size):
        text = f"{result.stdout_size:,} bytes"
    return plain(_first_line(text))


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


# How an instance at a service goes on: live on a terminal, sparse lines elsewhere.

FIRST_WAIT = 2.0
"""Seconds before the second line where there is no terminal; each further wait is twice as long."""

_MEMORY = 5.0
"""Seconds over which the rate is smoothed."""


class InstanceProgress:
    """
    Shows an instance on stderr. Use it as a context.

    Parameters
    ----------
    console
        To write to; None: stderr.
    """

    def __init__(self, console: "Console | None" = None) -> None:
        self._display = LiveDisplay(FIRST_WAIT / 2, 0.0, console=console)
        self._rate = 0.0
        self._begin = 0.0
        self._last: tuple[float, int] | None = None

    def __enter__(self) -> "InstanceProgress":
        self._display.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._display.__exit__(*error)

    def update(self, info: InstanceInfo, now: float | None = None) -> None:
        """The latest state, seen at a moment on any clock; None: now."""
        now = time.monotonic() if now is None else now
        self._measure(now, info)
        self._display.show(partial(self._panel, info), partial(self._text, info), now)

    def end(self, info: InstanceInfo) -> None:
        """The line that stays."""
        self._display.notify(_state(info))

    def _measure(self, now: float, info: InstanceInfo) -> None:
        if self._last is None:
            self._begin = now
            self._last = (now, ended(info))
        elif now > self._last[0]:
            seconds = now - self._last[0]
            rate = (ended(info) - self._last[1]) / seconds
            # At first it is the mean since the begin.
            memory = min(_MEMORY, now - self._begin)
            self._rate += min(1.0, seconds / memory) * (rate - self._rate)
            self._last = (now, ended(info))

    def _speed(self, info: InstanceInfo) -> str:
        rest = info.counts.waiting + info.counts.running
        left = span(rest / self._rate) if self._rate > 0 else UNKNOWN
        return f"{self._rate:.3g}/s, {left} left" if rest else "all ended"

    def _text(self, info: InstanceInfo) -> str:
        foreseen = f"; {outlook_of(info.forecast)}" if info.forecast is not None else ""
        return f"{_state(info)}, {self._speed(info)}{foreseen}" + (
            f" ({plain(info.note)})" if info.note else ""
        )

    def _panel(self, info: InstanceInfo) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        counts = info.counts
        first = Table.grid(padding=(0, 1))
        first.add_row(
            Text(_instance_name(info), style="bold"),
            ProgressBar(total=max(counts.total, 1), completed=ended(info), width=30),
            Text(f"{ended(info)}/{counts.total}"),
            Text(self._speed(info), style="dim"),
        )
        tasks = Text.assemble(
            (f"{counts.succeeded} done", "green"),
            f"  {counts.running} running  {counts.waiting} waiting  ",
            (f"{counts.failed} failed", "red" if counts.failed else "dim"),
            (f"  {counts.cancelled} cancelled" if counts.cancelled else "", "yellow"),
            (f"  {counts.skipped} skipped" if counts.skipped else "", "yellow"),
        )
        more = [] if info.forecast is None else [Text(outlook_of(info.forecast))]
        if info.note:
            more.append(Text(plain(info.note), style="yellow"))
        return Group(first, tasks, *more)


# The forecast of an instance: from the value that half of such instances stay below to the one
# that nine of ten do.


def outlook_of(forecast: InstanceForecast, currency: str = "") -> str:
    """Describe when an instance ends and what its tasks come to, and the odds of both limits."""
    parts = [f"ends {_end_range(forecast)}"]
    if forecast.cost is not None:
        parts.append(f"cost {_cost_range(forecast, currency)}")
    odds = _odds_text(forecast)
    return ", ".join([*parts, f"odds {odds}"] if odds else parts)


def _end_range(forecast: InstanceForecast) -> str:
    """Return the range as times of day, with the date unless it is today's."""
    today = time.localtime(forecast.at)[:3]
    middle, late = time.localtime(forecast.end.p50), time.localtime(forecast.end.p90)
    form = "%H:%M:%S" if middle[:3] == late[:3] == today else "%m-%d %H:%M"
    return f"{time.strftime(form, middle)} to {time.strftime(form, late)}"


def _cost_range(forecast: InstanceForecast, currency: str) -> str:
    if forecast.cost is None:
        return ""
    middle, late = (money(value / MICROS) for value in (forecast.cost.p50, forecast.cost.p90))
    return f"{middle} to {late} {currency}".rstrip()


def _odds_text(forecast: InstanceForecast) -> str:
    """Return the odds of the limits that there are."""
    limits = (("deadline", forecast.deadline_odds), ("budget", forecast.budget_odds))
    return ", ".join(f"{odds_in_words(odds)} {what}" for what, odds in limits if odds is not None)


def ended(info: InstanceInfo) -> int:
    """Tasks at their end."""
    counts = info.counts
    return counts.succeeded + counts.failed + counts.cancelled + counts.skipped


def _instance_name(info: InstanceInfo) -> str:
    return plain(info.label or info.id[:12])


def _state(info: InstanceInfo) -> str:
    counts = info.counts
    parts = [
        f"{_instance_name(info)}: {counts.succeeded} of {counts.total} done",
        f"{counts.running} running" if counts.running else "",
        f"{counts.waiting} waiting" if counts.waiting else "",
        f"{counts.failed} failed" if counts.failed else "",
        f"{counts.cancelled} cancelled" if counts.cancelled else "",
        f"{counts.skipped} skipped" if counts.skipped else "",
    ]
    return ", ".join(part for part in parts if part)


# A service at a glance: its instances, workers, throughput and money.

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
        *_forecasts(seen.instances, seen.currency),
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
        height,
        [first],
        (len(instances), lambda rows: _instances(instances, None, rows)),
        *_forecasts(instances, "" if account is None else account.currency),
    )


class _FittedTables:
    """
    Lines above tables that share the rest of a screen of ``height`` lines; None: no limit.

    Each table is its number of rows, and the function that makes a table of at most n rows.
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

    console = Console()
    if not instances:
        console.print("no instances")
        return
    titles = ("instance", "done", "running", "failed", "created", "label")
    table = table_of(*titles, right=slice(1, 4), whole=slice(5))
    for info in sorted(instances, key=_age):
        counts = info.counts
        table.add_row(
            _text(info.id),
            f"{counts.succeeded:,}/{counts.total:,}",
            f"{counts.running:,}",
            f"{counts.failed:,}",
            _date_text(info.created),
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
    whose = ["user"] if owners is not None else []
    counts = slice(2 + len(whose), 2 + len(whose) + len(_COUNTS))
    titles = ("instance", *whose, "label", *_COUNTS, "")
    table = table_of(*titles, right=counts, whole=counts, pad_edge=False)
    table.columns[0].no_wrap = True
    rows = list(zip(instances, owners or [""] * len(instances), strict=True))
    rows.sort(key=lambda row: (-row[0].counts.waiting - row[0].counts.running, _age(row[0])))
    # Chosen by work, listed by age: rows would otherwise change places with every update.
    for info, owner in sorted(rows[:shown], key=lambda row: _age(row[0])):
        user = [_line(owner)] if owners is not None else []
        cells = (_text(info.id[:12]), *user, _line(info.label))
        table.add_row(*cells, *_counts(info), _line(info.note))
    return _with_rest(table, len(rows) - shown)


def _forecasts(
    instances: Sequence[InstanceInfo], currency: str
) -> list[tuple[int, Callable[[int], Any]]]:
    """Return the table of the instances that are forecast, those that end first; none: no table."""
    known = [(info, info.forecast) for info in instances if info.forecast is not None]
    known.sort(key=lambda one: one[1].end.p50)
    titles = ("forecast", "ends, 50 to 90 %", "cost, 50 to 90 %", "deadline", "budget")

    def table(shown: int) -> Any:
        rows = [
            (
                _text(info.id[:12]),
                _end_range(forecast),
                _cost_range(forecast, currency),
                *(
                    "" if odds is None else odds_in_words(odds)
                    for odds in (forecast.deadline_odds, forecast.budget_odds)
                ),
            )
            for info, forecast in known[:shown]
        ]
        return _with_rest(
            table_of(*titles, rows=rows, right=slice(3, 5), whole=slice(5), pad_edge=False),
            len(known) - shown,
        )

    return [(len(known), table)] if known else []


def _workers(workers: Sequence[WorkerInfo], shown: int) -> Any:
    """Return a table of the busiest workers, by host and name."""
    busy = slice(3, 4)
    table = table_of("worker", "host", "pool", "busy", "", right=busy, whole=busy, pad_edge=False)
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
