"""What tasks need besides processors, looked at before anything is bought or begins."""

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bursar.model.campaign import Campaign
from bursar.model.errors import InputError
from bursar.model.site import SiteFacts
from bursar.model.surroundings import Surrounding
from bursar.model.task import Copy, Exec, Secret, Shell, Task
from bursar.worker.environments import NotReady, make_ready
from bursar.worker.memory_enforcement import memory_groups

_PLAIN = re.compile(r"(\./)?[\w.+-]+(/[\w.+-]+)*").fullmatch
"""A word at the begin of a line for the shell that can only be a command's name."""
_ASK = 'for word; do command -v -- "$word" > /dev/null || echo "$word"; done'
"""Has a shell say which words are no commands; builtins, keywords and functions of it are."""
PATIENCE = 10.0
"""Seconds that the shell is given."""

WATCHED = (
    "memory of tasks is watched, and a task that uses more than it states is killed; "
    "the kernel holds tasks to theirs where a control group is delegated"
)


def memory_note(tasks: Iterable[Task], sites: Iterable[SiteFacts]) -> str:
    """Return how tasks on this machine are held to their memory, unless the kernel does so."""
    if not any(site.kind == "local" for site in sites):
        return ""
    if not any(task.memory for task in tasks) or memory_groups() is not None:
        return ""
    return WATCHED


def check_needs(
    campaign: Campaign,
    sites: Sequence[SiteFacts],
    *,
    anywhere: bool,
    programs: bool,
    tell: Callable[[str], None] | None = None,
) -> None:
    """
    Refuse a campaign whose tasks lack secrets, resources, programs, containers or environments.

    Containers and environments that this machine lacks are made ready, which may take minutes.

    Parameters
    ----------
    anywhere
        Whether tasks may be sent to any site, whatever resources it has.
    programs
        Whether programs, containers and environments are looked for, on this machine.
    tell
        Is told what takes long; None: nobody is.

    Raises
    ------
    InputError
        Naming the first task and what is missing.
    """
    tasks = campaign.workflow.tasks
    read_secrets(tasks, sites, os.environ)
    if anywhere:
        check_every_site_serves(tasks, sites)
    # Elsewhere PATH is another one.
    if programs and all(site.kind == "local" for site in sites):
        check_programs(tasks, campaign.root)
        make_surroundings_ready(tasks, campaign.root, tell or (lambda line: None))


def check_every_site_serves(tasks: Iterable[Task], sites: Iterable[SiteFacts]) -> None:
    """
    Refuse tasks that need resources which some site lacks, where any site may be chosen for them.

    Plans choose among the sites that have them; strategies and the broker do not look at them.

    Raises
    ------
    InputError
        Naming the first task, the resource and the site.
    """
    sites = list(sites)
    for task in tasks:
        for name, count in task.resources.items():
            for site in sites:
                had = site.resources.get(name, 0)
                if had < count and task.matching.site in (None, site.name):
                    raise InputError(
                        f'task "{task.id}" needs {count} of "{name}"; site "{site.name}", where '
                        f"it could be sent, has {had}",
                        where=f"tasks.{task.id}.resources",
                        hint=f"resources = {{ {name} = {count} }} of the site, in the sites file",
                    )


# Secrets.


def read_secrets(
    tasks: Iterable[Task], sites: Iterable[SiteFacts], environment: Mapping[str, str]
) -> dict[str, str]:
    """
    Return the values of the variables that tasks name as secret.

    Parameters
    ----------
    environment
        Where values are looked for first; then in the file that the campaign names.

    Raises
    ------
    InputError
        When one has no value, others may read the file, or a site would hand values on.
    """
    found: dict[str, str] = {}
    files: dict[str, dict[str, str]] = {}
    for task in tasks:
        for step in task.steps:
            if not isinstance(step, Secret):
                continue
            _check_sites(task, sites)
            for name in step.names:
                if name in found:
                    continue
                value = environment.get(name)
                if value is None and step.file:
                    if step.file not in files:
                        files[step.file] = _read_secrets_file(Path(step.file))
                    value = files[step.file].get(name)
                if not value:
                    raise _no_value(task, name, step.file, value)
                found[name] = value
    return found


@contextmanager
def secrets_withheld(
    tasks: Iterable[Task], sites: Iterable[SiteFacts]
) -> Iterator[Mapping[str, str]]:
    """
    Give the values of secrets, and keep them out of what this process starts meanwhile.

    Workers and job scripts inherit this process's environment, and so would all tasks.

    Raises
    ------
    InputError
        As :func:`read_secrets`.
    """
    values = read_secrets(tasks, sites, os.environ)
    removed = {name: os.environ.pop(name) for name in values if name in os.environ}
    try:
        yield values
    finally:
        os.environ.update(removed)


def _check_sites(task: Task, sites: Iterable[SiteFacts]) -> None:
    wanted = task.matching.site
    for site in sites:
        if wanted not in (None, site.name):
            continue
        kind = "remote" if site.remote is not None else "dask" if site.dask is not None else ""
        if kind:
            raise InputError(
                f'task "{task.id}" has secrets, which are not given to "{site.name}": '
                f"a site of kind {kind} would keep them",
                where=f"tasks.{task.id}.secret",
                hint="name the site where it runs, site = ...",
            )


