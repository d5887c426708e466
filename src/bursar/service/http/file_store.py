"""Files of instances as handlers use them: not on the loop's thread, and not without end."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import ParamSpec, TypeVar

from bursar.remote.messages import FileInfo
from bursar.service.http import archives, instance_files
from bursar.service.http.folders import answering
from bursar.service.http.limits import HttpLimits
from bursar.service.parties import ServiceError

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = 4
"""Their own, so that nobody's archive keeps the journal waiting for one."""

_PIECE = 1 << 18  # bytes read at a time

_MOST_KNOWN = 10_000
"""Instances of which it is remembered how much they hold."""


class FileStore:
    """Where instances' files are put and fetched."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="bursar-files")
        self._unpacking = asyncio.Semaphore(_THREADS // 2)
        self._held: dict[str, int] = {}  # bytes, by folder; what tasks wrote since may be missing

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """
        What a function returns that may wait for a disk.

        It has ended on return, also when this is cancelled: what it works on may be closed.
        """
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._threads, lambda: work(*args, **kwargs))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            while not future.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait((future,))
            raise

    async def put(
        self,
        root: Path,
        parts: tuple[str, ...],
        pieces: AsyncIterator[bytes],
        *,
        executable: bool,
        most: int,
    ) -> FileInfo:
        """
        A file, in place of one of that name, durable on return.

        Parameters
        ----------
        most
            Bytes that all files of the instance may have.

        Raises
        ------
        ServiceError
            When it cannot be, or is too much.
        """
        folder = str(root)
        grown = 0
        try:
            with ExitStack() as stack:
                file = await self.run(
                    stack.enter_context, instance_files.upload(folder, parts, executable=executable)
                )
                async for piece in pieces:
                    await self._grow(folder, len(piece), most)
                    grown += len(piece)
                    await self.run(file.write, piece)
                info = await self.run(file.finish)
        except BaseException:
            self._shrink(folder, grown)
            raise
        return FileInfo(name="/".join(parts), size=info.size, sha256=info.sha256)

    async def unpack(
        self, root: Path, pieces: AsyncIterator[bytes], kind: str, limits: HttpLimits
    ) -> list[FileInfo]:
        """
        The files of an archive, durable on return; none when anything is wrong with it.

        Raises
        ------
        ServiceError
            When it cannot be, or is too much.
        """
        folder = str(root)
        # Beside the instances: what lies in one of them may be a link that a task has put there.
        with answering(), TemporaryFile(dir=root.parent.parent) as archive:
            size = 0
            async for piece in pieces:
                size += len(piece)
                await self.run(instance_files.check_room, archive.fileno())
                await self.run(archive.write, piece)
            await self.run(archive.seek, 0)
            await self._grow(folder, 0, limits.instance_bytes)
            bounds = archives.Bounds(
                total=min(limits.unpacked_bytes, limits.instance_bytes - self._held[folder]),
                members=limits.members,
                ratio=limits.ratio,
            )
            async with self._unpacking:  # which may take minutes: nobody else waits for it
                found = await self.run(archives.unpack, archive, size, kind, folder, bounds)
        self._held.pop(folder, None)  # to be counted anew
        return found

    async def open(self, root: Path, parts: tuple[str, ...]) -> "OpenFile":
        """
        A file to read; it is to be closed.

        Raises
        ------
        ServiceError
            404, when there is none.
        """
        file, found = await self.run(instance_files.open_file, str(root), parts)
        return OpenFile(self, file, found)

    async def delete(self, root: Path, parts: tuple[str, ...]) -> None:
        """
        A file or an empty folder goes.

        Raises
        ------
        ServiceError
            404, when there is none; 409, when it is a folder that is not empty.
        """
        self._shrink(str(root), await self.run(instance_files.delete_file, str(root), parts))

    async def files(self, root: Path, after: str, limit: int) -> list[FileInfo]:
        """Files by name, at most so many after one of them."""
        return await self.run(instance_files.list_files, str(root), after, limit)

    def close(self) -> None:
        """Nothing is begun any more."""
        self._threads.shutdown(wait=False)

    async def _grow(self, folder: str, size: int, most: int) -> None:
        held = self._held.get(folder)
        if held is None or held + size > most:
            held = await self.run(instance_files.bytes_of, folder)
        if held + size > most:
            raise ServiceError("over-quota", 413, f"an instance's files may have {most:,} bytes")
        self._held.pop(folder, None)
        while len(self._held) >= _MOST_KNOWN:
            del self._held[next(iter(self._held))]
        self._held[folder] = held + size

    def _shrink(self, folder: str, size: int) -> None:
        if folder in self._held:
            self._held[folder] = max(0, self._held[folder] - size)


class OpenFile:
    """
    A file that is read.

    Attributes
    ----------
    size
        Bytes it had when it was opened.
    tag
        Differs once it has changed (an entity tag, RFC 9110, section 8.8.3).
    """

    def __init__(self, file_store: FileStore, file: int, found: os.stat_result) -> None:
        self._file_store = file_store
        self._file = file
        self._at = 0
        self._left = self.size = found.st_size
        self.tag = f'"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"'

    def part(self, start: int, size: int) -> None:
        """Only so many bytes of it are wanted."""
        self._at, self._left = start, size

    def __aiter__(self) -> "OpenFile":
        return self

    async def __anext__(self) -> bytes:
        if not self._left:
            raise StopAsyncIteration
        piece = await self._file_store.run(os.pread, self._file, min(_PIECE, self._left), self._at)
        if not piece:  # a task has cut it short
            raise StopAsyncIteration
        self._at += len(piece)
        self._left -= len(piece)
        return piece

    async def aclose(self) -> None:
        """Lets go of it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
