"""``bursar simulate``: a campaign in simulated time."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from bursar.broker.provisioning_mode import ProvisioningMode
from bursar.broker.strategies import POLICIES
from bursar.cli.options import (
    RUNS,
    Alpha,
    AsJson,
    Beta,
    Budget,
    BudgetFactor,
    ByStrategy,
    CampaignPath,
    CatalogueFile,
    Choice,
    Deadline,
    DeadlineFactor,
    IfOutOfReach,
    Processors,
    RankBy,
    Refresh,
    RunsFolder,
    Runtime,
    TradeOff,
    WeightsFile,
)
from bursar.cli.output import print_outcome
from bursar.model.errors import InputError
from bursar.planning.policy import Method, Scheduler

CHANCE = "What differs from the estimates"


def register(app: typer.Typer) -> None:
    """Adds this module's command."""
    app.command("simulate")(simulate_campaign)


def simulate_campaign(
    campaign: Annotated[Path | None, *CampaignPath.__metadata__] = None,
    sites: Annotated[
        Path | None,
        typer.Option(
            "--sites",
            metavar="FILE",
            help="Sites file with simulated clusters; other sites are simulated as if they were "
            "idle. Default: this machine alone.",
        ),
    ] = None,
    deadline: Deadline = None,
    budget: Budget = None,
    trade_off: TradeOff = None,
    runtime: Runtime = None,
    processors: Processors = None,
    provisioning: Annotated[
        ProvisioningMode,
        typer.Option(
            help="Reserve what the plan buys (planned); let a pool acquire and release processors "
            "as there is work (dynamic); send each task to a queue when its parents have ended "
            "(best-effort), or all tasks at once (queued); or take whichever serves the goal "
            "best (either)."
        ),
    ] = "planned",
    strategy: ByStrategy = None,
    out_of_reach: IfOutOfReach = "fit",
    deadline_factor: DeadlineFactor = None,
    budget_factor: BudgetFactor = None,
    choice: Choice = None,
    alpha: Alpha = None,
    beta: Beta = None,
    weights: WeightsFile = None,
    refresh: Refresh = None,
    rank_by: RankBy = None,
    catalogue: CatalogueFile = None,
    method: Annotated[
        Method, typer.Option(help="Method that searches for the processors to buy.")
    ] = "auto",
    scheduler: Annotated[
        Scheduler, typer.Option(help="Rule that places tasks on the processors bought.")
    ] = "heft",
    spread: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            min=0.0,
            help="Standard deviation of runtimes, as a share of their estimates.",
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
        int,
        typer.Option(metavar="N", min=0, help="Seed of the random draws.", rich_help_panel=CHANCE),
    ] = 0,
    hidden: Annotated[
        bool,
        typer.Option(
            "--hide-runtimes",
            help="Hide all runtimes from the strategy, so that it has to learn them.",
            rich_help_panel=CHANCE,
        ),
    ] = False,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Start even if the goal cannot be met.")
    ] = False,
    replay: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Replay a run in place of a CAMPAIGN, with the runtimes that its tasks "
            "really had.",
        ),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAME|all",
            help=f"With --replay: policy to replay under: {', '.join(POLICIES)}.",
        ),
    ] = "all",
    name: Annotated[
        str | None,
        typer.Option(help="Keep the simulated run under this name: report, bill and results."),
    ] = None,
    runs: RunsFolder = RUNS,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Plan, run and bill a campaign in simulated time: nothing is started or spent."""
    if replay is not None:
        _replay(replay, policy, campaign, runs, as_json)
        return
    if campaign is None:
        raise InputError("give a CAMPAIGN, or --replay RUN")
    from bursar.api.simulating import simulate
    from bursar.cli.load import brokering, by_factors, load_campaign, load_sites
    from bursar.simulation.execution_model import ExecutionUncertainty

    what = load_campaign(
        campaign,
        deadline=deadline,
        budget=budget,
        trade_off=trade_off,
        runtime=runtime,
        replay_scale=None,
        size_scale=1.0,
    )
    where = load_sites(sites)
    broker = brokering(
        choice=choice,
        alpha=alpha,
        beta=beta,
        weights=weights,
        refresh=refresh,
        rank_by=rank_by,
        seed=seed,
    )
    what = by_factors(what, where, deadline_factor, budget_factor, given=(deadline, budget))
    print_outcome(
        lambda: simulate(
            what,
            where,
            provisioning=provisioning,
            strategy=strategy,
            out_of_reach=out_of_reach,
            broker=broker,
            catalogue=catalogue,
            processors=processors,
            method=method,
            scheduler=scheduler,
            chance=ExecutionUncertainty(spread=spread, failures=failures, seed=seed, hidden=hidden),
            anyway=anyway,
            name=name,
            runs=runs,
            progress=not quiet,
            argv=sys.argv,
        ),
        as_json=as_json,
    )


def _replay(run: str, policy: str, campaign: Path | None, runs: Path, as_json: bool) -> None:
    if campaign is not None:
        raise InputError("takes no CAMPAIGN: the run has its own", where="--replay")
    if policy != "all" and policy not in POLICIES:
        known = ", ".join(POLICIES)
        raise InputError(f'expected all or one of {known}, got "{policy}"', where="--policy")
    from bursar.api.replaying import replay
    from bursar.cli.output import print_json

    wanted = POLICIES if policy == "all" else [p for p in POLICIES if p == policy]
    summary = replay(run, wanted, runs=runs)
    if as_json:
        print_json(summary.to_dict())
    else:
        summary.print()
