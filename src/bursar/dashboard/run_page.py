"""The page of one run that goes on: read once, then read on, with what is new told apart."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from bursar.dispatch.journal import (
    JournalAdditions,
    JournalPosition,
    is_written,
    read_additions,
)
from bursar.dispatch.journal_records import AttemptRecord, AttemptStart
from bursar.report.run_report import (
    STATUSES,
    RunClock,
    forecast_rows,
    kind_of,
    lease_rows,
    message_rows,
    money_points,
)
from bursar.runs.explanations import allocation_reports, bounds
from bursar.runs.folder import RunFolder
from bursar.runs.forecasting.journalled import fans_of
from bursar.runs.run_record import RunRecord, read_run
from bursar.runs.run_reports import content_of_run

PageEvent = tuple[str, dict[str, Any]]
"""Name of an event and what it says, see :meth:`RunPage.read_on`."""

_ROUNDING = 1e-4
"""Seconds by which times of the page are rounded."""


class RunPage:
    """
    Everything that the page shows of a run, as far as the journal was read.

    Parameters
    ----------
    folder
        Folder of the run, which is read whole.

    Raises
    ------
    BursarError
        When part of the run cannot be read.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._record = read_run(folder)
        content = content_of_run(self._record)
        self._page = content.to_page() | {
            "allocations": _allocations(self._record),
            "bounds": bounds(self._record),
            "running": [],
        }
        self._kinds = {name: number for number, name in enumerate(self._page["kinds"])}
        self._lanes = {site: LaneKeeper(bars) for site, bars in self._page["actual"].items()}
        journal = self._record.journal
        self._position = JournalPosition(
            len(journal.records), len(journal.transfers), len(journal.events)
        )
        self._attempts = {(r.outcome.task, r.outcome.attempt) for r in journal.records}
        self.running: dict[int, AttemptStart] = {}
        """The last start of each task that runs, by the task's number."""
        self.read_on()

    @property
    def record(self) -> RunRecord:
        """The run as far as it was read."""
        return self._record

    @property
    def version(self) -> int:
        """Number of rows of the journal that the page has; it only grows."""
        return sum(number or 0 for number in self._position)

    @property
    def is_live(self) -> bool:
        """Whether a process carries the run out now."""
        return is_written(self._folder.journal_file)

    def document(self) -> Mapping[str, Any]:
        """
        Return the page's data.

        These are the fields of :meth:`bursar.report.run_report.ReportContent.to_page`, the
        ``version``, whether the run is ``live``, which tasks are ``running``, and
        ``allocations``, what was asked of sites, and ``bounds``, by site how many bounds on waits
        were given and how many held.
        """
        live = self.is_live
        more = {"version": self.version, "live": live}
        # What a killed process had started is not known to have ended.
        return self._page | more | ({} if live else {"running": []})

    def read_on(self) -> list[PageEvent]:
        """
        Read what the journal has more, add it to the page, and return it as events.

        ``running``: number, start, site and processors of each task that runs. ``ended``: bars of
        attempts, with all names of sites and kinds. ``money``: points, and all leases.
        ``forecast``, ``message``: rows.

        Raises
        ------
        BursarError
            When the journal cannot be read.
        """
        more = read_additions(self._folder.journal_file, self._position)
        if more.position == self._position:
            return []
        self._position = more.position
        self._record = self._record.read_on(more)
        clock = RunClock(self._record.incarnations)
        found: list[PageEvent] = [("running", self._note_running(more, clock))]
        attempts = [one for one in more.records if not one.is_reused]
        if attempts:
            found.append(("ended", self._add_bars(attempts, clock)))
        if more.transfers or more.events:
            points = money_points(more.transfers, clock, self._page["money"][-1])
            self._page["money"] += points
            leases = self._page["leases"] = lease_rows(self._record.leases, clock)
            ends = [point[0] for point in points] + [row[1] for row in leases if row[1] is not None]
            end = self._page["end"] = round(max([self._page["end"], *ends]), 3)
            found.append(("money", {"points": points, "leases": leases, "end": end}))
        for name, field, rows in (
            ("forecast", "forecast", forecast_rows(fans_of(more.events), clock)),
            ("message", "messages", message_rows(more.events, clock)),
        ):
            if rows:
                self._page[field] += rows
                found.append((name, {"rows": rows}))
        return found

    def refresh(self) -> PageEvent:
        """
        Compute anew what the page shows of all attempts together; return it as an event.

        The work grows with the run. ``parts`` has the summary, failures, kinds, longest tasks,
        bill, allocations, bounds on waits, and the pauses of the run.
        """
        content = content_of_run(self._record)
        parts = content.aggregates() | {
            "summary": dict(content.summary),
            "allocations": _allocations(self._record),
            "bounds": bounds(self._record),
            "pauses": content.clock.pauses,
        }
        self._page |= parts
        return "parts", parts

    def _note_running(self, more: JournalAdditions, clock: RunClock) -> dict[str, Any]:
        self._attempts |= {(one.outcome.task, one.outcome.attempt) for one in more.records}
        for start in more.starts:
            if start.room:
                self.running[start.task] = start
            else:
                self.running.pop(start.task, None)
        for task, start in list(self.running.items()):
            if (task, start.attempt) in self._attempts:
                del self.running[task]
        now = self._page["running"] = [
            [one.task, round(clock.at(one.time), 3), one.site, one.processors]
            for one in self.running.values()
        ]
        return {"rows": now}

    def _add_bars(self, attempts: Sequence[AttemptRecord], clock: RunClock) -> dict[str, Any]:
        tasks = self._record.campaign.workflow.tasks
        added: dict[str, list[list[Any]]] = defaultdict(list)
        end = self._page["end"]
        # By their starts, so that the lanes of a site fill as its processors did.
        for one in sorted(attempts, key=lambda record: record.outcome.start):
            outcome, task = one.outcome, tasks[one.outcome.task]
            if outcome.end <= outcome.start:
                continue
            if one.site not in self._page["sites"]:
                self._page["sites"].append(one.site)
                self._page["processors"].append(0)
            start, finish = (round(clock.at(at), 4) for at in (outcome.start, outcome.end))
            kind = self._kinds.setdefault(kind_of(task), len(self._kinds))
            status = STATUSES.index(str(outcome.status))
            keeper = self._lanes.setdefault(one.site, LaneKeeper(()))
            for lane, width in keeper.take(start, finish, task.processors):
                added[one.site].append([lane, start, finish, width, kind, status, outcome.task])
            end = max(end, finish)
        for site, bars in added.items():
            self._page["actual"].setdefault(site, []).extend(bars)
        self._page["kinds"] = list(self._kinds)
        self._page["end"] = end
        return {
            "sites": self._page["sites"],
            "kinds": self._page["kinds"],
            "processors": self._page["processors"],
            "end": end,
            "bars": added,
        }


