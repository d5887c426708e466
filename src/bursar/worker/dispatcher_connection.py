"""A worker's connection to the dispatcher: plain on this machine, TLS from elsewhere."""

import socket
from collections.abc import Iterator

from bursar.dispatch.keepalive import keep_alive
from bursar.worker.peer_credentials import check_peer

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

        from bursar.dispatch.tls import client_context

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
