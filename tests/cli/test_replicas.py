"""``bursar replicas``: copies registered, listed, brought to sites, checked, taken out."""

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from tests.replicas.servers import a_web

from bursar.model.matching import Replica
from bursar.replicas.catalogue import Catalogue
from bursar.replicas.content import CancellationToken
from bursar.replicas.copying import read_content

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
SITES = """\
[site.north]
kind = "local"
storage = "north"
storage_limit = "1 kB"
[site.south]
kind = "local"
storage = "south"
[site.bare]
kind = "local"
"""
SUM = "sha256:" + hashlib.sha256(b"hello\n").hexdigest()


def keys_of(value: Any) -> set[str]:
    """Keys of all objects in a document."""
    if isinstance(value, dict):
        return set(value).union(*(keys_of(item) for item in value.values()))
    if isinstance(value, list):
        return set().union(*(keys_of(item) for item in value))
    return set()


def test_from_adding_to_removing(folder: Any) -> None:
    """What the page on the command shows, in order, and every key is documented."""
    (folder.path / "run7" / "deep").mkdir(parents=True)
    folder.write("run7/a", "hello\n")
    folder.write("run7/deep/b", "b")
    folder.write("sites.toml", SITES)

    added = folder.json("replicas", "add", "run7", "run7", "--recursive", "--site", "south")
    listed = folder.json("replicas", "list", "run7/*")
    copied = folder.json("replicas", "copy", "run7/a", "--to", "north", "--sites", "sites.toml")
    located = folder.json("replicas", "locate", "run7/a")
    place = str(folder.path / "north/run7/a")
    Path(place).write_text("jello\n")
    verified = folder.json("replicas", "verify", status=1)
    after = folder.json("replicas", "locate", "run7/a")
    again = folder.json("replicas", "copy", "run7/a", "--to", "north", "--sites", "sites.toml")
    verified_again = folder.json("replicas", "verify", "run7/a")
    removed = folder.json("replicas", "remove", "run7/a", "--site", "south")

    assert [copy["name"] for copy in added["added"]] == ["run7/a", "run7/deep/b"]
    assert [copy["size"] for copy in listed["copies"]] == [6, 1]
    assert copied == again == {"site": "north", "files": [{"name": "run7/a", "url": place}]}
    assert [copy["site"] for copy in located["copies"]] == ["north", "south"]
    assert {copy["checksum"] for copy in located["copies"]} == {SUM}
    faults = {copy["url"]: copy["bad"] for copy in verified["copies"]}
    assert [url for url, bad in faults.items() if bad] == [place]
    assert [copy["site"] for copy in after["copies"]] == ["south"]
    assert Path(place).read_text() == "hello\n"
    assert [copy["fault"] for copy in verified_again["copies"]] == [None, None]
    assert removed == {"name": "run7/a", "removed": 1}
    assert (folder.path / "run7/a").exists()
    text = re.sub(r"```.*?```", "", (REFERENCE / "json.md").read_text(), flags=re.DOTALL)
    documented = {w for part in re.findall(r"`([^`]+)`", text) for w in re.findall(r"\w+", part)}
    for document in (added, listed, copied, located, verified, removed):
        assert keys_of(document) <= documented


def test_a_table_for_people(folder: Any) -> None:
    """Nothing is cut off, and a bad copy says why."""
    folder.write("a", "hello\n")
    folder.bursar("replicas", "add", "a/very/long/name" * 5, "a")
    (folder.path / "a").unlink()
    said = folder.bursar("replicas", "verify", status=1).stdout
    assert said.endswith("is not there\n0 of 1 copies are good\n")

    lines = folder.bursar("replicas", "list").stdout.splitlines()

    assert lines[0].split() == ["name", "size", "site", "copy"]
    assert lines[1].startswith("a/very/long/name" * 5 + "   6 B  -     ")
    assert lines[1].endswith(f"{folder.path}/a  (bad: is not there)")
    folder.bursar("replicas", "locate", "a/very/long/name" * 5, status=1)


