"""A run's report: its content, its page, and results of tasks as JSON Lines and as CSV."""

import base64
import html
import math
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from bursar.dispatch.journal_records import AttemptRecord, RunEvent
from bursar.forecasts.fan import ForecastFan
from bursar.formats.file_text import replacing
from bursar.market.lease import Lease
from bursar.model.campaign import Campaign
from bursar.model.money import Transfer, to_micros
from bursar.model.plan import Plan
from bursar.model.task import Outcome, Status, Task
from bursar.planning.building import consecutive_runs, number_processors
from bursar.planning.front import ParetoFront
from bursar.report.bill import Bill

# Content of a run's report, gathered from the run.

MOST_FAILURES = 200
"""Rows of the failure table; the results hold them all."""

TAIL = 2000
"""Characters of stderr shown of a failure: the last ones."""

SLOWEST = 10

TimelineBar = tuple[int, float, float, int, int, int, int]
"""Lane, start, end, processors, kind, status, task; times on the clock of the page."""

STATUSES = [str(status) for status in Status]


class RunClock:
    """
    Converts a moment to seconds since a run began, the time between its incarnations left out.

    A run that was stopped in the evening and resumed in the morning has one
    short schedule, not two at the ends of a night.

    Parameters
    ----------
    incarnations
        Begin and end of each process that carried the run out, in order, seconds since the epoch;
        empty: one incarnation that began at the epoch.
    """

    def __init__(self, incarnations: Sequence[tuple[float, float]]) -> None:
        self._incarnations = incarnations or [(0.0, math.inf)]

    def at(self, moment: float) -> float:
        """
        Return the seconds that the run had been carried out by a moment.

        A moment between two incarnations counts as the end of the first of them, one before the
        run as 0. The last incarnation is not cut off at its end: money may move after it.

        Parameters
        ----------
        moment
            Seconds since the epoch.
        """
        passed = 0.0
        for number, (begin, end) in enumerate(self._incarnations, 1):
            if moment < begin:
                break
            is_last = number == len(self._incarnations)
            passed += (moment if is_last else min(moment, end)) - begin
        return passed

    def after(self, seconds: float) -> float:
        """Return the place on the clock of a moment so many seconds after the run's first begin."""
        return self.at(self._incarnations[0][0] + seconds)

    @property
    def pauses(self) -> list[tuple[float, float]]:
        """Places on the clock where time was left out, each with the seconds."""
        return [
            (round(self.at(end), 3), begin - end)
            for (_, end), (begin, _) in zip(
                self._incarnations, self._incarnations[1:], strict=False
            )
        ]


