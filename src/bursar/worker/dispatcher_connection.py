"""
The settings of a worker, and its connection to the dispatcher: plain on this machine, else TLS.

Any user may listen on a port of this machine: while a service is down, another process can take
its port, and would receive the secrets of all workers that try to reconnect.
"""

import select
import socket
import struct
import time
from collections.abc import Iterator
from ipaddress import ip_address

import msgspec

from bursar.dispatch.credential import LAST_WORDS, SILENCE, keep_alive
from bursar.dispatch.wire import Hello
from bursar.worker.accounts import ResourceLimits, UnixAccount
from bursar.worker.worker_memory import memory_limit

# Check of the user whose process holds the other end of a connection within this machine.

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_POLL_TIMEOUT = 5  # milliseconds


def check_peer(connection: socket.socket, owner: int, patience: float) -> None:
    """
    Wait until the peer has accepted the connection, and check the user of the peer's process.

    Parameters
    ----------
    connection
        TCP connection to an address of this machine.
    owner
        User id that the peer's process must have.
    patience
        Seconds to wait.

    Raises
    ------
    OSError
        When the peer is another user's or unknown, or does not accept in time.
    """
    until = time.monotonic() + patience
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    while (found := _owner_of_peer(connection)) is None:
        if time.monotonic() >= until:
            raise TimeoutError("nobody takes the connection")
        # Peeked at and left: what the dispatcher says first is for the caller.
        if poll.poll(_POLL_TIMEOUT) and not connection.recv(1, socket.MSG_PEEK):
            raise ConnectionResetError("the connection was ended")
    if found != owner:
        raise PermissionError(f"the process that listens there is of user {found}, not {owner}")


def _owner_of_peer(connection: socket.socket) -> int | None:
    """
    Return the user of the process that has accepted a connection; None: no process has.

    Raises
    ------
    OSError
        When the kernel does not say.
    """
    ours, theirs = connection.getsockname(), connection.getpeername()
    # The other end's line has the addresses the other way round, maybe as IPv6.
    wanted = {
        (_written(*theirs[:2], mapped=mapped), _written(*ours[:2], mapped=mapped))
        for mapped in (False, True)
    }
    for table in _TABLES:
        try:
            with open(table, "rb") as file:
                lines = file.read().decode("ascii").splitlines()[1:]
        except FileNotFoundError:  # a kernel without IPv6
            continue
        for line in lines:
            fields = line.split()
            # Without an inode nobody has accepted the connection: the listener's user is not known
            # yet.
            if (fields[1], fields[2]) in wanted and fields[9] != "0":
                return int(fields[7])
    return None


def _written(address: str, port: int, *, mapped: bool) -> str:
    """Format an address as the kernel's tables do: 32-bit words in the machine's byte order."""
    packed = ip_address(address).packed
    if mapped and len(packed) == 4:
        packed = bytes(10) + b"\xff\xff" + packed
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"


# A worker's connection to the dispatcher: plain on this machine, TLS from elsewhere.

CONNECT = 10.0
"""Seconds for a connection to be made, TLS and all."""

_PIECE = 1 << 20  # bytes read at a time
_RECORD = 1 << 16  # bytes given to TLS at a time: what did not go out is given again


