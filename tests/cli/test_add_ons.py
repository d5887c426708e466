"""The table of commands, and those that other distributions bring, with and without these."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from bursar.cli.main import ADD_ON_COMMANDS, COMMANDS, AddOnCommand, CommandEntry, LoadedCommands

NAMES = [command.name for command in ADD_ON_COMMANDS]


def run_without(
    folder: Path, command: AddOnCommand, *words: str
) -> subprocess.CompletedProcess[str]:
    """Run ``bursar`` in an interpreter that does not find the command's distribution."""
    package = command.module.partition(".")[0]
    program = (
        f"import sys; sys.modules[{package!r}] = None\nfrom bursar.cli.main import main\nmain()"
    )
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("command", ADD_ON_COMMANDS, ids=NAMES)
@pytest.mark.parametrize("words", [(), ("--help",), ("up", "--json", "--folder", "x")])
def test_without_its_distribution_a_command_says_how_to_get_it(
    tmp_path: Path, command: AddOnCommand, words: tuple[str, ...]
) -> None:
    """One line and exit status 2, whatever arguments follow."""
    done = run_without(tmp_path, command, command.name, *words)

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"bursar: bursar {command.name}: is part of {command.distribution}, which is not"
        f" installed; to get it: pip install {command.distribution}\n"
    )


@pytest.mark.parametrize("command", ADD_ON_COMMANDS, ids=NAMES)
def test_help_lists_a_command_whose_distribution_is_absent(
    tmp_path: Path, command: AddOnCommand
) -> None:
    done = run_without(tmp_path, command, "--help")

    assert done.returncode == 0
    (line,) = [line for line in done.stdout.splitlines() if f" {command.name} " in line]
    assert command.summary.split()[0] in line


@pytest.mark.parametrize("command", ADD_ON_COMMANDS, ids=NAMES)
def test_a_source_checkout_has_the_command(tmp_path: Path, command: AddOnCommand) -> None:
    """Installed metadata are not needed: the modules are imported by name."""
    assert command.is_installed

    done = subprocess.run(
        [sys.executable, "-m", "bursar", command.name, "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == 0
    assert "not installed" not in done.stdout


@pytest.mark.parametrize("entry", COMMANDS, ids=[entry.name for entry in COMMANDS])
def test_the_table_says_of_a_command_what_its_own_help_says(
    entry: CommandEntry | AddOnCommand,
) -> None:
    """The first paragraph, so that the help of all need not load each."""
    text = inspect.cleandoc(LoadedCommands()[entry.name].help).split("\n\n")[0]
    assert " ".join(text.split()) == entry.summary


def test_every_command_is_in_the_table() -> None:
    """A module that adds a command to the command line lists it."""
    commands = LoadedCommands()
    for name in list(commands):
        commands[name]
    assert set(commands._loaded) == set(commands)


def test_help_loads_no_library_that_it_does_not_use() -> None:
    """Nor does a command convert plain options by Pydantic."""
    program = (
        "import contextlib, sys; from bursar.cli.main import app\n"
        "from bursar.model.errors import InputError\n"
        "with contextlib.suppress(InputError):\n"
        "    app(sys.argv[1:], standalone_mode=False)\n"
        "print(*(m for m in ('numpy', 'msgspec', 'asyncio', 'rich', 'pydantic') "
        "if m in sys.modules))"
    )
    parts = "numpy msgspec asyncio rich"
    for words, loaded in (
        ("--help", ""),
        ("runs", parts),
        ("plan no-such-campaign.toml --processors 2 --seed 3", parts),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program, *words.split()],
            capture_output=True,
            text=True,
            check=True,
        )
        assert set(done.stdout.splitlines()[-1].split()) <= set(loaded.split())
