"""How an instance at a service goes on: live on a terminal, sparse lines elsewhere."""

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from bursar.remote.messages import InstanceInfo
from bursar.report.formatting import UNKNOWN, plain, span
from bursar.report.live import LiveDisplay

if TYPE_CHECKING:
    from rich.console import Console

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
        return f"{_state(info)}, {self._speed(info)}" + (
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
            Text(_name(info), style="bold"),
            ProgressBar(total=max(counts.total, 1), completed=ended(info), width=30),
            Text(f"{ended(info)}/{counts.total}"),
            Text(self._speed(info), style="dim"),
        )
        tasks = Text.assemble(
            (f"{counts.succeeded} done", "green"),
            f"  {counts.running} running  {counts.waiting} waiting  ",
            (f"{counts.failed} failed", "red" if counts.failed else "dim"),
            (f"  {counts.cancelled} cancelled" if counts.cancelled else "", "yellow"),
        )
        return Group(first, tasks, *([Text(plain(info.note), style="yellow")] if info.note else []))


def ended(info: InstanceInfo) -> int:
    """Tasks at their end."""
    return info.counts.succeeded + info.counts.failed + info.counts.cancelled


def _name(info: InstanceInfo) -> str:
    return plain(info.label or info.id[:12])


def _state(info: InstanceInfo) -> str:
    counts = info.counts
    parts = [
        f"{_name(info)}: {counts.succeeded} of {counts.total} done",
        f"{counts.running} running" if counts.running else "",
        f"{counts.waiting} waiting" if counts.waiting else "",
        f"{counts.failed} failed" if counts.failed else "",
        f"{counts.cancelled} cancelled" if counts.cancelled else "",
    ]
    return ", ".join(part for part in parts if part)
