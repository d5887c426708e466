"""``bursar plan``, ``run`` and ``simulate``: campaigns planned, carried out, or simulated."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bursar.broker.strategies import POLICIES
from bursar.cli.campaign_loading import (
    check_probe,
    load_asked,
    load_campaign,
    load_sites,
    parse_budget,
    scaled_down,
)
from bursar.cli.campaign_options import (
    REFUSED_BY_RUN,
    REFUSED_BY_SIMULATE,
    WITH_REPLAYED_RUN,
    WITH_RESUME,
    CampaignOptions,
    named_options,
    refuse,
    refuse_others,
    takes_campaign_options,
)
from bursar.cli.options import (
    ESTIMATES,
    RUNS,
    AsJson,
    Budget,
    ByStrategy,
    CampaignPath,
    Confidence,
    Deadline,
    Explain,
    Fresh,
    HistoryFile,
    IfOutOfReach,
    MarketOption,
    PlanMethod,
    PlanScheduler,
    Probe,
    Processors,
    Replay,
    ReuseFrom,
    RunsFolder,
    Runtime,
    SitesPath,
    SizeScale,
    SnakemakeArguments,
    TradeOff,
    parsed,
    print_json,
    print_note,
    print_outcome,
)
from bursar.model.errors import InputError

if TYPE_CHECKING:
    from bursar.api.reusing import ReusingCampaign
    from bursar.api.run_result import RunResult
    from bursar.model.campaign import Campaign
    from bursar.model.site import SiteFacts


# ``bursar plan``: the trade-off curve, before anything starts.

INFEASIBLE = 3
WRONG = 1

OF_A_PLAN = frozenset(
    f"--{name}"
    for name in [
        "processors",
        "method",
        "scheduler",
        "population",
        "generations",
        "evaluations",
        "seed",
        "time-limit",
        "accounting",
        "exact",
        "check",
        "html",
    ]
)
"""Options of ``bursar plan`` that say how a plan is made or shown."""


def register_plan(app: typer.Typer) -> None:
    """Add ``bursar plan`` to the command line."""
    app.command("plan")(plan_campaign)


def plan_campaign(
    context: typer.Context,
    campaign: CampaignPath,
    sites: SitesPath = None,
    market: MarketOption = None,
    deadline: Deadline = None,
    budget: Budget = None,
    trade_off: TradeOff = None,
    confidence: Confidence = None,
    runtime: Runtime = None,
    probe: Probe = None,
    processors: Processors = None,
    strategy: ByStrategy = None,
    out_of_reach: IfOutOfReach = "fit",
    method: PlanMethod = "auto",
    scheduler: PlanScheduler = "heft",
    population: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Size of the population of the methods ga, moga and nsga2.",
            rich_help_panel=ESTIMATES,
        ),
    ] = None,
    generations: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Number of generations of the methods ga, moga and nsga2.",
            rich_help_panel=ESTIMATES,
        ),
    ] = None,
    evaluations: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Number of schedules that the method auto tries.",
            rich_help_panel=ESTIMATES,
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Seed of random choices.", rich_help_panel=ESTIMATES)
    ] = 0,
    time_limit: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Stop the search after this time; the result then depends on the machine's speed.",
            rich_help_panel=ESTIMATES,
        ),
    ] = None,
    accounting: Annotated[
        Literal["scheduled", "whole"],
        typer.Option(
            help="Pay only for slots in which tasks run (scheduled), or for every slot "
            "of the plan (whole, as in HPDC'07).",
            rich_help_panel=ESTIMATES,
        ),
    ] = "scheduled",
    replay: Replay = None,
    size_scale: SizeScale = 1.0,
    snakemake: SnakemakeArguments = None,
    exact: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="After the search, let CP-SAT improve the front and prove bounds for this long.",
            rich_help_panel=ESTIMATES,
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Check every plan of the curve with the independent validator."
        ),
    ] = False,
    history: HistoryFile = None,
    runs: RunsFolder = RUNS,
    fresh: Fresh = False,
    reuse_from: ReuseFrom = None,
    explain: Explain = False,
    as_json: AsJson = False,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write also the curve and the plan to this web page."),
    ] = None,
) -> None:
    """Show the trade-off of time against cost of a campaign, before anything starts."""
    from bursar.api.planning import plan
    from bursar.api.quote import Quote
    from bursar.api.quoting import quote_named_strategy
    from bursar.api.reusing import reusing
    from bursar.model.campaign import Campaign
    from bursar.planning.policy import SearchLimits
    from bursar.report.progress import PlanProgress
    from bursar.runs.recording.user_history import NOWHERE
    from bursar.runs.task_needs import memory_note

    named = named_options(context)
    if strategy is None and "--out-of-reach" in named:
        raise InputError("goes with --strategy", where="--out-of-reach")
    check_probe(probe, runtime, replay)
    facts = load_sites(sites, market)
    loaded = load_campaign(
        campaign,
        deadline=deadline,
        budget=budget,
        trade_off=trade_off,
        confidence=confidence,
        runtime=runtime,
        replay_scale=replay,
        size_scale=size_scale,
        snakemake=snakemake,
    )
    loaded = scaled_down(loaded, facts)
    limits = SearchLimits(
        population=population,
        generations=generations,
        evaluations=evaluations,
        time_limit=None if time_limit is None else _seconds(time_limit, "--time-limit"),
        exact=0.0 if exact is None else _seconds(exact, "--exact"),
        seed=seed,
    )
    ahead = reusing(loaded, runs, fresh=fresh, reuse_from=reuse_from, records=False)
    for line in ahead.notes(explain):
        print_note(line)
    if ahead.is_done:
        _print_nothing_left(ahead, facts[0].currency, as_json)
        return
    measured = None
    if probe is not None:
        from bursar.api.probing import probe_campaign

        measured = probe_campaign(ahead, facts, probe, processors=processors, progress=True)
        loaded = measured.campaign
        ahead = replace(ahead, whole=loaded)
    known_from = history if measured is None else NOWHERE
    quote: Quote | Campaign = ahead.rest()
    if strategy is not None:
        if loaded.workflow.is_bag and (useless := sorted(named & OF_A_PLAN)):
            raise InputError("goes with a plan; a strategy decides on the way", where=useless[0])
        quote = quote_named_strategy(
            ahead.rest(),
            facts,
            strategy,
            out_of_reach=out_of_reach if "--out-of-reach" in named else None,
            history=known_from,
            runs=runs,
        )
    if isinstance(quote, Campaign):
        with PlanProgress(facts[0].currency) as progress:
            quote = plan(
                quote,
                facts,
                processors=processors,
                method=method,
                scheduler=scheduler,
                whole=accounting == "whole",
                limits=limits,
                on_progress=progress,
                history=known_from,
                runs=runs,
            )
    if measured is not None:
        quote = replace(quote, probe=measured.summary)
    if html is not None:
        quote.save(html)
        print_note(f"wrote {html}")
    if as_json:
        print_json(quote.to_dict())
    else:
        quote.print()
        if line := memory_note(loaded.workflow.tasks, facts):
            print_note(line)
        if strategy is None and not named & {"--processors", "--method", "--scheduler"}:
            _print_default_strategy(loaded, facts)
    if check:
        _check(quote.check(), len(quote.front.options))
    if not quote.feasible:
        raise typer.Exit(INFEASIBLE)


def _print_default_strategy(campaign: "Campaign", sites: Sequence["SiteFacts"]) -> None:
    """Say where ``bursar run`` follows a strategy unless a way to get processors is stated."""
    from bursar.broker.policy_choice import PolicyRequest, choose_policy

    policy = choose_policy(campaign, sites, PolicyRequest()).policy
    if policy.kind == "economy":
        print_note(
            f"bursar run follows no plan here, but the {policy.strategy} strategy: bursar plan "
            f"--strategy {policy.strategy} shows what to expect; with -p N, or --provisioning "
            "planned, bursar run follows a plan"
        )


def _print_nothing_left(ahead: "ReusingCampaign", currency: str, as_json: bool) -> None:
    """Print what is said of a campaign all of whose results are there."""
    from bursar.broker.policy_choice import SupplyPolicy

    nothing = ahead.nothing_left(SupplyPolicy(), currency)
    if as_json:
        print_json(nothing.to_dict())
    else:
        nothing.print()


def _seconds(text: str, option: str) -> float:
    from bursar.formats.units import parse_duration

    return parsed(parse_duration, text, option)


def _check(violations: list[str], plans: int) -> None:

    for violation in violations:
        print_note(violation)
    if violations:
        raise typer.Exit(WRONG)
    print_note(f"checked {plans} plan{'s' if plans > 1 else ''}: all keep the rules")


# ``bursar run``: plan, buy, run, watch and bill a campaign; or resume one.


def register_run(app: typer.Typer) -> None:
    """Add ``bursar run`` to the command line."""
    app.command("run")(takes_campaign_options(run_campaign, REFUSED_BY_RUN))


def run_campaign(options: CampaignOptions, named: frozenset[str]) -> None:
    """Plan and run a campaign, and bill it. After Ctrl-C the run can be resumed."""
    if options.resume is not None:
        if options.campaign is not None:
            raise InputError("takes no CAMPAIGN: the run has its own", where="--resume")
        refuse_others(named, "--resume", WITH_RESUME)
        print_outcome(lambda: _go_on(options), as_json=options.as_json)
    refuse(named, REFUSED_BY_RUN)
    for option in ("--retry-failed", "--as-it-was", "--as-it-is"):
        if option in named:
            raise InputError("goes with --resume only", where=option)
    if options.campaign is None:
        if options.replay is not None:
            raise InputError(
                "a past run is replayed in simulated time: bursar simulate --replay RUN",
                where="--replay",
            )
        raise InputError("give a CAMPAIGN, or --resume RUN")
    from bursar.api.quote import GoalOutOfReach
    from bursar.api.running import run
    from bursar.report.charts import describe

    check_probe(options.probe, options.runtime, options.replay)
    asked = load_asked(options.campaign, options)
    if options.accept is not None and options.anyway:
        raise InputError("goes without --anyway, which takes the goal as it is", where="--accept")

    def begin(campaign: "Campaign", *, anyway: bool) -> "RunResult":
        return run(
            campaign,
            asked.sites,
            processors=options.processors,
            provisioning=options.provisioning,
            strategy=options.strategy,
            out_of_reach=options.out_of_reach if "--out-of-reach" in named else None,
            broker=asked.broker,
            catalogue=options.catalogue,
            seed=options.seed if "--seed" in named else None,
            method=options.method if "--method" in named else None,
            scheduler=options.scheduler if "--scheduler" in named else None,
            account=options.account,
            book=options.book,
            oversubscribe=options.oversubscribe,
            project=options.project,
            anyway=anyway,
            name=options.name,
            runs=options.runs,
            probe=options.probe,
            progress=not options.quiet,
            argv=_recorded(sys.argv),
            detach=options.detach,
            notify=_checked(options.notify or ()),
            fresh=options.fresh,
            reuse_from=options.reuse_from,
            explain=options.explain,
            history=options.history,
        )

    def begin_or_accept() -> "RunResult":
        try:
            return begin(asked.campaign, anyway=options.anyway)
        except GoalOutOfReach as refused:
            if options.accept is None:
                raise
            found = refused.quote.counter_offer(options.accept, asked.campaign)
            if found is None:
                print_note(f"there is no counter-offer of the kind {options.accept}")
                raise
            offer, campaign = found
            taken = describe(offer, refused.quote.currency)
            print_note(f"{refused.quote.reason}; taken in its place: {taken}")
            # A strategy runs what fits into the goal as it is.
            return begin(campaign, anyway=campaign is asked.campaign)

    print_outcome(begin_or_accept, as_json=options.as_json)


def _checked(targets: Sequence[str]) -> Sequence[str]:
    """Return the targets of notices; refuse a wrong one by the option's name."""
    if not targets:
        return ()
    from bursar.runs.notices import check_target

    return [parsed(check_target, target, "--notify") for target in targets]


