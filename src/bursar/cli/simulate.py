"""``bursar simulate``: a campaign in simulated time."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from bursar.broker.provisioning import Provisioning
from bursar.broker.strategies import Strategy
from bursar.cli.options import (
    RUNS,
    AsJson,
    Budget,
    CampaignPath,
    Deadline,
    Processors,
    RunsFolder,
    Runtime,
    TradeOff,
)
from bursar.planning.policy import Method, Scheduler

CHANCE = "What differs from the estimates"


def register(app: typer.Typer) -> None:
    """Adds this module's command."""
    app.command("simulate")(simulate_campaign)


def simulate_campaign(
    campaign: CampaignPath,
    sites: Annotated[
        Path | None,
        typer.Option(
            "--sites",
            metavar="FILE",
            help="Sites file: simulated clusters, and any other site as if it were idle. "
            "Without it: this machine.",
        ),
    ] = None,
    deadline: Deadline = None,
    budget: Budget = None,
    trade_off: TradeOff = None,
    runtime: Runtime = None,
    processors: Processors = None,
    provisioning: Annotated[
        Provisioning,
        typer.Option(
            help="By a plan's reservations; by best effort, each task sent to a queue when its "
            "parents have ended; queued at once; or by whichever promises most."
        ),
    ] = "planned",
    strategy: Annotated[
        Strategy | None,
        typer.Option(
            help="Bring the jobs of a bag to the sites one by one, by deadline and budget "
            "(Nimrod/G); takes the place of a plan."
        ),
    ] = None,
    method: Annotated[Method, typer.Option(help="How to search for what to buy.")] = "auto",
    scheduler: Annotated[
        Scheduler, typer.Option(help="How tasks are placed on what is bought.")
    ] = "heft",
    spread: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            min=0.0,
            help="Standard deviation of runtimes over their estimates.",
            rich_help_panel=CHANCE,
        ),
    ] = 0.0,
    failures: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            min=0.0,
            help="Share of attempts that fail.",
            rich_help_panel=CHANCE,
        ),
    ] = 0.0,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Of these draws.", rich_help_panel=CHANCE)
    ] = 0,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Start even if the goal cannot be met.")
    ] = False,
    name: Annotated[
        str | None,
        typer.Option(help="Keep the simulated run under this name: report, bill and results."),
    ] = None,
    runs: RunsFolder = RUNS,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Plan, buy, run and bill a campaign in simulated time: nothing is started or spent."""
    from bursar.api.running import GoalOutOfReach
    from bursar.api.simulating import simulate
    from bursar.cli.load import load_campaign, load_sites
    from bursar.cli.output import print_json
    from bursar.report.tables import print_summary
    from bursar.simulation.world import Chance

    what = load_campaign(
        campaign,
        deadline=deadline,
        budget=budget,
        trade_off=trade_off,
        runtime=runtime,
        replay_scale=None,
        size_scale=1.0,
    )
    try:
        result = simulate(
            what,
            load_sites(sites),
            provisioning=provisioning,
            strategy=strategy,
            processors=processors,
            method=method,
            scheduler=scheduler,
            chance=Chance(spread=spread, failures=failures, seed=seed),
            anyway=anyway,
            name=name,
            runs=runs,
            progress=not quiet,
            argv=sys.argv,
        )
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
