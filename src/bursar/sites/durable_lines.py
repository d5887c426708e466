"""A file of JSON lines survives a crash at any time: a line that was added is whole or absent."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)


def read_lines(path: Path, kind: type[T]) -> list[T]:
    """Return the lines in the order of writing, without a line cut off by a crash."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    lines = []
    for one in data.splitlines():
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
            lines.append(msgspec.json.decode(one, type=kind))
    return lines


def encode_lines(lines: Sequence[msgspec.Struct]) -> bytes:
    """Encode lines in the file's format, one JSON object each."""
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def append_lines(path: Path, lines: Sequence[msgspec.Struct]) -> None:
    """Append lines, making the file's folder if missing; the lines are durable on return."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        # Whatever a crash cut off before is a line of its own then.
        start = b"\n" if file.tell() else b""
        file.write(start + encode_lines(lines))
        file.flush()
        os.fsync(file.fileno())
