"""
Builds requests to a service and decoders of their answers, as values, from the table of routes.

Nothing here sends anything: :mod:`bursar.remote.connection` does.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import NoneType
from typing import Any, Generic, TypeVar

import msgspec

from bursar.market.agreement import SignedRecord
from bursar.market.price_forecast import HourlyPrice
from bursar.market.trade_messages import AnyMessage, TradeMessage
from bursar.model.errors import InputError
from bursar.model.money import Pricing
from bursar.model.task import File
from bursar.remote import market_messages as market
from bursar.remote import messages as api
from bursar.remote import route_queries, routes
from bursar.remote.admin_messages import NewToken, Overview, TokenInfo
from bursar.remote.http_transport import Body, ClientResponse
from bursar.remote.messages import Stream
from bursar.remote.output_messages import RunningOutput
from bursar.remote.route_queries import PAGE
from bursar.remote.routes import BYTES, EVENTS, LONGEST_KEY, NDJSON, ApiRoute

T = TypeVar("T")

_KEY = re.compile(rf"[\x21-\x7e]{{0,{LONGEST_KEY}}}")


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
    query: Mapping[str, str | float] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | Body = b""
    size: int = 0
    wait: float = 0.0
    repeatable: bool = True
    ending: bool = False
    also: int = 0


def request(
    route: ApiRoute[T],
    *values: str | int,
    body: Any = None,
    key: str = "",
    kind: str = "",
    **query: str | float | None,
) -> ApiCall[T]:
    """
    Build the request for a route.

    Parameters
    ----------
    values
        Values of the path's variables, in their order.
    body
        Value to send as JSON, of the route's type; None: no body, or one that the caller adds.
    key
        Idempotency key, which makes repetitions count once; empty: none.
    kind
        Media type of the body that is sent, or else of the answer that is wanted; empty: the
        first of the route.
    query
        Parameters of the query string; those that are None are left out.

    Raises
    ------
    InputError
        When a value or the key is none.
    """
    answer: Any = route.answer
    headers = _keyed(key)
    if route.body_kinds:
        headers["Content-Type"] = kind or route.body_kinds[0]
    elif kind:
        headers["Accept"] = kind
    return ApiCall(
        method=route.method,
        path=route.path_of(*values),
        query={name: value for name, value in query.items() if value is not None},
        headers=headers,
        content=b"" if body is None else msgspec.json.encode(body),
        decode=_decoder(answer),
        repeatable=route.repeatable,
        ending=route.method == "DELETE" and route.answer is NoneType,
        also=route.also,
    )


@cache
def _decoder(kind: Any) -> Callable[[ClientResponse], Any]:
    """Return a function that decodes answers of a type; the one for no JSON returns None."""
    if kind is NoneType:
        return lambda answer: None
    decoder = msgspec.json.Decoder(kind)
    return lambda answer: decoder.decode(answer.content)


def _keyed(key: str) -> dict[str, str]:
    if not _KEY.fullmatch(key):
        raise InputError(
            f"expected at most {LONGEST_KEY} printable characters without spaces", where="key"
        )
    return {"Idempotency-Key": key} if key else {}


def _shortest(name: str) -> str:
    try:
        return File(name).name
    except ValueError as error:
        raise InputError(str(error)) from None


def _field_of(call: ApiCall[Any], field: str) -> ApiCall[Any]:
    """Return a call whose answer is one field of the answered document."""
    return replace(call, decode=lambda answer: getattr(call.decode(answer), field))


def _unread(call: ApiCall[Any]) -> ApiCall[None]:
    """Return a call whose answer is not decoded."""
    return replace(call, decode=lambda answer: None)


# The site.


def site() -> ApiCall[api.SiteInfo]:
    """Ask for the facts and free slots of the site."""
    return request(routes.SITE)


def health() -> ApiCall[api.Health]:
    """Ask whether the service responds."""
    return request(routes.HEALTH)


def ready() -> ApiCall[api.Health]:
    """Ask whether the service accepts work; status 503 means no."""
    return request(routes.READY)


# Instances.


def create_instance(new: api.NewInstance, key: str) -> ApiCall[api.InstanceInfo]:
    """Create an instance; the same key again makes no second one."""
    return request(routes.CREATE_INSTANCE, body=new, key=key)


def instances() -> ApiCall[list[api.InstanceInfo]]:
    """List the caller's instances."""
    return _field_of(request(routes.INSTANCES), "instances")


def instance(handle: str) -> ApiCall[api.InstanceInfo]:
    """Ask for one instance."""
    return request(routes.INSTANCE, handle)


def destroy(handle: str) -> ApiCall[None]:
    """Destroy an instance with all tasks, results and files."""
    return request(routes.DESTROY_INSTANCE, handle)


