"""Handlers of the routes, noun by noun."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from bursar.market.agreement import SignedRecord
from bursar.market.price_forecast import HourlyPrice
from bursar.market.trade_messages import AnyMessage
from bursar.model.money import Pricing
from bursar.remote import market_messages as market
from bursar.remote import messages as api
from bursar.remote import output_messages
from bursar.remote.admin_messages import NewToken, Overview, TokenInfo, TokenList
from bursar.remote.route_queries import (
    Empty,
    FilesQuery,
    HeardQuery,
    PeriodQuery,
    PricesAheadQuery,
    PutQuery,
    ResultsQuery,
    RunningOutputQuery,
    TasksQuery,
    ThroughQuery,
    UsageQuery,
)
from bursar.remote.routes import BYTES, EVENTS, INSTANCE, JSON, NDJSON
from bursar.service.files.file_store import FileOwner
from bursar.service.files.instance_files import parse_name
from bursar.service.http.http_messages import (
    AuthorizedRequest,
    HttpResponse,
    StreamingResponse,
    decoded,
    encode_json,
    json_response,
)
from bursar.service.http.sending import PIECE
from bursar.service.interfaces import ResultBatch, ServiceError
from bursar.supervisor import TaskSupervisor

# Handlers for agreements, accounts and prices.


async def deliver(call: AuthorizedRequest, body: AnyMessage) -> HttpResponse:
    """Handle a trade message; its answers bind, so they are durable before they are sent."""
    answers = call.service.billing.deliver(call.user, body)
    await call.service.journal.durable()
    return json_response(answers)


async def auctions(call: AuthorizedRequest) -> market.LotList:
    """List the auctions that are held, were held lately, or come next."""
    return call.service.billing.auctions()


async def heard(call: AuthorizedRequest, query: HeardQuery) -> HttpResponse:
    """Return what an auctioneer has told a bidder; an agreement is durable before it is told."""
    messages = call.service.billing.heard(call.user, query.deal, query.after)
    await call.service.journal.durable()
    return json_response(messages)


async def agreements(call: AuthorizedRequest) -> api.AgreementList:
    """List the caller's agreements."""
    return call.service.billing.agreements(call.user)


async def agreement(call: AuthorizedRequest) -> api.AgreementInfo:
    """Return one agreement of the caller."""
    return call.service.billing.agreement(call.user, call.path["agreement"])


async def cancel_agreement(call: AuthorizedRequest) -> api.AgreementInfo:
    """End an agreement before its time."""
    ended = call.service.billing.cancel(call.user, call.path["agreement"])
    await call.service.journal.durable()
    return ended


async def invoice(call: AuthorizedRequest, query: PeriodQuery) -> market.InvoiceInfo:
    """Return the caller's charges in a period."""
    until = call.service.clock() if query.until is None else query.until
    return call.service.billing.accounts.invoice(call.user, query.since, until)


async def usage(call: AuthorizedRequest, query: UsageQuery) -> list[SignedRecord]:
    """Return the caller's signed usage records after a number."""
    return list(call.service.billing.accounts.usage(call.user)[query.after :])


async def account(call: AuthorizedRequest) -> api.AccountInfo:
    """Return the caller's account."""
    return call.service.billing.accounts.account(call.user)


async def reprice(call: AuthorizedRequest, body: Pricing) -> None:
    """Set the prices that are asked from now on."""
    call.service.billing.reprice(body)
    await call.service.journal.durable()


async def prices(call: AuthorizedRequest) -> Pricing:
    """Return the owner's prices, with the rules by which they change."""
    return call.service.billing.pricing


async def prices_ahead(call: AuthorizedRequest, query: PricesAheadQuery) -> list[HourlyPrice]:
    """Return what would be asked of a user in the hours to come, for the owner."""
    return call.service.billing.prices_ahead(
        query.user, query.processors, query.seconds, query.since, query.count
    )


async def revenue(call: AuthorizedRequest, query: PeriodQuery) -> market.RevenueInfo:
    """Return what the owner earned in a period, by customer."""
    until = call.service.clock() if query.until is None else query.until
    return call.service.billing.accounts.revenue(query.since, until)


async def sales(call: AuthorizedRequest) -> dict[str, api.AgreementList]:
    """Return all agreements by customer, for the owner."""
    return dict(call.service.billing.sales())


# Handlers for the service as a whole: health, offers, metrics, and what administrators do.

METRICS = "text/plain; version=0.0.4; charset=utf-8"


async def health(call: AuthorizedRequest) -> api.Health:
    """Return whether the service responds."""
    return call.service.manager.health()


async def ready(call: AuthorizedRequest) -> HttpResponse:
    """Return whether the service accepts work; 503 when it does not."""
    state = call.service.manager.ready()
    return json_response(state, 200 if state.status == "ok" else 503)


async def show_site(call: AuthorizedRequest) -> api.SiteInfo:
    """Return facts and free slots of the site."""
    return call.service.manager.site(call.user)


async def metrics(call: AuthorizedRequest) -> HttpResponse:
    """Return the metrics in the text format of Prometheus."""
    return HttpResponse(call.service.manager.metrics(), kind=METRICS)


