"""Credentials of pilots: the dispatcher's address and the secret that admits their workers."""

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
    Terms on which the workers of a lease's pilots are admitted.

    Parameters
    ----------
    lease
        Name of the lease.
    site
        Name of the site.
    host
        Name or address under which the pilots find this machine. With a loopback address, only
        connections of this machine are accepted.
    processors
        Most that the lease's workers may have together.
    idle
        Seconds without a task after which a worker leaves by itself; None: never.
    patience
        Seconds for which a pilot tries to come back when it loses the connection.
    on_join
        Called when the lease's first worker has joined; None: no call.
    on_leave
        Called when a worker has gone whose lease was not revoked; None: no call.
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
    Secret credential of a pilot, kept in a file that only the owner can read.

    Parameters
    ----------
    host, port
        Address that the dispatcher listens on.
    token
        Secret that admits the workers of one lease only.
    certificate
        The dispatcher's certificate, PEM; no other is accepted.
    run
        Identity of the run.
    site
        Name of the site.
    lease
        Name of the lease.
    processors
        Most that the lease's workers may have together.
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
        """Encode the credential as JSON, the form of the credential file."""
        return msgspec.json.encode(self)


def decode_credential(data: bytes, where: str) -> Credential:
    """
    Decode the content of a credential file.

    Raises
    ------
    InputError
        When the content is no credential; the message does not repeat it.
    """
    try:
        return msgspec.json.decode(data, type=Credential)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InputError("is not a pilot's credential", where=where) from None
