"""
The table of all routes of the API, from which the service and its clients are made.

The service routes, authorises, decodes and documents requests by it, and clients build requests and
decode answers by it: method, path, parameters, types and statuses of an operation stand here only.
"""

from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, Generic, Literal, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Meta

from bursar.market.agreement import SignedRecord
from bursar.market.price_forecast import HourlyPrice
from bursar.market.trade_messages import AnyMessage
from bursar.model.errors import InputError
from bursar.model.money import Pricing
from bursar.remote import admin_messages as admin
from bursar.remote import market_messages as market
from bursar.remote import messages as api
from bursar.remote.messages import Name
from bursar.remote.output_messages import RunningOutput
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

T = TypeVar("T")

JSON = "application/json"
NDJSON = "application/x-ndjson"
EVENTS = "text/event-stream"
BYTES = "application/octet-stream"
ANY_KIND = "*/*"
TAR = "application/x-tar"
ZIP = "application/zip"
GZIP = "application/gzip"

LONGEST_KEY = 200
"""Characters of an idempotency key."""

# The table.

RouteAccess = Literal["public", "read", "submit", "sell", "admin", "scrape"]
"""
Who may use a route: anybody, unauthenticated (``public``); users with the scope of this name; and
for the metrics (``scrape``) administrators, and users with ``read`` whom the configuration names.
"""

