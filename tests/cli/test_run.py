"""Whole runs by the command: begun, stopped, killed, resumed, billed."""

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.small_disk import resize, small_disk

from bursar.dispatch.journal import read_journal
from bursar.market.ledger import Ledger

SWEEP = """\
[campaign]
name = "sweep"
command = "echo {x} >> $RAN; sleep {seconds}; echo {x} squared is $(({x} * {x}))"
[parameters]
x = { from = 1, to = 40, step = 1 }
seconds = 0.02
[task]
runtime = "{seconds}"
id = "x{x}"
[retry]
backoff = 0
"""
SITES = """\
[site.here]
kind = "local"
processors = 2
unit_price = "3600 EUR/core-hour"
"""


def check_money(run: Path, bill: dict[str, Any]) -> None:
    """The ledger balances, nothing is held, and the bill adds up to it."""
    ledger = Ledger(read_journal(run / "journal.sqlite").transfers)
    assert sum(ledger.balances.values()) == 0
    assert ledger.held == 0
    assert bill["total_micros"] == ledger.spent
    items = sum(task["amount_micros"] for task in bill["tasks"])
    rests = sum(lease["remainder_micros"] for lease in bill["leases"])
    assert items + rests == ledger.spent
    assert sum(site["amount_micros"] for site in bill["sites"]) == ledger.spent


def check_results(run: Path, count: int) -> None:
    """One line for each task, each succeeded once."""
    rows = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    assert len(rows) == count
    assert {row["status"] for row in rows} == {"succeeded"}
    squares = {row["stdout"] for row in rows}
    assert squares == {f"{x} squared is {x * x}\n" for x in range(1, count + 1)}
    records = read_journal(run / "journal.sqlite").records
    finals = Counter(r.outcome.task for r in records if r.outcome.status == "succeeded")
    assert finals == Counter(range(count))


def test_a_campaign_is_planned_run_and_billed(folder: Any) -> None:
    """From the file to the bill, every figure where it is promised."""
    folder.write("c.toml", SWEEP)
    folder.write("s.toml", SITES)

    plan = folder.json("plan", "c.toml", "--sites", "s.toml")
    assert not (folder.path / "runs").exists()
    ran = folder.json(
        "run", "c.toml", "--sites", "s.toml", env={**os.environ, "RAN": str(folder.path / "ran")}
    )

    assert plan["chosen"]["processors"] == 2
    assert ran["predicted_makespan_s"] == plan["chosen"]["makespan_s"]
    assert ran["tasks"] == ran["succeeded"] == ran["attempts"] == 40
    assert ran["currency"] == "EUR"
    assert ran["makespan_s"] >= plan["bounds"]["makespan_s"]
    assert 2 * ran["makespan_s"] <= ran["cost"]
    bill = folder.json("bill", ran["run"])
    assert bill["total"] == ran["cost"]
    assert json.loads((folder.run / "bill.json").read_text()) == bill
    check_money(folder.run, bill)
    check_results(folder.run, 40)
    assert (folder.run / "report.html").read_text().startswith("<!doctype html>")
    assert "task,name,status" in (folder.run / "results.csv").read_text()
    (row,) = folder.json("runs")["runs"]
    assert (row["run"], row["state"], row["succeeded"]) == (ran["run"], "finished", 40)
    logs = folder.json("logs", ran["run"], "x3")
    assert logs["stdout"] == "3 squared is 9\n"
    assert not list((folder.run / "work").iterdir())


@pytest.mark.parametrize(
    "victims",
    [
        pytest.param("runner", marks=pytest.mark.ci),
        pytest.param("workers", marks=pytest.mark.ci),
        "both",
    ],
)
def test_kill_9_loses_nothing_and_counts_nothing_twice(folder: Any, victims: str) -> None:
    """Whoever is killed in the middle: each result is there once and the ledger balances."""
    folder.write("c.toml", SWEEP.replace("seconds = 0.02", "seconds = 0.1"))
    folder.write("s.toml", SITES)
    ran = folder.path / "ran"
    os.environ["RAN"] = str(ran)
    try:
        process = folder.start("run", "c.toml", "--sites", "s.toml")
        folder.until(lambda: ran.exists() and len(ran.read_text().split()) > 8, process)
        if victims != "runner":
            for pid in workers_of(process.pid):
                os.kill(pid, signal.SIGKILL)
        if victims == "workers":
            process.communicate(timeout=60)
            assert process.returncode == 0
        else:
            process.kill()
            process.communicate()
            (row,) = folder.json("runs")["runs"]
            assert row["state"] == "interrupted"
            folder.bursar("bill", row["run"])
            again = folder.json("run", "--resume", row["run"])
            assert again["succeeded"] == 40
            # Workers that were spared go on with what they have.
            assert again["attempts"] == 40 if victims == "runner" else again["attempts"] <= 44
    finally:
        del os.environ["RAN"]

    bill = folder.json("bill", folder.run.name)
    check_money(folder.run, bill)
    check_results(folder.run, 40)
    assert len(bill["leases"]) == (2 if victims == "both" else 1)


