"""The disk as the service uses it: an interface that a simulated disk implements too."""

from typing import Protocol


class DiskFull(Exception):
    """There is no room; what was to be written is not there, or not all of it."""


class DiskBroken(Exception):
    """Writing or syncing failed otherwise: what is on disk is unknown, and the service ends."""


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
        """Cuts the end off, durably."""

    async def close(self) -> None:
        """Close the file."""

    @property
    def size(self) -> int:
        """Size of the file in bytes, those not synced included."""


class Disk(Protocol):
    """A folder; names are of files in it."""

    async def names(self) -> list[str]:
        """Return the names of all files, sorted."""

    async def open(self, name: str, *, create: bool = False) -> DiskFile:
        """Opens a file; with ``create`` a new, empty one, whose name is durable on return."""

    async def remove(self, name: str) -> None:
        """Remove a file durably; do nothing if there is none."""

    async def replace(self, name: str, data: bytes) -> None:
        """Replace a small file's content atomically and durably."""

    async def load(self, name: str) -> bytes | None:
        """Return a small file's content; None: there is no such file."""

    async def free(self) -> int:
        """Return the bytes that can still be written."""

    async def reserve(self, size: int) -> bool:
        """Keeps so many bytes back for what must be written although the disk is full; 0: none."""
