"""Connections over TLS, as asyncio makes them for us."""

import asyncio
from asyncio import sslproto

import pytest

from bursar.dispatch.credential import (
    BUFFER,
    client_context,
    make_certificate,
    server_context,
    spare_memory,
)


def test_a_connection_sets_little_memory_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself asyncio sets 256 KiB aside: a crowd of idle workers would fill the memory."""
    monkeypatch.setattr(sslproto.SSLProtocol, "max_size", sslproto.SSLProtocol.max_size)
    spare_memory()
    certificate, key = make_certificate()

    async def connect() -> int:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            asyncio.Protocol, "127.0.0.1", 0, ssl=server_context(certificate, key)
        )
        async with server:
            transport, _ = await loop.create_connection(
                asyncio.Protocol, *server.sockets[0].getsockname(), ssl=client_context(certificate)
            )
            protocol: sslproto.SSLProtocol = transport._ssl_protocol  # type: ignore[attr-defined]
            size = len(protocol.get_buffer(-1))
            transport.abort()
            await asyncio.sleep(0.0)
        return size

    assert asyncio.run(connect()) == BUFFER
