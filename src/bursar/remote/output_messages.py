"""What a task of a service has printed, while it runs and in its result."""

import base64

from bursar.remote.messages import Count, ResponseStruct, Result, Stream, TaskState


class StreamPart(ResponseStruct, frozen=True, omit_defaults=True):
    """
    Part of one stream.

    Parameters
    ----------
    offset, size
        First byte of the part, and bytes printed so far.
    text
        The part, where it is UTF-8; it may end within a character, and is in ``base64`` then.
    """

    offset: Count = 0
    size: Count = 0
    text: str = ""
    base64: str = ""

    @property
    def content(self) -> bytes:
        """The part's bytes."""
        return base64.b64decode(self.base64) if self.base64 else self.text.encode()


class RunningOutput(ResponseStruct, frozen=True, omit_defaults=True):
    """
    What a running attempt has printed.

    Parameters
    ----------
    serial
        Number of the attempt among all of the service: with another one, streams begin anew. 0: no
        attempt runs.
    start
        Start of the attempt, as its result will state it, seconds since the epoch; 0: not shown.
    shown
        Whether the worker shows what the attempt prints; else that comes with the result.
    sealed
        Whether that is since only the owner of the task can read what it prints.
    result
        Cursor of the task's result; None: there is none.
    """

    task: Count
    state: TaskState
    serial: Count = 0
    shown: bool = False
    stdout: StreamPart = StreamPart()
    stderr: StreamPart = StreamPart()
    result: Count | None = None
    start: float = 0.0
    sealed: bool = False


def stream_part(offset: int, size: int, content: bytes) -> StreamPart:
    """Return a part of a stream as it is sent."""
    try:
        return StreamPart(offset, size, text=content.decode())
    except UnicodeDecodeError:
        return StreamPart(offset, size, base64=base64.b64encode(content).decode())


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
