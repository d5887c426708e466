"""A run read back: what was planned, what happened, what it cost."""

import contextlib
import math
import os
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from bursar.dispatch.folders import folder_name
from bursar.dispatch.journal import (
    JournalAdditions,
    count_statuses,
    is_written,
    read_journal,
)
from bursar.dispatch.journal_records import (
    REUSED,
    AttemptRecord,
    JournalState,
    ReusedResults,
    copies_of,
    purchases_for_copies,
)
from bursar.market.lease import Lease
from bursar.market.ledger import Ledger
from bursar.market.purchasing import DISPUTE, DisputeRecord
from bursar.model.campaign import Campaign, UnreachableTasks
from bursar.model.errors import BursarError, InputError
from bursar.model.money import from_micros
from bursar.model.plan import Plan
from bursar.model.task import Outcome, Status, Task
from bursar.provisioning.accounting import USAGE, PilotUsage
from bursar.report.bill import Bill, make_bill
from bursar.report.failures import FailureGroup, failures_to_dict, group_failures
from bursar.runs.amendments import AMENDED, expected_after
from bursar.runs.folder import RunFolder, RunManifest, RunState
from bursar.runs.forecasting.journalled import fans_of
from bursar.runs.incarnations import RunIncarnation, incarnations_of, leases_of
from bursar.runs.kept.cleaning import size_of
from bursar.runs.kept.labels import read_labels
from bursar.runs.plan_file import read_plan

EXIT_STATUS: dict[RunState, int] = {
    "new": 1,
    "running": 1,
    "finished": 0,
    "failed": 1,
    "budget-stopped": 4,
    "goal-stopped": 4,
    "probed": 130,
    "interrupted": 130,
    "unsettled": 6,
    "cancelled": 130,
}
DEADLINE_MISSED = 5
_CLOSE = 1e-9
"""Relative tolerance for rounding in sums of times."""


