"""
Structured logs: a line of JSON for each thing that happens, without secrets.

Messages quote people and programs, so every text is searched for what may be a secret: tokens and
handles are long random words, and such words are not written.
"""

import asyncio
import logging
import re
import sys
import time
from typing import TextIO

import msgspec

LOGGER = "bursar.service"
"""Name of the logger of the service and all its parts."""

LOGGERS = (LOGGER, "bursar.store", "asyncio", "uvicorn")
"""Names of all loggers whose lines are written."""

HIDDEN = "[hidden]"

_SECRET = re.compile(
    r"""
    bursar_[A-Za-z0-9]+_[A-Za-z0-9_-]+            # a token
    | (?i:bearer)\s+\S+                           # a header with one
    | \b[0-9a-f]{24,}\b                           # a handle, a key
    | \b(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{40,}\b  # the same, in fewer letters
    | -----BEGIN[ ].*                             # a key or certificate
    """,
    re.VERBOSE | re.DOTALL,
)


def redact_secrets(text: str) -> str:
    """Return the text on one line, without what may be a secret."""
    return " ".join(_SECRET.sub(HIDDEN, text).split())


class JsonLinesFormatter(logging.Formatter):
    """Formats a log record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return time, level, part, message and the fields of ``extra={"fields": {...}}``."""
        line: dict[str, object] = {
            "time": _timestamp(record.created),
            "level": record.levelname.lower(),
            "part": record.name.removeprefix("bursar.").removeprefix("service."),
            "message": redact_secrets(record.getMessage()),
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            line |= {key: _json_value(value) for key, value in fields.items() if key not in line}
        if record.exc_info and record.exc_info[0] is not None:
            # Where it went wrong, not with which values: these are users' own.
            line["error"] = record.exc_info[0].__name__
            line["where"] = _places(record)
        return msgspec.json.encode(line).decode()


class RateLimitedLog:
    """
    Writes warnings of one kind: the first few in some time, and then how many were left out.

    To be used from one asyncio loop, whose clock measures the span.

    Parameters
    ----------
    most
        Lines written in each span of time.
    seconds
        Length of the span, which begins with its first line.
    """

    def __init__(self, logger: logging.Logger, most: int = 10, seconds: float = 60.0) -> None:
        self._logger = logger
        self._most = most
        self._seconds = seconds
        self._count = 0
        self._last = ""
        self._timer: asyncio.TimerHandle | None = None

    def warning(self, message: str, *values: object) -> None:
        """Write a line, unless there were enough; see :meth:`logging.Logger.warning`."""
        # The span begins with a line: in quiet times no timer runs.
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self.close)
        self._count += 1
        if self._count <= self._most:
            self._logger.warning(message, *values)
        else:
            self._last = message % values

    def close(self) -> None:
        """End the span of time, and write how many lines were left out."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        left_out, self._count = self._count - self._most, 0
        if left_out > 0:
            self._logger.warning(
                "%d more lines of this kind within %g s, the last: %s",
                left_out,
                self._seconds,
                self._last,
            )


def start_logging(level: str, stream: TextIO | None = None) -> None:
    """Write logs of the service and of libraries as lines of JSON; None: to standard error."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonLinesFormatter())
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
    logging.getLogger(LOGGER).setLevel(level.upper())


def _timestamp(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"


def _json_value(value: object) -> object:
    return redact_secrets(value) if isinstance(value, str) else value


def _places(record: logging.LogRecord) -> list[str]:
    """Return file and line of each call, the innermost last."""
    places = []
    trace = record.exc_info[2] if record.exc_info else None
    while trace is not None:
        code = trace.tb_frame.f_code
        places.append(f"{code.co_filename.rpartition('/bursar/')[2]}:{trace.tb_lineno}")
        trace = trace.tb_next
    return places
