"""
The table of all routes of the API, and the search for the route of a request.

Routing, authorisation and the OpenAPI document are made from the table, and the tests go through
all of its routes. What a route takes and answers stands in the signature of its handler, where
mypy checks it.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec
from msgspec import Meta

from bursar.market.trade_messages import AnyMessage
from bursar.remote import messages as api
from bursar.service.files import archives
from bursar.service.http import handlers
from bursar.service.http.request import no_such_address
from bursar.service.http.responses import (
    BYTES,
    EVENTS,
    JSON,
    NDJSON,
    HttpResponse,
    StreamingResponse,
    decoded,
)
from bursar.service.interfaces import ServiceError

# The table of all routes of the API.

RouteAccess = Literal["public", "read", "submit", "sell", "admin", "scrape"]
"""
Who may use a route: anybody, unauthenticated (``public``); users with the scope of this name; and
for the metrics (``scrape``) administrators, and users with ``read`` whom the configuration names.
"""

Handler = Callable[..., Awaitable[Any]]
"""
Handles a request: a coroutine function whose signature says what the route takes and answers.

It takes an :class:`~bursar.service.http.request.AuthorizedRequest`, and ``query`` and
``body`` if the route has them. It returns the value that is answered as JSON, None for an answer
without a body, or a whole response.
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
"""Types of the variables in paths; a path with a value of another type is unknown (404)."""


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
        Name of the field of :class:`HttpLimits` that limits the body's bytes.
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
        Type of the query string; None: no query string allowed.
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


def _route(operation: str, name: str, handler: Handler, **more: Any) -> ApiRoute:
    """
    Return a route whose query, body and answer have the types of the handler's signature.

    Parameters
    ----------
    operation
        Method and path.
    more
        Other fields of the route. A body or an answer among them takes the place of the one in the
        signature: for a body with decoders or a limit of its own, and for a handler that returns
        a whole response.
    """
    method, _, path = operation.partition(" ")
    types = get_type_hints(handler, include_extras=True)
    more.setdefault("query", types.get("query"))
    if "body" in types and "body" not in more:
        more["body"] = _json(types["body"])
    answer = types["return"]
    if answer is NoneType:
        more["status"] = 204
    elif not _is_response(answer):
        more.setdefault("answer", answer)
    return ApiRoute(method=method, path=path, name=name, handler=handler, **more)


def _is_response(answer: Any) -> bool:
    return not {HttpResponse, StreamingResponse}.isdisjoint(get_args(answer) or (answer,))


_SUBMISSION = RequestBody(
    api.Submission,
    {JSON: handlers.read_submission, NDJSON: handlers.read_task_lines},
    "submission_bytes",
)

_INSTANCE = "/instances/{id}"
_KEY = "Idempotency-Key"

