"""``bursar plan``: the trade-off curve, before anything starts."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from bursar.cli.options import (
    AsJson,
    Budget,
    CampaignPath,
    Deadline,
    PlanMethod,
    PlanScheduler,
    Processors,
    Replay,
    Runtime,
    SitesPath,
    SizeScale,
    TradeOff,
)

INFEASIBLE = 3
WRONG = 1


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
    method: PlanMethod = "auto",
    scheduler: PlanScheduler = "heft",
    population: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Of ga, moga and nsga2.", rich_help_panel="Search"),
    ] = None,
    generations: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Of ga, moga and nsga2.", rich_help_panel="Search"),
    ] = None,
    evaluations: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Schedules that method auto tries.", rich_help_panel="Search"
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Seed of random choices.", rich_help_panel="Search")
    ] = 0,
    time_limit: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Stop the search after this time; the result then depends on the machine's speed.",
            rich_help_panel="Search",
        ),
    ] = None,
    accounting: Annotated[
        Literal["scheduled", "whole"],
        typer.Option(
            help="Pay only for slots in which tasks run (scheduled), or for every slot "
            "of the plan (whole, as in HPDC'07).",
            rich_help_panel="Search",
        ),
    ] = "scheduled",
    replay: Replay = None,
    size_scale: SizeScale = 1.0,
    exact: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="After the search, let CP-SAT improve the front and prove bounds for this long.",
            rich_help_panel="Search",
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Check every plan of the curve with the independent validator."
        ),
    ] = False,
    as_json: AsJson = False,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write the curve and the plan to this web page."),
    ] = None,
) -> None:
    """Show the trade-off of time against cost of a campaign, before anything starts."""
    from bursar.api.planning import plan
    from bursar.cli.load import load_campaign, load_sites
    from bursar.cli.output import print_json, print_note
    from bursar.planning.policy import SearchLimits
    from bursar.report.progress import PlanProgress

    facts = load_sites(sites)
    loaded = load_campaign(
        campaign,
        deadline=deadline,
        budget=budget,
        trade_off=trade_off,
        runtime=runtime,
        replay_scale=replay,
        size_scale=size_scale,
    )
    limits = SearchLimits(
        population=population,
        generations=generations,
        evaluations=evaluations,
        time_limit=None if time_limit is None else _seconds(time_limit, "--time-limit"),
        exact=0.0 if exact is None else _seconds(exact, "--exact"),
        seed=seed,
    )
    with PlanProgress(facts[0].currency) as progress:
        quote = plan(
            loaded,
            facts,
            processors=processors,
            method=method,
            scheduler=scheduler,
            whole=accounting == "whole",
            limits=limits,
            on_progress=progress,
        )
    if html is not None:
        quote.save(html)
        print_note(f"wrote {html}")
    if as_json:
        print_json(quote.to_dict())
    else:
        quote.print()
    if check:
        _check(quote.check(), len(quote.front.options))
    if quote.chosen is None:
        raise typer.Exit(INFEASIBLE)


def _seconds(text: str, option: str) -> float:
    from bursar.formats.units import parse_duration
    from bursar.model.errors import InputError

    try:
        return parse_duration(text)
    except InputError as error:
        raise error.within(option) from None


def _check(violations: list[str], plans: int) -> None:
    from bursar.cli.output import print_note

    for violation in violations:
        print_note(violation)
    if violations:
        raise typer.Exit(WRONG)
    print_note(f"checked {plans} plan{'s' if plans > 1 else ''}: all keep the rules")
