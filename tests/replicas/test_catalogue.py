"""The catalogue: one content for each name, copies at sites, several processes."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.model.errors import BursarError, InputError
from bursar.model.matching import Replica
from bursar.replicas.catalogue import Catalogue
from bursar.replicas.content import LogicalFileContent
from bursar.sqlite_file import connect

SUM = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64


def replica(
    name: str = "x",
    url: str = "/north/x",
    site: str = "north",
    size: int | None = 5,
    checksum: str | None = SUM,
) -> Replica:
    """A copy."""
    return Replica(name=name, site=site, url=url, size=size, checksum=checksum)


@pytest.fixture
def catalogue(tmp_path: Path) -> Iterator[Catalogue]:
    """An empty one."""
    with Catalogue(tmp_path / "c.sqlite") as catalogue:
        yield catalogue


def test_copies_are_located_by_name_also_many_at_once(catalogue: Catalogue) -> None:
    """In the order of sites; a name that nobody knows has none."""
    south = replica(url="s3://bucket/x", site="south")
    catalogue.register_all([south, replica(), replica("y/z", "/north/y")])

    assert catalogue.locate("x") == [replica(), south]
    assert catalogue.locate("nothing") == []
    assert catalogue.locate_all(["y/z", "x", "nothing"]) == {
        "x": [replica(), south],
        "y/z": [replica("y/z", "/north/y")],
    }
    assert catalogue.sites() == {"north": (2, 10), "south": (1, 5)}


def test_names_are_found_by_pattern(catalogue: Catalogue) -> None:
    """A star stands for folders too."""
    catalogue.register_all(replica(name, f"/{name}") for name in ("run7/a", "run7/b/c", "run8/a"))

    assert catalogue.names("run7/*") == ["run7/a", "run7/b/c"]
    assert [entry.replica.name for entry in catalogue.entries("run?/a")] == ["run7/a", "run8/a"]
    assert catalogue.entries(site="south") == []


def test_a_logical_file_has_one_content(catalogue: Catalogue) -> None:
    """Another size or checksum is refused, and nothing of what came with it is there."""
    catalogue.register(replica())

    for other in (replica(url="/y", size=6), replica(url="/y", checksum=OTHER)):
        with pytest.raises(InputError, match=r"^x: is registered with 5 bytes, sha256:aaaaaaaa…"):
            catalogue.register_all([replica("new", "/new"), other])
    assert catalogue.names() == ["x"]
    assert catalogue.locate("x") == [replica()]


def test_what_was_not_known_is_learned(catalogue: Catalogue) -> None:
    """By any copy, for all of them; and it is not forgotten again."""
    catalogue.register(replica(size=None, checksum=None))
    catalogue.register(replica(url="/y", checksum=None))
    catalogue.register(replica(url="/z", size=None))
    catalogue.register(replica(url="/w", size=None, checksum=None))

    assert catalogue.content("x") == LogicalFileContent(5, SUM)
    assert {(r.size, r.checksum) for r in catalogue.locate("x")} == {(5, SUM)}


def test_an_empty_file_is_not_one_of_unknown_size(catalogue: Catalogue) -> None:
    """No bytes is a size."""
    catalogue.register(replica(size=0))
    with pytest.raises(InputError):
        catalogue.register(replica(size=5))


def test_a_bad_copy_is_listed_and_not_located_until_it_is_registered_again(
    catalogue: Catalogue,
) -> None:
    """Its fault stands beside it."""
    catalogue.register(replica())
    catalogue.report_bad("x", "/north/x", "is not there")

    assert catalogue.locate("x") == []
    assert catalogue.locate_all(["x"]) == {}
    assert [entry.bad for entry in catalogue.entries()] == ["is not there"]
    assert catalogue.doubtful(["x"], "north") == ["x"]
    catalogue.register(replica())
    assert catalogue.locate("x") == [replica()]
    assert catalogue.doubtful(["x"], "north") == []


def test_a_name_without_copies_is_forgotten(catalogue: Catalogue) -> None:
    """It may come back with another content."""
    catalogue.register_all([replica(), replica(url="/y", site="south"), replica(url="/z")])

    assert catalogue.unregister("x", url="/y") == 1
    assert catalogue.unregister("x", site="north") == 2
    assert catalogue.unregister("x") == 0
    assert catalogue.content("x") is None
    catalogue.register(replica(size=6, checksum=OTHER))


def test_the_last_good_copy_is_not_spared(catalogue: Catalogue) -> None:
    """A bad one is as good as none; what is not registered may always go."""
    catalogue.register_all([replica(), replica(url="/y")])
    catalogue.report_bad("x", "/y", "is not there")

    assert not catalogue.spare("x", "/north/x")
    assert catalogue.spare("x", "/elsewhere")
    catalogue.register(replica(url="/z"))
    assert catalogue.spare("x", "/north/x")
    assert [found.url for found in catalogue.locate("x")] == ["/z"]


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (replica("../x"), 'file name must be a relative path without "..", got "../x"'),
        (replica("/x"), 'file name must be a relative path without "..", got "/x"'),
        (replica(".bursar/x"), 'file name must not begin with ".bursar/", got ".bursar/x"'),
        (replica("\ud800"), "file name must be Unicode, got '\\ud800'"),
        (replica(size=-1), "a size must be between 0 and 2^63, got -1"),
        (
            replica(checksum="md5:1"),
            'expected a checksum such as "sha256:" and 64 of 0-9a-f, got "md5:1"',
        ),
        (
            replica(url="gopher://host/x"),
            "gopher://host/x: expected a path or a URL of file, http, https, ssh, sftp, s3",
        ),
        (replica(url="http:///x"), "http:///x: expected a host"),
        (replica(url=""), "expected a path or a URL"),
    ],
)
def test_what_is_out_of_form_is_refused(catalogue: Catalogue, wrong: Replica, line: str) -> None:
    """In one line."""
    with pytest.raises(InputError) as caught:
        catalogue.register(wrong)
    assert str(caught.value).splitlines()[0] == line


def test_names_and_paths_are_kept_in_their_shortest_form(
    catalogue: Catalogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a path holds wherever it is read from."""
    monkeypatch.chdir(tmp_path)
    catalogue.register(replica("./a//b", "d/../x"))
    catalogue.register(replica("c", "file:///with%20space"))

    assert [r.url for r in catalogue.locate("a/b")] == [str(tmp_path / "x")]
    assert [r.url for r in catalogue.locate("c")] == ["/with space"]


