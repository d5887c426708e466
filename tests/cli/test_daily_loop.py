"""The loop of a working day, typed in a terminal of 80 columns: run, edit, rerun, fail, mend."""

import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

CAMPAIGN = """\
[campaign]
name = "fit"
command = "python3 model.py {n}"
code = ["model.py"]
[parameters]
n = { from = 1, to = %d, step = 1 }
[task]
inputs = ["model.py"]
[retry]
attempts = 1
"""
MODEL = """\
import sys
n = int(sys.argv[1])
print(f"loss {n * %s}")
"""
PATIENCE = 120.0
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-B0-2]|\x1b[=>]")


class Terminal:
    """
    A terminal of 80 columns and 30 lines, in which commands are typed.

    Parameters
    ----------
    folder
        Folder in which they run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def types(self, line: str, *, status: int = 0) -> str:
        """Run a command to its end; return what is left to read on the screen, without colours."""
        ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 80, 0, 0))
        words = [sys.executable, "-m", *line.split()]
        env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
        process = subprocess.Popen(
            words,
            cwd=self.folder,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=env | {"TERM": "xterm-256color"},
            start_new_session=True,
        )
        os.close(theirs)
        raw, give_up = b"", time.monotonic() + PATIENCE
        try:
            while time.monotonic() < give_up:
                if not select.select([ours], [], [], 0.2)[0]:
                    continue
                try:
                    part = os.read(ours, 65536)
                except OSError:  # the other end is closed
                    break
                if not part:
                    break
                raw += part
            found = process.wait(timeout=10)
        finally:
            process.kill()
            os.close(ours)
        text = _CONTROL.sub("", raw.decode(errors="replace")).replace("\r\n", "\n")
        assert "bursar/cli" not in text, text  # a traceback of ours
        assert found == status, (found, text)
        assert "…" not in text, text  # cut short
        return text


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    """One in a folder with a sweep of six points."""
    (tmp_path / "fit.toml").write_text(CAMPAIGN % 6)
    (tmp_path / "model.py").write_text(MODEL % "1")
    return Terminal(tmp_path)


@pytest.mark.ci
def test_a_day(terminal: Terminal) -> None:
    """First run, the same again, extended, edited, failed, looked at, mended, compared, cleaned."""
    folder = terminal.folder
    assert "6 of 6 succeeded" in terminal.types("bursar run fit.toml --name one")

    # Again: nothing has changed, so that nothing runs.
    again = terminal.types("bursar run fit.toml --name two")
    assert "reused" in again
    assert "6 of 6 succeeded" in again
    assert "0 SU" in again

    # Extended: only what is new runs, and the results hold all.
    (folder / "fit.toml").write_text(CAMPAIGN % 8)
    explained = terminal.types("bursar run fit.toml --name three --explain")
    assert "8 of 8 succeeded" in explained
    assert "2" in re.findall(r"(\d+) run", explained) or "new" in explained
    rows = (folder / "runs" / "three" / "results.csv").read_text().splitlines()
    assert len(rows) == 9

    # Edited: all of it reruns, and the reason is told.
    (folder / "model.py").write_text(MODEL % "2" + "if n in (3, 5): raise ValueError('bad n')\n")
    failed = terminal.types("bursar run fit.toml --name four --explain", status=1)
    assert "model.py" in failed
    assert "2 x ValueError: bad n" in failed
    assert "bursar logs four fit-2" in failed

    # Looked at, mended, tried again.
    listed = terminal.types("bursar tasks four --failed")
    assert "n=3" in listed
    assert "2 of 8 tasks" in listed
    assert "ValueError: bad n" in terminal.types("bursar logs four 2", status=0)
    (folder / "model.py").write_text(MODEL % "2")
    mended = terminal.types("bursar run fit.toml --name five")
    assert "8 of 8 succeeded" in mended

    # Compared, labelled, cleaned.
    assert "only in the second" in terminal.types("bursar compare one five")
    assert "good" in terminal.types("bursar tag five good keep")
    assert "stays: has the tag keep" in terminal.types("bursar clean one five")
    terminal.types("bursar clean one two --yes")
    left = terminal.types("bursar runs")
    assert "five" in left
    assert not re.search(r"^ (one|two) ", left, re.MULTILINE)
