"""
Simulates the owner of the service, who makes deposits and changes prices and tokens.

The holder of a revoked token goes on to use it, and must always be refused.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import aclosing

from bursar.model.errors import SiteError
from bursar.model.money import Pricing
from bursar.remote import routes
from bursar.remote.admin_messages import NewToken, TokenInfo
from bursar.remote.async_client import AsyncServiceClient
from bursar.remote.calls import request
from bursar.remote.connection import ServiceConnection
from bursar.remote.http_transport import RemoteProblem
from bursar.service.interfaces import Clock, Scope
from bursar_devtools.faults.agreement_checker import AgreementChecker
from bursar_devtools.faults.event_trace import EventTrace
from bursar_devtools.faults.invariant_checker import UNDER_WAY, InvariantChecker

USER_SCOPES: list[Scope] = ["submit", "read"]

_PARTY = "admin"
_UNAUTHENTICATED = 401
_NOT_FOUND = 404
_AGAIN = 10.0
"""Mean seconds between two uses of a token that was revoked, or will expire."""

_JUMPS = 5.0
"""Seconds by which the service's clock may change at a restart, with a margin."""

_OVERDUE = 60.0
"""Seconds for which an expired token is still tried."""


class ServiceOwner:
    """
    Administers the service through the real client, and is never killed.

    Parameters
    ----------
    client
        Client with an administrator's token.
    connection
        Connection for requests that the client has no method for.
    chance
        Random source of prices.
    contracts
        Checks prices.
    trace
        Records the owner's actions.
    """

    def __init__(
        self,
        client: AsyncServiceClient,
        connection: ServiceConnection,
        *,
        chance: random.Random,
        contracts: AgreementChecker,
        trace: EventTrace,
    ) -> None:
        self._client = client
        self._connection = connection
        self._chance = chance
        self._contracts = contracts
        self._trace = trace

    async def deposit(self, user: str, amount: int, key: str) -> None:
        """Deposit micro-units into a user's account."""
        await self._client.deposit(user, amount, key)

    async def reprice(self) -> None:
        """Change the price; done once only, as a delayed repetition would undo the next change."""
        price = self._contracts.prices[0] * self._chance.choice((0.5, 2.0))
        self._contracts.reprices(price)
        await self._connection.call(request(routes.REPRICE, body=Pricing(price)))
        self._contracts.repriced()
        self._trace.note(_PARTY, f"asks {price:g} from now on")

    async def make_token(self, user: str, seconds: float | None = None) -> TokenInfo:
        """
        Create a token for a user; a lost answer leaves one that nobody knows.

        Parameters
        ----------
        seconds
            Lifetime of the token; None for no expiry.
        """
        new = NewToken(user=user, scopes=USER_SCOPES, seconds=seconds)
        while True:
            try:
                made = await self._client.create_token(new)
            except SiteError:
                await asyncio.sleep(1.0)
            else:
                self._trace.note(_PARTY, f"has another token for {user}")
                return made

    async def revoke(self, token: str) -> None:
        """Revoke a token."""
        try:
            await self._client.revoke_token(token.split("_")[1])
        except RemoteProblem as problem:
            if problem.status != _NOT_FOUND:  # the same request may have come twice
                raise


class StaleTokenUser:
    """
    Goes on to use a token that was revoked or has expired.

    Parameters
    ----------
    client
        Client with that token.
    now
        Returns virtual seconds.
    chance
        Random source of the times of requests.
    checker
        Notified when a revoked token is accepted.
    prompt
        Whether messages arrive soon.
    server_clock
        The service's clock, seconds since the epoch.
    """

    def __init__(
        self,
        user: str,
        client: AsyncServiceClient,
        *,
        now: Clock,
        chance: random.Random,
        checker: InvariantChecker,
        prompt: bool,
        server_clock: Clock,
    ) -> None:
        self._server_clock = server_clock
        self._user = user
        self._client = client
        self._now = now
        self._chance = chance
        self._checker = checker
        self._prompt = prompt
        self._revoked: float | None = None

    def revoked(self) -> None:
        """Record that the revocation was acknowledged."""
        self._revoked = self._now()

    async def listen(self, handle: Callable[[], str]) -> None:
        """Follow an instance's events from the creation until the service refuses."""
        while not handle():
            await asyncio.sleep(1.0)
        try:
            async with aclosing(self._client.events(handle())) as events:
                async for _ in events:
                    if (
                        self._prompt
                        and self._revoked is not None
                        and self._now() > self._revoked + UNDER_WAY
                    ):
                        self._wrong("is told of an instance")
        except RemoteProblem as problem:
            if problem.status not in (_UNAUTHENTICATED, _NOT_FOUND):
                raise

    async def wear_out(self, expires: float) -> None:
        """
        Use a token until the expiry, and for some time after.

        Parameters
        ----------
        expires
            Expiry by the service's clock, seconds since the epoch.
        """
        while self._server_clock() < expires + _OVERDUE:
            await asyncio.sleep(self._chance.expovariate(1 / _AGAIN))
            asked = self._server_clock()
            try:
                await self._client.instances()
            except RemoteProblem as problem:
                if problem.status != _UNAUTHENTICATED:
                    raise
                if self._server_clock() < expires - _JUMPS:
                    self._checker.wrong(self._user, "is refused by a token before it expires")
            else:
                if asked > expires + _JUMPS:
                    self._checker.wrong(self._user, "is let in by a token that has expired")

    async def insist(self) -> None:
        """Use the revoked token again and again, without an end."""
        while True:
            await asyncio.sleep(self._chance.expovariate(1 / _AGAIN))
            await self.try_it()

    async def try_it(self) -> None:
        """Use the revoked token once, which must fail."""
        try:
            await self._client.instances()
        except RemoteProblem as problem:
            if problem.status == _UNAUTHENTICATED:
                return
        self._wrong("is let in")

    def _wrong(self, what: str) -> None:
        self._checker.wrong(self._user, f"{what} by a token whose revocation was acknowledged")
