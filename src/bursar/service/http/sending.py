"""Sends responses and streams, and ends waiting requests."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from bursar.service.http.http_messages import HttpResponse, Send, StreamingResponse
from bursar.supervisor import TaskSupervisor

_ALWAYS = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))

PIECE = 1 << 18
"""Bytes that are sent at a time."""


class PendingWaits:
    """Requests that wait for an event, and that a shutdown ends together."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in the order they came
        self._ended = False

    async def until(self, gone: Coroutine[Any, Any, None]) -> None:
        """
        Wait until ``gone`` returns or :meth:`end` is called, which cancels the task of the caller.
        """
        task = asyncio.current_task()
        assert task is not None
        # Never awaited: closed, or Python would warn of it.
        if self._ended:
            gone.close()
            return
        self._tasks[task] = None
        try:
            await gone
        finally:
            del self._tasks[task]

    def end(self) -> None:
        """End all waiting, now and from now on."""
        self._ended = True
        for task in list(self._tasks):
            task.cancel()


async def send_response(reply: HttpResponse, send: Send, *, bare: bool) -> None:
    """
    Send a whole response.

    Parameters
    ----------
    bare
        Whether to leave out the body, as for ``HEAD``.
    """
    await send(_head(reply, len(reply.body)))
    rest = memoryview(b"" if bare else reply.body)
    while len(rest) > PIECE:  # or all of it would lie in buffers until it is read
        await send({"type": "http.response.body", "body": bytes(rest[:PIECE]), "more_body": True})
        rest = rest[PIECE:]
    await send({"type": "http.response.body", "body": bytes(rest)})


async def send_streaming_response(
    stream: StreamingResponse,
    send: Send,
    *,
    bare: bool,
    over: Callable[[], Coroutine[Any, Any, None]],
    seconds: float | None,
) -> None:
    """
    Send a stream until the end, a disconnect of the client or the time limit.

    A stream of known size that turns out shorter is left without an end, so that the connection
    breaks.

    Parameters
    ----------
    bare
        Whether to leave out the body, as for ``HEAD``.
    over
        Returns when the stream should be ended; has a task of its own.
    seconds
        Seconds after which the stream ends in any case; None: no limit.
    """
    try:
        await send(_head(stream, stream.size))
        if not bare and stream.size != 0:
            async with TaskSupervisor() as tasks:
                ending = tasks.start(over())
                pump = tasks.start(_send_pieces(stream, send))
                # Whichever comes first ends both with the block: a client that has gone, the end
                # of the service, the time, or the last piece.
                await asyncio.wait(
                    (pump, ending), timeout=seconds, return_when=asyncio.FIRST_COMPLETED
                )
            if stream.size is not None:
                return  # ended with its last byte, or left without an end
        await send({"type": "http.response.body", "body": b""})
    finally:
        await stream.pieces.aclose()


async def _send_pieces(stream: StreamingResponse, send: Send) -> None:
    """
    Send the pieces; the last byte of a stream of known size ends the answer.

    A client that has so many bytes may send its next request at once. Were the answer still open
    then, the request would count as one that did not wait for it, and end the connection.
    """
    sent = 0
    async for piece in stream.pieces:
        sent += len(piece)
        is_more = sent != stream.size
        await send({"type": "http.response.body", "body": piece, "more_body": is_more})
        if not is_more:
            return


def _head(reply: HttpResponse | StreamingResponse, size: int | None) -> dict[str, Any]:
    headers = [(name.encode(), value.encode("latin-1")) for name, value in reply.headers]
    headers += _ALWAYS
    if reply.kind:
        headers.append((b"content-type", reply.kind.encode()))
    if size is not None and reply.status != 204:
        headers.append((b"content-length", b"%d" % size))
    return {"type": "http.response.start", "status": reply.status, "headers": headers}
