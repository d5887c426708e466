"""Strangers at the port for workers from elsewhere: none keeps others out by saying nothing."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bursar.dispatch import worker_listener as entrance_module
from bursar.dispatch.credential import client_context, make_certificate, server_context
from bursar.dispatch.worker_listener import AcceptedConnection, WorkerListener

CERTIFICATE, KEY = make_certificate()


class Greeted(AcceptedConnection):
    """Is known, and says so, once it has said anything."""

    def __init__(self) -> None:
        self.settled = asyncio.Event()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.settled.set()
        assert self._transport is not None
        self._transport.write(b"welcome")

    def connection_lost(self, exc: Exception | None) -> None:
        self.settled.set()


class Guest:
    """A connection to the port."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def come(cls, port: int, source: str = "127.0.0.1", *, tls: bool = False) -> "Guest":
        return cls(
            *await asyncio.open_connection(
                "127.0.0.1",
                port,
                local_addr=(source, 0),
                ssl=client_context(CERTIFICATE) if tls else None,
            )
        )

    async def greet(self) -> None:
        self._writer.write(b"hello")
        assert await self._reader.read(100) == b"welcome"

    async def is_sent_away(self) -> None:
        with contextlib.suppress(ConnectionError):
            assert await self._reader.read() == b""

    async def leave(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


@asynccontextmanager
async def entrance(
    monkeypatch: pytest.MonkeyPatch, *, most: int, silent: float
) -> AsyncIterator[int]:
    """Its port; nobody is sent away for the time that the handshake takes."""
    monkeypatch.setattr(entrance_module, "MOST_UNAUTHENTICATED", most)
    monkeypatch.setattr(entrance_module, "SILENT", silent)
    monkeypatch.setattr(entrance_module, "HANDSHAKE", 1000.0)
    made = WorkerListener(Greeted, 30.0, pytest.fail)
    _, port = made.open("127.0.0.1", lambda: server_context(CERTIFICATE, KEY))
    try:
        async with asyncio.timeout(60):
            yield port
    finally:
        await made.close()


def test_who_takes_all_places_makes_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and the longest silent goes first; as many stay as others do not need."""

    async def main() -> None:
        async with entrance(monkeypatch, most=4, silent=1000.0) as port:
            silent = [await Guest.come(port, "127.0.0.2") for _ in range(4)]
            others = [await Guest.come(port, tls=True) for _ in range(2)]
            for guest in silent[:2]:
                await guest.is_sent_away()
            for guest in others:
                await guest.greet()
            silent += [await Guest.come(port, tls=True) for _ in range(2)]
            for guest in others:
                await guest.leave()
            for guest in silent:
                await guest.leave()

    asyncio.run(main())


def test_who_takes_most_places_makes_room_for_one_more_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another's slow one, though it has been there for longest, stays."""

    async def main() -> None:
        async with entrance(monkeypatch, most=4, silent=0.1) as port:
            slow = await Guest.come(port, "127.0.0.3", tls=True)
            silent = [await Guest.come(port, "127.0.0.2") for _ in range(3)]
            worker = await Guest.come(port, "127.0.0.2", tls=True)
            await worker.greet()
            await silent[0].is_sent_away()
            await slow.greet()
            for guest in (slow, *silent, worker):
                await guest.leave()

    asyncio.run(main())


@pytest.mark.parametrize("tls", [False, True])
def test_the_longest_silent_goes_for_one_of_the_same_address(
    monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    """Behind one gateway may be somebody else; whether it speaks TLS before it says nothing."""

    async def main() -> None:
        async with entrance(monkeypatch, most=2, silent=0.1) as port:
            silent = [await Guest.come(port, tls=tls) for _ in range(2)]
            worker = await Guest.come(port, tls=True)
            await worker.greet()
            await silent[0].is_sent_away()
            for guest in (*silent, worker):
                await guest.leave()

    asyncio.run(main())


def test_a_crowd_from_one_address_gets_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many more than there are places, all at once: they wait for each other, and all get in."""

    async def main() -> None:
        async with entrance(monkeypatch, most=4, silent=1000.0) as port:

            async def come() -> Guest:
                guest = await Guest.come(port, tls=True)
                await guest.greet()
                return guest

            for guest in await asyncio.gather(*(come() for _ in range(40))):
                await guest.leave()

    asyncio.run(main())
