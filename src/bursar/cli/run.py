"""``bursar run``: plan, buy, run, watch and bill a campaign; or resume one."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

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
    Replay,
    RunsFolder,
    Runtime,
    SitesPath,
    SizeScale,
    TradeOff,
    WeightsFile,
)
from bursar.cli.output import print_outcome
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
    provisioning: Annotated[
        Literal["planned", "dynamic"] | None,
        typer.Option(
            help="Reserve what the plan buys (planned), or let a pool acquire and release "
            "them as there is work (dynamic). Default: dynamic where a site has a batch scheduler.",
            show_default=False,
        ),
    ] = None,
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
    replay: Replay = None,
    size_scale: SizeScale = 1.0,
    resume: Annotated[
        str | None, typer.Option(metavar="RUN", help="Resume a run that was stopped.")
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="With --resume: also run failed tasks again.")
    ] = False,
    account: Annotated[
        str | None,
        typer.Option(
            "--account",
            metavar="NAME",
            help="Account in the book that pays; the most that the run may cost is set aside "
            "before it starts.",
            show_default=False,
        ),
    ] = None,
    book: Annotated[
        Path | None,
        typer.Option(
            "--book",
            metavar="FILE",
            envvar="BURSAR_BOOK",
            help="File of the book of accounts. Default: bursar.book.",
            show_default=False,
        ),
    ] = None,
    oversubscribe: Annotated[
        bool,
        typer.Option(
            "--oversubscribe",
            help="Do not wait for processors of this machine that other runs hold.",
        ),
    ] = False,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Start even if the goal cannot be met.")
    ] = False,
    name: Annotated[str | None, typer.Option(help="Name of the run.")] = None,
    runs: RunsFolder = RUNS,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Plan and run a campaign, and bill it. After Ctrl-C the run can be resumed."""
    if resume is not None:
        if campaign is not None:
            raise InputError("takes no CAMPAIGN: the run has its own", where="--resume")
        given = (sites, deadline, trade_off, runtime, processors, replay, name, strategy, account)
        factors = (deadline_factor, budget_factor, choice, alpha, beta, weights, refresh, rank_by)
        others = (
            anyway
            or oversubscribe
            or out_of_reach != "fit"
            or size_scale != 1.0
            or provisioning is not None
        )
        if others or any(option is not None for option in (*given, *factors)):
            raise InputError(
                "goes with --budget, --retry-failed, --runs, --json and --quiet only",
                where="--resume",
            )
        print_outcome(
            lambda: _go_on(resume, runs, budget, retry_failed, not quiet), as_json=as_json
        )
    elif campaign is None:
        raise InputError("give a CAMPAIGN, or --resume RUN")
    elif retry_failed:
        raise InputError("goes with --resume only", where="--retry-failed")
    else:
        from bursar.api.running import run as start
        from bursar.cli.load import brokering, by_factors, load_campaign, load_sites

        what = load_campaign(
            campaign,
            deadline=deadline,
            budget=budget,
            trade_off=trade_off,
            runtime=runtime,
            replay_scale=replay,
            size_scale=size_scale,
        )
        where = load_sites(sites)
        broker = brokering(
            choice=choice, alpha=alpha, beta=beta, weights=weights, refresh=refresh, rank_by=rank_by
        )
        what = by_factors(what, where, deadline_factor, budget_factor, given=(deadline, budget))
        print_outcome(
            lambda: start(
                what,
                where,
                processors=processors,
                provisioning=provisioning,
                strategy=strategy,
                out_of_reach=out_of_reach,
                broker=broker,
                catalogue=catalogue,
                account=account,
                book=book,
                oversubscribe=oversubscribe,
                anyway=anyway,
                name=name,
                runs=runs,
                progress=not quiet,
                argv=sys.argv,
            ),
            as_json=as_json,
        )


def _go_on(
    run: str, runs: Path, budget: str | None, retry_failed: bool, progress: bool
) -> "RunResult":
    from bursar.api.running import resume
    from bursar.cli.load import parse_budget

    amount = None if budget is None else parse_budget(budget)
    return resume(run, runs=runs, budget=amount, retry_failed=retry_failed, progress=progress)
