"""Finds the route of a request."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bursar.service.http.request import no_such_address
from bursar.service.http.routes import PATH_VALUES, ROUTES, ApiRoute
from bursar.service.interfaces import ServiceError


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
