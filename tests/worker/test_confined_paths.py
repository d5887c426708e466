"""Files below folders that tasks have filled with traps."""

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.worker.confined_files import DEEPEST, ConfinedFiles, open_folder, parts_of
from bursar.worker.staging import StagingError

SECRET = "what nobody else may read"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An instance's home beside somebody's secret."""
    for name in ("files", "work", "outside"):
        (tmp_path / "home" / name).mkdir(parents=True)
    (tmp_path / "home").rename(tmp_path / "h")
    (tmp_path / "h" / "outside").rename(tmp_path / "outside")
    (tmp_path / "outside" / "secret").write_text(SECRET)
    return tmp_path / "h"


def files_of(home: Path) -> ConfinedFiles:
    """Its files."""
    return ConfinedFiles(str(home / "files"))


def texts(folder: Path) -> str:
    """All that can be read below a folder, by who follows no link."""
    found = []
    for path, _, names in os.walk(folder):
        for name in names:
            file = Path(path, name)
            if file.is_file() and not file.is_symlink():
                found.append(file.read_text())
    return "\n".join(found)


@pytest.mark.parametrize(
    "name",
    ["", ".", "/", "/etc/passwd", "..", "../x", "a/../../x", "a/..", "a\0b", "./..", "//x", "/./x"],
)
def test_names_that_lead_elsewhere_are_refused(home: Path, name: str) -> None:
    """
    In one line, before anything is touched.
    """
    files, work = files_of(home), str(home / "work")
    for use in (
        lambda: parts_of(name),
        lambda: files.find(name),
        lambda: files.target(name),
        lambda: files.stage_in(work, name),
        lambda: files.make_room(work, name),
        lambda: files.publish(work, name, stays=False),
    ):
        with pytest.raises(StagingError) as problem:
            use()
        assert str(problem.value).isprintable()


def test_inputs_and_outputs_go_there_and_back(home: Path) -> None:
    """
    Files, folders, replaced ones; each output is whole under its name.
    """
    files, work = files_of(home), home / "work"
    (home / "files" / "in" / "a").mkdir(parents=True)
    (home / "files" / "in" / "a" / "x").write_text("1")
    files.stage_in(str(work), "in/a")
    files.stage_in(str(work), "in/a/x")
    assert (work / "in" / "a" / "x").read_text() == "1"

    files.make_room(str(work), "out/b/y")
    (work / "out" / "b" / "y").write_text("2")
    (work / "out" / "b" / "link").symlink_to("y")
    files.publish(str(work), "out/b/y", stays=False)
    files.publish(str(work), "out", stays=False)
    (work / "out" / "b" / "y").unlink()
    (work / "out" / "b" / "y").write_text("3")
    files.publish(str(work), "out/b/y", stays=False)

    assert (home / "files" / "out" / "b" / "y").read_text() == "3"
    assert os.readlink(home / "files" / "out" / "b" / "link") == "y"
    assert sorted(p.name for p in (home / "files" / "out" / "b").iterdir()) == ["link", "y"]


def test_where_the_folder_stays_the_output_is_a_copy(home: Path) -> None:
    """
    The next task writes to the same file; what was published before is not to change.
    """
    files, work = files_of(home), home / "work"
    (work / "log").write_text("1")
    files.publish(str(work), "log", stays=True)
    with (work / "log").open("a") as log:
        log.write("2")

    assert (home / "files" / "log").read_text() == "1"


def test_an_output_that_is_there_already_stays(home: Path) -> None:
    """
    The task ran in the instance's files: inputs and outputs are what they are.
    """
    files = files_of(home)
    (home / "files" / "x").write_text("1")
    files.stage_in(str(home / "files"), "x")
    files.publish(str(home / "files"), "x", stays=True)

    assert [p.name for p in (home / "files").iterdir()] == ["x"]
    assert (home / "files" / "x").read_text() == "1"


@pytest.mark.parametrize("trap", ["link", "folder link", "chain", "pipe", "link in", "hard folder"])
def test_an_output_that_is_a_trap_is_not_published(home: Path, trap: str) -> None:
    """
    Links out, pipes that nobody writes to: the attempt fails, and nothing leaks or hangs.
    """
    files, work, outside = files_of(home), home / "work", home.parent / "outside"
    match trap:
        case "link":
            (work / "o").symlink_to(outside / "secret")
        case "folder link":
            (work / "o").symlink_to(outside)
        case "chain":
            (work / "p").symlink_to("../../outside")
            (work / "o").symlink_to("p/secret")
        case "pipe":
            os.mkfifo(work / "o")
        case "link in":
            (work / "o").write_text("x")
            (home / "files" / "o").mkdir()
        case "hard folder":
            (work / "o").mkdir()
            os.mkfifo(work / "o" / "p")

    with pytest.raises(StagingError):
        files.publish(str(work), "o", stays=False)
    assert SECRET not in texts(home)


def test_links_among_the_files_do_not_lead_writers_out(home: Path) -> None:
    """
    A task before left a link where an output's folder should be.
    """
    files, work, outside = files_of(home), home / "work", home.parent / "outside"
    (home / "files" / "o").symlink_to(outside)
    (home / "files" / "tree").mkdir()
    (home / "files" / "tree" / "sub").symlink_to(outside)
    (work / "o").mkdir()
    (work / "o" / "new").write_text("x")
    (work / "tree" / "sub").mkdir(parents=True)
    (work / "tree" / "sub" / "new").write_text("x")

    for attempt in (
        lambda: files.publish(str(work), "o/new", stays=False),
        lambda: files.publish(str(work), "tree", stays=False),
        lambda: files.target("o/new"),
        lambda: files.target("o"),
        lambda: files.directory("o/deep"),
        lambda: files.find("o/secret"),
        lambda: files.stage_in(str(work), "o/secret"),
        lambda: os.close(open_folder(str(home / "files"), ["o", "deep"])),
    ):
        with pytest.raises(StagingError):
            attempt()
    assert [p.name for p in outside.iterdir()] == ["secret"]


def test_an_output_has_a_bottom(home: Path) -> None:
    """
    Folders in folders in folders are a failure, not the worker's end.
    """
    deep = home / "work" / "o"
    deep.joinpath(*["d"] * (DEEPEST + 5)).mkdir(parents=True)

    with pytest.raises(StagingError, match="folders in folders"):
        files_of(home).publish(str(home / "work"), "o", stays=False)


NAMES = st.sampled_from(["a", "b", "c"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
TARGETS = st.sampled_from(
    ["OUT", "OUT/secret", "..", "../..", "a", "b/c", "../files/a", "../work/b", "/", ".", "../../x"]
)
ENTRIES = st.lists(
    st.tuples(
        st.sampled_from(["files", "work"]),
        PATHS,
        st.sampled_from(["file", "folder", "link", "pipe"]),
        TARGETS,
    ),
    max_size=12,
)


@settings(
    max_examples=examples(150),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(entries=ENTRIES, name=PATHS, stays=st.booleans())
def test_whatever_the_tree_nothing_gets_in_or_out(
    tmp_path_factory: pytest.TempPathFactory,
    entries: list[tuple[str, str, str, str]],
    name: str,
    stays: bool,
) -> None:
    """
    Hostile trees: every use ends, either well or by one line; the secret stays, and stays alone.
    """
    base = tmp_path_factory.mktemp("tree")
    outside = base / "outside"
    for folder in (outside, base / "h" / "files", base / "h" / "work"):
        folder.mkdir(parents=True)
    (outside / "secret").write_text(SECRET)
    for where, path, kind, target in entries:
        build(base / "h" / where, path, kind, target.replace("OUT", str(outside)))
    files, work = ConfinedFiles(str(base / "h" / "files")), str(base / "h" / "work")

    for use in (
        lambda: files.stage_in(work, name),
        lambda: files.make_room(work, name),
        lambda: files.publish(work, name, stays=stays),
        lambda: files.target(name),
        lambda: files.directory(name),
    ):
        with contextlib.suppress(StagingError):
            use()
    assert SECRET not in texts(base / "h")
    assert [(p.name, p.read_text()) for p in outside.iterdir()] == [("secret", SECRET)]
    assert sorted(p.name for p in base.iterdir()) == ["h", "outside"]


def build(top: Path, path: str, kind: str, target: str) -> None:
    """One entry of a tree, unless something is in its way."""
    place = top / path
    try:
        if os.path.lexists(place) or not place.resolve().is_relative_to(top.resolve()):
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        match kind:
            case "file":
                place.write_text("mine")
            case "folder":
                place.mkdir()
            case "link":
                place.symlink_to(target)
            case "pipe":
                os.mkfifo(place)
    except (OSError, RuntimeError):
        return
