"""Handlers for results, as pages, lines and events, and for output of tasks."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from bursar.remote import messages as api
from bursar.service.http.authorized_request import AuthorizedRequest
from bursar.service.http.handlers.file_handlers import send_file
from bursar.service.http.queries import ResultsQuery, ThroughQuery
from bursar.service.http.responses import (
    EVENTS,
    JSON,
    NDJSON,
    HttpResponse,
    StreamingResponse,
    encode_json,
)
from bursar.service.http.sending import PIECE
from bursar.service.interfaces import ResultBatch, ServiceError
from bursar.supervisor import TaskSupervisor

_HEARTBEAT_LINE = b"\n"
_HEARTBEAT_EVENT = b": \n\n"


async def show(call: AuthorizedRequest, query: ResultsQuery) -> HttpResponse | StreamingResponse:
    """Return results after a cursor."""
    as_lines = NDJSON in call.request.headers.get("accept", "")
    # The first results are got before the status line is sent, so that an unknown instance is
    # still answered with 404.
    if query.follow:
        batch = await call.service.engine.results(
            call.user, call.handle, query.after, query.limit, 0
        )
        return StreamingResponse(_followed(call, query, batch), NDJSON)
    asked = call.service.engine.results(
        call.user, call.handle, query.after, query.limit, query.wait
    )
    found = await (call.until_over(asked) if query.wait else asked)
    if found is None:  # waiting was ended: a connected client asks again
        found = ResultBatch(lines=(), next=query.after, done=False)
    if as_lines:
        headers = (("bursar-next", str(found.next)), ("bursar-done", _parse_flag(found.done)))
        return HttpResponse(_as_lines(found), kind=NDJSON, headers=headers)
    body = b'{"results":[%b],"next":%d,"done":%b}' % (
        b",".join(found.lines),
        found.next,
        _parse_flag(found.done).encode(),
    )
    return HttpResponse(body, kind=JSON)


async def _followed(
    call: AuthorizedRequest, query: ResultsQuery, batch: ResultBatch
) -> AsyncGenerator[bytes, None]:
    while True:
        size = sum(map(len, batch.lines))
        if size > PIECE and not call.answers.take(call.user, size, lone=True):
            return  # too many unread replies: the client opens a new stream
        try:
            # An empty line now and then shows proxies and clients that the stream is alive.
            yield _as_lines(batch) or _HEARTBEAT_LINE
        finally:
            if size > PIECE:
                call.answers.give_back(call.user, size)
        if batch.done:
            return
        batch = await call.service.engine.results(
            call.user, call.handle, batch.next, query.limit, call.service.limits.heartbeat
        )


async def forget(call: AuthorizedRequest, query: ThroughQuery) -> None:
    """Forget the results up to a cursor, which the client has stored."""
    await call.service.engine.forget(call.user, call.handle, query.through)


async def events(call: AuthorizedRequest) -> StreamingResponse:
    """Stream the instance's state whenever it changes."""
    info = call.service.engine.instance(call.user, call.handle)
    last = _last_event(call)
    # A client that comes back knows what it was told last; it is told again only if results were
    # added since.
    first = None if last is not None and info.results <= last else info
    return StreamingResponse(_events(call, first), EVENTS)


async def _events(
    call: AuthorizedRequest, first: api.InstanceInfo | None
) -> AsyncGenerator[bytes, None]:
    changes = call.service.engine.changes(call.user, call.handle)
    yield _HEARTBEAT_EVENT if first is None else _event(first)
    try:
        async with TaskSupervisor() as tasks:
            while True:
                following = tasks.start(_next(changes))
                while not following.done():
                    # Waited for, not cancelled at each heartbeat: cancelling would end the
                    # generator.
                    await asyncio.wait((following,), timeout=call.service.limits.heartbeat)
                    if not following.done():
                        yield _HEARTBEAT_EVENT
                info = following.result()
                if info is None:
                    return
                yield _event(info)
    finally:
        if isinstance(changes, AsyncGenerator):
            await changes.aclose()


async def _next(changes: AsyncIterator[api.InstanceInfo]) -> api.InstanceInfo | None:
    return await anext(changes, None)


async def output(call: AuthorizedRequest) -> HttpResponse | StreamingResponse:
    """Return a stream of a task's output that is too long for the result."""
    engine = call.service.engine
    name = engine.output(call.user, call.handle, call.path["task"], call.path["stream"])
    return await send_file(call, engine.home(call.user, call.handle) / "logs", (name,))


def _last_event(call: AuthorizedRequest) -> int | None:
    text = call.request.headers.get("last-event-id")
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise ServiceError("bad-value", 400, "expected a cursor", where="Last-Event-ID")
    return int(text)


def _event(info: api.InstanceInfo) -> bytes:
    return b"id: %d\nevent: instance\ndata: %b\n\n" % (info.results, encode_json(info))


def _as_lines(batch: ResultBatch) -> bytes:
    return b"\n".join([*batch.lines, b""]) if batch.lines else b""


def _parse_flag(value: bool) -> str:
    return "true" if value else "false"
