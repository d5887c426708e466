"""
Prints the help of every command of ``bursar``, or writes the reference page of all options.

One line for each text, ``command: name: text``, to be read as a whole::

    python tools/help_texts.py
    python tools/help_texts.py --write    # docs/reference/commands.md
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "commands.md"

HEAD = """# All commands and options

Look up here what an option means. A terminal tells the same of one command:

```
$ bursar plan --help
```

[The command line](cli.md) explains what belongs together. This page is made from the commands' own
help by `tools/help_texts.py`, and a test compares the two.
"""


def all_commands() -> Any:
    """Return the group of all commands."""
    from bursar.cli.main import app

    return typer.main.get_command(app)


def command_tree(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield a command and those below it, each with the words that call it."""
    yield path, command
    for name, part in getattr(command, "commands", {}).items():
        yield from command_tree(f"{path} {name}", part)


def shown_parameters(command: Any) -> Iterator[tuple[str, str]]:
    """Yield name and help of each argument and option of a command, as users write them."""
    for one in command.params:
        if getattr(one, "hidden", False):
            continue
        value = str(one.metavar or (one.name or "").upper().replace("_", "-"))
        if not one.opts[0].startswith("-"):
            names = value
        else:
            names = ", ".join([*one.opts, *one.secondary_opts])
            names += "" if getattr(one, "is_flag", False) else f" {value}"
        yield names, " ".join((one.help or "").split())


def help_texts() -> Iterator[tuple[str, str, str]]:
    """Yield command, name of the option or argument (empty: the command itself), and help."""
    group = all_commands()
    for name in group.commands:
        for path, command in command_tree(f"bursar {name}", group.commands[name]):
            yield path, "", " ".join((command.help or "").split())
            for names, text in shown_parameters(command):
                yield path, names, text


def page() -> str:
    """Return the reference page, by purpose."""
    from bursar.cli.main import PURPOSES

    group = all_commands()
    parts = [HEAD]
    for purpose, names in PURPOSES.items():
        parts.append(f"## {purpose}\n")
        for name in names.split():
            for path, command in command_tree(f"bursar {name}", group.commands[name]):
                parts.append(f"### {path}\n")
                parts.append(f"{' '.join((command.help or '').split())}\n")
                rows = [
                    f"| `{_cell(n)}` | {_cell(text)} |" for n, text in shown_parameters(command)
                ]
                if rows:
                    parts.append("\n".join(["| name | meaning |", "| --- | --- |", *rows]) + "\n")
    return "\n".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page())
    else:
        for command, name, text in help_texts():
            print(": ".join(part for part in (command, name, text) if part))
