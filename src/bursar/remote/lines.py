"""Streams of lines: results as NDJSON, changes as server-sent events."""

from collections.abc import Iterator


class Lines:
    """Whole lines of a stream that comes in pieces."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []

    def feed(self, piece: bytes) -> bytes:
        """The lines that are whole now, with their ends; empty: none."""
        end = piece.rfind(b"\n") + 1
        if not end:
            self._rest.append(piece)
            return b""
        block = b"".join((*self._rest, piece[:end]))
        self._rest = [piece[end:]]
        return block


class Events:
    """
    Data of server-sent events [1]_, of a stream that comes in pieces.

    References
    ----------
    .. [1] WHATWG HTML standard, section 9.2.6 (interpreting an event stream).
    """

    def __init__(self) -> None:
        self._lines = Lines()
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Of each event that is whole now."""
        for line in self._lines.feed(piece).splitlines():
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                yield b"\n".join(self._data)
                self._data.clear()
