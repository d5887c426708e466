"""Jobs that run without access to the run's files: their inputs, and ends without a result."""

import os
import time
from collections.abc import Iterator

from bursar.dispatch.wire import WireJob
from bursar.model.task import Copy, Outcome, Status
from bursar.worker.staging import RootNamespace, StagingError


def files_read(job: WireJob) -> list[str]:
    """Return the files and folders that a job reads, as names in the run's name space."""
    names = dict.fromkeys(job.inputs)
    for step in job.steps:
        if isinstance(step, Copy) and step.source_at_root:
            names[step.source] = None
    return list(names)


def plain_files(root: RootNamespace, name: str) -> Iterator[tuple[str, str]]:
    """
    Yield name and path of a file that a job reads, or of each file in a folder.

    Raises
    ------
    StagingError
        When no file has that name.
    """
    path = root.find(name)
    if not os.path.exists(path):
        raise StagingError(f'"{name}" is a link that leads nowhere')
    if not os.path.isdir(path):
        yield name, path
        return
    for folder, _, files in os.walk(path):
        for file in sorted(files):
            inner = os.path.join(folder, file)
            if os.path.isfile(inner):
                yield os.path.join(name, os.path.relpath(inner, path)), inner


def unstarted_outcome(job: WireJob, status: Status, reason: str) -> Outcome:
    """Return the outcome of a job that has not begun, or of which nothing is known."""
    now = time.time()
    return Outcome(
        task=job.task, attempt=job.attempt, status=status, start=now, end=now, reason=reason
    )
