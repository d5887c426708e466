"""
Builds requests to a service and decoders of their answers, as values.

Nothing here sends anything: :mod:`bursar.remote.connection` does.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from bursar.market.trade_messages import AnyMessage, TradeMessage
from bursar.market.trade_messages import encode as encode_message
from bursar.model.errors import InputError
from bursar.model.task import File
from bursar.remote import messages as api
from bursar.remote.admin_messages import NewToken, Overview, TokenInfo, TokenList
from bursar.remote.http_transport import Body, ClientResponse
from bursar.remote.messages import Stream

if TYPE_CHECKING:
    from bursar.market.usage import SignedRecord

T = TypeVar("T")

JSON = "application/json"
NDJSON = "application/x-ndjson"

PAGE = 10_000
"""Results on one page, at most."""

_KEY = re.compile(r"[\x21-\x7e]{0,200}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCall(Generic[T]):
    """
    An HTTP request and the decoder of the answer.

    Parameters
    ----------
    method, path, query, headers
        Parts of the HTTP request; the path without the API's prefix, quoted.
    content
        Body, as bytes or as a function that makes its pieces; pieces have ``size`` bytes in all.
    decode
        Decodes a successful answer.
    wait
        Seconds for which the service may hold the answer back.
    repeatable
        Whether the request may be sent again when its answer is lost.
    ending
        Whether the request deletes its object, so that a 404 at a further try is a success.
    also
        A further status that counts as an answer; 0: none.
    """

    method: str
    path: str
    decode: Callable[[ClientResponse], T]
    query: Mapping[str, str | int | float] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | Body = b""
    size: int = 0
    wait: float = 0.0
    repeatable: bool = True
    ending: bool = False
    also: int = 0


_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}


def _reading(kind: Any) -> Callable[[ClientResponse], Any]:
    """Return a function that decodes answers of a type, with a cached decoder."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        decoder = _DECODERS[kind] = msgspec.json.Decoder(kind)
    return lambda answer: decoder.decode(answer.content)


def _nothing(_: ClientResponse) -> None:
    return None


def _at(*parts: str | int) -> str:
    words = [str(part) for part in parts]
    if odd := [word for word in words if word in ("", ".", "..")]:
        # These would be taken for a way through the paths.
        raise InputError(f'expected the name of something, got "{odd[0]}"')
    return "/" + "/".join(quote(word, safe="") for word in words)


def _file_at(handle: str, name: str) -> str:
    try:
        shortest = File(name).name
    except ValueError as error:
        raise InputError(str(error)) from None
    return _at("instances", handle, "files", *shortest.split("/"))


def _keyed(key: str) -> dict[str, str]:
    if not _KEY.fullmatch(key):
        raise InputError("expected at most 200 printable characters without spaces", where="key")
    return {"Idempotency-Key": key} if key else {}


def _get(kind: type[T], *parts: str | int, **query: str | int | float) -> ApiCall[T]:
    return ApiCall(method="GET", path=_at(*parts), query=query, decode=_reading(kind))


def _post(
    kind: type[T], body: Any, *parts: str | int, key: str = "", repeatable: bool = True
) -> ApiCall[T]:
    return ApiCall(
        method="POST",
        path=_at(*parts),
        headers={"Content-Type": JSON} | _keyed(key),
        content=msgspec.json.encode(body),
        decode=_reading(kind),
        repeatable=repeatable,
    )


def _field_of(call: ApiCall[Any], field: str) -> ApiCall[Any]:
    """Return a call whose answer is one field of the answered document."""
    return replace(call, decode=lambda answer: getattr(call.decode(answer), field))


def _delete(*parts: str | int, **query: str | int) -> ApiCall[None]:
    return ApiCall(method="DELETE", path=_at(*parts), query=query, decode=_nothing, ending=True)


# The site.


def site() -> ApiCall[api.SiteInfo]:
    """Ask for the facts and free slots of the site."""
    return _get(api.SiteInfo, "site")


def health() -> ApiCall[api.Health]:
    """Ask whether the service responds."""
    return _get(api.Health, "health")


def ready() -> ApiCall[api.Health]:
    """Ask whether the service accepts work; status 503 means no."""
    return ApiCall(method="GET", path=_at("ready"), decode=_reading(api.Health), also=503)


# Instances.


def create_instance(new: api.NewInstance, key: str) -> ApiCall[api.InstanceInfo]:
    """Create an instance; the same key again makes no second one."""
    return _post(api.InstanceInfo, new, "instances", key=key)


