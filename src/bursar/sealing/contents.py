"""What lies in the envelopes of a task and of its result."""

from collections.abc import Mapping

import msgspec

from bursar.model.outcome import Status
from bursar.model.step import Step
from bursar.sealing.envelope import SealError


class SealedTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    Of a task, what only the worker may know.

    Parameters
    ----------
    steps
        What it does.
    environment
        Variables added to the worker's.
    """

    steps: tuple[Step, ...]
    environment: Mapping[str, str] = {}


class SealedResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    Of a result, what only the user may know.

    Parameters
    ----------
    status
        How it ended: what the service says of that is its word only.
    exit_code, stdout, stderr, reason, value
        As of :class:`bursar.model.outcome.Outcome`; streams are whole, however long.
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
    """As it is put into an envelope (MessagePack)."""
    return _ENCODER.encode(contents)


def decode_task(data: bytes) -> SealedTask:
    """
    What was in a task's envelope.

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
    What was in a result's envelope.

    Raises
    ------
    SealError
        When it is no result.
    """
    try:
        return _RESULT.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise SealError("the envelope holds no result") from None
