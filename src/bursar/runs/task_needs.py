"""What tasks need besides processors, looked at before a run begins."""

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bursar.model.errors import InputError
from bursar.model.site import SiteFacts
from bursar.model.task import Secret, Task
from bursar.worker.memory_enforcement import memory_groups

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
