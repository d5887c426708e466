"""Copies of tasks that take long, in runs of real processes."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from bursar.dispatch.journal import read_journal
from bursar.dispatch.journal_records import OUTRUN, copies_of
from bursar.market.ledger import Ledger
from bursar.model.task import Status

SITES = """\
[site.here]
kind = "local"
processors = 2
unit_price = "3600 SU/core-hour"
"""
# Number 3 stands still unless it is a copy.
STRAGGLING = """\
[campaign]
name = "slow"
command = "if [ {x} = 3 ] && [ -z $BURSAR_COPY ]; then sleep 60; fi; sleep 0.1; \
echo $BURSAR_TASK by x$BURSAR_COPY > {x}.txt"
[parameters]
x = { from = 1, to = 12, step = 1 }
[task]
outputs = ["{x}.txt"]
"""


def _checked(run: Path) -> list[tuple[int, Status, bool]]:
    """Return the attempts of task 3, after checks that hold for every run."""
    journal = read_journal(run / "journal.sqlite")
    succeeded = [o.task for o in journal.attempts if o.status is Status.SUCCEEDED]
    assert sorted(succeeded) == list(range(12))
    assert len(journal.outcomes) == 12
    ledger = Ledger(journal.transfers)
    assert ledger.held == 0
    assert ledger.spent > 0
    for x in range(1, 13):
        by = "x1" if x == 3 else "x"
        assert (run / "files" / f"{x}.txt").read_text() == f"{x - 1} by {by}\n"
    return [
        (r.outcome.attempt, r.outcome.status, r.final)
        for r in journal.records
        if r.outcome.task == 2
    ]


def test_a_run_ends_with_the_copy_of_the_task_that_stands_still(folder: Any) -> None:
    folder.write("c.toml", STRAGGLING)
    folder.write("s.toml", SITES)
    summary = folder.json("run", "c.toml", "--sites", "s.toml", "--copies", "--history", "none")

    assert _checked(folder.run) == [(1, Status.CANCELLED, False), (2, Status.SUCCEEDED, True)]
    assert summary["copies"]["made"] == summary["copies"]["faster"] == 1
    assert summary["copies"]["amount_micros"] > 0
    bill = json.loads((folder.run / "bill.json").read_text())
    assert bill["copies"] == summary["copies"]
    assert bill["total"] == summary["cost"]
    # The copy is a part of what its task came to, and so is the attempt that was stopped.
    (item,) = [task for task in bill["tasks"] if task["attempts"] == 2]
    assert item["amount_micros"] - item["repeated_micros"] == summary["copies"]["amount_micros"]
    why = folder.bursar("why", folder.run.name, item["task"])
    assert "a copy on a free processor: attempt 1 had run for" in " ".join(why.stdout.split())
    rows = [json.loads(line) for line in (folder.run / "results.jsonl").read_text().splitlines()]
    assert [row["status"] for row in rows] == ["succeeded"] * 12


def test_without_the_option_nothing_is_copied(folder: Any) -> None:
    folder.write("c.toml", STRAGGLING.replace("sleep 60", "sleep 2"))
    folder.write("s.toml", SITES)
    summary = folder.json("run", "c.toml", "--sites", "s.toml", "--history", "none")

    assert summary["attempts"] == 12
    assert "copies" not in summary


def test_a_strategy_makes_no_copies_and_says_so(folder: Any) -> None:
    folder.write("c.toml", STRAGGLING.replace("sleep 60", "sleep 0.1") + "runtime = 0.1\n")
    folder.write("s.toml", SITES)
    goal = ("--deadline", "5 min", "--budget", "1000 SU", "--strategy", "cost")
    done = folder.bursar("run", "c.toml", "--sites", "s.toml", "--copies", *goal)

    told = done.stderr
    assert told.count("no copies are made: a strategy or the broker sends each task by itself") == 1


@pytest.mark.parametrize("after", [0.0, 0.3, 0.5])
def test_a_run_that_is_killed_while_a_copy_runs_has_each_result_once(
    folder: Any, after: float
) -> None:
    folder.write("c.toml", STRAGGLING.replace("sleep 0.1", "sleep 0.4"))
    folder.write("s.toml", SITES)
    process = folder.start("run", "c.toml", "--sites", "s.toml", "--copies", "--history", "none")
    path = lambda: folder.run / "journal.sqlite"  # noqa: E731
    folder.until(lambda: list(folder.path.glob("runs/*/journal.sqlite")), process)
    folder.until(lambda: copies_of(read_journal(path()).events), process)
    time.sleep(after)
    if process.poll() is None:  # the machine may be fast, or busy
        os.kill(process.pid, signal.SIGKILL)
        process.wait(30)
        folder.bursar("run", "--resume", folder.run.name)

    attempts = _checked(folder.run)
    assert sum(final for _, _, final in attempts) == 1
    assert all(r.outcome.reason != OUTRUN or not r.final for r in read_journal(path()).records)
