"""The file store: files of instances within quotas, in a bounded pool of threads."""

import asyncio
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from bursar.remote.messages import FileInfo
from bursar.service.config import HttpLimits
from bursar.service.files import archives, instance_files
from bursar.service.files.instance_files import translated_file_errors
from bursar.service.interfaces import ServiceError
from bursar.worker.workspace import FILES, LOGS, WORK

# Quotas: the bytes on disk of instances and users, counted and limited.

_MOST_USAGES = 10_000
"""Greatest number of instances and users whose usage is kept in memory."""


@dataclass(frozen=True, slots=True)
class ByteQuota:
    """
    A limit of the bytes that an instance or a user may hold.

    Parameters
    ----------
    who
        Key of the instance or user.
    most
        Greatest number of bytes.
    what
        Subject of the error message, such as "an instance's files".
    """

    who: str
    most: int
    what: str

    def exceeded(self, retry_after: float | None = None) -> ServiceError:
        """
        Return the error: 413, or 429 when a recount after ``retry_after`` seconds may allow it.
        """
        detail = f"{self.what} may have {self.most:,} bytes"
        status = 413 if retry_after is None else 429
        return ServiceError("over-quota", status, detail, retry_after=retry_after)


@dataclass(slots=True)
class _ByteUsage:
    found: int | None = None  # bytes of the last count, and taken since; None: to be counted
    taken: int = 0  # bytes ever taken; shows what was written during a count
    aside: int = 0  # bytes outside of the counted folders


class DiskQuotas:
    """
    Usage of the disk by instances and users, compared with quotas.

    Between two counts the numbers only grow: deleted or broken-off files are not subtracted, as a
    task may remove files and put others in their place. Callers that find too little room count
    first. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._usages: OrderedDict[str, _ByteUsage] = OrderedDict()  # the longest unused one first

    def lacking(self, quotas: Sequence[ByteQuota], size: int) -> ByteQuota | None:
        """Return the first quota that must be counted or has no room for ``size`` bytes more."""
        with self._lock:
            return next((quota for quota in quotas if not self._has_room(quota, size)), None)

    def begin_count(self, who: str) -> int:
        """Return a mark for :meth:`counted`."""
        with self._lock:
            return self._of(who).taken

    def counted(self, who: str, size: int, mark: int) -> None:
        """Record a count of ``size`` bytes; bytes taken since the mark are added."""
        with self._lock:
            usage = self._of(who)
            # Less than the mark: the usage was dropped meanwhile, and nothing was taken since.
            usage.found = size + max(0, usage.taken - mark)

    def take(self, quotas: Sequence[ByteQuota], size: int) -> None:
        """
        Add ``size`` bytes to all quotas, or to none.

        Raises
        ------
        ServiceError
            413, when one of them has no room.
        """
        with self._lock:
            # Check and addition under one lock: two threads that each find room for the last bytes
            # must not both take them.
            self._check(quotas, size)
            for quota in quotas:
                usage = self._of(quota.who)
                usage.taken += size
                usage.found = (usage.found or 0) + size

    def take_aside(self, quota: ByteQuota, size: int) -> None:
        """
        Add ``size`` bytes that lie outside of counted folders, until :meth:`give_back`.

        Raises
        ------
        ServiceError
            413, when there is no room.
        """
        with self._lock:
            self._check((quota,), size)
            self._of(quota.who).aside += size

    def give_back(self, quota: ByteQuota, size: int) -> None:
        """Subtract bytes that :meth:`take_aside` has added."""
        with self._lock:
            self._of(quota.who).aside -= size

    def room(self, quotas: Sequence[ByteQuota]) -> int:
        """Return the bytes for which all quotas have room."""
        with self._lock:
            return max(0, min(quota.most - self._held(quota) for quota in quotas))

    def _check(self, quotas: Sequence[ByteQuota], size: int) -> None:
        for quota in quotas:
            if not self._has_room(quota, size):
                raise quota.exceeded()

    def _has_room(self, quota: ByteQuota, size: int) -> bool:
        found = self._of(quota.who).found
        # Nothing was counted yet, after a start for one: then nobody knows, and a count is due.
        return found is not None and self._held(quota) + size <= quota.most

    def _held(self, quota: ByteQuota) -> int:
        usage = self._of(quota.who)
        return (usage.found or 0) + usage.aside

    def _of(self, who: str) -> _ByteUsage:
        usage = self._usages.get(who)
        if usage is None:
            if len(self._usages) >= _MOST_USAGES:
                # Not one with bytes aside, which no count would find again.
                old = next((key for key, held in self._usages.items() if not held.aside), None)
                if old is not None:
                    del self._usages[old]
            usage = self._usages[who] = _ByteUsage()
        # The longest unused is dropped first; it is counted again when it is needed.
        self._usages.move_to_end(who)
        return usage


# The file store: reads and writes files of instances in a bounded pool of threads.

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = 4
"""Threads of a separate pool, so that no archive keeps the journal waiting for a thread."""

_PIECE = 1 << 18  # bytes read at a time

_LONG_COUNT = 0.5
"""Seconds; a user or instance whose count takes longer is counted less often."""

_PAUSE = 10.0
"""Durations of a long count after which the count may be repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOwner:
    """
    The user who owns files, with the user's limits and folders.

    Parameters
    ----------
    homes
        Returns the folders of all the user's instances at the time of the call.
    """

    user: str
    limits: HttpLimits
    homes: Callable[[], Sequence[Path]]

    def quota(self) -> ByteQuota:
        """Return the quota of all the user's files."""
        return ByteQuota(f"user {self.user}", self.limits.user_bytes, "all files of a user")

    def quotas(self, folder: str) -> tuple[ByteQuota, ByteQuota]:
        """Return the quotas of an instance's files, by their folder, and of all files."""
        instance = ByteQuota(folder, self.limits.instance_bytes, "an instance's files")
        return instance, self.quota()