def events(handle: str, after: int) -> ApiCall[None]:
    """Open a stream of changes of an instance, as server-sent events."""
    call = request(routes.FOLLOW_INSTANCE, handle, kind=EVENTS)
    return replace(call, headers={**call.headers, "Last-Event-ID": str(after)}) if after else call


# Tasks and results.


def submit(handle: str, lines: bytes, key: str) -> ApiCall[api.Submitted]:
    """Add tasks to an instance, a JSON document per line; the same key again adds nothing."""
    return replace(request(routes.SUBMIT, handle, key=key, kind=NDJSON), content=lines)


def tasks(handle: str, after: int, limit: int) -> ApiCall[api.TaskPage]:
    """Ask for the states of tasks, from number ``after`` on."""
    return request(routes.TASKS, handle, after=after, limit=limit)


def cancel(
    handle: str,
    numbers: Sequence[int] | None = None,
    *,
    grace: float | None = None,
    unstarted: bool = False,
) -> ApiCall[int]:
    """
    Cancel tasks; the answer is how many that stops.

    Parameters
    ----------
    numbers
        Numbers of the tasks in the instance; None: all.
    grace
        Seconds that running tasks have to end; None: the service's default.
    unstarted
        Whether only tasks are cancelled that no worker has.
    """
    chosen = None if numbers is None else list(numbers)
    if grace is not None:
        grace = min(max(0.0, grace), api.MOST_GRACE)
    body = api.CancelRequest(tasks=chosen, grace=grace, unstarted=unstarted)
    return _field_of(request(routes.CANCEL, handle, body=body), "count")


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

    call = request(routes.RESULTS, handle, kind=NDJSON, after=after, limit=limit, wait=wait)
    return replace(call, decode=decode, wait=wait)


def result_stream(handle: str, after: int) -> ApiCall[None]:
    """Open a stream of the results after a cursor."""
    return _unread(request(routes.RESULTS, handle, kind=NDJSON, after=after, follow="true"))


def forget(handle: str, through: int) -> ApiCall[None]:
    """Let the service delete the results up to a cursor."""
    return request(routes.FORGET, handle, through=through)


# Files.


def files(handle: str, after: str, limit: int) -> ApiCall[api.FileList]:
    """List an instance's files, sorted by name, after a name."""
    return request(routes.FILES, handle, after=after or None, limit=limit)


def put_file(
    handle: str, name: str, content: Body, size: int, *, executable: bool
) -> ApiCall[api.FileInfo]:
    """Write a file of an instance, in place of one of that name."""
    flag = "true" if executable else None
    call = request(routes.PUT_FILE, handle, _shortest(name), kind=BYTES, executable=flag)
    return replace(call, content=content, size=size)


def put_archive(handle: str, content: Body, size: int, kind: str) -> ApiCall[api.FileList]:
    """Unpack a tar or zip archive in an instance."""
    return replace(request(routes.PUT_ARCHIVE, handle, kind=kind), content=content, size=size)


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
    return replace(_field_of(request(routes.COPY_FILES, handle, body=body), "files"), wait=wait)


def delete_file(handle: str, name: str) -> ApiCall[None]:
    """Delete a file."""
    return request(routes.DELETE_FILE, handle, _shortest(name))


def get_file(handle: str, name: str) -> ApiCall[None]:
    """Open a stream of a file's content."""
    return request(routes.GET_FILE, handle, _shortest(name))


def running_output(
    handle: str,
    task: int,
    serial: int = 0,
    offsets: tuple[int, int] = (0, 0),
    *,
    wait: float = 0.0,
) -> ApiCall[RunningOutput]:
    """
    Ask what a running task has printed.

    Parameters
    ----------
    serial, offsets
        Attempt of which so many bytes of stdout and stderr are there already; below 0: so many
        bytes before the end.
    wait
        Seconds to wait for more.
    """
    out, err = offsets
    call = request(
        routes.RUNNING_OUTPUT, handle, task, serial=serial, stdout=out, stderr=err, wait=wait
    )
    return replace(call, wait=wait)


def get_output(handle: str, task: int, stream: Stream) -> ApiCall[None]:
    """Open a stream of what a task printed."""
    return request(routes.OUTPUT, handle, task, stream)


# Money.


def trade(message: TradeMessage) -> ApiCall[list[AnyMessage]]:
    """Send a trade message. Messages are numbered: a repeated one counts once."""
    return request(routes.TRADE, body=message)


def auctions() -> ApiCall[list[market.LotInfo]]:
    """List the auctions that are held, were held lately, or come next."""
    return _field_of(request(routes.AUCTIONS), "auctions")


def heard(deal: str, after: int) -> ApiCall[list[AnyMessage]]:
    """Ask for an auctioneer's messages after a number."""
    return request(routes.HEARD, deal=deal, after=after)


def agreements() -> ApiCall[list[api.AgreementInfo]]:
    """List the caller's agreements."""
    return _field_of(request(routes.AGREEMENTS), "agreements")


