"""Archives of inputs: good ones, and those made to do harm."""

import asyncio
import gzip
import io
import os
import random
import tarfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.service.http.api_rig import World, problem
from tests.thoroughness import examples

from bursar.remote import messages as api
from bursar.remote.routes import GZIP, PUT_ARCHIVE, TAR, ZIP
from bursar.service.config import HttpLimits, MiB
from bursar.service.files import archives
from bursar.service.files.archives import unpack
from bursar.service.interfaces import ServiceError

BOUNDS = HttpLimits(unpacked_bytes=MiB, members=100, ratio=100, spare_bytes=1)


def tar(*members: tuple[str, bytes], **kinds: bytes) -> bytes:
    """A tar file of these, and of members of other kinds by name."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as made:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            made.addfile(info, io.BytesIO(content))
        for name, kind in kinds.items():
            info = tarfile.TarInfo(name)
            info.type = kind
            info.linkname = "/etc/passwd"
            made.addfile(info)
    return buffer.getvalue()


def zipped(*members: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    """A zip file of these."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in members:
            made.writestr(name, content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def as_link(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = 0o120777 << 16
    return info


def tree(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    return folder


def put(root: Path, data: bytes, kind: str, bounds: HttpLimits = BOUNDS) -> list[api.FileInfo]:
    # A real file: it says other things than one in memory when it is led astray.
    with TemporaryFile() as archive:
        archive.write(data)
        archive.seek(0)
        most = bounds.unpacked_bytes
        return unpack(archive, len(data), kind, str(root), bounds, most, lambda size: None)


@pytest.mark.parametrize("kind", PUT_ARCHIVE.body_kinds)
def test_an_archive_of_each_kind_is_unpacked(root: Path, kind: str) -> None:
    """
    Its files are there, with those that were there before, and nothing else.
    """
    members = [("./a", b"1"), ("b/c/d", b"22" * 100_000), ("b/e", b"")]
    (root / "b").mkdir()
    (root / "b" / "kept").write_bytes(b"kept")
    data = {
        TAR: lambda: tar(*members),
        GZIP: lambda: gzip.compress(tar(*members)),
        ZIP: lambda: zipped(*((name.removeprefix("./"), content) for name, content in members)),
    }[kind]()

    found = put(root, data, kind)

    assert [(file.name, file.size) for file in found] == [("a", 1), ("b/c/d", 200_000), ("b/e", 0)]
    assert tree(root) == {
        "a": b"1",
        "b/c/d": b"22" * 100_000,
        "b/e": b"",
        "b/kept": b"kept",
    }
    assert sorted(os.listdir(root)) == ["a", "b"]


@pytest.mark.parametrize("trap", ["pipe", "link", "folder", "nothing"])
def test_what_a_task_puts_in_a_files_place_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    """Between its unpacking and its move; of a pipe nobody waits for a writer."""
    move = archives._move

    def trapped(stage: int, top: int, found: list[api.FileInfo]) -> None:
        os.unlink("a", dir_fd=stage)
        if trap == "pipe":
            os.mkfifo("a", dir_fd=stage)
        elif trap == "link":
            os.symlink("/etc/passwd", "a", dir_fd=stage)
        elif trap == "folder":
            os.mkdir("a", dir_fd=stage)
        move(stage, top, found)

    monkeypatch.setattr(archives, "_move", trapped)
    with pytest.raises(ServiceError) as caught:
        put(root, tar(("a", b"1")), TAR)
    assert caught.value.status == 409
    assert os.listdir(root) == []


def sparse() -> bytes:
    data = bytearray(tar(("a", b"")))
    data[156:157] = tarfile.GNUTYPE_SPARSE
    return with_checksum(data)


def endless() -> bytes:
    """A member of negative length: whoever goes on after it comes to it again."""
    data = bytearray(tar(("a", b"")))
    size = -1024
    data[124:136] = b"\xff" + (256**11 + size).to_bytes(11, "big")
    return with_checksum(data)


def pax(**fields: str) -> bytes:
    """A member with an extended header before it."""
    info = tarfile.TarInfo("a")
    info.pax_headers = fields
    return info.tobuf(tarfile.PAX_FORMAT) + bytes(1024)


def negative_header(kind: bytes) -> bytes:
    """A description of negative length before a member."""
    info = tarfile.TarInfo("././@LongLink")
    info.type = kind
    data = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    data[124:136] = b"\xff" + (256**11 - 512).to_bytes(11, "big")
    return with_checksum(data) + tar(("a", b"1"))


def of_size(size: int) -> bytes:
    """A member that is said to have so many bytes."""
    data = bytearray(tar(("a", b"")))
    data[124:136] = b"\x80" + size.to_bytes(11, "big")
    return with_checksum(data)


def long_header() -> bytes:
    """A member's description of 64 MiB, which packs well."""
    info = tarfile.TarInfo("././@LongLink")
    info.type = tarfile.GNUTYPE_LONGNAME
    info.size = 64 * MiB
    return gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(64 * MiB), 1)


def headers_for_headers(count: int, size: int) -> bytes:
    """A member with so many descriptions before it."""
    info = tarfile.TarInfo("././@PaxHeader")
    info.type = tarfile.XHDTYPE
    text = b"%d comment=%b\n"
    line = text % (size, b"x" * (size - len(text % (size, b""))))
    info.size = len(line)
    block = info.tobuf(tarfile.USTAR_FORMAT) + line.ljust(-(-size // 512) * 512, b"\0")
    return block * count + tar(("a", b"1"))


def with_checksum(data: bytearray) -> bytes:
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    return bytes(data)


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        (TAR, lambda: tar(("../x", b"1"))),
        (TAR, lambda: tar(("/x", b"1"))),
        (TAR, lambda: tar(("a/../../x", b"1"))),
        (TAR, lambda: tar(("a", b"1"), x=tarfile.SYMTYPE)),
        (TAR, lambda: tar(("a", b"1"), x=tarfile.LNKTYPE)),
        (TAR, lambda: tar(("a", b"1"), x=tarfile.CHRTYPE)),
        (TAR, lambda: tar(("a", b"1"), x=tarfile.FIFOTYPE)),
        (TAR, lambda: tar(("a", b"1"), x=tarfile.BLKTYPE)),
        (TAR, lambda: tar(("a", b"1"), x=tarfile.CONTTYPE)),
        *((TAR, lambda kind=kind: tar(("a", b"1"), x=kind)) for kind in (b"8", b"M", b"V", b"Z")),
        (TAR, lambda: tar(("a\\b", b"1"))),
        (TAR, lambda: tar(("a\\b/c", b"1"))),
        (TAR, lambda: tar(("a", b"1"), **{"b\\c": tarfile.DIRTYPE})),
        *(
            (kind, lambda made=made, mark=mark: made((f"exe.{mark}txt", b"1")))
            for kind, made in ((TAR, tar), (ZIP, zipped))
            for mark in "\u202e\u2066\u200f\u061c\u2028\u2029\x85\x9b\x7f\t\n"
        ),
        (TAR, lambda: tar(("a", b"1"), **{"b\u202ec": tarfile.DIRTYPE})),
        (TAR, sparse),
        (TAR, endless),
        (TAR, lambda: pax(size="-512")),
        (TAR, lambda: pax(size="-1")),
        (TAR, lambda: pax(path="b\\c")),
        (TAR, lambda: pax(path="b\u202ec")),
        (TAR, lambda: negative_header(tarfile.GNUTYPE_LONGNAME)),
        (TAR, lambda: negative_header(tarfile.XHDTYPE)),
        (TAR, lambda: negative_header(tarfile.XGLTYPE)),
        (TAR, lambda: headers_for_headers(5000, 100)),
        (GZIP, lambda: gzip.compress(headers_for_headers(100, 900_000), 1)),
        (TAR, lambda: b"no archive"),
        (TAR, lambda: tar(("a", b"1" * 5000))[:2000]),
        (GZIP, lambda: b"no archive"),
        (GZIP, lambda: gzip.compress(tar(("a", b"1")))[:-20]),
        (GZIP, long_header),
        (ZIP, lambda: b"no archive"),
        (ZIP, lambda: zipped(("a", b"1"))[:-10]),
        (ZIP, lambda: zipped(("../x", b"1"))),
        (ZIP, lambda: zipped(("/x", b"1"))),
        (ZIP, lambda: zipped(("a\\b", b"1"))),
        (ZIP, lambda: zipped((as_link("x"), b"/etc/passwd"))),
    ],
)
def test_an_archive_that_means_harm_leaves_nothing(
    root: Path, kind: str, make: Callable[[], bytes]
) -> None:
    """
    Ways out, links, devices, damage and endless headers: refused, with good members too.
    """
    with pytest.raises(ServiceError) as caught:
        put(root, make(), kind)

    assert caught.value.status in (400, 422)
    assert str(caught.value).isprintable()
    assert os.listdir(root) == []


@pytest.mark.parametrize(
    ("kind", "data", "bounds"),
    [
        (TAR, tar(("a", bytes(2 * MiB))), BOUNDS),
        (TAR, of_size(256**10), BOUNDS),
        (TAR, pax(size=str(10**40)), BOUNDS),
        (GZIP, gzip.compress(tar(("a", bytes(2 * MiB)))), BOUNDS),
        (ZIP, zipped(("a", bytes(2 * MiB))), BOUNDS),
        (ZIP, zipped(*((f"f{i}", bytes(100_000)) for i in range(11))), BOUNDS),
        (TAR, tar(*((f"f{i}", b"") for i in range(101))), BOUNDS),
        (ZIP, zipped(*((f"f{i}", b"") for i in range(101))), BOUNDS),
        # A thousandfold: more than small archives may, and than large ones may for their size.
        (
            ZIP,
            zipped(("a", bytes(65 * MiB))),
            HttpLimits(unpacked_bytes=1 << 40, members=9, ratio=100, spare_bytes=1),
        ),
    ],
    ids=[
        "tar",
        "tar-huge",
        "tar-huge-pax",
        "gzip",
        "zip",
        "zip-many",
        "tar-members",
        "zip-members",
        "ratio",
    ],
)
def test_an_archive_that_comes_to_too_much_leaves_nothing(
    root: Path, kind: str, data: bytes, bounds: HttpLimits
) -> None:
    """
    Bombs: all files together, their number, and how much larger they are than the archive.
    """
    with pytest.raises(ServiceError) as caught:
        put(root, data, kind, bounds)

    assert caught.value.status == 413
    assert os.listdir(root) == []


def test_sizes_that_a_zip_file_states_are_not_believed(root: Path) -> None:
    """
    A member says one byte and unpacks to two million: what comes out counts.
    """
    data = bytearray(zipped(("a", bytes(2 * MiB))))
    start = data.index(b"PK\x01\x02")
    data[start + 24 : start + 28] = (1).to_bytes(4, "little")  # in the list of members
    data[22:26] = (1).to_bytes(4, "little")  # at the member itself

    with pytest.raises(ServiceError) as caught:
        put(root, bytes(data), ZIP)

    assert caught.value.status in (413, 422)
    assert os.listdir(root) == []


def test_what_is_in_the_way_is_not_followed(root: Path, tmp_path: Path) -> None:
    """
    A link that a task has put where a folder of the archive goes: 409, and nothing outside.
    """
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "b").symlink_to(outside)

    with pytest.raises(ServiceError) as caught:
        put(root, tar(("b/c", b"1")), TAR)

    assert caught.value.status == 409
    assert os.listdir(outside) == []
    assert os.listdir(root) == ["b"]


@settings(max_examples=examples(150), derandomize=True)
@given(st.sampled_from([TAR, GZIP, ZIP]), st.integers(0, 2**32))
def test_damage_anywhere_is_a_problem_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, kind: str, seed: int
) -> None:
    """
    Whatever bytes are changed: an answer of 4xx, or files inside, and never a fault of ours.
    """
    root = tmp_path_factory.mktemp("files")
    chance = random.Random(seed)
    members = [("a", b"1" * 600), ("b/c", chance.randbytes(300))]
    good = {TAR: tar(*members), GZIP: gzip.compress(tar(*members)), ZIP: zipped(*members)}[kind]
    data = bytearray(good)
    for _ in range(chance.randint(1, 8)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    if chance.random() < 0.3:
        del data[chance.randrange(len(data)) :]

    refusal = refused(root, bytes(data), kind)

    if refusal is not None:
        assert 400 <= refusal.status < 500
        assert os.listdir(root) == []


def refused(root: Path, data: bytes, kind: str) -> ServiceError | None:
    try:
        put(root, data, kind)
    except ServiceError as error:
        return error
    return None


def test_an_archive_is_uploaded(tmp_path: Path) -> None:
    """
    Over HTTP, with the instance's bounds.
    """
    world = World(tmp_path, HttpLimits(instance_bytes=1000))

    async def main() -> list[httpx.Response]:
        world.engine.make("ann", "mine")
        headers = {"content-type": ZIP}
        async with world.client() as client:
            return [
                await client.post("/instances/mine/archive", content=data, headers=headers)
                for data in (
                    zipped(("a/b", b"12"), ("c", b"3")),
                    zipped(("d", b"4" * 1001)),
                    b"no archive",
                )
            ]

    good, large, bad = asyncio.run(main())
    world.api.close()

    assert good.status_code == 200
    files = msgspec.json.decode(good.content, type=api.FileList).files
    assert [file.name for file in files] == ["a/b", "c"]
    assert large.status_code == 413
    assert bad.status_code == 422
    assert problem(bad).where == "archive"
    assert tree(world.engine.held["mine"].home / "files") == {"a/b": b"12", "c": b"3"}
    assert sorted(os.listdir(tmp_path / "instances")) == ["0"]


def test_archives_do_not_keep_files_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    However many take however long to be unpacked.
    """
    world = World(tmp_path)
    world.engine.make("ann", "mine")
    going_on = threading.Event()

    def endless(*arguments: object) -> list[api.FileInfo]:
        going_on.wait(60)
        return []

    monkeypatch.setattr(archives, "unpack", endless)

    async def main() -> None:
        async with world.client() as client:
            path, kind = "/instances/mine/archive", {"content-type": TAR}
            slow = [
                asyncio.create_task(client.post(path, content=tar(), headers=kind))
                for _ in range(8)
            ]
            for _ in range(3):
                assert (
                    await client.put("/instances/mine/files/a", content=b"1")
                ).status_code == 200
                await asyncio.sleep(0.02)
            going_on.set()
            assert {(await each).status_code for each in slow} == {200}

    asyncio.run(main())
    world.api.close()


@pytest.mark.parametrize(("size", "expected"), [(600, [200, 413]), (400, [200, 200])])
@pytest.mark.parametrize("bound", ["instance_bytes", "user_bytes"])
def test_two_archives_at_once_share_the_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, size: int, expected: list[int]
) -> None:
    """
    Each fits alone; together they must fit, too. One that does not leaves nothing.
    """
    # Beside what comes out of them, the user's bound holds the archives while they lie there.
    archived = [zipped((name, os.urandom(size))) for name in ("a", "b")]
    most = 1000 + (sum(map(len, archived)) if bound == "user_bytes" else 0)
    world = World(tmp_path, HttpLimits(**{bound: most}))
    home = world.engine.make("ann", "mine").home
    together = threading.Barrier(2)

    def unpack_together(*arguments: Any) -> list[api.FileInfo]:
        together.wait(60)
        try:
            return unpack(*arguments)
        finally:
            together.wait(60)  # an archive that is removed meanwhile would leave its room

    monkeypatch.setattr(archives, "unpack", unpack_together)

    async def main() -> list[int]:
        async with world.client() as client:
            answers = await asyncio.gather(
                *(
                    client.post(
                        "/instances/mine/archive", content=data, headers={"content-type": ZIP}
                    )
                    for data in archived
                )
            )
            return sorted(answer.status_code for answer in answers)

    found = asyncio.run(main())
    world.api.close()

    assert found == expected
    assert len(os.listdir(home / "files")) == found.count(200)
