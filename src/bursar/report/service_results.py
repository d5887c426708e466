"""Prints results of a service's tasks, one line each, on arrival."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bursar.remote.messages import Result
from bursar.report.formatting import plain, span

if TYPE_CHECKING:
    from rich.console import Console

_WIDTHS = (9, 4, 8, 12)  # of state, exit status, time and host

_MOST_NAME = 30
"""Characters of a task's number and label, for the width of their column."""

_STYLES = {"succeeded": "green", "cancelled": "yellow"}


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
            widest = max(len(_name(result)) for result in results)
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
        return self._row(_name(result), cells, _ending_text(result))

    def _row(self, name: str, cells: Sequence[str], last: str) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True))
        return "  ".join((name.ljust(self._width), *padded, last)).rstrip()


def _name(result: Result) -> str:
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
