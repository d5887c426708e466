"""Capture of a task's output: in memory while it is short, in a file once it is long."""

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bursar.worker.secret_mask import SecretMask

_PIECE = 1 << 16  # bytes: what a pipe holds
_SHORT = 1 << 12  # bytes: what most streams are shorter than
_AT_ONCE = 16  # pieces taken of one stream before others have their turn


class OutputCapture:
    """
    A pipe that processes write a stream to, and the content read so far.

    A pipe and not a file, since programs open ``/dev/stdout`` again, and a full
    pipe holds a talkative task up instead of filling memory.

    Parameters
    ----------
    limit
        Bytes kept in memory; more goes to the file, from the first byte on.

    Attributes
    ----------
    folder
        Folder in which the file is made once the stream is long.
    mask
        What replaces the values of secrets in the stream; None: there are none.
    """

    __slots__ = (
        "_content",
        "_file",
        "_limit",
        "_name",
        "_problem",
        "folder",
        "mask",
        "reader",
        "writer",
    )

    def __init__(self, folder: str, limit: int) -> None:
        self.reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.reader, False)
        self.folder = folder
        self.mask: SecretMask | None = None
        self._limit = limit
        self._content = b""
        self._file = -1
        self._name = ""
        self._problem: OSError | None = None

    def drain(self, at_most: int = _AT_ONCE) -> None:
        """Read the content of the pipe, a limited number of pieces; never wait."""
        while at_most:
            try:
                piece = os.read(self.reader, _PIECE)
            except BlockingIOError:
                return
            self._keep(piece if self.mask is None else self.mask.feed(piece))
            # Less than was asked for: the pipe is empty, and the next read would only say so.
            if len(piece) < _PIECE:
                return
            at_most -= 1

    def read(self, offset: int, at_most: int) -> tuple[bytes, int, int]:
        """
        Return part of what was read of the stream so far, and leave all of it where it is.

        Parameters
        ----------
        offset
            First byte; below 0: so many bytes before the end.
        at_most
            Bytes to return.

        Returns
        -------
        content : bytes
            Nothing where the stream cannot be written down.
        offset : int
            First byte of the content.
        size : int
            Bytes that were read so far.
        """
        size = len(self._content) if self._file < 0 else os.fstat(self._file).st_size
        begin = max(0, size + offset) if offset < 0 else min(offset, size)
        if self._file < 0:
            return self._content[begin : begin + at_most], begin, size
        return os.pread(self._file, at_most, begin), begin, size

    def take_short(self) -> bytes | None:
        """
        Return all of the stream, whose writers have ended, if it is short, and empty the capture.

        Returns
        -------
        bytes or None
            None when the stream was read before or is longer; see :meth:`take`.
        """
        # Nearly all streams: one call in place of the six that long ones take.
        if self._content or self._file >= 0 or self._problem is not None or self.mask is not None:
            return None
        try:
            piece = os.read(self.reader, _SHORT)
        except BlockingIOError:
            return b""
        # The pipe may hold more than was asked for; a smaller piece is all.
        if len(piece) < _SHORT and len(piece) <= self._limit:
            return piece
        self._keep(piece)
        return None

    def take(self, name: str) -> tuple[bytes, int]:
        """
        Return all of the stream, whose writers have ended, and empty the capture.

        Parameters
        ----------
        name
            Name of the file that keeps a long stream.

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
        self._drain_all()
        content, self._content = self._content, b""
        if self._problem is not None:
            problem, self._problem = self._problem, None
            raise problem
        if self._file < 0:
            return content, len(content)
        file, self._file = self._file, -1
        try:
            size = os.fstat(file).st_size
            self._give_name(file, os.path.join(self.folder, name))
        finally:
            os.close(file)
        return b"", size

    def take_unnamed(self, at_most: int) -> tuple[bytes, int]:
        """
        Return the beginning of the stream, of any length, and leave no file behind.

        Parameters
        ----------
        at_most
            Bytes to return.
        """
        self._drain_all()
        content, self._content = self._content, b""
        size = len(content)
        file, self._file = self._file, -1
        problem, self._problem = self._problem, None
        if file >= 0:
            with open(file, "rb"):
                size = os.fstat(file).st_size
                content = os.pread(file, at_most, 0)
            if self._name:
                os.unlink(self._name)
                self._name = ""
        if problem is not None:
            raise problem
        return content, size

    def close(self) -> None:
        """Close the pipe; unread content is lost."""
        os.close(self.reader)
        os.close(self.writer)
        if self._file >= 0:
            os.close(self._file)

    def _drain_all(self) -> None:
        self.drain(-1)
        if self.mask is not None:
            self._keep(self.mask.end())

    def _keep(self, piece: bytes) -> None:
        # The pipe is read on, and the content dropped: a full disk must not stop the program.
        if self._problem is not None:
            return
        # Short output stays in memory: files that were truncated after each task cost more than all
        # other bookkeeping.
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
        """Make a file, without a name where the file system allows that."""
        flags = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC
        try:
            return os.open(self.folder, flags, 0o600)
        except OSError:
            import tempfile  # seldom wanted, and it takes time to load

            fd, self._name = tempfile.mkstemp(prefix=".capture-", dir=self.folder)
            return fd

    def _give_name(self, file: int, path: str) -> None:
        """
        Give the file of a long stream its name, in place of any file there.

        Parameters
        ----------
        file
            Descriptor of the file, which has no name so far or, where the file system knows no
            nameless files, a temporary one.
        """
        with contextlib.suppress(FileNotFoundError):
            # Of an attempt with the same number before a kill -9.
            os.unlink(path)
        if self._name:
            os.rename(self._name, path)
            self._name = ""
        else:
            # A folder descriptor makes this linkat(2), which follows the link in /proc.
            os.link(f"/proc/self/fd/{file}", path, src_dir_fd=file)


class OutputCapturePool:
    """
    Captures that wait to be used again.

    Parameters
    ----------
    limit
        Bytes that a capture keeps in memory; see :class:`OutputCapture`.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._free: list[OutputCapture] = []

    def open(self, folder: str) -> OutputCapture:
        """Return an empty capture, whose long streams go to a folder."""
        if not self._free:
            return OutputCapture(folder, self._limit)
        capture = self._free.pop()
        capture.folder = folder
        return capture

    def take(self, capture: OutputCapture, name: str, *, reuse: bool) -> tuple[bytes, int]:
        """
        Ends a capture; see :meth:`OutputCapture.take`.

        Parameters
        ----------
        reuse
            Whether the pipe can be used again, because no other process has it open any more.
        """
        try:
            return capture.take(name)
        finally:
            self.give(capture, reuse=reuse)

    def take_unnamed(
        self, capture: OutputCapture, at_most: int, *, reuse: bool
    ) -> tuple[bytes, int]:
        """Ends a capture; see :meth:`OutputCapture.take_unnamed`."""
        try:
            return capture.take_unnamed(at_most)
        finally:
            self.give(capture, reuse=reuse)

    def give(self, capture: OutputCapture, *, reuse: bool) -> None:
        """Take back a capture that is empty; close the pipe where it cannot be used again."""
        capture.mask = None
        if reuse:
            self._free.append(capture)
        else:
            capture.close()

    def close(self) -> None:
        """Close the captures that wait for reuse."""
        for capture in self._free:
            capture.close()
        self._free.clear()
