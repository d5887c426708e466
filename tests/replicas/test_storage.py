"""A storage: what was brought goes again when there is no room, what is needed stays."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.replicas.servers import sha256
from tests.small_disk import small_disk
from tests.thoroughness import examples

from bursar.model.errors import InputError
from bursar.replicas.content import LogicalFileContent, StorageFull, TargetFailed
from bursar.replicas.parts import CopyOrigin, FileInUse
from bursar.replicas.site_storage import MayGo
from bursar.replicas.stager import open_storage
from bursar.replicas.storage import FolderStorage, PendingFolderFile


def freely(name: str, place: str) -> bool:
    """Anything may go."""
    return True


def content(data: bytes) -> LogicalFileContent:
    """Of these bytes."""
    return LogicalFileContent(len(data), sha256(data))


def begun(
    storage: FolderStorage, name: str, data: bytes, may_go: MayGo = freely, *, keep: bool = False
) -> PendingFolderFile | None:
    """A file on its way, all of its bytes there."""
    incoming = storage.begin(
        name, LogicalFileContent() if keep else content(data), may_go, keep=keep
    )
    if incoming is not None:
        incoming.sink.set_origin(CopyOrigin("somewhere"))
        incoming.sink.write(data[incoming.sink.length :])
    return incoming


def bring(
    storage: FolderStorage, name: str, data: bytes, may_go: MayGo = freely, *, keep: bool = False
) -> bool:
    """Brings a file; False when it was there."""
    incoming = begun(storage, name, data, may_go, keep=keep)
    if incoming is None:
        return False
    try:
        incoming.commit(content(data), may_go)
    finally:
        incoming.discard()
    return True


def pinned(storage: FolderStorage, name: str, data: bytes, job: str = "job") -> bool:
    """Whether it is there; held then."""
    return name in storage.pin({name: content(data)}, job)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[FolderStorage]:
    """For ten bytes."""
    with FolderStorage(tmp_path / "s", limit=10) as storage:
        yield storage


def test_a_file_lies_under_its_name(storage: FolderStorage) -> None:
    """Where people find it."""
    assert bring(storage, "a/b", b"hello")

    assert (storage.folder / "a/b").read_bytes() == b"hello"
    assert storage.pin({"a/b": content(b"hello")}, "job") == {"a/b": str(storage.folder / "a/b")}
    assert not bring(storage, "a/b", b"hello")
    assert (storage.used, storage.cached) == (5, ["a/b"])
    assert list((storage.folder / ".bursar/parts").iterdir()) == []


def test_the_least_recently_used_goes_first(storage: FolderStorage) -> None:
    """Being brought is a use, and so is being asked for."""
    for name in "abc":
        bring(storage, name, b"123")
    pinned(storage, "a", b"123")
    storage.release("job")

    bring(storage, "d", b"123")

    assert storage.cached == ["c", "a", "d"]
    assert not (storage.folder / "b").exists()


def test_what_a_job_holds_stays(storage: FolderStorage) -> None:
    """Nothing goes when it would not be enough anyhow."""
    for name in "abc":
        bring(storage, name, b"123")
    for name in "ab":
        pinned(storage, name, b"123")

    with pytest.raises(StorageFull, match=r"no room for 5 bytes: .* take 9 of 10") as caught:
        bring(storage, "d", b"12345")
    assert caught.value.transient
    assert storage.cached == ["c", "a", "b"]
    storage.release("job")
    assert bring(storage, "d", b"12345")


def test_a_file_larger_than_the_limit_never_fits(storage: FolderStorage) -> None:
    """And trying again does not help."""
    with pytest.raises(StorageFull) as caught:
        bring(storage, "a", bytes(11))
    assert not caught.value.transient


def test_a_size_that_was_not_known_needs_room_in_the_end(storage: FolderStorage) -> None:
    """Then others go, or it does."""
    bring(storage, "a", b"12345")
    incoming = storage.begin("b", LogicalFileContent(), freely)
    assert incoming is not None
    incoming.sink.write(b"123456")
    incoming.commit(content(b"123456"), freely)
    assert storage.cached == ["b"]
    incoming = storage.begin("c", LogicalFileContent(), freely)
    assert incoming is not None
    incoming.sink.write(bytes(11))
    with pytest.raises(StorageFull):
        incoming.commit(content(bytes(11)), freely)
    incoming.discard()
    assert (storage.used, storage.cached) == (6, ["b"])


def test_what_must_not_go_is_passed_over(storage: FolderStorage) -> None:
    """The last copy of a file, say."""
    for name in "ab":
        bring(storage, name, b"12345")

    assert bring(storage, "c", b"12345", lambda name, place: name != "a")
    assert storage.cached == ["a", "c"]


def test_what_is_kept_takes_no_room_and_never_goes(storage: FolderStorage) -> None:
    """However much is brought."""
    assert bring(storage, "out", bytes(100), keep=True)
    for name in "abcd":
        bring(storage, name, b"12345")

    assert storage.used == 10
    assert pinned(storage, "out", bytes(100))


def test_a_name_is_kept_once(storage: FolderStorage) -> None:
    """The same again is nothing new; something else is refused and leaves nothing."""
    bring(storage, "out", b"one", keep=True)
    bring(storage, "out", b"one", keep=True)
    for keep in (True, False):
        with pytest.raises(InputError, match="out: is there already, with 3 bytes"):
            bring(storage, "out", b"two", keep=keep)
    assert (storage.folder / "out").read_bytes() == b"one"
    assert list((storage.folder / ".bursar/parts").iterdir()) == []


def test_a_file_that_lay_there_before_is_never_overwritten(storage: FolderStorage) -> None:
    """If it is the one, it is there already; otherwise that is said."""
    (storage.folder / "mine").write_bytes(b"one")

    with pytest.raises(InputError, match="mine: is there already, with 3 bytes, sha256:"):
        bring(storage, "mine", b"two")
    assert not bring(storage, "mine", b"one")
    assert pinned(storage, "mine", b"one")
    assert storage.used == 0


def test_a_file_that_somebody_deleted_or_damaged_is_brought_again(storage: FolderStorage) -> None:
    """It is not counted twice."""
    bring(storage, "a", b"12345")
    (storage.folder / "a").unlink()
    assert not pinned(storage, "a", b"12345")
    assert bring(storage, "a", b"12345")
    (storage.folder / "a").write_bytes(b"1234")
    assert not pinned(storage, "a", b"12345")
    assert bring(storage, "a", b"12345")
    assert (storage.used, (storage.folder / "a").read_bytes()) == (5, b"12345")


def test_a_file_in_doubt_is_read_before_it_is_used_again(storage: FolderStorage) -> None:
    """Damage that keeps the size is found that way."""
    bring(storage, "a", b"12345")
    storage.doubt(["a", "unknown"])
    assert not pinned(storage, "a", b"12345")
    assert not bring(storage, "a", b"12345")
    assert pinned(storage, "a", b"12345")
    (storage.folder / "a").write_bytes(b"54321")
    storage.doubt(["a"])
    assert bring(storage, "a", b"12345")
    assert (storage.folder / "a").read_bytes() == b"12345"


def test_a_file_in_doubt_that_a_job_holds_does_not_go(storage: FolderStorage) -> None:
    """Nor one that must not go; otherwise it makes room."""
    for name in "ab":
        bring(storage, name, b"12345")
    pinned(storage, "a", b"12345")
    storage.doubt(["a", "b"])

    with pytest.raises(StorageFull):
        bring(storage, "c", b"12345", lambda name, place: False)
    assert bring(storage, "c", b"12345")
    assert (storage.folder / "a").exists()
    assert not (storage.folder / "b").exists()


def test_one_brings_a_file_at_a_time(storage: FolderStorage, tmp_path: Path) -> None:
    """Another one is told, in this process and in others; who gives up leaves the rest."""
    incoming = begun(storage, "a", b"12345")
    assert incoming is not None
    with FolderStorage(tmp_path / "s", limit=10) as other:
        with pytest.raises(FileInUse):
            begun(other, "a", b"12345")
        incoming.close()
        again = other.begin("a", content(b"12345"), freely)
        assert again is not None
        assert again.sink.length == 5
        again.commit(content(b"12345"), freely)
        assert storage.used == 5


def test_room_is_taken_while_a_file_is_on_its_way(storage: FolderStorage) -> None:
    """Two that come at once cannot both have it."""
    first = begun(storage, "a", b"123456")
    with pytest.raises(StorageFull):
        begun(storage, "b", b"123456")
    assert first is not None
    first.close()
    second = begun(storage, "b", b"123456")  # nobody is at the first one any more
    assert second is not None
    second.commit(content(b"123456"), freely)
    assert (storage.used, storage.cached) == (6, ["b"])


HOLDER = """
import sys
from bursar.replicas.content import LogicalFileContent
from bursar.replicas.storage import FolderStorage

