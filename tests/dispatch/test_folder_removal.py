"""Removing what tasks left behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bursar.dispatch import folders
from bursar.dispatch.folders import remove_tree


def deep(top: Path, depth: int) -> None:
    """Folders in folders, deeper than a path can say."""
    at = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=at))
    os.close(at)


def test_folders_without_a_bottom_go(tmp_path: Path) -> None:
    """
    A task makes thousands of folders in folders in a moment; a recursion would not survive them.
    """
    top = tmp_path / "top"
    top.mkdir()
    deep(top, 120)  # in a Python of its own, that calls itself less often than is usual
    (top / "other").mkdir()
    program = "import sys; from bursar.dispatch.folders import remove_tree as remove;"
    program += "sys.setrecursionlimit(100); remove(sys.argv[1])"

    subprocess.run([sys.executable, "-c", program, str(top)], check=True)

    assert not top.exists()


@pytest.mark.parametrize("is_deep", [False, True])
def test_links_go_and_what_they_lead_to_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_deep: bool
) -> None:
    """
    At the top, in a folder, and in what is removed by force.
    """

    def give_up(name: str, parent: int | None) -> None:
        raise RecursionError

    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    with monkeypatch.context() as patch:
        if is_deep:
            patch.setattr(folders, "_remove_folder", give_up)
        top = tmp_path / "top"
        top.mkdir()
        deep(top, 5)
        (top / "link").symlink_to(outside)
        (top / "d" / "link").symlink_to(outside)
        remove_tree(str(top))
        assert not top.exists()
    link = tmp_path / "link"
    link.symlink_to(outside)
    remove_tree(str(link))

    assert not link.is_symlink()
    assert (outside / "precious").read_text() == "x"


def test_files_pipes_and_nothing_go_too(tmp_path: Path) -> None:
    """
    Whatever took the place of the folder.
    """
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("x")
    for name in ("pipe", "file", "nothing"):
        remove_tree(str(tmp_path / name))

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_top", [True, False])
def test_a_pipe_that_takes_a_folders_place_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_top: bool
) -> None:
    """At the moment at which it is opened, as a task that goes on may do again and again."""
    top = tmp_path / "top"
    inner = top / "inner"
    inner.mkdir(parents=True)
    victim = top if is_top else inner
    opened = os.open

    def swapped(name: str, flags: int, *rest: int, dir_fd: int | None = None) -> int:
        if os.path.basename(name) == victim.name and victim.is_dir():
            victim.rename(tmp_path / "away")
            os.mkfifo(victim)
        return opened(name, flags, *rest, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", swapped)
    remove_tree(str(top))

    assert (tmp_path / "away").is_dir()
    assert is_top or not top.exists()


def test_what_is_filled_without_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that goes on may make files as fast as they are removed."""
    top = tmp_path / "top"
    (top / "full").mkdir(parents=True)
    unlinked = os.unlink
    made = iter(range(1_000_000))

    def filled(name: str, *, dir_fd: int | None = None) -> None:
        unlinked(name, dir_fd=dir_fd)
        (top / "full" / f"f{next(made)}").touch()

    (top / "full" / "file").touch()
    monkeypatch.setattr(folders, "_PATIENCE", 0.05)
    monkeypatch.setattr(os, "unlink", filled)
    remove_tree(str(top))

    assert top.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become nobody")
def test_folders_locked_by_their_owner_go(tmp_path: Path) -> None:
    """
    A task takes all rights from its own folders; the worker is the same user.
    """
    tmp_path.chmod(0o777)
    for parent in list(tmp_path.parents)[:3]:
        parent.chmod(parent.stat().st_mode | 0o011)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgid(65534)
            os.setuid(65534)
            top = tmp_path / "top"
            (top / "a" / "b").mkdir(parents=True)
            (top / "a" / "b" / "file").write_text("x")
            (top / "a" / "b").chmod(0)
            (top / "a").chmod(0)
            remove_tree(str(top))
            code = 0 if not top.exists() else 2
        finally:
            os._exit(code)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
