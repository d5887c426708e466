"""Pages of the documents as programs: files that they show, and commands with what these print."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d[\d.,:]*\d|\d")
UNIT = re.compile(r"\b0 (ms|s|min|h)\b( 0 s\b)?")


@dataclass(frozen=True)
class ShownFile:
    """A file that a page shows, under its name."""

    name: str
    text: str


@dataclass(frozen=True)
class ShownCommand:
    """A command that a page shows, and the lines below it."""

    line: str
    printed: list[str] = field(default_factory=list)


def shape(line: str) -> str:
    """Return a line with all numbers made 0, all times in seconds, and single spaces."""
    return " ".join(UNIT.sub("0 s", NUMBER.sub("0", line)).split())


def steps_of(page: Path) -> list[ShownFile | ShownCommand]:
    """Return the files and the commands of a page, in its order."""
    found: list[ShownFile | ShownCommand] = []
    for language, title, text in BLOCK.findall(page.read_text()):
        if title:
            found.append(ShownFile(title, text))
        elif language == "console":
            for line in text.splitlines():
                if line.startswith("$ "):
                    found.append(ShownCommand(line[2:]))
                else:
                    shown = found[-1]
                    assert isinstance(shown, ShownCommand)
                    shown.printed.append(line)
    return found


def carry_out(
    steps: Iterable[ShownFile | ShownCommand], folder: Path, variables: dict[str, str]
) -> int:
    """
    Write the files, run the commands, and return how many there were.

    Each line shown has to be among those printed, whatever its numbers and spaces; "..." stands for
    any. Variables that a command exports are there for those that follow.
    """
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "BURSAR_HISTORY": str(folder / "history.sqlite"),
        "COLUMNS": "100",
        **variables,
    }
    exported: list[str] = []
    commands = 0
    for step in steps:
        if isinstance(step, ShownFile):
            (folder / step.name).write_text(step.text)
            continue
        commands += 1
        if step.line.startswith("export "):
            exported.append(step.line)
            continue
        done = subprocess.run(
            "\n".join([*exported, step.line]), shell=True, cwd=folder, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=100, check=False,
        )  # fmt: skip
        printed = {shape(line) for line in done.stdout.splitlines()}
        missing = [one for one in step.printed if one != "..." and shape(one) not in printed]
        said = f"{step.line}\nshown, not printed: {missing}\nprinted:\n{done.stdout}"
        assert not missing, said
        assert done.returncode == 0 or step.printed, said
    return commands
