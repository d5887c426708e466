"""Options of ``bursar run`` and ``simulate``; the campaign and sites that they name."""

import gc
import inspect
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

import typer
from typer.models import OptionInfo

from bursar.broker.policy_choice import ProvisioningMode
from bursar.broker.strategies import POLICIES
from bursar.cli.options import (
    ESTIMATES,
    PURCHASE,
    RUNNING,
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
    MarketOption,
    PlanMethod,
    PlanScheduler,
    Processors,
    RankBy,
    Refresh,
    Runtime,
    SitesPath,
    SizeScale,
    TradeOff,
    WeightsFile,
)
from bursar.model.campaign import Campaign, Goal, Workflow
from bursar.model.errors import InputError
from bursar.model.matching import Brokering
from bursar.model.site import BuyingProtocol, SiteFacts, with_market

# The options of ``bursar run`` and ``bursar simulate``, stated once for both commands.

SIMULATED = "Simulated time"


@dataclass(frozen=True, kw_only=True)
class CampaignOptions:
    """Values of the options of a command that carries a campaign out, as typed."""

    campaign: Annotated[Path | None, *CampaignPath.__metadata__] = None
    sites: SitesPath = None
    market: MarketOption = None
    deadline: Deadline = None
    budget: Budget = None
    trade_off: TradeOff = None
    runtime: Runtime = None
    processors: Processors = None
    provisioning: Annotated[
        ProvisioningMode | None,
        typer.Option(
            metavar="MODE",
            help="Reserve what a plan buys (planned), or let a pool acquire and release processors "
            "as there is work (dynamic). In simulated time also: send each task to a queue when "
            "its parents have ended (best-effort), or all tasks at once (queued); or take "
            "whichever serves the goal best (either). Default: dynamic where a site has a batch "
            "scheduler or is another Bursar, else planned.",
            show_default=False,
            rich_help_panel=PURCHASE,
        ),
    ] = None
    strategy: ByStrategy = None
    out_of_reach: IfOutOfReach = "fit"
    deadline_factor: DeadlineFactor = None
    budget_factor: BudgetFactor = None
    choice: Choice = None
    alpha: Alpha = None
    beta: Beta = None
    weights: WeightsFile = None
    refresh: Refresh = None
    rank_by: RankBy = None
    catalogue: CatalogueFile = None
    method: PlanMethod = "auto"
    scheduler: PlanScheduler = "heft"
    seed: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Seed of random draws: of the broker's choices, and in simulated time of runtimes "
            "and failures.",
            rich_help_panel=ESTIMATES,
        ),
    ] = 0
    replay: Annotated[
        str | None,
        typer.Option(
            metavar="SCALE|RUN",
            help="Replay what was recorded. With a CAMPAIGN that is a recorded workflow: replace "
            "each task by a stand-in that takes its recorded runtime times SCALE. Without a "
            "CAMPAIGN, in simulated time: replay a past RUN under other policies, with the "
            "runtimes that its tasks really had.",
            rich_help_panel=ESTIMATES,
        ),
    ] = None
    size_scale: SizeScale = 1.0
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway", help="Start even if the goal cannot be met.", rich_help_panel=RUNNING
        ),
    ] = False
    name: Annotated[
        str | None,
        typer.Option(help="Name of the run. A simulated run is kept only if it has a name."),
    ] = None
    runs: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            envvar="BURSAR_RUNS",
            help="Folder that contains the runs.",
            rich_help_panel=RUNNING,
        ),
    ] = RUNS
    resume: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Resume a run that was stopped."),
    ] = None
    retry_failed: Annotated[
        bool,
        typer.Option(
            "--retry-failed",
            help="With --resume: also run failed tasks again.",
            rich_help_panel=RUNNING,
        ),
    ] = False
    account: Annotated[
        str | None,
        typer.Option(
            "--account",
            metavar="NAME",
            help="Account in the book that pays; the most that the run may cost is set aside "
            "before it starts.",
            show_default=False,
            rich_help_panel=PURCHASE,
        ),
    ] = None
    book: Annotated[
        Path | None,
        typer.Option(
            "--book",
            metavar="FILE",
            envvar="BURSAR_BOOK",
            help="File of the book of accounts. Default: bursar.book.",
            show_default=False,
            rich_help_panel=PURCHASE,
        ),
    ] = None
    oversubscribe: Annotated[
        bool,
        typer.Option(
            "--oversubscribe",
            help="Use all processors of this machine, also those that other runs use.",
            rich_help_panel=PURCHASE,
        ),
    ] = False
    detach: Annotated[
        bool,
        typer.Option(
            "--detach",
            help="Start the run and return; it goes on without this terminal. "
            "See it with bursar attach RUN.",
        ),
    ] = False
    spread: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            min=0.0,
            help="Standard deviation of runtimes, as a share of their estimates.",
            rich_help_panel=SIMULATED,
        ),
    ] = 0.0
    failures: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            min=0.0,
            help="Share of attempts that fail.",
            rich_help_panel=SIMULATED,
        ),
    ] = 0.0
    hide_runtimes: Annotated[
        bool,
        typer.Option(
            "--hide-runtimes",
            help="Hide all runtimes from the strategy, so that it has to learn them.",
            rich_help_panel=SIMULATED,
        ),
    ] = False
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAME|all",
            help=f"With --replay RUN: policy to replay under: {', '.join(POLICIES)}.",
            rich_help_panel=SIMULATED,
        ),
    ] = "all"
    as_json: AsJson = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False


