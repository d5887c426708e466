"""Results come once each, whatever happens to the connection."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.remote.conftest import BodyWithoutConnection, Line, client_of, params_of, simulated
from tests.thoroughness import examples

from bursar.remote.http_transport import (
    ClientRequest,
    ClientResponse,
    InvalidServiceResponse,
    RemoteProblem,
    TransportError,
)
from bursar.remote.messages import InstanceInfo, Result

ENCODE = msgspec.json.Encoder()


def line_of(cursor: int) -> bytes:
    """A result on a line."""
    return ENCODE.encode(Result(cursor=cursor, task=cursor - 1, state="succeeded")) + b"\n"


class Cut(BodyWithoutConnection):
    """
    An answer that breaks off, or ends.

    Parameters
    ----------
    data
        Its bytes, in pieces of 7.
    breaks
        Whether it breaks off then.
    """

    def __init__(self, data: bytes, breaks: bool) -> None:
        self._data = data
        self._breaks = breaks

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        for start in range(0, len(self._data), 7):
            yield self._data[start : start + 7]
        if self._breaks:
            raise TransportError("reset")


class Service:
    """
    An instance that has so many results, and a line that fails as often as it is told to.

    Parameters
    ----------
    total
        Results.
    accidents
        Of the next answers: after how many bytes each ends, and whether it breaks off; when none
        is left, all goes well.
    repeats
        Whether each answer begins a result too early.
    """

    def __init__(
        self, total: int, accidents: list[tuple[int, bool]] | None = None, repeats: bool = False
    ) -> None:
        self.total = total
        self.accidents = accidents or []
        self.repeats = repeats
        self.forgotten = 0

    def __call__(self, request: ClientRequest) -> ClientResponse:
        """Answers."""
        if request.method == "DELETE":
            self.forgotten = int(params_of(request)["through"])
            return ClientResponse(204)
        after = int(params_of(request)["after"])
        first = max(1, after + (0 if self.repeats else 1))
        follows = "follow" in params_of(request)
        last = self.total if follows else min(self.total, after + 3)
        data = b"\n".join(line_of(cursor) for cursor in range(first, last + 1))
        headers = {"Bursar-Next": str(last), "Bursar-Done": str(last == self.total).lower()}
        if self.accidents:
            size, breaks = self.accidents.pop()
            # A page that breaks off is known to: its length was told.
            breaks = breaks or not follows
            return ClientResponse(200, headers=headers, stream=Cut(data[:size], breaks))
        return ClientResponse(200, headers=headers, stream=Cut(data, False))


async def cursors(service: Service, after: int = 0, **options: Any) -> list[int]:
    """Of the results that come."""
    stream = options.pop("stream", True)
    client = client_of(service, stream=stream)
    return [result.cursor async for result in client.results("h", after, **options)]


@settings(max_examples=examples(60))
@given(
    total=st.integers(0, 30),
    after=st.integers(0, 30),
    accidents=st.lists(st.tuples(st.integers(0, 900), st.booleans()), max_size=8),
    repeats=st.booleans(),
    stream=st.booleans(),
)
def test_each_result_comes_once(
    total: int, after: int, accidents: list[tuple[int, bool]], repeats: bool, stream: bool
) -> None:
    """In order, however answers end, in the middle of a line too, and whatever is repeated."""
    after = min(after, total)
    service = Service(total, accidents, repeats)
    found = simulated(cursors(service, after, stream=stream))
    assert found == list(range(after + 1, total + 1))


def test_what_is_there_now_can_be_read_without_waiting() -> None:
    """The end is the first empty page, though more is to come."""
    requests: list[ClientRequest] = []

    def handler(request: ClientRequest) -> ClientResponse:
        requests.append(request)
        answer = Service(5)(request)
        answer.headers["bursar-done"] = "false"
        return answer

    async def collect() -> list[int]:
        return [one.cursor async for one in client_of(handler).results("h", until="now")]

    assert simulated(collect()) == [1, 2, 3, 4, 5]
    assert all(params_of(request)["wait"] == "0.0" for request in requests)


def test_who_submits_still_is_told_of_later_results() -> None:
    """The end of all that was submitted so far is not the end."""
    service = Service(2)

    async def collect() -> list[int]:
        found: list[int] = []
        async with aclosing(client_of(service).results("h", until="closed")) as results:
            async for result in results:
                found.append(result.cursor)
                if len(found) == 2:
                    asyncio.get_running_loop().call_later(100.0, setattr, service, "total", 4)
                if len(found) == 4:
                    break
        return found

    assert simulated(collect()) == [1, 2, 3, 4]


def test_a_service_that_does_not_wait_is_not_asked_without_a_pause() -> None:
    """An idle instance costs two requests a second at most."""
    line = Line(Service(0))

    async def collect() -> None:
        results = client_of(line).results("h", until="closed")
        async with aclosing(results):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(60.0):
                    await anext(results)

    simulated(collect())
    assert 50 < len(line.requests) <= 121


def test_results_are_acknowledged_once_they_were_consumed() -> None:
    """Not the one that is being looked at."""
    service = Service(10)

    async def collect() -> None:
        client = client_of(service)
        async for result in client.results("h", acknowledge=True):
            assert service.forgotten < result.cursor
            await asyncio.sleep(0.4)

    simulated(collect())
    assert service.forgotten == 10


def test_who_leaves_early_acknowledges_nothing_more() -> None:
    """What was not looked at is there the next time."""
    service = Service(10)

    async def collect() -> None:
        async with aclosing(client_of(service).results("h", acknowledge=True)) as results:
            async for result in results:
                if result.cursor == 2:
                    break

    simulated(collect())
    assert service.forgotten == 0


def test_an_instance_that_is_gone_ends_it() -> None:
    """With the service's word, not after a long time."""

    def handler(_: ClientRequest) -> ClientResponse:
        return ClientResponse(404, content=b'{"title": "Not found", "status": 404}')

    with pytest.raises(RemoteProblem, match="Not found"):
        simulated(cursors(handler))  # type: ignore[arg-type]


def test_a_stream_of_something_else_is_told() -> None:
    """Not tried for ever."""

    def handler(request: ClientRequest) -> ClientResponse:
        if "follow" in params_of(request):
            return ClientResponse(200, content=b'{"cursor": "x"}\n')
        return ClientResponse(200)

    with pytest.raises(InvalidServiceResponse):
        simulated(cursors(handler))  # type: ignore[arg-type]


def event_of(results: int) -> bytes:
    """A change, as an event."""
    return b"id: %d\ndata: %b\n\n" % (results, ENCODE.encode(InstanceInfo(id="h", results=results)))


def test_changes_go_on_where_they_broke_off() -> None:
    """The service is told what was seen last."""
    answers = [
        ClientResponse(200, stream=Cut(event_of(1) + event_of(2) + b"data: {", True)),
        ClientResponse(200, stream=Cut(b": beat\n\n" + event_of(5), False)),
        ClientResponse(200, stream=Cut(event_of(6), False)),
    ]
    line = Line(lambda request: answers.pop(0))

    async def collect() -> list[int]:
        found = []
        async with aclosing(client_of(line).events("h")) as changes:
            async for info in changes:
                found.append(info.results)
                if info.results == 6:
                    break
        return found

    assert simulated(collect()) == [1, 2, 5, 6]
    assert [request.headers.get("Last-Event-ID") for request in line.requests] == [None, "2", "5"]
