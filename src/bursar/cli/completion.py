"""Completion of command lines by shells: the scripts, and the names of runs."""

import contextlib
import os
from typing import Annotated, Literal

import typer


def run_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of runs that begin so, in the folder of runs."""
    folder = context.params.get("runs") or os.environ.get("BURSAR_RUNS") or "runs"
    with contextlib.suppress(OSError):
        return sorted(one.name for one in os.scandir(folder) if one.name.startswith(incomplete))
    return []


def _print_script(shell: str | None) -> None:
    if shell is not None:
        from typer.completion import get_completion_script  # type: ignore[attr-defined]

        typer.echo(
            get_completion_script(prog_name="bursar", complete_var="_BURSAR_COMPLETE", shell=shell)
        )
        raise typer.Exit


CompletionShell = Annotated[
    Literal["bash", "zsh", "fish"] | None,
    typer.Option(
        "--completion",
        metavar="SHELL",
        callback=_print_script,
        is_eager=True,
        help="Print the completion of a shell: bash, zsh or fish. "
        'To use it: eval "$(bursar --completion bash)".',
        show_default=False,
    ),
]
