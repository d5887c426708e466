"""Options that several commands share, and output: data on stdout, talk on stderr."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Protocol, TypeVar

import msgspec
import typer

from bursar.broker.strategies import Named, OutOfReach
from bursar.cli.completion import run_names
from bursar.model.errors import InputError
from bursar.model.matching import CHOICES
from bursar.model.site import BuyingProtocol
from bursar.planning.policy import METHODS, SCHEDULERS, Method, Scheduler

# Options that several commands share, and the parsers for the option values.

PURCHASE = "How processors are bought"
ESTIMATES = "Runtimes and the search for plans"
STRATEGY = "Sending jobs one by one"
BROKER = "Matching jobs to sites"
RUNNING = "The run and its folder"

CampaignPath = Annotated[
    Path,
    typer.Argument(
        metavar="CAMPAIGN",
        help="A campaign (.toml), a Nimrod plan file (.pln), jobs in JDL (.jdl), a list of "
        "commands (.txt), a script for sbatch, a job of HyperQueue (.toml) or OpenJD (.json, "
        ".yaml), a recorded workflow (WfFormat .json, Pegasus .xml, Nextflow's trace), or, to be "
        "planned, a Snakefile.",
        show_default=False,
    ),
]
SitesPath = Annotated[
    Path | None,
    typer.Option(
        "--sites",
        metavar="FILE",
        help="Sites file. In simulated time, sites without a log of their own are idle. "
        "Default: this machine alone.",
    ),
]
MarketOption = Annotated[
    BuyingProtocol | None,
    typer.Option(
        "--market",
        help="How processors are bought at all sites whose owners sell: at the posted price, by "
        "bargaining, by tender, or in the auctions that other Bursars hold. Default: as the sites "
        "file says of each.",
        show_default=False,
        rich_help_panel=PURCHASE,
    ),
]
BilledIn = Annotated[
    str | None,
    typer.Option(
        "--period",
        metavar="PERIOD",
        help="A year, month or day in UTC (2026, 2026-11, 2026-11-21), or a range A..B.",
    ),
]
Deadline = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help='Finish within this time (90, 33m, 1d12h) or by then ("2026-11-28 18:00").',
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(metavar="AMOUNT", help='Spend at most this: 126000, "40 SU".'),
]
TradeOff = Annotated[
    float | None,
    typer.Option(
        "--trade-off",
        "--tradeoff",
        metavar="0..1",
        help="Weight of cost against time: 0 fastest, 1 cheapest.",
    ),
]
Confidence = Annotated[
    str | None,
    typer.Option(
        metavar="SHARE",
        help="Keep deadline and budget with this probability, where earlier runs tell runtimes: "
        '0.9, "90%".',
        rich_help_panel=ESTIMATES,
    ),
]
Runtime = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Estimate for tasks that state no runtime.",
        rich_help_panel=ESTIMATES,
    ),
]
Probe = Annotated[
    int | None,
    typer.Option(
        "--probe",
        metavar="N",
        min=1,
        help="Run N tasks of each kind that states no runtime on this machine first, and plan by "
        "their mean time. A run keeps their results.",
        show_default=False,
        rich_help_panel=ESTIMATES,
    ),
]
SnakemakeArguments = Annotated[
    str | None,
    typer.Option(
        "--snakemake",
        metavar="ARGUMENTS",
        help="With a Snakefile: further arguments of snakemake, such as targets, "
        '"--configfile c.yaml" or "--forceall".',
        show_default=False,
        rich_help_panel=ESTIMATES,
    ),
]
Processors = Annotated[
    int | None,
    typer.Option("--processors", "-p", metavar="N", help="Buy exactly N processors."),
]
Replay = Annotated[
    float | None,
    typer.Option(
        metavar="SCALE",
        help="Replay a recorded workflow: each task is replaced by a stand-in that "
        "takes its recorded runtime times SCALE.",
        rich_help_panel=ESTIMATES,
    ),
]
SizeScale = Annotated[
    float,
    typer.Option(
        "--size-scale",
        metavar="SCALE",
        help="With --replay: factor for the recorded file sizes.",
        rich_help_panel=ESTIMATES,
    ),
]
PlanMethod = Annotated[
    Method,
    typer.Option(
        "--method",
        metavar="NAME",
        help=f"Method that searches for the processors to buy: {', '.join(METHODS)}.",
        rich_help_panel=ESTIMATES,
    ),
]
PlanScheduler = Annotated[
    Scheduler,
    typer.Option(
        "--scheduler",
        metavar="NAME",
        help=f"Rule that places tasks on the processors: {', '.join(SCHEDULERS)}.",
        rich_help_panel=ESTIMATES,
    ),
]
ByStrategy = Annotated[
    Named | None,
    typer.Option(
        "--strategy",
        metavar="NAME",
        help="Send the jobs of a bag to the sites one by one, by Bursar's own strategy (adaptive) "
        "or a rule of Nimrod/G (time, cost, cost-time, conservative-time, none); a workflow is "
        "planned by the trade-off that matches the strategy. "
        "Default: a plan; adaptive for a bag with a deadline or budget on several sites.",
        rich_help_panel=STRATEGY,
    ),
]
IfOutOfReach = Annotated[
    OutOfReach,
    typer.Option(
        "--out-of-reach",
        help="When the strategy can no longer finish all jobs in time and budget: "
        "run as many as fit (fit), or start no more, none at all where that is clear at the "
        "begin (refuse).",
        rich_help_panel=STRATEGY,
    ),
]
DeadlineFactor = Annotated[
    float | None,
    typer.Option(
        metavar="D",
        help="Deadline as a factor between the shortest possible time (0, all "
        "processors) and the longest (1, the slowest processor alone).",
        rich_help_panel=STRATEGY,
    ),
]
BudgetFactor = Annotated[
    float | None,
    typer.Option(
        metavar="B",
        help="Budget as a factor between the lowest possible cost (0, the cheapest "
        "processors that meet the deadline) and the highest (1, the dearest).",
        rich_help_panel=STRATEGY,
    ),
]
Choice = Annotated[
    str | None,
    typer.Option(
        "--choice",
        metavar="NAME",
        help="Match each job to the sites that meet its requirements, and choose one of them by "
        f"this rule: {', '.join(CHOICES)}. Default: completion, where jobs have requirements.",
        rich_help_panel=BROKER,
    ),
]
Alpha = Annotated[
    float | None,
    typer.Option(
        metavar="0..1",
        help="Weight of the rank expression (1) against the time that its files take (0).",
        rich_help_panel=BROKER,
    ),
]
Beta = Annotated[
    float | None,
    typer.Option(
        metavar="0..1",
        help="Weight of reading files at the site (1) against bringing them there (0).",
        rich_help_panel=BROKER,
    ),
]
WeightsFile = Annotated[
    Path | None,
    typer.Option(
        "--weights",
        metavar="FILE",
        help="File with alpha and beta, as `bursar tune rank` writes it.",
        rich_help_panel=BROKER,
    ),
]
CatalogueFile = Annotated[
    Path | None,
    typer.Option(
        "--catalogue",
        metavar="FILE",
        envvar="BURSAR_CATALOGUE",
        help="Replica catalogue, for jobs that read or register logical files.",
        rich_help_panel=BROKER,
    ),
]
Refresh = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Time between two requests of the information index to a site. Default: 5 s.",
        rich_help_panel=BROKER,
    ),
]
RankBy = Annotated[
    Literal["site", "index"] | None,
    typer.Option(
        "--rank-by",
        help="Rank by fresh answers of the sites (site) or by what the information "
        "index knows (index). Default: site.",
        rich_help_panel=BROKER,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
TaskName = Annotated[
    str,
    typer.Argument(
        metavar="TASK",
        help="Id of the task or its begin, or its number, from 0.",
        show_default=False,
    ),
]

RunsFolder = Annotated[
    Path,
    typer.Option(
        "--runs", metavar="DIR", envvar="BURSAR_RUNS", help="Folder that contains the runs."
    ),
]

RunName = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Name of the run or its begin, its folder, or last.",
        autocompletion=run_names,
        show_default=False,
    ),
]
ServiceName = Annotated[
    str | None,
    typer.Option(
        "--site",
        metavar="URL|NAME",
        envvar="BURSAR_SITE",
        help="Service: its URL, or a name from ~/.config/bursar/services.toml.",
        show_default=False,
    ),
]
InstanceId = Annotated[
    str,
    typer.Argument(metavar="INSTANCE", help="Id of the instance.", show_default=False),
]
RUNS = Path("runs")
T = TypeVar("T")


def parsed(parse: Callable[[str], T], text: str, option: str) -> T:
    """
    Parse the value of an option.

    Raises
    ------
    InputError
        Of the parser, naming the option.
    """
    try:
        return parse(text)
    except InputError as error:
        raise error.within(option) from None


PayingAccount = Annotated[
    str | None,
    typer.Option(
        "--account",
        metavar="NAME",
        help="Account in the book that pays; the most that the run may cost is set aside "
        "before it starts.",
        show_default=False,
        rich_help_panel=PURCHASE,
    ),
]
PayingBook = Annotated[
    Path | None,
    typer.Option(
        "--book",
        metavar="FILE",
        envvar="BURSAR_BOOK",
        help="File of the book of accounts. Default: bursar.book.",
        show_default=False,
        rich_help_panel=PURCHASE,
    ),
]
RunProject = Annotated[
    str | None,
    typer.Option(
        "--project",
        metavar="NAME",
        help="Project, by whose weight in ~/.config/bursar/projects.toml the run shares this "
        "machine with other runs. Default: that of the campaign.",
        show_default=False,
        rich_help_panel=PURCHASE,
    ),
]
Oversubscribe = Annotated[
    bool,
    typer.Option(
        "--oversubscribe",
        help="Use all processors of this machine, also those that other runs use.",
        rich_help_panel=PURCHASE,
    ),
]
HistoryFile = Annotated[
    str | None,
    typer.Option(
        "--history",
        metavar="FILE",
        envvar="BURSAR_HISTORY",
        help="File of the history of ended tasks; none: no history. Default: history.sqlite in "
        "~/.local/state/bursar.",
        show_default=False,
        rich_help_panel=RUNNING,
    ),
]
REUSE = "Results of an earlier run"
AsItWas = Annotated[
    bool,
    typer.Option(
        "--as-it-was",
        help="With --resume of a changed campaign: go on with the one that the run began with.",
        rich_help_panel=RUNNING,
    ),
]
AsItIs = Annotated[
    bool,
    typer.Option(
        "--as-it-is",
        help="With --resume of a changed campaign: run the present one, reusing what it can.",
        rich_help_panel=RUNNING,
    ),
]
Fresh = Annotated[
    bool,
    typer.Option(
        "--fresh",
        help="Run all tasks, also those whose result is there from an earlier run.",
        rich_help_panel=REUSE,
    ),
]
ReuseFrom = Annotated[
    str | None,
    typer.Option(
        "--reuse-from",
        metavar="RUN",
        help="Reuse results of this run where command, inputs, code, environment and outputs are "
        "as they were: a name, the begin of one, or last. Default: the latest run of the same "
        "campaign file.",
        show_default=False,
        rich_help_panel=REUSE,
    ),
]
Explain = Annotated[
    bool,
    typer.Option(
        "--explain", help="Say why each task runs that is not reused.", rich_help_panel=REUSE
    ),
]


# A command makes a result; here it is printed: data on stdout, talk on stderr.


def print_json(result: Any) -> None:
    """One JSON document on stdout, indented, ending with a line feed."""
    text = msgspec.json.format(msgspec.json.encode(result), indent=2)
    sys.stdout.buffer.write(text + b"\n")
    sys.stdout.buffer.flush()


def all_keys(value: Any) -> Any:
    """Convert structs to objects with every key, also keys omitted on the wire."""
    if isinstance(value, msgspec.Struct):
        return {key: all_keys(inner) for key, inner in msgspec.structs.asdict(value).items()}
    if isinstance(value, list | tuple):
        return [all_keys(inner) for inner in value]
    return value


def print_note(message: str) -> None:
    """A line for people, on stderr, out of the way of data."""
    print(message, file=sys.stderr, flush=True)


# Prints the result of a command that carries out a campaign: with the result, or with counter-
# offers.


class CampaignResult(Protocol):
    """Result of a campaign."""

    exit_status: int

    def to_dict(self) -> dict[str, Any]:
        """Convert the key figures to a JSON document."""


def print_outcome(make: Callable[[], CampaignResult], *, as_json: bool) -> NoReturn:
    """Makes and prints a campaign's result or, for a goal out of reach, the alternatives."""
    from bursar.api.quote import GoalOutOfReach
    from bursar.report.run_tables import print_summary

    try:
        result = make()
    except GoalOutOfReach as out_of_reach:
        if as_json:
            print_json(out_of_reach.quote.to_dict())
        else:
            out_of_reach.quote.print()
        raise typer.Exit(out_of_reach.exit_status) from None
    if as_json:
        print_json(result.to_dict())
    else:
        print_summary(result.to_dict())
    raise typer.Exit(result.exit_status)


def billed_between(period: str | None) -> tuple[float, float | None]:
    """Return begin and end of ``--period``, as services are asked; without one, all time."""
    from bursar.formats.units import parse_period

    if period is None:
        return 0.0, None
    asked = parse_period(period)
    return asked.begin, asked.end
