"""
The table of all routes of the API.

Routing, authorisation, the OpenAPI document and the tests follow from it.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from bursar.market.trade_messages import AnyMessage
from bursar.market.usage import SignedRecord
from bursar.model.pricing import Pricing
from bursar.remote import messages as api
from bursar.service.files import archives
from bursar.service.http.handlers import (
    file_handlers,
    instances,
    result_handlers,
    service_handlers,
    trade,
)
from bursar.service.http.problems import decoded
from bursar.service.http.queries import (
    Empty,
    FilesQuery,
    PeriodQuery,
    PutQuery,
    ResultsQuery,
    TasksQuery,
    ThroughQuery,
)
from bursar.service.http.responses import (
    BYTES,
    EVENTS,
    JSON,
    NDJSON,
    HttpResponse,
    StreamingResponse,
)

RouteAccess = Literal["public", "read", "submit", "sell", "admin", "scrape"]
"""
Who may: anybody, without saying who they are (``public``); who has the scope of this name; and
for the metrics (``scrape``) administrators, and those with ``read`` whom the configuration names.
"""

Handler = Callable[..., Awaitable[HttpResponse | StreamingResponse]]
"""
Takes a :class:`~bursar.service.http.authorized_request.AuthorizedRequest`.

Also takes ``query`` and ``body`` if the route has them.
"""

PATH_VALUES: dict[str, Any] = {
    "id": Annotated[str, Meta(min_length=1, max_length=200)],
    "task": Annotated[int, Meta(ge=0, le=1 << 32)],
    "stream": Literal["stdout", "stderr"],
    "name": Annotated[str, Meta(min_length=1)],
    "agreement": Annotated[str, Meta(min_length=1, max_length=200)],
    "token": Annotated[str, Meta(min_length=1, max_length=200)],
    "user": api.Name,
}
"""Types of what stands in the place of a name in a path; there is nothing where others stand."""


@dataclass(frozen=True, slots=True)
class RequestBody:
    """
    A request's body that is read as a whole.

    Parameters
    ----------
    type
        Type of the decoded value, for the OpenAPI document.
    readers
        Decoders by media type.
    limit
        Name of the field of :class:`HttpLimits` that limits its bytes.
    """

    type: Any
    readers: Mapping[str, Callable[[bytes], Any]]
    limit: str = "json_bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRoute:
    """
    One operation of the API.

    Parameters
    ----------
    method, path
        HTTP method and path; ``{name}`` stands for one part of the path, ``{name*}`` for all parts
        that are left.
    name
        Unique name, used as operation id in the OpenAPI document and in logs.
    access
        Scope that the sender needs.
    handler
        Coroutine function that handles the request.
    summary
        One line for the OpenAPI document.
    query
        Type of the query string; None: it must be empty.
    body
        Decoders of a body that is read as a whole; None: no such body.
    pieces
        Media types of a body that is read piece by piece; ``"*/*"``: any.
    answer
        Type of the JSON answer; None: no JSON.
    status
        Status of a success; with 204 there is no answer.
    kinds
        Media types of the answer.
    headers
        Request headers that the handler reads.
    """

    method: str
    path: str
    name: str
    access: RouteAccess
    handler: Handler
    summary: str
    query: type[msgspec.Struct] | None = None
    body: RequestBody | None = None
    pieces: tuple[str, ...] = ()
    answer: Any = None
    status: int = 200
    kinds: tuple[str, ...] = (JSON,)
    headers: tuple[str, ...] = ()


def _json(kind: Any, limit: str = "json_bytes") -> RequestBody:
    return RequestBody(kind, {JSON: partial(decoded, msgspec.json.Decoder(kind).decode)}, limit)


_SUBMISSION = RequestBody(
    api.Submission,
    {JSON: instances.read_submission, NDJSON: instances.read_task_lines},
    "submission_bytes",
)

_INSTANCE = "/instances/{id}"
_KEY = "Idempotency-Key"

ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(
        method="GET",
        path="/health",
        name="health",
        access="public",
        handler=service_handlers.health,
        summary="Whether the service lives",
        answer=api.Health,
    ),
    ApiRoute(
        method="GET",
        path="/ready",
        name="ready",
        access="public",
        handler=service_handlers.ready,
        summary="Whether it takes work; 503 when it does not",
        answer=api.Health,
    ),
    ApiRoute(
        method="GET",
        path="/openapi.json",
        name="openapi",
        access="public",
        handler=service_handlers.document,
        summary="This document",
        answer=dict[str, Any],
    ),
    ApiRoute(
        method="GET",
        path="/metrics",
        name="metrics",
        access="scrape",
        handler=service_handlers.metrics,
        summary="Measures, in the text format of Prometheus",
        kinds=("text/plain",),
    ),
    ApiRoute(
        method="GET",
        path="/site",
        name="site",
        access="read",
        handler=service_handlers.show,
        summary="Facts and free slots",
        answer=api.SiteInfo,
    ),
    # Instances.
    ApiRoute(
        method="POST",
        path="/instances",
        name="create-instance",
        access="submit",
        handler=instances.create,
        summary="A new instance",
        body=_json(api.NewInstance),
        answer=api.InstanceInfo,
        status=201,
        headers=(_KEY,),
    ),
    ApiRoute(
        method="GET",
        path="/instances",
        name="instances",
        access="read",
        handler=instances.show_all,
        summary="The caller's instances",
        answer=api.InstanceList,
    ),
    ApiRoute(
        method="GET",
        path=_INSTANCE,
        name="instance",
        access="read",
        handler=instances.show,
        summary="An instance",
        answer=api.InstanceInfo,
    ),
    ApiRoute(
        method="DELETE",
        path=_INSTANCE,
        name="destroy-instance",
        access="submit",
        handler=instances.destroy,
        summary="Its tasks are killed, and all of it is forgotten",
        status=204,
    ),
    ApiRoute(
        method="POST",
        path=f"{_INSTANCE}/tasks",
        name="submit",
        access="submit",
        handler=instances.submit,
        summary="Adds tasks; they are durable when this is answered",
        body=_SUBMISSION,
        answer=api.Submitted,
        status=202,
        headers=(_KEY,),
    ),
    ApiRoute(
        method="GET",
        path=f"{_INSTANCE}/tasks",
        name="tasks",
        access="read",
        handler=instances.show_tasks,
        summary="Where tasks stand",
        query=TasksQuery,
        answer=api.TaskPage,
    ),
    ApiRoute(
        method="POST",
        path=f"{_INSTANCE}/cancel",
        name="cancel",
        access="submit",
        handler=instances.cancel,
        summary="Tasks are not wanted any more; each still has a result",
        body=_json(api.CancelRequest, "submission_bytes"),
        answer=api.Cancelled,
    ),
    # Results.
    ApiRoute(
        method="GET",
        path=f"{_INSTANCE}/results",
        name="results",
        access="read",
        handler=result_handlers.show,
        summary="Results after a cursor, as a page, lines, or a stream of lines",
        query=ResultsQuery,
        answer=api.ResultPage,
        kinds=(JSON, NDJSON),
    ),
    ApiRoute(
        method="DELETE",
        path=f"{_INSTANCE}/results",
        name="forget",
        access="submit",
        handler=result_handlers.forget,
        summary="The client has the results up to a cursor: they go",
        query=ThroughQuery,
        status=204,
    ),
    ApiRoute(
        method="GET",
        path=f"{_INSTANCE}/events",
        name="events",
        access="read",
        handler=result_handlers.events,
        summary="The instance whenever it has changed, as server-sent events",
        kinds=(EVENTS,),
        headers=("Last-Event-ID",),
    ),
    ApiRoute(
        method="GET",
        path=f"{_INSTANCE}/tasks/{{task}}/{{stream}}",
        name="output",
        access="read",
        handler=result_handlers.output,
        summary="What a task printed, when that was too long for its result",
        kinds=(BYTES,),
        headers=("Range", "If-Range"),
    ),
    # Files.
    ApiRoute(
        method="GET",
        path=f"{_INSTANCE}/files",
        name="files",
        access="read",
        handler=file_handlers.show_all,
        summary="Files of an instance, by name",
        query=FilesQuery,
        answer=api.FileList,
    ),
    ApiRoute(
        method="GET",
        path=f"{_INSTANCE}/files/{{name*}}",
        name="get-file",
        access="read",
        handler=file_handlers.get,
        summary="A file's content",
        kinds=(BYTES,),
        headers=("Range", "If-Range"),
    ),
    ApiRoute(
        method="PUT",
        path=f"{_INSTANCE}/files/{{name*}}",
        name="put-file",
        access="submit",
        handler=file_handlers.put,
        summary="A file, in place of one of that name",
        query=PutQuery,
        pieces=("*/*",),
        answer=api.FileInfo,
    ),
    ApiRoute(
        method="DELETE",
        path=f"{_INSTANCE}/files/{{name*}}",
        name="delete-file",
        access="submit",
        handler=file_handlers.delete,
        summary="A file or an empty folder goes",
        status=204,
    ),
    ApiRoute(
        method="POST",
        path=f"{_INSTANCE}/archive",
        name="put-archive",
        access="submit",
        handler=file_handlers.put_archive,
        summary="The files in a tar or zip archive, all or none",
        pieces=archives.KINDS,
        answer=api.FileList,
    ),
    ApiRoute(
        method="POST",
        path=f"{_INSTANCE}/copies",
        name="copy-files",
        access="submit",
        handler=file_handlers.copy,
        summary="Files of another instance of the caller's, as far as they are there",
        body=_json(api.CopyRequest),
        answer=api.FileList,
    ),
    # Money.
    ApiRoute(
        method="POST",
        path="/trade/messages",
        name="trade",
        access="submit",
        handler=trade.deliver,
        summary="A message of a deal; what is answered",
        body=_json(AnyMessage),
        answer=list[AnyMessage],
    ),
    ApiRoute(
        method="GET",
        path="/trade/agreements",
        name="agreements",
        access="read",
        handler=trade.agreements,
        summary="The caller's agreements",
        answer=api.AgreementList,
    ),
    ApiRoute(
        method="GET",
        path="/trade/agreements/{agreement}",
        name="agreement",
        access="read",
        handler=trade.agreement,
        summary="An agreement",
        answer=api.AgreementInfo,
    ),
    ApiRoute(
        method="DELETE",
        path="/trade/agreements/{agreement}",
        name="cancel-agreement",
        access="submit",
        handler=trade.cancel,
        summary="An agreement ends before its time",
        answer=api.AgreementInfo,
    ),
    ApiRoute(
        method="GET",
        path="/trade/invoice",
        name="invoice",
        access="read",
        handler=trade.invoice,
        summary="What the caller was charged",
        query=PeriodQuery,
        answer=api.InvoiceInfo,
    ),
    ApiRoute(
        method="GET",
        path="/trade/usage",
        name="usage",
        access="read",
        handler=trade.usage,
        summary="What the caller was delivered, signed",
        answer=list[SignedRecord],
    ),
    ApiRoute(
        method="GET",
        path="/account",
        name="account",
        access="read",
        handler=trade.account,
        summary="The caller's account",
        answer=api.AccountInfo,
    ),
    ApiRoute(
        method="PUT",
        path="/trade/prices",
        name="reprice",
        access="sell",
        handler=trade.reprice,
        summary="What the owner asks from now on",
        body=_json(Pricing),
        status=204,
    ),
    ApiRoute(
        method="GET",
        path="/trade/sales",
        name="sales",
        access="sell",
        handler=trade.sales,
        summary="All agreements by customer, for the owner",
        answer=dict[str, api.AgreementList],
    ),
    # Administration.
    ApiRoute(
        method="GET",
        path="/admin/tokens",
        name="tokens",
        access="admin",
        handler=service_handlers.tokens,
        summary="All tokens that are good, without their secrets",
        answer=api.TokenList,
    ),
    ApiRoute(
        method="POST",
        path="/admin/tokens",
        name="create-token",
        access="admin",
        handler=service_handlers.create_token,
        summary="A new token, with its secret",
        body=_json(api.NewToken),
        answer=api.TokenInfo,
        status=201,
    ),
    ApiRoute(
        method="DELETE",
        path="/admin/tokens/{token}",
        name="revoke-token",
        access="admin",
        handler=service_handlers.revoke_token,
        summary="A token is good no longer",
        status=204,
    ),
    ApiRoute(
        method="POST",
        path="/admin/accounts/{user}/deposit",
        name="deposit",
        access="admin",
        handler=service_handlers.deposit,
        summary="Money for an account, once for a key",
        body=_json(api.Deposit),
        answer=api.AccountInfo,
    ),
    ApiRoute(
        method="GET",
        path="/admin/overview",
        name="overview",
        access="admin",
        handler=service_handlers.overview,
        summary="All there is",
        answer=api.Overview,
    ),
    ApiRoute(
        method="POST",
        path="/admin/drain",
        name="drain",
        access="admin",
        handler=service_handlers.drain,
        summary="The service begins to take nothing more",
        body=_json(Empty),
        answer=api.Health,
        status=202,
    ),
)