@pytest.mark.parametrize("damage", [b"no database at all, but a text", b"", b"SQLite format 3\0"])
def test_a_damaged_file_is_one_line(tmp_path: Path, damage: bytes) -> None:
    """An empty one is a new catalogue; anything else stays as it was."""
    path = tmp_path / "c.sqlite"
    path.write_bytes(damage * 10)
    if not damage:
        Catalogue(path).close()
        return
    with pytest.raises(InputError) as caught:
        Catalogue(path)
    assert str(caught.value).startswith(f"{path}: is damaged or no catalogue: ")
    assert path.read_bytes() == damage * 10


def test_a_newer_or_foreign_file_is_one_line(tmp_path: Path) -> None:
    """What is not ours is not touched."""
    path = tmp_path / "c.sqlite"
    Catalogue(path).close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE meta SET value = '2'")
        db.commit()
    with pytest.raises(InputError, match="its format is 2; this version reads format 1"):
        Catalogue(path)
    foreign = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(foreign)) as db:
        db.execute("CREATE TABLE theirs (x)")
    with pytest.raises(InputError, match="is another program's database, no catalogue"):
        Catalogue(foreign)
    with pytest.raises(InputError, match="cannot be opened: No such file"):
        Catalogue(tmp_path / "no" / "folder")


def test_a_catalogue_that_cannot_be_written_says_so(catalogue: Catalogue, tmp_path: Path) -> None:
    """While another connection holds it for too long."""
    catalogue._db._db.patience = 0.05
    with closing(connect(tmp_path / "c.sqlite", synchronous="OFF")) as db:
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(BursarError, match="another process has locked it for too long"):
            catalogue.register(replica())
    catalogue.register(replica())


WRITER = """
import sys
from bursar.model.matching import Replica
from bursar.replicas.catalogue import Catalogue

who = sys.argv[2]
with Catalogue(sys.argv[1]) as catalogue:
    for n in range(50):
        catalogue.register(Replica(name=f"x{n}", site=who, url=f"/{who}/{n}", size=n))
"""


def test_two_processes_write_at_once(tmp_path: Path) -> None:
    """Nothing of either is lost; they even make the file together."""
    path = tmp_path / "c.sqlite"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), who]) for who in ("a", "b", "c")
    ]
    assert [writer.wait() for writer in writers] == [0, 0, 0]

    with Catalogue(path) as catalogue:
        assert catalogue.sites() == {who: (50, sum(range(50))) for who in ("a", "b", "c")}


NAMES = st.sampled_from(["a", "b", "c/d"])
URLS = st.sampled_from(["/1", "/2", "s3://b/3"])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["register", "unregister", "bad", "spare"]),
        NAMES,
        URLS,
        st.sampled_from([None, 1, 2]),
        st.sampled_from(["north", "south"]),
    ),
    max_size=25,
)


@settings(max_examples=examples(40))
@given(STEPS)
def test_it_says_what_a_plain_dictionary_says(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, str, int | None, str]]
) -> None:
    """Whatever is done in whichever order."""
    sizes: dict[str, int | None] = {}
    copies: dict[str, dict[str, list[object]]] = {}  # name -> url -> [site, good]
    with Catalogue(tmp_path_factory.mktemp("c") / "c.sqlite") as catalogue:
        for what, name, url, size, site in steps:
            here = copies.setdefault(name, {})
            if what == "register":
                copy = replica(name, url, site, size, None)
                if here and None not in (size, sizes[name]) and size != sizes[name]:
                    with pytest.raises(InputError):
                        catalogue.register(copy)
                    continue
                catalogue.register(copy)
                sizes[name] = size if not here or sizes[name] is None else sizes[name]
                here[url] = [site, True]
            elif what == "unregister":
                assert catalogue.unregister(name, url=url) == (url in here)
                here.pop(url, None)
            elif what == "bad":
                catalogue.report_bad(name, url, "bad")
                if url in here:
                    here[url][1] = False
            else:
                others = any(good for u, (_, good) in here.items() if u != url)
                assert catalogue.spare(name, url) == (url not in here or others)
                if others:
                    here.pop(url, None)
            assert catalogue.locate(name) == sorted(
                (
                    replica(name, u, str(s), sizes[name], None)
                    for u, (s, good) in here.items()
                    if good
                ),
                key=lambda r: (r.site, r.url),
            )
        assert catalogue.names() == sorted(name for name, here in copies.items() if here)
