"""Progress while a run goes on: a live panel on a terminal, sparse lines elsewhere."""

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from bursar.report.formatting import span
from bursar.report.live import LiveDisplay

if TYPE_CHECKING:
    from rich.console import Console

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
    running
        Number of running tasks.
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
        Tasks.
    spent, held
        Currency units.
    budget
        Currency units; None for none.
    currency
        Of all three.
    predicted_finish
        Makespan as planned, seconds; None when unknown.
    current_finish
        The same as things are going.
    deadline
        Seconds; None for none.
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
    sites: tuple[SiteProgress, ...] = ()

    @property
    def ended(self) -> int:
        """Tasks at their end."""
        return self.succeeded + self.failed + self.skipped


class RunProgress:
    """
    Shows snapshots on stderr.

    Use it as a context. On a terminal the latest one stays at the bottom;
    elsewhere a line comes now and then; disabled, only what is said appears.

    Parameters
    ----------
    enabled
        Whether snapshots are shown.
    console
        To write to; None: stderr.
    """

    def __init__(self, *, enabled: bool = True, console: "Console | None" = None) -> None:
        self.enabled = enabled
        begin = time.monotonic() + FIRST_LINE
        self._display = LiveDisplay(FIRST_LINE, begin, console=console, enabled=enabled)
        self._rate = 0.0
        self._last: tuple[float, int] | None = None

    def __enter__(self) -> "RunProgress":
        self._display.__enter__()
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
            money(s),
            times(s),
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
        return Group(first, tasks, Text(f"{money(s)}  {times(s)}"), sites)


def at_site(p: SiteProgress, currency: str) -> tuple[str, str, str]:
    """Return the busy processors, the requested ones and the cost at a site, as texts."""
    return (
        f"{p.name}: {p.busy}/{p.processors} processors busy",
        f"{p.asked} asked for" if p.asked else "",
        "" if p.spent is None else f"{p.spent:.4g} {currency}",
    )


def money(s: ProgressSnapshot) -> str:
    """Describe in words what is spent, what is held and what may be spent."""
    text = f"spent {s.spent:.4g} {s.currency}, held {s.held:.4g}"
    return text if s.budget is None else f"{text}, budget {s.budget:.4g}"


def times(s: ProgressSnapshot) -> str:
    """Describe the time passed, left and planned, and the deadline."""
    parts = [f"{span(s.elapsed)} gone"]
    if s.current_finish is not None:
        parts.append(f"{span(max(0.0, s.current_finish - s.elapsed))} left")
    if s.predicted_finish is not None:
        parts.append(f"planned {span(s.predicted_finish)}")
    if s.deadline is not None:
        parts.append(f"deadline {span(s.deadline)}")
    return ", ".join(parts)
