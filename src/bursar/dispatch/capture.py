"""What a task prints: on disk without a name, given one only when it is long."""

import contextlib
import os
import tempfile


class Captures:
    """
    Files without a name that processes write a stream to.

    They lie on the log folder's file system, so a talkative task fills disk,
    not memory; and giving one a name costs no copy. A short one is emptied and
    used again.

    Parameters
    ----------
    folder
        The run's logs.
    limit
        Bytes that :meth:`take` returns; longer content stays in a file.
    """

    def __init__(self, folder: str, limit: int) -> None:
        self._folder = folder
        self._limit = limit
        self._free: list[int] = []
        self._names: dict[int, str] = {}  # where the file system needs one

    def open(self) -> int:
        """Descriptor of an empty file."""
        if self._free:
            return self._free.pop()
        flags = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC
        try:
            return os.open(self._folder, flags, 0o600)
        except OSError:
            fd, name = tempfile.mkstemp(prefix=".capture-", dir=self._folder)
            self._names[fd] = name
            return fd

    def take(self, fd: int, name: str, *, reuse: bool) -> tuple[bytes, int]:
        """
        Ends a capture.

        Parameters
        ----------
        fd
            As :meth:`open` gave it.
        name
            Of the file that long content stays in.
        reuse
            Nobody else has the file open any more.

        Returns
        -------
        content : bytes
            All of it, or nothing when it is longer than the limit.
        size : int
            Bytes printed.
        """
        size = os.fstat(fd).st_size
        if size > self._limit:
            try:
                self._keep(fd, os.path.join(self._folder, name))
            finally:
                os.close(fd)
            return b"", size
        content = os.pread(fd, size, 0) if size else b""
        if not reuse:
            self._drop(fd)
            return content, size
        if size:
            os.ftruncate(fd, 0)
            os.lseek(fd, 0, os.SEEK_SET)
        self._free.append(fd)
        return content, size

    def close(self) -> None:
        """Closes those that wait to be used again."""
        for fd in self._free:
            self._drop(fd)
        self._free.clear()

    def _drop(self, fd: int) -> None:
        os.close(fd)
        name = self._names.pop(fd, None)
        if name is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)

    def _keep(self, fd: int, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        named = self._names.pop(fd, None)
        if named is not None:
            os.rename(named, path)
        else:
            # A folder descriptor makes this linkat(2), which follows the link in /proc.
            os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd)