def agreement(name: str) -> ApiCall[api.AgreementInfo]:
    """Ask for one agreement."""
    return request(routes.AGREEMENT, name)


def cancel_agreement(name: str) -> ApiCall[api.AgreementInfo]:
    """End an agreement early."""
    return request(routes.CANCEL_AGREEMENT, name)


def account() -> ApiCall[api.AccountInfo]:
    """Ask for the caller's account."""
    return request(routes.ACCOUNT)


def prices() -> ApiCall[Pricing]:
    """Ask for the owner's prices, with the rules by which they change."""
    return request(routes.PRICES)


def prices_ahead(
    user: str = "",
    *,
    processors: int = 1,
    seconds: float = 3600.0,
    since: float | None = None,
    count: int = 24,
) -> ApiCall[list[HourlyPrice]]:
    """Ask what the owner would ask of a user, at a time and at the full hours after it."""
    return request(
        routes.PRICES_AHEAD,
        user=user,
        processors=processors,
        seconds=seconds,
        since=since,
        count=count,
    )


def reprice(pricing: Pricing) -> ApiCall[None]:
    """Set the owner's prices."""
    return _unread(request(routes.REPRICE, body=pricing))


def sales() -> ApiCall[dict[str, api.AgreementList]]:
    """List all agreements by customer."""
    return request(routes.SALES)


def revenue(since: float = 0.0, until: float | None = None) -> ApiCall[market.RevenueInfo]:
    """Ask for the owner's revenue in a period, seconds since the epoch."""
    return request(routes.REVENUE, since=since, until=until)


def reserve(wish: market.NewReservation) -> ApiCall[api.AgreementInfo]:
    """Set processors of the owner's aside, once for each name."""
    return request(routes.RESERVE, body=wish)


def hand_over(
    reservation: str, parts: Sequence[market.HandedPart]
) -> ApiCall[list[market.HandedAgreement]]:
    """Divide a reservation among customers who have paid elsewhere."""
    body = market.HandOver(parts=list(parts))
    return _field_of(request(routes.HAND_OVER, reservation, body=body), "parts")


# The exchange.


def exchange() -> ApiCall[market.ExchangeInfo]:
    """Ask for what the exchange clears next, and what it cleared last."""
    return request(routes.EXCHANGE)


def exchange_orders(key: str = "") -> ApiCall[list[market.OrderInfo]]:
    """List the caller's last orders at the exchange, or the one of a key."""
    return _field_of(request(routes.EXCHANGE_ORDERS, key=key), "orders")


def exchange_trades(order: str = "") -> ApiCall[list[market.TradeInfo]]:
    """List the trades of the caller's last orders at the exchange, or of one order."""
    return _field_of(request(routes.EXCHANGE_TRADES, order=order), "trades")


def place_order(order: market.NewOrder) -> ApiCall[market.OrderInfo]:
    """Place an order at the exchange, once for each key."""
    return request(routes.PLACE_ORDER, body=order)


def withdraw_order(order: str) -> ApiCall[market.OrderInfo]:
    """Withdraw an order before it is cleared."""
    return request(routes.WITHDRAW_ORDER, order)


def report_trade(trade: str, report: market.SellerReport) -> ApiCall[market.TradeInfo]:
    """Tell the exchange that the caller confirms, delivers or refuses a trade."""
    return request(routes.REPORT_TRADE, trade, body=report)


def usage(after: int = 0) -> ApiCall[list[SignedRecord]]:
    """Ask for the caller's usage records after a number, signed by the service."""
    return request(routes.USAGE, after=after)


def invoice(since: float = 0.0, until: float | None = None) -> ApiCall[market.InvoiceInfo]:
    """Ask for the charges of a period, seconds since the epoch; ``until`` None: until now."""
    return request(routes.INVOICE, since=since, until=until)


# Administration.


def overview() -> ApiCall[Overview]:
    """Ask for the state of the whole service."""
    return request(routes.OVERVIEW)


def tokens() -> ApiCall[list[TokenInfo]]:
    """List all valid tokens."""
    return _field_of(request(routes.TOKENS), "tokens")


def create_token(new: NewToken) -> ApiCall[TokenInfo]:
    """Create a token."""
    return request(routes.CREATE_TOKEN, body=new)


def revoke_token(name: str) -> ApiCall[None]:
    """Revoke a token."""
    return request(routes.REVOKE_TOKEN, name)


def deposit(user: str, amount: int, key: str) -> ApiCall[api.AccountInfo]:
    """Add micro-units to an account, once for each key."""
    return request(routes.DEPOSIT, user, body=api.Deposit(amount=amount, key=key))


def drain() -> ApiCall[None]:
    """Stop accepting work; the service ends when the accepted work is done."""
    return _unread(request(routes.DRAIN, body=route_queries.Empty()))
