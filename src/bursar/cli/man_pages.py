"""``bursar man``: manual pages, made from the commands' own help."""

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from bursar.cli.options import print_note
from bursar.model.errors import BursarError, InputError, spelling_hint
from bursar.version import VERSION


def register(app: typer.Typer) -> None:
    """Add ``bursar man`` to the command line."""
    app.command("man")(show_manual)


def show_manual(
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(help="Command, as in `bursar man run`. Default: bursar itself."),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(
            "--write",
            metavar="DIR",
            help="Write the pages of all commands into DIR/man1, for MANPATH.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show the manual page of a command; without a terminal, print its source for man."""
    root: Any = context.find_root().command
    if write is not None:
        if command:
            raise InputError("writes the pages of all commands", where="--write")
        number = _write_all(root, write / "man1")
        print_note(f"wrote {number} pages; to read them: MANPATH={write}: man bursar")
        return
    text = page_of(root, tuple(command or ()))
    if sys.stdout.isatty() and shutil.which("man"):
        subprocess.run(["man", "-l", "-"], input=text, text=True, check=False)
    else:
        sys.stdout.write(text)


def _write_all(root: Any, folder: Path) -> int:
    """Write the page of each command; return their number."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        names: list[tuple[str, ...]] = [()]
        for name, command in root.commands.items():
            names += [(name,), *((name, inner) for inner in getattr(command, "commands", {}))]
        for words in names:
            file = folder / ("-".join(("bursar", *words)) + ".1")
            file.write_text(page_of(root, words))
    except OSError as error:
        raise BursarError(f"{error.filename}: cannot be written: {error.strerror}") from None
    return len(names)


def page_of(root: Any, words: tuple[str, ...]) -> str:
    """
    Return the source of a manual page, in the macros of man(7).

    Raises
    ------
    InputError
        When there is no such command.
    """
    found = root
    for word in words:
        commands: Mapping[str, Any] = getattr(found, "commands", {})
        if word not in commands:
            raise InputError(
                f'no command "{word}"', where="bursar man", hint=spelling_hint(word, commands)
            )
        found = commands[word]
    return "\n".join(_lines(found, ("bursar", *words))) + "\n"


def _lines(command: Any, words: tuple[str, ...]) -> Iterator[str]:
    help = _escaped(command.help or "")
    summary = help.split("\n\n")[0].replace("\n", " ").strip()
    yield f'.TH "{"-".join(words).upper()}" "1" "" "bursar {VERSION}" "Bursar"'
    yield from (".SH NAME", f"{_escaped('-'.join(words))} \\- {summary}")
    yield from (".SH SYNOPSIS", f".B {_escaped(' '.join(words))}")
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    subcommands: Mapping[str, Any] = getattr(command, "commands", {})
    if options:
        yield "[OPTION]..."
    for one in arguments:
        yield _escaped(_name_of(one) if one.required else f"[{_name_of(one)}]")
    if subcommands:
        yield "COMMAND"
    yield ".SH DESCRIPTION"
    for paragraph in help.split("\n\n"):
        yield from (".PP", paragraph.replace("\n", " ").strip())
    if arguments:
        yield ".SH ARGUMENTS"
        for one in arguments:
            yield from _described(_name_of(one), one.help)
    panels: dict[str, list[Any]] = {}
    for one in options:
        panels.setdefault(getattr(one, "rich_help_panel", None) or "Options", []).append(one)
    for title, members in panels.items():
        yield f'.SH "{_escaped(title).upper()}"'
        for one in members:
            value = "" if one.is_flag else " " + _name_of(one)
            yield from _described(", ".join((*one.opts, *one.secondary_opts)) + value, one.help)
    if subcommands:
        yield ".SH COMMANDS"
        for name, one in subcommands.items():
            yield from _described(name, (one.help or "").split("\n\n")[0])
        pages = (f"{'-'.join((*words, name))}(1)" for name in subcommands)
        yield from (".SH SEE ALSO", _escaped(", ".join(pages)))
        return
    yield from (".SH SEE ALSO", "The whole documentation is in the folder docs of the source.")


def _name_of(parameter: Any) -> str:
    """Return the placeholder of a parameter's value."""
    return str(parameter.metavar or (parameter.name or "").upper().replace("_", "-"))


def _described(title: str, text: str | None) -> Iterator[str]:
    yield from (".TP", f".B {_escaped(title)}", _escaped(" ".join((text or "").split())))


def _escaped(text: str) -> str:
    """Return text without meaning to roff: hyphens as typed, no line that begins a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in text.split("\n"))
