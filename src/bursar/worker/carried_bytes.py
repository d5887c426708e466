"""Counts the bytes that attempts bring to a machine and send back, where these have a price."""

import os

import msgspec
from msgspec.structs import replace

from bursar.dispatch.wire import WireJob
from bursar.model.task import Copy, Outcome, Status
from bursar.worker.staging import FileNamespace, StagingError
from bursar.worker.workspace import Workspace


class CarriedBytes:
    """
    Counts what the attempts on one worker bring and send back.

    An attempt brings its steps and its input files, and sends back its streams, its value and its
    output files. An input that several attempts on the worker read is counted once, as long as the
    file stays the same: the machine keeps what it has read.
    """

    def __init__(self) -> None:
        self._read: set[tuple[int, int, int, int]] = set()

    def counted(self, job: WireJob, home: Workspace, outcome: Outcome) -> Outcome:
        """Return an outcome of a job with the numbers of bytes."""
        copies = [step for step in job.steps if isinstance(step, Copy)]
        brought = [*job.inputs, *(step.source for step in copies if step.source_at_root)]
        sent = [*job.outputs, *(step.target for step in copies if step.target_at_root)]
        # An attempt that failed has published nothing: what lies there is of another one.
        if outcome.status is not Status.SUCCEEDED:
            sent = []
        streams = outcome.stdout_size + outcome.stderr_size
        returned = streams + len(outcome.value) + len(outcome.sealed)
        return replace(
            outcome,
            bytes_in=len(msgspec.msgpack.encode(job)) + self._size(home.files, brought, once=True),
            bytes_out=returned + self._size(home.files, sent, once=False),
        )

    def _size(self, files: FileNamespace, names: list[str], *, once: bool) -> int:
        """Return the bytes of files and folders; missing ones, and those counted before, have 0."""
        total = 0
        for name in names:
            try:
                path = files.find(name)
            except (StagingError, OSError, ValueError):
                continue
            inner = (os.path.join(at, one) for at, _, found in os.walk(path) for one in found)
            for each in inner if os.path.isdir(path) else (path,):
                try:
                    found = os.stat(each)
                except OSError:
                    continue
                key = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
                if not once or key not in self._read:
                    total += found.st_size
                if once:
                    self._read.add(key)
        return total
