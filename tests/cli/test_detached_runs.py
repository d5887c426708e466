"""Runs that outlive their terminal: started by --detach, watched by attach, stopped by stop."""

import contextlib
import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

import bursar
from bursar.dispatch.journal import read_journal, writer_of
from bursar.report.progress import RunProgress
from bursar.runs.detached_runs import _complaint_in
from bursar.runs.folder import RunFolder
from bursar.runs.run_record import read_run

TASKS = 4
CAMPAIGN = f"""\
[campaign]
name = "patient"
command = "while ! test -e $GO; do sleep 0.05; done; echo {{x}}"
[parameters]
x = {{ from = 1, to = {TASKS}, step = 1 }}
[task]
runtime = 1
[retry]
backoff = 0
"""
SITES = """\
[site.here]
kind = "local"
processors = 2
unit_price = "1 EUR/core-hour"
"""
RUN = ("run", "c.toml", "--sites", "s.toml", "--name", "one", "--oversubscribe")


def until(true: Callable[[], bool]) -> None:
    """Wait for what other processes bring about."""
    ends = time.monotonic() + 120
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.02)


SHELL = """\
import os, signal, sys
for number in (signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_DFL)
os.execv("/bin/sh", ["sh", "-c", sys.argv[1]])
"""
"""A shell that heeds the terminal's signals, also where whoever runs the tests ignores them."""


class Terminal:
    """A command on a terminal of its own, as a user has it."""

    def __init__(self, folder: Path, *words: str, then: str = "") -> None:
        self._master, slave = pty.openpty()
        command = " ".join([sys.executable, "-P", "-m", "bursar", *words])
        # The leader of a session that opens a terminal gets it as its own.
        line = f"exec <>{os.ttyname(slave)} >&0 2>&0; {command if then else 'exec ' + command}"
        self.process = subprocess.Popen(
            [sys.executable, "-ISc", SHELL, line + then],
            cwd=folder,
            env={**os.environ, "GO": str(folder / "go"), "TERM": "xterm"},
            start_new_session=True,
        )
        self._slave = slave
        os.set_blocking(self._master, False)
        self.shown = ""

    def shows(self, text: str) -> bool:
        """Whether it has shown a text."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._master, 1 << 16):
                self.shown += data.decode(errors="replace")
        assert self.process.poll() is None or text in self.shown, self.shown
        return text in self.shown

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def hang_up(self) -> None:
        """Close the terminal's window."""
        os.close(self._slave)
        os.close(self._master)

    def ended(self) -> int:
        """Read on until the command ends; its status."""
        while self.process.poll() is None:
            self.shows("")
            time.sleep(0.02)
        self.shows("")
        self.hang_up()
        return self.process.wait()


def check_results(run: Path) -> None:
    """Each task succeeded once."""
    records = read_journal(run / "journal.sqlite").records
    done = Counter(r.outcome.task for r in records if r.outcome.status == "succeeded")
    assert done == Counter(range(TASKS))
    rows = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    assert {row["stdout"] for row in rows} == {f"{x}\n" for x in range(1, TASKS + 1)}


def begun(folder: Any) -> RunFolder:
    folder.write("c.toml", CAMPAIGN)
    folder.write("s.toml", SITES)
    return RunFolder(folder.path / "runs" / "one")


