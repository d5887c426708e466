"""``bursar reproduce``: tables and figures of the papers, ours beside theirs."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bursar.cli.options import AsJson, print_json, print_note
from bursar.model.errors import InputError

if TYPE_CHECKING:
    from bursar_papers.experiment import Effort, Experiment, ExperimentResult
    from bursar_papers.experiment_runner import OnProgress

DATA = "BURSAR_DATA"


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("reproduce")(reproduce)


def reproduce(
    paper: Annotated[
        str | None, typer.Argument(help="Paper whose experiments are rerun; --list shows all.")
    ] = None,
    figure: Annotated[str | None, typer.Option(help="Rerun only this figure.")] = None,
    table: Annotated[str | None, typer.Option(help="Rerun only this table.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Make few repetitions, which takes a minute.")
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Make all repetitions, and search longer.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for tables and charts.")] = Path("reproduced"),
    data: Annotated[
        Path | None,
        typer.Option(envvar=DATA, help="Folder that holds swf/, the workload logs."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Number of processes. Default: all processors.")
    ] = None,
    live: Annotated[
        bool,
        typer.Option("--live", help="Run the studies that have real tasks in real time."),
    ] = False,
    docs: Annotated[
        Path | None,
        typer.Option(help="Folder with a page of the paper, whose tables are written anew too."),
    ] = None,
    seeing: Annotated[
        bool, typer.Option("--list", help="List the papers, figures and tables.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """
    Rerun a paper's experiments and say what agrees.

    A figure agrees when the 95 % interval of ours lies within bounds that are stated
    beforehand, differs when it lies outside, and is open otherwise. Cells that were
    measured before by the same code are kept in the folder, so an interrupted call goes
    on where it was.
    """
    if seeing or paper is None:
        _show_list(as_json)
        return
    from bursar_papers.catalogue import figures_of, find
    from bursar_papers.documenting import entry_of, record, update_page
    from bursar_papers.experiment_runner import run_experiment, worker_processes
    from bursar_papers.writing import to_dict, write

    if quick and full:
        raise InputError("is the opposite of --full", where="--quick")
    if jobs is not None and jobs < 1:
        raise InputError(f"must be at least 1, got {jobs}", where="--jobs")
    effort: Effort = "quick" if quick else "full" if full else "normal"
    if table is not None:
        if figure is not None:
            raise InputError("goes without --figure", where="--table")
        figure = f"table-{table}"
    folder = out / paper
    documents = []
    experiments = find(paper, figure, live=live)
    with worker_processes(jobs or len(os.sched_getaffinity(0))) as pool:
        for experiment in experiments:
            began = time.monotonic()
            with _progress(experiment) as tell:
                outcome = run_experiment(
                    experiment,
                    effort,
                    data=data or Path("data"),
                    kept=folder / f"figure-{experiment.figure}.cells.jsonl",
                    pool=pool,
                    on_progress=tell,
                )
            files = write(outcome, folder)
            told = {experiment.figure: entry_of(outcome)}
            record(folder / "findings.json", paper, told, figures_of(paper))
            if docs is not None:
                record(docs / f"{paper}.json", paper, told, figures_of(paper))
            documents.append(to_dict(outcome) | {"files": [str(path) for path in files]})
            if not as_json:
                _show(outcome, time.monotonic() - began, files)
    if docs is not None:
        update_page(docs, paper)
    if as_json:
        print_json(documents)


def _show_list(as_json: bool) -> None:
    from bursar_papers.catalogue import EXPERIMENTS, TITLES

    if as_json:
        print_json(
            [{"paper": e.paper, "figure": e.figure, "title": e.title, "about": e.about}
             for e in EXPERIMENTS]
        )  # fmt: skip
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for paper, title in TITLES.items():
        table = Table("figure", "shows", title=f"{paper}: {title}", title_justify="left", box=None)
        for experiment in EXPERIMENTS:
            if experiment.paper == paper:
                table.add_row(experiment.figure, experiment.title)
        console.print(table)


def _show(outcome: "ExperimentResult", took: float, files: list[Path]) -> None:
    from rich.console import Console
    from rich.table import Table

    from bursar_papers.documenting import bounds_of, tally

    experiment = outcome.experiment
    console = Console()
    console.print(f"\n[bold]{experiment.name}[/bold]: {experiment.title}")
    console.print(experiment.about, style="dim")
    columns = ("measured", "paper", "ours", "agrees within", "verdict")
    table = Table(*columns, box=None, pad_edge=False)
    for finding in outcome.findings:
        ours = finding.ours + (f"\n({finding.remark})" if finding.remark else "")
        stated = f"ours: {finding.paper}" if finding.own else finding.paper
        table.add_row(finding.what, stated, ours, bounds_of(finding), finding.verdict or "")
    console.print(table)
    console.print(tally(finding.to_dict() for finding in outcome.findings))
    few = "few repetitions (--quick); " if outcome.effort == "quick" else ""
    console.print(
        f"{few}{outcome.cells} cells, {outcome.cached} kept from before, "
        f"{outcome.seconds:.0f} processor-seconds, {took:.0f} s; in {files[0].parent}",
        style="dim",
    )


@contextlib.contextmanager
def _progress(experiment: "Experiment") -> "Iterator[OnProgress | None]":
    """A bar with the time left on a terminal; a line elsewhere."""
    if not sys.stderr.isatty():
        print_note(f"{experiment.name}: {experiment.title}")
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

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True
    ) as shown:
        bar = shown.add_task(experiment.name, total=None)
        yield lambda done, total: shown.update(bar, completed=done, total=total)
