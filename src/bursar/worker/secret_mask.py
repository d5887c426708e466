"""Values of secrets, replaced in what a task prints."""

import os
import re
from collections.abc import Iterable, Mapping

MASKED = b"***"
"""What stands in captured output where a secret's value was printed."""


class SecretMask:
    """
    Replaces values in a stream that comes in pieces.

    An end of a piece that may be the beginning of a value is kept back until more has come, so
    that the result does not depend on where the stream was cut.

    Parameters
    ----------
    values
        Values, none of them empty.
    """

    __slots__ = ("_held", "_longest", "_pattern", "_values")

    def __init__(self, values: Iterable[bytes]) -> None:
        # The longest first: a value that begins with another one is replaced as a whole.
        self._values = sorted(set(values), key=len, reverse=True)
        self._longest = len(self._values[0])
        self._pattern = re.compile(b"|".join(re.escape(value) for value in self._values))
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """Return what may be kept of the stream now, with the values replaced."""
        data = self._held + piece
        done: list[bytes] = []
        begin = 0
        undecided = self._undecided(data, begin)
        for found in self._pattern.finditer(data):
            if found.start() >= undecided:
                break
            done += (data[begin : found.start()], MASKED)
            begin = found.end()
            if begin > undecided:
                undecided = self._undecided(data, begin)
        self._held = data[undecided:]
        return b"".join((*done, data[begin:undecided]))

    def end(self) -> bytes:
        """Return the rest of the stream, which has ended."""
        held, self._held = self._held, b""
        return self._pattern.sub(MASKED, held)

    def _undecided(self, data: bytes, begin: int) -> int:
        """Return where the part begins that further bytes may complete to a value."""
        for at in range(max(begin, len(data) - self._longest + 1), len(data)):
            rest = data[at:]
            if any(len(value) > len(rest) and value.startswith(rest) for value in self._values):
                return at
        return len(data)


def mask_of(secrets: Mapping[str, str]) -> SecretMask:
    """Return the mask of the values of some variables, none of them empty."""
    return SecretMask(os.fsencode(value) for value in secrets.values())
