"""Entry point of the ``bursar`` command."""

from typing import Annotated

import typer

import bursar

app = typer.Typer(
    name="bursar",
    help="Plans, buys and runs computing campaigns by deadline and budget.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)


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
    """Runs the command line."""
    app()
