"""Generates the OpenAPI document of the API from the table of routes."""

from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec

from bursar.remote import messages as api
from bursar.service.http.request import LONGEST_KEY
from bursar.service.http.responses import JSON, NDJSON, PROBLEM
from bursar.service.http.routes import PATH_VALUES, ROUTES, ApiRoute

_REF = "#/components/schemas/{name}"

_HEADERS: dict[str, dict[str, Any]] = {
    "Idempotency-Key": {"type": "string", "maxLength": LONGEST_KEY, "pattern": "^[ -~]*$"},
    "Last-Event-ID": {"type": "integer", "minimum": 0},
    "Range": {"type": "string"},
    "If-Range": {"type": "string"},
}


@cache
def document(version: str) -> bytes:
    """
    Return the OpenAPI 3.1 document as JSON.

    Parameters
    ----------
    version
        Version of the program.
    """
    types = list(dict.fromkeys(_types(ROUTES)))
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    found = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        path = api.PREFIX + route.path.replace("*}", "}")
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, found)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Bursar execution service",
                "version": version,
                "summary": "Instances, tasks and results of many users; processors for sale",
            },
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {
                    "token": {"type": "http", "scheme": "bearer"},
                    "certificate": {"type": "mutualTLS"},
                },
            },
        }
    )


def _types(routes: Iterable[ApiRoute]) -> list[Any]:
    # Types that no route names: those of errors and of the lines of NDJSON bodies.
    types: list[Any] = [api.Problem, api.Result, api.TaskSpec]
    for route in routes:
        if route.answer is not None:
            types.append(route.answer)
        if route.body is not None:
            types.append(route.body.type)
    return types


def _operation(route: ApiRoute, schemas: dict[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "parameters": _parameters(route),
        "responses": _responses(route, schemas),
    }
    if route.access != "public":
        operation["security"] = [{"token": [route.access]}, {"certificate": [route.access]}]
    if route.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {
                kind: {"schema": _lines() if kind == NDJSON else schemas[route.body.type]}
                for kind in route.body.readers
            },
        }
    elif route.pieces:
        operation["requestBody"] = {
            "required": True,
            "content": {
                kind.replace("*/*", "application/octet-stream"): {"schema": {}}
                for kind in route.pieces
            },
        }
    return operation


def _lines() -> dict[str, Any]:
    return {"type": "string", "description": "JSON, one document a line"}


def _parameters(route: ApiRoute) -> list[dict[str, Any]]:
    parameters: list[dict[str, Any]] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": msgspec.json.schema(PATH_VALUES[name]),
        }
        for part in route.path.split("/")
        if part.startswith("{")
        for name in (part.strip("{}*"),)
    ]
    if route.query is not None:
        whole = msgspec.json.schema(route.query)
        struct = whole["$defs"][route.query.__name__]
        parameters += [
            {
                "name": name,
                "in": "query",
                "required": name in struct["required"],
                "schema": schema,
            }
            for name, schema in struct["properties"].items()
        ]
    parameters += [
        {"name": name, "in": "header", "required": False, "schema": _HEADERS[name]}
        for name in route.headers
    ]
    return parameters


def _responses(route: ApiRoute, schemas: dict[Any, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for kind in route.kinds if route.status != 204 else ():
        if kind == JSON:
            content[kind] = {"schema": schemas[route.answer]}
        elif kind == NDJSON:
            content[kind] = {"schema": _lines()}
        else:
            content[kind] = {"schema": {}}
    good: dict[str, Any] = {"description": route.summary}
    if content:
        good["content"] = content
    problem = {"schema": schemas[api.Problem]}
    responses: dict[str, Any] = {str(route.status): good}
    if "Range" in route.headers:
        responses["206"] = good
    if route.name == "ready":
        responses["503"] = good
    if "Idempotency-Key" in route.headers:
        responses["422"] = {
            "description": "A value makes no sense, or the key came with other content before",
            "content": {PROBLEM: problem},
        }
    responses["default"] = {
        "description": "What went wrong (RFC 9457)",
        "content": {PROBLEM: problem},
    }
    return responses
