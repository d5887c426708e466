"""``bursar match``: which sites match the jobs of a campaign, and how they rank."""

from typing import Annotated

import typer

from bursar.cli.options import (
    Alpha,
    AsJson,
    Beta,
    CampaignPath,
    CatalogueFile,
    Choice,
    SitesPath,
    WeightsFile,
)


def register(app: typer.Typer) -> None:
    """Adds this module's command."""
    app.command("match")(match_campaign)


def match_campaign(
    campaign: CampaignPath,
    sites: SitesPath = None,
    task: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Show only this task. Default: one task of each kind."),
    ] = None,
    catalogue: CatalogueFile = None,
    choice: Choice = None,
    alpha: Alpha = None,
    beta: Beta = None,
    weights: WeightsFile = None,
    as_json: AsJson = False,
) -> None:
    """Show which sites match a campaign's jobs, how they rank, and why others do not match."""
    from bursar.api.matching import match
    from bursar.cli.load import brokering
    from bursar.cli.output import print_json
    from bursar.model.errors import InputError

    settings = brokering(choice=choice, alpha=alpha, beta=beta, weights=weights, refresh=None)
    try:
        matches = match(campaign, sites, broker=settings, catalogue=catalogue, task=task)
    except InputError as error:
        if error.where == "task":
            raise InputError(error.message, where="--task", hint=error.hint) from None
        raise
    if as_json:
        print_json(matches.to_dict())
    else:
        matches.print()
    raise typer.Exit(matches.exit_status)