async def document(call: AuthorizedRequest) -> HttpResponse:
    """Return the OpenAPI document."""
    return HttpResponse(call.document)


async def tokens(call: AuthorizedRequest) -> TokenList:
    """Return all valid tokens."""
    return TokenList(tokens=call.service.tokens.tokens())


async def create_token(call: AuthorizedRequest, body: NewToken) -> TokenInfo:
    """Create a token; only this answer holds its secret."""
    made = call.service.tokens.create(body)
    await call.service.journal.durable()
    return made


async def revoke_token(call: AuthorizedRequest) -> None:
    """Revoke a token."""
    call.service.tokens.revoke(call.path["token"])
    await call.service.journal.durable()


async def deposit(call: AuthorizedRequest, body: api.Deposit) -> api.AccountInfo:
    """Add money to a user's account."""
    account = call.service.billing.accounts.deposit(call.path["user"], body)
    await call.service.journal.durable()
    return account


async def overview(call: AuthorizedRequest) -> Overview:
    """Return the state of the whole service."""
    seen = call.service.engine.overview()
    currency = call.service.manager.site(call.user).currency
    degraded = call.service.manager.degraded()
    spent = call.service.billing.accounts.spent()
    return replace(seen, spent=spent, currency=currency, degraded=degraded)


async def drain(call: AuthorizedRequest, body: Empty) -> api.Health:
    """Stop accepting work."""
    call.service.manager.drain()
    return call.service.manager.health()


# Handlers for files of instances.

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


async def show_files(call: AuthorizedRequest, query: FilesQuery) -> api.FileList:
    """List an instance's files."""
    found = await call.file_store.files(_root(call), query.after, query.limit)
    return api.FileList(files=found)


async def get_file(call: AuthorizedRequest) -> HttpResponse | StreamingResponse:
    """Return a file's content."""
    return await send_file(call, _root(call), parse_name(call.path["name"]))


async def put_file(call: AuthorizedRequest, query: PutQuery) -> api.FileInfo:
    """Write a file, in place of one of that name."""
    parts = parse_name(call.path["name"])
    pieces = call.request.pieces(call.service.limits.file_bytes)
    return await call.file_store.put(
        _root(call),
        parts,
        pieces,
        executable=query.executable,
        owner=_owner(call),
    )


async def delete_file(call: AuthorizedRequest) -> None:
    """Delete a file or an empty folder."""
    await call.file_store.delete(_root(call), parse_name(call.path["name"]))


async def put_archive(call: AuthorizedRequest) -> api.FileList:
    """Unpack the files of an archive, all or none."""
    pieces = call.request.pieces(call.service.limits.archive_bytes)
    found = await call.file_store.unpack(_root(call), pieces, call.request.kind, _owner(call))
    return api.FileList(files=found)


async def copy_files(call: AuthorizedRequest, body: api.CopyRequest) -> api.FileList:
    """Copy files of another instance of the same user; missing ones are left out."""
    store, target = call.file_store, _root(call)
    source = call.service.engine.home(call.user, body.source) / "files"
    found: list[api.FileInfo] = []
    for parts in [parse_name(name, "files") for name in body.files]:
        try:
            file = await store.open(source, parts)
        except ServiceError as error:
            # A task need not have made every file that it may make.
            if error.status != 404:
                raise
            continue
        async with aclosing(file):
            info = await store.put(
                target,
                parts,
                file,
                executable=file.executable,
                owner=_owner(call),
            )
        found.append(info)
    return api.FileList(files=found)


async def send_file(
    call: AuthorizedRequest, root: Path, parts: tuple[str, ...]
) -> HttpResponse | StreamingResponse:
    """
    Return a file below a folder, or the requested range of it (RFC 9110, section 14).

    Raises
    ------
    ServiceError
        404, when there is none; 416, when the part lies behind its end.
    """
    file = await call.file_store.open(root, parts)
    headers: tuple[tuple[str, str], ...] = (
        ("accept-ranges", "bytes"),
        ("etag", file.tag),
        # A task may have written HTML, which no browser should show as a page of the service.
        ("content-disposition", "attachment"),
    )
    if file.executable:
        headers += (("bursar-executable", "true"),)
    part = requested_range(call.request.headers, file.size, file.tag)
    if part is None:
        return StreamingResponse(file, BYTES, 200, file.size, headers)
    start, size = part
    if not size:
        await file.aclose()
        raise ServiceError("bad-range", 416, f"there are {file.size} bytes", where="Range")
    file.part(start, size)
    headers += (("content-range", f"bytes {start}-{start + size - 1}/{file.size}"),)
    return StreamingResponse(file, BYTES, 206, size, headers)


