"""Streams of results (NDJSON) and of changes (server-sent events), over broken connections."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Literal

from bursar.remote import calls
from bursar.remote.connection import ServiceConnection
from bursar.remote.messages import Result
from bursar.remote.problems import ServiceUnreachable

# Decoders of line streams: results as NDJSON, changes as server-sent events.

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


# Follows an instance's results, each once, over broken connections.

WAIT = 20.0
"""Seconds for which the service is asked to wait for the next result."""

Until = Literal["now", "done", "closed"]
"""
When results end: with those that are there, when every task has one, or when the generator is
closed, as more may be submitted.
"""

AGAIN = 0.5
"""Seconds before the next request when the service did not wait."""


async def follow_results(
    connection: ServiceConnection, handle: str, after: int, *, until: Until, stream: bool
) -> AsyncGenerator[list[Result], None]:
    """
    Yield results after a cursor in batches, in the order of their cursors.

    Parameters
    ----------
    until
        When the results end; see :data:`Until`.
    stream
        Whether they come as one long answer where there are many; otherwise page by page.
    """
    cursor = after
    clock = asyncio.get_running_loop().time
    wait = 0.0 if until == "now" else WAIT
    while True:
        asked = clock()
        page = await connection.call(calls.results(handle, cursor, wait=wait))
        fresh = _later(page.results, cursor)
        if fresh:
            cursor = fresh[-1].cursor
            yield fresh
        if page.done and until != "closed":
            return
        if until == "now":
            if not page.results:
                return
            continue
        # A service need not hold the request for as long as it was asked to: without a pause, an
        # idle instance would be asked as fast as the network allows.
        if not fresh and clock() - asked < AGAIN:
            await asyncio.sleep(AGAIN)
        if page.done or not stream:
            continue
        try:
            async with aclosing(_stream(connection, handle, cursor)) as batches:
                async for batch in batches:
                    cursor = batch[-1].cursor
                    yield batch
        except ServiceUnreachable:
            # Asking for the next page tells whether it is there again, and tries until it is.
            continue


async def _stream(
    connection: ServiceConnection, handle: str, after: int
) -> AsyncGenerator[list[Result], None]:
    """Yield the results of one stream until the stream ends or breaks off."""
    cursor = after
    lines = LineDecoder()
    async with aclosing(connection.stream(calls.result_stream(handle, after))) as pieces:
        async for piece in pieces:
            whole = connection.understand(lines.feed, piece)
            found = connection.understand(calls.decode_results, whole)
            fresh = _later(found, cursor)
            if fresh:
                cursor = fresh[-1].cursor
                yield fresh


def _later(results: list[Result], cursor: int) -> list[Result]:
    """Return the results after a cursor, so that repeated ones count once."""
    if not results or results[0].cursor > cursor:
        return results
    return [result for result in results if result.cursor > cursor]
