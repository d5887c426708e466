"""Prints the result of a command that carries out a campaign: with the result, or with counter-
offers."""

from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import typer


class CampaignResult(Protocol):
    """Result of a campaign."""

    exit_status: int

    def to_dict(self) -> dict[str, Any]:
        """Convert the key figures to a JSON document."""


def print_outcome(make: Callable[[], CampaignResult], *, as_json: bool) -> NoReturn:
    """Makes and prints a campaign's result or, for a goal out of reach, the alternatives."""
    from bursar.api.running import GoalOutOfReach
    from bursar.cli.output import print_json
    from bursar.report.tables import print_summary

    try:
        result = make()
    except GoalOutOfReach as out_of_reach:
        if as_json:
            print_json(out_of_reach.proposal.to_dict())
        else:
            out_of_reach.proposal.print()
        raise typer.Exit(out_of_reach.exit_status) from None
    if as_json:
        print_json(result.to_dict())
    else:
        print_summary(result.to_dict())
    raise typer.Exit(result.exit_status)
