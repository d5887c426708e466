"""Locks on files, and what is said of who holds them."""

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bursar.dispatch.journal import RunJournal
from bursar.locking import LockHeldElsewhere, is_locked, lock_holder, take_lock
from bursar.model.errors import InputError


def test_the_second_is_told_who_holds_it(tmp_path: Path) -> None:
    """
    When the first has closed it, it is free.
    """
    path = tmp_path / "lock"
    assert not is_locked(path)
    lock = take_lock(path)
    assert is_locked(path)
    with pytest.raises(LockHeldElsewhere) as refused:
        take_lock(path)
    assert refused.value.holder == f"process {os.getpid()}"
    os.close(lock)
    assert not is_locked(path)
    os.close(take_lock(path))


def test_a_holder_on_another_machine_is_named_with_the_machine(tmp_path: Path) -> None:
    """A folder may be shared by machines; there the number of a process means nothing."""
    path = tmp_path / "lock"
    lock = take_lock(path)
    mine = lock_holder(path)
    assert mine is not None
    assert (mine.process, mine.is_here) == (os.getpid(), True)
    os.truncate(path, 0)
    os.pwrite(lock, b"4711 login2.example", 0)
    theirs = lock_holder(path)
    assert theirs is not None
    assert not theirs.is_here
    assert str(theirs) == "process 4711 on login2.example"
    os.close(lock)
    assert lock_holder(path) is None


@pytest.mark.parametrize("said", [b"", b"None", b"\xff\xfe"])
def test_a_holder_that_has_not_said_who_it_is_is_another_process(
    tmp_path: Path, said: bytes
) -> None:
    """
    Between taking the lock and writing its number into it, nobody knows which.
    """
    lock = tmp_path / "journal.sqlite.lock"
    lock.write_bytes(said)
    with lock.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert is_locked(lock)
        with pytest.raises(InputError) as refused:
            RunJournal(tmp_path / "journal.sqlite")
    assert refused.value.message == "is being carried out by another process"


def test_who_only_looks_keeps_nobody_out(tmp_path: Path) -> None:
    """
    To see whether a lock is held one has to have it for a moment, shared with others who look.
    """
    path = tmp_path / "lock"
    os.close(take_lock(path))
    looking = path.open("rb")
    fcntl.flock(looking, fcntl.LOCK_SH)
    later = threading.Timer(0.1, looking.close)
    later.start()
    lock = take_lock(path)
    later.join()
    assert is_locked(path)
    os.close(lock)


def test_a_lock_is_never_refused_by_those_who_look(tmp_path: Path) -> None:
    """
    Processes that look all the time, and one that takes the lock again and again.
    """
    path = tmp_path / "lock"
    os.close(take_lock(path))
    look = "import sys; from bursar.locking import is_locked\nwhile True: is_locked(sys.argv[1])"
    lookers = [subprocess.Popen([sys.executable, "-c", look, str(path)]) for _ in range(2)]
    try:
        for _ in range(300):
            os.close(take_lock(path))
    finally:
        for looker in lookers:
            looker.kill()
            looker.wait()
    assert not is_locked(path)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """
    What it leads to would be emptied.
    """
    precious = tmp_path / "precious"
    precious.write_text("all of it")
    (tmp_path / "lock").symlink_to(precious)
    with pytest.raises(OSError, match="symbolic links"):
        take_lock(tmp_path / "lock")
    assert precious.read_text() == "all of it"
