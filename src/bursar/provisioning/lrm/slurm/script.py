"""Write job scripts with Slurm's options in ``#SBATCH`` lines."""

import math
import re

from bursar.model.errors import InputError
from bursar.model.provisioning import BatchScheduler
from bursar.provisioning.lrm import jobscript
from bursar.provisioning.lrm.resource_manager import JobRequest

MOST_ELEMENTS = 1000
"""Most elements of one array: numbers stay below MaxArraySize, by default 1001."""

_WORD = re.compile(r"[^\s'\"\\]+")


def check(request: JobRequest) -> None:
    """
    Check that a request describes a job that Slurm can run.

    Raises
    ------
    InputError
        When no job can be as a request says.
    """
    jobscript.check(request)
    if request.least_seconds is not None and not 0 < request.least_seconds <= request.seconds:
        raise InputError(
            f"0 < least_seconds <= seconds must hold, got {request.least_seconds} "
            f"and {request.seconds}"
        )
    if not request.folder.startswith("/") or re.search(r"[\n\0\"\\]", request.folder):
        raise InputError(
            f"folder must be a path from the root without quotes, got {request.folder!r}"
        )


def minutes(seconds: float) -> int:
    """Slurm counts in minutes: what is not a whole one is rounded up."""
    return max(1, math.ceil(seconds / 60 - 1e-9))


def script(
    request: JobRequest, batch: BatchScheduler, *, now: float, first: int = 0, copies: int = 1
) -> str:
    """
    Write a job script.

    Parameters
    ----------
    request
        The job.
    batch
        Settings of the site. Its directives come first, so that ours override them.
    now
        Seconds since the epoch. A moment before which a job is not to start is given as so many
        seconds from now, since the scheduler's zone is its own.
    first, copies
        Jobs of the request that this script is for.

    Raises
    ------
    InputError
        When a word cannot stand in a directive.
    """
    lines = [_one_line(directive) for directive in batch.directives]
    for option, word in (
        ("partition", batch.queue),
        ("account", batch.account),
        ("qos", batch.qos),
        ("reservation", request.reservation),
    ):
        if word is not None:
            if not _WORD.fullmatch(word):
                raise InputError(f"no name of a {option}: {word!r}")
            lines.append(f"--{option}={word}")
    lines.append(f"--job-name={request.name}")
    lines.append(f'--chdir="{request.folder}"')
    lines.append(f"--output={request.name}-%j.out")  # in that folder
    lines.append("--no-requeue")  # whoever asked decides what is asked again
    lines.append(f"--time={minutes(request.seconds)}")
    if request.least_seconds is not None:
        lines.append(f"--time-min={minutes(request.least_seconds)}")
    if request.nodes is not None:
        fewest, most = request.nodes
        lines.append(f"--nodes={fewest}-{most}" if fewest < most else f"--nodes={most}")
        lines.append(f"--ntasks-per-node={request.processors}")
    else:
        lines.append(f"--ntasks={request.processors}")
        if request.together:
            lines.append("--nodes=1")
    if request.begin is not None and request.begin > now:
        lines.append(f"--begin=now+{math.ceil(request.begin - now)}")
    if request.copies > 1:
        lines.append(f"--array=0-{copies - 1}")
    head = ["#!/bin/sh", *(f"#SBATCH {line}" for line in lines)]
    element = f"BURSAR_ELEMENT=$(({first} + ${{SLURM_ARRAY_TASK_ID:-0}}))"
    body = [element, "export BURSAR_ELEMENT", *batch.setup, request.script]
    return "\n".join([*head, *body]).rstrip("\n") + "\n"


def _one_line(directive: str) -> str:
    directive = directive.strip()
    if "\n" in directive or not directive.startswith("-"):
        raise InputError(
            f"no directive: {directive!r}",
            where="directives",
            hint='as in a job script, without its #SBATCH: "--mem-per-cpu=2G"',
        )
    return directive
