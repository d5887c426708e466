"""Workers of a local run that go on when its process is killed, and are taken over."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bursar.dispatch.journal import RunJournal, read_journal, writer_of
from bursar.dispatch.journal_records import JournalState
from bursar.dispatch.linux_processes import has_tasks, kill_leftovers, traces_of, workers_of
from bursar.market.account_records import paid_to
from bursar.market.ledger import Ledger
from bursar.model.money import from_micros, rental_charge
from bursar.runs.folder import RunFolder
from bursar.runs.incarnations import incarnations_of, leases_of

PATIENCE = 120.0
TASKS = 4
CAMPAIGN = f"""\
[campaign]
name = "long"
command = "echo {{x}} >> $STARTED; while ! test -e $GO; do sleep 0.05; done; echo {{x}}"
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
unit_price = "3600 EUR/core-hour"
"""
RUN = ("run", "c.toml", "--sites", "s.toml", "--name", "one", "--oversubscribe")


def until(true: Callable[[], bool]) -> None:
    """Wait for what other processes bring about."""
    ends = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.02)


class KilledRun:
    """A run in a folder, whose process can be killed."""

    def __init__(self, folder: Any) -> None:
        self.commands = folder
        self.identity = ""  # known once it was killed
        self.folder = RunFolder(folder.path / "runs" / "one")
        self.started_file = folder.path / "started"
        self.environment = {
            **os.environ,
            "GO": str(folder.path / "go"),
            "STARTED": str(self.started_file),
            "BURSAR_OWNERS": str(folder.path / "owners.sqlite"),
        }
        folder.write("c.toml", CAMPAIGN)
        folder.write("s.toml", SITES)

    def begin(self) -> None:
        self.commands.json(*RUN, "--detach", env=self.environment)

    def kill(self) -> None:
        """Kill the process that carries the run out, and nothing else."""
        runner = writer_of(self.folder.journal_file)
        assert runner is not None
        os.kill(runner.process, signal.SIGKILL)
        until(lambda: writer_of(self.folder.journal_file) is None)
        self.note_identity()

    def note_identity(self) -> None:
        """Learn by which mark the run's processes are known; nobody carries the run out."""
        journal = RunJournal(self.folder.journal_file)
        self.identity = journal.identity
        journal.close()

    def resume(self, *options: str) -> dict[str, Any]:
        shown: dict[str, Any] = self.commands.json(
            "run", "--resume", "one", *options, env=self.environment
        )
        return shown

    def go(self) -> None:
        """Let the tasks end."""
        self.commands.write("go", "")

    @property
    def started(self) -> list[int]:
        """Parameters of all processes of tasks so far, in their order."""
        if not self.started_file.exists():
            return []
        return [int(line) for line in self.started_file.read_text().split()]

    @property
    def journal(self) -> JournalState:
        return read_journal(self.folder.journal_file)

    def check_end(self) -> None:
        """Each task has one result, the bill is balanced, and nothing is left running."""
        journal = self.journal
        done = Counter(r.outcome.task for r in journal.records if r.outcome.status == "succeeded")
        assert done == Counter(range(TASKS))
        rows = [json.loads(line) for line in self.folder.results_jsonl.read_text().splitlines()]
        assert {row["stdout"] for row in rows} == {f"{x}\n" for x in range(1, TASKS + 1)}
        owed = 0
        for lease in leases_of(journal.events).values():
            assert lease.end is not None
            assert lease.unit_price is not None
            seconds = lease.processors * (lease.end - lease.start)
            owed += rental_charge(seconds, lease.unit_price, lease.fixed_price or 0.0)
        ledger = Ledger(journal.transfers, currency="EUR")
        assert ledger.balance(paid_to("here")) == owed
        assert ledger.held == 0
        bill = json.loads(self.folder.bill_file.read_text())
        assert bill["total"] == pytest.approx(from_micros(owed), abs=1e-6)
        assert not traces_of(self.identity)
        assert not self.folder.worker_contact.exists()


@pytest.fixture
def run(folder: Any) -> Iterator[KilledRun]:
    """A run; whatever it leaves behind is ended."""
    made = KilledRun(folder)
    yield made
    if made.folder.journal_file.exists():
        if writer_of(made.folder.journal_file) is not None:
            made.kill()
        if made.identity:
            kill_leftovers(made.identity)