PATH_VALUES: dict[str, Any] = {
    "id": Annotated[str, Meta(min_length=1, max_length=200)],
    "task": Annotated[int, Meta(ge=0, le=1 << 32)],
    "stream": api.Stream,
    "name": Annotated[str, Meta(min_length=1)],
    "agreement": Annotated[str, Meta(min_length=1, max_length=200)],
    "token": Annotated[str, Meta(min_length=1, max_length=200)],
    "user": Name,
    "order": Name,
    "trade": Name,
}
"""Types of the variables in paths; a path with a value of another type is unknown (404)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ApiRoute(Generic[T]):
    """
    One operation of the API.

    Parameters
    ----------
    method, path
        HTTP method, and path below the API's prefix; ``{name}`` stands for one part of the path,
        ``{name*}`` for all parts that are left.
    name
        Unique name, used as operation id in the OpenAPI document and in logs.
    access
        Scope that the sender needs.
    answer
        Type of the JSON answer; ``NoneType``: no JSON.
    summary
        One line for the OpenAPI document.
    query
        Type of the query string; None: no query string allowed.
    body
        Type of a body that is read as a whole; None: no such body.
    body_kinds
        Media types of the body; :data:`ANY_KIND`: any. Without ``body``, the body is read piece by
        piece, and no kind means no body.
    status
        Status of a success; with 204 there is no answer.
    also
        A further status with the same answer; 0: none.
    kinds
        Media types of the answer.
    headers
        Request headers that are read.
    repeatable
        Whether a client may send the request again when its answer is lost.
    """

    method: str
    path: str
    name: str
    access: RouteAccess
    answer: type[T]
    summary: str
    query: type[msgspec.Struct] | None = None
    body: Any = None
    body_kinds: tuple[str, ...] = ()
    status: int = 200
    also: int = 0
    kinds: tuple[str, ...] = (JSON,)
    headers: tuple[str, ...] = ()
    repeatable: bool = True

    def path_of(self, *values: str | int) -> str:
        """
        Return the quoted path with values in place of the variables, in their order.

        Raises
        ------
        InputError
            When a value is no part of a path.
        """
        words: list[str] = []
        left = iter(values)
        for part in self.path.split("/")[1:]:
            value = str(next(left)) if part.startswith("{") else part
            words += value.split("/") if part.endswith("*}") else [value]
        if odd := [word for word in words if word in ("", ".", "..")]:
            # These would be taken for a way through the paths.
            raise InputError(f'expected the name of something, got "{odd[0]}"')
        return "".join("/" + quote(word, safe="") for word in words)


def _route(
    operation: str,
    name: str,
    access: RouteAccess,
    answer: type[T],
    summary: str,
    *,
    body: Any = None,
    body_kinds: tuple[str, ...] = (),
    status: int = 0,
    **more: Any,
) -> ApiRoute[T]:
    """
    Return a route; without ``status``, success is 204 where JSON is expected and none answered.

    Parameters
    ----------
    operation
        Method and path.
    more
        Other fields of the route.
    """
    method, _, path = operation.partition(" ")
    bare = answer is NoneType and "kinds" not in more
    return ApiRoute(
        method=method,
        path=path,
        name=name,
        access=access,
        answer=answer,
        summary=summary,
        body=body,
        body_kinds=body_kinds or ((JSON,) if body is not None else ()),
        status=status or (204 if bare else 200),
        **more,
    )


_INSTANCE = "/instances/{id}"
_KEY = ("Idempotency-Key",)
_RANGE = ("Range", "If-Range")

HEALTH = _route("GET /health", "health", "public", api.Health, "Whether the service lives")
READY = _route(
    "GET /ready",
    "ready",
    "public",
    api.Health,
    "Whether it takes work; 503 when it does not",
    also=503,
)
OPENAPI = _route("GET /openapi.json", "openapi", "public", dict[str, Any], "This document")
METRICS = _route(
    "GET /metrics",
    "metrics",
    "scrape",
    NoneType,
    "Measures, in the text format of Prometheus",
    kinds=("text/plain",),
)
SITE = _route("GET /site", "site", "read", api.SiteInfo, "Facts and free slots")

# Instances.

CREATE_INSTANCE = _route(
    "POST /instances",
    "create-instance",
    "submit",
    api.InstanceInfo,
    "A new instance",
    body=api.NewInstance,
    status=201,
    headers=_KEY,
)
INSTANCES = _route(
    "GET /instances", "instances", "read", api.InstanceList, "The caller's instances"
)
INSTANCE = _route(f"GET {_INSTANCE}", "instance", "read", api.InstanceInfo, "An instance")
DESTROY_INSTANCE = _route(
    f"DELETE {_INSTANCE}",
    "destroy-instance",
    "submit",
    NoneType,
    "Its tasks are killed, and all of it is forgotten",
)
SUBMIT = _route(
    f"POST {_INSTANCE}/tasks",
    "submit",
    "submit",
    api.Submitted,
    "Adds tasks; they are durable when this is answered",
    body=api.Submission,
    body_kinds=(JSON, NDJSON),
    status=202,
    headers=_KEY,
)
TASKS = _route(
    f"GET {_INSTANCE}/tasks",
    "tasks",
    "read",
    api.TaskPage,
    "Where tasks stand",
    query=TasksQuery,
)
CANCEL = _route(
    f"POST {_INSTANCE}/cancel",
    "cancel",
    "submit",
    api.Cancelled,
    "Tasks are not wanted any more; each still has a result",
    body=api.CancelRequest,
)

# Results.

RESULTS = _route(
    f"GET {_INSTANCE}/results",
    "results",
    "read",
    api.ResultPage,
    "Results after a cursor, as a page, lines, or a stream of lines",
    query=ResultsQuery,
    kinds=(JSON, NDJSON),
)
FORGET = _route(
    f"DELETE {_INSTANCE}/results",
    "forget",
    "submit",
    NoneType,
    "The client has the results up to a cursor: they go",
    query=ThroughQuery,
)
FOLLOW_INSTANCE = _route(
    f"GET {_INSTANCE}/events",
    "events",
    "read",
    NoneType,
    "The instance whenever it has changed, as server-sent events",
    kinds=(EVENTS,),
    headers=("Last-Event-ID",),
)
RUNNING_OUTPUT = _route(
    f"GET {_INSTANCE}/tasks/{{task}}/output",
    "running-output",
    "read",
    RunningOutput,
    "What a running task has printed so far",
    query=RunningOutputQuery,
)
OUTPUT = _route(
    f"GET {_INSTANCE}/tasks/{{task}}/{{stream}}",
    "output",
    "read",
    NoneType,
    "What a task printed, when that was too long for its result",
    kinds=(BYTES,),
    headers=_RANGE,
)

# Files.

FILES = _route(
    f"GET {_INSTANCE}/files",
    "files",
    "read",
    api.FileList,
    "Files of an instance, by name",
    query=FilesQuery,
)
GET_FILE = _route(
    f"GET {_INSTANCE}/files/{{name*}}",
    "get-file",
    "read",
    NoneType,
    "A file's content",
    kinds=(BYTES,),
    headers=_RANGE,
)
PUT_FILE = _route(
    f"PUT {_INSTANCE}/files/{{name*}}",
    "put-file",
    "submit",
    api.FileInfo,
    "A file, in place of one of that name",
    query=PutQuery,
    body_kinds=(ANY_KIND,),
)
DELETE_FILE = _route(
    f"DELETE {_INSTANCE}/files/{{name*}}",
    "delete-file",
    "submit",
    NoneType,
    "A file or an empty folder goes",
)
PUT_ARCHIVE = _route(
    f"POST {_INSTANCE}/archive",
    "put-archive",
    "submit",
    api.FileList,
    "The files in a tar or zip archive, all or none",
    body_kinds=(TAR, ZIP, GZIP),
)
COPY_FILES = _route(
    f"POST {_INSTANCE}/copies",
    "copy-files",
    "submit",
    api.FileList,
    "Files of another instance of the caller's, as far as they are there",
    body=api.CopyRequest,
)

# Money.

TRADE = _route(
    "POST /trade/messages",
    "trade",
    "submit",
    list[AnyMessage],
    "A message of a deal; what is answered",
    body=AnyMessage,
)
AUCTIONS = _route(
    "GET /trade/auctions", "auctions", "read", market.LotList, "Auctions, held and announced"
)
HEARD = _route(
    "GET /trade/messages",
    "heard",
    "submit",
    list[AnyMessage],
    "What an auctioneer has told the caller, who bids there",
    query=HeardQuery,
)
AGREEMENTS = _route(
    "GET /trade/agreements", "agreements", "read", api.AgreementList, "The caller's agreements"
)
AGREEMENT = _route(
    "GET /trade/agreements/{agreement}", "agreement", "read", api.AgreementInfo, "An agreement"
)
CANCEL_AGREEMENT = _route(
    "DELETE /trade/agreements/{agreement}",
    "cancel-agreement",
    "submit",
    api.AgreementInfo,
    "An agreement ends before its time",
)
INVOICE = _route(
    "GET /trade/invoice",
    "invoice",
    "read",
    market.InvoiceInfo,
    "What the caller was charged",
    query=PeriodQuery,
)
USAGE = _route(
    "GET /trade/usage",
    "usage",
    "read",
    list[SignedRecord],
    "What the caller was delivered, signed",
    query=UsageQuery,
)
ACCOUNT = _route("GET /account", "account", "read", api.AccountInfo, "The caller's account")
REPRICE = _route(
    "PUT /trade/prices",
    "reprice",
    "sell",
    NoneType,
    "What the owner asks from now on",
    body=Pricing,
)
PRICES = _route(
    "GET /trade/prices", "prices", "sell", Pricing, "What the owner asks now, with its rules"
)
PRICES_AHEAD = _route(
    "GET /trade/prices/ahead",
    "prices_ahead",
    "sell",
    list[HourlyPrice],
    "What the owner would ask of a user in the hours to come",
    query=PricesAheadQuery,
)
REVENUE = _route(
    "GET /trade/revenue",
    "revenue",
    "sell",
    market.RevenueInfo,
    "What the owner earned in a period, by customer",
    query=PeriodQuery,
)
SALES = _route(
    "GET /trade/sales",
    "sales",
    "sell",
    dict[str, api.AgreementList],
    "All agreements by customer, for the owner",
)

RESERVE = _route(
    "POST /trade/reservations",
    "reserve",
    "sell",
    api.AgreementInfo,
    "Processors set aside for sale elsewhere",
    body=market.NewReservation,
)
HAND_OVER = _route(
    "POST /trade/reservations/{agreement}/parts",
    "hand-over",
    "sell",
    market.HandedList,
    "A reservation goes to customers who have paid elsewhere",
    body=market.HandOver,
)

# The exchange.

EXCHANGE = _route("GET /exchange", "exchange", "read", market.ExchangeInfo, "What is cleared next")
EXCHANGE_ORDERS = _route(
    "GET /exchange/orders",
    "exchange-orders",
    "read",
    market.OrderList,
    "The caller's orders",
    query=market.OrdersQuery,
)
PLACE_ORDER = _route(
    "POST /exchange/orders",
    "place-order",
    "submit",
    market.OrderInfo,
    "A bid or an ask, once for each key",
    body=market.NewOrder,
)
WITHDRAW_ORDER = _route(
    "DELETE /exchange/orders/{order}", "withdraw-order", "submit", market.OrderInfo, "An order goes"
)
EXCHANGE_TRADES = _route(
    "GET /exchange/trades",
    "exchange-trades",
    "read",
    market.TradeList,
    "The caller's trades",
    query=market.TradesQuery,
)
REPORT_TRADE = _route(
    "POST /exchange/trades/{trade}",
    "report-trade",
    "submit",
    market.TradeInfo,
    "A seller confirms, delivers or refuses a trade",
    body=market.SellerReport,
)

# Administration.

TOKENS = _route(
    "GET /admin/tokens",
    "tokens",
    "admin",
    admin.TokenList,
    "All tokens that are good, without their secrets",
)
CREATE_TOKEN = _route(
    "POST /admin/tokens",
    "create-token",
    "admin",
    admin.TokenInfo,
    "A new token, with its secret",
    body=admin.NewToken,
    status=201,
    repeatable=False,  # a second try would make a second token
)
REVOKE_TOKEN = _route(
    "DELETE /admin/tokens/{token}", "revoke-token", "admin", NoneType, "A token is good no longer"
)
DEPOSIT = _route(
    "POST /admin/accounts/{user}/deposit",
    "deposit",
    "admin",
    api.AccountInfo,
    "Money for an account, once for a key",
    body=api.Deposit,
)
OVERVIEW = _route("GET /admin/overview", "overview", "admin", admin.Overview, "All there is")
DRAIN = _route(
    "POST /admin/drain",
    "drain",
    "admin",
    api.Health,
    "The service begins to take nothing more",
    body=Empty,
    status=202,
)

ROUTES: tuple[ApiRoute[Any], ...] = tuple(
    found for found in tuple(globals().values()) if isinstance(found, ApiRoute)
)
"""All routes, in the order above."""