@pytest.mark.ci
def test_what_ran_twice_because_of_a_kill_has_two_attempts(folder: Any) -> None:
    """As often as each task began, by its own word; what only lay with a worker does not count."""
    folder.write(
        "c.toml",
        """\
[campaign]
command = "echo i{i} >> ../../../../ran; sleep 1"
[parameters]
i = { from = 1, to = 5, step = 1 }
[task]
id = "i{i}"
runtime = 1
""",
    )
    folder.write("s.toml", SITES)
    ran = folder.path / "ran"
    process = folder.start("run", "c.toml", "--sites", "s.toml")
    folder.until(lambda: ran.exists() and len(ran.read_text().split()) == 2, process)
    workers = workers_of(process.pid)
    process.kill()
    process.communicate()
    for pid in workers:  # which would else go on
        os.kill(pid, signal.SIGKILL)

    summary = folder.json("run", "--resume", folder.run.name)

    began = Counter(ran.read_text().split())
    assert sorted(began.values()) == [1, 1, 1, 2, 2]
    assert summary["attempts"] == 7
    bill = folder.json("bill", folder.run.name)
    assert {one["task"]: one["attempts"] for one in bill["tasks"]} == began
    check_money(folder.run, bill)


def workers_of(pid: int) -> list[int]:
    """Child processes that are workers."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [
        int(child)
        for child in children
        if b"bursar.worker.worker" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


WRITERS = """\
[campaign]
name = "writers"
[tasks.cut]
command = "echo half > {outputs}; while [ ! -e $GO ]; do sleep 0.02; done; echo whole > {outputs}"
outputs = ["cut.txt"]
[tasks.fails]
command = "echo seen > left; false"
outputs = ["never.txt"]
[retry]
attempts = 4
backoff = 0
"""


@pytest.mark.parametrize("victim", ["runner", "worker"])
def test_nothing_is_left_of_an_attempt_that_was_cut_off(folder: Any, victim: str) -> None:
    """What a killed attempt had half written goes; what a failed one left stays to be seen."""
    go = folder.path / "go"
    folder.write("c.toml", WRITERS.replace("$GO", str(go)))
    folder.write("s.toml", SITES)
    process = folder.start("run", "c.toml", "--sites", "s.toml")
    half = "runs/*/work/0-cut/cut.txt"
    folder.until(lambda: any(p.read_text() for p in folder.path.glob(half)), process)
    journal = folder.run / "journal.sqlite"
    folder.until(lambda: len(read_journal(journal).records) == 4, process)  # all failures
    (folder.run / "work" / "99-of-no-task").mkdir()

    if victim == "runner":
        process.kill()
        process.communicate()
        go.touch()
        folder.bursar("run", "--resume", folder.run.name, status=1)
    else:
        for pid in workers_of(process.pid):
            os.kill(pid, signal.SIGKILL)
        folder.until(lambda: any(folder.path.glob("runs/*/work/0-cut.[2-4]/cut.txt")), process)
        go.touch()
        process.communicate()
        assert process.returncode == 1

    assert (folder.run / "files" / "cut.txt").read_text() == "whole\n"
    assert {path.name for path in (folder.run / "work").iterdir()} == {
        "1-fails",
        "99-of-no-task",
        *(f"1-fails.{attempt}" for attempt in (2, 3, 4)),
    }


def test_ctrl_c_leaves_a_run_that_goes_on(folder: Any) -> None:
    """Status 130 within the grace, the money settled; resuming does the rest."""
    text = SWEEP.replace("seconds = 0.02", "seconds = 0.1").replace("echo {x} >> $RAN; ", "")
    folder.write("c.toml", text)
    process = folder.start("run", "c.toml")
    folder.until(lambda: succeeded(folder) >= 4, process)

    process.signal_group(signal.SIGINT)
    _, said = process.communicate(timeout=30)

    assert process.returncode == 130, said
    check_money(folder.run, folder.json("bill", folder.run.name))
    assert folder.json("report", folder.run.name)["state"] == "interrupted"
    assert folder.json("run", "--resume", folder.run.name)["succeeded"] == 40
    check_results(folder.run, 40)
    check_money(folder.run, folder.json("bill", folder.run.name))


def succeeded(folder: Any) -> int:
    """Tasks of the only run that are journalled as succeeded."""
    journals = list(folder.path.glob("runs/*/journal.sqlite"))
    return len(read_journal(journals[0]).records) if journals else 0


def test_a_second_ctrl_c_kills(folder: Any) -> None:
    """A task that ignores SIGTERM does not hold the user up for the grace of 5 s."""
    folder.write(
        "c.toml",
        "[tasks.stubborn]\n"
        """command = 'trap "" TERM; touch started; while true; do sleep 1; done'\n""",
    )
    process = folder.start("run", "c.toml")
    folder.until(lambda: list(folder.path.glob("runs/*/work/*/started")), process)

    process.signal_group(signal.SIGINT)
    folder.until(lambda: note(folder, "asked to end"), process)
    assert process.poll() is None
    process.signal_group(signal.SIGINT)
    process.communicate(timeout=4)

    assert process.returncode == 130


def note(folder: Any, words: str) -> bool:
    """Whether the only run has said this."""
    events = read_journal(folder.run / "journal.sqlite").events
    return any(words in event.text for event in events)


def test_a_spent_budget_stops_the_run_and_more_lets_it_go_on(folder: Any) -> None:
    """Status 4, never a micro-unit above the budget; then --resume with a larger one."""
    folder.write(
        "c.toml",
        """\
