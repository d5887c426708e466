"""Output of a task in the form of results."""

import base64
from typing import Literal

from bursar.remote.messages import Result

Stream = Literal["stdout", "stderr"]

STREAMS: tuple[Stream, ...] = ("stdout", "stderr")


def as_text(stream: Stream, data: bytes, raw: dict[str, str]) -> str:
    """Return a stream as text; bytes that are not UTF-8 go to ``raw`` instead."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raw[stream] = base64.b64encode(data).decode()
        return ""


def printed(result: Result, stream: Stream) -> bytes | None:
    """Return the bytes of a stream; None: too long for the result, ask the service."""
    if stream in result.raw:
        return base64.b64decode(result.raw[stream])
    text = result.stdout if stream == "stdout" else result.stderr
    size = result.stdout_size if stream == "stdout" else result.stderr_size
    return None if size and not text else text.encode()
