"""Shows a changing state on stderr: a panel on a terminal, sparse lines elsewhere."""

import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

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
