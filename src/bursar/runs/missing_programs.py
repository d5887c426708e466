"""Programs that tasks would not find on this machine, looked for before anything is bought."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from bursar.model.errors import InputError
from bursar.model.task import Copy, Exec, Shell, Task

_PLAIN = re.compile(r"(\./)?[\w.+-]+(/[\w.+-]+)*").fullmatch
"""A word at the begin of a line for the shell that can only be a command's name."""
_ASK = 'for word; do command -v -- "$word" > /dev/null || echo "$word"; done'
"""Has a shell say which words are no commands; builtins, keywords and functions of it are."""
PATIENCE = 10.0
"""Seconds that the shell is given."""


def check_programs(tasks: Iterable[Task], folder: Path) -> None:
    """
    Refuse tasks whose programs are not on this machine.

    Looked at are the first words of commands that can be nothing but a name. A name with a slash
    must be an executable file among the task's inputs; other names must be found on ``PATH``.

    Parameters
    ----------
    folder
        Folder of the campaign, in which its inputs are.

    Raises
    ------
    InputError
        Naming the first task and its program.
    """
    in_folder: dict[tuple[str, tuple[str, ...]], str] = {}
    programs: dict[str, str] = {}
    words: dict[str, str] = {}
    for task in tasks:
        for step in task.steps:
            if isinstance(step, Copy):
                break  # may bring a program of its own
            if isinstance(step, Exec):
                word, names = step.argv[0], programs
            elif isinstance(step, Shell):
                word, names = step.line.split(None, 1)[0] if step.line.strip() else "", words
            else:
                continue
            if word in names or not _PLAIN(word):
                continue
            if "/" not in word:
                if "PATH" not in task.environment:
                    names[word] = task.id
            elif word.startswith("./"):
                in_folder.setdefault((word, tuple(file.name for file in task.inputs)), task.id)
    for (word, inputs), name in in_folder.items():
        _check_file(word, inputs, name, folder)
    missing = {word: name for word, name in programs.items() if shutil.which(word) is None}
    missing |= {word: words[word] for word in _unknown_to_the_shell(list(words))}
    for word, name in missing.items():
        raise InputError(
            f'task "{name}" runs "{word}", which is not on PATH',
            hint=f"if it is a file of yours, list it in inputs and write ./{word}",
        )


def _check_file(word: str, inputs: tuple[str, ...], task: str, folder: Path) -> None:
    name = word.removeprefix("./")
    if not any(name == one or name.startswith(f"{one}/") for one in inputs):
        raise InputError(
            f'task "{task}" runs "{word}", which is not among its inputs',
            hint=f'inputs = ["{name}"]' if (folder / name).exists() else None,
        )
    path = folder / name  # else a task before makes it
    if path.is_file() and not os.access(path, os.X_OK):
        raise InputError(
            f'task "{task}" runs "{word}", which may not be executed', hint=f"chmod +x {name}"
        )


def _unknown_to_the_shell(words: list[str]) -> list[str]:
    if not words:
        return []
    asked = subprocess.run(
        ["/bin/sh", "-c", _ASK, "sh", *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return asked.stdout.split() if asked.returncode == 0 else []
