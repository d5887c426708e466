"""Files come to a site once, from the nearest copy that is good, however many jobs wait."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.replicas.servers import Web, sha256

from bursar.model.errors import InputError
from bursar.model.matching import Replica
from bursar.model.network import Link
from bursar.model.site import SiteFacts
from bursar.replicas.catalogue import Catalogue
from bursar.replicas.content import FileUnreachable, LogicalFileContent, StorageFull
from bursar.replicas.copying import TransferPool
from bursar.replicas.stager import Stager, links_of, open_stores
from bursar.replicas.storage import FolderStorage

T = TypeVar("T")
BODY = os.urandom(400_000)
SITES = ("north", "south", "east")


class Grid:
    """
    Sites with storages in a folder, and a catalogue.

    Parameters
    ----------
    links
        Bandwidths, by source and target.
    """

    def __init__(self, folder: Path, limit: int | None = None, **links: dict[str, float]) -> None:
        self.folder = folder
        self.facts = [
            SiteFacts(
                name=name,
                storage=str(folder / name),
                storage_limit=limit,
                links={to: Link(0.0, bandwidth) for to, bandwidth in links.get(name, {}).items()},
            )
            for name in SITES
        ]
        self.catalogue = Catalogue(folder / "c.sqlite")

    def add(self, name: str, url: str, site: str = "", data: bytes = BODY) -> None:
        """Registers a copy of these bytes."""
        self.catalogue.register(
            Replica(name=name, site=site, url=url, size=len(data), checksum=sha256(data))
        )

    def master(self, name: str, site: str, data: bytes = BODY) -> Path:
        """A file of a site that was always there."""
        path = self.folder / "masters" / site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self.add(name, str(path), site, data)
        return path

    def run(self, work: Callable[[Stager], Awaitable[T]], **options: Any) -> T:
        """Does something with a stager of its own."""

        async def whole() -> T:
            given = {"pause": 0.0, "patience": 1.0, **options}
            stager = Stager(
                self.catalogue,
                open_stores(self.facts),
                link=links_of(self.facts),
                transfers=TransferPool(**given),
            )
            try:
                return await work(stager)
            finally:
                stager.close()

        return asyncio.run(whole())

    def bring(self, names: list[str], site: str = "north", job: str = "job") -> dict[str, str]:
        """Brings files for one job."""
        return self.run(lambda stager: stager.bring(names, site, job))

    def located(self, name: str) -> list[str]:
        """Where the catalogue says that it is."""
        return [replica.url for replica in self.catalogue.locate(name)]

    def place(self, site: str, name: str) -> str:
        """In its storage."""
        return str(self.folder / site / name)


@pytest.fixture
def grid(tmp_path: Path) -> Iterator[Grid]:
    """Three sites that share their files."""
    grid = Grid(tmp_path)
    yield grid
    grid.catalogue.close()


def test_a_job_gets_all_its_files_and_the_catalogue_learns_of_them(grid: Grid) -> None:
    """Each at the site where the job runs."""
    grid.master("a", "south")
    grid.master("b/c", "east", b"few")

    places = grid.bring(["a", "b/c", "./a"])

    assert places == {name: grid.place("north", name) for name in ("a", "b/c")}
    assert Path(places["a"]).read_bytes() == BODY
    assert Path(places["b/c"]).read_bytes() == b"few"
    assert grid.located("a")[0] == grid.place("north", "a")


def test_a_copy_at_the_site_is_read_where_it_is(grid: Grid) -> None:
    """Nothing is copied."""
    path = grid.master("a", "north")

    assert grid.bring(["a"]) == {"a": str(path)}
    assert not Path(grid.place("north", "a")).exists()


def test_many_jobs_share_a_transfer(grid: Grid, web: Web) -> None:
    """Sent once; each job holds it, and one that does not want it any more spoils nothing."""
    grid.add("a", web.put("/a", BODY, pause=0.02))

    async def burst(stager: Stager) -> list[Any]:
        works = [asyncio.create_task(stager.bring(["a"], "north", f"{n}")) for n in range(20)]
        await asyncio.sleep(0.05)
        works[0].cancel()
        return await asyncio.gather(*works, return_exceptions=True)

    first, *others = grid.run(burst)

    assert isinstance(first, asyncio.CancelledError)
    assert others == [{"a": grid.place("north", "a")}] * 19
    assert web.sent["/a"] == len(BODY)


def test_a_transfer_that_nobody_wants_any_more_ends(grid: Grid, web: Web) -> None:
    """At once; what had come is gone on with, for whoever wants it next."""
    grid.add("a", web.put("/a", BODY, pause=0.05))

    async def change_of_mind(stager: Stager) -> dict[str, str]:
        work = asyncio.create_task(stager.bring(["a"], "north", "one"))
        while web.sent.get("/a", 0) < 200_000:
            await asyncio.sleep(0.01)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        web.pages["/a"].pause = 0.0
        return await stager.bring(["a"], "north", "two")

    assert grid.run(change_of_mind) == {"a": grid.place("north", "a")}
    assert web.asked[0] == ""
    assert web.asked[1].startswith("bytes=")


def test_the_nearest_copy_is_taken(tmp_path: Path, web: Web) -> None:
    """By the link's latency and what the bytes take; one of no site comes last."""
    grid = Grid(tmp_path, south={"north": 1e6}, east={"north": 1e9})
    for site in ("south", "east", ""):
        grid.add("a", web.put(f"/{site}", BODY), site)

    grid.bring(["a"])
    grid.catalogue.close()

    assert list(web.sent) == ["/east"]


