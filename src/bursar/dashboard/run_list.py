"""The list of a user's runs, read again only where something has changed."""

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bursar.dashboard.site_use import MOST_ROWS, PriceRow, RunPurchases, invoice_of
from bursar.dispatch.journal import JournalPosition, is_written, read_additions
from bursar.dispatch.journal_records import RunEvent
from bursar.model.errors import BursarError
from bursar.model.money import from_micros
from bursar.report.run_report import MoneyPoint, RunClock, money_points
from bursar.runs.folder import RunFolder
from bursar.runs.forecasting.journalled import fans_of
from bursar.runs.incarnations import BEGIN, END, incarnations_of
from bursar.runs.plan_file import read_plan
from bursar.runs.run_record import summary_row

_Stamp = tuple[int, int] | None
"""Time of change and size of a file; None: there is none."""


@dataclass(slots=True)
class _Listed:
    """What is known of one run."""

    folder: RunFolder
    row: dict[str, Any]
    stamps: list[_Stamp] = field(default_factory=list)
    plan_stamps: list[_Stamp] = field(default_factory=list)
    position: JournalPosition = field(
        default_factory=lambda: JournalPosition(attempts=None, starts=None)
    )
    money: MoneyPoint = (0.0, 0.0, 0.0)
    purchases: RunPurchases = field(default_factory=RunPurchases)
    lives: list[RunEvent] = field(default_factory=list)
    invoice: dict[str, Any] | None = None
    invoice_stamp: _Stamp = None

    def read_invoice(self) -> dict[str, Any] | None:
        """Read the run's bill, where that has changed."""
        stamp = _stamp(self.folder.bill_file)
        if stamp != self.invoice_stamp:
            self.invoice, self.invoice_stamp = invoice_of(self.folder.bill_file), stamp
        return self.invoice

    def read(self) -> bool:
        """Read what has changed; return whether the row is another one."""
        files, journal = self.folder, self.folder.journal_file
        log = journal.with_name(journal.name + "-wal")
        labels = files.path / "labels.json"
        stamps = [_stamp(one) for one in (files.info_file, journal, log, labels)]
        live = is_written(journal)
        before = dict(self.row)
        if stamps == self.stamps and live == self.row.get("live"):
            # Open leases cost more with each second, without a new row of the journal.
            if live:
                self._count_money()
            return self.row != before
        self.stamps = stamps
        self.row |= (summary_row(files) or {"state": "damaged"}) | {"live": live}
        try:
            self._read_goal()
            self._read_money()
        except BursarError:
            self.row["state"] = "damaged"
        return self.row != before

    def _read_goal(self) -> None:
        """Read goal and currency, which seldom change, from files that may be large."""
        files = self.folder
        stamps = [_stamp(one) for one in (files.compiled_file, files.plan_file)]
        if stamps == self.plan_stamps:
            return
        goal = files.read_campaign().goal
        self.row |= {
            "budget": goal.budget,
            "deadline_s": goal.deadline,
            "currency": read_plan(files)[1].currency,
        }
        self.plan_stamps = stamps

    def _read_money(self) -> None:
        """Read what was spent and forecast since the last time."""
        more = read_additions(self.folder.journal_file, self.position)
        points = money_points(more.transfers, RunClock(()), self.money)
        self.money = points[-1] if points else self.money
        fans = fans_of(more.events)
        if fans:
            self.row["forecast"] = fans[-1][1].to_dict()
        self.purchases.take_in(more.events, more.transfers)
        self.position = more.position
        self.lives += [event for event in more.events if event.kind in (BEGIN, END)]
        took = sum(end - begin for begin, end in incarnations_of(self.lives))
        # Of a simulated run the time that was simulated, not what that took.
        self.row["took_s"] = took if self.lives and math.isfinite(took) else None
        self._count_money()

    def _count_money(self) -> None:
        """Count what open leases have cost by now as spent, and no longer as held."""
        _, paid, held = self.money
        # How long the leases of a killed process went on is found when the run is resumed.
        owed = from_micros(self.purchases.owed(time.time())) if self.row["live"] else 0.0
        self.row |= {"spent": round(paid + owed, 6), "held": round(max(0.0, held - owed), 6)}


class RunList:
    """
    The runs of a folder as rows, the newest first.

    Parameters
    ----------
    base
        Folder that holds the runs.
    """

    def __init__(self, base: Path) -> None:
        self._base = base
        self._listed: dict[str, _Listed] = {}

    def read(self) -> tuple[list[dict[str, Any]], set[str]]:
        """
        Return all rows, and the names of runs whose row is new or has changed.

        A row has the fields of :func:`bursar.runs.run_record.summary_row`, and ``live``,
        ``currency``, ``spent`` (what open leases have accrued included), ``held`` (what is set
        aside beside that), ``budget``, ``deadline_s``, ``took_s`` (by the run's clock; None while
        it goes on), and ``forecast``, the last one.
        """
        found: dict[str, _Listed] = {}
        changed = set()
        for folder in RunFolder.all(self._base):
            listed = self._listed.get(folder.name)
            if listed is None:
                row = summary_row(folder)
                if row is None:
                    continue
                row |= dict.fromkeys(
                    ("currency", "spent", "held", "budget", "deadline_s", "took_s")
                )
                row["forecast"] = None
                listed = _Listed(folder, row)
            if listed.read():
                changed.add(folder.name)
            found[folder.name] = listed
        self._listed = found
        rows = [dict(one.row) for one in found.values()]
        return sorted(rows, key=lambda row: -row["created"]), changed

    def prices(self) -> list[tuple[str, PriceRow]]:
        """Return the prices that runs agreed on, each with its site, as of the last reading."""
        return [row for name, one in self._listed.items() for row in one.purchases.prices(name)]

    def pilots(self, now: float) -> list[dict[str, Any]]:
        """Return requests and processors of the runs that go on, as of the last reading."""
        live = {name: one for name, one in self._listed.items() if one.row.get("live")}
        return [row for name, one in live.items() for row in one.purchases.pilots(name, now)]

    def live(self) -> list[RunFolder]:
        """Return the runs that go on, as of the last reading."""
        return [one.folder for one in self._listed.values() if one.row.get("live")]

    def money(self) -> dict[str, Any]:
        """Return ``agreements`` and ``invoices`` of the runs, the newest first."""
        agreements = [a for n, one in self._listed.items() for a in one.purchases.agreements(n)]
        agreements.sort(key=lambda row: -row["start"])
        runs = sorted(self._listed.values(), key=lambda one: -one.row["created"])[:MOST_ROWS]
        invoices = [found for one in runs if (found := one.read_invoice()) is not None]
        return {"agreements": agreements[:MOST_ROWS], "invoices": invoices}


def _stamp(file: Path) -> _Stamp:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
