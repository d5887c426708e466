"""Sends and fetches files of an instance; broken downloads are continued."""

import asyncio
import hashlib
import io
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO

from bursar.model.errors import InputError, SiteError
from bursar.model.task import File
from bursar.remote import calls
from bursar.remote.calls import ApiCall
from bursar.remote.connection import ServiceConnection
from bursar.remote.http_transport import ClientResponse
from bursar.remote.messages import FileInfo
from bursar.remote.problems import ServiceUnreachable
from bursar.remote.routes import GZIP, TAR, ZIP

PIECE = 256 * 1024
"""Bytes of a file in memory at a time."""

_ARCHIVES = {
    ".zip": ZIP,
    ".tar": TAR,
    ".tgz": GZIP,
    ".gz": GZIP,
}


async def upload(
    connection: ServiceConnection, handle: str, name: str, source: Path | bytes, *, executable: bool
) -> FileInfo:
    """
    Write a file of an instance.

    Raises
    ------
    InputError
        When it cannot be read.
    SiteError
        When something else arrived.
    """
    body = _UploadSource(source)
    info = await connection.call(
        calls.put_file(handle, name, body.pieces, body.size, executable=executable)
    )
    # Of the last try only: a body that was cut short is sent again from its beginning.
    if info.sha256 and info.sha256 != body.digest.hexdigest():
        raise SiteError(f"{connection.name}: {name}: what arrived is not what was sent")
    return info


async def upload_archive(
    connection: ServiceConnection, handle: str, source: Path
) -> list[FileInfo]:
    """
    Unpack an archive in an instance.

    Raises
    ------
    InputError
        When it cannot be read, or its name is not that of an archive.
    """
    kind = _ARCHIVES.get(source.suffix.lower())
    if kind is None:
        raise InputError("expected .tar, .tar.gz, .tgz or .zip", where=str(source))
    body = _UploadSource(source)
    return (await connection.call(calls.put_archive(handle, body.pieces, body.size, kind))).files


async def read(connection: ServiceConnection, call: ApiCall[None]) -> bytes:
    """Return the whole answer to a call."""
    target = io.BytesIO()
    await _DownloadTarget(target).take(connection, call)
    return target.getvalue()


async def save(connection: ServiceConnection, call: ApiCall[None], target: Path) -> int:
    """
    Write the answer to a call to a file, whole or not at all; return the number of bytes.

    Raises
    ------
    InputError
        When it cannot be written.
    """
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        file = part.open("wb")
    except OSError as error:
        raise InputError(f"cannot write it: {error.strerror}", where=str(target)) from None
    try:
        with file:
            incoming = _DownloadTarget(file)
            size = await incoming.take(connection, call)
            if incoming.executable:  # for all who may read the file
                mode = os.fstat(file.fileno()).st_mode
                os.fchmod(file.fileno(), mode | (mode & 0o444) >> 2)
        # One step: whoever reads the target finds the old file or the new one, never a half.
        part.replace(target)
    except BaseException:
        part.unlink()
        raise
    return size


def local_path(folder: Path, name: str) -> Path:
    """
    Return the path below a folder for a file of an instance.

    Raises
    ------
    InputError
        When its name leads out of it.
    """
    try:
        return folder / File(name).name
    except ValueError as error:
        raise InputError(str(error)) from None


class _UploadSource:
    """
    A file or bytes to be sent.

    Attributes
    ----------
    size
        Bytes.
    digest
        SHA-256 of what was sent at the last try.
    """

    def __init__(self, source: Path | bytes) -> None:
        self._source = source
        self.size = len(source) if isinstance(source, bytes) else _size_of(source)
        self.digest = hashlib.sha256()

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the content from the beginning."""
        self.digest = hashlib.sha256()
        source = self._source
        loop = asyncio.get_running_loop()
        with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
            while piece := await loop.run_in_executor(None, file.read, PIECE):
                self.digest.update(piece)
                yield piece


class _DownloadTarget:
    """
    A file into which a streamed answer is written.

    Parameters
    ----------
    target
        Empty file, open for writing.

    Attributes
    ----------
    executable
        Whether the service says that the file is executable.
    """

    def __init__(self, target: BinaryIO) -> None:
        self._target = target
        self.executable = False
        self._received = 0
        self._tag = ""

    async def take(self, connection: ServiceConnection, call: ApiCall[None]) -> int:
        """
        Write the answer, over several connections if needed; return the number of bytes.

        After a break, reading goes on where it ended if the service names the version by a tag,
        and otherwise begins anew.
        """
        tries = connection.tries()
        while True:
            try:
                stream = connection.stream(self._rest_of(call), self._on_head)
                async with aclosing(stream) as pieces:
                    async for piece in pieces:
                        self._target.write(piece)
                        self._received += len(piece)
                        # Progress earns new patience only where it lasts: without a tag the next
                        # try begins at zero.
                        if self._tag:
                            tries = connection.tries()
                return self._received
            except ServiceUnreachable as failure:
                await connection.pause(tries, failure)

    def _rest_of(self, call: ApiCall[None]) -> ApiCall[None]:
        # Without a tag the rest might be that of another version.
        if not self._received or not self._tag:
            return call
        part = {"Range": f"bytes={self._received}-", "If-Range": self._tag}
        return replace(call, headers={**call.headers, **part})

    def _on_head(self, answer: ClientResponse) -> None:
        self._tag = answer.header("ETag")
        self.executable = answer.header("Bursar-Executable").lower() == "true"
        # All of the file comes: at the first try, or because it has changed since (If-Range).
        if answer.status != HTTPStatus.PARTIAL_CONTENT:
            self._target.seek(0)
            self._target.truncate()
            self._received = 0


def _size_of(path: Path) -> int:
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_size
    except OSError as error:
        raise InputError(f"cannot read it: {error.strerror}", where=str(path)) from None
