"""The settings of a worker, and the first message that follows from these."""

import socket

import msgspec

from bursar.dispatch.credential import SILENCE
from bursar.dispatch.wire import Hello
from bursar.worker.accounts import UnixAccount
from bursar.worker.dispatcher_connection import DispatcherConnection, TlsDispatcherConnection
from bursar.worker.resource_limits import ResourceLimits


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
    site
        Name of the site.
    lease
        Name of the lease of its processors.
    processors
        Number of processors.
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
    owner
        User id that the dispatcher's process must have, on a plain connection within this
        machine; None: not checked.
    account
        Account to switch to after reading the settings; None: stay the starter's user.
    limits
        Resource limits of the worker and its tasks; None: none.
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
    seal_key: str = ""
    seal_pem: str = ""
    owner: int | None = None
    account: UnixAccount | None = None
    limits: ResourceLimits | None = None


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
    return Hello(
        settings.token,
        settings.worker,
        settings.site,
        settings.processors,
        settings.lease,
        socket.gethostname(),
        holds,
        bool(settings.seal_pem),
    )