@dataclass(frozen=True)
class RunRecord:
    """
    Everything a run's folder tells, each part read when first asked for.

    Parameters
    ----------
    info
        Content of ``run.json``, with the true state.
    journal
        Outcomes, movements of money and events.
    """

    folder: RunFolder
    info: RunManifest
    journal: JournalState = field(repr=False)

    def read_on(self, more: JournalAdditions) -> "RunRecord":
        """
        Return the record with what its journal had more later.

        The campaign is read again only if the run's goal may have changed; the plan stays.

        Parameters
        ----------
        more
            See :func:`bursar.dispatch.journal.read_additions`.
        """
        before = self.journal
        later = RunRecord(
            self.folder,
            effective_manifest(self.folder),
            replace(
                before,
                records=before.records + more.records,
                transfers=before.transfers + more.transfers,
                events=before.events + more.events,
            ),
        )
        # Cached properties keep their values there.
        known = vars(self)
        amended = any(one.kind == AMENDED for one in more.events)
        names = ("planned",) if amended else ("planned", "campaign")
        vars(later).update({name: known[name] for name in names if name in known})
        return later

    @cached_property
    def campaign(self) -> Campaign:
        """The compiled campaign, with the present goal."""
        return self.folder.read_campaign()

    @cached_property
    def planned(self) -> tuple[dict[str, Any], Plan]:
        """The proposal as printed, and the chosen plan."""
        return read_plan(self.folder)

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger, made from the journalled movements of money."""
        return Ledger(self.journal.transfers)

    @cached_property
    def leases(self) -> tuple[Lease, ...]:
        """Every lease that there was, in order, without requests that have not begun."""
        return tuple(one for one in leases_of(self.journal.events).values() if not one.asked)

    @cached_property
    def unsettled(self) -> tuple[str, ...]:
        """
        Leases and requests that are no longer held but not settled, because the sites have not
        reported their cost or the run was killed. Empty while the run goes on.
        """
        if self.info.state in ("new", "running"):
            return ()
        return tuple(i for i, one in leases_of(self.journal.events).items() if one.end is None)

    @cached_property
    def recorded(self) -> dict[str, PilotUsage]:
        """The sites' own records, by lease."""
        found = {}
        folder = self.folder.pilots
        for path in sorted(folder.glob(f"*{USAGE}")) if folder.is_dir() else ():
            for line in path.read_bytes().splitlines():
                with contextlib.suppress(msgspec.MsgspecError):  # a torn last line
                    usage = msgspec.json.decode(line, type=PilotUsage)
                    found[usage.pilot] = usage
        return found

    @cached_property
    def recorded_at(self) -> dict[str, str]:
        """Site of each lease with a record of a site, as far as leases and requests tell."""
        sites = {lease.id: lease.site for lease in leases_of(self.journal.events).values()}
        return {pilot: sites[pilot] for pilot in self.recorded if pilot in sites}

    @cached_property
    def disputes(self) -> list[DisputeRecord]:
        """Bills of sites that their own signed records, or our count, do not bear out."""
        return [
            msgspec.json.decode(event.text, type=DisputeRecord)
            for event in self.journal.events
            if event.kind == DISPUTE
        ]

    @cached_property
    def bill(self) -> Bill:
        """The run's cost so far."""
        bill = make_bill(
            self.folder.name,
            self.ledger,
            self.leases,
            self.campaign.workflow.tasks,
            self.attempts,
            self.recorded,
            self.recorded_at,
            self.disputes,
            {(copy.task, copy.attempt) for copy in copies_of(self.journal.events)},
            purchases_for_copies(self.journal.events),
        )
        rates = {site.name: site.exchange for site in self.info.sites if site.exchange}
        figures = [
            msgspec.structs.replace(one, exchange=rates.get(one.site, UNSET))
            for one in bill.figures
        ]
        return msgspec.structs.replace(bill, figures=figures, unsettled=list(self.unsettled))

    @cached_property
    def incarnations(self) -> list[RunIncarnation]:
        """Begin and end of each incarnation."""
        return incarnations_of(self.journal.events)

    @cached_property
    def final(self) -> dict[int, AttemptRecord]:
        """The final record of each task that has one."""
        return {r.outcome.task: r for r in self.journal.records if r.final}

    @cached_property
    def attempts(self) -> list[AttemptRecord]:
        """The record of each attempt of this run, without results of earlier runs."""
        return [record for record in self.journal.records if not record.is_reused]

    @cached_property
    def reused(self) -> dict[int, str]:
        """Run and task that each reused result was taken from, by the task's number."""
        found: dict[int, str] = {}
        for event in self.journal.events:
            if event.kind == REUSED:
                taken = msgspec.json.decode(event.text, type=ReusedResults)
                found |= {number: f"{taken.run} {task}" for number, task in taken.tasks}
        return found

    @property
    def outcomes(self) -> Iterator[Outcome]:
        """Final outcomes, by task."""
        return (record.outcome for record in self.final.values())

    @cached_property
    def skipped(self) -> frozenset[int]:
        """Tasks that cannot run, as an ancestor ended without success; by number."""
        return self._skipped_by(self.final.values())

    def _skipped_by(self, ends: Iterable[AttemptRecord]) -> frozenset[int]:
        """Return the tasks that cannot run when the final attempts are these."""
        unreachable = UnreachableTasks(self.campaign.workflow)
        bad = [r.outcome.task for r in ends if r.outcome.status is not Status.SUCCEEDED]
        return frozenset(child for task in bad for child in unreachable.end(task))

    @cached_property
    def failures(self) -> list[FailureGroup]:
        """Tasks that failed for good, those that failed alike together."""
        tasks = self.campaign.workflow.tasks
        ends = sorted(self.final.values(), key=lambda record: record.outcome.task)
        return group_failures(
            tasks, ends, lambda r: read_error(self.folder, tasks[r.outcome.task], r)
        )

    @cached_property
    def all_ended(self) -> float | None:
        """
        Moment at which all tasks had ended or could not run any more; None: not yet.

        Later attempts, of failed tasks that the user asked for again, do not move the moment.
        """
        ends = sorted((r for r in self.journal.records if r.final), key=lambda r: r.outcome.end)
        tasks = self.info.tasks
        bounds = [begin for begin, _ in self.incarnations[1:]] + [math.inf]
        for bound in bounds:
            latest = {r.outcome.task: r for r in ends if r.outcome.end <= bound}
            if (
                len(latest) < tasks
                and len(latest.keys() | self._skipped_by(latest.values())) < tasks
            ):
                continue
            return max((r.outcome.end for r in latest.values()), default=None)
        return None

    @property
    def makespan(self) -> float | None:
        """
        Seconds from the begin to the last end of a task.

        For a run of several incarnations, the sum over them: the time between does
        not count. None when nothing has run.
        """
        incarnations = self.incarnations
        if not incarnations or not self.attempts:
            # Nothing ran; results of an earlier run are there at once.
            return 0.0 if self.info.reused and self.info.reused == self.info.tasks else None
        begins = [begin for begin, _ in incarnations]
        last = begins.copy()
        for record in self.attempts:
            incarnation = max(0, bisect_right(begins, record.outcome.end) - 1)
            last[incarnation] = max(last[incarnation], record.outcome.end)
        return sum(last) - sum(begins)