def test_a_copy_whose_size_and_checksum_are_given_is_not_read(folder: Any) -> None:
    """It need not even be there now."""
    url = "https://ann:secret@nowhere.invalid/x?Signature=1"
    words = ("replicas", "add", "x", url, "--size", "6 B", "--checksum", SUM)
    (copy,) = folder.json(*words)["added"]

    assert copy == {
        "name": "x",
        "site": "",
        "url": "https://nowhere.invalid/x",
        "size": 6,
        "checksum": SUM,
    }
    assert "secret" not in folder.bursar("replicas", "list").stdout


def test_the_catalogue_may_be_named_by_the_environment(folder: Any) -> None:
    """Or by the option."""
    folder.write("a", "hello\n")
    env = {**os.environ, "BURSAR_CATALOGUE": "other.sqlite"}
    folder.bursar("replicas", "add", "a", "a", env=env)
    listed = json.loads(
        folder.bursar("replicas", "list", "--catalogue", "other.sqlite", "--json").stdout
    )
    assert [copy["name"] for copy in listed["copies"]] == ["a"]


def test_a_copy_comes_by_http_and_goes_on_where_it_broke_off(folder: Any) -> None:
    """The command needs no second call for that."""
    body = os.urandom(3_000_000)
    folder.write("sites.toml", SITES)
    with a_web() as web:
        env = {**os.environ, "NO_PROXY": "*"}
        folder.bursar("replicas", "add", "x", web.put("/x", body), env=env)
        web.put("/x", body, cuts=[2_000_000])
        words = ("replicas", "copy", "x", "--to", "south", "--sites", "sites.toml")
        said = folder.bursar(*words, env=env)
        assert web.asked[-1].startswith("bytes=")
    assert said.stdout == f"x\t{folder.path}/south/x\n"
    assert (folder.path / "south/x").read_bytes() == body


@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        (["list", "--catalogue", "none"], 2, "none: there is no catalogue"),
        (["locate", "b"], 2, "b: is not in the catalogue"),
        (["locate", "../b"], 2, 'file name must be a relative path without "..", got "../b"'),
        (["remove", "b"], 2, "b: there is no such copy in the catalogue"),
        (["verify", "b"], 2, "b: there is no such copy in the catalogue"),
        (["add", "b", "nothing"], 2, "{folder}/nothing: is not there"),
        (["add", "a", "sites.toml"], 2, "a: is registered with 6 bytes, {sum}…, not with"),
        (["add", "b", "a", "--size", "much"], 2, "--size: expected a size"),
        (["add", "b", "a", "--checksum", "1"], 2, 'expected a checksum such as "sha256:"'),
        (["add", "b", "ftp://host/x"], 2, "ftp://host/x: expected a path or a URL of file"),
        (["add", "b", "a", "--recursive"], 2, "{folder}/a: --recursive needs a folder"),
        (["copy", "b", "--to", "north"], 1, '"b" is not in the catalogue'),
        (["copy", "a", "--to", "nort"], 2, 'sites.toml: there is no site "nort"'),
        (["copy", "a", "--to", "bare"], 2, "site bare: has no storage"),
        (["copy", "big", "--to", "north"], 1, '"big" cannot be brought to north: no room for'),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    folder: Any, words: list[str], status: int, line: str
) -> None:
    """And nothing is printed as if it had worked."""
    folder.write("sites.toml", SITES)
    with Catalogue(folder.path / "replicas.sqlite") as catalogue:
        for name, data in (("a", b"hello\n"), ("big", bytes(2000))):
            path = folder.path / name
            path.write_bytes(data)
            content = read_content(str(path), stop=CancellationToken())
            catalogue.register(
                Replica(
                    name=name,
                    site="",
                    url=str(path),
                    size=content.size,
                    checksum=content.checksum,
                )
            )
    if words[0] == "copy":
        words = [*words, "--sites", "sites.toml"]

    done = folder.bursar("replicas", *words, status=status)

    expected = "bursar: " + line.format(folder=folder.path, sum=SUM[:15])
    assert done.stderr.splitlines()[0].startswith(expected)
    assert done.stdout == ""
