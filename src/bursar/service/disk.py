"""The interface of the disk, implemented by the real disk and by a simulated one."""

from typing import Protocol


class DiskFull(Exception):
    """The disk is full: a write has failed, of which any part may have been written."""


class DiskBroken(Exception):
    """A write or sync has failed otherwise: the state of the disk is unknown, the service ends."""


class DiskFile(Protocol):
    """A file that is open."""

    async def append(self, data: bytes) -> None:
        """
        Write at the end; not durable before :meth:`sync`.

        Raises
        ------
        DiskFull, DiskBroken
        """

    async def sync(self) -> None:
        """
        Wait until all that was appended survives a power cut.

        Raises
        ------
        DiskFull, DiskBroken
            After which nothing is known of what was not synced before.
        """

    async def read(self, offset: int, size: int) -> bytes:
        """Return bytes from an offset; fewer at the end."""

    async def truncate(self, size: int) -> None:
        """Cut the file to a size, durably."""

    async def close(self) -> None:
        """Close the file."""

    @property
    def size(self) -> int:
        """Size of the file in bytes, unsynced ones included."""


class Disk(Protocol):
    """A folder with files, which are named without a path."""

    async def names(self) -> list[str]:
        """Return the names of all files, sorted."""

    async def open(self, name: str, *, create: bool = False) -> DiskFile:
        """Open a file; with ``create`` a new, empty one, whose name is durable on return."""

    async def remove(self, name: str) -> None:
        """Remove a file durably; do nothing if there is none."""

    async def replace(self, name: str, data: bytes) -> None:
        """Replace a small file's content atomically and durably."""

    async def load(self, name: str) -> bytes | None:
        """Return a small file's content; None: there is no such file."""

    async def free(self) -> int:
        """Return the bytes that can still be written."""

    async def reserve(self, size: int) -> bool:
        """Reserve bytes for essential writes on a full disk (0: none); return whether they fit."""