@dataclass(frozen=True, kw_only=True)
class ReportContent:
    """
    Everything that report.html shows of a run.

    Parameters
    ----------
    summary
        The run's key figures; the state of a plan that nobody has run is ``planned``.
    proposal
        The trade-off curve, as ``bursar plan --json`` prints it.
    forecasts
        Journalled forecasts of the run, in order, each with its event.
    tried
        Makespan, seconds, and cost, currency units, of plans behind the curve.
    """

    summary: Mapping[str, Any]
    proposal: Mapping[str, Any]
    plan: Plan
    tasks: Sequence[Task]
    records: Sequence[AttemptRecord]
    transfers: Sequence[Transfer]
    leases: Sequence[Lease]
    incarnations: Sequence[tuple[float, float]]
    events: Sequence[RunEvent]
    bill: Bill
    tried: Sequence[tuple[float, float]] = ()
    forecasts: Sequence[tuple[RunEvent, ForecastFan]] = ()

    @cached_property
    def clock(self) -> RunClock:
        """Clock by which the page shows all events."""
        return RunClock(self.incarnations)

    def to_page(self) -> dict[str, Any]:
        """Everything the page draws, as compact JSON."""
        kinds = NameIndex()
        planned, sites = self._planned(kinds)
        actual = self._actual(kinds, sites)
        return {
            "summary": dict(self.summary),
            "proposal": dict(self.proposal),
            "tried": list(self.tried),
            "slots": self._slots(),
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
            "money": money_points(self.transfers, self.clock),
            "end": self._end(),
            "pauses": self.clock.pauses,
            "forecast": forecast_rows(self.forecasts, self.clock),
            "leases": lease_rows(self.leases, self.clock),
            "messages": message_rows(self.events, self.clock),
        } | self.aggregates()

    def aggregates(self) -> dict[str, Any]:
        """Return what all attempts come to together: failures, kinds, longest tasks, bill."""
        return {
            "failures": self._failures(),
            "by_kind": self._by_kind(),
            "slowest": self._slowest(),
            "bill": {
                "total": self.bill.total,
                "currency": self.bill.currency,
                "leases": [
                    [i.lease, i.site, i.processors, i.seconds, i.tasks, i.remainder, i.total,
                     i.recorded, i.agrees, i.settled_by or ""]
                    for i in self.bill.leases
                ],
                "sites": [f"{one.site}: {one}" for one in self.bill.figures],
                "unsettled": self.bill.unsettled,
            },
        }  # fmt: skip

    def _slots(self) -> dict[str, list[tuple[int, float, float, int]]]:
        """Slots that are bought of each site: first processor, start, end, processors."""
        slots: dict[str, list[tuple[int, float, float, int]]] = {}
        for slot in (purchase.slot for purchase in self.plan.purchases):
            bought = slots.setdefault(slot.site, [])
            first = bought[-1][0] + bought[-1][3] if bought else 0
            # An endless slot ends in null there.
            bought.append((first, slot.start, slot.end, slot.processors))
        return slots

    def _planned(self, kinds: "NameIndex") -> tuple[dict[str, list[TimelineBar]], "NameIndex"]:
        sites = NameIndex()
        for purchase in self.plan.purchases:
            sites.of(purchase.slot.site)
        bars: dict[str, list[TimelineBar]] = {name: [] for name in sites.names}
        for placement in self.plan.placements:
            task = self.tasks[placement.task]
            for first, width in consecutive_runs(placement.processors):
                bars.setdefault(placement.site, []).append(
                    (
                        first,
                        round(placement.start, 3),
                        round(placement.finish, 3),
                        width,
                        kinds.of(kind_of(task)),
                        0,
                        placement.task,
                    )
                )
        return bars, sites

    def _actual(self, kinds: "NameIndex", sites: "NameIndex") -> dict[str, list[TimelineBar]]:
        by_site: dict[str, list[AttemptRecord]] = {name: [] for name in sites.names}
        for record in self.records:
            if record.outcome.end > record.outcome.start:
                sites.of(record.site)
                by_site.setdefault(record.site, []).append(record)
        bars: dict[str, list[TimelineBar]] = {}
        at = self.clock.at
        for site, records in by_site.items():
            # Rounded first: in simulated time a task starts as another one ends, and the last
            # digits of the sums would make two processors of one.
            spans = [
                (
                    round(at(r.outcome.start), 4),
                    round(at(r.outcome.end), 4),
                    self.tasks[r.outcome.task].processors,
                )
                for r in records
            ]
            bars[site] = [
                (
                    first,
                    start,
                    end,
                    width,
                    kinds.of(kind_of(self.tasks[r.outcome.task])),
                    STATUSES.index(str(r.outcome.status)),
                    r.outcome.task,
                )
                # Attempts do not record which processors they held; any numbering without overlaps
                # shows the same load.
                for r, (start, end, _), held in zip(
                    records, spans, number_processors(spans), strict=True
                )
                for first, width in consecutive_runs(held)
            ]
        return bars

    def _end(self) -> float:
        """Return when the last attempt, payment or lease ended, seconds on the page's clock."""
        moments = [r.outcome.end for r in self.records]
        moments += [t.time for t in self.transfers]
        moments += [lease.end for lease in self.leases if lease.end is not None]
        return round(self.clock.at(max(moments, default=0.0)), 3)

    def _failures(self) -> dict[str, Any]:
        bad = [r for r in self.records if r.outcome.status not in _FINE]
        latest = {r.outcome.task: r for r in self.records if r.final}
        # A task that succeeded in another attempt is no failure.
        failed = [r for r in bad if latest.get(r.outcome.task) is r]
        return {
            "count": len(failed),
            "tried_again": len(bad) - len(failed),
            "rows": [
                [
                    self.tasks[r.outcome.task].id,
                    r.outcome.attempt,
                    str(r.outcome.status),
                    r.outcome.reason,
                    _tail(r.outcome),
                ]
                for r in failed[:MOST_FAILURES]
            ],
        }

    def _by_kind(self) -> list[list[Any]]:
        found: dict[str, list[AttemptRecord]] = {}
        for record in self.records:
            if record.outcome.status is Status.SUCCEEDED:
                found.setdefault(kind_of(self.tasks[record.outcome.task]), []).append(record)
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
        # The negated run time: the longest first, and equal ones in the order of the journal.
        done.sort(key=lambda r: r.outcome.start - r.outcome.end)
        return [
            [
                self.tasks[r.outcome.task].id,
                kind_of(self.tasks[r.outcome.task]),
                r.outcome.end - r.outcome.start,
                self.tasks[r.outcome.task].runtime,
                r.outcome.user_seconds + r.outcome.system_seconds,
            ]
            for r in done[:SLOWEST]
        ]


