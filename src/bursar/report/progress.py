"""Progress: bars for copies and searches, and a live panel or sparse lines for runs."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from html import escape
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from bursar.forecasts.fan import ForecastFan
from bursar.model.campaign import odds_in_words
from bursar.report.tables import amount, money, span

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn

    from bursar.planning.policy import SearchProgress as SearchProgress


# Shows a changing state on stderr: a panel on a terminal, sparse lines elsewhere.

LONGEST = 60.0
"""Seconds between two lines, at most."""


class LiveDisplay:
    """
    A panel that is drawn anew, or lines that come ever less often. Use it as a context.

    Parameters
    ----------
    wait
        Seconds between the first two lines are twice as many; each further wait is twice as long.
    first
        When the first line comes, on the clock of :meth:`show`.
    console
        Console for panel and lines; None: stderr.
    enabled
        Whether a panel may be drawn.
    """

    def __init__(
        self, wait: float, first: float, *, console: "Console | None", enabled: bool = True
    ) -> None:
        self._wait = wait
        self._next_line = first
        self._console = console
        self._live: Any = None
        self._is_terminal = enabled and (
            sys.stderr.isatty() if console is None else console.is_terminal
        )

    def __enter__(self) -> "LiveDisplay":
        if self._is_terminal:
            from rich.console import Console
            from rich.live import Live

            self._console = self._console or Console(stderr=True)
            self._live = Live(
                # Drawn with each update only; a thread that redraws would take time from the run.
                # Standard output stays untouched, for data.
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
            )
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, panel: Callable[[], Any], line: Callable[[], str], now: float) -> None:
        """Show the latest state, as a panel or, when a line is due, as a line."""
        if self._live is not None:
            self._live.update(panel(), refresh=True)
        elif now >= self._next_line:
            # Ever fewer lines: a log of a run of days should not be full of them.
            self._wait = min(LONGEST, self._wait * 2)
            self._next_line = now + self._wait
            self.notify(line())

    def notify(self, text: str) -> None:
        """Print a line that stays."""
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        elif self._console is not None:
            self._console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)


# Progress of copies and of a search: bars on a terminal, nothing elsewhere.


class ProgressBars:
    """Bars on stderr for the length of a context; none where stderr is no terminal."""

    def __init__(self) -> None:
        self._bars: Any = None

    def _columns(self) -> "tuple[ProgressColumn, ...]":
        """Return the columns of each bar."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            console = Console(stderr=True)
            self._bars = Progress(*self._columns(), console=console, transient=True)
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            self._bars.stop()


class CopyProgress(ProgressBars):
    """
    Shows how far each file is. It may be told from any thread.

    Parameters
    ----------
    verb
        What is done: ``"copying"``.
    """

    def __init__(self, verb: str) -> None:
        super().__init__()
        self._verb = verb
        self._tasks: dict[str, Any] = {}

    def _columns(self) -> "tuple[ProgressColumn, ...]":
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        return (
            TextColumn(self._verb),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )

    def __call__(self, name: str, done: int, total: int | None) -> None:
        """
        Redraw the bar of a file; a file's first call adds its bar, and a complete file has none.

        Parameters
        ----------
        done, total
            Bytes that have been copied, and bytes of the file; None: not known yet.
        """
        if self._bars is None:
            return
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=total)
        self._bars.update(self._tasks[name], completed=done, total=total)
        if done == total:  # what is done makes room for the others
            self._bars.update(self._tasks[name], visible=False)

    def of(self, name: str) -> Callable[[int, int | None], None]:
        """Return a function that redraws the bar of one file, given the bytes done and in all."""
        return partial(self, name)


class PlanProgress(ProgressBars):
    """Shows how far a search is and the ends of the front so far."""

    def __init__(self, currency: str) -> None:
        super().__init__()
        self._currency = currency
        self._task: Any = None

    def _columns(self) -> "tuple[ProgressColumn, ...]":
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

        return (
            TextColumn("planning"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[front]}"),
        )

    def __enter__(self) -> Self:
        super().__enter__()
        if self._bars is not None:
            self._task = self._bars.add_task("plan", total=None, rate="", front="")
        return self

    def __call__(self, progress: "SearchProgress") -> None:
        """Redraw the bar after a step of the search."""
        if self._bars is None:
            return
        speed = self._bars.tasks[0].speed
        self._bars.update(
            self._task,
            completed=progress.done,
            total=progress.total,
            rate="" if speed is None else f"{speed:,.0f}/s",
            front=self._front(progress),
        )

    def _front(self, progress: "SearchProgress") -> str:
        points = progress.front
        if not len(points):
            return "no plan yet"
        plans = f"{len(points)} plan{'s' if len(points) > 1 else ''}"
        return (
            f"{plans}: {span(points[0][0])} to {span(points[-1][0])}, "
            f"{amount(points[-1][1], self._currency)} to {amount(points[0][1], self._currency)}"
        )


