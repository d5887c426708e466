"""A command makes a result; here it is printed: data on stdout, talk on stderr."""

import sys
from typing import Any

import msgspec


def print_json(result: Any) -> None:
    """One JSON document on stdout, indented, ending with a line feed."""
    text = msgspec.json.format(msgspec.json.encode(result), indent=2)
    sys.stdout.buffer.write(text + b"\n")
    sys.stdout.buffer.flush()


def say(message: str) -> None:
    """A line for people, on stderr, out of the way of data."""
    print(message, file=sys.stderr, flush=True)
