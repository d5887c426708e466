"""
Requests to a service and what is made of their answers, as values.

Nothing here sends anything: :mod:`bursar.remote.connection` does.
"""

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from bursar.market.trade_messages import AnyMessage, TradeMessage
from bursar.market.trade_messages import encode as encode_message
from bursar.model.errors import InputError
from bursar.model.task import File
from bursar.remote import messages as api
from bursar.remote.task_output import Stream

if TYPE_CHECKING:
    from bursar.market.usage import SignedRecord

T = TypeVar("T")

JSON = "application/json"
NDJSON = "application/x-ndjson"

_KEY = re.compile(r"[\x21-\x7e]{0,200}")

Body = Callable[[], AsyncIterator[bytes]]
"""Makes the pieces of a body, anew for each try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCall(Generic[T]):
    """
    A request, and how its answer is read.

    Parameters
    ----------
    method, path, query, headers
        Of HTTP; the path without the API's prefix, quoted.
    content
        Its body; one that is made piece by piece has ``size`` bytes.
    decode
        Reads the answer, which is one of success.
    wait
        Seconds for which the service may hold the answer back.
    repeatable
        Whether it does no harm to send it again when its answer is lost.
    ending
        What it is about goes by it: not found at a further try, it went at an earlier one.
    also
        A status that is no success but an answer, too; 0: none.
    """

    method: str
    path: str
    decode: Callable[[httpx.Response], T]
    query: Mapping[str, str | int | float] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | Body = b""
    size: int = 0
    wait: float = 0.0
    repeatable: bool = True
    ending: bool = False
    also: int = 0


_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}


def _reading(kind: Any) -> Callable[[httpx.Response], Any]:
    """Reads answers of a type; its decoder is made once."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        decoder = _DECODERS[kind] = msgspec.json.Decoder(kind)
    return lambda answer: decoder.decode(answer.content)


def _nothing(_: httpx.Response) -> None:
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


def _delete(*parts: str | int, **query: str | int) -> ApiCall[None]:
    return ApiCall(method="DELETE", path=_at(*parts), query=query, decode=_nothing, ending=True)


# The site.


def site() -> ApiCall[api.SiteInfo]:
    """What the service says of itself."""
    return _get(api.SiteInfo, "site")


def health() -> ApiCall[api.Health]:
    """Whether it lives."""
    return _get(api.Health, "health")


def ready() -> ApiCall[api.Health]:
    """Whether it takes work: the answer of one that does not is 503."""
    return ApiCall(method="GET", path=_at("ready"), decode=_reading(api.Health), also=503)


# Instances.


def create_instance(new: api.NewInstance, key: str) -> ApiCall[api.InstanceInfo]:
    """A new instance; the same key again makes no second one."""
    return _post(api.InstanceInfo, new, "instances", key=key)


def instances() -> ApiCall[api.InstanceList]:
    """The caller's."""
    return _get(api.InstanceList, "instances")


def instance(handle: str) -> ApiCall[api.InstanceInfo]:
    """One of them."""
    return _get(api.InstanceInfo, "instances", handle)


def destroy(handle: str) -> ApiCall[None]:
    """It goes, with all it has."""
    return _delete("instances", handle)


def events(handle: str, after: int) -> ApiCall[None]:
    """A stream of what changes, as server-sent events."""
    return ApiCall(
        method="GET",
        path=_at("instances", handle, "events"),
        headers={"Accept": "text/event-stream"} | ({"Last-Event-ID": str(after)} if after else {}),
        decode=_nothing,
    )


# Tasks and results.


def submit(handle: str, lines: bytes, key: str) -> ApiCall[api.Submitted]:
    """Adds tasks, a JSON document each line; the same key again adds nothing."""
    return ApiCall(
        method="POST",
        path=_at("instances", handle, "tasks"),
        headers={"Content-Type": NDJSON} | _keyed(key),
        content=lines,
        decode=_reading(api.Submitted),
    )


def tasks(handle: str, after: int, limit: int) -> ApiCall[api.TaskPage]:
    """Where tasks stand, from number ``after`` on."""
    return _get(api.TaskPage, "instances", handle, "tasks", after=after, limit=limit)


def cancel(
    handle: str, numbers: Sequence[int] | None, grace: float | None = None
) -> ApiCall[api.Cancelled]:
    """These tasks are not wanted any more, None: all; so many seconds to end are theirs."""
    chosen = None if numbers is None else list(numbers)
    if grace is not None:
        grace = min(max(0.0, grace), api.MOST_GRACE)
    request = api.CancelRequest(tasks=chosen, grace=grace)
    return _post(api.Cancelled, request, "instances", handle, "cancel")


_RESULT_LINES = msgspec.json.Decoder(api.Result)


def decode_results(lines: bytes) -> list[api.Result]:
    """Results, a JSON document each line; empty lines are heartbeats."""
    return _RESULT_LINES.decode_lines(lines)


