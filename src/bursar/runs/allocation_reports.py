"""Reports on a run's requests to sites: each request, what was done with it, and the record of
the site's scheduler beside it."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from bursar.market.lease import Lease
from bursar.provisioning.accounting import (
    AllocationUsage,
    PilotUsage,
    ProcessorSpan,
    account_of,
    agree,
)
from bursar.runs.pool_controller import ASKED, BOUNDS, AllocationStep
from bursar.runs.run_record import RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationReport:
    """
    One request of a run for processors of a site, and what became of the request.

    Parameters
    ----------
    name, site
        Names of the request's lease and of the site.
    asked
        Time of the request, seconds since the run's begin; None where it was not journalled.
    began, ended
        Times at which processors were granted and given back; None: never, or not yet.
    processors
        Processors requested; once begun, processors granted.
    account
        Processor time of the allocation.
    record
        Accounting record of the site's scheduler; None where there is none.
    fate
        How the request ended, in words.
    """

    name: str
    site: str
    asked: float | None
    began: float | None
    ended: float | None
    processors: int
    account: AllocationUsage
    record: PilotUsage | None
    fate: str

    @property
    def wait(self) -> float | None:
        """Seconds from request to begin."""
        return None if self.asked is None or self.began is None else self.began - self.asked

    @property
    def recorded(self) -> float | None:
        """Processor-seconds that the allocation held, by the scheduler's record."""
        return None if self.record is None else self.record.processors * self.record.seconds

    @property
    def difference(self) -> float | None:
        """Processor-seconds that the scheduler's record has more than ours."""
        return None if self.recorded is None else self.recorded - self.account.acquired

    @property
    def agrees(self) -> bool | None:
        """Whether that is a matter of rounding; None where there is nothing to compare."""
        record, theirs = self.record, self.recorded
        if record is None or theirs is None:
            return None
        width = max(self.account.processors, record.processors)
        return agree(self.account.acquired, theirs, width)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return {
            "name": self.name,
            "site": self.site,
            "job": None if self.record is None else self.record.job,
            "asked_s": self.asked,
            "began_s": self.began,
            "ended_s": self.ended,
            "wait_s": self.wait,
            "processors": self.processors,
            "acquired_cpu_s": self.account.acquired,
            "used_cpu_s": self.account.used,
            "idle_cpu_s": self.account.idle,
            "recorded_cpu_s": self.recorded,
            "difference_cpu_s": self.difference,
            "agrees": self.agrees,
            "fate": self.fate,
        }


def allocation_reports(record: RunRecord) -> list[AllocationReport]:
    """Return a report on every request of a run, in the order of the requests."""
    begin = record.incarnations[0][0] if record.incarnations else 0.0
    last = record.journal.last_seen
    leases = {lease.id: lease for lease in record.leases}
    steps: dict[str, list[tuple[float, AllocationStep]]] = defaultdict(list)
    for event in record.journal.events:
        if event.kind == ASKED:
            step = msgspec.json.decode(event.text, type=AllocationStep)
            steps[step.name].append((event.time - begin, step))
    tasks = _tasks(record)
    recorded = record.recorded
    return [
        _one(
            name,
            steps.get(name, ()),
            leases.get(name),
            tasks.get(name, ()),
            recorded.get(name),
            begin,
            last,
        )
        for name in dict.fromkeys([*steps, *leases])
    ]


def bounds(record: RunRecord) -> dict[str, tuple[int, int]]:
    """Return, by site, how many bounds on waits had been given by the run's end, and held."""
    stated: dict[str, tuple[int, int]] = {}
    for event in record.journal.events:
        if event.kind == BOUNDS:
            stated = msgspec.json.decode(event.text, type=dict[str, tuple[int, int]])
    return stated


def _one(
    name: str,
    steps: Sequence[tuple[float, AllocationStep]],
    lease: Lease | None,
    tasks: Sequence[ProcessorSpan],
    usage: PilotUsage | None,
    begin: float,
    last: float,
) -> AllocationReport:
    steps_made = [step for _, step in steps]
    site = lease.site if lease is not None else steps_made[0].site
    began = ended = None
    # A lease that ends before it begins was withdrawn: nothing is owed for it.
    if lease is None or (lease.end is not None and lease.end < lease.start):
        processors = steps_made[0].processors if steps_made else 0
        account = AllocationUsage(
            name=name, site=site, processors=processors, acquired=0.0, starting=0.0, used=0.0
        )
    else:
        end = last if lease.end is None else lease.end
        began, ended = lease.start - begin, end - begin
        whole = ProcessorSpan(start=lease.start, end=end, processors=lease.processors)
        account = account_of(lease, [whole], tasks, last)
    return AllocationReport(
        name=name,
        site=site,
        asked=steps[0][0] if steps else None,
        began=began,
        ended=ended,
        processors=account.processors,
        account=account,
        record=usage,
        fate=_fate(steps_made, lease),
    )


def _fate(steps: Sequence[AllocationStep], lease: Lease | None) -> str:
    """Return in words how a request ended, or the present state."""
    given_back = next((step for step in steps if step.step == "given back"), None)
    if given_back is not None:
        return f"given back: {given_back.reason}"
    last = steps[-1] if steps else None
    if last is not None and last.step in ("refused", "unreachable", "lost"):
        return f"{last.step}: {last.reason}" if last.reason else last.step
    if lease is None:
        return "waits" if last is not None and last.step == "asked" else "withdrawn"
    return "held" if lease.end is None else "ended"


def _tasks(record: RunRecord) -> dict[str, list[ProcessorSpan]]:
    """Return the spans in which tasks held processors, whatever their outcome; by lease."""
    tasks = record.campaign.workflow.tasks
    held: dict[str, list[ProcessorSpan]] = defaultdict(list)
    for one in record.journal.records:
        outcome = one.outcome
        span = ProcessorSpan(
            start=outcome.start, end=outcome.end, processors=tasks[outcome.task].processors
        )
        held[one.lease].append(span)
    return held
