"""``bursar testgrid``: throwaway clusters under real Slurm, to try things on."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bursar.cli.options import AsJson
from bursar.model.errors import InputError

if TYPE_CHECKING:
    from bursar_devtools.testgrid.local_grid import ClusterStatus, LocalTestGrid

Folder = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        metavar="DIR",
        envvar="BURSAR_TESTGRID",
        help="Folder of the clusters. Default: a folder of yours in the temporary folder.",
    ),
]
Cluster = Annotated[
    str,
    typer.Argument(
        metavar="CLUSTER", help="Name of the cluster, such as slurm1.", show_default=False
    ),
]
Node = Annotated[
    str, typer.Argument(metavar="NODE", help="Name of the node, such as n1.", show_default=False)
]


def register(app: typer.Typer) -> None:
    """Adds this module's commands."""
    testgrid = typer.Typer(
        no_args_is_help=True,
        help="Start, break and end throwaway clusters under real Slurm on this machine.",
    )
    for name, command in (
        ("up", start_grid),
        ("status", show_status),
        ("down", end_grid),
        ("env", show_environment),
        ("stop-node", stop_node),
        ("start-node", start_node),
        ("stop-controller", stop_controller),
        ("start-controller", start_controller),
    ):
        testgrid.command(name)(command)
    app.add_typer(testgrid, name="testgrid")


def start_grid(
    clusters: Annotated[int, typer.Option(metavar="N", help="Number of clusters.")] = 2,
    nodes: Annotated[int, typer.Option(metavar="N", help="Number of nodes of each cluster.")] = 8,
    cpus: Annotated[int, typer.Option(metavar="N", help="Processors that each node claims.")] = 12,
    latency: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Shortest time from a job's submission to its start: 30s, 2m."
        ),
    ] = "0s",
    default_times: Annotated[
        bool,
        typer.Option(
            "--default-times",
            help="Keep Slurm's own times: a node that dies is noticed after 300 s"
            " (SlurmdTimeout), not after seconds.",
        ),
    ] = False,
    folder: Folder = None,
    as_json: AsJson = False,
) -> None:
    """Start clusters, and write a sites file that has them."""
    from bursar.cli.options import print_json, print_note
    from bursar_devtools.testgrid.local_grid import LocalTestGrid

    begin = time.monotonic()
    grid = LocalTestGrid.up(
        folder,
        clusters=clusters,
        nodes=nodes,
        cpus=cpus,
        latency=_whole_seconds(latency),
        default_times=default_times,
    )
    took = time.monotonic() - begin
    if as_json:
        print_json({**_told(grid), "took_s": took})
        return
    _print_status(grid)
    print_note(f"ready in {took:.1f} s; try them with: --sites {grid.sites_file}")
    print_note(f"end them with: bursar testgrid down{_folder_option(folder)}")


def show_status(folder: Folder = None, as_json: AsJson = False) -> int:
    """Show clusters, nodes and jobs; the exit status is 1 when a part of them does not run."""
    from bursar.cli.options import print_json
    from bursar_devtools.testgrid.local_grid import LocalTestGrid

    grid = LocalTestGrid.at(folder)
    if as_json:
        told = _told(grid)
        print_json(told)
        return 0 if told["whole"] else 1
    return 0 if _print_status(grid) else 1


def end_grid(folder: Folder = None, as_json: AsJson = False) -> None:
    """End the clusters and whatever runs on them, and remove their folder."""
    from bursar.cli.options import print_json, print_note
    from bursar_devtools.testgrid.local_grid import LocalTestGrid, resolve_folder

    path = resolve_folder(folder)
    ended = LocalTestGrid.clear(folder)
    if as_json:
        print_json({"folder": str(path), "ended": ended})
    else:
        print_note(f"{path}: {'ended ' + ', '.join(ended) if ended else 'no cluster was there'}")


def show_environment(cluster: Cluster, folder: Folder = None, as_json: AsJson = False) -> None:
    """Print what a shell has to set for Slurm's commands: eval "$(bursar testgrid env slurm1)"."""
    import shlex

    from bursar.cli.options import print_json
    from bursar_devtools.testgrid.local_grid import LocalTestGrid

    variables = LocalTestGrid.at(folder).cluster(cluster).environment
    if as_json:
        print_json({"cluster": cluster, "environment": variables})
        return
    for name, value in variables.items():
        typer.echo(f"export {name}={shlex.quote(value)}")


