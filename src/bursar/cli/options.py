"""Options that several commands share, and how their words become values."""

from pathlib import Path
from typing import Annotated

import typer

CampaignPath = Annotated[
    Path,
    typer.Argument(
        metavar="CAMPAIGN",
        help="A campaign (.toml), a Nimrod plan file (.pln), or a recorded workflow "
        "(WfFormat .json, Pegasus .xml).",
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
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
RunsFolder = Annotated[
    Path,
    typer.Option("--runs", metavar="DIR", envvar="BURSAR_RUNS", help="Folder that holds the runs."),
]
RunName = Annotated[
    str,
    typer.Argument(metavar="RUN", help="Name of the run, or its folder.", show_default=False),
]
RUNS = Path("runs")
