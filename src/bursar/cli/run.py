"""``bursar run``: plan, buy, run, watch and bill a campaign; or resume one."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bursar.cli.options import (
    RUNS,
    AsJson,
    Budget,
    CampaignPath,
    Deadline,
    Processors,
    Replay,
    RunsFolder,
    Runtime,
    SitesPath,
    SizeScale,
    TradeOff,
)
from bursar.model.errors import InputError

if TYPE_CHECKING:
    from bursar.api.result import RunResult


def register(app: typer.Typer) -> None:
    """Adds this module's command."""
    app.command("run")(run_campaign)


def run_campaign(
    campaign: Annotated[Path | None, *CampaignPath.__metadata__] = None,
    sites: SitesPath = None,
    deadline: Deadline = None,
    budget: Budget = None,
    trade_off: TradeOff = None,
    runtime: Runtime = None,
    processors: Processors = None,
    replay: Replay = None,
    size_scale: SizeScale = 1.0,
    resume: Annotated[
        str | None, typer.Option(metavar="RUN", help="Go on with a run that was stopped.")
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="With --resume: also try what failed again.")
    ] = False,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Start even if the goal cannot be met.")
    ] = False,
    name: Annotated[str | None, typer.Option(help="Name of the run.")] = None,
    runs: RunsFolder = RUNS,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Plan, buy, run, watch and bill a campaign. Ctrl-C leaves a run that can be resumed."""
    from bursar.cli.output import print_json
    from bursar.report.tables import print_summary

    if resume is not None:
        if campaign is not None:
            raise InputError("takes no CAMPAIGN: the run has its own", where="--resume")
        if any((sites, deadline, trade_off, runtime, processors, replay, anyway, name)):
            raise InputError(
                "goes with --budget, --retry-failed, --runs, --json and --quiet only",
                where="--resume",
            )
        result = _go_on(resume, runs, budget, retry_failed, not quiet)
    elif campaign is None:
        raise InputError("give a CAMPAIGN, or --resume RUN")
    elif retry_failed:
        raise InputError("goes with --resume only", where="--retry-failed")
    else:
        from bursar.api.running import GoalOutOfReach
        from bursar.api.running import run as start
        from bursar.cli.load import load_campaign, load_sites

        what = load_campaign(
            campaign,
            deadline=deadline,
            budget=budget,
            trade_off=trade_off,
            runtime=runtime,
            replay_scale=replay,
            size_scale=size_scale,
        )
        try:
            result = start(
                what,
                load_sites(sites),
                processors=processors,
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


def _go_on(
    run: str, runs: Path, budget: str | None, retry_failed: bool, progress: bool
) -> "RunResult":
    from bursar.api.running import resume
    from bursar.cli.load import parse_budget

    amount = None if budget is None else parse_budget(budget)
    return resume(run, runs=runs, budget=amount, retry_failed=retry_failed, progress=progress)
