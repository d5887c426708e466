"""A request that has passed admission, as the handler sees the request."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from bursar.service.files.file_store import FileStore
from bursar.service.http.dependencies import ApiDependencies
from bursar.service.http.limiters import DynamicThreshold
from bursar.service.http.request import HttpRequest
from bursar.service.http_limits import HttpLimits
from bursar.service.interfaces import Principal, ServiceError
from bursar.supervisor import TaskSupervisor

T = TypeVar("T")

LONGEST_KEY = 200
"""Characters of an idempotency key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizedRequest:
    """
    A request whose sender is authenticated and may use the route.

    Parameters
    ----------
    path
        Values of the path's variables, by name.
    request
        The request as it was received, with a body that the handler may read piece by piece.
    over
        Returns when the client has disconnected or the service ends all waiting; has a task of
        its own.
    answers
        Memory for replies that users have requested and not yet read.
    document
        The OpenAPI document.
    """

    service: ApiDependencies
    file_store: FileStore
    principal: Principal
    path: Mapping[str, Any]
    request: HttpRequest
    over: Callable[[], Coroutine[Any, Any, None]]
    answers: DynamicThreshold
    document: bytes

    @property
    def user(self) -> str:
        """Name of the user who sent the request."""
        return self.principal.user

    @property
    def limits(self) -> HttpLimits:
        """Limits that apply to the user."""
        return self.service.limits_of(self.user)

    @property
    def handle(self) -> str:
        """Handle of the instance in the path."""
        handle: str = self.path["id"]
        return handle

    @property
    def key(self) -> str:
        """
        Idempotency key of the request; empty: none.

        Raises
        ------
        ServiceError
            When it is too long or holds odd characters.
        """
        key = self.request.headers.get("idempotency-key", "")
        if len(key) > LONGEST_KEY or not key.isascii() or not (key.isprintable() or not key):
            raise ServiceError(
                "bad-value",
                400,
                f"expected at most {LONGEST_KEY} plain characters",
                where="Idempotency-Key",
            )
        return key

    async def until_over(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of a coroutine; None if the request is over first."""
        async with TaskSupervisor() as tasks:
            doing = tasks.start(work)
            over = tasks.start(self.over())
            await asyncio.wait((doing, over), return_when=asyncio.FIRST_COMPLETED)
            # A result that came at the same moment as the end is not lost.
            return doing.result() if doing.done() else None
