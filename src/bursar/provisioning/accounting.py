"""
Compare processor time of each request with the scheduler's record, kept with a run.

DRP's second measure is the CPU time that was accumulated since the first request; here it is told
apart by what it was good for, and held against what the scheduler says it charged.
"""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bursar.market.lease import Lease

# Usage of pilots by the records of a site's scheduler, kept with a run.

USAGE = ".usage.jsonl"
"""Suffix of the usage files, one for each site, with a line for each pilot."""


class PilotUsage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    Usage of a pilot by the scheduler's record.

    Parameters
    ----------
    pilot
        Name of the pilot and of its lease.
    processors, seconds
        Number of processors that it held, and for how long.
    machine
        Type of the machine that was bought, where the site sells machines; empty elsewhere.
    hourly
        Price of the machine for an hour, currency units; None when unknown.
    price
        Source and date of that price.
    """

    pilot: str
    job: str
    processors: int
    seconds: float
    how: str
    machine: str = ""
    hourly: float | None = None
    price: str = ""


def append_usage(path: Path, rows: Iterable[PilotUsage]) -> None:
    """Append lines to a usage file; one that cannot be written costs a comparison, no more."""
    with contextlib.suppress(OSError), path.open("ab") as file:
        file.writelines(msgspec.json.encode(row) + b"\n" for row in rows)


# Compare the processor time of each request (used, idle, starting) with the scheduler's record.

ROUNDING = 1.0
"""Seconds by which two records of a job may differ, since schedulers count whole seconds."""

SHARE = 0.005
"""Further difference allowed, as a share of a job's processor time."""


def agree(ours: float, theirs: float, processors: int) -> bool:
    """
    Whether two records of one job's processor time are the same but for rounding.

    Parameters
    ----------
    ours, theirs
        Processor-seconds.
    """
    return abs(ours - theirs) <= ROUNDING * processors + SHARE * max(ours, theirs) + 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorSpan:
    """
    A number of processors from one time to another.

    Parameters
    ----------
    start, end
        Seconds since the epoch.
    """

    start: float
    end: float
    processors: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationUsage:
    """
    Processor time of one request.

    Parameters
    ----------
    acquired
        Processor-seconds from begin to end.
    starting
        Processor-seconds before each processor's worker had registered; part of ``acquired``.
    used
        Processor-seconds with a task; part of ``acquired``.
    """

    name: str
    site: str
    processors: int
    acquired: float
    starting: float
    used: float

    @property
    def idle(self) -> float:
        """Processor-seconds with a worker and without a task."""
        return max(0.0, self.acquired - self.starting - self.used)


def account_of(
    lease: Lease, ready: Iterable[ProcessorSpan], tasks: Iterable[ProcessorSpan], now: float
) -> AllocationUsage:
    """
    Return the account of one request.

    Parameters
    ----------
    lease
        Lease in the last journalled state.
    ready
        Times of the lease's workers, from their registration on.
    tasks
        Times of the tasks that ran, at no time on more than the lease's processors.
    now
        End of a lease that is still open, seconds since the epoch.
    """
    end = now if lease.end is None else lease.end
    acquired = lease.processors * max(0.0, end - lease.start)
    manned = min(_within(ready, lease.start, end), acquired)
    return AllocationUsage(
        name=lease.id,
        site=lease.site,
        processors=lease.processors,
        acquired=acquired,
        starting=acquired - manned,
        used=min(_within(tasks, lease.start, end), manned),
    )


def summed(accounts: Iterable[AllocationUsage]) -> dict[str, AllocationUsage]:
    """Sum up the accounts of each site, by site name."""
    totals: dict[str, AllocationUsage] = {}
    for one in accounts:
        before = totals.get(one.site)
        if before is None:
            before = AllocationUsage(
                name=one.site, site=one.site, processors=0, acquired=0.0, starting=0.0, used=0.0
            )
        totals[one.site] = AllocationUsage(
            name=one.site,
            site=one.site,
            processors=before.processors + one.processors,
            acquired=before.acquired + one.acquired,
            starting=before.starting + one.starting,
            used=before.used + one.used,
        )
    return totals


def _within(spans: Iterable[ProcessorSpan], start: float, end: float) -> float:
    return sum(
        span.processors * max(0.0, min(span.end, end) - max(span.start, start)) for span in spans
    )
