"""Files that are replaced as a whole, also where a writer is killed."""

import os
import subprocess
from pathlib import Path

from bursar.dispatch.folders import remove_unfinished, write_atomically


def test_what_a_killed_writer_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    """What a living process writes stays, and so does every other file."""
    with subprocess.Popen(["/bin/true"]) as gone:
        gone.wait()
    kept = {"run.json", ".run.json", ".notes.txt", f".bill.json.{os.getpid()}"}
    for name in (*kept, f".run.json.{gone.pid}"):
        (tmp_path / name).touch()

    remove_unfinished(tmp_path)

    assert {path.name for path in tmp_path.iterdir()} == kept


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """Nothing is left beside the file."""
    path = tmp_path / "a"
    write_atomically(path, b"one")
    write_atomically(path, b"two")

    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]
