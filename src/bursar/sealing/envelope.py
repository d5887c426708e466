"""
The encoding of envelopes and of what lies in them: a version byte, then MessagePack.

An envelope must be in canonical form, so that two envelopes that differ in a bit are different ones
and the digest identifies an envelope.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from bursar.model.errors import BursarError
from bursar.model.task import Status, Step

# The encoding of envelopes: a version byte, then MessagePack.

T = TypeVar("T")

VERSION = 1

MOST_BYTES = 1 << 26
"""Bytes of one envelope, at most: the limit of a submitted task."""


class SealError(BursarError):
    """An envelope cannot be opened or made; the text says why, in a few words."""


class ConversationGrant(msgspec.Struct, frozen=True, array_like=True):
    """
    The user's signed statement that opens a conversation.

    Parameters
    ----------
    session
        Random identity of the conversation.
    created, expires
        Seconds since the epoch between which workers accept its tasks.
    user
        SHA-256 of the user's certificate.
    recipient
        Name of the workers' key, from :func:`bursar.sealing.certificates.key_name`.
    wrapped, kept
        The secret, encrypted to the workers' key, and to the user's own, so that a later process of
        the user can read results.
    """

    session: bytes
    created: int
    expires: int
    user: bytes
    recipient: bytes
    wrapped: bytes
    kept: bytes


class ConversationHeader(msgspec.Struct, frozen=True, array_like=True):
    """The user's certificate, the grant and the grant's signature; part of each sealed task."""

    certificate: bytes
    grant: bytes
    signature: bytes


class ConversationTask(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A task sealed in a conversation; ``header`` is an encoded :class:`ConversationHeader`."""

    header: bytes
    about: str
    nonce: bytes
    box: bytes


class ConversationResult(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A result sealed in a conversation; ``task`` is the digest of the task's envelope."""

    grant: bytes
    signature: bytes
    task: bytes
    nonce: bytes
    box: bytes


class MessageTask(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A separately sealed task; ``box`` is encrypted to the workers' key, everything is signed."""

    certificate: bytes
    recipient: bytes
    created: int
    expires: int
    about: str
    box: bytes
    signature: bytes


class MessageResult(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A separately sealed result; ``box`` is encrypted to the user's key, signed by the worker."""

    certificate: bytes
    task: bytes
    box: bytes
    signature: bytes


Envelope = ConversationTask | ConversationResult | MessageTask | MessageResult

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)


def encode(envelope: Envelope) -> bytes:
    """
    Encode an envelope.

    Raises
    ------
    SealError
        When it is too large.
    """
    data = bytes([VERSION]) + _encoder.encode(envelope)
    if len(data) > MOST_BYTES:
        raise SealError(f"an envelope of {len(data)} bytes is larger than {MOST_BYTES}")
    return data


def decode(data: bytes) -> Envelope:
    """
    Decode an envelope.

    Raises
    ------
    SealError
        When it is no envelope.
    """
    if len(data) > MOST_BYTES:
        raise SealError(f"an envelope of {len(data)} bytes is larger than {MOST_BYTES}")
    if data[:1] != bytes([VERSION]):
        raise SealError("it is no envelope of a version that is known here")
    try:
        envelope: Envelope = _decoder.decode(memoryview(data)[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise SealError("it is no envelope") from None
    # MessagePack can write one value in several ways. Were they all taken, the same task would have
    # several digests, to which results are bound.
    if _encoder.encode(envelope) != data[1:]:
        raise SealError("it is no envelope")
    return envelope


def _reader_of(kind: type[T], problem: str) -> Callable[[bytes], T]:
    """Return a decoder that raises SealError with a text for bytes that are none of a kind."""
    decode_kind = msgspec.msgpack.Decoder(kind).decode

    def read(data: bytes) -> T:
        try:
            return decode_kind(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise SealError(problem) from None

    return read


encode_part = _encoder.encode
"""Encodes a part or the content of an envelope, or what a cipher or signature is bound to."""

decode_header = _reader_of(ConversationHeader, "it is no envelope")
decode_grant = _reader_of(ConversationGrant, "it is no envelope")


def sha256_digest(data: bytes) -> bytes:
    """Return the SHA-256 digest of bytes (FIPS 180-4)."""
    return hashlib.sha256(data).digest()


# The contents of the envelopes of tasks and results.


class SealedTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    The part of a task that only the worker may read.

    Parameters
    ----------
    environment
        Variables added to the worker's.
    """

    steps: tuple[Step, ...]
    environment: Mapping[str, str] = {}


class SealedResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    The part of a result that only the user may read.

    Parameters
    ----------
    status
        How the task ended, by the worker; the service's own statement cannot be verified.
    exit_code, stdout, stderr, reason, value
        Fields of :class:`bursar.model.task.Outcome`; streams are whole, however long.
    """

    status: Status
    exit_code: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    reason: str = ""
    value: bytes = b""


decode_task = _reader_of(SealedTask, "the envelope holds no task")
decode_result = _reader_of(SealedResult, "the envelope holds no result")