def _recorded(argv: Sequence[str]) -> list[str]:
    """Return the command line for the record, without addresses that may be secret."""
    if not any(word.startswith("--notify") for word in argv):
        return list(argv)
    from bursar.runs.notices import shown

    found = []
    for before, word in zip(["", *argv], argv, strict=False):
        name, equals, value = word.partition("=")
        if before == "--notify":
            word = shown(word)
        elif name == "--notify" and equals:
            word = f"{name}={shown(value)}"
        found.append(word)
    return found


def _go_on(options: CampaignOptions) -> "RunResult":
    from bursar.api.running import resume

    assert options.resume is not None
    if options.as_it_was and options.as_it_is:
        raise InputError("goes without --as-it-is", where="--as-it-was")
    return resume(
        options.resume,
        runs=options.runs,
        budget=None if options.budget is None else parse_budget(options.budget),
        retry_failed=options.retry_failed,
        anyway=options.anyway,
        progress=not options.quiet,
        detach=options.detach,
        changed="as-it-was" if options.as_it_was else "as-it-is" if options.as_it_is else None,
    )


# ``bursar simulate``: a campaign, or a past run, in simulated time.


def register_simulate(app: typer.Typer) -> None:
    """Add ``bursar simulate`` to the command line."""
    app.command("simulate")(takes_campaign_options(simulate_campaign, REFUSED_BY_SIMULATE))


