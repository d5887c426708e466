"""Logs: one line of JSON for each thing that happens, and no secret in any."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.service.logs import (
    HIDDEN,
    LOGGER,
    LOGGERS,
    RateLimitedLog,
    redact_secrets,
    start_logging,
)


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    written = io.StringIO()
    start_logging("info", written)
    yield written
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate


def test_a_line_is_json(stream: io.StringIO) -> None:
    """Whatever is in the message; with the fields that were given, and nothing below the level."""
    log = logging.getLogger(f"{LOGGER}.runner")
    log.debug("not this")
    log.info('a "quoted"\nthing', extra={"fields": {"status": 200, "time": "never"}})

    (line,) = stream.getvalue().splitlines()
    told = json.loads(line)
    assert told.pop("time").endswith("Z")
    assert told == {
        "level": "info",
        "part": "runner",
        "message": 'a "quoted" thing',
        "status": 200,
    }


def test_an_error_says_where_and_not_with_what(stream: io.StringIO) -> None:
    """Messages of errors may hold what users sent; the places do not."""
    try:
        raise ValueError("command: rm secret")
    except ValueError:
        logging.getLogger(LOGGER).exception("incident 7")

    told = json.loads(stream.getvalue())
    assert (told["error"], told["message"]) == ("ValueError", "incident 7")
    assert "test_logs.py" in told["where"][0]
    assert "rm secret" not in stream.getvalue()


def test_many_lines_of_one_kind_are_summed_up(stream: io.StringIO) -> None:
    """The first few are written, then how many were left out; the same in the next span."""

    def messages() -> list[str]:
        return [json.loads(line)["message"] for line in stream.getvalue().splitlines()]

    async def main() -> None:
        sparing = RateLimitedLog(logging.getLogger(f"{LOGGER}.workers"), most=2, seconds=0.05)
        sparing.warning("frame %d is bad", 0)
        sparing.close()  # nothing was left out
        sparing.close()
        for number in range(1, 6):
            sparing.warning("frame %d is bad", number)
        while len(messages()) < 4:  # the span ends by itself
            await asyncio.sleep(0.01)
        sparing.warning("frame %d is bad", 6)
        sparing.close()

    asyncio.run(main())
    assert messages() == [
        "frame 0 is bad",
        "frame 1 is bad",
        "frame 2 is bad",
        "3 more lines of this kind within 0.05 s, the last: frame 5 is bad",
        "frame 6 is bad",
    ]


@given(st.binary(min_size=16, max_size=32))
def test_no_random_word_is_written(secret: bytes) -> None:
    """Tokens, handles and keys, in the forms in which they travel."""
    token = f"bursar_{secret[:8].hex()}_{(secret * 2).hex()}"

    for text in (token, f"Authorization: Bearer {token}", f"unknown {secret.hex()}."):
        hidden = redact_secrets(f"a request with {text} failed")
        assert secret.hex() not in hidden
        assert HIDDEN in hidden


def test_plain_words_stay() -> None:
    """What people need to read is not taken for a secret."""
    said = "lease-12ab34cd: uni: cannot start a worker: no such file /var/lib/x (status 2, 512 kB)"
    assert redact_secrets(said) == said
    assert redact_secrets("x\n-----BEGIN PRIVATE KEY-----\nMIGH") == f"x {HIDDEN}"