def test_tasks_go_on_while_nobody_carries_the_run_out_and_are_taken_over(run: KilledRun) -> None:
    """Each task starts once, and one lease pays for both lives."""
    run.begin()
    until(lambda: len(run.started) == 2)
    assert run.folder.worker_contact.stat().st_mode & 0o777 == 0o600
    run.kill()
    workers = workers_of(run.identity)
    assert len(workers) == 2

    run.resume("--detach")
    until(lambda: run.folder.read_info().state == "running")
    assert workers_of(run.identity) == workers
    run.go()

    assert run.commands.json("attach", "one")["state"] == "finished"
    until(lambda: run.folder.results_jsonl.exists())
    assert sorted(run.started) == [1, 2, 3, 4]
    assert list(leases_of(run.journal.events)) == ["lease-1"]
    # The tasks ran while nobody carried the run out: that time counts in reports.
    assert len(incarnations_of(run.journal.events)) == 1
    run.check_end()


CRASH = """\
import os, signal
import bursar.engine.attempt_ends as attempt_ends
import bursar.engine.reactor as reactor
import bursar.engine.run_orders as run_orders
import bursar.worker.launch as launch

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def after(holder, name):
    before = getattr(holder, name)
    def patched(*given, **more):
        before(*given, **more)
        die()
    setattr(holder, name, patched)

async def started(self, *given, spawn=launch.LocalWorkers._spawn):
    await spawn(self, *given)
    die()

match os.environ["CRASH"]:
    case "worker started":
        launch.LocalWorkers._spawn = started
    case "tasks given":
        after(run_orders, "_give")
    case "outcome heard":
        attempt_ends.AttemptReactions.reported = die
    case "outcome durable":
        committed = reactor.committed
        def durable(core, transaction):
            if transaction.records:
                die()
            committed(core, transaction)
        reactor.committed = durable
"""


@pytest.mark.parametrize(
    ("moment", "lets_go", "leases"),
    [
        # It has nothing, and ends unless it had connected: the lease may go on, or another follow.
        pytest.param("worker started", False, None, marks=pytest.mark.ci),
        # Handed out, with no trace in the journal.
        pytest.param("tasks given", False, 1, marks=pytest.mark.ci),
        pytest.param("outcome heard", True, 1, marks=pytest.mark.ci),
        ("outcome durable", True, 1),
    ],
)
def test_a_run_killed_at_a_bad_moment_is_taken_over(
    run: KilledRun, moment: str, lets_go: bool, leases: int | None
) -> None:
    """Each task starts once, whatever the journal has heard of it."""
    (run.commands.path / "patched").mkdir()
    run.commands.write("patched/sitecustomize.py", CRASH)
    patched = [str(run.commands.path / "patched"), os.environ.get("PYTHONPATH", "")]
    environment = {**run.environment, "CRASH": moment, "PYTHONPATH": os.pathsep.join(patched)}
    if lets_go:
        run.go()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "bursar", *RUN, "-q"],
        cwd=run.commands.path,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert process.wait(PATIENCE) == -signal.SIGKILL
    run.note_identity()

    if not lets_go:
        run.go()
    assert run.resume()["state"] == "finished"

    assert sorted(run.started) == [1, 2, 3, 4]
    assert leases is None or len(leases_of(run.journal.events)) == leases
    run.check_end()


SLOW = """\
import asyncio
import bursar.sites.local as local

async def late(self, *given, acquire=local.LocalSite.acquire, **more):
    await asyncio.sleep(0.3)
    return await acquire(self, *given, **more)

local.LocalSite.acquire = late
"""


@pytest.mark.ci
def test_a_lease_is_one_also_where_its_site_answers_late_in_the_next_life(run: KilledRun) -> None:
    """The workers were held meanwhile: nothing of the lease is paid as another one."""
    run.begin()
    until(lambda: len(run.started) == 2)
    run.kill()
    (run.commands.path / "patched").mkdir()
    run.commands.write("patched/sitecustomize.py", SLOW)
    run.go()
    patched = [str(run.commands.path / "patched"), os.environ.get("PYTHONPATH", "")]
    run.environment["PYTHONPATH"] = os.pathsep.join(patched)
    resume = [sys.executable, "-P", "-m", "bursar", "run", "--resume", "one", "-q"]
    subprocess.run(resume, cwd=run.commands.path, env=run.environment, check=True, timeout=PATIENCE)

    states = [json.loads(e.text) for e in run.journal.events if e.kind == "lease"]
    assert [one.get("end") is not None for one in states] == [False, True]
    assert states[0]["start"] == states[1]["start"]
    run.check_end()


