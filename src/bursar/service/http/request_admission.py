"""Authenticates requests, and limits the rate and number of requests."""

from collections.abc import Callable
from contextlib import ExitStack

from bursar.dispatch.subnet import subnet_of
from bursar.service.http.dependencies import ApiDependencies
from bursar.service.http.limiters import ConcurrencyLimit, TokenBuckets
from bursar.service.http.request import HttpRequest
from bursar.service.http.responses import ByteStream
from bursar.service.http.routes import ApiRoute, RouteAccess
from bursar.service.interfaces import Principal, ServiceError

ANONYMOUS = Principal(user="", scopes=frozenset(), means="")


class RequestAdmission:
    """
    Decides which requests are handled.

    Parameters
    ----------
    service
        Components of the service, limits and clock.
    """

    def __init__(self, service: ApiDependencies) -> None:
        self._service = service
        self._users = TokenBuckets(self._pace_of_user, service.clock)
        self._unauthenticated = TokenBuckets(self._pace_of_unauthenticated, service.clock)
        self._failures = TokenBuckets(self._pace_of_failures, service.clock)
        self._requests = ConcurrencyLimit(lambda user: self._service.limits_of(user).requests)
        self._streams = ConcurrencyLimit(lambda user: self._service.limits_of(user).streams)

    def relimit(self, service: ApiDependencies) -> None:
        """Set the components with the limits that hold from now on."""
        self._service = service

    def authenticate(self, request: HttpRequest, route: ApiRoute) -> Principal:
        """
        Return the sender of a request.

        Raises
        ------
        ServiceError
            401 or 403, or 429 after too many of these from one address. Valid credentials are
            still accepted from that address: otherwise one client could lock out all that share
            the address, and tokens cannot be guessed at any rate.
        """
        if route.access == "public":
            self.count_unauthenticated(request)
            return ANONYMOUS
        try:
            return self._service.authenticator.authenticate(
                request.headers, request.certificate, request.peer
            )
        except ServiceError:
            # Counted by subnet: a client may change its address within its own at will.
            wait = self._failures.take(subnet_of(request.peer))
            if wait:
                raise _too_many_requests(
                    "too many failed attempts from this address", wait
                ) from None
            raise

    def is_still_valid(self, request: HttpRequest, principal: Principal) -> bool:
        """Return whether a request's credentials are still valid: they can be revoked."""
        try:
            return principal == self._service.authenticator.authenticate(
                request.headers, request.certificate, request.peer
            )
        except ServiceError:
            return False

    def admit(self, principal: Principal, route: ApiRoute, held: ExitStack) -> None:
        """
        Check scope and rate of a sender and count the request while ``held`` lasts.

        Raises
        ------
        ServiceError
            403 when the sender lacks the scope; 429 when the sender has too many requests.
        """
        if route.access == "public":
            return
        wait = self._users.take(principal.user)
        if wait:
            raise _too_many_requests("too many requests", wait)
        # After the rate: requests that are refused for their scope cost a token, too.
        if not self._may(principal, route.access):
            detail = f"this takes the scope {_scope_of(route.access)}"
            raise ServiceError("forbidden", 403, detail)
        _hold_one(self._requests, principal, held)

    def admit_stream(self, principal: Principal, held: ExitStack) -> None:
        """
        Count an open stream of a sender while ``held`` lasts.

        Raises
        ------
        ServiceError
            429 when the sender has too many streams.
        """
        _hold_one(self._streams, principal, held)

    def count_unauthenticated(self, request: HttpRequest) -> None:
        """
        Count an unauthenticated request of an address.

        Raises
        ------
        ServiceError
            429 when the address has sent too many.
        """
        wait = self._unauthenticated.take(subnet_of(request.peer))
        if wait:
            raise _too_many_requests("too many requests from this address", wait)

    def _may(self, principal: Principal, access: RouteAccess) -> bool:
        if access == "scrape":
            named = principal.user in self._service.scrapers
            return "admin" in principal.scopes or (named and "read" in principal.scopes)
        return access in principal.scopes

    def _pace_of_user(self, user: str) -> tuple[float, float]:
        limits = self._service.limits_of(user)
        return limits.rate, limits.burst

    def _pace_of_unauthenticated(self, subnet: str) -> tuple[float, float]:
        return self._service.limits.unauthenticated_rate, self._service.limits.unauthenticated_burst

    def _pace_of_failures(self, subnet: str) -> tuple[float, float]:
        return self._service.limits.failure_rate, self._service.limits.failure_burst


class AuthorizedStream:
    """
    A stream that ends when the receiver's credentials cease to be valid.

    Parameters
    ----------
    is_valid
        Returns whether the credentials are still valid; called after each piece is read and before
        it is sent.
    """

    def __init__(self, pieces: ByteStream, is_valid: Callable[[], bool]) -> None:
        self._pieces = pieces
        self._is_valid = is_valid

    def __aiter__(self) -> "AuthorizedStream":
        return self

    async def __anext__(self) -> bytes:
        piece = await anext(self._pieces)
        if not self._is_valid():
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        """Close the stream."""
        await self._pieces.aclose()


def _scope_of(access: RouteAccess) -> str:
    return '"admin"' if access == "scrape" else f'"{access}"'


def _hold_one(limit: ConcurrencyLimit, principal: Principal, held: ExitStack) -> None:
    if not limit.enter(principal.user):
        raise _too_many_requests("too many requests are under way", 1.0)
    held.callback(limit.leave, principal.user)


def _too_many_requests(why: str, wait: float) -> ServiceError:
    return ServiceError("too-many", 429, why, retry_after=wait)