class FileStore:
    """Reads, writes and counts files of instances for the handlers."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="bursar-files")
        # Fewer than there are threads: long jobs must leave some for small requests.
        self._unpacking = asyncio.Semaphore(_THREADS // 2)
        self._counting_users = asyncio.Semaphore(1)
        self._counting: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._pauses: dict[str, float] = {}  # end of the pause before the next count, loop time
        self._disk_quotas = DiskQuotas()

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """
        Run a function that may wait for a disk in a thread, and return the result.

        The function has ended on return, also when the caller is cancelled, so that its files may
        be closed.
        """
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._threads, lambda: work(*args, **kwargs))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            # The thread cannot be interrupted and still uses descriptors that the caller closes;
            # another file could get their numbers. Repeated, as the wait may be cancelled, too.
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
        owner: FileOwner,
    ) -> FileInfo:
        """
        Write a file durably, in place of one of that name.

        Raises
        ------
        ServiceError
            409, when a folder has the name; 413 or 429, when a quota is exceeded; 507, when the
            disk is full.
        """
        folder = str(root)
        quotas = owner.quotas(folder)
        with ExitStack() as stack:
            opening = instance_files.create_upload(
                folder, parts, executable=executable, spare=owner.limits.spare_bytes
            )
            file = await self.run(stack.enter_context, opening)
            async for piece in pieces:
                await self._make_room(owner, quotas, len(piece))
                # Taken before written, and not given back when the upload breaks off: the next
                # count sees what is really there.
                self._disk_quotas.take(quotas, len(piece))
                await self.run(file.write, piece)
            info = await self.run(file.finish)
        return FileInfo(name="/".join(parts), size=info.size, sha256=info.sha256)

    async def unpack(
        self, root: Path, pieces: AsyncIterator[bytes], kind: str, owner: FileOwner
    ) -> list[FileInfo]:
        """
        Unpack an archive durably, or leave no file when anything is wrong with the archive.

        Raises
        ------
        ServiceError
            413, when a limit or quota is exceeded; 422, when the archive is invalid; 507, when the
            disk is full.
        """
        folder, limits, all_files = str(root), owner.limits, owner.quota()
        size = 0
        # Beside the instances, not in one: a task may have put a link there.
        with translated_file_errors(), TemporaryFile(dir=root.parent.parent) as archive:
            try:
                async for piece in pieces:
                    await self._make_room(owner, (all_files,), len(piece))
                    self._disk_quotas.take_aside(all_files, len(piece))
                    size += len(piece)
                    # The packed archive is on the same disk as the files, and may fill it as well.
                    place = archive.fileno()
                    await self.run(
                        instance_files.check_free_space, place, limits.spare_bytes, len(piece)
                    )
                    await self.run(archive.write, piece)
                await self.run(archive.seek, 0)
                async with self._unpacking:  # may take minutes, and others need threads
                    return await self._unpack(archive, size, kind, folder, owner)
            finally:
                self._disk_quotas.give_back(all_files, size)

    async def _unpack(
        self, archive: IO[bytes], size: int, kind: str, folder: str, owner: FileOwner
    ) -> list[FileInfo]:
        limits, quotas = owner.limits, owner.quotas(folder)
        largest = min(limits.unpacked_bytes, archives.largest(size, limits.ratio))
        with suppress(ServiceError):  # the unpacked files may be smaller than that
            await self._make_room(owner, quotas, largest)
        most = min(limits.unpacked_bytes, self._disk_quotas.room(quotas))
        # Bytes are taken as they are unpacked: two archives that each fit alone may together
        # exceed the quota.
        take = partial(self._disk_quotas.take, quotas)
        return await self.run(archives.unpack, archive, size, kind, folder, limits, most, take)

    async def open(self, root: Path, parts: tuple[str, ...]) -> "OpenFile":
        """
        Open a file for reading, to be closed by the caller.

        Raises
        ------
        ServiceError
            404, when there is none.
        """
        file, found = await self.run(instance_files.open_file, str(root), parts)
        return OpenFile(self, file, found)

    async def delete(self, root: Path, parts: tuple[str, ...]) -> None:
        """
        Delete a file or an empty folder.

        Raises
        ------
        ServiceError
            404, when there is none; 409, when it is a folder that is not empty.
        """
        await self.run(instance_files.delete_file, str(root), parts)

    async def files(self, root: Path, after: str, limit: int) -> list[FileInfo]:
        """List at most ``limit`` files, by name, after a name."""
        return await self.run(instance_files.list_files, str(root), after, limit)

    def close(self) -> None:
        """Accept no more work."""
        self._threads.shutdown(wait=False)

    async def _make_room(self, owner: FileOwner, quotas: Sequence[ByteQuota], size: int) -> None:
        """
        Count the files of every quota that seems to lack room for ``size`` bytes more.

        Raises
        ------
        ServiceError
            413, when there is no room; 429, when that cannot be said yet.
        """
        counted: set[str] = set()
        while (quota := self._disk_quotas.lacking(quotas, size)) is not None:
            # Counted just now and still no room: that is the answer.
            if quota.who in counted:
                raise quota.exceeded()
            # One count at a time for each instance or user: a hundred uploads that lack room at
            # once share it.
            counting = self._counting.setdefault(quota.who, asyncio.Lock())
            async with counting:  # the count that was waited for may have found room
                if self._disk_quotas.lacking((quota,), size) is not None:
                    await self._count(owner, quota)
            counted.add(quota.who)

    async def _count(self, owner: FileOwner, quota: ByteQuota) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        # Counting a million files takes long, and a client at its limit asks again and again: each
        # count is followed by a pause of ten times its length.
        rest = self._pauses.pop(quota.who, begun) - begun
        if rest > 0:
            self._pauses[quota.who] = begun + rest
            raise quota.exceeded(retry_after=rest)
        # What is written while the count runs may be seen by it or not: it is added in any case,
        # so that the sum errs on the safe side.
        mark = self._disk_quotas.begin_count(quota.who)
        if quota == owner.quota():
            # At most one of the threads is busy with counting all files of a user.
            async with self._counting_users:
                found = await self.run(_bytes_of_all, [str(home) for home in owner.homes()])
        else:
            found = await self.run(instance_files.total_size, quota.who)
        self._disk_quotas.counted(quota.who, found, mark)
        now = loop.time()
        if now - begun > _LONG_COUNT:
            self._pauses = {who: until for who, until in self._pauses.items() if until > now}
            self._pauses[quota.who] = now + _PAUSE * (now - begun)


def _bytes_of_all(homes: Sequence[str]) -> int:
    """
    Return the bytes in all of a user's instances, with working directories and output of tasks.

    Parameters
    ----------
    homes
        Paths of the instances' folders.
    """
    return sum(
        instance_files.total_size(f"{home}/{name}")
        for home in homes
        for name in (FILES, WORK, LOGS)
    )


class OpenFile:
    """
    A stream of the bytes of a file that is open for reading.

    Attributes
    ----------
    size
        Bytes when the file was opened.
    tag
        Entity tag, which differs once the file has changed (RFC 9110, section 8.8.3).
    executable
        Whether the file's owner may execute it.
    """

    def __init__(self, file_store: FileStore, file: int, found: os.stat_result) -> None:
        self._file_store = file_store
        self._file = file
        self._at = 0
        self._left = self.size = found.st_size
        self.executable = bool(found.st_mode & stat.S_IXUSR)
        self.tag = f'"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"'

    def part(self, start: int, size: int) -> None:
        """Restrict the stream to ``size`` bytes from ``start`` on."""
        self._at, self._left = start, size

    def __aiter__(self) -> "OpenFile":
        return self

    async def __anext__(self) -> bytes:
        if not self._left:
            raise StopAsyncIteration
        piece = await self._file_store.run(os.pread, self._file, min(_PIECE, self._left), self._at)
        if not piece:  # a task has truncated the file
            raise StopAsyncIteration
        self._at += len(piece)
        self._left -= len(piece)
        return piece

    async def aclose(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
