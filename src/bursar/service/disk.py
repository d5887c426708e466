"""The little that the service asks of a disk, so that a simulated one can take its place."""

from typing import Protocol


class DiskFull(Exception):
    """There is no room; what was to be written is not there, or not all of it."""


class DiskBroken(Exception):
    """Writing or syncing failed otherwise: what is on disk is unknown, and the service ends."""


class DiskFile(Protocol):
    """A file that is open."""

    async def append(self, data: bytes) -> None:
        """
        Writes at the end; not durable before :meth:`sync`.

        Raises
        ------
        DiskFull, DiskBroken
        """

    async def sync(self) -> None:
        """
        Returns when all that was appended survives a power cut.

        Raises
        ------
        DiskFull, DiskBroken
            After which nothing is known of what was not synced before.
        """

    async def read(self, offset: int, size: int) -> bytes:
        """Bytes from an offset; fewer at the end."""

    async def truncate(self, size: int) -> None:
        """Cuts the end off, durably."""

    async def close(self) -> None:
        """Lets go of it."""

    @property
    def size(self) -> int:
        """Bytes, those not synced included."""


class Disk(Protocol):
    """A folder; names are of files in it."""

    async def names(self) -> list[str]:
        """Of all files, sorted."""

    async def open(self, name: str, *, create: bool = False) -> DiskFile:
        """Opens a file; with ``create`` a new, empty one, whose name is durable on return."""

    async def remove(self, name: str) -> None:
        """Durably; nothing when it is not there."""

    async def replace(self, name: str, data: bytes) -> None:
        """A small file gets this content, whole or not at all, durably."""

    async def load(self, name: str) -> bytes | None:
        """A small file's content; None when it is not there."""

    async def free(self) -> int:
        """Bytes that may still be written."""

    async def reserve(self, size: int) -> bool:
        """Keeps so many bytes back for what must be written although the disk is full; 0: none."""
