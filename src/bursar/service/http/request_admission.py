"""Who is let in, and how often."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from bursar.dispatch.subnet import subnet_of
from bursar.service.http.concurrency import ConcurrencyLimit
from bursar.service.http.dependencies import ApiDependencies
from bursar.service.http.http_limits import HttpLimits
from bursar.service.http.request import HttpRequest
from bursar.service.http.responses import ByteStream
from bursar.service.http.routes import ApiRoute, RouteAccess
from bursar.service.http.token_buckets import RateLimit, TokenBuckets
from bursar.service.interfaces import Principal, ServiceError

ANONYMOUS = Principal(user="", scopes=frozenset(), means="")


class RequestAdmission:
    """
    Lets requests in.

    Parameters
    ----------
    parts
        What lies behind the API.
    """

    def __init__(self, parts: ApiDependencies) -> None:
        limits, own = parts.limits, _limits_by_user(parts.own_limits)
        self._authenticator = parts.authenticator
        self._scrapers = parts.scrapers
        self._users = TokenBuckets(limits.rate, limits.burst, parts.clock, own=own.paces)
        self._strangers = TokenBuckets(limits.stranger_rate, limits.stranger_burst, parts.clock)
        self._failures = TokenBuckets(limits.failure_rate, limits.failure_burst, parts.clock)
        self._requests = ConcurrencyLimit(limits.requests, own.requests)
        self._streams = ConcurrencyLimit(limits.streams, own.streams)

    def relimit(self, limits: HttpLimits, own_limits: Mapping[str, HttpLimits]) -> None:
        """How often, and how many at a time, from now on."""
        own = _limits_by_user(own_limits)
        self._users.set_pace(limits.rate, limits.burst, own.paces)
        self._strangers.set_pace(limits.stranger_rate, limits.stranger_burst, {})
        self._failures.set_pace(limits.failure_rate, limits.failure_burst, {})
        self._requests.set_most(limits.requests, own.requests)
        self._streams.set_most(limits.streams, own.streams)

    def know(self, request: HttpRequest, route: ApiRoute) -> Principal:
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
            return ANONYMOUS
        try:
            return self._authenticator.authenticate(
                request.headers, request.certificate, request.peer
            )
        except ServiceError:
            wait = self._failures.take(subnet_of(request.peer))
            if wait:
                raise _too_many_requests(
                    "too many failed attempts from this address", wait
                ) from None
            raise

    def still_knows(self, request: HttpRequest, principal: Principal) -> bool:
        """Whether somebody is who a request has shown: tokens and certificates are taken back."""
        try:
            return principal == self._authenticator.authenticate(
                request.headers, request.certificate, request.peer
            )
        except ServiceError:
            return False

    def let_in(self, principal: Principal, route: ApiRoute, held: ExitStack) -> None:
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
            raise _too_many_requests("too many requests", wait)
        if not self._may(principal, route.access):
            detail = f"this takes the scope {_scope_of(route.access)}"
            raise ServiceError("forbidden", 403, detail)
        _limit_concurrency(self._requests, principal, held)

    def let_stream(self, principal: Principal, held: ExitStack) -> None:
        """
        A place for a stream that goes on, for as long as ``held`` lasts.

        Raises
        ------
        ServiceError
            429, when there is none.
        """
        _limit_concurrency(self._streams, principal, held)

    def count_stranger(self, request: HttpRequest) -> None:
        """
        Counts a request that needs no identity.

        Raises
        ------
        ServiceError
            429, when there are too many.
        """
        wait = self._strangers.take(subnet_of(request.peer))
        if wait:
            raise _too_many_requests("too many requests from this address", wait)

    def _may(self, principal: Principal, access: RouteAccess) -> bool:
        if access == "scrape":
            named = principal.user in self._scrapers
            return "admin" in principal.scopes or (named and "read" in principal.scopes)
        return access in principal.scopes


class AuthorizedStream:
    """
    What goes on to be told, until who asked for it may not hear it any more.

    Parameters
    ----------
    pieces
        What is told.
    is_known
        Whether it still may be; asked before each piece.
    """

    def __init__(self, pieces: ByteStream, is_known: Callable[[], bool]) -> None:
        self._pieces = pieces
        self._is_known = is_known

    def __aiter__(self) -> "AuthorizedStream":
        return self

    async def __anext__(self) -> bytes:
        piece = await anext(self._pieces)
        if not self._is_known():
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        """Nobody wants more."""
        await self._pieces.aclose()


@dataclass(frozen=True, slots=True)
class _UserLimits:
    paces: dict[str, RateLimit]
    requests: dict[str, int]
    streams: dict[str, int]


def _limits_by_user(limits: Mapping[str, HttpLimits]) -> _UserLimits:
    """Of users who have others than all."""
    return _UserLimits(
        paces={user: RateLimit(mine.rate, mine.burst) for user, mine in limits.items()},
        requests={user: mine.requests for user, mine in limits.items()},
        streams={user: mine.streams for user, mine in limits.items()},
    )


def _scope_of(access: RouteAccess) -> str:
    return '"admin"' if access == "scrape" else f'"{access}"'


def _limit_concurrency(room: ConcurrencyLimit, principal: Principal, held: ExitStack) -> None:
    if not room.enter(principal.user):
        raise _too_many_requests("too many requests are under way", 1.0)
    held.callback(room.leave, principal.user)


def _too_many_requests(why: str, wait: float) -> ServiceError:
    return ServiceError("too-many", 429, why, retry_after=wait)
