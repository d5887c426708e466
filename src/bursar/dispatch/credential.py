"""What a pilot must have to be let in: where, and with which secret."""

import msgspec

from bursar.model.errors import InputError

PATIENCE = 60.0
"""Seconds for which a pilot tries to come back to a dispatcher that it has lost."""

SILENCE = 15.0
"""Seconds, about, after which an end of a connection that says nothing is taken to be gone."""


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
