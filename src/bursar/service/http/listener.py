"""Serves an ASGI application over HTTP."""

import asyncio
import ipaddress
import ssl
from contextlib import suppress
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from bursar.model.errors import InputError
from bursar.service.http.connection_acceptor import ConnectionAcceptor
from bursar.service.http.http_connection import HttpConnection
from bursar.service.http_limits import HttpLimits


class HttpListener:
    """
    The listening sockets of an application and the connections accepted there.

    Parameters
    ----------
    acceptor
        Accepts the connections.
    state
        Connections and tasks of uvicorn.
    """

    def __init__(self, acceptor: ConnectionAcceptor, state: ServerState) -> None:
        self._acceptor = acceptor
        self._state = state

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Address and port of each listening socket."""
        return [listening.getsockname()[:2] for listening in self._acceptor.sockets]

    async def close(self, grace: float = 0.0) -> None:
        """Accept no more connections; running requests have ``grace`` seconds to end."""
        await self._acceptor.close()
        for connection in list(self._state.connections):
            # Idle ones end now; one with a request ends after its answer.
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=grace)
        for connection in list(self._state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # until connection_lost of each has been called
        tasks = list(self._state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def serve_http(
    app: Any,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    tls: ssl.SSLContext | None = None,
    limits: HttpLimits | None = None,
) -> HttpListener:
    """
    Listen for requests to an application.

    Parameters
    ----------
    app
        ASGI application.
    host, port
        Address to listen on; port 0: any free one.
    tls
        None: not encrypted, which is allowed on the loopback interface only.

    Raises
    ------
    InputError
        When it cannot listen there, or must not.
    """
    limits = limits or HttpLimits()

    async def until_cancelled(scope: Any, receive: Any, send: Any) -> None:
        # Only :meth:`HttpListener.close` cancels; uvicorn would take the cancellation for a fault
        # of the application.
        with suppress(asyncio.CancelledError):
            await app(scope, receive, send)

    config = Config(
        until_cancelled,
        loop="none",
        http="httptools",
        ws="none",
        interface="asgi3",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # clients could forge their address
        server_header=False,
        date_header=False,
    )
    config.load()
    state = ServerState()
    acceptor = ConnectionAcceptor(
        lambda slot: HttpConnection(config, state, limits, slot), tls, limits
    )
    where = f"{host}:{port}"
    try:
        await acceptor.bind(host, port)
    except OSError as error:
        raise InputError(f"cannot listen: {error.strerror or error}", where=where) from None
    open_to = [listening.getsockname()[0] for listening in acceptor.sockets]
    # The addresses that were really bound: a name may stand for several, and not only for those
    # that its owner thinks of.
    if tls is None and not all(ipaddress.ip_address(at).is_loopback for at in open_to):
        acceptor.leave()
        raise InputError(
            "expected a loopback address, or TLS: others could read and forge all that is said",
            where=where,
        )
    acceptor.start()
    return HttpListener(acceptor, state)
