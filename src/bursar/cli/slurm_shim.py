"""``bursar slurm-shim``: stand-ins of Slurm's commands, whose jobs go to a service."""

from pathlib import Path
from typing import Annotated

import typer

from bursar.cli.options import print_note
from bursar.model.errors import InputError


def register(app: typer.Typer) -> None:
    """Add ``bursar slurm-shim`` to the command line."""
    app.command("slurm-shim")(write_stand_ins)


def write_stand_ins(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Folder for the commands, to be put into PATH.", show_default=False
        ),
    ],
    site: Annotated[
        str | None,
        typer.Option(
            metavar="URL|NAME",
            help="Service that gets the jobs: its URL, or a name from "
            "~/.config/bursar/services.toml. Default: a service of their own, which the commands "
            "start on this machine when it does not run.",
        ),
    ] = None,
    stop: Annotated[
        bool,
        typer.Option(
            "--stop",
            help="End the service of the commands in DIR; its jobs wait until a command starts it "
            "again.",
        ),
    ] = False,
) -> None:
    """
    Write sbatch, squeue, scancel, sacct, scontrol, sinfo and srun into a folder: programs that
    drive Slurm then use Bursar. Options that are not honoured are refused by name.
    """
    from bursar.slurm_shim.shim_folder import ShimFolder

    shim = ShimFolder(folder)
    if stop:
        if site is not None:
            raise InputError("goes without --site", where="--stop")
        print_note("the service has ended" if shim.stop() else "the service did not run")
        return
    shim.write(site)
    print_note(f'the commands are in {shim.folder}: export PATH="{shim.folder}:$PATH"')
    if site is None:
        print_note(f"their service is configured in {shim.service_file}, and starts with a job")
