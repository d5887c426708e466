"""
The way in for workers of pilots, which run on other machines.

Nothing is said in clear, and nothing to anybody who has not shown the secret of a lease that is
let in: it is that lease's alone, and good for as many processors as the lease has.
"""

import asyncio
import contextlib
import hmac
import ipaddress
import secrets
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field

from bursar.dispatch.credential import PATIENCE, SILENCE, Credential
from bursar.dispatch.keepalive import keep_alive
from bursar.dispatch.tls import make_certificate, server_context
from bursar.dispatch.wire import Hello
from bursar.model.errors import SiteError

HANDSHAKE = 10.0
"""Seconds in which a connection must have become one over TLS."""

MOST_STRANGERS = 256
"""Connections at a time of which nobody knows yet whose they are; others wait to be accepted."""

_GOODBYE = 1.0  # seconds for TLS to end in order
_ROUNDS = 3  # of the loop, more than it takes until a connection that was accepted is made
_EXHAUSTED = 0.1  # seconds until the next is accepted when the system can take no more


class Visit(asyncio.Protocol):
    """
    A connection through the door.

    Attributes
    ----------
    settled
        Set once it is known whose it is, or it has ended.
    """

    settled: asyncio.Event


@dataclass(slots=True)
class _Admitted:
    """A lease whose workers are let in, or were."""

    token: str
    site: str
    processors: int
    on_join: Callable[[], None] | None
    revoked: bool = False
    joined: bool = False
    workers: dict[str, int] = field(default_factory=dict)  # that are there: their processors


class PilotDoor:
    """
    Listens for pilots' workers once there is one to come.

    Parameters
    ----------
    run
        Identity of the run.
    protocol
        Makes the protocol of a connection.
    turn_out
        Told of a lease whose workers are to leave.
    silence
        Seconds, about, after which a machine that does not answer is taken to be gone.
    """

    def __init__(
        self,
        run: str,
        protocol: Callable[[], Visit],
        turn_out: Callable[[str], None],
        silence: float = SILENCE,
    ) -> None:
        self._run = run
        self._protocol = protocol
        self._turn_out = turn_out
        self._silence = silence
        self._certificate = ""
        self._context: ssl.SSLContext | None = None
        self._listening: dict[str, socket.socket] = {}  # by address
        self._accepting: list[asyncio.Task[None]] = []
        self._strangers: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(MOST_STRANGERS)
        self._admitted: dict[str, _Admitted] = {}
        self._closed = False

    # For sites; see bursar.dispatch.launch.Door.

    async def credential(
        self,
        *,
        lease: str,
        site: str,
        host: str,
        processors: int,
        idle: float | None = None,
        patience: float = PATIENCE,
        on_join: Callable[[], None] | None = None,
    ) -> bytes:
        """Lets the workers of a lease in from now on."""
        _, port = await self.open(host)
        token = secrets.token_urlsafe(32)
        self._admitted[lease] = _Admitted(token, site, processors, on_join)
        return Credential(
            host=host,
            port=port,
            token=token,
            certificate=self._certificate,
            run=self._run,
            site=site,
            lease=lease,
            processors=processors,
            idle=idle,
            patience=patience,
            silence=self._silence,
        ).encode()

    def revoke(self, lease: str) -> None:
        """A lease's workers are let in no more, and those that are there leave."""
        admitted = self._admitted.get(lease)
        if admitted is not None and not admitted.revoked:
            admitted.revoked = True
            self._turn_out(lease)

    # For the dispatcher.

    async def open(self, host: str) -> tuple[str, int]:
        """
        Listens where a host name leads to, unless it does already; the address.

        Raises
        ------
        SiteError
            When that cannot be.
        """
        address = _interface(host)
        if self._closed:
            raise SiteError("the run is ending", transient=True)
        if address not in self._listening:
            if self._context is None:
                self._certificate, key = make_certificate()
                self._context = server_context(self._certificate, key)
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            listening = socket.socket(family, socket.SOCK_STREAM)
            try:
                listening.setblocking(False)
                listening.bind((address, 0))
                listening.listen(MOST_STRANGERS)
            except OSError as error:
                listening.close()
                raise SiteError(f"cannot listen on {address}: {error.strerror}") from None
            self._listening[address] = listening
            self._accepting.append(asyncio.create_task(self._accept(listening)))
        port: int = self._listening[address].getsockname()[1]
        return address, port

    def lets_in(self, hello: Hello) -> bool:
        """Whether a worker may come in; one that is let in counts until :meth:`left`."""
        admitted = self._admitted.get(hello.lease)
        known = admitted or _NOBODY
        # Even of a lease that nobody has heard of, finding out takes as long.
        right = hmac.compare_digest(hello.token.encode(), known.token.encode())
        if not right or admitted is None or admitted.revoked:
            return False
        if hello.site != admitted.site or hello.processors < 1:
            return False
        if not hello.worker.startswith(f"{hello.site}-{hello.lease}-"):  # another's name
            return False
        if sum(admitted.workers.values()) + hello.processors > admitted.processors:
            return False
        admitted.workers[hello.worker] = hello.processors
        return True

    def is_turned_out(self, hello: Hello) -> bool:
        """Whether somebody was let in once, and is not any more."""
        admitted = self._admitted.get(hello.lease)
        return (
            admitted is not None
            and admitted.revoked
            and hmac.compare_digest(hello.token.encode(), admitted.token.encode())
        )

    def joined(self, lease: str) -> None:
        """A worker that was let in is at work."""
        admitted = self._admitted[lease]
        if not admitted.joined:
            admitted.joined = True
            if admitted.on_join is not None:
                admitted.on_join()

    def left(self, lease: str, worker: str) -> None:
        """A worker that was let in is gone."""
        admitted = self._admitted.get(lease)
        if admitted is not None:
            admitted.workers.pop(worker, None)

    async def close(self) -> None:
        """Listens no more; connections that are just being made end."""
        self._closed = True
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)
        strangers = list(self._strangers)
        for task in strangers:
            task.cancel()
        await asyncio.gather(*strangers, return_exceptions=True)
        for listening in self._listening.values():
            listening.close()
        self._listening.clear()

    # Inside.

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._room.acquire()
            try:
                connection, _ = await loop.sock_accept(listening)
            except OSError:  # too many files are open, or it has gone again
                self._room.release()
                await asyncio.sleep(_EXHAUSTED)
                continue
            except BaseException:
                self._room.release()
                raise
            task = asyncio.create_task(self._shake_hands(connection))
            self._strangers.add(task)
            task.add_done_callback(self._strangers.discard)

    async def _shake_hands(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(connection, self._silence)
        except OSError:  # it has gone again
            connection.close()
            self._room.release()
            return
        try:
            _, visit = await loop.connect_accepted_socket(
                self._protocol,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE,
                ssl_shutdown_timeout=_GOODBYE,
            )
            await visit.settled.wait()
        except OSError:  # as time-outs are, and all that TLS refuses
            pass
        finally:
            self._room.release()


_NOBODY = _Admitted(secrets.token_urlsafe(32), "", 0, None)


def _interface(host: str) -> str:
    """Address to listen on so that a host name reaches it: loopback only if it is that."""
    if host == "localhost":
        return "127.0.0.1"
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        if address.is_loopback:
            return host
        return "::" if address.version == 6 else "0.0.0.0"
    return "0.0.0.0"
