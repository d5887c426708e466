"""
Commands that other distributions bring: ``bursar reproduce`` and ``bursar testgrid``.

Which they are is a table and not a search for entry points: the command loads code of these two
distributions only, and a source checkout needs no installed metadata. ``bursar --help`` lists
both commands always; one whose distribution is absent says how to get it.
"""

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

import typer

from bursar.model.errors import InputError


@dataclass(frozen=True, slots=True)
class AddOnCommand:
    """
    A command of ``bursar`` that another distribution brings.

    Attributes
    ----------
    name
        Word after ``bursar``.
    summary
        Line in ``bursar --help`` while the distribution is absent.
    distribution
        Name of the distribution for ``pip install``.
    module
        Where the command is defined: a module with a function ``register(app)``.
    """

    name: str
    summary: str
    distribution: str
    module: str

    @property
    def is_installed(self) -> bool:
        """Whether the distribution's package can be imported."""
        return find_spec(self.module.partition(".")[0]) is not None


ADD_ON_COMMANDS = (
    AddOnCommand(
        "reproduce",
        "Rerun a paper's experiments and say what agrees.",
        "bursar-papers",
        "bursar_papers.reproduce",
    ),
    AddOnCommand(
        "testgrid",
        "Throwaway clusters under real Slurm, on this machine.",
        "bursar-devtools",
        "bursar_devtools.testgrid.testgrid_command",
    ),
)


def register(app: typer.Typer) -> None:
    """Add the add-ons' commands; a missing distribution's command prints how to install it."""
    for command in ADD_ON_COMMANDS:
        if command.is_installed:
            import_module(command.module).register(app)
        else:
            _register_hint(app, command)


def _register_hint(app: typer.Typer, command: AddOnCommand) -> None:
    message = f"is part of {command.distribution}, which is not installed; to get it:"

    # Whatever words and options follow, the answer is the same.
    @app.command(
        command.name,
        help=f"{command.summary} Needs {command.distribution}.",
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
        add_help_option=False,
    )
    def say_how_to_get_it() -> None:
        raise InputError(
            f"{message} pip install {command.distribution}", where=f"bursar {command.name}"
        )
