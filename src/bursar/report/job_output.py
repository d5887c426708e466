"""Output of jobs as they end, or in their order, and the job log beside it."""

import contextlib
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TextIO

from bursar.formats.command_lists.job_log import LoggedJob

_PIECE = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedJob:
    """
    A job that has ended, with what it printed.

    Parameters
    ----------
    logged
        Its line in the job log.
    stdout, stderr
        What it printed, or files that hold it.
    tag
        Begin of each line that it printed; empty: none.
    note
        Line for people on how it ended, where that is not its own doing; empty: none.
    """

    logged: LoggedJob
    stdout: bytes | Path
    stderr: bytes | Path
    tag: str = ""
    note: str = ""


class JobPrinter:
    """
    Prints jobs' output one job after the other, in a thread, so that no reader holds a run up.

    Parameters
    ----------
    out, err
        Where standard output and standard error of jobs go.
    log
        Where lines of the job log go; None: nowhere.
    order
        Numbers of all jobs, in whose order the output comes; None: as the jobs end.
    """

    def __init__(
        self, out: BinaryIO, err: BinaryIO, log: TextIO | None, order: Sequence[int] | None
    ) -> None:
        self._out, self._err, self._log = out, err, log
        self._order = None if order is None else list(reversed(order))
        self._kept: dict[int, PrintedJob] = {}
        self._ended: queue.SimpleQueue[PrintedJob | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="bursar-jobs", daemon=True)
        self.error: OSError | None = None
        """Why nothing more can be printed, as when the reader is gone; None while it can."""
        self._thread.start()

    def take_in(self, job: PrintedJob) -> None:
        """Print a job's output, and log the job."""
        self._ended.put(job)

    def close(self) -> None:
        """Print the rest, and return when all is out."""
        self._ended.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while (job := self._ended.get()) is not None:
            self._do(job)
        # What waits for jobs that never ran.
        for job in sorted(self._kept.values(), key=lambda one: one.logged.number):
            self._print(job)

    def _do(self, job: PrintedJob) -> None:
        if self._log is not None:
            # First, and at once: whoever resumes by the log must not run the job again.
            try:
                self._log.write(job.logged.line())
                self._log.flush()
            except OSError as error:
                self.error = self.error or error
        if self._order is None:
            self._print(job)
            return
        self._kept[job.logged.number] = job
        while self._order and self._order[-1] in self._kept:
            self._print(self._kept.pop(self._order.pop()))

    def _print(self, job: PrintedJob) -> None:
        if self.error is not None:
            return
        try:
            for source, target in ((job.stdout, self._out), (job.stderr, self._err)):
                _copy(source, target, job.tag.encode())
            if job.note:
                self._err.write(f"{job.note}\n".encode())
            # Together, so that a reader sees whole jobs.
            self._out.flush()
            self._err.flush()
        except OSError as error:
            self.error = error


def _copy(source: bytes | Path, target: BinaryIO, tag: bytes) -> None:
    if isinstance(source, bytes):
        if source:
            target.write(_tagged(source, tag) if tag else source)
        return
    with contextlib.suppress(FileNotFoundError), source.open("rb") as file:
        if tag:
            for line in file:
                target.write(tag + b"\t" + line)
            return
        while piece := file.read(_PIECE):
            target.write(piece)


def _tagged(text: bytes, tag: bytes) -> bytes:
    return b"".join(tag + b"\t" + line for line in text.splitlines(keepends=True))