def simulate_campaign(options: CampaignOptions, named: frozenset[str]) -> None:
    """Plan, run and bill a campaign in simulated time: nothing is started or spent."""
    refuse(named, REFUSED_BY_SIMULATE)
    if options.campaign is None:
        if options.replay is None:
            raise InputError("give a CAMPAIGN, or --replay RUN")
        refuse_others(named, "--replay", WITH_REPLAYED_RUN)
        _replay(options.replay, options)
        return
    if "--policy" in named:
        raise InputError("goes with --replay RUN, without a CAMPAIGN", where="--policy")
    from bursar.api.simulating import simulate
    from bursar.simulation.execution_model import ExecutionUncertainty

    asked = load_asked(options.campaign, options)
    campaign = asked.campaign
    if options.explain and options.reuse_from is None:
        raise InputError("goes with --reuse-from in simulated time", where="--explain")
    if options.reuse_from is not None:
        from bursar.api.reusing import reusing

        ahead = reusing(campaign, options.runs, reuse_from=options.reuse_from, records=False)
        for line in ahead.notes(options.explain):
            print_note(line)
        if ahead.is_done:
            _print_nothing_left(ahead, asked.sites[0].currency, options.as_json)
            return
        campaign = ahead.rest()
    chance = ExecutionUncertainty(
        spread=options.spread,
        failures=options.failures,
        stragglers=options.stragglers,
        seed=options.seed,
        hidden=options.hide_runtimes,
    )
    print_outcome(
        lambda: simulate(
            campaign,
            asked.sites,
            provisioning=options.provisioning,
            strategy=options.strategy,
            out_of_reach=options.out_of_reach if "--out-of-reach" in named else None,
            broker=asked.broker,
            catalogue=options.catalogue,
            processors=options.processors,
            method=options.method if "--method" in named else None,
            scheduler=options.scheduler if "--scheduler" in named else None,
            chance=chance,
            anyway=options.anyway,
            name=options.name,
            runs=options.runs,
            progress=not options.quiet,
            argv=sys.argv,
        ),
        as_json=options.as_json,
    )


def _replay(run: str, options: CampaignOptions) -> None:
    policy = options.policy
    if policy != "all" and policy not in POLICIES:
        known = ", ".join(POLICIES)
        raise InputError(f'expected all or one of {known}, got "{policy}"', where="--policy")
    from bursar.api.replaying import replay

    wanted = POLICIES if policy == "all" else [p for p in POLICIES if p == policy]
    summary = replay(run, wanted, runs=options.runs)
    if options.as_json:
        print_json(summary.to_dict())
    else:
        summary.print()