def test_a_detached_run_outlives_its_terminal_and_can_be_watched(folder: Any) -> None:
    """The terminal is hung up; attach comes back, Ctrl-C leaves the run going, stop stops it."""
    run = begun(folder)
    terminal = Terminal(folder.path, *RUN, "--detach", then="; echo READY; exec sleep 1000")
    until(lambda: terminal.shows("READY"))
    assert "bursar attach one" in terminal.shown
    runner = writer_of(run.journal_file)
    assert runner is not None

    terminal.hang_up()

    assert terminal.process.wait(60) == -signal.SIGHUP
    until(run.views_socket.exists)
    assert run.views_socket.stat().st_mode & 0o777 == 0o600
    assert run.runner_log.stat().st_mode & 0o777 == 0o600
    window = Terminal(folder.path, "attach", "one")
    until(lambda: window.shows("2 running"))
    window.press(b"\x03")
    assert window.ended() == 130
    assert "the run goes on" in window.shown
    assert writer_of(run.journal_file) == runner

    assert folder.json("stop", "one") == {"run": "one", "process": runner.process}
    assert folder.json("attach", "one", status=130)["state"] == "interrupted"
    folder.write("go", "")
    env = {**os.environ, "GO": str(folder.path / "go")}
    assert folder.json("run", "--resume", "one", "--detach", env=env)["run"] == "one"
    assert folder.json("attach", "one")["state"] == "finished"
    until(run.results_jsonl.exists)
    check_results(run.path)


@pytest.mark.ci
def test_a_detached_run_that_is_killed_can_be_resumed(folder: Any) -> None:
    """kill -9: who is attached is told that the run was interrupted; it goes on where it was."""
    run = begun(folder)
    env = {**os.environ, "GO": str(folder.path / "go")}
    started = folder.json(*RUN, "--detach", env=env)
    assert (started["succeeded"], started["exit_status"]) == (0, 0)
    window = Terminal(folder.path, "attach", "one")
    until(lambda: window.shows("2 running"))

    runner = writer_of(run.journal_file)
    assert runner is not None
    os.kill(runner.process, signal.SIGKILL)

    assert window.ended() == 130
    assert "interrupted" in window.shown
    assert folder.json("attach", "one", status=130)["state"] == "interrupted"
    folder.write("go", "")
    assert folder.json("run", "--resume", "one", env=env)["state"] == "finished"
    check_results(run.path)


def test_a_detached_run_that_cannot_begin_says_why(folder: Any) -> None:
    """The message and the status are those of the process that was to carry it out."""
    begun(folder)
    folder.write("go", "")
    env = {**os.environ, "GO": str(folder.path / "go")}
    folder.json(*RUN, env=env)
    journal = folder.path / "runs" / "one" / "journal.sqlite"
    journal.write_bytes(b"no journal" + journal.read_bytes()[10:])
    refused = folder.bursar("run", "--resume", "one", "--detach", status=2)
    assert "was not begun" in refused.stderr
    assert "journal.sqlite" in refused.stderr
    assert folder.bursar("stop", "one", status=2).stderr.startswith("bursar: no process carries")


REFUSING = """\
import asyncio
from bursar.model.errors import SiteError
from bursar.sites.local import LocalSite

async def refuse(self, *given, **more):
    await asyncio.sleep(0.5)
    raise SiteError(f"{self.facts.name}: account closed")

LocalSite.acquire = refuse
"""


