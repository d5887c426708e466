"""What a task prints: in memory while it is short, in a file once it is long."""

import contextlib
import os

_PIECE = 1 << 16  # bytes: what a pipe holds
_AT_ONCE = 16  # pieces taken of one stream before others have their turn


class Capture:
    """
    A pipe that processes write a stream to, and what has come out of it so far.

    A pipe and not a file, since programs open ``/dev/stdout`` again, and what
    nobody takes out holds a talkative task up instead of filling memory.

    Parameters
    ----------
    folder
        Where the file is made once the stream is long.
    limit
        Bytes kept in memory; more goes to the file, from the first byte on.
    """

    __slots__ = ("_content", "_file", "_folder", "_limit", "_name", "_problem", "reader", "writer")

    def __init__(self, folder: str, limit: int) -> None:
        self.reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.reader, False)
        self._folder = folder
        self._limit = limit
        self._content = b""
        self._file = -1
        self._name = ""
        self._problem: OSError | None = None

    def drain(self, at_most: int = _AT_ONCE) -> None:
        """Takes what is in the pipe, so many pieces at most; never waits."""
        while at_most:
            try:
                piece = os.read(self.reader, _PIECE)
            except BlockingIOError:
                return
            self._keep(piece)
            if len(piece) < _PIECE:
                return
            at_most -= 1

    def take(self, name: str) -> tuple[bytes, int]:
        """
        All of the stream, whose writers have ended; the capture is empty then.

        Parameters
        ----------
        name
            Of the file that a long stream stays in.

        Returns
        -------
        content : bytes
            All of it, or nothing when it is longer than the limit.
        size : int
            Bytes printed.

        Raises
        ------
        OSError
            When a long stream could not be written down.
        """
        self.drain(-1)
        content, self._content = self._content, b""
        if self._problem is not None:
            problem, self._problem = self._problem, None
            raise problem
        if self._file < 0:
            return content, len(content)
        file, self._file = self._file, -1
        try:
            size = os.fstat(file).st_size
            self._give_name(file, os.path.join(self._folder, name))
        finally:
            os.close(file)
        return b"", size

    def close(self) -> None:
        """Lets go of the pipe; what is in it is lost."""
        os.close(self.reader)
        os.close(self.writer)
        if self._file >= 0:
            os.close(self._file)

    def _keep(self, piece: bytes) -> None:
        if self._problem is not None:
            return
        if self._file < 0 and len(self._content) + len(piece) <= self._limit:
            self._content += piece
            return
        try:
            if self._file < 0:
                self._file = self._make_file()
                piece, self._content = self._content + piece, b""
            while piece:
                piece = piece[os.write(self._file, piece) :]
        except OSError as problem:
            self._problem = problem

    def _make_file(self) -> int:
        """A file without a name, where the file system knows such."""
        flags = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC
        try:
            return os.open(self._folder, flags, 0o600)
        except OSError:
            import tempfile  # seldom wanted, and it takes time to load

            fd, self._name = tempfile.mkstemp(prefix=".capture-", dir=self._folder)
            return fd

    def _give_name(self, file: int, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        if self._name:
            os.rename(self._name, path)
            self._name = ""
        else:
            # A folder descriptor makes this linkat(2), which follows the link in /proc.
            os.link(f"/proc/self/fd/{file}", path, src_dir_fd=file)


class Captures:
    """
    Captures that wait to be used again.

    Parameters
    ----------
    folder, limit
        As of :class:`Capture`.
    """

    def __init__(self, folder: str, limit: int) -> None:
        self._folder = folder
        self._limit = limit
        self._free: list[Capture] = []

    def open(self) -> Capture:
        """An empty one."""
        return self._free.pop() if self._free else Capture(self._folder, self._limit)

    def take(self, capture: Capture, name: str, *, reuse: bool) -> tuple[bytes, int]:
        """
        Ends a capture; see :meth:`Capture.take`.

        Parameters
        ----------
        reuse
            Nobody else has the pipe open any more.
        """
        try:
            return capture.take(name)
        finally:
            if reuse:
                self._free.append(capture)
            else:
                capture.close()

    def close(self) -> None:
        """Closes those that wait to be used again."""
        for capture in self._free:
            capture.close()
        self._free.clear()
