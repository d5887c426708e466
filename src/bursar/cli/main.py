"""
Entry point of the ``bursar`` command.

Exit status: 0 done; 1 tasks failed, or a fault of ours; 2 the input is at
fault; 3 no plan meets the goal; 4 stopped by the budget; 5 deadline missed;
130 interrupted, the run can be resumed.
"""

import os
import sys
from typing import Annotated

import typer

import bursar
from bursar.cli import (
    account,
    add_ons,
    attach,
    certs,
    instance,
    ledger,
    plan,
    replicas,
    run,
    runs,
    schema,
    serve,
    simulate,
    sites,
    submit,
    tokens,
    trace,
    tune,
)
from bursar.memory import is_resource_shortage
from bursar.model.errors import BursarError

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
    plan.register,
    sites.register_match,
    run.register,
    attach.register,
    runs.register_amend,
    simulate.register,
    runs.register,
    ledger.register,
    sites.register,
    replicas.register,
    submit.register,
    instance.register,
    submit.register_results,
    account.register,
    instance.register_top,
    certs.register,
    tokens.register,
    tune.register,
    trace.register,
    add_ons.register,
    schema.register,
    serve.register,
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


def main() -> None:
    """Runs the command line and exits with the command's status."""
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
