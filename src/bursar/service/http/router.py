"""Finds the route of a path."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bursar.service.http.routes import PATH_VALUES, ROUTES, ApiRoute


@dataclass(slots=True)
class _RouteNode:
    """A node of the tree of path parts."""

    parts: dict[str, "_RouteNode"] = field(default_factory=dict)
    value: tuple[str, "_RouteNode"] | None = None
    rest: str = ""
    routes: dict[str, ApiRoute] = field(default_factory=dict)  # by method


class Router:
    """
    Finds the route of a path.

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

    def find(self, parts: list[str]) -> tuple[Mapping[str, ApiRoute], dict[str, Any]]:
        """
        Return the routes of a path, by method, and the values of its variables.

        Parameters
        ----------
        parts
            Parts of the path below the API's prefix.

        Returns
        -------
        routes : mapping
            Empty when there is nothing of this path.
        values : dict
        """
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
        node.value = (name, _RouteNode(rest=name if part.endswith("*}") else ""))
    return node.value[1]