ROUTES: tuple[ApiRoute, ...] = (
    _route(
        "GET /health",
        "health",
        access="public",
        handler=handlers.health,
        summary="Whether the service lives",
    ),
    _route(
        "GET /ready",
        "ready",
        access="public",
        handler=handlers.ready,
        summary="Whether it takes work; 503 when it does not",
        answer=api.Health,
    ),
    _route(
        "GET /openapi.json",
        "openapi",
        access="public",
        handler=handlers.document,
        summary="This document",
        answer=dict[str, Any],
    ),
    _route(
        "GET /metrics",
        "metrics",
        access="scrape",
        handler=handlers.metrics,
        summary="Measures, in the text format of Prometheus",
        kinds=("text/plain",),
    ),
    _route(
        "GET /site",
        "site",
        access="read",
        handler=handlers.show_site,
        summary="Facts and free slots",
    ),
    # Instances.
    _route(
        "POST /instances",
        "create-instance",
        access="submit",
        handler=handlers.create_instance,
        summary="A new instance",
        answer=api.InstanceInfo,
        status=201,
        headers=(_KEY,),
    ),
    _route(
        "GET /instances",
        "instances",
        access="read",
        handler=handlers.show_instances,
        summary="The caller's instances",
    ),
    _route(
        f"GET {_INSTANCE}",
        "instance",
        access="read",
        handler=handlers.show_instance,
        summary="An instance",
    ),
    _route(
        f"DELETE {_INSTANCE}",
        "destroy-instance",
        access="submit",
        handler=handlers.destroy_instance,
        summary="Its tasks are killed, and all of it is forgotten",
    ),
    _route(
        f"POST {_INSTANCE}/tasks",
        "submit",
        access="submit",
        handler=handlers.submit_tasks,
        summary="Adds tasks; they are durable when this is answered",
        body=_SUBMISSION,
        status=202,
        headers=(_KEY,),
    ),
    _route(
        f"GET {_INSTANCE}/tasks",
        "tasks",
        access="read",
        handler=handlers.show_tasks,
        summary="Where tasks stand",
    ),
    _route(
        f"POST {_INSTANCE}/cancel",
        "cancel",
        access="submit",
        handler=handlers.cancel_tasks,
        summary="Tasks are not wanted any more; each still has a result",
        body=_json(api.CancelRequest, "submission_bytes"),
    ),
    # Results.
    _route(
        f"GET {_INSTANCE}/results",
        "results",
        access="read",
        handler=handlers.show_results,
        summary="Results after a cursor, as a page, lines, or a stream of lines",
        answer=api.ResultPage,
        kinds=(JSON, NDJSON),
    ),
    _route(
        f"DELETE {_INSTANCE}/results",
        "forget",
        access="submit",
        handler=handlers.forget_results,
        summary="The client has the results up to a cursor: they go",
    ),
    _route(
        f"GET {_INSTANCE}/events",
        "events",
        access="read",
        handler=handlers.follow_instance,
        summary="The instance whenever it has changed, as server-sent events",
        kinds=(EVENTS,),
        headers=("Last-Event-ID",),
    ),
    _route(
        f"GET {_INSTANCE}/tasks/{{task}}/{{stream}}",
        "output",
        access="read",
        handler=handlers.show_output,
        summary="What a task printed, when that was too long for its result",
        kinds=(BYTES,),
        headers=("Range", "If-Range"),
    ),
    # Files.
    _route(
        f"GET {_INSTANCE}/files",
        "files",
        access="read",
        handler=handlers.show_files,
        summary="Files of an instance, by name",
    ),
    _route(
        f"GET {_INSTANCE}/files/{{name*}}",
        "get-file",
        access="read",
        handler=handlers.get_file,
        summary="A file's content",
        kinds=(BYTES,),
        headers=("Range", "If-Range"),
    ),
    _route(
        f"PUT {_INSTANCE}/files/{{name*}}",
        "put-file",
        access="submit",
        handler=handlers.put_file,
        summary="A file, in place of one of that name",
        pieces=("*/*",),
    ),
    _route(
        f"DELETE {_INSTANCE}/files/{{name*}}",
        "delete-file",
        access="submit",
        handler=handlers.delete_file,
        summary="A file or an empty folder goes",
    ),
    _route(
        f"POST {_INSTANCE}/archive",
        "put-archive",
        access="submit",
        handler=handlers.put_archive,
        summary="The files in a tar or zip archive, all or none",
        pieces=archives.KINDS,
    ),
    _route(
        f"POST {_INSTANCE}/copies",
        "copy-files",
        access="submit",
        handler=handlers.copy_files,
        summary="Files of another instance of the caller's, as far as they are there",
    ),
    # Money.
    _route(
        "POST /trade/messages",
        "trade",
        access="submit",
        handler=handlers.deliver,
        summary="A message of a deal; what is answered",
        answer=list[AnyMessage],
    ),
    _route(
        "GET /trade/agreements",
        "agreements",
        access="read",
        handler=handlers.agreements,
        summary="The caller's agreements",
    ),
    _route(
        "GET /trade/agreements/{agreement}",
        "agreement",
        access="read",
        handler=handlers.agreement,
        summary="An agreement",
    ),
    _route(
        "DELETE /trade/agreements/{agreement}",
        "cancel-agreement",
        access="submit",
        handler=handlers.cancel_agreement,
        summary="An agreement ends before its time",
    ),
    _route(
        "GET /trade/invoice",
        "invoice",
        access="read",
        handler=handlers.invoice,
        summary="What the caller was charged",
    ),
    _route(
        "GET /trade/usage",
        "usage",
        access="read",
        handler=handlers.usage,
        summary="What the caller was delivered, signed",
    ),
    _route(
        "GET /account",
        "account",
        access="read",
        handler=handlers.account,
        summary="The caller's account",
    ),
    _route(
        "PUT /trade/prices",
        "reprice",
        access="sell",
        handler=handlers.reprice,
        summary="What the owner asks from now on",
    ),
    _route(
        "GET /trade/sales",
        "sales",
        access="sell",
        handler=handlers.sales,
        summary="All agreements by customer, for the owner",
    ),
    # Administration.
    _route(
        "GET /admin/tokens",
        "tokens",
        access="admin",
        handler=handlers.tokens,
        summary="All tokens that are good, without their secrets",
    ),
    _route(
        "POST /admin/tokens",
        "create-token",
        access="admin",
        handler=handlers.create_token,
        summary="A new token, with its secret",
        status=201,
    ),
    _route(
        "DELETE /admin/tokens/{token}",
        "revoke-token",
        access="admin",
        handler=handlers.revoke_token,
        summary="A token is good no longer",
    ),
    _route(
        "POST /admin/accounts/{user}/deposit",
        "deposit",
        access="admin",
        handler=handlers.deposit,
        summary="Money for an account, once for a key",
    ),
    _route(
        "GET /admin/overview",
        "overview",
        access="admin",
        handler=handlers.overview,
        summary="All there is",
    ),
    _route(
        "POST /admin/drain",
        "drain",
        access="admin",
        handler=handlers.drain,
        summary="The service begins to take nothing more",
        status=202,
    ),
)


