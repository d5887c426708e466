"""Progress of files that are copied or read: bars on a terminal, nothing elsewhere."""

import sys
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any


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