# Rows of the page that grow while a run goes on; all times are seconds on the page's clock.

MoneyPoint = tuple[float, float, float]
"""Time, and what is spent and held from then on, currency units."""


def money_points(
    transfers: Sequence[Transfer], clock: RunClock, last: MoneyPoint | None = None
) -> list[MoneyPoint]:
    """
    Return time, spent and held after each movement of money.

    Parameters
    ----------
    last
        Point before the first of the movements; None: they are the run's first, and the points
        begin with one at its begin.
    """
    points: list[MoneyPoint] = [(0.0, 0.0, 0.0)] if last is None else []
    _, spent, held = (0, 0, 0) if last is None else (to_micros(amount) for amount in last)
    for transfer in transfers:
        if transfer.target.startswith("held:"):
            held += transfer.amount
        if transfer.source.startswith("held:"):
            held -= transfer.amount
        if transfer.target.startswith("site:"):
            spent += transfer.amount
        points.append((round(clock.at(transfer.time), 3), spent / 1e6, held / 1e6))
    return points


def forecast_rows(
    forecasts: Sequence[tuple[RunEvent, ForecastFan]], clock: RunClock
) -> list[list[float]]:
    """
    Return when each forecast was made, and its quantiles.

    These are 10, 50 and 90 % of the end, then of the cost, currency units, where prices are known.
    """
    rows = []
    for _, fan in forecasts:
        # Not the event's time: what is made off the event loop is journalled a little later.
        at = clock.after(fan.at_s)
        end = fan.end_s
        row = [at, *(at + value - fan.at_s for value in (end.p10, end.p50, end.p90))]
        if fan.cost is not None:
            row += [fan.cost.p10, fan.cost.p50, fan.cost.p90]
        rows.append(row)
    return rows


def lease_rows(leases: Sequence[Lease], clock: RunClock) -> list[list[Any]]:
    """Return begin, end (None: open), price a second, fixed price, site, processors of leases."""
    return [
        [
            clock.at(lease.start),
            None if lease.end is None else clock.at(lease.end),
            lease.rate,
            lease.fixed / 1e6,
            lease.site,
            lease.processors,
        ]
        for lease in leases
    ]


def message_rows(events: Sequence[RunEvent], clock: RunClock) -> list[list[Any]]:
    """Return the moment and the text of each message to the user."""
    return [[round(clock.at(one.time), 3), one.text] for one in events if one.kind == "message"]


class NameIndex:
    """Names in order of first use."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def of(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    @property
    def names(self) -> list[str]:
        return list(self._numbers)


_FINE = (Status.SUCCEEDED, Status.CANCELLED)


def kind_of(task: Task) -> str:
    """
    The kind of a task: its name.

    Workflow systems name a task by its kind and a number, as its id: there the
    number says which task, not which kind.
    """
    if task.name == task.id:
        return _NUMBER.sub("", task.name) or "task"
    return task.name or "task"


_NUMBER = re.compile(r"[_.:#-]*(?:ID)?[0-9]+$")


def _tail(outcome: Outcome) -> str:
    """Return the end of a task's stderr, or the number of bytes in the log file."""
    if outcome.stderr_size > len(outcome.stderr):
        return f"({outcome.stderr_size} bytes of stderr, in its log file)"
    return outcome.stderr.decode(errors="replace")[-TAIL:]


# The report as one page that needs nothing else: no network, no other file.


MOST_PLAIN = 1 << 20
"""Bytes of data that a page holds as they are, to be read by eye; more are compressed."""