REFUSED_BY_RUN: Mapping[str, str] = {
    "--spread": "real tasks take the time that they take; see bursar simulate",
    "--failures": "real attempts fail when they fail; see bursar simulate",
    "--hide-runtimes": "a real run learns runtimes where the campaign states none",
    "--policy": "goes with --replay RUN, which bursar simulate carries out",
}
"""Options of the record that make no sense in a real run, and why."""

REFUSED_BY_SIMULATE: Mapping[str, str] = {
    "--resume": "a simulation goes to its end at once, so that nothing is left to resume",
    "--retry-failed": "goes with --resume, which bursar run carries out",
    "--account": "a simulation charges nobody; give what the account has left as --budget",
    "--book": "a simulation charges nobody",
    "--oversubscribe": "simulated sites are idle: no other run holds their processors",
    "--detach": "a simulation goes to its end at once, so that nothing is left to detach",
}
"""Options of the record that make no sense in simulated time, and why."""

WITH_RESUME = (
    "--resume",
    "--budget",
    "--retry-failed",
    "--anyway",
    "--detach",
    "--runs",
    "--json",
    "--quiet",
)
"""Options that go with the resumption of a run."""

WITH_REPLAYED_RUN = ("--replay", "--policy", "--runs", "--json", "--quiet")
"""Options that go with the replay of a past run."""

CampaignCommand = Callable[[CampaignOptions, frozenset[str]], None]
"""Carries the values of options out; also gets the options that the command line names."""


def takes_campaign_options(
    work: CampaignCommand, refused: Mapping[str, str]
) -> Callable[..., None]:
    """
    Return a command with the options of :class:`CampaignOptions`.

    Options that the command refuses are understood, so that the reason can be told, and are not
    in the help.

    The options that are named on the command line are known to ``work``, because a value may
    also be a default or come from the environment, which refuses nothing.
    """

    def command(context: typer.Context, **values: Any) -> None:
        named = frozenset(
            max(parameter.opts, key=len)
            for parameter in context.command.params
            if _is_typed(context, parameter.name)
        )
        work(CampaignOptions(**values), named)

    hints = get_type_hints(CampaignOptions, include_extras=True)
    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=_shown(field.name, hints[field.name], refused),
        )
        for field in fields(CampaignOptions)
    ]
    first = inspect.Parameter(
        "context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
    )
    command.__signature__ = inspect.Signature([first, *parameters])  # type: ignore[attr-defined]
    command.__doc__, command.__name__ = work.__doc__, work.__name__
    return command


def _shown(name: str, hint: Any, refused: Mapping[str, str]) -> Any:
    """Return an option's annotation; what the command refuses is not in the help."""
    kind, *rules = get_args(hint)
    (rule,) = (copy(one) for one in rules)
    if isinstance(rule, OptionInfo):
        rule.hidden = f"--{name.replace('_', '-')}" in refused
    return Annotated[kind, rule]


