"""What a worker is told, and what it does with it first: it says hello."""

import socket

import msgspec

from bursar.dispatch.accounts import UnixAccount
from bursar.dispatch.credential import SILENCE
from bursar.dispatch.dispatcher_connection import DispatcherConnection, TlsDispatcherConnection
from bursar.dispatch.resource_limits import ResourceLimits
from bursar.dispatch.wire import Hello


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a worker is told; on standard input as JSON, where it is a program of its own.

    Parameters
    ----------
    host, port
        Where the dispatcher listens.
    token
        What it must show.
    worker
        Its name, unique in the run.
    site
        Name of the site.
    lease
        Of its processors.
    processors
        How many it has.
    certificate
        Of the dispatcher, PEM, for a worker of a pilot: the connection is over TLS. Empty: in
        clear.
    silence
        Seconds after which a dispatcher's machine that does not answer is gone, over TLS.
    idle
        Seconds without a task after which it asks to leave; None: it never does.
    seal_key
        Path of the file that it opens sealed tasks with, absolute; empty: there is none.
    seal_pem
        What is in such a file, where the worker may not read it itself; empty: see ``seal_key``.
        Secret.
    owner
        User whose process the dispatcher must be, where both are on this machine and speak in
        clear; None: anybody's.
    account
        That it runs as once it has read this; None: as who has started it.
    limits
        To which it holds itself and its tasks; None: to none.
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
    A worker's connection to the dispatcher.

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
    What it says first.

    Parameters
    ----------
    holds
        Task and attempt of all that it has of a connection that was lost.
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