def requested_range(headers: Mapping[str, str], size: int, tag: str) -> tuple[int, int] | None:
    """
    Return start and length of the requested range of a file.

    Parameters
    ----------
    size, tag
        Bytes and entity tag of the file now.

    Returns
    -------
    tuple or None
        None for all of it: also when several parts are asked for, or a part of what it was before
        (``If-Range``). A length of 0: the part lies behind the end.
    """
    match = _RANGE.fullmatch(headers.get("range", ""))
    # What is not understood is ignored, as RFC 9110 (section 14.2) allows: the whole file is a
    # correct answer. So is it when the file is no longer the one of which the client has a part.
    if match is None or headers.get("if-range", tag) != tag:
        return None
    first, last = match.groups()
    if not first:
        if not last:
            return None
        # ``bytes=-N``: the last N bytes, or all of a shorter file.
        length = min(int(last), size)
        return size - length, length
    start = int(first)
    end = int(last) if last else size - 1
    if last and end < start:
        return None
    return start, max(0, min(end, size - 1) - start + 1)


def _root(call: AuthorizedRequest) -> Path:
    return call.service.engine.home(call.user, call.handle) / "files"


def _owner(call: AuthorizedRequest) -> FileOwner:
    return FileOwner(
        user=call.user, limits=call.limits, homes=partial(call.service.engine.homes, call.user)
    )


# Handlers for instances and their tasks.

_OBJECTS = 8 * api.MOST_TASKS
"""Braces that open in a submission, with some for texts that hold them."""

_SUBMISSION = msgspec.json.Decoder(api.Submission)
_TASK = msgspec.json.Decoder(api.TaskSpec)


async def create_instance(call: AuthorizedRequest, body: api.NewInstance) -> HttpResponse:
    """Create an instance."""
    made = await call.service.engine.create(call.user, body, call.key)
    return json_response(made, 201, (("location", api.PREFIX + INSTANCE.path_of(made.id)),))


async def show_instances(call: AuthorizedRequest) -> api.InstanceList:
    """List the caller's instances."""
    return api.InstanceList(instances=call.service.engine.instances(call.user))


async def show_instance(call: AuthorizedRequest) -> api.InstanceInfo:
    """Return an instance."""
    return call.service.engine.instance(call.user, call.handle)


async def destroy_instance(call: AuthorizedRequest) -> None:
    """Kill an instance's tasks and delete its results and files."""
    await call.service.engine.destroy(call.user, call.handle)


async def submit_tasks(call: AuthorizedRequest, body: list[api.TaskSpec]) -> api.Submitted:
    """Add tasks to an instance."""
    return await call.service.engine.submit(call.user, call.handle, body, call.key)


async def show_tasks(call: AuthorizedRequest, query: TasksQuery) -> api.TaskPage:
    """Return the states of an instance's tasks."""
    return call.service.engine.tasks(call.user, call.handle, query.after, query.limit)


async def cancel_tasks(call: AuthorizedRequest, body: api.CancelRequest) -> api.Cancelled:
    """Cancel tasks."""
    return await call.service.engine.cancel(
        call.user, call.handle, body.tasks, body.grace, unstarted=body.unstarted
    )


def read_submission(data: bytes) -> list[api.TaskSpec]:
    """
    Decode the tasks of a submission.

    Raises
    ------
    ServiceError
        When it is none, or there are too many.
    """
    _check_objects(data)
    return decoded(_SUBMISSION.decode, data).tasks


def read_task_lines(data: bytes) -> list[api.TaskSpec]:
    """
    Decode the tasks of a submission that has one JSON document per line.

    Raises
    ------
    ServiceError
        When a line is none, or there are too many or none.
    """
    _check_objects(data)
    tasks = decoded(_TASK.decode_lines, data, within="tasks")
    if not 1 <= len(tasks) <= api.MOST_TASKS:
        detail = f"expected 1 to {api.MOST_TASKS:,} tasks, got {len(tasks):,}"
        raise ServiceError("bad-value", 422, detail, where="tasks")
    return tasks


def _check_objects(data: bytes) -> None:
    # Checked before decoding, which takes a hundred times the memory of the JSON text.
    if data.count(b"{") > _OBJECTS:
        detail = f"expected at most {api.MOST_TASKS:,} tasks"
        raise ServiceError("too-large", 413, detail, where="tasks")


# Handlers for results, as pages, lines and events, and for output of tasks.

_HEARTBEAT_LINE = b"\n"
_HEARTBEAT_EVENT = b": \n\n"


async def show_results(
    call: AuthorizedRequest, query: ResultsQuery
) -> HttpResponse | StreamingResponse:
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


async def forget_results(call: AuthorizedRequest, query: ThroughQuery) -> None:
    """Forget the results up to a cursor, which the client has stored."""
    await call.service.engine.forget(call.user, call.handle, query.through)


async def follow_instance(call: AuthorizedRequest) -> StreamingResponse:
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


async def show_output(call: AuthorizedRequest) -> HttpResponse | StreamingResponse:
    """Return a stream of a task's output that is too long for the result."""
    engine = call.service.engine
    name = engine.outputs.file(call.user, call.handle, call.path["task"], call.path["stream"])
    return await send_file(call, engine.home(call.user, call.handle) / "logs", (name,))


async def show_running_output(
    call: AuthorizedRequest, query: RunningOutputQuery
) -> output_messages.RunningOutput:
    """Return what a running task has printed."""
    return await call.service.engine.outputs.running(
        call.user,
        call.handle,
        call.path["task"],
        query.serial,
        (query.stdout, query.stderr),
        query.wait,
    )


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