def _is_typed(context: typer.Context, name: str | None) -> bool:
    source = context.get_parameter_source(name or "")
    return source is not None and source.name == "COMMANDLINE"


def refuse(named: Iterable[str], reasons: Mapping[str, str]) -> None:
    """
    Refuse options that make no sense for a command.

    Raises
    ------
    InputError
        With the reason for the first of them.
    """
    for option in sorted(named):
        if option in reasons:
            raise InputError(reasons[option], where=option)


def refuse_others(named: Iterable[str], option: str, allowed: Iterable[str]) -> None:
    """
    Refuse options that do not go with an option.

    Raises
    ------
    InputError
        With the options that do.
    """
    companions = [one for one in allowed if one != option]
    if any(one.startswith("-") and one != option and one not in companions for one in named):
        raise InputError(
            f"goes with {', '.join(companions[:-1])} and {companions[-1]} only", where=option
        )


# Loads the campaign and the sites that a command line names.

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedCampaign:
    """
    The request that a command line makes.

    Parameters
    ----------
    campaign
        Campaign with the goal of the command line.
    sites
        Sites to carry the campaign out on.
    broker
        How jobs are to be matched to sites; None: nothing is stated.
    """

    campaign: Campaign
    sites: tuple[SiteFacts, ...]
    broker: Brokering | None


def load_asked(path: Path, options: "CampaignOptions") -> AskedCampaign:
    """
    Read the campaign and the sites that the options of a command name.

    Raises
    ------
    InputError
        Naming the file and place, or the option, that is wrong.
    """
    campaign = load_campaign(
        path,
        deadline=options.deadline,
        budget=options.budget,
        trade_off=options.trade_off,
        runtime=options.runtime,
        replay_scale=None if options.replay is None else _scale(options.replay),
        size_scale=options.size_scale,
    )
    sites = load_sites(options.sites, options.market)
    broker = brokering(
        choice=options.choice,
        alpha=options.alpha,
        beta=options.beta,
        weights=options.weights,
        refresh=options.refresh,
        rank_by=options.rank_by,
        seed=options.seed,
    )
    campaign = by_factors(
        campaign,
        sites,
        options.deadline_factor,
        options.budget_factor,
        given=(options.deadline, options.budget),
    )
    return AskedCampaign(campaign=campaign, sites=sites, broker=broker)