def log_files(
    folder: RunFolder, number: int, task: str, record: AttemptRecord
) -> tuple[Path | None, Path | None]:
    """Return the files with an attempt's stdout and stderr; None for streams in the journal."""
    outcome = record.outcome
    stem = f"{folder_name(number, task)}.{outcome.attempt}"
    return (
        # A stream that was too long for the journal has its size there, and no content.
        folder.logs / f"{stem}.stdout" if outcome.stdout_size > len(outcome.stdout) else None,
        folder.logs / f"{stem}.stderr" if outcome.stderr_size > len(outcome.stderr) else None,
    )


_END = 4096
"""Bytes of standard error that are looked at to explain a failure."""


def read_error(folder: RunFolder, task: Task, record: AttemptRecord) -> bytes:
    """Return the end of an attempt's standard error; empty where its file cannot be read."""
    _, file = log_files(folder, record.outcome.task, task.id, record)
    if file is None:
        return record.outcome.stderr[-_END:]
    try:
        with file.open("rb") as source:
            source.seek(-min(_END, file.stat().st_size), os.SEEK_END)
            return source.read()
    except OSError:
        return b""


def read_run(folder: RunFolder) -> RunRecord:
    """
    Read the record of a run, also while the run goes on.

    Raises
    ------
    BursarError
        When part of the record cannot be read.
    """
    return RunRecord(folder, effective_manifest(folder), read_journal(folder.journal_file))


def integrity_warning(record: RunRecord) -> str:
    """Return in one line why changes in a run's journal could go unnoticed; empty: they cannot."""
    if record.journal.seal == "valid":
        return ""
    why = "has no seal of this user's: whoever recomputed its digests would not be found"
    return f"{record.folder.journal_file}: {why}"


def effective_manifest(folder: RunFolder) -> RunManifest:
    """
    Read ``run.json``, with the state that the journal's lock tells.

    That is ``interrupted`` for a run whose process was killed, and ``running`` for one that is
    being resumed.
    """
    info = folder.read_info()
    # The lock ends with its process, also by kill -9, when nobody writes that the run has ended.
    if not is_written(folder.journal_file):
        if info.state in ("new", "running"):
            info.state = "interrupted"
    elif info.state != "new":
        info.state = "running"
    return info


