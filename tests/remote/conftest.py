"""A loop on virtual time, and services that answer as a test wants."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import httpx
import pytest

from bursar.remote.async_client import AsyncServiceClient
from bursar.simulation.virtual_loop import VirtualLoop

T = TypeVar("T")

Handler = Callable[[httpx.Request], httpx.Response]


class Line(httpx.AsyncBaseTransport):
    """
    A way to a service that is a function.

    Parameters
    ----------
    handler
        Answers a request, or raises what goes wrong on the way.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.requests: list[httpx.Request] = []
        self.times: list[float] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answers."""
        await request.aread()
        self.requests.append(request)
        self.times.append(asyncio.get_running_loop().time())
        return self._handler(request)


def simulated(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns on virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def client_of(handler: Handler | Line, **options: Any) -> AsyncServiceClient:
    """A client of a service that is a function."""
    line = handler if isinstance(handler, Line) else Line(handler)
    return AsyncServiceClient("https://site.example.org", transport=line, **options)


@pytest.fixture
def notices() -> list[str]:
    """Lines told to people."""
    return []
