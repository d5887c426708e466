"""The contents of the envelopes of tasks and results."""

from collections.abc import Mapping

import msgspec

from bursar.model.outcome import Status
from bursar.model.step import Step
from bursar.sealing.envelope import SealError


class SealedTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    The part of a task that only the worker may read.

    Parameters
    ----------
    steps
        Steps of the task.
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
        Fields of :class:`bursar.model.outcome.Outcome`; streams are whole, however long.
    """

    status: Status
    exit_code: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    reason: str = ""
    value: bytes = b""


_ENCODER = msgspec.msgpack.Encoder()
_TASK = msgspec.msgpack.Decoder(SealedTask)
_RESULT = msgspec.msgpack.Decoder(SealedResult)


def encode_contents(contents: SealedTask | SealedResult) -> bytes:
    """Encode contents for an envelope (MessagePack)."""
    return _ENCODER.encode(contents)


def decode_task(data: bytes) -> SealedTask:
    """
    Decode the contents of a task's envelope.

    Raises
    ------
    SealError
        When it is no task.
    """
    try:
        return _TASK.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise SealError("the envelope holds no task") from None


def decode_result(data: bytes) -> SealedResult:
    """
    Decode the contents of a result's envelope.

    Raises
    ------
    SealError
        When it is no result.
    """
    try:
        return _RESULT.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise SealError("the envelope holds no result") from None
