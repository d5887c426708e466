"""Who is let in, and how often."""

from contextlib import ExitStack

from bursar.service.http.limits import Buckets, Pace, Room, neighbourhood
from bursar.service.http.parts import Parts
from bursar.service.http.request import Request
from bursar.service.http.routes import Access, Route
from bursar.service.parties import Principal, ServiceError

NOBODY = Principal(user="", scopes=frozenset(), means="")


class Gate:
    """
    Lets requests in.

    Parameters
    ----------
    parts
        What lies behind the API.
    """

    def __init__(self, parts: Parts) -> None:
        limits = parts.limits
        self._authenticator = parts.authenticator
        self._scrapers = parts.scrapers
        own = parts.own_limits
        paces = {user: Pace(mine.rate, mine.burst) for user, mine in own.items()}
        self._users = Buckets(limits.rate, limits.burst, parts.clock, own=paces)
        self._strangers = Buckets(limits.stranger_rate, limits.stranger_burst, parts.clock)
        self._failures = Buckets(limits.failure_rate, limits.failure_burst, parts.clock)
        self._requests = Room(limits.requests, {user: mine.requests for user, mine in own.items()})
        self._streams = Room(limits.streams, {user: mine.streams for user, mine in own.items()})

    def know(self, request: Request, route: Route) -> Principal:
        """
        Who sends a request.

        Raises
        ------
        ServiceError
            401 or 403, or 429 after too many of these from one address. Who is somebody is let
            in from there nonetheless: else anybody could keep out all that share an address,
            and secrets are not to be guessed at any rate.
        """
        if route.access == "public":
            self.count_stranger(request)
            return NOBODY
        try:
            return self._authenticator.authenticate(
                request.headers, request.certificate, request.peer
            )
        except ServiceError:
            wait = self._failures.take(neighbourhood(request.peer))
            if wait:
                raise _too_often("too many failed attempts from this address", wait) from None
            raise

    def let_in(self, principal: Principal, route: Route, held: ExitStack) -> None:
        """
        Checks that somebody may ask this, now; a place is taken for as long as ``held`` lasts.

        Raises
        ------
        ServiceError
            403, when it may not; 429, when not now.
        """
        if route.access == "public":
            return
        wait = self._users.take(principal.user)
        if wait:
            raise _too_often("too many requests", wait)
        if not self._may(principal, route.access):
            detail = f"this takes the scope {_scope_of(route.access)}"
            raise ServiceError("forbidden", 403, detail)
        _take_place(self._requests, principal, held)

    def let_stream(self, principal: Principal, held: ExitStack) -> None:
        """
        A place for a stream that goes on, for as long as ``held`` lasts.

        Raises
        ------
        ServiceError
            429, when there is none.
        """
        _take_place(self._streams, principal, held)

    def count_stranger(self, request: Request) -> None:
        """
        Counts a request that needs no identity.

        Raises
        ------
        ServiceError
            429, when there are too many.
        """
        wait = self._strangers.take(neighbourhood(request.peer))
        if wait:
            raise _too_often("too many requests from this address", wait)

    def _may(self, principal: Principal, access: Access) -> bool:
        if access == "scrape":
            named = principal.user in self._scrapers
            return "admin" in principal.scopes or (named and "read" in principal.scopes)
        return access in principal.scopes


def _scope_of(access: Access) -> str:
    return '"admin"' if access == "scrape" else f'"{access}"'


def _take_place(room: Room, principal: Principal, held: ExitStack) -> None:
    if not room.enter(principal.user):
        raise _too_often("too many requests are under way", 1.0)
    held.callback(room.leave, principal.user)


def _too_often(why: str, wait: float) -> ServiceError:
    return ServiceError("too-many", 429, why, retry_after=wait)