def summarise(record: RunRecord) -> dict[str, Any]:
    """Return the key figures of a run, the output of ``bursar run --json``."""
    info, ledger = record.info, record.ledger
    proposal, plan = record.planned
    goal = record.campaign.goal
    statuses = [r.outcome.status for r in record.final.values()]
    succeeded = sum(s is Status.SUCCEEDED for s in statuses)
    failed = len(statuses) - succeeded
    makespan = record.makespan
    amended_finish, amended_cost = expected_after(record.journal.events)
    unpriced = any(not lease.is_priced for lease in record.leases)
    late = is_late(record)
    figures = record.bill.figures
    recorded = [one.recorded for one in figures if one.recorded is not None]
    exit_status = EXIT_STATUS[info.state]
    met = None if late is None else not late
    made = record.bill.copies
    copies = {} if made is None else {"copies": msgspec.to_builtins(made)}
    return {
        "run": record.folder.name,
        "folder": str(record.folder.path),
        "campaign": info.campaign,
        "state": info.state,
        "exit_status": DEADLINE_MISSED if exit_status == 0 and late else exit_status,
        "tasks": info.tasks,
        "succeeded": succeeded,
        "failed": failed,
        "skipped": len(record.skipped),
        "not_run": info.tasks - len(statuses) - len(record.skipped),
        "reused": info.reused,
        "reused_from": info.reused_from or None,
        "attempts": len(record.attempts),
        "makespan_s": makespan,
        "predicted_makespan_s": plan.makespan if amended_finish is None else amended_finish,
        "processors": plan.processors,
        "cost": None if unpriced else from_micros(ledger.spent),
        "predicted_cost": plan.cost if amended_cost is None else amended_cost,
        "held": from_micros(ledger.held),
        "budget": goal.budget,
        "account": None if info.payer is None else info.payer.account,
        "currency": plan.currency,
        "billed_cpu_s": sum(one.billed for one in figures),
        "recorded_cpu_s": sum(recorded) if recorded else None,
        "agrees": all(one.agrees is not False for one in figures) if recorded else None,
        "differing": [name for one in figures for name in one.differing],
        "unsettled": list(record.unsettled),
        "deadline_s": goal.deadline,
        "deadline_met": met,
        "forecast": fans[-1][1].to_dict() if (fans := fans_of(record.journal.events)) else None,
        "reason": proposal.get("reason", ""),
        "failures": failures_to_dict(record.failures),
    } | copies


def is_late(record: RunRecord) -> bool | None:
    """
    Return whether the deadline, counted from the run's creation, was missed.

    None without a deadline, and as long as neither all tasks have ended nor the deadline has
    passed.
    """
    deadline = record.campaign.goal.deadline
    if deadline is None:
        return None
    if not record.incarnations:  # not begun yet, or all results were there before
        return None if record.all_ended is None else False
    first, end = record.incarnations[0][0], record.all_ended
    # A plan that meets its deadline exactly must not miss it by rounding in simulated time.
    longest = deadline * (1 + _CLOSE)
    if end is not None:
        return end - first > longest
    if record.info.state in ("new", "running", "probed", "interrupted"):
        now = time.time()
    else:  # stopped for good unless somebody amends the goal; a simulation has its own clock
        ends = [r.outcome.end for r in record.attempts]
        now = max(ends + [end for _, end in record.incarnations if end is not None], default=first)
    return True if now - first > longest else None


def summaries(base: Path, *, sizes: bool = False) -> list[dict[str, Any]]:
    """
    Return one row for each run under a folder, the oldest first.

    Parameters
    ----------
    sizes
        Whether each row has ``size``, the bytes that the run takes on disk.
    """
    rows: list[dict[str, Any]] = []
    users: dict[str, list[str]] = {}  # runs that go on and reuse results of a run
    for folder in RunFolder.all(base):
        row = summary_row(folder)
        if row is None:
            continue
        origin = row.pop("reused_from")
        if origin and row["state"] in ("new", "running"):
            users.setdefault(origin, []).append(folder.name)
        rows.append(row)
        if sizes:
            row["size"] = size_of(folder.path)
    for row in rows:
        row["used_by"] = users.get(row["run"], [])
    return rows


def summary_row(folder: RunFolder) -> dict[str, Any] | None:
    """Return a run in short, with counts of its tasks; None: its folder cannot be read."""
    counts: dict[str, int] = {}
    try:
        info = effective_manifest(folder)
    except BursarError:
        return None
    state: str = info.state
    try:
        counts = count_statuses(folder.journal_file)
    except InputError:
        # Shown and not left out: the user must hear of it.
        state = "damaged"
    except BursarError:
        return None
    succeeded = counts.get(Status.SUCCEEDED, 0)
    labels = read_labels(folder.path)
    return {
        "run": folder.name,
        "campaign": info.campaign,
        "state": state,
        "tasks": info.tasks,
        "succeeded": succeeded,
        "failed": sum(counts.values()) - succeeded,
        "created": info.created,
        "finished": info.finished,
        "tags": labels.tags,
        "note": labels.note,
        "reused_from": info.reused_from,
    }