def stop_node(
    cluster: Cluster,
    node: Node,
    at_once: Annotated[
        bool,
        typer.Option(
            "--at-once", help="Tell the controller that the node is down, which else finds out."
        ),
    ] = False,
    folder: Folder = None,
    as_json: AsJson = False,
) -> None:
    """Let a node crash, with all that runs on it."""
    from bursar_devtools.testgrid.local_grid import LocalTestGrid

    grid = LocalTestGrid.at(folder)
    grid.cluster(cluster).stop_node(node, at_once=at_once)
    _say_state(grid, as_json)


def start_node(
    cluster: Cluster, node: Node, folder: Folder = None, as_json: AsJson = False
) -> None:
    """Start a node that was stopped."""
    from bursar_devtools.testgrid.local_grid import LocalTestGrid

    grid = LocalTestGrid.at(folder)
    grid.cluster(cluster).start_node(node)
    _say_state(grid, as_json)


def stop_controller(
    cluster: Cluster,
    crash: Annotated[
        bool,
        typer.Option("--crash", help="Let the controller forget what changed in its last seconds."),
    ] = False,
    folder: Folder = None,
    as_json: AsJson = False,
) -> None:
    """Stop the controller; jobs go on."""
    from bursar_devtools.testgrid.local_grid import LocalTestGrid

    grid = LocalTestGrid.at(folder)
    grid.cluster(cluster).stop_controller(crash=crash)
    _say_state(grid, as_json)


def start_controller(cluster: Cluster, folder: Folder = None, as_json: AsJson = False) -> None:
    """Start the controller again, with the jobs it had."""
    from bursar_devtools.testgrid.local_grid import LocalTestGrid

    grid = LocalTestGrid.at(folder)
    grid.cluster(cluster).start_controller()
    _say_state(grid, as_json)


def _whole_seconds(text: str) -> int:
    from bursar.formats.units import parse_duration

    try:
        seconds = parse_duration(text)
    except InputError as error:
        raise error.within("--latency") from None
    if seconds != int(seconds):
        raise InputError(f"Slurm counts in whole seconds, got {text!r}", where="--latency")
    return int(seconds)


def _folder_option(folder: Path | None) -> str:
    return "" if folder is None else f" --folder {folder}"


def _told(grid: "LocalTestGrid") -> dict[str, Any]:
    """The grid for scripts."""
    status = grid.status()
    return {
        "folder": str(grid.folder),
        "sites": str(grid.sites_file),
        "whole": _is_whole(status),
        "clusters": [_cluster(one) for one in status],
    }


def _is_whole(status: "tuple[ClusterStatus, ...]") -> bool:
    return bool(status) and all(one.is_whole for one in status)


def _cluster(status: "ClusterStatus") -> dict[str, Any]:
    cluster = status.cluster
    return {
        "name": cluster.name,
        "folder": str(cluster.folder),
        "environment": cluster.environment,
        "controller": status.up,
        "processors": cluster.processors,
        "latency_s": cluster.settings.latency,
        "default_times": cluster.settings.default_times,
        "nodes": [
            {"name": node.name, "running": node.running, "state": node.state}
            for node in status.nodes
        ],
        "jobs_running": status.running,
        "jobs_pending": status.pending,
    }


def _print_status(grid: "LocalTestGrid") -> bool:
    """Prints a table, and tells whether all runs."""
    from rich.console import Console
    from rich.table import Table

    status = grid.status()
    table = Table("cluster", "controller", "nodes", "processors", "running", "pending", box=None)
    for column in table.columns[2:]:
        column.justify = "right"
    for one in status:
        running = sum(node.running for node in one.nodes)
        table.add_row(
            one.cluster.name,
            "runs" if one.up else "stopped",
            f"{running}/{len(one.nodes)}",
            str(one.cluster.processors),
            *("unknown" if jobs is None else str(jobs) for jobs in (one.running, one.pending)),
        )
    Console().print(table)
    for one in status:
        for node in one.nodes:
            if not node.running:
                typer.echo(f"{one.cluster.name}: {node.name} has stopped")
    return _is_whole(status)


def _say_state(grid: "LocalTestGrid", as_json: bool) -> None:
    from bursar.cli.options import print_json

    if as_json:
        print_json(_told(grid))
    else:
        _print_status(grid)
