"""Runs whose journal is locked, damaged or tampered with, and whose clock was set meanwhile."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.dispatch.test_journal_locks import held

from bursar.dispatch.journal import read_journal
from bursar.market.ledger import Ledger
from bursar.runs.incarnations import leases_of

SITES = """\
[site.here]
kind = "local"
processors = 2
unit_price = "3600 SU/core-hour"
"""
SLOW = """\
[campaign]
command = "sleep 0.3"
[parameters]
x = { from = 1, to = 12, step = 1 }
[task]
runtime = 0.3
"""


def test_a_run_waits_for_its_locked_journal(folder: Any) -> None:
    """Another process locks it: one line when the wait begins, and one when it ends."""
    folder.write("c.toml", SLOW)
    process = folder.start("run", "c.toml")
    journals = lambda: list(folder.path.glob("runs/*/journal.sqlite"))  # noqa: E731
    folder.until(lambda: journals() and read_journal(journals()[0]).records, process)
    said = []
    with held(journals()[0]) as other:
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line)
            if "is locked by another process: waiting for it" in line:
                break
        assert other.stdin is not None
        other.stdin.close()
        _, rest = process.communicate(timeout=60)
    said.extend(rest.splitlines())

    assert process.returncode == 0, said
    assert sum("is locked by another process" in line for line in said) == 1
    assert sum("is free again after" in line for line in said) == 1
    records = read_journal(journals()[0]).records
    assert [record.outcome.status for record in records] == ["succeeded"] * 12


AS_IF = """
import sys, time
real, off = time.time, float(sys.argv.pop(1))
time.time = lambda: real() + off
from bursar.cli.main import main
main()
"""


@pytest.mark.parametrize("off", [-2400.0, pytest.param(2400.0, marks=pytest.mark.ci)])
def test_a_resumed_run_charges_what_was_due_by_any_clock(folder: Any, off: float) -> None:
    """Killed, and resumed by a process whose time of day is 40 minutes off."""
    folder.write("c.toml", SLOW)
    folder.write("s.toml", SITES)
    process = folder.start("run", "c.toml", "--sites", "s.toml")
    path = lambda: folder.run / "journal.sqlite"  # noqa: E731
    folder.until(lambda: list(folder.path.glob("runs/*/journal.sqlite")), process)
    folder.until(lambda: len(read_journal(path()).records) >= 4, process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(30)
    journal = read_journal(path())
    due = sum(
        lease.processors * (journal.last_seen - lease.start)
        for lease in leases_of(journal.events).values()
    )

    words = ["run", "--resume", folder.run.name, "--json"]
    resumed = subprocess.run(
        [sys.executable, "-c", AS_IF, str(off), *words],
        cwd=folder.path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert resumed.returncode == 0, resumed.stderr
    whole = read_journal(path())
    spent = Ledger(whole.transfers).spent / 1e6
    told = folder.json("report", folder.run.name)
    assert told["succeeded"] == 12
    assert spent >= due > 0.0
    assert 0.3 <= told["makespan_s"] < 600.0
    # Two processors for as long as the two lives went on, whatever they took: no 40 minutes.
    assert spent < 2 * 600.0
    begins = [event.time for event in whole.events if event.kind in ("begin", "end")]
    assert begins == sorted(begins)


def refuses(folder: Any, *words: str) -> str:
    """The one line in which a command refuses."""
    line: str = folder.bursar(*words, status=2).stderr.strip()
    assert "\n" not in line
    assert "journal.sqlite: is damaged" in line
    assert "restore the run's folder from a copy" in line
    return line


def test_a_task_that_deletes_from_its_ledger_is_found(folder: Any) -> None:
    """It runs as the same user, and can write there: the bill is refused, and so is all else."""
    rob = (
        "import sqlite3; db = sqlite3.connect('../../journal.sqlite', timeout=60); "
        "db.execute('DELETE FROM transfers WHERE number > 1'); db.commit()"
    )
    folder.write("rob.py", rob)
    folder.write(
        "c.toml",
        f'[tasks.rob]\ncommand = "{sys.executable} {folder.path}/rob.py"\nruntime = 0.1\n',
    )
    folder.write("s.toml", SITES)
    ran = folder.bursar("run", "c.toml", "--sites", "s.toml", status=2)
    assert "table transfers" in ran.stderr or "another program" in ran.stderr
    name = folder.run.name
    assert "row 2 of table transfers is missing" in refuses(folder, "bill", name)
    refuses(folder, "report", name)
    refuses(folder, "run", "--resume", name)


def test_damage_is_one_line_in_every_command(folder: Any) -> None:
    """A page of zeros, a lost log: named, with status 2; the list of runs says which one it is."""
    folder.write("c.toml", '[tasks.a]\ncommand = "true"\nruntime = 0.1\n')
    folder.write("s.toml", SITES)
    folder.bursar("run", "c.toml", "--sites", "s.toml", "--name", "a")
    whole = folder.path / "runs" / "a"
    assert not folder.bursar("bill", "a").stderr
    for damage in ("rows", "header"):
        run = folder.path / "runs" / damage
        shutil.copytree(whole, run)
        if damage == "rows":
            with closing(sqlite3.connect(run / "journal.sqlite")) as db:
                db.execute("UPDATE events SET text = 'other' WHERE number = 1")
                db.commit()
            assert "of table events was changed" in refuses(folder, "bill", damage)
        else:
            with (run / "journal.sqlite").open("r+b") as file:
                file.write(bytes(4096))
        for words in (("bill", damage), ("report", damage), ("run", "--resume", damage)):
            line = folder.bursar(*words, status=2).stderr
            assert f"{damage}/journal.sqlite: is damaged" in line
    states = {row["run"]: row["state"] for row in folder.json("runs")["runs"]}
    assert states["a"] == "finished"
    assert states["header"] == "damaged"


def test_a_journal_without_this_users_seal_is_billed_with_a_word(
    folder: Any, tmp_path: Path
) -> None:
    """Brought from another machine, say: whoever knows how could have changed it."""
    folder.write("c.toml", '[tasks.a]\ncommand = "true"\nruntime = 0.1\n')
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "mine")}
    folder.bursar("run", "c.toml", "--name", "a", env=environment)
    elsewhere = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "other")}
    told = folder.bursar("bill", "a", env=elsewhere)
    assert "has no seal of this user's" in told.stderr
    assert not folder.bursar("bill", "a", env=environment).stderr
