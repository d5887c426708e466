"""
Whom the service takes itself to be called by.

A page in a user's browser can make it send requests to any address, that of a service on the
same machine too. It cannot hide where the page came from, nor make the browser send JSON to
another host without asking that host first.
"""

from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import urlsplit

from bursar.service.interfaces import ServiceError

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

ANY = "*"
"""Among the names: whatever it is called by."""


def check_origin(scheme: str, headers: Mapping[str, str], names: frozenset[str]) -> None:
    """
    Refuses what a page of somebody else makes a browser send.

    Parameters
    ----------
    scheme
        ``"http"`` or ``"https"``.
    headers
        By name in lower case.
    names
        Of the service, besides those of the loopback interface.

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
    """The name in a ``Host`` header, in lower case, without port and brackets; empty: it is odd."""
    try:
        parsed = urlsplit(f"//{host}")
        parsed.port  # noqa: B018 - checked by being asked for
    except ValueError:
        return ""
    odd = parsed.path or parsed.query or parsed.fragment or "@" in host
    return "" if odd else (parsed.hostname or "").removesuffix(".")
