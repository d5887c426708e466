"""What comes through a pipe: whole, in memory or in a file, and nobody else's."""

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from bursar.worker.output_capture import OutputCapturePool

LIMIT = 1000


def write(fd: int, data: bytes) -> None:
    """All of it."""
    while data:
        data = data[os.write(fd, data) :]


def test_short_and_long_streams_come_out_whole(tmp_path: Path) -> None:
    """At the limit in memory, past it in the file, and the next use starts empty."""
    captures = OutputCapturePool(LIMIT)
    capture = captures.open(str(tmp_path))

    for size in (0, 1, LIMIT):
        write(capture.writer, b"x" * size)
        assert captures.take(capture, "short", reuse=True) == (b"x" * size, size)
        assert captures.open(str(tmp_path)) is capture
    write(capture.writer, b"y" * (LIMIT + 1))
    assert captures.take(capture, "long", reuse=True) == (b"", LIMIT + 1)
    assert captures.open(str(tmp_path)) is capture
    write(capture.writer, b"z")
    assert captures.take(capture, "short", reuse=False) == (b"z", 1)

    assert [path.name for path in tmp_path.iterdir()] == ["long"]
    assert (tmp_path / "long").read_bytes() == b"y" * (LIMIT + 1)
    captures.close()


def test_more_than_a_pipe_holds_is_drained_on_the_way(tmp_path: Path) -> None:
    """Draining never waits, and takes at most a share before others have their turn."""
    captures = OutputCapturePool(LIMIT)
    capture = captures.open(str(tmp_path))
    data = os.urandom(1 << 20) * 5
    writer = threading.Thread(target=write, args=(capture.writer, data))
    writer.start()

    while writer.is_alive():
        capture.drain()

    assert captures.take(capture, "log", reuse=False) == (b"", len(data))
    assert (tmp_path / "log").read_bytes() == data


def test_a_file_system_without_nameless_files_will_do(tmp_path: Path, monkeypatch: Any) -> None:
    """Then the file has a name from the start, and no leftover."""
    real = os.open

    def refuse(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "not here")
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    captures = OutputCapturePool(LIMIT)
    capture = captures.open(str(tmp_path))
    write(capture.writer, b"y" * 5000)

    assert captures.take(capture, "log", reuse=False) == (b"", 5000)
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_a_stream_that_cannot_be_kept_says_so_once(tmp_path: Path) -> None:
    """The task's outcome tells; the next task's stream is whole again."""
    folder = tmp_path / "logs"
    captures = OutputCapturePool(LIMIT)
    capture = captures.open(str(folder))
    write(capture.writer, b"y" * 5000)

    with pytest.raises(FileNotFoundError):
        captures.take(capture, "log", reuse=True)

    assert captures.open(str(folder)) is capture
    write(capture.writer, b"ok")
    assert captures.take(capture, "log", reuse=False) == (b"ok", 2)


def test_what_was_read_so_far_is_shown_and_stays(tmp_path: Path) -> None:
    """In memory and in the file, from a byte on or before the end; the stream comes out whole."""
    captures = OutputCapturePool(LIMIT)
    capture = captures.open(str(tmp_path))

    assert capture.read(0, 10) == (b"", 0, 0)
    write(capture.writer, b"0123456789")
    assert capture.read(0, 10) == (b"", 0, 0)  # reading shows; draining reads
    capture.drain()
    assert capture.read(0, 4) == (b"0123", 0, 10)
    assert capture.read(-4, 100) == (b"6789", 6, 10)
    assert capture.read(-400, 3) == (b"012", 0, 10)
    assert capture.read(99, 3) == (b"", 10, 10)
    write(capture.writer, b"x" * LIMIT)
    capture.drain()
    assert capture.read(8, 4) == (b"89xx", 8, LIMIT + 10)
    assert capture.read(-2, 4) == (b"xx", LIMIT + 8, LIMIT + 10)

    assert captures.take(capture, "log", reuse=False) == (b"", LIMIT + 10)
    assert (tmp_path / "log").read_bytes() == b"0123456789" + b"x" * LIMIT
