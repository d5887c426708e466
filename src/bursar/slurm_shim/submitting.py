"""``sbatch``: a script and its options become a job."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bursar.formats.job_files.sbatch_options import parse_command_line
from bursar.formats.job_files.slurm_script import (
    SlurmJob,
    SlurmScript,
    exported_variables,
    read_directives,
    read_interpreter,
    read_job,
    tasks_of,
)
from bursar.model.errors import InputError
from bursar.model.task import Inherit, Step, Task, Write
from bursar.remote.messages import TaskSpec
from bursar.remote.submission import encode_steps
from bursar.slurm_shim.dependencies import ElementLookup, parse_dependency
from bursar.slurm_shim.jobs import JobElement, JobFacts

ALSO = ("dependency", "signal", "wrap", "wait", "kill-on-invalid-dep", "hold")
"""Options that ``sbatch`` honours and a campaign does not."""

_TRES = {"gres": "node", "gpus-per-node": "node", "gpus": "job", "gpus-per-task": "task"}
"""What GPUs are stated for, by option."""

SCRIPT = "slurm_script"
"""Name of a script in the folder of its task."""

_LOGIN = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TMPDIR")
_OWN = re.compile(r"(SLURM|SBATCH|BURSAR)_\w+|_|PWD|OLDPWD|SHLVL")
"""Variables of the shell that calls ``sbatch`` which a job does not get from there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedScript:
    """
    Request that a command line of ``sbatch`` makes.

    Parameters
    ----------
    job
        What the options say.
    text
        The script.
    arguments
        Words behind the script.
    where
        Path of the script, for messages and ``squeue``.
    environment
        Variables of the caller.
    folder
        Working folder of the caller.
    """

    job: SlurmJob
    text: str
    arguments: tuple[str, ...]
    where: str
    environment: Mapping[str, str]
    folder: Path

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.job.value("job-name") or self.where.rpartition("/")[2]

    @property
    def indices(self) -> Sequence[int | None]:
        """Index of each element; None: no array job."""
        return (None,) if self.job.array is None else self.job.array.indices


def read_submission(
    words: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    stdin: Callable[[], str],
) -> SubmittedScript:
    """
    Read a command line of ``sbatch`` and its script.

    Parameters
    ----------
    words
        Behind ``sbatch``.
    stdin
        Returns a script that is named nowhere.

    Raises
    ------
    InputError
        Naming the option, with file and line where it stands in one, or the script.
    """
    options, rest = parse_command_line(words, ALSO)
    wrap = options.get("wrap")
    if wrap is not None:
        if rest:
            raise wrap.error("goes without a script")
        text, where = (
            f"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{wrap.value}\n",
            "wrap",
        )
    elif rest:
        where = rest[0]
        text = _script_text(folder / where, where)
    else:
        text, where = stdin(), "sbatch"
    if "\0" in text:
        raise InputError("is no script: it holds NUL characters", where=where)
    options = read_directives(text, where, ALSO) | options
    if "hold" in options:
        raise options["hold"].error("is not honoured")
    if options.get("kill-on-invalid-dep") and options["kill-on-invalid-dep"].value != "yes":
        raise options["kill-on-invalid-dep"].error(
            'expected "yes": a job whose dependency has failed is cancelled'
        )
    read_interpreter(text, where)
    return SubmittedScript(
        job=read_job(options),
        text=text,
        arguments=tuple(rest[1:]),
        where=where,
        environment=environment,
        folder=folder,
    )


def _script_text(path: Path, where: str) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=where) from None
    except UnicodeDecodeError:
        raise InputError("is no text in UTF-8", where=where) from None


def facts_of(script: SubmittedScript, user: str, lookup: ElementLookup) -> JobFacts:
    """
    Return what is kept of a job.

    Parameters
    ----------
    lookup
        Finds the jobs that it depends on.

    Raises
    ------
    InputError
        When it depends on a job that is not known, or in a way that is not honoured.
    """
    job = script.job
    limit = 0 if job.array is None or job.array.at_once is None else job.array.at_once
    if limit >= len(script.indices):
        limit = 0
    usual = "slurm-%j.out" if job.array is None else "slurm-%A_%a.out"
    facts = JobFacts(
        name=script.name,
        user=user,
        folder=str(script.folder / job.value("chdir")),
        command="(null)" if script.where == "wrap" else str(script.folder / script.where),
        partition=job.value("partition") or "bursar",
        account=job.value("account"),
        comment=job.value("comment"),
        output=job.value("output", usual),
        error=job.value("error"),
        processors=job.processors,
        memory=job.memory,
        limit=job.limit,
        tres={
            what: f"gres:{'' if 'gpu' in gpus else 'gpu:'}{gpus}"
            for name, what in _TRES.items()
            if (gpus := job.value(name))
        },
        licenses=job.value("licenses"),
        array=job.value("array"),
        at_once=limit,
        requeues="no-requeue" not in job.options,
    )
    if "dependency" in job.options:
        stated = job.options["dependency"]
        facts = parse_dependency(facts, stated, len(script.indices), lookup)
    return facts


def specs_of_job(
    script: SubmittedScript, number: int, running: Path | None = None
) -> list[TaskSpec]:
    """
    Return the tasks of a job, without those that they come after.

    Parameters
    ----------
    number
        Number of the job.
    running
        Folder in which each task says where it runs; None: none does.
    """
    slurm = SlurmScript(
        name=SCRIPT,
        interpreter=read_interpreter(script.text, script.where),
        root=script.folder,
        uses_srun="srun" in script.text,
        number=number,
        arguments=script.arguments,
    )
    variables, array = _variables(script), script.job.array
    if running is not None:
        variables["BURSAR_RUNNING"] = str(running)
    return [
        TaskSpec(
            # Variables come from the caller of sbatch and not from the worker.
            steps=encode_steps((Inherit(_LOGIN), Write(SCRIPT, script.text), *_steps(task))),
            environment=variables,
            processors=task.processors,
            memory=task.memory,
            resources=dict(task.resources),
            limit=task.wall_limit,
            # Where its machine was lost.
            tries=3 if "requeue" in script.job.options else 1,
            at_once=None if array is None else array.at_once,
            group="" if array is None or array.at_once is None else str(number),
            label=task.id[:200],
        )
        for task in tasks_of(script.job, script.name, slurm)
    ]


def _steps(task: Task) -> list[Step]:
    return [step for step in task.steps if not isinstance(step, Inherit)]


def _variables(script: SubmittedScript) -> dict[str, str]:
    """Return those of the caller's variables that a job gets."""
    names, _ = exported_variables(script.job)
    return {
        name: value
        for name, value in script.environment.items()
        if not _OWN.fullmatch(name) and (names is None or name in names)
    }


def pattern_path(element: JobElement, pattern: str, host: str) -> str:
    """Return the path of a file that an element writes, from its pattern."""
    facts = element.facts
    index = 0xFFFFFFFE if element.index is None else element.index
    known = {
        "%": "%", "j": str(element.number), "J": str(element.number), "A": str(element.job),
        "a": str(index), "x": facts.name, "N": host, "u": facts.user, "n": "0", "t": "0",
        "s": "batch",
    }  # fmt: skip
    if "\\" in pattern:
        return os.path.join(facts.folder, pattern.replace("\\", ""))

    def value(match: re.Match[str]) -> str:
        found = known.get(match[2], match[0])
        return found.zfill(int(match[1] or 0)) if found.isdigit() else found

    return os.path.join(facts.folder, re.sub(r"%(\d*)(.)", value, pattern))
