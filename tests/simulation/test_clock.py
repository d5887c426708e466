"""Virtual time and the network in memory."""

import asyncio
import math
import signal
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.dispatch.journal_records import epoch_of
from bursar.model.errors import BursarError
from bursar.simulation.virtual_loop import VirtualLoop


def _run(main: Any) -> Any:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=20))
@settings(max_examples=examples(100))
def test_timers_fire_in_order_at_their_moment(delays: list[float]) -> None:
    """To the last bit, however far away: nothing is lost to sums of times."""

    async def main() -> list[tuple[float, float]]:
        loop = asyncio.get_running_loop()
        fired: list[tuple[float, float]] = []
        for delay in delays:
            loop.call_at(delay, lambda d=delay: fired.append((d, loop.time())))
        await asyncio.sleep(max(delays) + 1)
        return fired

    fired = _run(main())
    assert [d for d, _ in fired] == sorted(delays)
    assert all(abs(now - d) <= max(1e-9, 4 * math.ulp(d)) for d, now in fired)


def test_a_year_takes_no_time() -> None:
    async def main() -> float:
        await asyncio.sleep(365 * 86_400.0)
        return epoch_of(asyncio.get_running_loop()) + asyncio.get_running_loop().time()

    began = time.monotonic()
    assert _run(main()) == 365 * 86_400.0
    assert time.monotonic() - began < 60


def test_waiting_for_nothing_is_said_instead_of_waited() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(BursarError, match="will never happen"):
        _run(main())


def test_threads_are_calls() -> None:
    """What would run in one is done before anything else happens, errors included."""

    async def main() -> tuple[int, float]:
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        return await asyncio.to_thread(lambda: 7), asyncio.get_running_loop().time()

    assert _run(main()) == (7, 0.0)


def test_signals_are_heard() -> None:
    async def main() -> str:
        heard = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGUSR1, lambda: heard.set_result("heard")
        )
        signal.raise_signal(signal.SIGUSR1)
        return await asyncio.wait_for(heard, 1e6)

    assert _run(main()) == "heard"


class _Echo(asyncio.Protocol):
    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard.append(data)
        if data.startswith(b"?"):
            self.transport.write(b"!" + data[1:])

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


def test_streams_arrive_in_order_and_end_at_both_ends() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        made: list[_Echo] = []

        def accept() -> _Echo:
            made.append(_Echo())
            return made[-1]

        server = await loop.create_server(accept, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        transport, client = await loop.create_connection(_Echo, host, port)
        for word in (b"?a", b"b", b"?c"):
            transport.write(word)
        await asyncio.sleep(0.001)
        assert made[0].heard == [b"?a", b"b", b"?c"]
        assert client.heard == [b"!a", b"!c"]
        transport.write(b"last")
        transport.close()
        await asyncio.sleep(0.001)
        assert made[0].heard[-1] == b"last"
        assert made[0].lost
        assert client.lost
        server.close()
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(_Echo, host, port)

    _run(main())
