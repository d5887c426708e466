"""What the report shows, gathered from a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bursar.dispatch.journal import Event, Record
from bursar.market.lease import Lease
from bursar.model.outcome import Status
from bursar.model.plan import Plan
from bursar.model.task import Task
from bursar.model.transfer import Transfer
from bursar.planning.numbering import number_processors
from bursar.report.bill import Bill

MOST_FAILURES = 200
"""Rows of the failure table; the results hold them all."""

TAIL = 2000
"""Characters of stderr shown of a failure: the last ones."""

SLOWEST = 15

Bar = tuple[int, float, float, int, int, int, int]
"""Lane, start, end, processors, kind, status, task; times in seconds from the begin."""

STATUSES = [str(status) for status in Status]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """
    Parameters
    ----------
    summary
        The run's key figures.
    proposal
        The trade-off curve, as ``bursar plan --json`` prints it.
    plan
        The chosen plan.
    tasks
        Of the campaign.
    records
        Every attempt.
    transfers
        Every movement of money.
    leases
        All there were.
    events
        What else was journalled.
    bill
        What it cost so far.
    """

    summary: Mapping[str, Any]
    proposal: Mapping[str, Any]
    plan: Plan
    tasks: Sequence[Task]
    records: Sequence[Record]
    transfers: Sequence[Transfer]
    leases: Sequence[Lease]
    events: Sequence[Event]
    bill: Bill

    @property
    def begin(self) -> float:
        """Seconds since the epoch: the first lease, or the first task."""
        starts = [lease.start for lease in self.leases]
        starts += [record.outcome.start for record in self.records[:1]]
        return min(starts, default=0.0)

    def to_page(self) -> dict[str, Any]:
        """Everything the page draws, as compact JSON."""
        kinds = _Numbers()
        planned, sites = self._planned(kinds)
        actual = self._actual(kinds, sites)
        return {
            "summary": dict(self.summary),
            "proposal": dict(self.proposal),
            "sites": sites.names,
            "processors": [
                sum(p.slot.processors for p in self.plan.purchases if p.slot.site == name)
                for name in sites.names
            ],
            "kinds": kinds.names,
            "statuses": STATUSES,
            "ids": [task.id for task in self.tasks],
            "planned": planned,
            "actual": actual,
            "money": self._money(),
            "leases": [
                [lease.start - self.begin, None if lease.end is None else lease.end - self.begin,
                 lease.rate, lease.fixed / 1e6]
                for lease in self.leases
            ],
            "failures": self._failures(),
            "by_kind": self._by_kind(),
            "slowest": self._slowest(),
            "messages": [
                [round(event.time - self.begin, 3), event.text]
                for event in self.events
                if event.kind == "message"
            ],
            "bill": {
                "total": self.bill.total,
                "currency": self.bill.currency,
                "leases": [
                    [i.lease, i.site, i.processors, i.seconds, i.tasks, i.remainder, i.total]
                    for i in self.bill.leases
                ],
            },
        }  # fmt: skip

    def _planned(self, kinds: "_Numbers") -> tuple[dict[str, list[Bar]], "_Numbers"]:
        sites = _Numbers()
        for purchase in self.plan.purchases:
            sites.of(purchase.slot.site)
        bars: dict[str, list[Bar]] = {name: [] for name in sites.names}
        for placement in self.plan.placements:
            task = self.tasks[placement.task]
            for first, width in _runs(placement.processors):
                bars.setdefault(placement.site, []).append(
                    (
                        first,
                        round(placement.start, 3),
                        round(placement.finish, 3),
                        width,
                        kinds.of(_kind(task)),
                        0,
                        placement.task,
                    )
                )
        return bars, sites

    def _actual(self, kinds: "_Numbers", sites: "_Numbers") -> dict[str, list[Bar]]:
        by_site: dict[str, list[Record]] = {name: [] for name in sites.names}
        for record in self.records:
            if record.outcome.end > record.outcome.start:
                sites.of(record.site)
                by_site.setdefault(record.site, []).append(record)
        bars: dict[str, list[Bar]] = {}
        begin = self.begin
        for site, records in by_site.items():
            spans = [
                (r.outcome.start, r.outcome.end, self.tasks[r.outcome.task].processors)
                for r in records
            ]
            bars[site] = [
                (
                    first,
                    round(r.outcome.start - begin, 4),
                    round(r.outcome.end - begin, 4),
                    width,
                    kinds.of(_kind(self.tasks[r.outcome.task])),
                    STATUSES.index(str(r.outcome.status)),
                    r.outcome.task,
                )
                for r, held in zip(records, number_processors(spans), strict=True)
                for first, width in _runs(held)
            ]
        return bars

    def _money(self) -> list[tuple[float, float, float]]:
        """Time, spent and held after each movement of money, currency units."""
        spent = held = 0
        points = [(0.0, 0.0, 0.0)]
        for transfer in self.transfers:
            if transfer.target.startswith("held:"):
                held += transfer.amount
            if transfer.source.startswith("held:"):
                held -= transfer.amount
            if transfer.target.startswith("site:"):
                spent += transfer.amount
            points.append((round(max(0.0, transfer.time - self.begin), 3), spent / 1e6, held / 1e6))
        return points

    def _failures(self) -> dict[str, Any]:
        failed = [r for r in self.records if r.outcome.status not in _FINE]
        return {
            "count": len(failed),
            "rows": [
                [
                    self.tasks[r.outcome.task].id,
                    r.outcome.attempt,
                    str(r.outcome.status),
                    r.outcome.reason,
                    r.outcome.stderr.decode(errors="replace")[-TAIL:],
                    r.final,
                ]
                for r in failed[:MOST_FAILURES]
            ],
        }

    def _by_kind(self) -> list[list[Any]]:
        found: dict[str, list[Record]] = {}
        for record in self.records:
            if record.outcome.status is Status.SUCCEEDED:
                found.setdefault(_kind(self.tasks[record.outcome.task]), []).append(record)
        rows: list[list[Any]] = []
        for kind, records in found.items():
            seconds = sorted(r.outcome.end - r.outcome.start for r in records)
            processor = sum(r.outcome.user_seconds + r.outcome.system_seconds for r in records)
            rows.append(
                [
                    kind,
                    len(records),
                    sum(seconds),
                    seconds[len(seconds) // 2],
                    seconds[-1],
                    processor,
                    max(r.outcome.max_rss for r in records),
                ]
            )
        return sorted(rows, key=lambda row: -row[2])

    def _slowest(self) -> list[list[Any]]:
        done = [r for r in self.records if r.final]
        done.sort(key=lambda r: r.outcome.start - r.outcome.end)
        return [
            [
                self.tasks[r.outcome.task].id,
                _kind(self.tasks[r.outcome.task]),
                r.outcome.end - r.outcome.start,
                self.tasks[r.outcome.task].runtime,
                r.outcome.user_seconds + r.outcome.system_seconds,
            ]
            for r in done[:SLOWEST]
        ]


class _Numbers:
    """Names in order of first use."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def of(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    @property
    def names(self) -> list[str]:
        return list(self._numbers)


_FINE = (Status.SUCCEEDED, Status.CANCELLED)


def _kind(task: Task) -> str:
    return task.name or "task"


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """First and length of each run of neighbours, of ascending numbers."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][0] + runs[-1][1] == number:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((number, 1))
    return runs
