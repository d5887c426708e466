"""Files of instances over HTTP, and what tasks may do to lead them astray."""

import asyncio
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.service.http.api_rig import World, problem, say
from tests.thoroughness import examples

from bursar.remote import messages as api
from bursar.service.config import HttpLimits
from bursar.service.files import file_store
from bursar.service.files.instance_files import UNFINISHED, parse_name
from bursar.service.interfaces import ServiceError

FILES = "/instances/mine/files"
ARCHIVE = "/instances/mine/archive"


def ask(world: World, method: str, path: str, **more: Any) -> httpx.Response:
    async def main() -> httpx.Response:
        if "mine" not in world.engine.held:
            world.engine.make("ann", "mine")
        async with world.client() as client:
            return await client.request(method, path, **more)

    return asyncio.run(main())


@pytest.fixture
def root(world: World) -> Path:
    """Folder of the files of Ann's instance."""
    return world.engine.make("ann", "mine").home / "files"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that nobody should get into."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_text("secret")
    return folder


def test_a_file_is_put_listed_read_and_deleted(world: World, root: Path) -> None:
    """
    Folders are made on the way, the digest is that of its bytes, and nothing else is left.
    """
    put = ask(world, "PUT", f"{FILES}/a/b/data.bin?executable=true", content=b"one")
    again = ask(world, "PUT", f"{FILES}/a/b/data.bin", content=b"three")

    assert put.status_code == again.status_code == 200
    info = msgspec.json.decode(again.content, type=api.FileInfo)
    assert (info.name, info.size) == ("a/b/data.bin", 5)
    # sha256 of "three"
    assert info.sha256 == "8b5b9db0c13db24256c829aa364aa90c6d2eba318b9232a4ab9313b954d3555f"
    listed = msgspec.json.decode(ask(world, "GET", FILES).content, type=api.FileList)
    assert [(file.name, file.size) for file in listed.files] == [("a/b/data.bin", 5)]
    got = ask(world, "GET", f"{FILES}/a/b/data.bin")
    assert got.content == b"three"
    assert got.headers["content-type"] == "application/octet-stream"
    assert got.headers["content-disposition"] == "attachment"
    assert ask(world, "DELETE", f"{FILES}/a/b/data.bin").status_code == 204
    assert ask(world, "GET", f"{FILES}/a/b/data.bin").status_code == 404
    assert os.listdir(root / "a" / "b") == []
    assert ask(world, "DELETE", f"{FILES}/a").status_code == 409
    assert ask(world, "DELETE", f"{FILES}/a/b").status_code == 204


def test_only_what_is_to_be_a_program_is_one(world: World, root: Path) -> None:
    """
    Files are the owner's alone, and run when that was asked for.
    """
    ask(world, "PUT", f"{FILES}/run", content=b"", params={"executable": "true"})
    ask(world, "PUT", f"{FILES}/data", content=b"")

    assert (root / "run").stat().st_mode & 0o777 == 0o700
    assert (root / "data").stat().st_mode & 0o777 == 0o600
    assert ask(world, "GET", f"{FILES}/run").headers["bursar-executable"] == "true"
    assert "bursar-executable" not in ask(world, "GET", f"{FILES}/data").headers


def test_files_of_another_instance_need_not_be_sent(world: World, root: Path) -> None:
    """
    Those that are there come as they are; another user's, or one outside, is as one that is not.
    """
    theirs = world.engine.make("ann", "theirs").home / "files"
    (theirs / "a").mkdir()
    (theirs / "a" / "run").write_text("one")
    (theirs / "a" / "run").chmod(0o700)
    (theirs / "leads-out").symlink_to("/etc/passwd")
    world.engine.make("bob", "bobs")

    def copy(source: str, *names: str) -> httpx.Response:
        body = {"source": source, "files": names}
        return ask(world, "POST", "/instances/mine/copies", json=body)

    copied = copy("theirs", "a/run", "none", "leads-out")
    assert copied.status_code == 200
    files = msgspec.json.decode(copied.content, type=api.FileList).files
    assert [(file.name, file.size) for file in files] == [("a/run", 3)]
    assert (root / "a" / "run").read_text() == "one"
    assert (root / "a" / "run").stat().st_mode & 0o777 == 0o700
    assert [path.name for path in root.iterdir()] == ["a"]
    assert copy("bobs", "a").status_code == copy("nobodys", "a").status_code == 404
    assert copy("theirs", "../secret").status_code == 400


