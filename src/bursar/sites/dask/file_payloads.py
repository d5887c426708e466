"""File contents that travel between the run and a Dask worker without a shared file system."""

import os
import stat
import threading
from collections.abc import Iterable
from pathlib import Path

import msgspec

from bursar.dispatch.wire import WireJob
from bursar.sites.job_inputs import (
    FileIdentities,
    file_identity,
    files_below,
    identities_below,
    travelling_files,
)
from bursar.worker.staging import RootNamespace, StagingError

MOST = 64 * 1024 * 1024
"""Bytes of files that may travel with one job, each way."""


class FilePayload(msgspec.Struct, frozen=True, array_like=True):
    """
    A file that travels with a job or a result.

    Parameters
    ----------
    name
        Path relative to the run's files.
    mode
        Permission bits, as of ``chmod``.
    """

    name: str
    mode: int
    content: bytes


def pack(root: RootNamespace, job: WireJob) -> list[FilePayload]:
    """
    Pack the files that a job reads.

    Raises
    ------
    StagingError
        When an input is missing or lies outside, or the files are too large.
    OSError
        When one cannot be read.
    """
    payloads: list[FilePayload] = []
    size = 0
    for name, path in travelling_files(root, job):
        size += os.path.getsize(path)
        if size > MOST:
            raise StagingError(
                f"the files that it reads take more than the {MOST} bytes that can travel; "
                "use a file system that the Dask workers see"
            )
        mode = stat.S_IMODE(os.stat(path).st_mode)
        payloads.append(FilePayload(name, mode, Path(path).read_bytes()))
    return payloads


def unpack(payloads: Iterable[FilePayload], folder: str) -> FileIdentities:
    """
    Write files into a folder; return the files' identities.

    Raises
    ------
    StagingError
        When one would lie elsewhere.
    OSError
        When one cannot be written.
    """
    deliver(payloads, folder)
    return identities_below(folder)


def gather(folder: str, seen: FileIdentities) -> list[FilePayload]:
    """
    Pack the new and changed files of a folder; links do not travel.

    Raises
    ------
    StagingError
        When the files are too large.
    OSError
        When one cannot be read.
    """
    payloads: list[FilePayload] = []
    size = 0
    for name, path in files_below(folder):
        if seen.get(name) == file_identity(path):
            continue
        info = os.stat(path)
        size += info.st_size
        if size > MOST:
            raise StagingError(f"what it made takes more than the {MOST} bytes that can travel")
        payloads.append(FilePayload(name, stat.S_IMODE(info.st_mode), Path(path).read_bytes()))
    return payloads


def deliver(payloads: Iterable[FilePayload], folder: str) -> None:
    """
    Write files below a folder, each whole or not at all.

    Raises
    ------
    StagingError
        When one would lie elsewhere.
    OSError
        When one cannot be written.
    """
    root = RootNamespace(folder, folder)
    for payload in payloads:
        path = root.target(payload.name)
        fresh = f"{path}.part-{os.getpid()}-{threading.get_ident()}"
        with open(fresh, "wb") as file:
            file.write(payload.content)
            # Without setuid and setgid bits: a worker elsewhere must not hand such programs over.
            os.fchmod(file.fileno(), payload.mode & 0o777)
        os.replace(fresh, path)
