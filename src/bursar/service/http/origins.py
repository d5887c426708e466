"""
Refuses requests that a foreign web page makes a user's browser send.

Such a page can make the browser send requests to any address, also to a service on the same
machine. It cannot hide where it came from, nor make the browser send JSON to another host without
asking that host first.
"""

from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import urlsplit

from bursar.service.interfaces import ServiceError

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

ANY = "*"
"""Wildcard among the names: any host name is accepted."""


def check_origin(scheme: str, headers: Mapping[str, str], names: frozenset[str]) -> None:
    """
    Refuse requests to a foreign host name or from a foreign page.

    Parameters
    ----------
    scheme
        ``"http"`` or ``"https"``, as the request came.
    headers
        Values by name in lower case.
    names
        Host names of the service, besides those of the loopback interface.

    Raises
    ------
    ServiceError
        421 for a host that is not us; 403 for a page that is not ours.
    """
    host = headers.get("host", "")
    name = normalised_host(host)
    if ANY not in names and name not in LOOPBACK and name not in names:
        raise ServiceError("wrong-host", 421, "this service has no such name", where="Host")
    origin = headers.get("origin")
    if origin is not None and origin.lower() != f"{scheme}://{host.lower()}":
        raise ServiceError("wrong-origin", 403, "pages of others may not ask", where="Origin")
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise ServiceError("wrong-origin", 403, "pages of others may not ask", where="Origin")


@lru_cache(256)
def normalised_host(host: str) -> str:
    """Return a ``Host`` header's name in lower case, without port and brackets; empty: invalid."""
    try:
        parsed = urlsplit(f"//{host}")
        parsed.port  # noqa: B018 - checked by being asked for
    except ValueError:
        return ""
    odd = parsed.path or parsed.query or parsed.fragment or "@" in host
    return "" if odd else (parsed.hostname or "").removesuffix(".")
