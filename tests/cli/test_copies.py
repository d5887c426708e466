"""Copies of tasks that take long, in runs of real processes."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.testgrid.clusters import need_slurm

from bursar.dispatch.journal import read_journal
from bursar.dispatch.journal_records import OUTRUN, copies_of, purchases_for_copies
from bursar.market.ledger import Ledger
from bursar.model.task import Status
from bursar.runs.incarnations import leases_of

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


def _checked(run: Path, slow: int = 3) -> list[tuple[int, Status, bool]]:
    """Return the attempts of the slow task, after checks that hold for every run."""
    journal = read_journal(run / "journal.sqlite")
    succeeded = [o.task for o in journal.attempts if o.status is Status.SUCCEEDED]
    assert sorted(succeeded) == list(range(12))
    assert len(journal.outcomes) == 12
    ledger = Ledger(journal.transfers)
    assert ledger.held == 0
    assert ledger.spent > 0
    for x in range(1, 13):
        by = "x1" if x == slow else "x"
        assert (run / "files" / f"{x}.txt").read_text() == f"{x - 1} by {by}\n"
    return [
        (r.outcome.attempt, r.outcome.status, r.final)
        for r in journal.records
        if r.outcome.task == slow - 1
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


@pytest.mark.ci
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


@pytest.mark.ci
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


# Number 9 stands still: before it enough have ended, one after the other, to know their times.
LATE = STRAGGLING.replace("{x} = 3", "{x} = 9")
BUYING = """\
[site.here]
kind = "local"
processors = 2
unit_price = "3600 SU/core-hour"
"""


def _bought(run: Path) -> list[str]:
    """Return the leases that were bought for copies, after checks that hold for every run."""
    journal = read_journal(run / "journal.sqlite")
    bought = purchases_for_copies(journal.events)
    leases = leases_of(journal.events)
    for name in bought.keys() & leases.keys():
        assert leases[name].end is not None, f"{name} was not given back"
    others = [r for r in journal.records if r.lease in bought and r.outcome.task != 8]
    assert others == []
    return [name for name in bought if name in leases]


@pytest.mark.ci
def test_a_processor_is_bought_for_a_copy_where_none_is_idle(folder: Any) -> None:
    folder.write("c.toml", LATE)
    folder.write("s.toml", BUYING)
    words = ("run", "c.toml", "--sites", "s.toml", "--processors", "1", "--history", "none")
    done = folder.bursar(*words, "--buy-copies")

    assert _checked(folder.run, 9) == [(1, Status.CANCELLED, False), (2, Status.SUCCEEDED, True)]
    assert len(_bought(folder.run)) == 1
    assert "a processor at here bought for a copy of slow-8, for " in done.stderr
    bill = json.loads((folder.run / "bill.json").read_text())
    (lease,) = [one for one in bill["leases"] if one["lease"] == "copy-1"]
    copies = bill["copies"]
    assert (copies["made"], copies["faster"], copies["bought"]) == (1, 1, 1)
    # All of the lease is the price of the copy, the start of its worker included.
    assert copies["bought_micros"] == copies["amount_micros"] == lease["total_micros"]
    assert sum(one["total_micros"] for one in bill["leases"]) == bill["total_micros"]
    assert lease["tasks_micros"] > 0
    told = " ".join(folder.bursar("why", folder.run.name, "slow-8").stdout.split())
    assert "a copy on a processor bought for it (an end after" in told


@pytest.mark.ci
def test_with_copies_alone_nothing_is_bought(folder: Any) -> None:
    folder.write("c.toml", LATE.replace("sleep 60", "sleep 4"))
    folder.write("s.toml", BUYING)
    words = ("run", "c.toml", "--sites", "s.toml", "--processors", "1", "--history", "none")
    summary = folder.json(*words, "--copies")

    assert "copies" not in summary
    assert _bought(folder.run) == []


@pytest.mark.ci
def test_a_copy_is_bought_for_the_deadline_within_the_budget(folder: Any) -> None:
    """The first attempt alone would use up the budget, all of which is set aside for it."""
    folder.write("c.toml", LATE + '[retry]\ncopies = "buy"\n')
    folder.write("s.toml", BUYING)
    words = ("run", "c.toml", "--sites", "s.toml", "--processors", "1", "--history", "none")
    done = folder.bursar(*words, "--budget", "50 SU", "--deadline", "30 s")

    assert _checked(folder.run, 9) == [(1, Status.CANCELLED, False), (2, Status.SUCCEEDED, True)]
    assert len(_bought(folder.run)) == 1
    assert "the odds of the deadline rise from" in done.stderr
    ledger = Ledger(read_journal(folder.run / "journal.sqlite").transfers)
    assert 0 < ledger.spent <= ledger.funded == 50_000_000


def test_nothing_is_bought_past_the_budget(folder: Any) -> None:
    """The straggler takes 6 s; the budget pays for it, and for no second processor beside it."""
    folder.write("c.toml", LATE.replace("sleep 60", "sleep 6") + '[retry]\ncopies = "buy"\n')
    folder.write("s.toml", BUYING.replace("3600 SU", "36000 SU"))
    words = ("run", "c.toml", "--sites", "s.toml", "--processors", "1", "--history", "none")
    done = folder.bursar(*words, "--budget", "100 SU", "--json", status=None)
    summary = json.loads(done.stdout)

    assert summary["cost"] <= 100
    # On a busy machine the tasks themselves may use the money up.
    expected = (0, "finished") if summary["succeeded"] == 12 else (4, "goal-stopped")
    assert (done.returncode, summary["state"]) == expected
    ledger = Ledger(read_journal(folder.run / "journal.sqlite").transfers)
    assert ledger.spent <= ledger.funded == 100_000_000


def test_a_word_that_copies_do_not_know_is_refused(folder: Any) -> None:
    folder.write("c.toml", LATE + '[retry]\ncopies = "by"\n')
    folder.write("s.toml", BUYING)
    said = folder.bursar("run", "c.toml", "--sites", "s.toml", status=2).stderr

    assert said == (
        'bursar: c.toml:9: retry.copies: expected "buy", got "by"\nhint: did you mean "buy"?\n'
    )


@pytest.mark.parametrize(
    "after", [0.0, pytest.param(0.2, marks=pytest.mark.ci), pytest.param(0.6, marks=pytest.mark.ci)]
)
def test_a_run_that_is_killed_around_a_purchase_pays_it_once(folder: Any, after: float) -> None:
    """Killed just after the purchase is noted, while a worker starts, and while the copy runs."""
    folder.write("c.toml", LATE.replace("sleep 0.1", "sleep 0.5"))
    folder.write("s.toml", BUYING)
    words = ("run", "c.toml", "--sites", "s.toml", "--processors", "1", "--history", "none")
    process = folder.start(*words, "--buy-copies")
    path = lambda: folder.run / "journal.sqlite"  # noqa: E731
    folder.until(lambda: list(folder.path.glob("runs/*/journal.sqlite")), process)
    folder.until(lambda: purchases_for_copies(read_journal(path()).events), process)
    time.sleep(after)
    if process.poll() is None:  # the machine may be fast, or busy
        os.kill(process.pid, signal.SIGKILL)
        process.wait(30)
        folder.bursar("run", "--resume", folder.run.name)

    attempts = _checked(folder.run, 9)
    assert sum(final for _, _, final in attempts) == 1
    bought = _bought(folder.run)
    bill = json.loads((folder.run / "bill.json").read_text())
    assert {one["lease"] for one in bill["leases"] if one["lease"].startswith("copy-")} == {*bought}
    assert sum(one["total_micros"] for one in bill["leases"]) == bill["total_micros"]


@pytest.mark.long
@pytest.mark.parametrize("after", [0.0, 1.0, 3.0])
def test_attempts_race_at_two_sites_over_a_kill(folder: Any, after: float) -> None:
    """
    The machine's only processor is held up; a job of a Slurm cluster is bought for the copy, and
    the run is killed while the job is asked for, waits or runs. The cluster's record bears it out.
    """
    need_slurm()
    there = ("--folder", "grid")
    folder.bursar("testgrid", "up", "--clusters", "1", "--nodes", "1", "--cpus", "2", *there)
    try:
        grid = (folder.path / "grid" / "testgrid.toml").read_text()
        _, _, slurm = grid.partition("[site.slurm1]")
        here = BUYING.replace("processors = 2", "processors = 1")
        folder.write("s.toml", f"{here}\n[site.slurm1]{slurm}")
        folder.write("c.toml", LATE.replace("sleep 60", "sleep 25"))
        words = ("run", "c.toml", "--sites", "s.toml", "--processors", "1", "--history", "none")
        process = folder.start(*words, "--buy-copies", "--name", "r")
        run = folder.path / "runs" / "r"
        folder.until((run / "journal.sqlite").exists, process)
        folder.until(
            lambda: purchases_for_copies(read_journal(run / "journal.sqlite").events), process
        )
        time.sleep(after)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            process.wait(30)
            folder.bursar("run", "--resume", "r")

        journal = read_journal(run / "journal.sqlite")
        succeeded = [o.task for o in journal.attempts if o.status is Status.SUCCEEDED]
        assert sorted(succeeded) == list(range(12))
        ledger = Ledger(journal.transfers)
        bill = json.loads((run / "bill.json").read_text())
        assert ledger.held == 0
        assert sum(one["total_micros"] for one in bill["leases"]) == ledger.spent
        assert bill["total_micros"] == ledger.spent
        assert {purchases_for_copies(journal.events)[name].site for name in _bought(run)} <= {
            "slurm1"
        }
        told = folder.bursar("testgrid", "status", *there).stdout
        assert told.split("\n")[1].split()[-2:] == ["0", "0"], told  # no job is left
    finally:
        folder.bursar("testgrid", "down", *there)
