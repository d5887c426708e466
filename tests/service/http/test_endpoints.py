"""One table of routes for the service and its clients."""

import ast
import inspect
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest

from bursar.remote import calls, routes
from bursar.remote.calls import ApiCall, request
from bursar.remote.routes import NDJSON, PATH_VALUES, ROUTES, ApiRoute
from bursar.service.http.endpoints import ENDPOINTS, ApiEndpoint, Router

SOURCES = Path(calls.__file__).parents[1]

BY_PIECES = {"put-file", "put-archive"}
"""Routes whose handlers read the body piece by piece."""

SAMPLES: dict[str, Any] = {"id": "some", "task": 3, "stream": "stdout", "name": "a/b c"}


async def bytes_of() -> AsyncGenerator[bytes, None]:
    """Return no bytes."""
    yield b""


def named(endpoint: ApiEndpoint) -> str:
    return endpoint.route.name


def values_of(route: ApiRoute[Any]) -> dict[str, Any]:
    """Return a value for each variable of a route's path, in order."""
    parts = [part.strip("{}*") for part in route.path.split("/") if part.startswith("{")]
    return {name: SAMPLES.get(name, "one") for name in parts}


def test_the_service_handles_each_route_once() -> None:
    """A route without a handler would be in the document and answer 404."""
    assert [endpoint.route for endpoint in ENDPOINTS] == list(ROUTES)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=named)
def test_a_handler_takes_what_its_route_says(endpoint: ApiEndpoint) -> None:
    """Query and body reach the handler in the types that the document shows."""
    route = endpoint.route
    hints = get_type_hints(endpoint.handler, include_extras=True)

    assert hints.get("query") == route.query
    assert ("body" in hints) == (route.body is not None) == bool(endpoint.readers)
    if NDJSON not in endpoint.readers:
        assert hints.get("body") == route.body
    assert (not route.body and bool(route.body_kinds)) == (route.name in BY_PIECES)
    if endpoint.readers:
        assert tuple(endpoint.readers) == route.body_kinds


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_what_a_client_asks_finds_its_route(route: ApiRoute[Any]) -> None:
    """Path and method of a request lead the service to the same line of the table."""
    values = values_of(route)
    call = request(route, *values.values())

    path = [part.replace("%20", " ") for part in call.path.split("/")[1:]]
    endpoint, found = Router().find(call.method, path)

    assert endpoint.route is route
    assert found == values
    assert set(values) <= set(PATH_VALUES)


def test_every_request_of_the_client_is_built_from_the_table() -> None:
    """No builder makes a request of its own, with a path that the service might not have."""
    tree = ast.parse(inspect.getsource(calls))
    makers = [
        function.name
        for function in tree.body
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == ApiCall.__name__
    ]

    assert makers == ["request"]


@pytest.mark.parametrize(
    ("call", "route"),
    [
        (calls.tasks("some", 1, 2), routes.TASKS),
        (calls.results("some", 1, wait=3.0), routes.RESULTS),
        (calls.result_stream("some", 1), routes.RESULTS),
        (calls.forget("some", 1), routes.FORGET),
        (calls.files("some", "a", 2), routes.FILES),
        (calls.put_file("some", "a", bytes_of, 0, executable=True), routes.PUT_FILE),
        (calls.invoice(1.0, 2.0), routes.INVOICE),
    ],
    ids=lambda value: value.name if isinstance(value, ApiRoute) else "",
)
def test_parameters_of_a_request_are_those_of_its_route(
    call: ApiCall[Any], route: ApiRoute[Any]
) -> None:
    """A parameter by another name would be refused, though it is what the user meant."""
    assert route.query is not None
    decoded = msgspec.convert(dict(call.query), route.query, strict=False)

    assert {name for name in call.query if getattr(decoded, name) is not None} == set(call.query)


def test_paths_of_the_api_stand_in_the_table_only() -> None:
    """A path that is written twice can differ from itself."""
    heads = {route.path.split("{")[0].rstrip("/") for route in ROUTES}
    found = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        if any(head in path.read_text() for head in heads)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if node.value.rstrip("/") in heads or node.value.partition(" ")[2] in heads
    }

    assert found == {"remote/routes.py"}