@pytest.mark.ci
def test_a_detached_run_that_its_site_refuses_says_so(folder: Any) -> None:
    """The journal is open and the run's state written: the command ends as the run does."""
    run = begun(folder)
    (folder.path / "patched").mkdir()
    folder.write("patched/sitecustomize.py", REFUSING)
    patched = os.pathsep.join([str(folder.path / "patched"), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": patched}
    attached = subprocess.run(
        [sys.executable, "-P", "-m", "bursar", *RUN, "--runs", "others"],
        cwd=folder.path,
        env=env,
        capture_output=True,
        text=True,
    )
    detached = folder.bursar(*RUN, "--detach", status=None, env=env)
    assert attached.returncode != 0
    assert detached.returncode == attached.returncode
    assert "bursar: here: account closed" in attached.stderr
    assert "here: account closed" in detached.stderr
    assert writer_of(run.journal_file) is None


class _Told(Exception):
    """What a run said."""


@pytest.mark.ci
def test_what_a_detached_run_says_while_its_sites_give_nothing_is_shown(
    folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool that a site refuses goes on asking."""
    programs = {
        "sinfo": 'echo "job|n1|0/4/0/4|1000|main*|up|1:00:00|idle"',
        "sbatch": "echo 'sbatch: error: Invalid account' >&2; exit 1",
        **dict.fromkeys(("squeue", "scontrol", "sacct", "sacctmgr", "scancel"), "exit 0"),
    }
    (folder.path / "programs").mkdir()
    for name, script in programs.items():
        folder.write(f"programs/{name}", f"#!/bin/sh\n{script}\n")
        (folder.path / "programs" / name).chmod(0o700)
    run = begun(folder)
    folder.write(
        "s.toml",
        '[site.far]\nkind = "slurm"\nprocessors = 4\nqueue = "main"\n'
        'unit_price = "1 EUR/core-hour"\n',
    )
    monkeypatch.setenv("PATH", f"{folder.path}/programs:{os.environ['PATH']}")
    monkeypatch.setattr("bursar.runs.detached_runs.ANSWER", 600.0)

    def tell(shown: RunProgress, message: str) -> NoReturn:
        raise _Told(message)

    monkeypatch.setattr(RunProgress, "notify", tell)
    with pytest.raises(_Told, match="Invalid account"):
        bursar.run(
            folder.path / "c.toml",
            folder.path / "s.toml",
            runs=folder.path / "runs",
            name="one",
            detach=True,
        )
    folder.bursar("stop", "one")
    until(lambda: writer_of(run.journal_file) is None)


@pytest.mark.ci
def test_a_detached_run_that_ends_at_once_leaves_no_process_behind(
    folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither while the process that started it lives on; its result is that of the run."""
    folder.write("c.toml", CAMPAIGN.replace("echo {x}", "exit 3"))
    folder.write("s.toml", SITES)
    folder.write("go", "")
    monkeypatch.setenv("GO", str(folder.path / "go"))
    before = children()
    result = bursar.run(
        folder.path / "c.toml",
        folder.path / "s.toml",
        runs=folder.path / "runs",
        detach=True,
        progress=False,
        oversubscribe=True,
    )
    until(lambda: RunFolder(result.path).read_info().state == "failed")
    until(lambda: not any(is_runner_or_zombie(child) for child in children() - before))
    assert result.to_dict()["tasks"] == TASKS


def children() -> set[int]:
    """Return the child processes of this process."""
    tasks = Path("/proc/self/task").glob("*/children")
    return {int(number) for task in tasks for number in task.read_text().split()}


def is_runner_or_zombie(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        is_runner = b"--resume" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        stat = Path(f"/proc/{pid}/stat").read_text()
        return is_runner or stat.rpartition(")")[2].split()[0] == "Z"
    return False


def test_a_run_that_another_machine_carries_out_is_left_alone(folder: Any) -> None:
    """Its process has a number there; here the number is that of some other process."""
    run = begun(folder)
    folder.write("go", "")
    folder.json(*RUN, env={**os.environ, "GO": str(folder.path / "go")})
    bystander = subprocess.Popen(["sleep", "1000"])
    lock = run.path / "journal.sqlite.lock"
    with lock.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write(f"{bystander.pid} login2.example".encode())
        held.flush()
        for command in ("stop", "attach"):
            refused = folder.bursar(command, "one", status=2)
            assert f"process {bystander.pid} on login2.example" in refused.stderr
            assert "ssh login2.example" in refused.stderr
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


def test_the_whole_complaint_of_a_detached_run_is_passed_on() -> None:
    said = "bursar: the view has failed\nbursar: sites.toml: no such kind\nhint: one of these\n"
    assert _complaint_in(said) == "sites.toml: no such kind; hint: one of these"
    assert _complaint_in("") == "it said nothing"
    assert _complaint_in("Killed\n") == "Killed"


@pytest.mark.ci
def test_a_run_is_cancelled_for_good(folder: Any) -> None:
    """While it runs, again, and after a kill: nothing begins any more, money is back."""
    folder.write("c.toml", CAMPAIGN)
    folder.write("s.toml", SITES)
    run = RunFolder(folder.path / "runs" / "one")
    environment = {**os.environ, "GO": str(folder.path / "go")}

    folder.json(*RUN, "--detach", env=environment)
    for _ in range(2):
        assert folder.json("cancel", "one") == {"run": "one", "state": "cancelled"}
    assert writer_of(run.journal_file) is None
    record = read_run(run)
    assert record.info.state == "cancelled"
    assert record.ledger.held == 0
    assert [e.text for e in record.journal.events].count("cancelled for good") == 1
    for words in (("run", "--resume", "one"), ("retry", "one")):
        refused = folder.bursar(*words, status=2)
        assert "run one was cancelled for good, and cannot be resumed" in refused.stderr
    (row,) = folder.json("runs")["runs"]
    assert row["state"] == "cancelled"

    killed = ("run", "c.toml", "--sites", "s.toml", "--name", "two", "--oversubscribe", "--fresh")
    folder.json(*killed, "--detach", env=environment)
    runner = writer_of(folder.path / "runs" / "two" / "journal.sqlite")
    assert runner is not None
    os.kill(runner.process, signal.SIGKILL)
    until(lambda: writer_of(folder.path / "runs" / "two" / "journal.sqlite") is None)
    assert folder.json("cancel", "two")["state"] == "cancelled"
    assert not (folder.path / "runs" / "two" / "workers.json").exists()

    folder.write("go", "")
    folder.json("run", "c.toml", "--name", "three", "--fresh", env=environment)
    refused = folder.bursar("cancel", "three", status=2)
    assert refused.stderr == "bursar: run three has ended: finished\n"


MORE = """\
[site.more]
kind = "local"
processors = 2
unit_price = "1 EUR/core-hour"
[site.here]
kind = "local"
processors = 7
unit_price = "1 EUR/core-hour"
"""


@pytest.mark.ci
@pytest.mark.parametrize("provisioning", ["planned", "dynamic"])
def test_a_site_is_added_to_a_run_that_goes_on(folder: Any, provisioning: str) -> None:
    """What is left is planned over it as well; adding it again changes nothing."""
    one = "[site.here]\nkind = 'local'\nprocessors = 1\nunit_price = '1 EUR/core-hour'\n"
    folder.write(
        "c.toml", CAMPAIGN.replace("do sleep 0.05; done", "do sleep 0.05; done; sleep 0.5")
    )
    folder.write("s.toml", one)
    folder.write("more.toml", MORE)
    environment = {**os.environ, "GO": str(folder.path / "go")}
    run = RunFolder(folder.path / "runs" / "one")
    refused = folder.bursar("add-site", "one", "--sites", "more.toml", status=2)
    assert "no run" in refused.stderr

    folder.json(*RUN, "--detach", "--provisioning", provisioning, env=environment)
    add = ("add-site", "one", "--sites", "more.toml")
    for _ in range(2):
        said = folder.json(*add, "more")
        assert said == {"run": "one", "added": ["more"], "refused": {}}
    refused = folder.json(*add, "here", status=2)["refused"]
    assert refused == {"here": "the run has another site of the name here"}
    folder.write("dollars.toml", MORE.replace("EUR", "USD").replace("site.more", "site.dollars"))
    refused = folder.json("add-site", "one", "dollars", "--sites", "dollars.toml", status=2)
    assert refused["refused"] == {"dollars": "the run counts in EUR, the site in USD"}
    assert "no site" in folder.bursar(*add, "nowhere", status=2).stderr
    assert [site.name for site in run.read_info().sites] == ["here", "more"]
    folder.write("go", "")
    assert folder.json("attach", "one")["state"] == "finished"
    check_results(run.path)
    journal = read_journal(run.journal_file)
    assert "more" in {r.site for r in journal.records if r.outcome.status == "succeeded"}
    assert [e.text for e in journal.events if "more was added" in e.text]
    assert "no process" in folder.bursar(*add, "more", status=2).stderr
