"""The command as its user runs it, in a folder of its own."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.contracts.processes import kill_below
from tests.forked import ForkedCommand, run_forked

PATIENCE = 60.0
"""Seconds after which a test gives up on a condition."""


class Folder:
    """
    A folder with files, and the command run in it.

    Parameters
    ----------
    path
        Of the folder; empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._started: list[ForkedCommand] = []

    def write(self, name: str, text: str) -> Path:
        """A file in it."""
        path = self.path / name
        path.write_text(text)
        return path

    def bursar(
        self,
        *words: str,
        status: int | None = 0,
        env: Mapping[str, str] | None = None,
        input: str = "",
        interpreter: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """
        Run the command to its end, which must be this status; None: any.

        It is forked from an interpreter that has imported it, unless one of its own is asked for,
        as commands need that start processes by :mod:`multiprocessing`.
        """
        if interpreter:
            done = subprocess.run(
                [sys.executable, "-m", "bursar", *words],
                cwd=self.path,
                env=env,
                input=input,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
        else:
            done = run_forked(words, self.path, env, standard_input=input, timeout=PATIENCE)
        assert status is None or done.returncode == status, (
            done.returncode,
            done.stdout,
            done.stderr,
        )
        assert "Traceback" not in done.stderr
        return done

    def json(self, *words: str, status: int = 0, **options: Any) -> dict[str, Any]:
        """What the command answers with ``--json``."""
        answer: dict[str, Any] = json.loads(
            self.bursar(*words, "--json", status=status, **options).stdout
        )
        return answer

    def start(self, *words: str) -> ForkedCommand:
        """Starts the command in a session of its own, as a terminal would."""
        process = ForkedCommand(words, self.path)
        self._started.append(process)
        return process

    def until(self, what: Callable[[], Any], process: ForkedCommand) -> None:
        """Waits for something to become true while a process runs."""
        give_up = time.monotonic() + PATIENCE
        while not what():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < give_up
            time.sleep(0.005)

    @property
    def run(self) -> Path:
        """The only run there is."""
        (path,) = (self.path / "runs").iterdir()
        return path

    def close(self) -> None:
        """Ends what is still running, and workers that wait for a killed run to be resumed."""
        for process in self._started:
            if process.poll() is None:
                process.signal_group(signal.SIGKILL)
            process.communicate()
        for contact in self.path.glob("runs/*/workers.json"):
            kill_below(contact.parent)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    """An empty one."""
    folder = Folder(tmp_path)
    yield folder
    folder.close()
