"""A scheduler's listing of one job, and times and durations as schedulers print them."""

import calendar
import re
import time
from dataclasses import dataclass

from bursar.provisioning.lrm.resource_manager import (
    JobEnding,
    JobReport,
    JobState,
    JobUsage,
    QueuedJob,
)

# Parse times and durations as schedulers print them.

UTC = {"TZ": "UTC0", "LC_ALL": "C"}
"""Variables that make commands print times in UTC and speak English: many leave out the zone."""

_ENDLESS = re.compile(r"(infinity|inf|unlimited|none|undefined|-+)?", re.IGNORECASE)


def parse_moment(text: str, *formats: str) -> float | None:
    """
    Parse a time in UTC to seconds since the epoch; None when no format fits.

    Parameters
    ----------
    text
        Time as printed under :data:`UTC`.
    formats
        Formats of :func:`time.strptime`.
    """
    for form in formats:
        try:
            return float(calendar.timegm(time.strptime(" ".join(text.split()), form)))
        except ValueError:
            continue
    return None


def seconds(text: str) -> float | None:
    """
    Seconds of ``[[[days:]hours:]minutes:]seconds``; None where there is no limit.

    Raises
    ------
    ValueError
        When it is neither.
    """
    if _ENDLESS.fullmatch(text.strip()):
        return None
    total = 0.0
    for part, unit in zip(reversed(text.strip().split(":")), (1, 60, 3600, 86400), strict=False):
        total += float(part) * unit
    if text.count(":") > 3 or not 0 <= total < float("inf"):
        raise ValueError(f"no duration: {text!r}")
    return total


def format_walltime(duration: float) -> str:
    """``HH:MM:SS`` of at least so many seconds."""
    whole = int(duration) + (duration > int(duration))
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


# A scheduler's listing of one job, not yet turned into a report or a queue entry.


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedJob:
    """
    A job as the scheduler listed it.

    Parameters
    ----------
    state, how, reason
        See :class:`~bursar.provisioning.lrm.resource_manager.JobReport`.
    name, owner, queue
        Name, owner and queue of the job; empty where not said.
    submitted, began, ended, expected
        Seconds since the epoch; None: not yet, or not said.
    limit
        Wall-clock limit, seconds; None: no limit, or unknown.
    processors
        Number of processors held or requested; None if not listed.
    nodes
        Nodes on which the job runs or ran.
    spent
        Seconds that the job ran, by the scheduler's own count; None without one.
    """

    id: str
    state: JobState
    how: JobEnding | None = None
    reason: str = ""
    name: str = ""
    owner: str = ""
    queue: str = ""
    submitted: float | None = None
    began: float | None = None
    ended: float | None = None
    expected: float | None = None
    limit: float | None = None
    processors: int | None = None
    nodes: tuple[str, ...] = ()
    spent: float | None = None

    @property
    def report(self) -> JobReport:
        """Return the report on the job for the job's listener."""
        running = self.state == "running"
        over = self.began is not None and self.limit is not None and running
        return JobReport(
            id=self.id,
            state=self.state,
            how=self.how,
            reason=self.reason,
            began=self.began if running or self.state == "ended" else None,
            ended=self.ended if self.state == "ended" else None,
            until=(self.began or 0.0) + (self.limit or 0.0) if over else None,
            processors=self.processors,
            nodes=self.nodes if running or self.state == "ended" else (),
            expected=self.expected if self.state == "pending" else None,
        )

    def queued(self, user: str) -> QueuedJob | None:
        """Return the job's entry in the queue; None for an ended job or an unknown state."""
        if self.state in ("ended", "unknown") or self.processors is None:
            return None
        running = self.state == "running"
        return QueuedJob(
            id=self.id,
            running=running,
            processors=self.processors,
            submitted=self.submitted,
            began=self.began if running else None,
            seconds=self.limit,
            own=self.owner == user,
            held=self.state == "held",
            nodes=self.nodes if running else (),
        )

    def usage(self, now: float) -> JobUsage | None:
        """Return the job's usage until now; None for a job not known to have begun."""
        if self.processors is None or self.state not in ("running", "ended"):
            return None
        spent = self.spent
        if self.began is not None and self.ended is not None and self.state == "ended":
            spent = self.ended - self.began if spent is None else spent
        elif self.began is not None and self.state == "running":
            spent = max(0.0, now - self.began)
        if spent is None:
            return None
        return JobUsage(id=self.id, processors=self.processors, seconds=spent, how=self.how)


def unknown_report(id: str, reason: str) -> ListedJob:
    """Listing of a job whose state cannot be determined."""
    return ListedJob(id=id, state="unknown", reason=reason)