MOST_TRIED = 4000
"""Plans that were tried and are drawn behind the curve; of more, evenly many."""


def content_of_plan(
    campaign: Campaign, proposal: Mapping[str, Any], front: ParetoFront, plan: Plan | None
) -> ReportContent:
    """
    Return what the page shows of a plan that nobody has run yet.

    Parameters
    ----------
    proposal
        The trade-off curve, as ``bursar plan --json`` prints it.
    plan
        The chosen plan; None where the goal is out of reach.
    """
    plan = plan or Plan.on_the_way(front.currency, front.scheduler)
    summary = {
        "run": campaign.name,
        "campaign": campaign.name,
        "state": "planned",
        "tasks": len(front.workflow.tasks),
        "processors": sum(purchase.slot.processors for purchase in plan.purchases),
        "makespan_s": plan.makespan,
        "cost": plan.cost,
        "currency": front.currency,
        "budget": campaign.goal.budget,
        "deadline_s": campaign.goal.deadline,
        "deadline_met": proposal["feasible"],
    }
    step = -(-len(front.tried) // MOST_TRIED) or 1
    nothing = Bill(
        run="", currency=front.currency, leases=[], tasks=[], total=0, granted=0, held=0,
        unpriced=[],
    )  # fmt: skip
    return ReportContent(
        summary=summary, proposal=proposal, plan=plan, tasks=front.workflow.tasks, records=(),
        transfers=(), leases=(), incarnations=(), events=(), bill=nothing,
        tried=front.tried[::step],
    )  # fmt: skip


def write_report(
    path: Path, data: ReportContent, table: Mapping[str, Sequence[Any]] | None = None
) -> None:
    """
    Writes the page, whole or not at all.

    Parameters
    ----------
    table
        Columns of the table of tasks, see :func:`bursar.report.result_files.table_columns`; None:
        the page has no such table.

    Raises
    ------
    BursarError
        When it cannot be written.
    """
    page = render(data, table)
    with replacing(path) as file:
        file.write(page)


def render(data: ReportContent, table: Mapping[str, Sequence[Any]] | None = None) -> str:
    """Return the page's text, see :func:`write_report`."""
    folder = files("bursar.page").joinpath("assets")

    def read(name: str) -> str:
        return folder.joinpath(name).read_text(encoding="utf-8")

    content = msgspec.json.encode(data.to_page() | ({} if table is None else {"table": table}))
    if len(content) > MOST_PLAIN:
        coding, text = "deflate", base64.b64encode(zlib.compress(content)).decode()
    else:
        # Inside a script element only "</" and "<!--" could end the data early.
        coding, text = "", content.decode().replace("<", "\\u003c")
    parts = {
        "title": html.escape(str(data.summary["run"])),
        "style": read("style.css"),
        "modules": msgspec.json.encode({"imports": _inlined(read, "report.js")}).decode(),
        "coding": coding,
        "data": text,
    }
    page = read("report.html")
    # In one pass: what is put in is never looked at again, whatever it says.
    return re.sub(r"\{\{(\w+)\}\}", lambda mark: parts[mark[1]], page)


def _inlined(read: Callable[[str], str], first: str) -> dict[str, str]:
    """
    Return a module of the page and all that it imports, as an import map.

    A page that is opened as a file may not load modules from other files. So each becomes a
    ``data:`` address under a name, by which the modules import each other.
    """
    found: dict[str, str] = {}
    waiting = [first]
    while waiting:
        name = waiting.pop()
        if f"bursar/{name}" in found:
            continue
        text = read(name)
        waiting += _IMPORT.findall(text)
        content = base64.b64encode(_IMPORT.sub(r'from "bursar/\1"', text).encode()).decode()
        found[f"bursar/{name}"] = f"data:text/javascript;base64,{content}"
    return found


_IMPORT = re.compile(r'from "\./([\w.]+)"')


def data_of_page(page: str) -> dict[str, Any]:
    """Return the data that :func:`render` put into a page."""
    found = re.search(r'<script type="application/json" id="data" data-coding="(\w*)">', page)
    assert found is not None
    text = page[found.end() : page.index("</script>", found.end())]
    content = zlib.decompress(base64.b64decode(text)) if found[1] else text
    data: dict[str, Any] = msgspec.json.decode(content)
    return data