def test_the_next_copy_is_tried_and_bad_ones_are_noted(grid: Grid, web: Web) -> None:
    """One is gone, one lies about its size, one is damaged, one is only down for now."""
    for site, how in (
        ("south", {"status": 404}),
        ("east", {"claimed": 7}),
        ("west", {}),
        ("x", {"status": 503}),
    ):
        grid.add("a", web.put(f"/{site}", BODY if site != "west" else BODY[::-1], **how), site)
    grid.add("a", web.put("/good", BODY))

    grid.bring(["a"])

    bad = {entry.replica.site: entry.bad for entry in grid.catalogue.entries("a")}
    assert bad["south"] == "is not there"
    assert bad["east"] == "has 7 bytes, not 400000"
    assert str(bad["west"]).startswith("holds 400000 bytes, sha256:")
    assert (bad["x"], bad[""], bad["north"]) == (None, None, None)


def test_a_source_that_is_down_for_a_moment_is_tried_again(grid: Grid, web: Web) -> None:
    """And a connection that breaks off is taken up where it broke."""
    grid.add("a", web.put("/a", BODY, cuts=[300_000, 10_000]))

    grid.bring(["a"])

    assert len(web.asked) == 3


def test_when_no_copy_can_be_had_one_line_says_why(grid: Grid, web: Web) -> None:
    """Which file, tried where, why each failed; without secrets."""
    grid.add("a", web.put("/a?Signature=s3cret", BODY, status=500))
    grid.add("a", "/nowhere/a", "south")

    with pytest.raises(FileUnreachable) as caught:
        grid.bring(["a"])

    assert str(caught.value) == (
        '"a" cannot be brought to north: /nowhere/a is not there; '
        f"http://127.0.0.1:{web.port}/a answers with HTTP status 500"
    )
    assert caught.value.transient
    assert web.asked == [""] * 3
    grid.catalogue.unregister("a", site="")
    with pytest.raises(FileUnreachable, match=r"north: the catalogue has no good copy$") as caught:
        grid.bring(["a"])
    assert not caught.value.transient
    with pytest.raises(FileUnreachable, match=r'^"b" is not in the catalogue$'):
        grid.bring(["b"])


def test_a_job_that_cannot_have_all_its_files_holds_none(tmp_path: Path) -> None:
    """Others may have the room."""
    grid = Grid(tmp_path, limit=len(BODY))
    grid.master("a", "south")
    grid.master("b", "south", b"1")

    async def twice(stager: Stager) -> dict[str, str]:
        with pytest.raises(StorageFull, match=r'"(a|b)" cannot be brought to north: no room for'):
            await stager.bring(["a", "b"], "north", "greedy")
        await stager.bring(["a"], "north", "one")
        with pytest.raises(StorageFull):
            await stager.bring(["b"], "north", "two")
        await stager.release("one")
        return await stager.bring(["b"], "north", "two")

    assert grid.run(twice) == {"b": grid.place("north", "b")}
    assert grid.located("a") == [str(tmp_path / "masters/south/a")]
    grid.catalogue.close()


def test_the_last_copy_of_a_file_does_not_go(tmp_path: Path) -> None:
    """Though it was only brought there."""
    grid = Grid(tmp_path, limit=len(BODY))
    grid.master("a", "south").unlink()
    path = grid.master("a", "east")
    grid.bring(["a"])
    path.unlink()
    grid.catalogue.unregister("a", site="south")
    grid.catalogue.unregister("a", site="east")
    grid.master("b", "south", b"1")

    with pytest.raises(StorageFull):
        grid.bring(["b"])
    assert grid.located("a") == [grid.place("north", "a")]
    grid.catalogue.close()