class LaneKeeper:
    """
    Gives bars of a site's timeline their lanes, one after the other.

    Attempts do not say which processors they had, and come in the order of their ends. So a lane
    may be free in the picture that was not: the lanes show how many processors were busy, and
    :func:`bursar.planning.building.number_processors` numbers them anew when the run has ended.

    Parameters
    ----------
    bars
        Bars that are there already: first lane, start, end, lanes.
    """

    def __init__(self, bars: Sequence[Sequence[Any]]) -> None:
        ends: dict[int, float] = {}
        for first, _, end, width, *_ in bars:
            for lane in range(first, first + width):
                ends[lane] = max(ends.get(lane, 0.0), end)
        # Ends of lanes in order, each with its lane: what was free last is looked for by halving.
        self._free = sorted(
            (ends.get(lane, 0.0), lane) for lane in range(max(ends, default=-1) + 1)
        )

    def take(self, start: float, end: float, width: int) -> list[tuple[int, int]]:
        """Return the lanes of one attempt: the first of each run of neighbours, and how many."""
        lanes: list[int] = []
        for _ in range(width):
            # The lane that was free for the shortest time, so that long attempts find room later.
            place = bisect_right(self._free, (start + _ROUNDING, len(self._free)))
            lanes.append(self._free.pop(place - 1)[1] if place else len(self._free) + len(lanes))
        for lane in lanes:
            self._free.insert(bisect_right(self._free, (end, lane)), (end, lane))
        lanes.sort()
        runs: list[tuple[int, int]] = []
        for lane in lanes:
            if runs and sum(runs[-1]) == lane:
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((lane, 1))
        return runs


def _allocations(record: RunRecord) -> list[dict[str, Any]]:
    return [one.to_dict() for one in allocation_reports(record)]
