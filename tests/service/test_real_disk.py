"""The disk that is one: locks, modes, a real full disk, a real kill -9."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tests.service.journal.journal_participant import KIND, Keeper
from tests.small_disk import small_disk

from bursar.model.errors import InputError
from bursar.service import real_disk
from bursar.service.disk import DiskBroken, DiskFull
from bursar.service.interfaces import ServiceError
from bursar.service.journal import SegmentedJournal
from bursar.service.real_disk import RealDisk


def test_a_file_holds_what_was_appended(tmp_path: Path) -> None:
    """Across closing and opening; only for its owner; cut where it is told."""

    async def scenario() -> None:
        disk = RealDisk(tmp_path / "new" / "state")
        file = await disk.open("a.log", create=True)
        await file.append(b"hello ")
        await file.append(b"world")
        await file.sync()
        assert (file.size, await file.read(6, 100)) == (11, b"world")
        await file.truncate(5)
        await file.append(b"!")
        await file.close()
        await disk.replace("b", b"small")
        assert await disk.names() == ["a.log", "b"]
        assert (await disk.load("b"), await disk.load("c")) == (b"small", None)
        again = await disk.open("a.log")
        assert await again.read(0, 100) == b"hello!"
        await again.close()
        empty = await disk.open("a.log", create=True)
        assert empty.size == 0
        await empty.close()
        await disk.remove("b")
        await disk.remove("b")
        assert await disk.names() == ["a.log"]
        with pytest.raises(DiskBroken, match="nothing: No such file"):
            await disk.open("nothing")
        disk.close()

    asyncio.run(scenario())
    folder = tmp_path / "new" / "state"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_one_process_has_it(tmp_path: Path) -> None:
    """The second is told who; after the end the folder is free."""
    disk = RealDisk(tmp_path)
    with pytest.raises(InputError, match=f"is in use by process {os.getpid()}"):
        RealDisk(tmp_path)
    disk.close()
    RealDisk(tmp_path).close()


def test_a_folder_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    """A file is in its place."""
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file: cannot be written: File exists"):
        RealDisk(tmp_path / "file")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """Whoever may write the folder cannot have other files overwritten."""
    (tmp_path / "target").write_bytes(b"precious")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "a.log").symlink_to(tmp_path / "target")

    async def scenario() -> None:
        disk = RealDisk(tmp_path / "state")
        with pytest.raises(DiskBroken):
            await disk.open("a.log", create=True)
        disk.close()

    asyncio.run(scenario())
    assert (tmp_path / "target").read_bytes() == b"precious"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_real_full_disk() -> None:
    """New work is refused, essential records fit into the reserve, with room it goes on."""

    async def scenario(small: Path) -> None:
        disk = RealDisk(small / "state")
        journal = SegmentedJournal(disk, segment_size=100_000, reserve=200_000, least_free=0)
        keeper = Keeper()
        journal.register([KIND], keeper)
        await journal.open()
        other = await disk.open("other", create=True)
        while True:
            try:
                await other.append(bytes(50_000))
            except DiskFull:
                break
        # It thinks that there is room still, and finds out as it writes.
        keeper.add(journal, bytes(100_000))
        await journal.durable()
        assert "disk is full" in journal.problem
        with pytest.raises(ServiceError) as caught:
            keeper.add(journal, b"new")
        assert caught.value.status == 507
        await other.truncate(0)
        while journal.problem:
            await asyncio.sleep(0.01)
        keeper.add(journal, b"new")
        await journal.durable()
        contents = keeper.contents
        await journal.close()
        await other.close()
        disk.close()

        disk = RealDisk(small / "state")
        again = SegmentedJournal(disk, segment_size=100_000, reserve=200_000, least_free=0)
        keeper = Keeper()
        again.register([KIND], keeper)
        assert await again.open() == []
        assert keeper.contents == contents
        await again.close()
        disk.close()

    with small_disk("1m") as small:
        asyncio.run(scenario(small))


WRITER = """
import asyncio, sys
from pathlib import Path
from bursar.service.journal import SegmentedJournal
from bursar.service.real_disk import RealDisk
from tests.service.journal.journal_participant import KIND, Keeper

async def write() -> None:
    journal = SegmentedJournal(
        RealDisk(Path(sys.argv[1])), segment_size=5000, reserve=0, least_free=0, tidy_above=0
    )
    keeper = Keeper()
    journal.register([KIND], keeper)
    await journal.open()
    number = 0
    while True:
        keeper.add(journal, b"%09d" % number)
        if number >= 100:
            keeper.drop(journal, 0)
        await journal.durable()
        print(number, flush=True)
        number += 1

asyncio.run(write())
"""


def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """A real process, killed while it writes and compacts."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "state")],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert writer.stdout is not None
    try:
        last = 0
        while last < 700:
            last = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().split()
        last = int(rest[-1]) if rest else last
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()

    async def scenario() -> None:
        disk = RealDisk(tmp_path / "state")
        journal = SegmentedJournal(disk, segment_size=5000, reserve=0, least_free=0)
        keeper = Keeper()
        journal.register([KIND], keeper)
        await journal.open()
        kept = sorted(int(payload) for payload in keeper.contents)
        # Each turn added one and dropped one of the hundred: together, or not at all.
        assert len(kept) == 100
        assert max(kept) in (last, last + 1)
        await journal.close()
        disk.close()

    asyncio.run(scenario())


def test_too_many_open_files_are_no_broken_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service goes on as with a full one: strangers' connections must not end it."""

    async def scenario() -> None:
        disk = RealDisk(tmp_path / "state")
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", exhausted)
            with pytest.raises(DiskFull, match="Too many open files"):
                await disk.open("file", create=True)
        await (await disk.open("file", create=True)).close()
        disk.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("number", "status", "said"),
    [(errno.EIO, 503, "Input/output error"), (errno.ENOSPC, 507, "No space left")],
)
def test_users_are_not_told_where_the_journal_lies(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
    status: int,
    said: str,
) -> None:
    """What they get names no folder of the machine; the log does."""
    monkeypatch.setattr(real_disk.log, "handlers", [caplog.handler])

    def fail(*arguments: object) -> int:
        raise OSError(number, os.strerror(number))

    async def scenario() -> ServiceError:
        disk = RealDisk(tmp_path / "state")
        journal = SegmentedJournal(disk)
        journal.register([KIND], Keeper())
        await journal.open()
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", fail)
            patch.setattr(os, "posix_fallocate", fail)
            journal.append(KIND, b"something", essential=True)
            with pytest.raises(ServiceError) as refused:
                await journal.durable()
        with suppress(ServiceError):  # it has failed for good
            await journal.close()
        disk.close()
        return refused.value

    error = asyncio.run(scenario())

    assert error.status == status
    assert str(tmp_path) not in error.detail
    assert f"{tmp_path}/state/journal-" in caplog.text
    assert said in caplog.text


def exhausted(*arguments: object, **more: object) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
