"""A journal that another process locks is waited for; so is every other SQLite file."""

import asyncio
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw
import pytest
from tests.dispatch.conftest import Room

from bursar.dispatch.journal import RunJournal, read_journal
from bursar.dispatch.journal_records import RunEvent
from bursar.engine.dispatcher import Dispatcher
from bursar.model.errors import BursarError
from bursar.model.task import Shell, Task
from bursar.sqlite_file import LockWaitingConnection, connect, transaction
from bursar.worker.launch import LocalWorkers

HOLD = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
db.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
db.execute("ROLLBACK")
"""


@contextmanager
def held(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until its input ends."""
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.stdin.close()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody is told at once."""
    monkeypatch.setattr("bursar.sqlite_file.NOTIFY_AFTER", 0.0)


@pytest.mark.usefixtures("soon")
def test_a_locked_journal_is_waited_for_and_said_so(tmp_path: Path) -> None:
    """One line when it begins, one when it ends, and what was to be written is there."""
    said: list[str] = []
    path = tmp_path / "journal.sqlite"
    with closing(RunJournal(path, notify=said.append)) as journal:
        journal.commit(events=[RunEvent(1.0, "message", "before")])
        with held(path) as other:
            writing = threading.Thread(
                target=journal.commit, kwargs={"events": [RunEvent(2.0, "message", "after")]}
            )
            writing.start()
            until(lambda: bool(said))
            # Readers go on meanwhile.
            assert [event.text for event in read_journal(path).events] == ["before"]
            assert writing.is_alive()
            assert other.stdin is not None
            other.stdin.close()
            writing.join(60.0)
        assert [event.text for event in journal.load().events] == ["before", "after"]
    waits, ends = said
    assert waits == f"{path} is locked by another process: waiting for it, up to 600 s"
    assert ends.startswith(f"{path} is free again after ")


@pytest.mark.usefixtures("soon")
def test_a_run_goes_on_while_its_journal_is_locked(room: Room) -> None:
    """The loop stands still for nobody: what runs goes on, and nobody is lost."""
    said: list[str] = []
    room.journal._db.notify = said.append
    tasks = [Task(id=f"t{i}", steps=(Shell("true"),)) for i in range(40)]
    moments: list[float] = []

    async def meanwhile(dispatcher: Dispatcher, _: LocalWorkers) -> None:
        loop = asyncio.get_running_loop()
        with held(room.path / "journal.sqlite") as other:
            dispatcher.store.beat()
            dispatcher.store.note("message", "while it is locked")
            while len(said) < 1 or len(moments) < 50:
                moments.append(loop.time())
                await asyncio.sleep(0.01)
            assert dispatcher.store.fault is None
            assert other.stdin is not None
            other.stdin.close()

    outcomes = room.carry_out(tasks, meanwhile=meanwhile)

    assert [outcome.status for outcome in outcomes] == ["succeeded"] * 40
    assert [outcome.attempt for outcome in outcomes] == [1] * 40
    assert len(said) % 2 == 0
    # The loop had its turns while the journal's thread waited.
    assert len(moments) >= 50


def test_a_lock_that_never_ends_is_one_line(tmp_path: Path) -> None:
    """After the patience, which is long, what was to be written is not there."""
    path = tmp_path / "journal.sqlite"
    with closing(RunJournal(path)) as journal:
        journal._db.patience = 0.1
        with held(path), pytest.raises(BursarError, match="another process has locked it"):
            journal.commit(events=[RunEvent(2.0, "message", "never")])
        journal.commit(events=[RunEvent(3.0, "message", "later")])
        assert [event.text for event in journal.load().events] == ["later"]


def test_an_old_view_is_not_waited_with(tmp_path: Path) -> None:
    """A reader that would write has to begin anew: asking again would not help it."""
    path = tmp_path / "any.sqlite"
    with (
        closing(connect(path, synchronous="OFF")) as one,
        closing(connect(path, synchronous="OFF")) as other,
    ):
        one.execute("PRAGMA journal_mode=WAL")
        one.execute("CREATE TABLE t (x)")
        other.execute("BEGIN")
        other.execute("SELECT * FROM t").fetchall()
        with transaction(one):
            one.execute("INSERT INTO t VALUES (1)")
        began = time.monotonic()
        with pytest.raises(apsw.BusyError):
            other.execute("INSERT INTO t VALUES (2)")
        assert time.monotonic() - began < LockWaitingConnection.patience / 2


def test_every_sqlite_file_is_opened_in_one_way() -> None:
    """So that none lacks the pragmas, the waiting and the messages."""
    source = Path(__file__).parents[2] / "src" / "bursar"
    opens = [
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if re.search(r"apsw\.Connection\(|LockWaitingConnection\(|import sqlite3", path.read_text())
    ]
    assert opens == ["sqlite_file.py"]


def until(true: object) -> None:
    """Waits for what another thread brings about."""
    assert callable(true)
    give_up = time.monotonic() + 60.0
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.01)
