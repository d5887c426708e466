"""
Starts ``bursar`` as forks of a process that has imported it already.

Importing takes nine tenths of the processor time of a short run. Without that a round takes
seconds even on a busy machine. Each command is a real process of its own all the same, in a
session of its own.
"""

import contextlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from benchmarks.run_lives import Start, Started

PRELOADED = (
    "bursar.cli.main",
    "bursar.api.running",
    "bursar.report.html",
    "bursar.runs.serving",
    "bursar.service.house",
    "bursar.service.premises",
    "bursar.runs.writing",
    "bursar.sites.batch",
    "bursar.sites.local",
)
"""Modules that the parent of the forks imports."""


class Forked:
    """A command that was forked; it has the part of ``subprocess.Popen`` that rounds need."""

    def __init__(self, process: BaseProcess) -> None:
        self._process = process
        assert process.pid is not None
        self.pid: int = process.pid

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit status; raise ``subprocess.TimeoutExpired`` when there is none."""
        self._process.join(timeout)
        status = self._process.exitcode
        if status is None:
            raise subprocess.TimeoutExpired("bursar", timeout or 0.0)
        return status

    def send_signal(self, signal: int) -> None:
        """Send a signal."""
        os.kill(self.pid, signal)


def forked_commands() -> Start:
    """Return what starts ``bursar`` by forking."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))

    def start(
        words: Sequence[str], folder: Path, environment: Mapping[str, str], output: Path
    ) -> Started:
        process = context.Process(
            target=_carry_out, args=(list(words), str(folder), dict(environment), str(output))
        )
        process.start()
        return Forked(process)

    return start


def _carry_out(words: list[str], folder: str, environment: dict[str, str], output: str) -> None:
    from bursar.cli.main import main

    os.setsid()
    os.chdir(folder)
    os.environ.update(environment)
    said = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    null = os.open(os.devnull, os.O_RDONLY)
    for number, target in ((null, 0), (said, 1), (said, 2)):
        os.dup2(number, target)
    for number in (said, null):
        with contextlib.suppress(OSError):
            os.close(number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    sys.argv = ["bursar", *words]
    main()