class DispatcherConnection:
    """
    A plain connection to the dispatcher; after connecting, no call blocks.

    Parameters
    ----------
    host, port
        Address that the dispatcher listens on.
    patience
        Seconds for the connection to be made.
    owner
        User id that the peer's process must have, on this machine; None: not checked.

    Raises
    ------
    OSError
        When the dispatcher cannot be reached, or runs as another user.
    """

    def __init__(
        self, host: str, port: int, patience: float = CONNECT, owner: int | None = None
    ) -> None:
        self._socket = socket.create_connection((host, port), patience)
        if self._socket.getsockname() == self._socket.getpeername():
            # Nobody listens: the system chose just this port for our end, and a TCP connection can
            # be made to itself. Whoever listened there would be kept from the port by it.
            self._socket.close()
            raise ConnectionRefusedError
        if owner is not None:
            try:
                # Before the first byte, which would be the run's secret.
                check_peer(self._socket, owner, patience)
            except BaseException:
                self._socket.close()
                raise
        # Reports are small and the dispatcher waits for them: none is held back to be sent with the
        # next.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)

    def fileno(self) -> int:
        """Return the socket's file descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def receive(self) -> Iterator[bytes]:
        """
        Yield the bytes that have arrived.

        Raises
        ------
        ConnectionError
            When the peer has closed or lost the connection.
        """
        try:
            data = self._socket.recv(_PIECE)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionResetError
        yield data

    def send(self, data: bytearray) -> int:
        """
        Send as many bytes as the socket takes, and return their number, 0 at least.

        The caller gives the rest again in the next call, with or without more data behind.

        Raises
        ------
        ConnectionError
            When the other end is gone.
        """
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0


class TlsDispatcherConnection(DispatcherConnection):
    """
    A connection to the dispatcher over TLS.

    Parameters
    ----------
    certificate
        The dispatcher's certificate, PEM.
    silence
        Seconds after which a silent peer is taken to be gone.
    """

    def __init__(self, host: str, port: int, certificate: str, silence: float) -> None:
        import ssl  # workers on this machine, which are many, do without

        from bursar.dispatch.credential import client_context

        self._wants = (ssl.SSLWantReadError, ssl.SSLWantWriteError)
        patience = min(CONNECT, silence)
        super().__init__(host, port, patience)
        plain = self._socket
        try:
            keep_alive(plain, silence)
            # The handshake blocks, with a limit; the connection does not any more after it.
            plain.settimeout(patience)
            secure = client_context(certificate).wrap_socket(plain)
        except BaseException:
            plain.close()
            raise
        secure.setblocking(False)
        self._secure: ssl.SSLSocket = secure
        self._socket = secure

    def receive(self) -> Iterator[bytes]:
        """Yield all bytes that have arrived: polling does not show what TLS has already read."""
        while True:
            try:
                data = self._secure.recv(_PIECE)
            except self._wants:
                return
            except OSError as error:  # no route, no answer, no sense
                raise ConnectionAbortedError(str(error)) from None
            if not data:
                raise ConnectionResetError
            yield data

    def send(self, data: bytearray) -> int:
        """Send as many bytes as the socket takes; return their number."""
        sent = 0
        try:
            while sent < len(data):
                # What TLS could not send must come again, and begin as it did.
                with memoryview(data)[sent : sent + _RECORD] as piece:
                    sent += self._secure.send(piece)
        except self._wants:
            pass
        except OSError as error:
            raise ConnectionAbortedError(str(error)) from None
        return sent


# The settings of a worker, and the first message that follows from these.


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """
    Settings of a worker, which a worker process reads as JSON from standard input.

    Parameters
    ----------
    host, port
        Address that the dispatcher listens on.
    token
        Secret that admits the worker.
    worker
        Name of the worker, unique in the run.
    lease
        Name of the lease of its processors.
    certificate
        The dispatcher's certificate, PEM, for a worker of a pilot, which connects over TLS.
        Empty: a plain connection.
    silence
        Seconds after which a dispatcher that does not answer is taken to be gone, over TLS.
    idle
        Seconds without a task after which the worker asks to leave; None: never.
    seal_key
        Absolute path of the key file for sealed tasks; empty: there is none.
    seal_pem
        Content of such a file, where the worker may not read it; empty: see ``seal_key``.
        Secret.
    grace
        Seconds between SIGTERM and SIGKILL for tasks whose processors are taken away.
    owner
        User id that the dispatcher's process must have, on a plain connection within this
        machine; None: not checked.
    account
        Account to switch to after reading the settings; None: stay the starter's user.
    limits
        Resource limits of the worker and its tasks; None: none.
    deaths
        Number of workers that ended by themselves on these processors before this one.
    """

    host: str
    port: int
    token: str
    worker: str
    site: str
    lease: str
    processors: int
    certificate: str = ""
    silence: float = SILENCE
    idle: float | None = None
    grace: float = LAST_WORDS
    seal_key: str = ""
    seal_pem: str = ""
    owner: int | None = None
    account: UnixAccount | None = None
    limits: ResourceLimits | None = None
    deaths: int = 0


def make_connection(settings: WorkerSettings) -> DispatcherConnection:
    """
    Connect a worker to the dispatcher.

    Raises
    ------
    OSError
        When the dispatcher cannot be reached, or is not who it should be.
    """
    if not settings.certificate:
        return DispatcherConnection(settings.host, settings.port, owner=settings.owner)
    return TlsDispatcherConnection(
        settings.host, settings.port, settings.certificate, settings.silence
    )


def hello_of(settings: WorkerSettings, holds: tuple[tuple[int, int], ...] = ()) -> Hello:
    """
    Return the first message of a worker.

    Parameters
    ----------
    holds
        Task and attempt of all work kept since a connection was lost.
    """
    memory, group = memory_limit()
    return Hello(
        settings.token,
        settings.worker,
        settings.site,
        settings.processors,
        settings.lease,
        socket.gethostname(),
        holds,
        bool(settings.seal_pem),
        memory,
        f"{socket.gethostname()}:{group}",
        settings.deaths,
        shows_output=True,
    )