[campaign]
command = "sleep 0.5; echo {x} squared is $(({x} * {x}))"
[parameters]
x = { from = 1, to = 24, step = 1 }
[task]
runtime = 0.05
[goal]
budget = "7 EUR"
""",
    )
    folder.write("s.toml", SITES)

    first = folder.json("run", "c.toml", "--sites", "s.toml", status=4)

    assert 0 < first["succeeded"] < 24
    assert first["cost"] <= 7
    assert first["state"] == "budget-stopped"
    check_money(folder.run, folder.json("bill", first["run"]))
    again = folder.json("run", "--resume", first["run"], "--budget", "60 EUR")
    assert again["succeeded"] == 24
    assert again["cost"] > first["cost"]
    check_money(folder.run, folder.json("bill", first["run"]))
    check_results(folder.run, 24)


def test_a_missed_deadline_has_its_own_status(folder: Any) -> None:
    """The run goes on to its end; only the status tells."""
    folder.write(
        "c.toml",
        '[goal]\ndeadline = 0.2\n[tasks.late]\ncommand = "sleep 0.4"\nruntime = 0.1\n',
    )

    ran = folder.json("run", "c.toml", status=5)

    assert ran["succeeded"] == 1
    assert ran["deadline_met"] is False
    assert ran["exit_status"] == 5


def test_failures_are_named_and_can_be_tried_again(folder: Any) -> None:
    """Status 1; what depends on a failure is skipped; --retry-failed after mending goes on."""
    folder.write(
        "c.toml",
        """\
[tasks.first]
command = "cat needed > made"
outputs = ["made"]
[tasks.second]
command = "cat made; echo done"
inputs = ["made"]
[tasks.other]
command = "true"
[retry]
attempts = 2
backoff = 0
""",
    )
    first = folder.bursar("run", "c.toml", status=1)

    assert "first failed" in first.stderr
    summary = folder.json("report", folder.run.name)
    assert (summary["succeeded"], summary["failed"], summary["skipped"]) == (1, 1, 1)
    assert summary["attempts"] == 3
    assert "needed" in folder.json("logs", folder.run.name, "first")["stderr"]
    # Without the option a task that failed for good stays failed.
    folder.bursar("run", "--resume", folder.run.name, status=1)
    folder.write("needed", "42\n")
    text = (folder.path / "c.toml").read_text()
    assert "needed" in text
    again = folder.bursar("run", "--resume", folder.run.name, "--retry-failed", status=1)
    assert "first failed" in again.stderr  # it looks in its own folder: the file is no input
    assert folder.json("report", folder.run.name)["attempts"] == 5


def test_a_run_is_carried_out_by_one_process_at_a_time(folder: Any) -> None:
    """A second one is refused by one line, and the first goes on."""
    folder.write("c.toml", '[tasks.wait]\ncommand = "until test -e $GO; do sleep 0.01; done"\n')
    os.environ["GO"] = str(folder.path / "go")
    try:
        process = folder.start("run", "c.toml")
        folder.until(lambda: list(folder.path.glob("runs/*/work/.local*")), process)
        refused = folder.bursar("run", "--resume", folder.run.name, "--budget", "5", status=2)
        (row,) = folder.json("runs")["runs"]
        (folder.path / "go").touch()
        process.communicate(timeout=30)
    finally:
        del os.environ["GO"]

    assert f"is being carried out by process {process.pid}" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert row["state"] == "running"
    assert process.returncode == 0
    assert folder.json("report", folder.run.name)["budget"] is None


@pytest.mark.parametrize("size", ["1m", "6m"])  # without room for the journal's reserve, and with
def test_a_full_disk_ends_in_one_line_and_a_run_that_goes_on(folder: Any, size: str) -> None:
    """No outcome is half there: when there is room again, the rest runs."""
    folder.write(
        "c.toml",
        """\
