"""What a task prints: on disk without a name, given one only when it is long."""

import contextlib
import os


class Capture:
    """
    A file without a name that a process writes a stream to.

    It lies on the log folder's file system, so a talkative task fills disk,
    not memory; and giving it a name later costs no copy.

    Parameters
    ----------
    folder
        The run's logs.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._named: str | None = None
        try:
            flags = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC
            self.fd = os.open(folder, flags, 0o600)
        except OSError:
            # No such files on this file system: one with a name, removed when short.
            import tempfile

            self.fd, self._named = tempfile.mkstemp(prefix=".capture-", dir=folder)

    def take(self, limit: int, name: str) -> tuple[bytes, int]:
        """
        Ends the capture.

        Parameters
        ----------
        limit
            Bytes that are returned; longer content stays in the file ``name``.

        Returns
        -------
        content : bytes
            All of it, or nothing when it is longer than the limit.
        size : int
            Bytes printed.
        """
        try:
            size = os.fstat(self.fd).st_size
            if size <= limit:
                return (os.pread(self.fd, size, 0) if size else b""), size
            path = os.path.join(self._folder, name)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            if self._named is None:
                # A folder descriptor makes this linkat(2), which follows the link in /proc.
                os.link(f"/proc/self/fd/{self.fd}", path, src_dir_fd=self.fd)
            else:
                os.rename(self._named, path)
                self._named = None
            return b"", size
        finally:
            self.close()

    def close(self) -> None:
        """Forgets what was captured."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        if self._named is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._named)
            self._named = None