def instances() -> ApiCall[list[api.InstanceInfo]]:
    """List the caller's instances."""
    return _field_of(_get(api.InstanceList, "instances"), "instances")


def instance(handle: str) -> ApiCall[api.InstanceInfo]:
    """Ask for one instance."""
    return _get(api.InstanceInfo, "instances", handle)


def destroy(handle: str) -> ApiCall[None]:
    """Destroy an instance with all tasks, results and files."""
    return _delete("instances", handle)


def events(handle: str, after: int) -> ApiCall[None]:
    """Open a stream of changes of an instance, as server-sent events."""
    return ApiCall(
        method="GET",
        path=_at("instances", handle, "events"),
        headers={"Accept": "text/event-stream"} | ({"Last-Event-ID": str(after)} if after else {}),
        decode=_nothing,
    )


# Tasks and results.


def submit(handle: str, lines: bytes, key: str) -> ApiCall[api.Submitted]:
    """Add tasks to an instance, a JSON document per line; the same key again adds nothing."""
    return ApiCall(
        method="POST",
        path=_at("instances", handle, "tasks"),
        headers={"Content-Type": NDJSON} | _keyed(key),
        content=lines,
        decode=_reading(api.Submitted),
    )


def tasks(handle: str, after: int, limit: int) -> ApiCall[api.TaskPage]:
    """Ask for the states of tasks, from number ``after`` on."""
    return _get(api.TaskPage, "instances", handle, "tasks", after=after, limit=limit)


def cancel(
    handle: str, numbers: Sequence[int] | None = None, *, grace: float | None = None
) -> ApiCall[int]:
    """
    Cancel tasks; the answer is how many that stops.

    Parameters
    ----------
    numbers
        Numbers of the tasks in the instance; None: all.
    grace
        Seconds that running tasks have to end; None: the service's default.
    """
    chosen = None if numbers is None else list(numbers)
    if grace is not None:
        grace = min(max(0.0, grace), api.MOST_GRACE)
    request = api.CancelRequest(tasks=chosen, grace=grace)
    return _field_of(_post(api.Cancelled, request, "instances", handle, "cancel"), "count")


_RESULT_LINES = msgspec.json.Decoder(api.Result)


def decode_results(lines: bytes) -> list[api.Result]:
    """Decode results, a JSON document per line; empty lines are heartbeats."""
    return _RESULT_LINES.decode_lines(lines)


def results(
    handle: str, after: int = 0, *, limit: int = PAGE, wait: float = 0.0
) -> ApiCall[api.ResultPage]:
    """Ask for the results after a cursor, waiting up to ``wait`` seconds."""

    def decode(answer: ClientResponse) -> api.ResultPage:
        found = decode_results(answer.content)
        last = found[-1].cursor if found else after
        return api.ResultPage(
            results=found,
            next=int(answer.header("Bursar-Next", str(last))),
            done=answer.header("Bursar-Done").lower() == "true",
        )

    return ApiCall(
        method="GET",
        path=_at("instances", handle, "results"),
        query={"after": after, "limit": limit, "wait": wait},
        headers={"Accept": NDJSON},
        decode=decode,
        wait=wait,
    )


def result_stream(handle: str, after: int) -> ApiCall[None]:
    """Open a stream of the results after a cursor."""
    return ApiCall(
        method="GET",
        path=_at("instances", handle, "results"),
        query={"after": after, "follow": "true"},
        headers={"Accept": NDJSON},
        decode=_nothing,
    )


def forget(handle: str, through: int) -> ApiCall[None]:
    """Let the service delete the results up to a cursor."""
    return _delete("instances", handle, "results", through=through)


# Files.


def files(handle: str, after: str, limit: int) -> ApiCall[api.FileList]:
    """List an instance's files, sorted by name, after a name."""
    query = {"after": after, "limit": limit} if after else {"limit": limit}
    return _get(api.FileList, "instances", handle, "files", **query)


def put_file(
    handle: str, name: str, content: Body, size: int, *, executable: bool
) -> ApiCall[api.FileInfo]:
    """Write a file of an instance, in place of one of that name."""
    return ApiCall(
        method="PUT",
        path=_file_at(handle, name),
        query={"executable": "true"} if executable else {},
        headers={"Content-Type": "application/octet-stream"},
        content=content,
        size=size,
        decode=_reading(api.FileInfo),
    )


