"""The tutorial's commands print what the tutorial says."""

import os
import re
import subprocess
import sys
from pathlib import Path

TUTORIAL = Path(__file__).resolve().parents[1] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d[\d.,:]*\d|\d")
UNIT = re.compile(r"\b0 (ms|s|min|h)\b( 0 s\b)?")


def shape(line: str) -> str:
    """Return a line with all numbers made 0, all times in seconds, and single spaces."""
    return " ".join(UNIT.sub("0 s", NUMBER.sub("0", line)).split())


def steps() -> list[tuple[str, str, list[str]]]:
    """Return what the tutorial does: files with their text, commands with the lines they print."""
    found: list[tuple[str, str, list[str]]] = []
    for language, title, text in BLOCK.findall(TUTORIAL.read_text()):
        if title:
            found.append(("file", title, text.splitlines(keepends=True)))
        elif language == "console":
            for line in text.splitlines():
                if line.startswith("$ "):
                    found.append(("command", line[2:], []))
                else:
                    found[-1][2].append(line)
    first = next(i for i, step in enumerate(found) if step[0] == "file")
    return found[first:]


def test_each_command_prints_what_is_shown(tmp_path: Path) -> None:
    """Each line shown is among those printed, whatever its numbers and spaces."""
    variables = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "BURSAR_HISTORY": str(tmp_path / "history.sqlite"),
        "COLUMNS": "100",
    }
    commands = 0
    for kind, what, lines in steps():
        if kind == "file":
            (tmp_path / what).write_text("".join(lines))
            continue
        done = subprocess.run(
            what, shell=True, cwd=tmp_path, env=variables, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False,
        )  # fmt: skip
        printed = {shape(line) for line in done.stdout.splitlines()}
        missing = [line for line in lines if line != "..." and shape(line) not in printed]
        assert not missing, f"{what}\nshown, not printed: {missing}\nprinted:\n{done.stdout}"
        commands += 1
    assert commands > 15


def test_shapes_differ_by_words_alone() -> None:
    assert shape(" held  0.6 s of 12") == shape("held 650 ms of 3,000")
    assert shape("deadline  1 min 0 s  (met)") == shape("deadline 3 s (met)")
    assert shape("deadline (met)") != shape("deadline (missed)")