def test_a_copy_that_proved_bad_at_its_site_is_replaced(grid: Grid) -> None:
    """Even one whose size is right."""
    grid.master("a", "south")
    place = Path(grid.bring(["a"])["a"])
    place.write_bytes(BODY[::-1])
    grid.catalogue.report_bad("a", str(place), "holds something else")

    assert grid.bring(["a"]) == {"a": str(place)}
    assert place.read_bytes() == BODY
    assert str(place) in grid.located("a")


def test_a_missing_extra_is_no_reason_not_to_try_the_next_copy(
    grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said when it is the only one."""
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules, "bursar.replicas.schemes.s3", raising=False)
    grid.add("a", "s3://bucket/a", "south")

    with pytest.raises(InputError, match="s3 copies need s3fs"):
        grid.bring(["a"])
    path = grid.master("a", "east")
    assert Path(grid.bring(["a"])["a"]).read_bytes() == path.read_bytes()


def test_a_file_put_into_the_storage_by_hand_stays(grid: Grid) -> None:
    """It is found where it is registered, read once, and held like any other."""
    path = Path(grid.place("north", "a"))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(BODY)
    grid.add("a", str(path), "north")

    assert grid.bring(["a"]) == {"a": str(path)}
    with FolderStorage(grid.folder / "north") as storage:
        assert storage.used == 0


def test_outputs_are_kept_and_registered(grid: Grid, tmp_path: Path) -> None:
    """With size and checksum; the same again is the same, another content is refused."""
    made = tmp_path / "made"
    made.write_bytes(BODY)

    kept = grid.run(lambda stager: stager.keep(made, "out/a", "south"))
    again = grid.run(lambda stager: stager.keep(made, "out/a", "south"))
    made.write_bytes(b"something else")

    assert kept == again
    assert kept == Replica(
        name="out/a",
        site="south",
        url=grid.place("south", "out/a"),
        size=len(BODY),
        checksum=sha256(BODY),
    )
    assert grid.bring(["out/a"]) == {"out/a": grid.place("north", "out/a")}
    for site in ("south", "east"):
        with pytest.raises(InputError, match="out/a: is registered with "):
            grid.run(lambda stager, site=site: stager.keep(made, "out/a", site))
    assert not Path(grid.place("east", "out/a")).exists()
    with pytest.raises(
        FileUnreachable, match=r'"b" cannot be brought to east: .*/none is not there'
    ):
        grid.run(lambda stager: stager.keep(tmp_path / "none", "b", "east"))


def test_a_site_without_a_storage_is_named(grid: Grid) -> None:
    """With the one that was meant, perhaps."""
    grid.master("a", "south")
    with pytest.raises(InputError) as caught:
        grid.bring(["a"], "nort")
    assert str(caught.value) == (
        'site nort: has no storage, so no files can be brought there\nhint: did you mean "north"?'
    )


def test_a_link_is_shared_and_never_exceeded(tmp_path: Path) -> None:
    """Four files over one link take as long as all their bytes do."""
    grid = Grid(tmp_path, south={"north": 2e6})
    names = [f"f{n}" for n in range(4)]
    for name in names:
        grid.master(name, "south", os.urandom(200_000))

    began = time.monotonic()
    grid.bring(names)
    grid.catalogue.close()

    assert time.monotonic() - began > (800_000 - 2e6 * 0.1) / 2e6 * 0.9


BRINGER = """
import asyncio, os, signal, sys
from bursar.replicas import catalogue, parts, stager, storage

folder, point, *names = sys.argv[1:]

def die_after(kind, method):
    whole = getattr(kind, method)
    def replaced(*words, **options):
        whole(*words, **options)
        os.kill(os.getpid(), signal.SIGKILL)
    setattr(kind, method, replaced)

if point != "nowhere":
    kind, method = point.split(".")
    for room in (catalogue, parts, storage):
        if hasattr(room, kind):
            die_after(getattr(room, kind), method)

async def bring():
    opened = catalogue.Catalogue(folder + "/c.sqlite")
    store = storage.FolderStorage(folder + "/north", limit=int(os.environ["LIMIT"]))
    work = stager.Stager(opened, {"north": store})
    for name in names:
        await work.bring([name], "north", "job")
        await work.release("job")
    work.close()
    opened.close()

asyncio.run(bring())
"""


def bringer(
    grid: Grid, *names: str, point: str = "nowhere", limit: int = 10**9
) -> "subprocess.Popen[bytes]":
    """Another process that brings files to the north, and may die at a point."""
    return subprocess.Popen(
        [sys.executable, "-c", BRINGER, str(grid.folder), point, *names],
        env={**os.environ, "LIMIT": str(limit)},
    )


def test_what_a_killed_process_had_brought_is_not_sent_again(grid: Grid, web: Web) -> None:
    """It is killed in the middle of a transfer; the next one asks for the rest only."""
    grid.add("a", web.put("/a", BODY, pause=0.1))
    with bringer(grid, "a") as process:
        parts = grid.folder / "north/.bursar/parts"
        while sum(path.stat().st_size for path in parts.glob("*.part")) < 150_000:
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
    (part,) = parts.glob("*.part")
    length = part.stat().st_size
    web.pages["/a"].pause = 0.0

    places = grid.bring(["a"])

    assert Path(places["a"]).read_bytes() == BODY
    assert web.asked == ["", f"bytes={length}-"]
    assert list(parts.iterdir()) == []


@pytest.mark.parametrize(
    "point",
    [
        "PartialFile.set_origin",
        "PartialFile.sync",
        "PartialFile.put",
        "PendingFolderFile.commit",
        "Catalogue.spare",
        "Catalogue.register",
    ],
)
def test_a_process_may_be_killed_at_any_point(tmp_path: Path, point: str) -> None:
    """The next one finds everything once, and the limit kept; ``old`` must go for ``new``."""
    grid = Grid(tmp_path, limit=len(BODY))
    grid.master("old", "south", BODY[::-1])
    grid.master("new", "south")
    grid.bring(["old"])
    with bringer(grid, "new", point=point, limit=len(BODY)) as process:
        assert process.wait() == -signal.SIGKILL

    places = grid.bring(["new"])

    assert Path(places["new"]).read_bytes() == BODY
    with FolderStorage(tmp_path / "north", limit=len(BODY)) as storage:
        assert (storage.used, storage.cached) == (len(BODY), ["new"])
    assert grid.located("old") == [str(tmp_path / "masters/south/old")]
    assert grid.place("north", "new") in grid.located("new")
    files = [path for path in (tmp_path / "north").rglob("*") if path.is_file()]
    assert sorted(p.name for p in files if ".bursar" not in p.parts) == ["new"]
    assert list((tmp_path / "north/.bursar/parts").iterdir()) == []
    grid.catalogue.close()


def test_two_processes_bring_each_file_once(grid: Grid, web: Web) -> None:
    """Whoever comes second waits, and finds it there."""
    names = [f"f{n}" for n in range(10)]
    for name in names:
        grid.add(name, web.put(f"/{name}", BODY, pause=0.002))
    processes = [bringer(grid, *names), bringer(grid, *names)]

    assert [process.wait() for process in processes] == [0, 0]
    assert web.sent == {f"/{name}": len(BODY) for name in names}


def test_two_processes_crowd_a_small_storage(grid: Grid) -> None:
    """Each lets the other's files go; both get what they ask for, and the limit holds."""
    names = [f"f{n}" for n in range(6)]
    for name in names:
        grid.master(name, "south", os.urandom(1000))
    processes = [bringer(grid, *order, limit=3000) for order in (names * 3, names[::-1] * 3)]

    assert [process.wait() for process in processes] == [0, 0]
    with FolderStorage(grid.folder / "north", limit=3000) as storage:
        assert storage.used <= 3000
        for name in storage.cached:
            assert grid.place("north", name) in grid.located(name)


def test_a_file_stays_until_the_jobs_that_wait_for_it_have_it(
    grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process that needs room, at any moment, finds none that has just been filled."""
    grid.master("a", "south", b"0123456789")
    asked = []
    register = grid.catalogue.register

    def crowded(replica: Replica) -> None:
        """Lets another process look for room where the file has come and no job has it yet."""
        register(replica)
        wanted = LogicalFileContent(10, sha256(b"9876543210"))
        with FolderStorage(grid.folder / "north", limit=10) as other:
            asked.append(replica.name)
            with pytest.raises(StorageFull):
                other.begin("b", wanted, grid.catalogue.spare)

    monkeypatch.setattr(grid.catalogue, "register", crowded)
    (path,) = grid.bring(["a"]).values()

    assert Path(path).read_bytes() == b"0123456789"
    assert asked == ["a"]


def test_a_file_may_go_when_the_jobs_that_waited_for_it_have_ended(tmp_path: Path) -> None:
    """Nothing of a transfer outlives its jobs: neither pins of one that came nor of one ended."""
    grid = Grid(tmp_path, limit=10)
    for name in ("a", "b"):
        grid.master(name, "south", b"0123456789")

    async def work(stager: Stager) -> list[str]:
        jobs = ("one", "two")
        await asyncio.gather(*(stager.bring(["a"], "north", job) for job in jobs))
        for job in jobs:
            with pytest.raises(StorageFull):
                await stager.bring(["b"], "north", "three")
            await stager.release(job, "north")
        await stager.bring(["b"], "north", "three")
        return grid.located("a")

    assert grid.place("north", "a") not in grid.run(work)
    grid.catalogue.close()
