"""The network that is late and breaks, under streams and requests."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.remote.http_transport import ClientRequest, TransportError
from bursar_devtools.faults.event_trace import EventTrace
from bursar_devtools.faults.faulty_connection import FaultyListener
from bursar_devtools.faults.faulty_http import (
    FaultyHttpTransport,
    Receive,
    Send,
    SimulatedEndpoint,
)
from bursar_devtools.faults.faulty_network import FaultyNetwork, NetworkConditions
from bursar_devtools.faults.simulated_process import ProcessLoop, SimulatedProcess, run_processes

Story = Callable[[FaultyNetwork, SimulatedProcess, SimulatedProcess], Coroutine[Any, Any, Any]]


def _run(story: Story, seed: int = 0) -> Any:
    async def main(loop: ProcessLoop) -> Any:
        network = FaultyNetwork(loop, random.Random(seed), EventTrace(loop.time))
        return await story(
            network, SimulatedProcess(loop, "server"), SimulatedProcess(loop, "worker")
        )

    return run_processes(main)


class _Ear(asyncio.Protocol):
    def __init__(self) -> None:
        self.heard = b""
        self.is_lost = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        assert not self.is_lost
        self.heard += data

    def connection_lost(self, exc: Exception | None) -> None:
        assert not self.is_lost
        self.is_lost = True


@given(st.integers(0, 10_000), st.lists(st.binary(max_size=20), max_size=30))
@settings(max_examples=examples(100))
def test_a_stream_keeps_order_and_loses_only_the_end(seed: int, said: list[bytes]) -> None:
    """What arrives is a beginning of what was said, and all of it while nothing breaks."""

    async def story(
        network: FaultyNetwork, server: SimulatedProcess, worker: SimulatedProcess
    ) -> None:
        network.conditions = NetworkConditions(delay=0.1, breaks=0.05)
        door, ear, mouth = FaultyListener(network), _Ear(), _Ear()
        door.listen(server, lambda: ear)
        door.connect(worker, mouth)
        await asyncio.sleep(1)
        assert mouth.transport is not None
        for words in said:
            mouth.transport.write(words)
        await asyncio.sleep(100)
        assert b"".join(said).startswith(ear.heard)
        assert ear.is_lost == mouth.is_lost
        assert mouth.is_lost or ear.heard == b"".join(said)

    _run(story, seed)


def test_a_partition_holds_words_back() -> None:
    async def story(
        network: FaultyNetwork, server: SimulatedProcess, worker: SimulatedProcess
    ) -> None:
        door, ear, mouth = FaultyListener(network), _Ear(), _Ear()
        door.listen(server, lambda: ear)
        door.connect(worker, mouth)
        await asyncio.sleep(1)
        network.cut_off("worker", 60)
        assert mouth.transport is not None
        mouth.transport.write(b"hello")
        with pytest.raises(TimeoutError):
            door.connect(worker, _Ear())
        await asyncio.sleep(59)
        assert ear.heard == b""
        await asyncio.sleep(2)
        assert ear.heard == b"hello"

    _run(story)


def test_a_death_is_heard_at_the_other_end() -> None:
    async def story(
        network: FaultyNetwork, server: SimulatedProcess, worker: SimulatedProcess
    ) -> None:
        door, ear, mouth = FaultyListener(network), _Ear(), _Ear()
        door.listen(server, lambda: ear)
        door.connect(worker, mouth)
        await asyncio.sleep(1)
        assert mouth.transport is not None
        mouth.transport.write(b"last words")
        worker.kill()
        await asyncio.sleep(1)
        assert (ear.heard, ear.is_lost, mouth.is_lost) == (b"last words", True, False)
        server.kill()
        with pytest.raises(ConnectionRefusedError):
            door.connect(worker, _Ear())

    _run(story)


class _Counting:
    """An application that counts, and answers in three parts."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.left = 0

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        self.bodies.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(3):
            await asyncio.sleep(1)
            await send({"type": "http.response.body", "body": b"part ", "more_body": True})
        await send({"type": "http.response.body", "body": b"end"})
        if (await receive())["type"] == "http.disconnect":
            self.left += 1


async def _ask(
    network: FaultyNetwork,
    server: SimulatedProcess,
    client: SimulatedProcess,
    application: _Counting,
) -> str:
    """One request of a client; what it read, or the kind of error."""
    service = SimulatedEndpoint(on_crash=pytest.fail)
    service.serve(server, application)
    answers: list[str] = []

    async def ask() -> None:
        transport = FaultyHttpTransport(network, client, service)
        try:
            response = await transport.send(ClientRequest("POST", "http://site/x", content=b"body"))
            async with aclosing(response):
                answers.append(b"".join([piece async for piece in response.pieces()]).decode())
        except TransportError as error:
            answers.append(type(error).__name__)

    client.spawn(ask())
    await asyncio.sleep(300)
    return answers[0] if answers else ""


def test_a_request_is_answered_whole() -> None:
    application = _Counting()

    async def story(
        network: FaultyNetwork, server: SimulatedProcess, client: SimulatedProcess
    ) -> str:
        return await _ask(network, server, client, application)

    assert _run(story) == "part part part end"
    assert application.bodies == [b"body"]


@pytest.mark.parametrize(
    ("weather", "times"),
    [
        (NetworkConditions(loses=1.0), 0),
        (NetworkConditions(forgets=1.0), 1),
        (NetworkConditions(repeats=1.0), 2),
    ],
)
def test_requests_and_answers_get_lost_or_come_again(
    weather: NetworkConditions, times: int
) -> None:
    """The application hears it never, once in vain, or twice."""
    application = _Counting()

    async def story(
        network: FaultyNetwork, server: SimulatedProcess, client: SimulatedProcess
    ) -> str:
        network.conditions = weather
        return await _ask(network, server, client, application)

    answer = _run(story)
    assert application.bodies == [b"body"] * times
    assert answer == ("part part part end" if weather.repeats else "TransportError")


def test_a_server_that_dies_breaks_its_answers() -> None:
    application = _Counting()

    async def story(
        network: FaultyNetwork, server: SimulatedProcess, client: SimulatedProcess
    ) -> str:
        asyncio.get_running_loop().call_later(1.5, server.kill)
        return await _ask(network, server, client, application)

    assert _run(story) == "TransportError"


def test_an_application_hears_that_its_client_died() -> None:
    application = _Counting()

    async def story(
        network: FaultyNetwork, server: SimulatedProcess, client: SimulatedProcess
    ) -> None:
        asyncio.get_running_loop().call_later(1.5, client.kill)
        await _ask(network, server, client, application)

    _run(story)
    assert application.left == 1
