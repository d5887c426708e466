"""
Entry point of the ``bursar`` command.

Exit status: 0 done; 1 tasks failed, or a fault of ours; 2 the input is at fault; 3 no plan meets
the goal; 4 stopped by the budget; 5 deadline missed; 130 interrupted, the run can be resumed.
"""

import gc
import os
import sys
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated

import typer

import bursar
from bursar.cli import (
    administration,
    campaigns,
    ledger,
    replicas,
    runs,
    service_commands,
    sites,
    submit,
    trace,
)
from bursar.cli.options import print_json
from bursar.memory import is_resource_shortage
from bursar.model.errors import BursarError, InputError

# Commands that other distributions bring: ``bursar reproduce`` and ``bursar testgrid``.


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


def register_add_ons(app: typer.Typer) -> None:
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


# ``bursar schema``: the JSON Schemas of the files Bursar reads.


class SchemaFile(StrEnum):
    """Files that have a schema."""

    CAMPAIGN = "campaign"
    SITES = "sites"
    SERVICE = "service"


def register_schema(app: typer.Typer) -> None:
    """Add ``bursar schema`` to the command line."""
    app.command("schema")(show_schema)


def show_schema(
    which: Annotated[
        SchemaFile, typer.Argument(help="File whose schema is printed.")
    ] = SchemaFile.CAMPAIGN,
) -> None:
    """Print the JSON Schema of campaign, sites or service files."""
    from bursar.formats.campaign_file import campaign_schema
    from bursar.formats.sites_toml import sites_schema
    from bursar.service.config_toml import service_schema

    made = {
        SchemaFile.CAMPAIGN: campaign_schema,
        SchemaFile.SITES: sites_schema,
        SchemaFile.SERVICE: service_schema,
    }
    print_json(made[which]())


INTERRUPTED = 130

app = typer.Typer(
    name="bursar",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: 0 done, 1 tasks failed, 2 bad input, 3 infeasible goal, "
    "4 stopped by budget, 5 deadline missed, 130 interrupted.",
)
for register in (
    campaigns.register_plan,
    sites.register_match,
    campaigns.register_run,
    runs.register_attach,
    runs.register_amend,
    campaigns.register_simulate,
    runs.register,
    ledger.register,
    sites.register,
    replicas.register,
    submit.register,
    service_commands.register,
    submit.register_results,
    service_commands.register_account,
    service_commands.register_top,
    administration.register_certs,
    administration.register_tokens,
    sites.register_tune,
    trace.register,
    register_add_ons,
    register_schema,
    administration.register_serve,
):
    register(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bursar {bursar.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Plans, buys and runs computing campaigns by deadline and budget."""


_NEW_OBJECTS = 10_000
"""New objects after which Python looks for unreachable cycles."""


def main() -> None:
    """Runs the command line and exits with the command's status."""
    # Tasks, claims and results come by the thousand and end without cycles: to look for cycles
    # after each 700 new objects, as Python does, takes 7 % of a service's time.
    gc.set_threshold(_NEW_OBJECTS)
    try:
        status = app(standalone_mode=False)
        sys.stdout.flush()
        code = status if isinstance(status, int) else 0
    except BursarError as error:
        code = _complain(str(error), error.exit_status)
    except typer.TyperException as error:
        code = _complain_of_usage(error)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        # The reader went away (a pager was closed): nobody is left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except Exception as error:
        if not is_resource_shortage(error):
            raise
        message = " ".join(str(error).split()) or type(error).__name__
        code = _complain(f"no more memory, threads or processes are to be had: {message}", 1)
    # Python looks for cycles among all objects several times as it ends, a fifth of the processor
    # time of a small run; those that are frozen are passed over.
    gc.freeze()
    sys.exit(code)


def _complain(message: str, status: int) -> int:
    print(f"bursar: {message}", file=sys.stderr)
    return status


def _complain_of_usage(error: typer.TyperException) -> int:
    """
    Print what is wrong with a command line on stderr, and return the exit status.

    The message takes one line, as for any other bad input, instead of the library's box.
    """
    message = getattr(error, "format_message", error.__str__)()
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "bursar"
    print(f"{command}: {message} (see {command} --help)", file=sys.stderr)
    return int(getattr(error, "exit_code", 2))
