"""Files sent and fetched, and results and changes followed, over connections that may break."""

import asyncio
import hashlib
import io
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO, Literal

from bursar.model.errors import InputError, SiteError
from bursar.model.task import File
from bursar.remote import calls
from bursar.remote.calls import ApiCall
from bursar.remote.connection import ServiceConnection
from bursar.remote.http_transport import ClientResponse, ServiceUnreachable
from bursar.remote.messages import FileInfo, Result
from bursar.remote.routes import GZIP, TAR, ZIP

# Sends and fetches files of an instance; broken downloads are continued.

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


# Decoders of line streams: results as NDJSON, changes as server-sent events.

LONGEST = 64 << 20
"""Bytes of a line or an event, at most."""


class LineDecoder:
    """Splits a stream of bytes into whole lines."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> bytes:
        """
        Add bytes; return the lines that are now complete, with their ends; empty: none.

        Raises
        ------
        ValueError
            When a line is longer than :data:`LONGEST`.
        """
        end = piece.rfind(b"\n") + 1
        if not end:
            # Kept apart and joined once: adding each piece to a string of bytes copies it every
            # time.
            self._rest.append(piece)
            self._size += len(piece)
            if self._size > LONGEST:
                raise ValueError(f"a line is longer than {LONGEST >> 20} MiB")
            return b""
        block = b"".join((*self._rest, piece[:end]))
        self._rest = [piece[end:]]
        self._size = len(self._rest[0])
        return block


class EventStreamDecoder:
    """
    Extracts the data of server-sent events [1]_ from a stream of bytes.

    References
    ----------
    .. [1] WHATWG HTML standard, section 9.2.6 (interpreting an event stream).
    """

    def __init__(self) -> None:
        self._lines = LineDecoder()
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """
        Add bytes; return the data of each event that is now complete.

        Raises
        ------
        ValueError
            When one is longer than :data:`LONGEST`, or has a line that is.
        """
        whole = []
        for line in self._lines.feed(piece).splitlines():
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
                self._size += len(line)
                if self._size > LONGEST:
                    raise ValueError(f"an event is longer than {LONGEST >> 20} MiB")
            elif not line and self._data:
                whole.append(b"\n".join(self._data))
                self._data.clear()
                self._size = 0
        return whole


# Follows an instance's results, each once, over broken connections.

WAIT = 20.0
"""Seconds for which the service is asked to wait for the next result."""

Until = Literal["now", "done", "closed"]
"""
When results end: with those that are there, when every task has one, or when the generator is
closed, as more may be submitted.
"""

AGAIN = 0.5
"""Seconds before the next request when the service did not wait."""


async def follow_results(
    connection: ServiceConnection, handle: str, after: int, *, until: Until, stream: bool
) -> AsyncGenerator[list[Result], None]:
    """
    Yield results after a cursor in batches, in the order of their cursors.

    Parameters
    ----------
    stream
        Whether they come as one long answer where there are many; otherwise page by page.
    """
    cursor = after
    clock = asyncio.get_running_loop().time
    wait = 0.0 if until == "now" else WAIT
    while True:
        asked = clock()
        page = await connection.call(calls.results(handle, cursor, wait=wait))
        fresh = _later(page.results, cursor)
        if fresh:
            cursor = fresh[-1].cursor
            yield fresh
        if page.done and until != "closed":
            return
        if until == "now":
            if not page.results:
                return
            continue
        # A service need not hold the request for as long as it was asked to: without a pause, an
        # idle instance would be asked as fast as the network allows.
        if not fresh and clock() - asked < AGAIN:
            await asyncio.sleep(AGAIN)
        if page.done or not stream:
            continue
        try:
            async with aclosing(_stream(connection, handle, cursor)) as batches:
                async for batch in batches:
                    cursor = batch[-1].cursor
                    yield batch
        except ServiceUnreachable:
            # Asking for the next page tells whether it is there again, and tries until it is.
            continue


async def _stream(
    connection: ServiceConnection, handle: str, after: int
) -> AsyncGenerator[list[Result], None]:
    """Yield the results of one stream until the stream ends or breaks off."""
    cursor = after
    lines = LineDecoder()
    async with aclosing(connection.stream(calls.result_stream(handle, after))) as pieces:
        async for piece in pieces:
            whole = connection.understand(lines.feed, piece)
            found = connection.understand(calls.decode_results, whole)
            fresh = _later(found, cursor)
            if fresh:
                cursor = fresh[-1].cursor
                yield fresh


def _later(results: list[Result], cursor: int) -> list[Result]:
    """Return the results after a cursor, so that repeated ones count once."""
    if not results or results[0].cursor > cursor:
        return results
    return [result for result in results if result.cursor > cursor]