# Progress while a run goes on: a live panel on a terminal, sparse lines elsewhere.

FIRST_LINE = 2.0
"""Seconds before the first line where there is no terminal; each further wait is twice as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteProgress:
    """
    Progress of a run at one site, as the display shows it.

    Parameters
    ----------
    processors, busy
        Number of leased processors, and of those that run tasks.
    asked
        Processors requested but not yet available.
    spent
        Currency units, what open leases have accrued included.
    """

    name: str
    processors: int
    busy: int
    running: int
    asked: int = 0
    spent: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressSnapshot:
    """
    How a run stands.

    Parameters
    ----------
    elapsed
        Seconds since the beginning of the run.
    total, succeeded, running, waiting, failed, skipped
        Numbers of tasks, by state.
    spent, held
        Currency units; what open leases have accrued is spent, and no longer held.
    budget
        Currency units; None for none.
    predicted_finish
        Makespan as planned or expected, seconds; None when unknown.
    current_finish
        Makespan that the progress so far suggests, seconds; None when unknown.
    deadline
        Seconds; None for none.
    follows_plan
        Whether processors are bought as a plan says; a pool or a strategy only has expectations.
    forecast
        Forecast of end and cost; None: nothing is known of the run times, or none is made.
    """

    campaign: str
    elapsed: float
    total: int
    succeeded: int
    running: int
    waiting: int
    failed: int
    skipped: int
    spent: float
    held: float
    budget: float | None
    currency: str
    predicted_finish: float | None
    current_finish: float | None
    deadline: float | None
    follows_plan: bool = True
    sites: tuple[SiteProgress, ...] = ()
    forecast: ForecastFan | None = None

    @property
    def ended(self) -> int:
        """Tasks at their end."""
        return self.succeeded + self.failed + self.skipped

    def __str__(self) -> str:
        parts = [
            f"{self.campaign}: {self.ended}/{self.total} ended",
            f"{self.running} running",
            f"{self.waiting} waiting",
            *([f"{self.failed} failed"] if self.failed else []),
        ]
        told = [", ".join(parts), spending(self), times(self), outlook(self)]
        return "; ".join(part for part in told if part)

    def _repr_html_(self) -> str:
        """Return a bar with counts, money and times; notebooks show a snapshot so."""
        counts = f"{self.succeeded} done, {self.running} running, {self.waiting} waiting"
        for number, word in ((self.failed, "failed"), (self.skipped, "skipped")):
            counts += f", {number} {word}" if number else ""
        return (
            f"<div><b>{escape(self.campaign)}</b> "
            f'<progress max="{max(self.total, 1)}" value="{self.ended}"></progress> '
            f"{self.ended}/{self.total}<br>{escape(counts)}<br>"
            f"{escape(spending(self))}; {escape(times(self))}"
            f"{'<br>' if self.forecast else ''}{escape(outlook(self))}</div>"
        )


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    # Not imported: a kernel has loaded it, and elsewhere it need not be installed.
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


class RunProgress:
    """
    Shows snapshots on stderr.

    Use it as a context. On a terminal the latest one stays at the bottom;
    elsewhere a line comes now and then; disabled, nothing appears.

    Parameters
    ----------
    enabled
        Whether snapshots and messages are shown.
    console
        Console to write to; None: stderr.
    """

    def __init__(self, *, enabled: bool = True, console: "Console | None" = None) -> None:
        self.enabled = enabled
        begin = time.monotonic() + FIRST_LINE
        self._display = LiveDisplay(FIRST_LINE, begin, console=console, enabled=enabled)
        self._rate = 0.0
        self._last: tuple[float, int] | None = None
        self._notebook: Any = None

    def __enter__(self) -> "RunProgress":
        self._display.__enter__()
        if self.enabled and in_notebook():
            from IPython.display import display  # late: a kernel has it, others need not

            self._notebook = display(display_id=True)
        return self

    def __exit__(self, *error: Any) -> None:
        self._display.__exit__(*error)

    def notify(self, message: str) -> None:
        """Print a line that stays."""
        if self.enabled:
            self._display.notify(message)

    def update(self, snapshot: ProgressSnapshot) -> None:
        """Show the latest state."""
        if self.enabled:
            self._measure(snapshot)
            if self._notebook is not None:
                self._notebook.update(snapshot)
                return
            panel, text = partial(self._panel, snapshot), partial(self._text, snapshot)
            self._display.show(panel, text, time.monotonic())

    def _measure(self, snapshot: ProgressSnapshot) -> None:
        if self._last is not None and snapshot.elapsed > self._last[0]:
            seconds = snapshot.elapsed - self._last[0]
            rate = (snapshot.succeeded - self._last[1]) / seconds
            # Exponential smoothing with a time constant of two seconds, whatever the distance
            # between snapshots.
            weight = min(1.0, seconds / 2)
            self._rate += weight * (rate - self._rate)
        self._last = (snapshot.elapsed, snapshot.succeeded)

    def _text(self, s: ProgressSnapshot) -> str:
        parts = [
            f"{s.campaign}: {s.succeeded} of {s.total} done, {s.running} running",
            f"{s.failed} failed" if s.failed else "",
            f"{self._rate:.3g}/s",
            spending(s),
            times(s),
            outlook(s),
            "; ".join(" ".join(part for part in at_site(p, s.currency) if part) for p in s.sites)
            if len(s.sites) > 1
            else "",
        ]
        return ", ".join(part for part in parts if part)

    def _panel(self, s: ProgressSnapshot) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        first = Table.grid(padding=(0, 1))
        first.add_row(
            Text(s.campaign, style="bold"),
            ProgressBar(total=max(s.total, 1), completed=s.ended, width=30),
            Text(f"{s.ended}/{s.total}"),
            Text(f"{self._rate:.3g}/s", style="dim"),
        )
        tasks = Text.assemble(
            (f"{s.succeeded} done", "green"),
            f"  {s.running} running  {s.waiting} waiting  ",
            (f"{s.failed} failed", "red" if s.failed else "dim"),
            (f"  {s.skipped} skipped" if s.skipped else "", "yellow"),
        )
        sites = Table.grid(padding=(0, 2))
        for site in s.sites:
            sites.add_row(*(Text(part, style="dim") for part in at_site(site, s.currency)))
        lines = [Text(told)] if (told := outlook(s)) else []
        return Group(first, tasks, Text(f"{spending(s)}  {times(s)}"), *lines, sites)


def at_site(p: SiteProgress, currency: str) -> tuple[str, str, str]:
    """Return the busy processors, the requested ones and the cost at a site, as texts."""
    return (
        f"{p.name}: {p.busy}/{p.processors} processors busy",
        f"{p.asked} asked for" if p.asked else "",
        "" if p.spent is None else amount(p.spent, currency),
    )


def spending(s: ProgressSnapshot) -> str:
    """Describe in words what is spent, what is held and what may be spent."""
    text = f"spent {amount(s.spent, s.currency)}, held {money(s.held)}"
    return text if s.budget is None else f"{text}, budget {money(s.budget)}"


def times(s: ProgressSnapshot) -> str:
    """Describe the time passed, left and planned, and the deadline."""
    parts = [f"{span(s.elapsed)} gone"]
    if s.current_finish is not None and s.forecast is None:
        parts.append(f"{span(max(0.0, s.current_finish - s.elapsed))} left")
    if s.predicted_finish is not None:
        how = "planned" if s.follows_plan else "expected"
        parts.append(f"{how} {span(s.predicted_finish)}")
    if s.deadline is not None:
        parts.append(f"deadline {span(s.deadline)}")
    return ", ".join(parts)


def outlook(s: ProgressSnapshot) -> str:
    """Describe the forecast of end and cost, and the odds of the goal; empty: there is none."""
    forecast = s.forecast
    if forecast is None or s.ended == s.total:
        return ""
    middle, late = (end - s.elapsed for end in (forecast.end_s.p50, forecast.end_s.p90))
    if late <= 0:  # the run has shown the forecast wrong, and with the end its cost and odds
        return f"longer than forecast, which was {span(forecast.end_s.p90)} at 90 %"
    parts = [
        f"{span(middle)} left, {span(late)} at 90 %" if middle > 0 else f"{span(late)} left at 90 %"
    ]
    cost = forecast.cost
    if cost is not None and cost.p90 > s.spent:
        dear = f"{amount(cost.p90, s.currency)} at 90 %"
        parts.append(f"cost {money(cost.p50)}, {dear}" if cost.p50 > s.spent else f"cost {dear}")
    if forecast.odds is not None:
        parts.append(f"odds {odds_in_words(forecast.odds)}")
    return "; ".join(parts)
