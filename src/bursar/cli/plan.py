"""``bursar plan``: the trade-off curve, before anything starts."""

from pathlib import Path
from typing import Annotated

import typer

from bursar.cli.options import (
    AsJson,
    Budget,
    CampaignPath,
    Deadline,
    Processors,
    Replay,
    Runtime,
    SitesPath,
    SizeScale,
    TradeOff,
)

INFEASIBLE = 3


def register(app: typer.Typer) -> None:
    """Adds this module's command."""
    app.command("plan")(plan_campaign)


def plan_campaign(
    campaign: CampaignPath,
    sites: SitesPath = None,
    deadline: Deadline = None,
    budget: Budget = None,
    trade_off: TradeOff = None,
    runtime: Runtime = None,
    processors: Processors = None,
    replay: Replay = None,
    size_scale: SizeScale = 1.0,
    as_json: AsJson = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the curve as a web page.")
    ] = None,
) -> None:
    """Show what a campaign would take: time against cost, before anything starts."""
    from bursar.api.planning import plan
    from bursar.cli.load import load_campaign, load_sites
    from bursar.cli.output import print_json, say

    proposal = plan(
        load_campaign(
            campaign,
            deadline=deadline,
            budget=budget,
            trade_off=trade_off,
            runtime=runtime,
            replay_scale=replay,
            size_scale=size_scale,
        ),
        load_sites(sites),
        processors=processors,
    )
    if html is not None:
        proposal.save(html)
        say(f"wrote {html}")
    if as_json:
        print_json(proposal.to_dict())
    else:
        proposal.print()
    if proposal.chosen is None:
        raise typer.Exit(INFEASIBLE)
