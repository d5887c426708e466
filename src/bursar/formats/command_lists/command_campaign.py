"""Lists of commands as campaigns: one task a command, which runs in the folder that is stated."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bursar.formats.command_lists.input_sources import checked, split_text
from bursar.formats.command_lists.templates import quoted
from bursar.formats.file_text import read_bytes
from bursar.model.campaign import Campaign, Goal, Workflow
from bursar.model.errors import InputError
from bursar.model.task import Exec, File, Shell, Task, Value

SEQ = "PARALLEL_SEQ"
"""Variable that tells a job its number, as GNU parallel calls it."""

SH = "/bin/sh"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedCommand:
    """
    One command of a list.

    Parameters
    ----------
    number
        Number in the list, from 1.
    line
        The command, for a shell.
    parameters
        What distinguishes it from the others.
    inputs, outputs
        Files that it takes and brings back; it then runs in a folder of its own.
    """

    number: int
    line: str
    parameters: Mapping[str, Value] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandNeeds:
    """
    What each command of a list needs.

    Parameters
    ----------
    shell
        Program that runs the commands, by its option ``-c``.
    processors, memory, runtime, wall_limit, retries
        See :class:`bursar.model.task.Task`.
    """

    shell: str = SH
    processors: int = 1
    memory: int | None = None
    runtime: float | None = None
    wall_limit: float | None = None
    retries: int | None = None


def command_campaign(
    commands: Sequence[ListedCommand],
    *,
    name: str,
    folder: Path,
    needs: CommandNeeds | None = None,
    template: str = "",
    goal: Goal | None = None,
) -> Campaign:
    """
    Return the campaign of a list of commands.

    It names no file of its own, so that runs of it do not reuse results of earlier ones: which
    files of the folder a command reads is not known.

    Parameters
    ----------
    folder
        Folder in which commands run that state no files; it must be there where they run.
    template
        Command with its places for values, as people know it.

    Raises
    ------
    InputError
        When a file that is taken along or brought back is none within the folder.
    """
    needs = needs or CommandNeeds()
    tasks = tuple(_task(one, name, folder, needs) for one in commands)
    return Campaign(
        name=name,
        workflow=Workflow(tasks),
        goal=goal or Goal(),
        root=folder,
        templates={name: template} if template else {},
    )


def _task(command: ListedCommand, kind: str, folder: Path, needs: CommandNeeds) -> Task:
    line = command.line
    if not command.inputs and not command.outputs:
        line = f"cd {quoted(str(folder))} || exit\n{line}"
    step = Shell(line) if needs.shell in (SH, "sh") else Exec((needs.shell, "-c", line))
    return Task(
        id=str(command.number),
        name=kind,
        steps=(step,),
        inputs=_files(command.inputs, "--transferfile"),
        outputs=_files(command.outputs, "--return"),
        processors=needs.processors,
        memory=needs.memory,
        runtime=needs.runtime,
        wall_limit=needs.wall_limit,
        environment={SEQ: str(command.number)},
        retries=needs.retries,
        parameters=command.parameters,
    )


def _files(names: Sequence[str], option: str) -> tuple[File, ...]:
    try:
        return tuple(File(name) for name in dict.fromkeys(names))
    except ValueError as error:
        raise InputError(str(error), where=option) from None


def read_command_list(path: Path) -> Campaign:
    """
    Read a file with one command a line, which run in the folder of the file.

    Empty lines and those that begin with ``#`` are none; a first line ``#!/bin/bash`` names the
    program that runs the commands.

    Raises
    ------
    InputError
        With the file and the line.
    """
    path = Path(path)
    lines = split_text(read_bytes(path), "\n", str(path))
    shell = SH
    if lines and lines[0].startswith("#!"):
        shell = lines[0][2:].strip()
        if not shell.startswith("/") or len(shell.split()) != 1:
            raise InputError(
                f'expected the path of one program, such as #!/bin/bash, got "{lines[0]}"',
                where=f"{path}:1",
            )
    commands: list[ListedCommand] = []
    for number, text in enumerate(checked(lines, lambda n: f"{path}:{n}"), start=1):
        line = text.rstrip("\r").strip()
        if line and not line.startswith("#"):
            if line.endswith("\\"):
                raise InputError(
                    'ends with "\\", but a command is one line', where=f"{path}:{number}"
                )
            found = ListedCommand(number=len(commands) + 1, line=line, parameters={"line": number})
            commands.append(found)
    if not commands:
        raise InputError("has no command, expected one a line", where=str(path))
    return command_campaign(
        commands,
        name=path.stem,
        folder=Path(os.path.abspath(path)).parent,
        needs=CommandNeeds(shell=shell),
    )