@pytest.mark.ci
def test_workers_of_two_killed_lives_are_taken_over_by_the_third(run: KilledRun) -> None:
    run.begin()
    until(lambda: len(run.started) == 2)
    run.kill()
    run.resume("--detach")
    until(lambda: run.folder.read_info().state == "running")
    run.kill()
    run.go()
    assert run.resume()["state"] == "finished"
    assert sorted(run.started) == [1, 2, 3, 4]
    assert list(leases_of(run.journal.events)) == ["lease-1"]
    run.check_end()


@pytest.mark.ci
def test_outcomes_that_came_while_nobody_carried_the_run_out_are_collected(run: KilledRun) -> None:
    """The tasks have ended, and their worker waits to tell of it."""
    run.begin()
    until(lambda: len(run.started) == 2)
    run.kill()
    run.go()
    until(lambda: not has_tasks(run.identity))
    assert run.resume()["attempts"] == TASKS
    assert sorted(run.started) == [1, 2, 3, 4]
    run.check_end()


def test_workers_whose_run_is_not_resumed_kill_their_tasks_and_leave(run: KilledRun) -> None:
    """After the time stated; the tasks run again in the next life."""
    run.environment["BURSAR_OUTLIVES"] = "0.5 s"
    run.begin()
    until(lambda: len(run.started) == 2)
    run.kill()
    until(lambda: not traces_of(run.identity))
    run.go()
    assert run.resume()["attempts"] == TASKS + 2
    assert list(leases_of(run.journal.events)) == ["lease-1", "lease-2"]
    run.check_end()


@pytest.mark.ci
def test_workers_end_with_the_runner_where_that_is_wanted(run: KilledRun) -> None:
    run.environment["BURSAR_OUTLIVES"] = "0"
    run.begin()
    until(lambda: len(run.started) == 2)
    assert not run.folder.worker_contact.exists()
    run.kill()
    until(lambda: not traces_of(run.identity))
    run.environment["BURSAR_OUTLIVES"] = "soon"
    refused = run.commands.bursar("run", "--resume", "one", env=run.environment, status=2)
    assert refused.stderr.startswith("bursar: BURSAR_OUTLIVES: ")


@pytest.mark.ci
def test_stop_ends_the_workers_of_a_run_whose_process_was_killed(run: KilledRun) -> None:
    run.begin()
    until(lambda: len(run.started) == 2)
    run.kill()
    assert run.commands.json("stop", "one") == {"run": "one", "process": None}
    assert not traces_of(run.identity)
    assert run.commands.bursar("stop", "one", status=2).stderr.startswith("bursar: no process")
    run.go()
    assert run.resume()["state"] == "finished"
    run.check_end()


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.ci)])
def test_a_run_that_is_stopped_leaves_no_worker_behind(run: KilledRun, times: int) -> None:
    run.begin()
    until(lambda: len(run.started) == 2)
    for _ in range(times):
        run.commands.bursar("stop", "one", status=None)
    until(lambda: writer_of(run.folder.journal_file) is None)
    run.note_identity()
    assert not traces_of(run.identity)
    assert not run.folder.worker_contact.exists()


@pytest.mark.ci
def test_a_budget_that_does_not_pay_the_break_ends_the_lease(run: KilledRun) -> None:
    """The workers are ended, and no more is paid than there is."""
    run.begin()
    until(lambda: len(run.started) == 2)
    run.kill()
    # 2 EUR are spent in each second.
    stopped = run.commands.json(
        "run", "--resume", "one", "--budget", "0.5 EUR", env=run.environment, status=None
    )
    assert stopped["state"] == "budget-stopped"
    assert not traces_of(run.identity)
    ledger = Ledger(run.journal.transfers, currency="EUR")
    assert ledger.held == 0
    assert ledger.spent <= ledger.funded
