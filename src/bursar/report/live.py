"""Shows progress: bars for copies and searches, a panel or sparse lines for other states."""

import sys
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from bursar.report.formatting import amount, span

if TYPE_CHECKING:
    from rich.console import Console

    from bursar.planning.search_limits import SearchProgress as SearchProgress


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


# Progress of files that are copied or read: bars on a terminal, nothing elsewhere.


class CopyProgress:
    """
    Shows how far each file is. It may be told from any thread.

    Parameters
    ----------
    verb
        What is done: ``"copying"``.
    """

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> "CopyProgress":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                DownloadColumn,
                Progress,
                TextColumn,
                TimeRemainingColumn,
                TransferSpeedColumn,
            )

            self._bars = Progress(
                TextColumn(self._verb),
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
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

    def __call__(self, name: str, done: int, total: int | None) -> None:
        """
        Redraw the bar of a file; a file's first call adds its bar, and a complete file has none.

        Parameters
        ----------
        name
            Name of the file.
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
        """The same, of one file."""
        return partial(self, name)


# Progress of a search: a bar on a terminal, nothing elsewhere.


class PlanProgress:
    """
    Shows how far a search is and the ends of the front so far.

    Parameters
    ----------
    currency
        Of the costs.
    """

    def __init__(self, currency: str) -> None:
        self._currency = currency
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> "PlanProgress":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeRemainingColumn,
            )

            self._bar = Progress(
                TextColumn("planning"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[front]}"),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("plan", total=None, rate="", front="")
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, progress: "SearchProgress") -> None:
        """Takes note of a step."""
        if self._bar is None:
            return
        speed = self._bar.tasks[0].speed
        self._bar.update(
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
