"""
Handlers and decoders of bodies for each route of the API, and the search for a request's route.

What a route takes and answers stands in :mod:`bursar.remote.routes`; mypy holds the answer of each
handler against the table, and a test holds query and body.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import msgspec

from bursar.remote import routes
from bursar.remote.routes import JSON, NDJSON, PATH_VALUES, ApiRoute
from bursar.service.http import exchange_handlers, handlers
from bursar.service.http.http_messages import (
    HttpResponse,
    StreamingResponse,
    decoded,
    no_such_address,
)
from bursar.service.interfaces import ServiceError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiEndpoint:
    """
    The service's side of a route.

    Parameters
    ----------
    handler
        Coroutine function that handles a request. It takes an
        :class:`~bursar.service.http.http_messages.AuthorizedRequest`, and ``query`` and ``body`` if
        the route has them. It returns the value that is answered as JSON, None for an answer
        without a body, or a whole response.
    readers
        Decoders of a body that is read as a whole, by media type; empty: no such body.
    limit
        Name of the field of :class:`HttpLimits` that limits the body's bytes.
    """

    route: ApiRoute[Any]
    handler: Callable[..., Awaitable[Any]]
    readers: Mapping[str, Callable[[bytes], Any]]
    limit: str = "json_bytes"


def _endpoint(
    route: ApiRoute[T],
    handler: Callable[..., Awaitable[T | HttpResponse | StreamingResponse]],
    *,
    readers: Mapping[str, Callable[[bytes], Any]] | None = None,
    limit: str = "json_bytes",
) -> ApiEndpoint:
    """Return an endpoint; ``readers`` None: those of JSON for the type of the route's body."""
    if readers is None and route.body is not None:
        readers = {JSON: partial(decoded, msgspec.json.Decoder(route.body).decode)}
    return ApiEndpoint(route=route, handler=handler, readers=readers or {}, limit=limit)


_TASK_READERS = {JSON: handlers.read_submission, NDJSON: handlers.read_task_lines}

ENDPOINTS: tuple[ApiEndpoint, ...] = (
    _endpoint(routes.HEALTH, handlers.health),
    _endpoint(routes.READY, handlers.ready),
    _endpoint(routes.OPENAPI, handlers.document),
    _endpoint(routes.METRICS, handlers.metrics),
    _endpoint(routes.SITE, handlers.show_site),
    _endpoint(routes.CREATE_INSTANCE, handlers.create_instance),
    _endpoint(routes.INSTANCES, handlers.show_instances),
    _endpoint(routes.INSTANCE, handlers.show_instance),
    _endpoint(routes.DESTROY_INSTANCE, handlers.destroy_instance),
    _endpoint(
        routes.SUBMIT, handlers.submit_tasks, readers=_TASK_READERS, limit="submission_bytes"
    ),
    _endpoint(routes.TASKS, handlers.show_tasks),
    _endpoint(routes.CANCEL, handlers.cancel_tasks, limit="submission_bytes"),
    _endpoint(routes.RESULTS, handlers.show_results),
    _endpoint(routes.FORGET, handlers.forget_results),
    _endpoint(routes.FOLLOW_INSTANCE, handlers.follow_instance),
    _endpoint(routes.RUNNING_OUTPUT, handlers.show_running_output),
    _endpoint(routes.OUTPUT, handlers.show_output),
    _endpoint(routes.FILES, handlers.show_files),
    _endpoint(routes.GET_FILE, handlers.get_file),
    _endpoint(routes.PUT_FILE, handlers.put_file),
    _endpoint(routes.DELETE_FILE, handlers.delete_file),
    _endpoint(routes.PUT_ARCHIVE, handlers.put_archive),
    _endpoint(routes.COPY_FILES, handlers.copy_files),
    _endpoint(routes.TRADE, handlers.deliver),
    _endpoint(routes.AUCTIONS, handlers.auctions),
    _endpoint(routes.HEARD, handlers.heard),
    _endpoint(routes.AGREEMENTS, handlers.agreements),
    _endpoint(routes.AGREEMENT, handlers.agreement),
    _endpoint(routes.CANCEL_AGREEMENT, handlers.cancel_agreement),
    _endpoint(routes.INVOICE, handlers.invoice),
    _endpoint(routes.USAGE, handlers.usage),
    _endpoint(routes.ACCOUNT, handlers.account),
    _endpoint(routes.REPRICE, handlers.reprice),
    _endpoint(routes.PRICES, handlers.prices),
    _endpoint(routes.PRICES_AHEAD, handlers.prices_ahead),
    _endpoint(routes.REVENUE, handlers.revenue),
    _endpoint(routes.SALES, handlers.sales),
    _endpoint(routes.RESERVE, exchange_handlers.reserve),
    _endpoint(routes.HAND_OVER, exchange_handlers.hand_over, limit="submission_bytes"),
    _endpoint(routes.EXCHANGE, exchange_handlers.exchange),
    _endpoint(routes.EXCHANGE_ORDERS, exchange_handlers.orders),
    _endpoint(routes.PLACE_ORDER, exchange_handlers.place),
    _endpoint(routes.WITHDRAW_ORDER, exchange_handlers.withdraw),
    _endpoint(routes.EXCHANGE_TRADES, exchange_handlers.trades),
    _endpoint(routes.REPORT_TRADE, exchange_handlers.report),
    _endpoint(routes.TOKENS, handlers.tokens),
    _endpoint(routes.CREATE_TOKEN, handlers.create_token),
    _endpoint(routes.REVOKE_TOKEN, handlers.revoke_token),
    _endpoint(routes.DEPOSIT, handlers.deposit),
    _endpoint(routes.OVERVIEW, handlers.overview),
    _endpoint(routes.DRAIN, handlers.drain),
)


@dataclass(slots=True)
class _RouteNode:
    """A node of the tree of path parts."""

    parts: dict[str, "_RouteNode"] = field(default_factory=dict)
    value: tuple[str, "_RouteNode"] | None = None
    rest: bool = False  # whether it stands for all parts that are left
    endpoints: dict[str, ApiEndpoint] = field(default_factory=dict)  # by method


class Router:
    """Finds the endpoint of a request in a tree of path parts."""

    def __init__(self) -> None:
        self._top = _RouteNode()
        for endpoint in ENDPOINTS:
            node = self._top
            for part in endpoint.route.path.split("/")[1:]:
                node = _grown(node, part)
            node.endpoints[endpoint.route.method] = endpoint

    def find(self, method: str, parts: list[str]) -> tuple[ApiEndpoint, dict[str, Any]]:
        """
        Return the endpoint of a method and path, and the values of the path's variables.

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
        found, values = self._find(parts)
        if not found:
            raise no_such_address()
        if method not in found:
            allow = sorted(found)
            raise ServiceError("bad-method", 405, f"expected {' or '.join(allow)}", allow=allow)
        return found[method], values

    def _find(self, parts: list[str]) -> tuple[Mapping[str, ApiEndpoint], dict[str, Any]]:
        """Return the endpoints of a path, by method; none when there is nothing of this path."""
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
        return node.endpoints, values


def _grown(node: _RouteNode, part: str) -> _RouteNode:
    if not part.startswith("{"):
        return node.parts.setdefault(part, _RouteNode())
    name = part.strip("{}").removesuffix("*")
    if node.value is None:
        node.value = (name, _RouteNode(rest=part.endswith("*}")))
    return node.value[1]
