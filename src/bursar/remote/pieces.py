"""Splits a submission into NDJSON pieces of limited size."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from bursar.remote.messages import MOST_TASKS, TaskSpec

LARGEST = 4 * 1024 * 1024
"""Bytes after which a piece is divided; one of a single task may be larger."""

_ENCODER = msgspec.json.Encoder()


def split_submission(tasks: Iterable[TaskSpec]) -> Iterator[bytes]:
    """
    Yield tasks as NDJSON, at most :data:`MOST_TASKS` in a piece.

    The same tasks make the same pieces, so that a key of each makes them count once.
    """
    rest = iter(tasks)
    while some := list(islice(rest, MOST_TASKS)):
        yield from _halved(some)


def _halved(tasks: Sequence[TaskSpec]) -> Iterator[bytes]:
    lines = _ENCODER.encode_lines(tasks)
    if len(lines) <= LARGEST or len(tasks) == 1:
        yield lines
        return
    middle = len(tasks) // 2
    yield from _halved(tasks[:middle])
    yield from _halved(tasks[middle:])