def results(handle: str, after: int, limit: int, wait: float) -> ApiCall[api.ResultPage]:
    """Results after a cursor, waited for."""

    def decode(answer: httpx.Response) -> api.ResultPage:
        found = decode_results(answer.content)
        last = found[-1].cursor if found else after
        return api.ResultPage(
            results=found,
            next=int(answer.headers.get("Bursar-Next", last)),
            done=answer.headers.get("Bursar-Done", "").lower() == "true",
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
    """Results after a cursor as they come."""
    return ApiCall(
        method="GET",
        path=_at("instances", handle, "results"),
        query={"after": after, "follow": "true"},
        headers={"Accept": NDJSON},
        decode=_nothing,
    )


def forget(handle: str, through: int) -> ApiCall[None]:
    """The client has the results up to a cursor."""
    return _delete("instances", handle, "results", through=through)


# Files.


def files(handle: str, after: str, limit: int) -> ApiCall[api.FileList]:
    """An instance's, in the order of their names, after one of them."""
    query = {"after": after, "limit": limit} if after else {"limit": limit}
    return _get(api.FileList, "instances", handle, "files", **query)


def put_file(
    handle: str, name: str, content: Body, size: int, *, executable: bool
) -> ApiCall[api.FileInfo]:
    """A file of an instance, in place of one of that name."""
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
    """The files in a tar or zip archive."""
    return ApiCall(
        method="POST",
        path=_at("instances", handle, "archive"),
        headers={"Content-Type": kind},
        content=content,
        size=size,
        decode=_reading(api.FileList),
    )


def copy_files(
    handle: str, source: str, names: Sequence[str], wait: float
) -> ApiCall[api.FileList]:
    """Files of another instance of the caller's; it may take so many seconds."""
    body = api.CopyRequest(source=source, files=list(names))
    return replace(_post(api.FileList, body, "instances", handle, "copies"), wait=wait)


def delete_file(handle: str, name: str) -> ApiCall[None]:
    """A file goes."""
    return ApiCall(method="DELETE", path=_file_at(handle, name), decode=_nothing, ending=True)


def get_file(handle: str, name: str) -> ApiCall[None]:
    """A file's content, as a stream."""
    return ApiCall(method="GET", path=_file_at(handle, name), decode=_nothing)


def get_output(handle: str, task: int, stream: Stream) -> ApiCall[None]:
    """What a task printed, as a stream."""
    return ApiCall(
        method="GET", path=_at("instances", handle, "tasks", task, stream), decode=_nothing
    )


# Money.


def trade(message: TradeMessage) -> ApiCall[list[AnyMessage]]:
    """A message of a deal; what is answered. Messages are numbered: a repeat counts once."""
    return ApiCall(
        method="POST",
        path=_at("trade", "messages"),
        headers={"Content-Type": JSON},
        content=encode_message(message),
        decode=_reading(list[AnyMessage]),
    )


def agreements() -> ApiCall[api.AgreementList]:
    """The caller's."""
    return _get(api.AgreementList, "trade", "agreements")


def agreement(name: str) -> ApiCall[api.AgreementInfo]:
    """One of them."""
    return _get(api.AgreementInfo, "trade", "agreements", name)


def cancel_agreement(name: str) -> ApiCall[api.AgreementInfo]:
    """An agreement ends before its time."""
    return ApiCall(
        method="DELETE",
        path=_at("trade", "agreements", name),
        decode=_reading(api.AgreementInfo),
    )


def account() -> ApiCall[api.AccountInfo]:
    """The caller's."""
    return _get(api.AccountInfo, "account")


def usage() -> "ApiCall[list[SignedRecord]]":
    """What the caller was delivered, signed by the service."""
    from bursar.market.usage import SignedRecord  # what it needs takes time to load

    return _get(list[SignedRecord], "trade", "usage")


def invoice(since: float, until: float | None) -> ApiCall[api.InvoiceInfo]:
    """What the caller was charged in a time."""
    query = {"since": since} if until is None else {"since": since, "until": until}
    return _get(api.InvoiceInfo, "trade", "invoice", **query)


# Administration.


def overview() -> ApiCall[api.Overview]:
    """All there is."""
    return _get(api.Overview, "admin", "overview")


def tokens() -> ApiCall[api.TokenList]:
    """All that are good."""
    return _get(api.TokenList, "admin", "tokens")


def create_token(new: api.NewToken) -> ApiCall[api.TokenInfo]:
    """A new one; its secret is told once, so that a second try would make a second."""
    return _post(api.TokenInfo, new, "admin", "tokens", repeatable=False)


def revoke_token(name: str) -> ApiCall[None]:
    """It is good no longer."""
    return _delete("admin", "tokens", name)


def deposit(user: str, amount: int, key: str) -> ApiCall[api.AccountInfo]:
    """Money for an account, micro-units; once for a key."""
    body = api.Deposit(amount=amount, key=key)
    return _post(api.AccountInfo, body, "admin", "accounts", user, "deposit")


def drain() -> ApiCall[None]:
    """The service takes nothing more and ends once it may."""
    return ApiCall(
        method="POST",
        path=_at("admin", "drain"),
        headers={"Content-Type": JSON},
        content=b"{}",
        decode=_nothing,
    )