@pytest.mark.parametrize(
    "name",
    [
        "../secret",
        "a/../../secret",
        "..%2fsecret",
        "%2e%2e/secret",
        "%2e%2e%2fsecret",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        ".",
        "a//b",
        "a/./b",
        "a%00b",
        "a%0ab",
        "a%7fb",
        "x" * 256,
        "%C3%A9" * 128,
        "/".join("d" * 100 for _ in range(50)),
        "/".join("d" for _ in range(65)),
        f"{UNFINISHED}1",
        "a/",
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_names_that_lead_elsewhere_are_refused(
    world: World, root: Path, method: str, name: str
) -> None:
    """
    Upwards, absolute, encoded or endless: 400, and nothing is touched.
    """
    (root.parent / "secret").write_text("secret")
    body = {"type": "http.request", "body": b"data"}

    status, answer = asyncio.run(say(world, method, f"/v1{FILES}/{name}", body))

    assert status == 400, answer
    assert b'"where":"name"' in answer
    assert list(root.iterdir()) == []
    assert (root.parent / "secret").read_text() == "secret"


def test_no_link_leads_out(world: World, root: Path, outside: Path) -> None:
    """
    What a task has linked is not followed: not at the end, and not on the way.
    """
    (root / "file").symlink_to(outside / "secret")
    (root / "folder").symlink_to(outside)
    (root / "real").mkdir()
    (root / "real" / "up").symlink_to("../..")

    for name in ("file", "folder/secret", "real/up/files/file"):
        assert ask(world, "GET", f"{FILES}/{name}").status_code == 404
    for name in ("folder/new", "folder/deep/new", "real/up/new"):
        assert ask(world, "PUT", f"{FILES}/{name}", content=b"x").status_code == 409
    for name in ("folder/secret", "real/up/logs"):
        assert ask(world, "DELETE", f"{FILES}/{name}").status_code == 404
    listed = msgspec.json.decode(ask(world, "GET", FILES).content, type=api.FileList)
    assert listed.files == []
    # A link's own name may be written to and deleted: the link goes.
    assert ask(world, "PUT", f"{FILES}/file", content=b"mine").status_code == 200
    assert ask(world, "DELETE", f"{FILES}/folder").status_code == 204
    assert os.listdir(outside) == ["secret"]
    assert (outside / "secret").read_text() == "secret"
    assert (root / "file").read_bytes() == b"mine"


def test_even_the_folder_of_all_files_may_be_a_link(
    world: World, root: Path, outside: Path
) -> None:
    """
    Its name is looked at like any other.
    """
    root.rmdir()
    root.symlink_to(outside)

    assert ask(world, "GET", f"{FILES}/secret").status_code in (404, 409)
    assert ask(world, "PUT", f"{FILES}/new", content=b"x").status_code == 409
    assert ask(world, "GET", FILES).status_code == 409
    assert os.listdir(outside) == ["secret"]


def test_what_is_no_file_is_not_read(world: World, root: Path) -> None:
    """
    A pipe would keep the reader waiting for ever.
    """
    os.mkfifo(root / "pipe")
    (root / "folder").mkdir()

    assert ask(world, "GET", f"{FILES}/pipe").status_code == 404
    assert ask(world, "GET", f"{FILES}/folder").status_code == 404
    assert ask(world, "PUT", f"{FILES}/folder", content=b"x").status_code == 409
    assert ask(world, "PUT", f"{FILES}/pipe/x", content=b"x").status_code == 409


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to others, which takes root")
def test_files_belong_to_the_account_that_runs_the_tasks(
    world: World, root: Path, outside: Path
) -> None:
    """
    What is put is the task's; what it links from a third one's files is not given out.
    """
    os.chown(root, 65534, 65534)
    stranger = outside / "third"
    stranger.write_text("third")
    os.chown(stranger, 12345, 12345)
    os.link(stranger, root / "hard")

    ask(world, "PUT", f"{FILES}/a/b", content=b"x")

    assert (root / "a").stat().st_uid == (root / "a" / "b").stat().st_uid == 65534
    assert ask(world, "GET", f"{FILES}/hard").status_code == 404
    assert ask(world, "GET", f"{FILES}/a/b").status_code == 200


@pytest.mark.parametrize(
    ("asked", "status", "content", "said"),
    [
        ("bytes=0-3", 206, b"0123", "bytes 0-3/10"),
        ("bytes=8-", 206, b"89", "bytes 8-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=-30", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=5-99", 206, b"56789", "bytes 5-9/10"),
        ("bytes=10-", 416, None, None),
        ("bytes=-0", 416, None, None),
        ("bytes=5-3", 200, b"0123456789", None),
        ("bytes=0-1,3-4", 200, b"0123456789", None),
        ("bytes=-", 200, b"0123456789", None),
        ("lines=0-3", 200, b"0123456789", None),
        ("bytes=" + "9" * 30 + "-", 200, b"0123456789", None),
    ],
)
def test_a_part_of_a_file_is_sent(
    world: World, root: Path, asked: str, status: int, content: bytes | None, said: str | None
) -> None:
    """
    RFC 9110, section 14; what is not understood gets all of it.
    """
    (root / "digits").write_text("0123456789")

    response = ask(world, "GET", f"{FILES}/digits", headers={"range": asked})

    assert response.status_code == status
    assert response.headers.get("content-range") == said
    if content is not None:
        assert response.content == content


def test_the_rest_of_a_file_is_sent_while_it_is_the_same(world: World, root: Path) -> None:
    """
    Else a download that broke off would go on with another file's bytes.
    """
    (root / "digits").write_text("0123456789")
    tag = ask(world, "GET", f"{FILES}/digits").headers["etag"]
    rest = {"range": "bytes=4-", "if-range": tag}

    same = ask(world, "GET", f"{FILES}/digits", headers=rest)
    (root / "digits").write_text("98765432109")
    changed = ask(world, "GET", f"{FILES}/digits", headers=rest)

    assert (same.status_code, same.content) == (206, b"456789")
    assert (changed.status_code, changed.content) == (200, b"98765432109")
    assert changed.headers["etag"] != tag


def test_what_a_task_printed_is_sent_from_its_log(world: World, root: Path) -> None:
    """
    By the number of the task and the stream's name; links are not followed here either.
    """
    world.engine.held["mine"].tasks = [api.TaskSpec(shell="true")] * 2
    logs = root.parent / "logs"
    (logs / "0.1.stdout").write_text("long")
    (logs / "0.1.stderr").symlink_to("/etc/passwd")

    got = ask(world, "GET", "/instances/mine/tasks/0/stdout", headers={"range": "bytes=1-2"})

    assert got.content == b"on"
    assert ask(world, "GET", "/instances/mine/tasks/0/stderr").status_code == 404
    assert ask(world, "GET", "/instances/mine/tasks/1/stdout").status_code == 404


def test_an_upload_that_breaks_off_leaves_nothing(world: World, root: Path) -> None:
    """
    Neither under its name, nor under another.
    """
    (root / "kept").write_text("old")

    piece = {"type": "http.request", "body": b"new", "more_body": True}

    status, _ = asyncio.run(say(world, "PUT", f"/v1{FILES}/kept", piece))

    assert status == 0
    assert os.listdir(root) == ["kept"]
    assert (root / "kept").read_text() == "old"


def test_files_have_a_bound_alone_and_together(tmp_path: Path) -> None:
    """
    A file, and all files of an instance; deleting makes room again.
    """
    world = World(tmp_path, HttpLimits(file_bytes=100, instance_bytes=150))

    assert ask(world, "PUT", f"{FILES}/a", content=b"x" * 101).status_code == 413
    assert ask(world, "PUT", f"{FILES}/a", content=b"x" * 100).status_code == 200
    assert ask(world, "PUT", f"{FILES}/b", content=b"x" * 60).status_code == 413
    assert ask(world, "PUT", f"{FILES}/b", content=b"x" * 50).status_code == 200
    assert ask(world, "DELETE", f"{FILES}/a").status_code == 204
    assert ask(world, "PUT", f"{FILES}/c", content=b"x" * 100).status_code == 200
    # What tasks have written counts, too, once it is looked at again.
    (world.engine.held["mine"].home / "files" / "c").unlink()
    assert ask(world, "PUT", f"{FILES}/d", content=b"x" * 90).status_code == 200
    world.api.close()


def test_a_user_may_keep_more_or_less_than_others(tmp_path: Path) -> None:
    """
    File by file and in an archive.
    """
    world = World(tmp_path, own_limits={"ann": HttpLimits(instance_bytes=100)})
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        entry = tarfile.TarInfo("b")
        entry.size = 60
        archive.addfile(entry, io.BytesIO(b"x" * 60))
    tar = {"content-type": "application/x-tar"}

    assert ask(world, "PUT", f"{FILES}/a", content=b"x" * 101).status_code == 413
    assert ask(world, "PUT", f"{FILES}/a", content=b"x" * 50).status_code == 200
    assert ask(world, "POST", ARCHIVE, content=packed.getvalue(), headers=tar).status_code == 413
    assert ask(world, "DELETE", f"{FILES}/a").status_code == 204
    assert ask(world, "POST", ARCHIVE, content=packed.getvalue(), headers=tar).status_code == 200
    world.api.close()


def test_a_user_has_a_bound_over_all_instances(tmp_path: Path) -> None:
    """
    Else many instances fill the disk together; what tasks wrote and printed counts, too.
    """
    world = World(tmp_path, HttpLimits(user_bytes=100), own_limits={"bob": HttpLimits()})
    homes = [world.engine.make("ann", handle).home for handle in ("one", "two")]
    world.engine.make("bob", "his")

    async def main() -> list[int]:
        async with world.client() as client, world.client("other") as other:

            async def put(handle: str, size: int, who: httpx.AsyncClient = client) -> int:
                path = f"/instances/{handle}/files/{size}"
                return (await who.put(path, content=bytes(size))).status_code

            found = [await put("one", 60), await put("two", 41), await put("two", 40)]
            found += [await put("two", 1), await put("his", 200, other)]
            (homes[0] / "files" / "60").unlink()
            (homes[1] / "logs" / "0.1.stdout").write_bytes(bytes(30))
            found += [await put("one", 31), await put("one", 30)]
            del world.engine.held["two"]
            return [*found, await put("one", 70), await put("one", 1)]

    found = asyncio.run(main())
    world.api.close()

    assert found == [200, 413, 200, 413, 200, 413, 200, 200, 413]


def test_what_is_deleted_makes_no_room_that_is_not_there(tmp_path: Path) -> None:
    """
    A task may make a file of any size that takes no room, for its user to delete.
    """
    world = World(tmp_path, HttpLimits(instance_bytes=100))
    held = world.engine.make("ann", "mine")
    assert ask(world, "PUT", f"{FILES}/a", content=b"x" * 100).status_code == 200
    with (held.home / "files" / "hollow").open("wb") as hollow:
        hollow.truncate(1 << 30)

    assert ask(world, "DELETE", f"{FILES}/hollow").status_code == 204
    assert ask(world, "PUT", f"{FILES}/b", content=b"x").status_code == 413
    world.api.close()


def test_who_has_too_much_to_count_is_not_counted_at_every_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Else somebody over quota keeps the disk busy; meanwhile, to be tried again.
    """
    world = World(tmp_path, HttpLimits(instance_bytes=100))
    world.engine.make("ann", "mine")
    monkeypatch.setattr(file_store, "_LONG_COUNT", 0.0)
    monkeypatch.setattr(file_store, "_PAUSE", 1e9)

    async def main() -> list[httpx.Response]:
        async with world.client() as client:
            return [await client.put(f"{FILES}/{size}", content=bytes(size)) for size in (60, 41)]

    first, second = asyncio.run(main())
    world.api.close()

    assert (first.status_code, second.status_code) == (200, 429)
    assert problem(second).type == "/problems/over-quota"
    assert "retry-after" in second.headers


def test_a_full_disk_refuses_and_keeps(tmp_path: Path) -> None:
    """
    507, to be tried again, well before tasks and results have no room; what is there stays.
    """
    world = World(tmp_path, HttpLimits(spare_bytes=1 << 60))
    root = world.engine.make("ann", "mine").home / "files"
    (root / "kept").write_text("old")

    response = ask(world, "PUT", f"{FILES}/kept", content=b"new")
    tar = {"content-type": "application/x-tar"}
    archive = ask(world, "POST", ARCHIVE, content=bytes(10240), headers=tar)
    world.api.close()

    assert response.status_code == archive.status_code == 507
    assert problem(response).type == problem(archive).type == "/problems/disk-low"
    assert "retry-after" in response.headers
    assert (root / "kept").read_text() == "old"
    assert os.listdir(root) == ["kept"]


def test_files_are_listed_page_by_page(world: World, root: Path) -> None:
    """
    In the order of their names, each once; what could not be asked for is left out.
    """
    names = ["a", "a/", "b/c", "b/d", "b-1"]
    for name in ("a", "b/c", "b/d", "b-1"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(name)
    (root / os.fsdecode(b"bad-\xff")).write_text("")
    (root / "new\nline").write_text("")
    del names[1]

    found: list[str] = []
    while True:
        after = found[-1] if found else ""
        answer = ask(world, "GET", FILES, params={"after": after, "limit": 3})
        page = msgspec.json.decode(answer.content, type=api.FileList).files
        if not page:
            break
        found += [file.name for file in page]

    assert found == sorted(names)


def test_a_deep_tree_is_listed_as_far_as_names_go(world: World, root: Path) -> None:
    """
    A task may nest folders without end: neither stack nor descriptors run out.
    """
    here = os.open(root, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("d", dir_fd=here)
        deeper = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    (root / "top").write_text("x")

    listed = msgspec.json.decode(ask(world, "GET", FILES).content, type=api.FileList)

    assert [file.name for file in listed.files] == ["top"]


@settings(max_examples=examples(200), derandomize=True)
@given(st.text(st.characters(exclude_categories=()), max_size=40) | st.from_regex(r"[./a\0]{1,12}"))
def test_a_name_that_is_taken_stays_inside(name: str) -> None:
    """
    Whatever is accepted is a plain way down, and can be sent.
    """
    try:
        parts = parse_name(name)
    except ServiceError:
        return
    assert os.path.normpath(os.path.join("/root", name)) == f"/root/{'/'.join(parts)}"
    assert not name.startswith("/")
    assert quote(name)


@pytest.fixture(autouse=True)
def _no_descriptors_left() -> Iterator[None]:
    """Whatever was opened is closed again."""
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) <= before
