"""What a pilot must have to be let in: where, and with which secret."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from bursar.model.errors import InputError
from bursar.model.provisioning import PATIENCE

SILENCE = 15.0
"""Seconds, about, after which an end of a connection that says nothing is taken to be gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotTerms:
    """
    On which the workers of a lease's pilots are let in.

    Parameters
    ----------
    lease
        Of the processors; its name.
    site
        Name of the site.
    host
        Name or address under which the pilots find this machine. Where it is a loopback address
        nobody from elsewhere is listened to.
    processors
        That its workers may have between them at most.
    idle
        Seconds without a task after which a worker leaves by itself; None: never.
    patience
        Seconds for which a pilot tries to come back when it loses the connection.
    on_join
        Told when the first worker of the lease is there; None: nobody is.
    on_leave
        Told when a worker of the lease has gone that was not sent away; None: nobody is.
    """

    lease: str
    site: str
    host: str
    processors: int
    idle: float | None = None
    patience: float = PATIENCE
    on_join: Callable[[], None] | None = None
    on_leave: Callable[[], None] | None = None


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """
    A pilot's own way in; a secret: it lies in a file that only its owner can read.

    Parameters
    ----------
    host, port
        Where the dispatcher listens.
    token
        Good for the workers of one lease only.
    certificate
        Of the dispatcher, PEM; none but this one is taken.
    run
        Identity of the run.
    site
        Name of the site.
    lease
        Of the processors.
    processors
        That its workers may have between them.
    idle
        Seconds without a task after which it leaves by itself (DRP section 3.1, distributed
        release); None: never.
    patience
        Seconds for which it tries to come back when the connection is lost; then it ends.
    silence
        Seconds, about, after which a connection without a sign of life is lost.
    """

    host: str
    port: int
    token: str
    certificate: str
    run: str
    site: str
    lease: str
    processors: int
    idle: float | None = None
    patience: float = PATIENCE
    silence: float = SILENCE

    def encode(self) -> bytes:
        """As it lies in its file, JSON."""
        return msgspec.json.encode(self)


def decode_credential(data: bytes, where: str) -> Credential:
    """
    What is in a credential's file.

    Raises
    ------
    InputError
        When it is none; what it holds is not repeated.
    """
    try:
        return msgspec.json.decode(data, type=Credential)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InputError("is not a pilot's credential", where=where) from None
