"""A command makes a result; here it is printed: data on stdout, talk on stderr."""

import sys
from typing import Any

import msgspec


def print_json(result: Any) -> None:
    """One JSON document on stdout, indented, ending with a line feed."""
    text = msgspec.json.format(msgspec.json.encode(result), indent=2)
    sys.stdout.buffer.write(text + b"\n")
    sys.stdout.buffer.flush()


def all_keys(value: Any) -> Any:
    """Convert structs to objects with every key, also keys omitted on the wire."""
    if isinstance(value, msgspec.Struct):
        return {key: all_keys(inner) for key, inner in msgspec.structs.asdict(value).items()}
    if isinstance(value, list | tuple):
        return [all_keys(inner) for inner in value]
    return value


def print_note(message: str) -> None:
    """A line for people, on stderr, out of the way of data."""
    print(message, file=sys.stderr, flush=True)
