"""
Damage to a run's journal: each is found and named in one line, or changes nothing that is read.

A power cut may tear what was being written, which nobody was told of: that is no damage.
"""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from bursar.database_files import RealFiles
from bursar.dispatch import journal
from bursar.dispatch.journal import (
    RunJournal,
    count_statuses,
    read_attempts,
    read_journal,
)
from bursar.dispatch.journal_chain import JournalHead, head_path, read_head
from bursar.dispatch.journal_records import (
    AttemptRecord,
    AttemptStart,
    JournalState,
    RunEvent,
)
from bursar.model.errors import InputError
from bursar.model.money import Transfer
from bursar.model.task import Outcome, Status
from bursar.sqlite_file import connect

PAGE = 4096
KINDS = ("flip", "truncate", "zero", "swap", "no log", "garbage")


@pytest.fixture(autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's key is this test's own."""
    folder = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    return folder


def fill(journal: RunJournal, transactions: int, first: int = 0) -> None:
    """What a run writes: starts, then outcomes with money and now and then an event."""
    for number in range(first, first + transactions):
        tasks = range(3 * number, 3 * number + 3)
        at = 100.0 + number
        journal.commit(
            starts=[AttemptStart(t, 1, "here", "lease-1", "w1", 2, 1, at) for t in tasks]
        )
        outcomes = [
            Outcome(
                task=task,
                attempt=1,
                status=Status.SUCCEEDED,
                exit_code=0,
                start=at,
                end=at + 0.5,
                stdout=b"%d " % task * 40,
            )
            for task in tasks
        ]
        journal.commit(
            [AttemptRecord(outcome, True, "here", "lease-1") for outcome in outcomes],
            [Transfer(0, at, "", "hold", "budget", "held:lease-1", 1 + number)],
            [RunEvent(at, "message", f"transaction {number}")] if number % 5 == 0 else [],
        )
        if number % 20 == 0:
            journal.beat(at)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """A journal that was closed, and one whose process was killed with all of it in the log."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        closed, killed = (tmp_path_factory.mktemp(name) for name in ("closed", "killed"))
        with closing(RunJournal(closed / "journal.sqlite")) as journal:
            fill(journal, 60)
        open_in = tmp_path_factory.mktemp("open")
        with closing(RunJournal(open_in / "journal.sqlite")) as journal:
            fill(journal, 40)
            journal._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            fill(journal, 40, 40)
            for file in open_in.iterdir():
                if not file.name.endswith(("-shm", ".lock")):
                    shutil.copy(file, killed)
        yield closed, killed


def damage(folder: Path, rng: np.random.Generator) -> str:
    """Damages one of the journal's files; what was done."""
    files = [folder / "journal.sqlite", folder / "journal.sqlite-wal"]
    file = files[rng.integers(2)] if files[1].exists() else files[0]
    content = bytearray(file.read_bytes())
    kind = str(rng.choice(KINDS))
    place = int(rng.integers(len(content)))
    if kind == "no log" and files[1].exists():
        files[1].unlink()
        return kind
    if kind == "truncate":
        del content[place:]
    elif kind == "zero":
        start = place // PAGE * PAGE
        content[start : start + PAGE] = bytes(len(content[start : start + PAGE]))
    elif kind == "swap":
        pages = len(content) // PAGE
        one, other = (int(p) * PAGE for p in rng.integers(pages, size=2))
        first, second = content[one : one + PAGE], content[other : other + PAGE]
        content[one : one + PAGE], content[other : other + PAGE] = second, first
    elif kind == "garbage":
        end = min(len(content), place + int(rng.integers(1, 200)))
        content[place:end] = rng.bytes(end - place)
    else:
        content[place] ^= 1 << int(rng.integers(8))
    file.write_bytes(bytes(content))
    return f"{kind} of {file.name} at {place}"


def told_of(folder: Path) -> JournalState | str:
    """What its readers give, or the line in which they refuse."""
    path = folder / "journal.sqlite"
    try:
        found = read_journal(path)
        count_statuses(path)
        read_attempts(path, 5)
    except InputError as error:
        return str(error) if error.exit_status == 2 else "with another exit status"
    return found


def is_named(line: str) -> bool:
    """Whether one line says which file, what in it, and what to do."""
    what = ("row", "table", "transaction", "task ", "database", "header", "page", "format")
    return "\n" not in line and "journal.sqlite" in line and any(word in line for word in what)


def damaged_at_random(folders: tuple[Path, Path], room: Path, seed: int) -> bool:
    """One damage; whether it was found."""
    rng = np.random.default_rng(seed)
    original = folders[int(rng.integers(2))]
    before = told_of(original)
    assert isinstance(before, JournalState)
    shutil.copytree(original, room)
    done = damage(room, rng)
    reader, writer = room.with_name("reader"), room
    shutil.copytree(room, reader)
    found = told_of(reader)
    if isinstance(found, str):
        assert is_named(found), (done, found)
    else:
        assert found == before, done
        with closing(sqlite3.connect(reader / "journal.sqlite")) as db:
            assert db.execute("SELECT count(*) FROM attempts").fetchone()[0] == len(found.records)
    # Who would go on with it finds the same.
    try:
        with closing(RunJournal(writer / "journal.sqlite")) as journal:
            again: JournalState | str = journal.load()
    except InputError as error:
        again = str(error)
    assert isinstance(again, str) == isinstance(found, str), (done, found, again)
    if isinstance(again, str):
        assert is_named(again), (done, again)
    return isinstance(found, str)


def test_some_damages(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """40 at random: found and named, or harmless."""
    found = sum(damaged_at_random(folders, tmp_path / str(s) / "run", s) for s in range(40))
    assert found >= 30  # most of a journal's bytes mean something


@pytest.mark.long
def test_500_damages(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """The same, 500 times."""
    found = sum(damaged_at_random(folders, tmp_path / str(s) / "run", s) for s in range(1000, 1500))
    assert found >= 400


@pytest.mark.parametrize(
    ("script", "named"),
    [
        ("DELETE FROM transfers WHERE number = 3", "row 3 of table transfers is missing"),
        ("UPDATE transfers SET transfer = x'00' WHERE number = 4", "row 4 of table transfers"),
        ("DELETE FROM attempts WHERE task = 7", "table attempts"),
        ("UPDATE attempts SET status = 'failed' WHERE task = 7", "table attempts was changed"),
        ("UPDATE events SET text = 'nothing to see' WHERE number = 2", "row 2 of table events"),
        ("INSERT INTO events VALUES (99, 1.0, 'lease', '{}')", "of table events"),
        ("DELETE FROM starts WHERE number = 1", "row 1 of table starts is missing"),
        ("UPDATE commits SET attempts = attempts + 1 WHERE number = 9", "row 9 of table commits"),
        ("UPDATE meta SET value = 'x' WHERE key = 'identity'", "identity in table meta"),
        ("UPDATE meta SET value = '9' WHERE key = 'alive'", "row alive of table meta"),
        ("DELETE FROM meta WHERE key = 'format'", "another program's database"),
        ("DROP TABLE attempts", "table attempts cannot be read"),
        (
            "DELETE FROM commits WHERE number = (SELECT max(number) FROM commits)",
            "the last 1 of 60 transactions are missing",
        ),
    ],
)
def test_what_another_program_changes_is_named(
    folders: tuple[Path, Path], tmp_path: Path, script: str, named: str
) -> None:
    """Rows that were deleted, altered or added, as a task of the run may: it is the same user."""
    shutil.copytree(folders[0], tmp_path / "run")
    with closing(sqlite3.connect(tmp_path / "run" / "journal.sqlite")) as db:
        db.execute(script)
        db.commit()
    found = told_of(tmp_path / "run")
    assert isinstance(found, str)
    assert named in found
    assert is_named(found)


def test_a_head_that_is_missing_or_damaged_is_found(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    shutil.copytree(folders[0], tmp_path / "run")
    head = head_path(tmp_path / "run" / "journal.sqlite")
    head.write_bytes(head.read_bytes().replace(b"1", b"2"))
    found = told_of(tmp_path / "run")
    assert isinstance(found, str)
    assert "journal.sqlite.head: is damaged" in found
    head.unlink()
    found = told_of(tmp_path / "run")
    assert isinstance(found, str)
    assert "journal.sqlite.head: is missing" in found


def test_a_journal_that_is_made_while_somebody_looks_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader finds no head, and then the tables that were made just after."""
    path = tmp_path / "journal.sqlite"
    path.touch()
    looks = []

    def read_head_before_it_is_made(of: Path) -> JournalHead | None:
        head = read_head(of)
        looks.append(of)
        if len(looks) > 1:
            return head
        with closing(RunJournal(path)) as made:
            fill(made, 2)
        return head

    monkeypatch.setattr(journal, "read_head", read_head_before_it_is_made)

    assert len(read_journal(path).records) == 6


def test_a_journal_whose_making_was_interrupted_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its head is there before its tables, and says of no transaction that it is missing."""
    path = tmp_path / "journal.sqlite"

    note = RealFiles.note

    def interrupted(files: RealFiles, data: bytes, *, durably: bool = False) -> None:
        note(files, data, durably=durably)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RealFiles, "note", interrupted)
        with pytest.raises(KeyboardInterrupt):
            RunJournal(path)
    assert head_path(path).exists()

    with closing(RunJournal(path)) as journal:
        fill(journal, 1)
    assert len(read_journal(path).records) == 3


def test_what_a_power_cut_tears_is_no_damage(tmp_path: Path) -> None:
    """The end of the log is torn in a transaction of which nobody was told: it is not there."""
    path = tmp_path / "run" / "journal.sqlite"
    path.parent.mkdir()
    with closing(RunJournal(path)) as journal:
        fill(journal, 5)
        before = read_journal(path)
        head = head_path(path).read_bytes()
        acknowledged = path.with_name("journal.sqlite-wal").stat().st_size
        fill(journal, 1, 5)
        after = read_journal(path)
        log = path.with_name("journal.sqlite-wal").read_bytes()
        for cut in range(acknowledged, len(log) + 1, 997):
            torn = tmp_path / f"torn{cut}"
            torn.mkdir()
            shutil.copy(path, torn)
            (torn / "journal.sqlite-wal").write_bytes(log[:cut])
            (torn / "journal.sqlite.head").write_bytes(head)
            found = told_of(torn)
            assert isinstance(found, JournalState)
            assert found.records in (before.records, after.records)
            with closing(RunJournal(torn / "journal.sqlite")) as again:
                fill(again, 1, 6)  # and it goes on
            assert isinstance(told_of(torn), JournalState)


FORGE = """
import sqlite3, sys
from pathlib import Path
from bursar.dispatch.journal_chain import *

path = Path(sys.argv[1])
db = sqlite3.connect(path, isolation_level=None)
identity = db.execute("SELECT value FROM meta WHERE key = 'identity'").fetchone()[0]
db.execute("DELETE FROM transfers WHERE number > 10")
columns = ",".join(JournalCommit._fields)
rows = db.execute(f"SELECT {columns} FROM commits ORDER BY number").fetchall()
last = genesis_commit(identity)
for row in map(JournalCommit._make, rows):
    added = []
    for table, columns in TABLES.items():
        begin, end = getattr(last, table), getattr(row, table)
        where = f"WHERE number > {begin} AND number <= {end} ORDER BY number"
        added.append(db.execute(f"SELECT {columns} FROM {table} {where}").fetchall())
    last = next_commit(last, added, None)._replace(seal=row.seal)
    db.execute("DELETE FROM commits WHERE number = ?", (last.number,))
    insert_commit(db, last)
head_path(path).write_bytes(head_to_bytes(JournalHead(last.number, last.digest)))
"""


def test_a_chain_that_was_recomputed_lacks_the_seal(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who deletes payments and makes all digests anew with our own code still needs the key."""
    path = tmp_path / "run" / "journal.sqlite"
    path.parent.mkdir()
    with closing(RunJournal(path)) as journal:
        fill(journal, 30)
    assert read_journal(path).seal == "valid"
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "elsewhere")}
    subprocess.run([sys.executable, "-c", FORGE, str(path)], check=True, env=environment)
    with pytest.raises(InputError, match="row 30 of table commits has a seal that does not fit"):
        read_journal(path)
    # Where the key is not at hand nobody can tell, and the reader says so.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    forged = read_journal(path)
    assert (forged.seal, len(forged.transfers)) == ("foreign", 10)


def test_what_is_changed_under_a_run_is_found_by_it(tmp_path: Path) -> None:
    """The process that writes holds the chain's head: a task cannot go behind it."""
    path = tmp_path / "journal.sqlite"
    with closing(RunJournal(path)) as journal:
        fill(journal, 3)
        with closing(connect(path, synchronous="OFF")) as db:
            db.execute("DELETE FROM commits WHERE number = 6")
            db.execute("DELETE FROM transfers WHERE number = 3")
        fill(journal, 1, 3)
        with pytest.raises(InputError, match=r"transfers is missing|commits was changed"):
            journal.load()
        with closing(connect(path, synchronous="OFF")) as db:
            db.execute("INSERT INTO transfers VALUES (5, x'00')")
        with pytest.raises(InputError, match="another program wrote into it"):
            fill(journal, 1, 4)