def _scale(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(
            f'expected a factor for the recorded runtimes, got "{text}"',
            where="--replay",
            hint="to replay a past run, leave the CAMPAIGN out",
        ) from None


def load_campaign(
    path: Path,
    *,
    deadline: str | None,
    budget: str | None,
    trade_off: float | None,
    runtime: str | None,
    replay_scale: float | None,
    size_scale: float,
) -> Campaign:
    """
    Read the campaign in a file, with the command line's options applied.

    Raises
    ------
    InputError
        Naming the file and place, or the option, that is wrong.
    """
    from bursar.formats.campaign_file import read_campaign

    campaign = read_campaign(path)
    # The tasks stay until this process ends: the search for cycles need never look at them again.
    gc.freeze()
    if replay_scale is not None:
        campaign = _replayed(campaign, path, replay_scale, size_scale)
    elif size_scale != 1.0:
        raise InputError("goes with --replay only", where="--size-scale")
    if runtime is not None:
        campaign = _with_runtime(campaign, runtime)
    goal = with_options(campaign.goal, deadline=deadline, budget=budget, trade_off=trade_off)
    return replace(campaign, goal=goal)


def load_sites(path: Path | None, market: BuyingProtocol | None = None) -> tuple[SiteFacts, ...]:
    """
    The sites of a file, or this machine.

    Parameters
    ----------
    market
        How processors are bought at all of them; None: as the file says of each.
    """
    if path is None:
        from bursar.sites.local import this_machine

        found: tuple[SiteFacts, ...] = (this_machine(),)
    else:
        from bursar.api.site_resolution import read_counted_sites

        found = read_counted_sites(path)
    if market is None:
        return found
    try:
        return tuple(with_market(site, market) for site in found)
    except ValueError as error:
        raise InputError(str(error), where="--market") from None


def brokering(
    *,
    choice: str | None,
    alpha: float | None,
    beta: float | None,
    weights: Path | None,
    refresh: str | None,
    rank_by: Literal["site", "index"] | None = None,
    seed: int = 0,
) -> Brokering | None:
    """
    How the command line wants jobs matched to sites; None: it does not say.

    Raises
    ------
    InputError
        Naming the option that is wrong, or the place in the file of weights.
    """
    if all(option is None for option in (choice, alpha, beta, weights, refresh, rank_by)):
        return None
    given: dict[str, object] = {"seed": seed}
    if weights is not None:
        if alpha is not None or beta is not None:
            raise InputError("goes without --alpha and --beta", where="--weights")
        from bursar.formats.network_files import read_weights

        found = read_weights(weights)
        given |= {"alpha": found.alpha, "beta": found.beta}
    if refresh is not None:
        from bursar.formats.units import parse_duration

        given["refresh"] = _parsed(parse_duration, refresh, "--refresh")
    named = {"choice": choice, "alpha": alpha, "beta": beta, "rank_by": rank_by}
    given |= {option: value for option, value in named.items() if value is not None}
    for option, value in given.items():
        try:
            Brokering(**{option: value})  # type: ignore[arg-type]
        except ValueError as error:
            raise InputError(str(error), where=f"--{option}") from None
    return Brokering(**given)  # type: ignore[arg-type]


def by_factors(
    campaign: Campaign,
    sites: tuple[SiteFacts, ...],
    deadline_factor: float | None,
    budget_factor: float | None,
    *,
    given: tuple[str | None, str | None],
) -> Campaign:
    """
    Set the campaign's limits from ``--deadline-factor`` and ``--budget-factor``.

    Raises
    ------
    InputError
        When a limit is given both ways, or a factor makes no sense.
    """
    if deadline_factor is None and budget_factor is None:
        return campaign
    factors = (deadline_factor, budget_factor)
    for name, limit, factor in zip(("deadline", "budget"), given, factors, strict=True):
        if limit is not None and factor is not None:
            raise InputError(f"goes without --{name}", where=f"--{name}-factor")
    from bursar.api.planning import with_factors

    return with_factors(
        campaign, sites, deadline_factor=deadline_factor, budget_factor=budget_factor
    )


def with_options(
    goal: Goal, *, deadline: str | None, budget: str | None, trade_off: float | None
) -> Goal:
    """Return the goal with the values of the options that were given."""
    from bursar.formats.units import parse_duration

    if deadline is not None:
        goal = _replace(
            goal, "--deadline", deadline=_parsed(parse_duration, deadline, "--deadline")
        )
    if budget is not None:
        amount, currency = parse_budget(budget)
        goal = _replace(goal, "--budget", budget=amount, currency=currency)
    if trade_off is not None:
        goal = _replace(goal, "--trade-off", trade_off=trade_off)
    return goal


def parse_budget(text: str) -> tuple[float, str | None]:
    """Amount and currency that ``--budget`` names."""
    from bursar.formats.units import parse_amount

    return _parsed(parse_amount, text, "--budget")


def _parsed(parse: Callable[[str], T], text: str, option: str) -> T:
    try:
        return parse(text)
    except InputError as error:
        raise error.within(option) from None


def _replace(goal: Goal, option: str, **changes: object) -> Goal:
    try:
        return replace(goal, **changes)  # type: ignore[arg-type]
    except ValueError as error:
        raise InputError(str(error), where=option) from None


def _replayed(campaign: Campaign, path: Path, scale: float, size_scale: float) -> Campaign:
    from bursar.formats.recorded_tasks import replay

    if not campaign.recorded:
        raise InputError(
            "is no recorded workflow; its tasks have programs of their own",
            where=str(path),
            hint="leave --replay out",
        )
    return replay(campaign, scale=scale, size_scale=size_scale)


def _with_runtime(campaign: Campaign, text: str) -> Campaign:
    from bursar.formats.units import parse_duration

    runtime = _parsed(parse_duration, text, "--runtime")
    tasks = tuple(
        replace(task, runtime=runtime) if task.runtime is None else task
        for task in campaign.workflow.tasks
    )
    return replace(campaign, workflow=Workflow(tasks))
