"""Options that several commands share, and how their words become values."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from bursar.broker.strategies import Named, OutOfReach
from bursar.model.matching import CHOICES

CampaignPath = Annotated[
    Path,
    typer.Argument(
        metavar="CAMPAIGN",
        help="A campaign (.toml), a Nimrod plan file (.pln), jobs in JDL (.jdl), or a recorded "
        "workflow (WfFormat .json, Pegasus .xml).",
        show_default=False,
    ),
]
SitesPath = Annotated[
    Path | None,
    typer.Option("--sites", metavar="FILE", help="Sites file. Without it: this machine."),
]
Deadline = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Finish within this time: 90, 33m, 2h, 1d12h."),
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
Runtime = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Estimate for tasks that state no runtime."),
]
Processors = Annotated[
    int | None,
    typer.Option("--processors", "-p", metavar="N", help="Buy exactly N processors."),
]
Replay = Annotated[
    float | None,
    typer.Option(
        metavar="SCALE",
        help="Replay a recorded workflow: stand-ins that take the recorded runtimes times SCALE.",
    ),
]
SizeScale = Annotated[
    float,
    typer.Option("--size-scale", metavar="SCALE", help="With --replay: scale of the file sizes."),
]
STRATEGY = "By deadline and budget"
ByStrategy = Annotated[
    Named | None,
    typer.Option(
        "--strategy",
        help="Bring the jobs of a bag to the sites one by one: our own (adaptive) or a rule of "
        "Nimrod/G; a workflow is planned by the trade-off it stands for. Without it: a plan; "
        "adaptive for a bag with a deadline or budget on several sites.",
        rich_help_panel=STRATEGY,
    ),
]
IfOutOfReach = Annotated[
    OutOfReach,
    typer.Option(
        "--out-of-reach",
        help="Once a strategy cannot do all jobs any more: as many as fit, or none more.",
        rich_help_panel=STRATEGY,
    ),
]
DeadlineFactor = Annotated[
    float | None,
    typer.Option(
        metavar="D",
        help="The deadline, from 0 (all processors) to 1 (the slowest one alone).",
        rich_help_panel=STRATEGY,
    ),
]
BudgetFactor = Annotated[
    float | None,
    typer.Option(
        metavar="B",
        help="The budget, from 0 (the cheapest processors in time) to 1 (the dearest).",
        rich_help_panel=STRATEGY,
    ),
]
BROKER = "By matchmaking"
Choice = Annotated[
    str | None,
    typer.Option(
        "--choice",
        metavar="NAME",
        help="Match each job to a site that meets its requirements, and choose among these by "
        f"{', '.join(CHOICES)}. Without it: completion, for jobs that ask for anything.",
        rich_help_panel=BROKER,
    ),
]
Alpha = Annotated[
    float | None,
    typer.Option(
        metavar="0..1",
        help="Weight of the rank against the time that files take.",
        rich_help_panel=BROKER,
    ),
]
Beta = Annotated[
    float | None,
    typer.Option(
        metavar="0..1",
        help="Weight of access to files against their transfer.",
        rich_help_panel=BROKER,
    ),
]
WeightsFile = Annotated[
    Path | None,
    typer.Option(
        "--weights",
        metavar="FILE",
        help="Both, as bursar tune rank has found them.",
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
        help="Between two times that the information index asks a site; 5 s.",
        rich_help_panel=BROKER,
    ),
]
RankBy = Annotated[
    Literal["site", "index"] | None,
    typer.Option(
        "--rank-by",
        help="What sites say when they are asked then, or what the information index knows; site.",
        rich_help_panel=BROKER,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
RunsFolder = Annotated[
    Path,
    typer.Option("--runs", metavar="DIR", envvar="BURSAR_RUNS", help="Folder that holds the runs."),
]
RunName = Annotated[
    str,
    typer.Argument(metavar="RUN", help="Name of the run, or its folder.", show_default=False),
]
ServiceName = Annotated[
    str | None,
    typer.Option(
        "--site",
        metavar="URL|NAME",
        envvar="BURSAR_SITE",
        help="The service: its URL, or a name of ~/.config/bursar/services.toml.",
        show_default=False,
    ),
]
InstanceId = Annotated[
    str,
    typer.Argument(metavar="INSTANCE", help="Id of the instance.", show_default=False),
]
RUNS = Path("runs")
