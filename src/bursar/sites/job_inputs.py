"""Jobs that run without access to the run's files: their inputs, and ends without a result."""

import os
import stat
import time
from collections.abc import Iterator, Mapping

from bursar.dispatch.wire import WireJob
from bursar.model.task import Copy, Outcome, Status
from bursar.worker.confined_files import parts_of
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


def travelling_files(root: RootNamespace, job: WireJob) -> list[tuple[str, str]]:
    """
    Return name and path of each plain file that a job reads.

    A file that a step copies may be missing, which is for the step to judge.

    Raises
    ------
    StagingError
        When an input is missing or lies outside, or is no plain file, or lies in a site's storage.
    """
    if job.data:
        raise StagingError("files of a site's storage cannot travel with a job")
    found: list[tuple[str, str]] = []
    for wanted in files_read(job):
        name = "/".join(parts_of(wanted))
        try:
            files = list(plain_files(root, name))
        except StagingError:
            if wanted in job.inputs:
                raise
            continue
        for inner, path in files:
            if not os.path.isfile(path):
                raise StagingError(f'"{inner}" is not a plain file')
        found += files
    return found


def files_below(folder: str) -> list[tuple[str, str]]:
    """Return name and path of every plain file below a folder, in order; links are left out."""
    found = []
    for parent, folders, files in os.walk(folder):
        folders.sort()
        for file in sorted(files):
            path = os.path.join(parent, file)
            # lstat: a link could lead to any file that this user may read.
            if stat.S_ISREG(os.lstat(path).st_mode):
                found.append((os.path.relpath(path, folder), path))
    return found


FileIdentities = Mapping[str, tuple[int, int, int]]
"""Inode, size and modification time of files that were there before, by name."""


def identities_below(folder: str) -> FileIdentities:
    """Return the identity of every plain file below a folder."""
    return {name: file_identity(path) for name, path in files_below(folder)}


def file_identity(path: str) -> tuple[int, int, int]:
    """Return inode, size in bytes, and modification time in nanoseconds."""
    info = os.stat(path)
    return info.st_ino, info.st_size, info.st_mtime_ns


def unstarted_outcome(job: WireJob, status: Status, reason: str) -> Outcome:
    """Return the outcome of a job that has not begun, or of which nothing is known."""
    now = time.time()
    return Outcome(
        task=job.task, attempt=job.attempt, status=status, start=now, end=now, reason=reason
    )