def _no_value(task: Task, name: str, file: str, value: str | None) -> InputError:
    if value is not None:
        return InputError(f'"{name}" is empty', where=f"tasks.{task.id}.secret")
    places = "the environment" + (f' or in "{file}"' if file else "")
    return InputError(
        f'"{name}" has no value in {places}',
        where=f"tasks.{task.id}.secret",
        hint=None if file else f"export {name}, or name a file of values: [secrets] file = ...",
    )


def _read_secrets_file(path: Path) -> dict[str, str]:
    """Read lines ``NAME=VALUE``; empty ones and those that begin with # do not count."""
    try:
        with path.open(encoding="utf-8") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise InputError(
                    f'"{path}" may be read by others',
                    where="secrets.file",
                    hint=f"chmod 600 {path}",
                )
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise InputError(f'"{path}": {why}', where="secrets.file") from None
    found = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, is_pair, value = line.partition("=")
        if not is_pair or not name.strip():
            # Not the line itself, which may hold a secret.
            raise InputError(f'"{path}", line {number}: expected NAME=VALUE', where="secrets.file")
        found[name.strip()] = value
    return found


# Containers and environments, made ready on this machine.


def make_surroundings_ready(
    tasks: Iterable[Task], folder: Path, tell: Callable[[str], None]
) -> None:
    """
    Make ready the containers and environments of tasks, each once.

    One whose files other tasks make is left to its first task.

    Parameters
    ----------
    folder
        Folder of the campaign, in which its inputs are.
    tell
        Is told what takes long.

    Raises
    ------
    InputError
        Naming the first task and what is not there and cannot be made.
    """
    wanted: dict[tuple[Surrounding, ...], str] = {}
    for task in tasks:
        around = tuple(step for step in task.steps if isinstance(step, Surrounding))
        if around:
            wanted.setdefault(around, task.id)
    # As workers give them to tasks.
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    for around, name in wanted.items():
        variables: dict[str, str | None] = {**os.environ, "PATH": path}
        for step in around:
            if any(not (folder / file).exists() for file in step.files[:1]):
                break
            given = {key: value for key, value in variables.items() if value is not None}
            try:
                variables.update(make_ready(step, str(folder), given, tell).variables)
            except NotReady as error:
                raise InputError(
                    str(error),
                    where=f"tasks.{name}.{type(step).__struct_config__.tag}",
                    hint="--anyway starts without this check",
                ) from None


# Programs that tasks would not find on this machine.


def check_programs(tasks: Iterable[Task], folder: Path) -> None:
    """
    Refuse tasks whose programs are not on this machine.

    Looked at are the first words of commands that can be nothing but a name. A name with a slash
    must be an executable file among the task's inputs; other names must be found on ``PATH``.

    Parameters
    ----------
    folder
        Folder of the campaign, in which its inputs are.

    Raises
    ------
    InputError
        Naming the first task and its program.
    """
    in_folder: dict[tuple[str, tuple[str, ...]], str] = {}
    programs: dict[str, str] = {}
    words: dict[str, str] = {}
    for task in tasks:
        for step in task.steps:
            if isinstance(step, Copy | Surrounding):
                break  # may bring a program of its own
            if isinstance(step, Exec):
                word, names = step.argv[0], programs
            elif isinstance(step, Shell):
                word, names = step.line.split(None, 1)[0] if step.line.strip() else "", words
            else:
                continue
            if word in names or not _PLAIN(word):
                continue
            if "/" not in word:
                if "PATH" not in task.environment:
                    names[word] = task.id
            elif word.startswith("./"):
                in_folder.setdefault((word, tuple(file.name for file in task.inputs)), task.id)
    for (word, inputs), name in in_folder.items():
        _check_file(word, inputs, name, folder)
    missing = {word: name for word, name in programs.items() if shutil.which(word) is None}
    missing |= {word: words[word] for word in _unknown_to_the_shell(list(words))}
    for word, name in missing.items():
        raise InputError(
            f'task "{name}" runs "{word}", which is not on PATH',
            hint=f"if it is a file of yours, list it in inputs and write ./{word}",
        )


def _check_file(word: str, inputs: tuple[str, ...], task: str, folder: Path) -> None:
    name = word.removeprefix("./")
    if not any(name == one or name.startswith(f"{one}/") for one in inputs):
        raise InputError(
            f'task "{task}" runs "{word}", which is not among its inputs',
            hint=f'inputs = ["{name}"]' if (folder / name).exists() else None,
        )
    path = folder / name  # else a task before makes it
    if path.is_file() and not os.access(path, os.X_OK):
        raise InputError(
            f'task "{task}" runs "{word}", which may not be executed', hint=f"chmod +x {name}"
        )


def _unknown_to_the_shell(words: list[str]) -> list[str]:
    if not words:
        return []
    asked = subprocess.run(
        ["/bin/sh", "-c", _ASK, "sh", *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return asked.stdout.split() if asked.returncode == 0 else []
