"""The disk that is one: locks, modes, a real full disk, a real kill -9."""

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.small_disk import small_disk
from tests.store.keeper import KIND, Keeper

from bursar.model.errors import InputError
from bursar.store import DiskBroken, DiskFull, RealDisk, RecordStore


async def opened(
    folder: Path, *, log_size: int = 1 << 20, reserve: int = 0
) -> tuple[RealDisk, RecordStore, Keeper]:
    """Open a store in a folder of this machine."""
    disk = RealDisk(folder)
    store = RecordStore(disk, log_size=log_size, reserve=reserve, least_free=0)
    keeper = Keeper()
    store.register([KIND], keeper)
    await store.open()
    return disk, store, keeper


def test_small_files_are_replaced_as_a_whole(tmp_path: Path) -> None:
    """All files are for their owner only; what a killed process left half done is cleared away."""
    folder = tmp_path / "new" / "state"
    disk = RealDisk(folder)
    assert disk.load("a") is None
    disk.replace("a", b"small")
    disk.replace("a", b"other")
    assert disk.load("a") == b"other"
    assert disk.noted() == b""
    for noted in (b"one", b"two"):
        disk.note(noted)
        assert disk.noted() == noted
    disk.prepare()
    assert disk.names() == ["a", "store.head", "store.sqlite"]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    disk.close()
    (folder / ".new-a").write_bytes(b"half")
    RealDisk(folder).close()
    assert not (folder / ".new-a").exists()


def test_the_files_of_a_store_are_for_their_owner_only(tmp_path: Path) -> None:
    """The write-ahead log, too."""

    async def scenario() -> None:
        disk, store, keeper = await opened(tmp_path / "state")
        keeper.add(store, b"secret")
        await store.durable()
        modes = {path.name: path.stat().st_mode & 0o777 for path in disk.folder.iterdir()}
        assert set(modes.values()) == {0o600}
        assert {"store.sqlite", "store.sqlite-wal"} < set(modes)
        await store.close()
        assert not (disk.folder / "store.sqlite-wal").exists()
        disk.close()

    asyncio.run(scenario())


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


@pytest.mark.parametrize("name", ["store.sqlite", "store.head", ".reserve"])
def test_a_link_is_not_followed(tmp_path: Path, name: str) -> None:
    """Whoever may write the folder cannot have other files overwritten."""
    (tmp_path / "target").write_bytes(b"precious")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / name).symlink_to(tmp_path / "target")

    disk = RealDisk(tmp_path / "state")
    for act in (disk.prepare, lambda: disk.note(b"x"), lambda: disk.reserve(1)):
        with contextlib.suppress(DiskBroken):
            act()
    disk.close()

    assert (tmp_path / "target").read_bytes() == b"precious"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_real_full_disk() -> None:
    """New work is refused, essential records fit into the reserve, with room it goes on."""

    async def scenario(small: Path) -> None:
        disk, store, keeper = await opened(small / "state", reserve=2_000_000)
        other = small / "other"
        fill(other)
        # It thinks that there is room still, and finds out as it writes.
        keeper.add(store, bytes(1_000_000))
        await store.durable()
        assert "disk is full" in store.problem
        with pytest.raises(DiskFull):
            keeper.add(store, b"new")
        other.unlink()
        while store.problem:
            await asyncio.sleep(0.01)
        keeper.add(store, b"new")
        await store.durable()
        fill(other)
        # More than the reserve: what was accepted waits for room.
        keeper.add(store, bytes(5_000_000), essential=True)
        with pytest.raises(DiskFull):
            await store.durable()
        other.unlink()
        await store.durable()
        contents = keeper.contents
        await store.close()
        disk.close()

        disk, store, keeper = await opened(small / "state", reserve=2_000_000)
        assert keeper.contents == contents
        await store.close()
        disk.close()

    with small_disk("12m") as small:
        asyncio.run(scenario(small))


def fill(path: Path) -> None:
    """Take all room that is left, to the last byte."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(50_000)):
            pass


WRITER = """
import asyncio, sys
from pathlib import Path
from tests.store.test_real_disk import opened

async def write() -> None:
    disk, store, keeper = await opened(Path(sys.argv[1]), log_size=50_000)
    number = 0
    while True:
        keeper.add(store, b"%09d" % number)
        if number >= 100:
            keeper.drop(store, 0)
        await store.durable()
        print(number, flush=True)
        number += 1

asyncio.run(write())
"""


def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """A real process, killed while it writes and merges its log."""
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
        disk, store, keeper = await opened(tmp_path / "state")
        kept = sorted(int(payload) for _, payload in keeper.contents)
        # Each turn added one and dropped one of the hundred: together, or not at all.
        assert len(kept) == 100
        assert max(kept) in (last, last + 1)
        await store.close()
        disk.close()

    asyncio.run(scenario())


def test_too_many_open_files_are_no_broken_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service goes on as with a full one: strangers' connections must not end it."""
    disk = RealDisk(tmp_path / "state")
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", exhausted)
        with pytest.raises(DiskFull, match="Too many open files"):
            disk.note(b"x")
    disk.note(b"x")
    disk.close()


def test_users_are_not_told_where_the_store_lies(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What they get names no folder of the machine; the log does."""

    async def scenario() -> DiskBroken:
        disk, store, keeper = await opened(tmp_path / "state")
        keeper.add(store, b"something")
        store._table._db.execute("PRAGMA query_only=1")
        with pytest.raises(DiskBroken) as refused:
            await store.durable()
        with contextlib.suppress(DiskBroken):  # it has failed for good
            await store.close()
        disk.close()
        return refused.value

    error = asyncio.run(scenario())

    assert "readonly database" in str(error)
    assert str(tmp_path) not in str(error)
    assert f"{tmp_path}/state/store.sqlite: attempt to write" in caplog.text


def exhausted(*arguments: object, **more: object) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
