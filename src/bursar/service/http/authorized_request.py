"""A request that has been let in, as its handler sees it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from bursar.service.http.concurrency import DynamicThreshold
from bursar.service.http.dependencies import ApiDependencies
from bursar.service.http.file_store import FileStore
from bursar.service.http.http_limits import HttpLimits
from bursar.service.interfaces import Principal, ServiceError

T = TypeVar("T")

LONGEST_KEY = 200
"""Characters of an idempotency key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizedRequest:
    """
    A request.

    Parameters
    ----------
    path
        What stands in the place of each name in the route's path.
    headers
        By name in lower case.
    pieces
        Of its body, for routes that take it piece by piece; more than so many bytes raise
        ServiceError 413.
    kind
        Media type of its body, without parameters; empty: it names none.
    over
        Makes what is done once the client is gone, or the service keeps nobody waiting any more.
    answers
        Room for what users have asked for and not taken yet.
    document
        The OpenAPI document.
    """

    parts: ApiDependencies
    file_store: FileStore
    principal: Principal
    path: Mapping[str, Any]
    headers: Mapping[str, str]
    kind: str
    pieces: Callable[[int], AsyncIterator[bytes]]
    over: Callable[[], "asyncio.Future[None]"]
    answers: DynamicThreshold
    document: bytes

    @property
    def user(self) -> str:
        """Who asks."""
        return self.principal.user

    @property
    def limits(self) -> HttpLimits:
        """How much who asks may."""
        return self.parts.limits_of(self.user)

    @property
    def handle(self) -> str:
        """The instance it is about."""
        handle: str = self.path["id"]
        return handle

    @property
    def key(self) -> str:
        """
        Its idempotency key; empty: none.

        Raises
        ------
        ServiceError
            When it is too long or holds odd characters.
        """
        key = self.headers.get("idempotency-key", "")
        if len(key) > LONGEST_KEY or not key.isascii() or not (key.isprintable() or not key):
            raise ServiceError(
                "bad-value",
                400,
                f"expected at most {LONGEST_KEY} plain characters",
                where="Idempotency-Key",
            )
        return key

    async def until_over(self, work: Coroutine[Any, Any, T]) -> T | None:
        """What comes of it; None when the request is over before."""
        doing = asyncio.ensure_future(work)
        over = self.over()
        try:
            await asyncio.wait((doing, over), return_when=asyncio.FIRST_COMPLETED)
            return doing.result() if doing.done() else None
        finally:
            doing.cancel()
            over.cancel()
            await asyncio.gather(doing, over, return_exceptions=True)
