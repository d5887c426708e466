"""Decoders of line streams: results as NDJSON, changes as server-sent events."""

LONGEST = 64 << 20
"""Bytes of a line or an event, at most."""


class LineDecoder:
    """Splits a stream of bytes into whole lines."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> bytes:
        """
        Add bytes; return the lines that are now complete, with their ends; empty: none.

        Raises
        ------
        ValueError
            When a line is longer than :data:`LONGEST`.
        """
        end = piece.rfind(b"\n") + 1
        if not end:
            # Kept apart and joined once: adding each piece to a string of bytes copies it every
            # time.
            self._rest.append(piece)
            self._size += len(piece)
            if self._size > LONGEST:
                raise ValueError(f"a line is longer than {LONGEST >> 20} MiB")
            return b""
        block = b"".join((*self._rest, piece[:end]))
        self._rest = [piece[end:]]
        self._size = len(self._rest[0])
        return block


class EventStreamDecoder:
    """
    Extracts the data of server-sent events [1]_ from a stream of bytes.

    References
    ----------
    .. [1] WHATWG HTML standard, section 9.2.6 (interpreting an event stream).
    """

    def __init__(self) -> None:
        self._lines = LineDecoder()
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """
        Add bytes; return the data of each event that is now complete.

        Raises
        ------
        ValueError
            When one is longer than :data:`LONGEST`, or has a line that is.
        """
        whole = []
        for line in self._lines.feed(piece).splitlines():
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
                self._size += len(line)
                if self._size > LONGEST:
                    raise ValueError(f"an event is longer than {LONGEST >> 20} MiB")
            elif not line and self._data:
                whole.append(b"\n".join(self._data))
                self._data.clear()
                self._size = 0
        return whole
