"""``bursar tune rank``: weights of the broker's rank, found by simulating one's own sites."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bursar.cli.options import AsJson, CatalogueFile, Runtime
from bursar.model.errors import InputError

if TYPE_CHECKING:
    from bursar.api.tuning import OnProgress, RankTuning
    from bursar.model.campaign import Campaign


def register(app: typer.Typer) -> None:
    """Adds this module's commands."""
    tune = typer.Typer(no_args_is_help=True, help="Find settings of the broker by simulation.")
    tune.command("rank")(tune_weights)
    app.add_typer(tune, name="tune")


def tune_weights(
    sites: Annotated[
        Path, typer.Option("--sites", metavar="FILE", help="Sites file.", show_default=False)
    ],
    load: Annotated[
        str,
        typer.Option(metavar="TIME", help="Mean time between two submissions.", show_default=False),
    ],
    campaign: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Campaign whose tasks the jobs resemble. Default: jobs of ten minutes "
            "that read 1 GB each.",
        ),
    ] = None,
    runtime: Runtime = None,
    topology: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Topology file of the network. Default: the links in the sites file.",
        ),
    ] = None,
    catalogue: CatalogueFile = None,
    choice: Annotated[
        str, typer.Option(metavar="NAME", help="Rule that chooses the site.")
    ] = "best",
    refresh: Annotated[
        str,
        typer.Option(metavar="TIME", help="Time between two refreshes of the information index."),
    ] = "60s",
    jobs: Annotated[int, typer.Option(metavar="N", help="Jobs in each simulation.")] = 300,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of all random draws.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the weights to this file, for `--weights`."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """
    Search for the weights of rank and files that give the shortest time from submission to end.

    Simulates the sites under the given load a few hundred times.
    """
    from bursar.api.tuning import tune_rank
    from bursar.cli.output import print_json, print_note
    from bursar.formats.network_files import read_topology
    from bursar.formats.sites_toml import read_sites

    wanted = None if campaign is None else _campaign(campaign, runtime)
    if campaign is None and runtime is not None:
        raise InputError("goes with --campaign only", where="--runtime")
    with _progress() as on_progress:
        tuning = tune_rank(
            read_sites(sites),
            _seconds(load, "--load"),
            campaign=wanted,
            topology=None if topology is None else read_topology(topology),
            catalogue=catalogue,
            choice=choice,
            every=_seconds(refresh, "--refresh"),
            jobs=jobs,
            seed=seed,
            on_progress=on_progress,
        )
    if out is not None:
        tuning.write(out)
    if as_json:
        print_json(tuning.to_dict())
    else:
        _show(tuning)
    if out is not None:
        print_note(f"wrote {out}")


def _seconds(text: str, option: str) -> float:
    from bursar.formats.units import parse_duration

    try:
        return parse_duration(text)
    except InputError as error:
        raise error.within(option) from None


def _campaign(path: Path, runtime: str | None) -> "Campaign":
    from bursar.cli.load import load_campaign

    return load_campaign(
        path,
        deadline=None,
        budget=None,
        trade_off=None,
        runtime=runtime,
        replay_scale=None,
        size_scale=1.0,
    )


def _show(tuning: "RankTuning") -> None:
    from rich.console import Console
    from rich.table import Table

    found = tuning.found
    table = Table("", "alpha", "beta", "mean lifetime (s)", "95 % interval", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, weights, lifetime in (
        ("default", found.default, found.default_lifetime),
        ("best found", found.best, found.best_lifetime),
    ):
        table.add_row(
            name,
            f"{weights.alpha:g}",
            f"{weights.beta:g}",
            f"{lifetime.mean:,.1f}",
            f"{lifetime.low:,.1f} to {lifetime.high:,.1f}",
        )
    console = Console()
    console.print(table)
    gain = found.gain
    if found.best == found.default:
        console.print("nothing tried was better than the default")
        return
    console.print(
        f"shorter by {gain.mean:,.1f} s ({gain.low:,.1f} to {gain.high:,.1f})"
        + ("" if tuning.is_better else ": which may be chance")
    )


@contextlib.contextmanager
def _progress() -> "Iterator[OnProgress | None]":
    """A bar with the time left on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        bar = shown.add_task("tune", total=None)
        yield lambda done, total: shown.update(bar, completed=done, total=total)
