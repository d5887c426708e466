"""A loop on virtual time, and services that answer as a test wants."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

import pytest

from bursar.remote.async_client import AsyncServiceClient
from bursar.remote.http_transport import ClientRequest, ClientResponse
from bursar.simulation.virtual_loop import VirtualLoop

T = TypeVar("T")

Handler = Callable[[ClientRequest], ClientResponse]


class BodyWithoutConnection:
    """A body that holds no connection."""

    async def aclose(self) -> None:
        """Does nothing."""


class Line:
    """
    A way to a service that is a function.

    Parameters
    ----------
    handler
        Answers a request, or raises what goes wrong on the way.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.requests: list[ClientRequest] = []
        self.times: list[float] = []

    async def send(self, request: ClientRequest) -> ClientResponse:
        """Answers."""
        self.requests.append(replace(request, content=await request.read()))
        self.times.append(asyncio.get_running_loop().time())
        return self._handler(self.requests[-1])

    async def aclose(self) -> None:
        """Does nothing."""


def params_of(request: ClientRequest) -> dict[str, str]:
    """The parameters of a request's query."""
    return dict(parse_qsl(urlsplit(request.url).query))


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
