"""Options of ``bursar run`` and ``bursar simulate``, stated once for both commands."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

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
    AsItIs,
    AsItWas,
    AsJson,
    Beta,
    Budget,
    BudgetFactor,
    ByStrategy,
    CampaignPath,
    CatalogueFile,
    Choice,
    Confidence,
    Deadline,
    DeadlineFactor,
    Explain,
    Fresh,
    HistoryFile,
    IfOutOfReach,
    MarketOption,
    Oversubscribe,
    PayingAccount,
    PayingBook,
    PlanMethod,
    PlanScheduler,
    Probe,
    Processors,
    RankBy,
    Refresh,
    ReuseFrom,
    RunProject,
    Runtime,
    SitesPath,
    SizeScale,
    TradeOff,
    WeightsFile,
)
from bursar.model.errors import InputError

SIMULATED = "Simulated time"


@dataclass(frozen=True, kw_only=True)
class CampaignOptions:
    """Values of the options of a command that carries a campaign out, as typed."""

    campaign: Annotated[Path | None, *CampaignPath.__metadata__] = None
    sites: SitesPath = None
    market: MarketOption = None
    agreement: Annotated[
        str | None,
        typer.Option(
            "--agreement",
            metavar="ID[@SITE]",
            help="Use an agreement that was made before with another Bursar, and buy nothing else "
            "there. SITE may be left out where the sites file has one other Bursar.",
            rich_help_panel=PURCHASE,
        ),
    ] = None
    give_back: Annotated[
        bool,
        typer.Option(
            "--give-back",
            help="Give the agreement of --agreement back when the run has ended. Default: it goes "
            "on to its end.",
            rich_help_panel=PURCHASE,
        ),
    ] = False
    deadline: Deadline = None
    budget: Budget = None
    trade_off: TradeOff = None
    confidence: Confidence = None
    runtime: Runtime = None
    probe: Probe = None
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
            "--anyway",
            help="Start even if the goal cannot be met or a program is not found.",
            rich_help_panel=RUNNING,
        ),
    ] = False
    accept: Annotated[
        Literal["time", "budget", "share"] | None,
        typer.Option(
            metavar="time|budget|share",
            help="Take the counter-offer of this kind in place of a goal that cannot be met: time, "
            "the shortest time within the budget, budget, the least cost at the deadline, or "
            "share, as many of the tasks as fit into both.",
            rich_help_panel=RUNNING,
        ),
    ] = None
    copies: Annotated[
        bool,
        typer.Option(
            "--copies",
            help="Start a task that takes longer than others of its kind a second time, on "
            "processors that nothing else needs; the first success counts. Like copies = true in "
            "the table retry; only for tasks that do nothing but print and make their outputs.",
            rich_help_panel=RUNNING,
        ),
    ] = False
    buy_copies: Annotated[
        bool,
        typer.Option(
            "--buy-copies",
            help="Like --copies, and buy processors for copies at any of the sites where the "
            "forecast of the run says that this improves the odds of the deadline, or without "
            'one the expected end; never past the budget. Like copies = "buy" in the table retry.',
            rich_help_panel=RUNNING,
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
    as_it_was: AsItWas = False
    as_it_is: AsItIs = False
    fresh: Fresh = False
    reuse_from: ReuseFrom = None
    explain: Explain = False
    account: PayingAccount = None
    book: PayingBook = None
    oversubscribe: Oversubscribe = False
    project: RunProject = None
    history: HistoryFile = None
    detach: Annotated[
        bool,
        typer.Option(
            "--detach",
            help="Start the run and return; it goes on without this terminal. "
            "See it with bursar attach RUN.",
        ),
    ] = False
    notify: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TARGET",
            envvar="BURSAR_NOTIFY",
            help="Send a notice at the end, when a task fails and when the deadline passes: "
            "desktop, mailto:ADDRESS, or the URL of a web hook. The option may be given several "
            "times.",
            rich_help_panel=RUNNING,
        ),
    ] = None
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
    stragglers: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            min=0.0,
            help="Share of attempts that take two to four times as long.",
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
    "--stragglers": "real attempts are slow when they are slow; see bursar simulate",
    "--hide-runtimes": "a real run learns runtimes where the campaign states none",
    "--policy": "goes with --replay RUN, which bursar simulate carries out",
}
"""Options of the record that make no sense in a real run, and why."""

REFUSED_BY_SIMULATE: Mapping[str, str] = {
    "--buy-copies": "copies are bought by the forecast of the run, and a simulation makes none",
    "--resume": "a simulation goes to its end at once, so that nothing is left to resume",
    "--retry-failed": "goes with --resume, which bursar run carries out",
    "--account": "a simulation charges nobody; give what the account has left as --budget",
    "--book": "a simulation charges nobody",
    "--oversubscribe": "simulated sites are idle: no other run holds their processors",
    "--project": "simulated sites are idle: no other run shares their processors",
    "--history": "what a simulation tells is no history",
    "--detach": "a simulation goes to its end at once, so that nothing is left to detach",
    "--notify": "a simulation goes to its end at once",
    "--agreement": "an agreement with a real service holds on no simulated clock",
    "--give-back": "goes with --agreement",
    "--as-it-was": "goes with --resume, which bursar run carries out",
    "--as-it-is": "goes with --resume, which bursar run carries out",
    "--fresh": "a simulation reuses nothing unless --reuse-from says so",
    "--accept": "a simulation costs nothing; give the counter-offer's goal",
    "--probe": "a simulation starts no tasks; bursar plan --probe tells the runtimes",
}
"""Options of the record that make no sense in simulated time, and why."""

WITH_RESUME = (
    "--resume",
    "--budget",
    "--retry-failed",
    "--as-it-was",
    "--as-it-is",
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
        work(CampaignOptions(**values), named_options(context))

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


def named_options(context: typer.Context) -> frozenset[str]:
    """Return the options that the command line names, by their long names."""
    return frozenset(
        max(parameter.opts, key=len)
        for parameter in context.command.params
        if _is_typed(context, parameter.name)
    )


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
