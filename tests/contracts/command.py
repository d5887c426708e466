"""The command ``bursar`` in a folder: within this process, or as one that can be struck."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from tests.contracts.processes import kill_below

PATIENCE = 60.0
"""Seconds after which a test gives up on a condition."""


@dataclass(frozen=True)
class CommandOutput:
    """
    A command that has ended.

    Parameters
    ----------
    status
        Its exit status.
    out, err
        What it printed.
    """

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The document that it printed with ``--json``."""
        return json.loads(self.out)


class CommandFolder:
    """
    A folder with files in which commands are run.

    Commands run within this process, by the entry point that is installed: starting an
    interpreter costs more than most of them.

    Parameters
    ----------
    path
        The folder; it exists.
    environment
        Further variables of the commands.
    """

    def __init__(self, path: Path, environment: Mapping[str, str] | None = None) -> None:
        self.path = path
        self.environment = dict(environment or {})
        self._started: list[subprocess.Popen[str]] = []

    def write(self, name: str, text: str) -> Path:
        """Write a file in the folder, and the folders above it."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def bursar(self, *words: str, status: int | None = 0) -> CommandOutput:
        """Run the command to its end; it must have this exit status (None: any)."""
        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
        code: Any = None
        with (
            contextlib.chdir(self.path),
            _replaced(self.environment, ["bursar", *words]),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                _entry_point()()
            except SystemExit as ended:
                code = ended.code
            out.flush()
        output = CommandOutput(code or 0, out.buffer.getvalue().decode(), err.getvalue())
        assert status is None or output.status == status, output
        return output

    def start(self, *words: str) -> "subprocess.Popen[str]":
        """Start the command as a process with a session of its own, as a terminal does."""
        process = subprocess.Popen(
            [sys.executable, "-m", "bursar", *words],
            cwd=self.path,
            env=os.environ | self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def until(self, holds: Callable[[], Any], process: "subprocess.Popen[str]") -> None:
        """Wait until a condition holds while a process runs."""
        give_up = time.monotonic() + PATIENCE
        while not holds():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < give_up, "the condition never held"
            time.sleep(0.01)

    def close(self) -> None:
        """Kill what still runs of the processes that were started, and what these started."""
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        kill_below(self.path)


def first_document(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """Return the JSON document that a service prints when it listens."""
    assert process.stdout is not None
    said = ""
    while "\n}" not in said:
        line = process.stdout.readline()
        assert line, process.communicate()
        said += line
    told: dict[str, Any] = json.loads(said)
    return told


def _entry_point() -> Callable[[], None]:
    (script,) = entry_points(group="console_scripts", name="bursar")
    loaded: Callable[[], None] = script.load()
    return loaded


@contextlib.contextmanager
def _replaced(environment: Mapping[str, str], words: list[str]) -> Any:
    """Set variables and the words of the command line for a while."""
    before, argv = dict(os.environ), sys.argv
    os.environ.update(environment)
    sys.argv = words
    try:
        yield
    finally:
        sys.argv = argv
        os.environ.clear()
        os.environ.update(before)
