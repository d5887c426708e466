"""A command makes a result; here it is printed: data on stdout, talk on stderr."""

import sys
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import msgspec
import typer


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


# Prints the result of a command that carries out a campaign: with the result, or with counter-
# offers.


class CampaignResult(Protocol):
    """Result of a campaign."""

    exit_status: int

    def to_dict(self) -> dict[str, Any]:
        """Convert the key figures to a JSON document."""


def print_outcome(make: Callable[[], CampaignResult], *, as_json: bool) -> NoReturn:
    """Makes and prints a campaign's result or, for a goal out of reach, the alternatives."""
    from bursar.api.quote import GoalOutOfReach
    from bursar.report.tables import print_summary

    try:
        result = make()
    except GoalOutOfReach as out_of_reach:
        if as_json:
            print_json(out_of_reach.quote.to_dict())
        else:
            out_of_reach.quote.print()
        raise typer.Exit(out_of_reach.exit_status) from None
    if as_json:
        print_json(result.to_dict())
    else:
        print_summary(result.to_dict())
    raise typer.Exit(result.exit_status)
