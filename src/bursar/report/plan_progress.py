"""Progress of a search: a bar on a terminal, nothing elsewhere."""

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

from bursar.report.formatting import amount, span

if TYPE_CHECKING:
    from bursar.planning.search_limits import SearchProgress as SearchProgress


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