def put_archive(handle: str, content: Body, size: int, kind: str) -> ApiCall[api.FileList]:
    """Unpack a tar or zip archive in an instance."""
    return ApiCall(
        method="POST",
        path=_at("instances", handle, "archive"),
        headers={"Content-Type": kind},
        content=content,
        size=size,
        decode=_reading(api.FileList),
    )


def copy_files(
    handle: str, source: str, names: Sequence[str], *, wait: float = 0.0
) -> ApiCall[list[api.FileInfo]]:
    """
    Copy files of another instance of the same user within the service.

    Parameters
    ----------
    source
        Handle of the other instance.
    names
        At most 1000, the same in both; the answer lists those that were there.
    wait
        Seconds that copying may take.
    """
    body = api.CopyRequest(source=source, files=list(names))
    call = _post(api.FileList, body, "instances", handle, "copies")
    return replace(_field_of(call, "files"), wait=wait)


def delete_file(handle: str, name: str) -> ApiCall[None]:
    """Delete a file."""
    return ApiCall(method="DELETE", path=_file_at(handle, name), decode=_nothing, ending=True)


def get_file(handle: str, name: str) -> ApiCall[None]:
    """Open a stream of a file's content."""
    return ApiCall(method="GET", path=_file_at(handle, name), decode=_nothing)


def get_output(handle: str, task: int, stream: Stream) -> ApiCall[None]:
    """Open a stream of what a task printed."""
    return ApiCall(
        method="GET", path=_at("instances", handle, "tasks", task, stream), decode=_nothing
    )


# Money.


def trade(message: TradeMessage) -> ApiCall[list[AnyMessage]]:
    """Send a trade message. Messages are numbered: a repeated one counts once."""
    return ApiCall(
        method="POST",
        path=_at("trade", "messages"),
        headers={"Content-Type": JSON},
        content=encode_message(message),
        decode=_reading(list[AnyMessage]),
    )


def agreements() -> ApiCall[list[api.AgreementInfo]]:
    """List the caller's agreements."""
    return _field_of(_get(api.AgreementList, "trade", "agreements"), "agreements")


def agreement(name: str) -> ApiCall[api.AgreementInfo]:
    """Ask for one agreement."""
    return _get(api.AgreementInfo, "trade", "agreements", name)


def cancel_agreement(name: str) -> ApiCall[api.AgreementInfo]:
    """End an agreement early."""
    return ApiCall(
        method="DELETE",
        path=_at("trade", "agreements", name),
        decode=_reading(api.AgreementInfo),
    )


def account() -> ApiCall[api.AccountInfo]:
    """Ask for the caller's account."""
    return _get(api.AccountInfo, "account")


def usage() -> "ApiCall[list[SignedRecord]]":
    """Ask for the caller's usage records, signed by the service."""
    from bursar.market.usage import SignedRecord  # what it needs takes time to load

    return _get(list[SignedRecord], "trade", "usage")


def invoice(since: float = 0.0, until: float | None = None) -> ApiCall[api.InvoiceInfo]:
    """Ask for the charges of a period, seconds since the epoch; ``until`` None: until now."""
    query = {"since": since} if until is None else {"since": since, "until": until}
    return _get(api.InvoiceInfo, "trade", "invoice", **query)


# Administration.


def overview() -> ApiCall[Overview]:
    """Ask for the state of the whole service."""
    return _get(Overview, "admin", "overview")


def tokens() -> ApiCall[list[TokenInfo]]:
    """List all valid tokens."""
    return _field_of(_get(TokenList, "admin", "tokens"), "tokens")


def create_token(new: NewToken) -> ApiCall[TokenInfo]:
    """Create a token; not repeatable, as a second try would make a second token."""
    return _post(TokenInfo, new, "admin", "tokens", repeatable=False)


def revoke_token(name: str) -> ApiCall[None]:
    """Revoke a token."""
    return _delete("admin", "tokens", name)


def deposit(user: str, amount: int, key: str) -> ApiCall[api.AccountInfo]:
    """Add micro-units to an account, once for each key."""
    body = api.Deposit(amount=amount, key=key)
    return _post(api.AccountInfo, body, "admin", "accounts", user, "deposit")


def drain() -> ApiCall[None]:
    """Stop accepting work; the service ends when the accepted work is done."""
    return ApiCall(
        method="POST",
        path=_at("admin", "drain"),
        headers={"Content-Type": JSON},
        content=b"{}",
        decode=_nothing,
    )