# Finds the route of a request.


@dataclass(slots=True)
class _RouteNode:
    """A node of the tree of path parts."""

    parts: dict[str, "_RouteNode"] = field(default_factory=dict)
    value: tuple[str, "_RouteNode"] | None = None
    rest: bool = False  # whether it stands for all parts that are left
    routes: dict[str, ApiRoute] = field(default_factory=dict)  # by method


class Router:
    """
    Finds the route of a request in a tree of path parts.

    Parameters
    ----------
    routes
        The table of routes.
    """

    def __init__(self, routes: tuple[ApiRoute, ...] = ROUTES) -> None:
        self._top = _RouteNode()
        for route in routes:
            node = self._top
            for part in route.path.split("/")[1:]:
                node = _grown(node, part)
            node.routes[route.method] = route

    def find(self, method: str, parts: list[str]) -> tuple[ApiRoute, dict[str, Any]]:
        """
        Return the route of a method and path, and the values of the path's variables.

        Parameters
        ----------
        method
            In upper case.
        parts
            Parts of the path below the API's prefix.

        Raises
        ------
        ServiceError
            404 when nothing has this path; 405 when the path has no such method.
        """
        routes, values = self._find(parts)
        if not routes:
            raise no_such_address()
        if method not in routes:
            allow = sorted(routes)
            raise ServiceError("bad-method", 405, f"expected {' or '.join(allow)}", allow=allow)
        return routes[method], values

    def _find(self, parts: list[str]) -> tuple[Mapping[str, ApiRoute], dict[str, Any]]:
        """Return the routes of a path, by method; none when there is nothing of this path."""
        node = self._top
        values: dict[str, Any] = {}
        for index, part in enumerate(parts):
            if part in node.parts:
                node = node.parts[part]
                continue
            if node.value is None:
                return {}, {}
            name, node = node.value
            text = "/".join(parts[index:]) if node.rest else part
            try:
                values[name] = msgspec.convert(text, PATH_VALUES[name], strict=False)
            # 404 and not 400: an instance with such a handle cannot exist.
            except msgspec.ValidationError:
                return {}, {}
            if node.rest:
                break
        return node.routes, values


def _grown(node: _RouteNode, part: str) -> _RouteNode:
    if not part.startswith("{"):
        return node.parts.setdefault(part, _RouteNode())
    name = part.strip("{}").removesuffix("*")
    if node.value is None:
        node.value = (name, _RouteNode(rest=part.endswith("*}")))
    return node.value[1]
