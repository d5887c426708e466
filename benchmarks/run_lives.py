"""Starts, kills and resumes ``bursar run`` in a folder, for programs that try faults on it."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol


class Started(Protocol):
    """A process that was started; :class:`subprocess.Popen` is one."""

    pid: int

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit status."""

    def send_signal(self, signal: int) -> None:
        """Send a signal."""


Start = Callable[[Sequence[str], Path, Mapping[str, str], Path], Started]
"""Starts ``bursar``, by its words, folder, further variables, and the file that it prints to."""


def start_command(
    words: Sequence[str], folder: Path, environment: Mapping[str, str], output: Path
) -> Started:
    """Start ``bursar`` in a session of its own; what it prints is appended to a file."""
    # A file and not a pipe: a process that a killed run leaves behind may hold a pipe open.
    with output.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "bursar", *words],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


class RunLives:
    """
    One run named ``r``, which is killed and resumed by successive processes.

    Parameters
    ----------
    folder
        Folder that holds ``c.toml`` and ``s.toml``; made if it is not there.
    budget
        Currency units; None for a run without a budget.
    environment
        Variables added to the run's environment.
    start
        How the command is started.

    Attributes
    ----------
    said
        What all processes of the run have printed so far.
    statuses
        Exit status of each process that came to an end by itself.
    """

    def __init__(
        self,
        folder: Path,
        *,
        budget: float | None = None,
        environment: Mapping[str, str] | None = None,
        start: Start = start_command,
    ) -> None:
        self.folder = folder
        self.budget = budget
        self.said = ""
        self.statuses: list[int] = []
        self._environment = dict(environment or {})
        self._start = start
        self._process: Started | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def made(self) -> Path:
        """Path of the run's own folder."""
        return self.folder / "runs" / "r"

    @property
    def is_alive(self) -> bool:
        """Whether a process of the run is there."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the run, or resume it if there is one."""
        resumed = (self.made / "run.json").exists()
        if not resumed:  # killed while its folder was made: there is no run yet
            shutil.rmtree(self.made, ignore_errors=True)
        words = ["--resume", "r"] if resumed else ["c.toml", "--sites", "s.toml", "--name", "r"]
        if self.budget is not None and not resumed:
            words += ["--budget", f"{self.budget} SU", "--anyway"]
        self._process = self._start(
            ["run", *words], self.folder, self._environment, self.folder / "said"
        )

    def finish(self, patience: float = 300.0) -> int:
        """
        Wait for the end of the run.

        Returns
        -------
        int
            Its exit status.

        Raises
        ------
        AssertionError
            When the run printed a traceback.
        """
        assert self._process is not None
        status = self._process.wait(patience)
        self.statuses.append(status)
        self._listen()
        if "Traceback" in self.said:
            raise AssertionError(self.said)
        return status

    def kill(self) -> bool:
        """Kill the run, whatever it is doing; return False when it had ended before."""
        assert self._process is not None
        was_there = self._process.poll() is None
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        status = self._process.wait()
        self._listen()
        if not was_there:
            self.statuses.append(status)
        return was_there

    def close(self) -> None:
        """End what still runs."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def bill(self) -> dict[str, Any]:
        """Return what ``bursar bill --json`` prints."""
        done = subprocess.run(
            [sys.executable, "-m", "bursar", "bill", "r", "--json"],
            cwd=self.folder,
            env={**os.environ, **self._environment},
            capture_output=True,
            text=True,
            check=True,
        )
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def _listen(self) -> None:
        self.said = (self.folder / "said").read_text(errors="replace")