storage = FolderStorage(sys.argv[1], limit=10)
storage.pin({"a": LogicalFileContent()}, "job")
print("held", flush=True)
sys.stdin.read()
"""


def test_what_a_killed_process_held_may_go(storage: FolderStorage) -> None:
    """Not before: another process holds it as well as this one."""
    bring(storage, "a", b"123456")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(storage.folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StorageFull):
            bring(storage, "b", b"123456")
        holder.kill()
        holder.wait()
    assert bring(storage, "b", b"123456")
    assert len(list((storage.folder / ".bursar/owners").iterdir())) == 1


def test_nothing_is_written_outside_of_the_folder(storage: FolderStorage, tmp_path: Path) -> None:
    """Neither by a name nor by a link on the way."""
    (tmp_path / "outside").mkdir()
    (storage.folder / "link").symlink_to(tmp_path / "outside")

    for name in ("link/a", "link/a/b"):
        with pytest.raises(InputError, match="would be written outside of its storage"):
            bring(storage, name, b"1")
    for name in ("../a", "/a", ".bursar/storage.sqlite"):
        with pytest.raises(InputError, match="file name must"):
            bring(storage, name, b"1")
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_folder_in_the_way_is_a_failure(storage: FolderStorage) -> None:
    """Of this file alone."""
    (storage.folder / "a").mkdir()
    with pytest.raises(TargetFailed, match="is there already, and is a folder, no file"):
        bring(storage, "a", b"1")
    bring(storage, "b", b"1")
    with pytest.raises(TargetFailed, match=r"cannot be written: (Not a directory|File exists)"):
        bring(storage, "b/c", b"1")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_full_disk_leaves_nothing_half_written() -> None:
    """A real one, of a megabyte; what fits is brought afterwards."""
    with small_disk("1m") as disk, FolderStorage(disk) as storage:
        incoming = storage.begin("big", content(bytes(2_000_000)), freely)
        assert incoming is not None
        with pytest.raises(OSError, match="No space left"):
            incoming.sink.write(bytes(2_000_000))
        incoming.discard()
        assert (storage.used, storage.cached) == (0, [])
        assert list((disk / ".bursar/parts").iterdir()) == []
        assert bring(storage, "small", bytes(100_000))


def test_what_cannot_be_a_storage_is_one_line(tmp_path: Path) -> None:
    """A file, a damaged record, a limit for a URL."""
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file: cannot be used: "):
        FolderStorage(tmp_path / "file")
    FolderStorage(tmp_path / "s").close()
    with closing(sqlite3.connect(tmp_path / "s/.bursar/storage.sqlite")) as db:
        db.execute("UPDATE meta SET value = '9'")
        db.commit()
    with pytest.raises(InputError, match="its format is 9; this version reads format 1"):
        FolderStorage(tmp_path / "s")
    with pytest.raises(InputError, match="s3://bucket: a limit is kept in folders only"):
        open_storage("s3://bucket", limit=1)


@dataclass
class Known:
    """A file as the plain twin knows it."""

    cached: bool
    used: int
    deleted: bool = False


NAMES = ["a", "b/c", "d", "e/f/g"]
DATA = {name: bytes([number]) * (number + 2) for number, name in enumerate(NAMES)}
ANY_NAME = st.sampled_from(NAMES)
ANY_JOB = st.sampled_from(["one", "two"])
LIMIT = 9


class StorageMachine(RuleBasedStateMachine):
    """A storage does what a few lines over dictionaries do, whatever the order."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.storage = FolderStorage(self.folder.name, limit=LIMIT)
        self.files: dict[str, Known] = {}
        self.pins: set[tuple[str, str]] = set()
        self.time = 0

    def teardown(self) -> None:
        self.storage.close()
        self.folder.cleanup()

    def tick(self) -> int:
        self.time += 1
        return self.time

    def makes_room(self, name: str, last: str) -> bool:
        excess = self.taken() + len(DATA[name]) - LIMIT
        idle = [
            other
            for other, known in sorted(self.files.items(), key=lambda item: item[1].used)
            if known.cached and not any(pin[0] == other for pin in self.pins)
        ]
        if sum(len(DATA[other]) for other in idle) < excess:
            return False
        for other in idle:
            if excess > 0 and other != last:
                del self.files[other]
                excess -= len(DATA[other])
        return excess <= 0

    def taken(self) -> int:
        return sum(len(DATA[name]) for name, known in self.files.items() if known.cached)

    @rule(name=ANY_NAME, last=ANY_NAME)
    def brings(self, name: str, last: str) -> None:
        known = self.files.get(name)
        if known is not None and known.deleted:
            del self.files[name]
        there = name in self.files
        roomy = there or self.makes_room(name, last)
        try:
            came = bring(self.storage, name, DATA[name], lambda other, place: other != last)
        except StorageFull:
            assert not roomy
            return
        assert roomy
        assert came is not there
        if came:
            self.files[name] = Known(cached=True, used=self.tick())

    @rule(name=ANY_NAME)
    def keeps(self, name: str) -> None:
        known = self.files.get(name)
        assert bring(self.storage, name, DATA[name], keep=True)
        if known is None or known.deleted:
            self.files[name] = Known(cached=False, used=self.tick())
        else:
            known.cached = False

    @rule(name=ANY_NAME, job=ANY_JOB)
    def pins_one(self, name: str, job: str) -> None:
        known = self.files.get(name)
        if known is not None and known.deleted:
            del self.files[name]
        there = name in self.files
        assert pinned(self.storage, name, DATA[name], job) is there
        if there:
            self.files[name].used = self.tick()
            self.pins.add((name, job))

    @rule(job=ANY_JOB)
    def releases(self, job: str) -> None:
        self.storage.release(job)
        self.pins = {pin for pin in self.pins if pin[1] != job}

    @rule(name=ANY_NAME)
    def somebody_deletes(self, name: str) -> None:
        if name in self.files:
            Path(self.storage.place_of(name)).unlink(missing_ok=True)
            self.files[name].deleted = True

    @rule()
    def opens_again(self) -> None:
        self.storage.close()
        self.storage = FolderStorage(self.folder.name, limit=LIMIT)
        self.pins = set()

    @invariant()
    def says_the_same(self) -> None:
        assert self.storage.used == self.taken() <= LIMIT
        for name, known in self.files.items():
            if not known.deleted:
                assert Path(self.storage.place_of(name)).read_bytes() == DATA[name]
        for name in NAMES:
            if name not in self.files:
                assert not Path(self.storage.place_of(name)).exists()
        cached = sorted((k.used, name) for name, k in self.files.items() if k.cached)
        assert self.storage.cached == [name for _, name in cached]


TestStorageMachine = StorageMachine.TestCase
TestStorageMachine.settings = settings(max_examples=examples(25), stateful_step_count=20)
