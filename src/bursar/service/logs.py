"""
Structured logs: a line of JSON for each thing that happens, without secrets.

What is said comes from people's and programs' messages as well, so that every text is looked
through for what may be a secret: tokens and handles are long random words, and such words are not
written.
"""

import logging
import re
import sys
import time
from typing import TextIO

import msgspec

LOGGER = "bursar.service"
"""Name of the logger of the service and all its parts."""

LOGGERS = (LOGGER, "asyncio", "uvicorn")
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


def redacted(text: str) -> str:
    """The text without what may be a secret, on one line."""
    return " ".join(_SECRET.sub(HIDDEN, text).split())


class JsonLines(logging.Formatter):
    """A record as a line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, part, message, and what was given as ``extra={"fields": {...}}``."""
        line: dict[str, object] = {
            "time": _moment(record.created),
            "level": record.levelname.lower(),
            "part": record.name.removeprefix("bursar.").removeprefix("service."),
            "message": redacted(record.getMessage()),
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            line |= {key: _plain(value) for key, value in fields.items() if key not in line}
        if record.exc_info and record.exc_info[0] is not None:
            # Where it went wrong, not with which values: these are users' own.
            line["error"] = record.exc_info[0].__name__
            line["where"] = _places(record)
        return msgspec.json.encode(line).decode()


def start_logging(level: str, stream: TextIO | None = None) -> None:
    """Lets the service, and what it stands on, write lines of JSON; None: to standard error."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonLines())
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
    logging.getLogger(LOGGER).setLevel(level.upper())


def _moment(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"


def _plain(value: object) -> object:
    return redacted(value) if isinstance(value, str) else value


def _places(record: logging.LogRecord) -> list[str]:
    """File and line of each call, the innermost last."""
    places = []
    trace = record.exc_info[2] if record.exc_info else None
    while trace is not None:
        code = trace.tb_frame.f_code
        places.append(f"{code.co_filename.rpartition('/bursar/')[2]}:{trace.tb_lineno}")
        trace = trace.tb_next
    return places
