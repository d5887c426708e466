"""A browser, and a run that never was: planned, carried out late, and paid."""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import bursar
from bursar.dispatch.journal_records import AttemptRecord, RunEvent
from bursar.market.lease import Lease
from bursar.market.ledger import Ledger
from bursar.model.task import Outcome, Status
from bursar.planning.trade_off_solver import plan_option
from bursar.report.bill import make_bill
from bursar.report.plan_documents import plan_to_dict
from bursar.report.run_report import ReportContent

BEGIN = 1_700_000_000.0
"""Of the run, seconds since the epoch."""

LATE = 2.0
"""Seconds by which everything starts later than planned."""


@pytest.fixture
def browse(tmp_path: Path) -> Callable[..., str]:
    """Opens a page without a network; gives the document as its scripts have made it."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no chromium to open the page in")

    def opened(page: Path, width: int = 1280) -> str:
        done = subprocess.run(
            [
                chromium,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-background-networking",
                "--disable-sync",
                "--no-first-run",
                "--host-resolver-rules=MAP * ~NOTFOUND",
                f"--user-data-dir={tmp_path / 'profile'}",
                f"--window-size={width},2000",
                "--dump-dom",
                page.as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout

    return opened


@pytest.fixture(scope="session")
def made_up_run() -> Callable[..., ReportContent]:
    """The maker of such runs."""
    return make_up


def make_up(
    sites: Sequence[bursar.SiteFacts],
    tasks: Sequence[bursar.Task],
    *,
    goal: bursar.Goal | None = None,
    fails: Sequence[int] = (),
    pause: tuple[float, float] | None = None,
) -> ReportContent:
    """
    What the report of a run would show.

    Parameters
    ----------
    sites, tasks, goal
        Of the campaign; prices must be known.
    fails
        Numbers of tasks that fail for good, at their second attempt.
    pause
        When the run was stopped, seconds after its begin, and for how long. Tasks that
        would start later do so in the second life.
    """
    campaign = bursar.Campaign(
        name="made up",
        workflow=bursar.Workflow(tuple(tasks)),
        goal=goal or bursar.Goal(budget=1e6, trade_off=0.0),
    )
    proposal = bursar.plan(campaign, sites)
    option = proposal.choice.option
    assert option is not None
    plan = plan_option(proposal.front, option)
    cut, length = pause or (float("inf"), 0.0)
    ledger = Ledger()
    ledger.grant(BEGIN, "", "", 10**12)
    records = []
    for placement in sorted(plan.placements, key=lambda p: p.task):
        start = BEGIN + LATE + placement.start
        if placement.start >= cut:
            start += length
        end = start + placement.finish - placement.start
        final = Status.FAILED if placement.task in fails else Status.SUCCEEDED
        attempts = [(end, final)]
        if final is Status.FAILED:
            attempts = [((start + end) / 2, final), (end, final)]
        for number, (ended, status) in enumerate(attempts, 1):
            outcome = Outcome(
                task=placement.task,
                attempt=number,
                status=status,
                start=start,
                end=ended,
                stderr=b"x" * 3000 + b"the end" if status is Status.FAILED else b"",
                reason="it exited with status 3" if status is Status.FAILED else "",
            )
            records.append(AttemptRecord(outcome, number == len(attempts), placement.site, ""))
            start = ended
    lives = [(BEGIN, max(r.outcome.end for r in records))]
    if pause is not None:
        ended = max(r.outcome.end for r in records if r.outcome.start < BEGIN + LATE + cut)
        lives = [(BEGIN, ended), (BEGIN + cut + length, lives[0][1])]
    leases: list[Lease] = []
    for begin, end in lives:
        opened = [
            Lease(
                id=f"lease-{number}",
                site=purchase.slot.site,
                processors=purchase.slot.processors,
                unit_price=purchase.slot.unit_price,
                fixed_price=purchase.slot.fixed_price,
                start=begin,
                end=end,
            )
            for number, purchase in enumerate(plan.purchases, len(leases) + 1)
        ]
        due = {lease.id: lease.charge(lease.processors * (end - begin)) for lease in opened}
        for lease in opened:
            ledger.hold(begin, "", "", lease.id, 2 * due[lease.id])
        for lease in opened:
            ledger.settle(end, "", lease.id, lease.site, due[lease.id])
            ledger.release(end, "", lease.id, due[lease.id])
        leases += opened
    records = [
        msgspec.structs.replace(
            record,
            lease=next(
                lease.id
                for lease in leases
                if lease.site == record.site and record.outcome.end <= (lease.end or 0.0)
            ),
        )
        for record in records
    ]
    bill = make_bill("made-up", ledger, leases, campaign.workflow.tasks, records)
    summary: dict[str, Any] = {
        "run": "made-up",
        "campaign": campaign.name,
        "state": "failed" if fails else "finished",
        "tasks": len(tasks),
        "succeeded": len(tasks) - len(fails),
        "failed": len(fails),
        "skipped": 0,
        "not_run": 0,
        "attempts": len(records),
        "makespan_s": lives[-1][1] - lives[-1][0] + (lives[0][1] - BEGIN if pause else 0.0),
        "predicted_makespan_s": plan.makespan,
        "processors": plan.processors,
        "cost": ledger.spent / 1e6,
        "predicted_cost": plan.cost,
        "budget": campaign.goal.budget,
        "currency": plan.currency,
        "deadline_s": None,
        "deadline_met": None,
    }
    return ReportContent(
        summary=summary,
        proposal=plan_to_dict(campaign, proposal.front, proposal.choice),
        plan=plan,
        tasks=campaign.workflow.tasks,
        records=records,
        transfers=ledger.rows,
        leases=leases,
        incarnations=lives,
        events=[RunEvent(BEGIN + 3.0, "message", "worker 2 was lost")],
        bill=bill,
    )