[campaign]
command = "head -c 60000 /dev/zero | tr '\\\\0' x; echo {x}"
[parameters]
x = { from = 1, to = 40, step = 1 }
[retry]
attempts = 1
""",
    )
    with small_disk(size) as small:
        runs = str(small)
        failed = folder.bursar("run", "c.toml", "--runs", runs, "--name", "full", status=1)
        resize(small, "40m")
        again = folder.json("run", "--resume", "full", "--runs", runs, "--retry-failed")
        bill = folder.json("bill", "full", "--runs", runs)
        check_money(small / "full", bill)

    assert "the disk is full: nothing new is started" in failed.stderr
    assert again["succeeded"] == 40


def test_progress_is_quiet_lines_when_nobody_looks(folder: Any) -> None:
    """Whole lines on stderr, no control characters; none at all with --quiet."""
    folder.write("c.toml", '[tasks.a]\ncommand = "sleep 0.1"\n')

    loud = folder.bursar("run", "c.toml")
    quiet = folder.bursar("run", "c.toml", "--quiet")

    assert "\x1b" not in loud.stderr + loud.stdout
    assert "1 of 1" in loud.stderr or loud.stderr == ""
    assert quiet.stderr == ""


def test_a_counter_offer_is_accepted(folder: Any) -> None:
    """The goal becomes that of the offer; a kind that is not offered changes nothing."""
    folder.write("c.toml", '[campaign]\nname = "c"\ncommand = "sleep 0.1"\n[task]\nruntime = 0.1\n')
    folder.write(
        "s.toml", "[site.h]\nkind = 'local'\nprocessors = 1\nunit_price = '3600 EUR/core-hour'\n"
    )
    run = ("run", "c.toml", "--sites", "s.toml", "--deadline", "0.01", "--fresh")
    refused = folder.json(*run, status=3)
    (offer,) = [one for one in refused["counter_offers"] if one["kind"] == "time"]
    said = folder.bursar(*run, "--accept", "budget", status=3)
    assert "no counter-offer of the kind budget" in said.stderr
    assert not list((folder.path / "runs").glob("c-*"))

    said = folder.bursar(*run, "--accept", "time", "--json", "--name", "taken", status=None)
    assert "taken in its place: in more time" in said.stderr
    done = json.loads(said.stdout)
    assert done["deadline_s"] == pytest.approx(offer["makespan_s"])
    assert done["succeeded"] == 1
    folder.bursar(*run, "--accept", "time", "--anyway", status=2)


def test_a_part_is_accepted_and_the_rest_run_later(folder: Any) -> None:
    """As many tasks as fit are run; with more money the others are, and nothing runs twice."""
    folder.write(
        "c.toml",
        '[campaign]\nname = "c"\ncommand = "sleep 0.1; echo {n}"\n[task]\nruntime = 4\n'
        "[parameters]\nn = { from = 1, to = 6, step = 1 }\n",
    )
    folder.write(
        "s.toml", "[site.h]\nkind = 'local'\nprocessors = 1\nunit_price = '3600 EUR/core-hour'\n"
    )
    run = ("run", "c.toml", "--sites", "s.toml", "--deadline", "1 h")
    refused = folder.json(*run, "--budget", "15 EUR", status=3)
    (offer,) = [one for one in refused["counter_offers"] if one["kind"] == "share"]
    assert 0 < offer["tasks"] < 6

    part = folder.json(*run, "--budget", "15 EUR", "--accept", "share", "--name", "part")
    assert (part["tasks"], part["succeeded"]) == (offer["tasks"], offer["tasks"])
    assert part["cost"] <= 15
    said = folder.bursar("run", "--resume", "part", status=2).stderr
    assert "c.toml changed" in said
    whole = folder.json(*run, "--budget", "100 EUR", "--name", "whole")
    assert (whole["succeeded"], whole["reused"]) == (6, offer["tasks"])
