"""What came over a wire as a message (JSON)."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from bursar.model.errors import InputError

T = TypeVar("T")


def decode_message(data: bytes, decode: Callable[[bytes], T], room: int) -> T:
    """
    The message in a JSON text.

    Parameters
    ----------
    decode
        Of msgspec, for messages of the kinds expected.
    room
        Largest text taken, bytes.

    Raises
    ------
    InputError
        When it is none, too long, or a value is out of range.
    """
    if len(data) > room:
        raise InputError(f"expected at most {room:,} bytes", where="message")
    try:
        return decode(data)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        reason = (str(error).splitlines() or ["cannot be read"])[0]
        raise InputError(reason[:1].lower() + reason[1:], where="message") from None
