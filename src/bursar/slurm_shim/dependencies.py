"""
What jobs wait for: ``sbatch --dependency``, and the tasks of a service that stand for it.

A service lets a task begin once all of its parents have succeeded, or once all have ended. What
mixes these, or asks for a failure, goes through a gate: a small task between parents and job, which
succeeds when the parents are as the job wants them.
"""

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec

from bursar.formats.job_files.sbatch_options import StatedOption
from bursar.remote.messages import TaskSpec
from bursar.slurm_shim.jobs import UNENDED, JobElement, JobFacts, Prerequisite, PrerequisiteKind

AFTERNOTOK = "afternotok"
"""Name of the stand-in that a gate runs: whether elements of jobs have failed."""

MOST_EDGES = 10_000
"""Edges between a job's parents and its elements above which all go through one gate."""

_FORMS = (
    "expected afterok:JOB, afterany:JOB, afternotok:JOB, aftercorr:JOB or after:JOB (several jobs: "
    "JOB:JOB, several kinds: with commas), or singleton"
)

ElementLookup = Callable[[Iterable[int] | None], Sequence[JobElement]]
"""Returns the elements of jobs by number; of all jobs for None."""

Parent = tuple[PrerequisiteKind, int | None]
"""A kind, and the task of a service that is meant; None: as wanted already."""


def parse_dependency(
    facts: JobFacts, stated: StatedOption, count: int, lookup: ElementLookup
) -> JobFacts:
    """
    Return a job's facts with what it waits for.

    Parameters
    ----------
    count
        Number of the job's elements.
    lookup
        Finds the jobs that are named.

    Raises
    ------
    InputError
        When a job is not known, or a kind is unknown or not honoured.
    """
    found: dict[Prerequisite, None] = {}
    if "?" in stated.value:
        raise stated.error(
            "alternatives with ? are not honoured: a job waits for all that is named"
        )
    for term in stated.value.split(","):
        kind, *jobs = term.strip().split(":")
        if kind == "singleton" and not jobs:
            for one in lookup(None):
                if one.state in UNENDED and (one.facts.name, one.facts.user) == (
                    facts.name,
                    facts.user,
                ):
                    found[Prerequisite("singleton", one.job, one.position)] = None
            continue
        if kind == "after" and jobs:
            for word in jobs:
                _check_begun(word, stated, lookup)
            continue
        if kind not in ("afterok", "afterany", "afternotok", "aftercorr") or not jobs:
            raise stated.error(f'{_FORMS}, got "{term}"')
        named = [one for word in jobs for one in _named(word, stated, lookup)]
        if kind == "aftercorr" and len(named) < count:
            raise stated.error(f"expected an array of {count} elements or more, got {len(named)}")
        found |= dict.fromkeys(Prerequisite(kind, one.job, one.position) for one in named)  # type: ignore[arg-type]
    return replace(facts, after=tuple(found))


def _check_begun(word: str, stated: StatedOption, lookup: ElementLookup) -> None:
    job, plus, _ = word.partition("+")
    if plus:
        raise stated.error(f'minutes after a begin are not honoured, got "{word}"')
    if any(one.state == "PENDING" for one in _named(job, stated, lookup)):
        raise stated.error(
            f'job "{job}" has not begun, and a service begins nothing at the begin of another task',
            "afterany waits for its end",
        )


def _named(word: str, stated: StatedOption, lookup: ElementLookup) -> Sequence[JobElement]:
    match = re.fullmatch(r"(\d{1,10})(?:_(?:(\d{1,9})|\*))?", word)
    if match is None:
        raise stated.error(f'{_FORMS}, got "{word}"')
    job, index = int(match[1]), match[2]
    found = [
        e for e in lookup([job])
        if (job in (e.number, e.job) if index is None else e.job == job and e.index == int(index))
    ]  # fmt: skip
    if not found:
        raise stated.error(f'there is no job "{word}"')
    return found


def settled(kind: PrerequisiteKind, element: JobElement) -> bool | None:
    """Return whether an element that has ended is as a job wants it; None: it has not ended."""
    if not element.has_ended:
        return None
    if kind in ("afterok", "aftercorr"):
        return element.state == "COMPLETED"
    return kind != "afternotok" or element.state != "COMPLETED"


def depending_on(element: JobElement, known: Sequence[JobElement]) -> list[JobElement]:
    """
    Return the elements that wait until an element has ended, or for one that does.

    Parameters
    ----------
    known
        Elements by number; those that have ended wait for nothing.
    """
    found: dict[tuple[int, int], JobElement] = {(element.job, element.position): element}
    for one in known:
        own = (one.job, one.position)
        if one.state != "PENDING" or own in found:
            continue
        after = [(p.job, p.position) for p in _of_position(one.facts.after, one.position)]
        if any(parent in found for parent in after):
            found[own] = one
    return list(found.values())[1:]


def _of_position(after: Sequence[Prerequisite], position: int) -> list[Prerequisite]:
    """Return what one element waits for: of an array's elements with aftercorr only its own."""
    found = [one for one in after if one.kind != "aftercorr"]
    return found + [one for one in after if one.kind == "aftercorr"][position : position + 1]


def placed(
    facts: JobFacts,
    specs: Sequence[TaskSpec],
    first: int,
    parents: Sequence[Parent],
    folder: Path,
    *,
    positions: Sequence[int],
) -> tuple[list[TaskSpec], list[TaskSpec]]:
    """
    Return the gates of a job, and the tasks of elements with the tasks that they come after.

    Parameters
    ----------
    specs
        Tasks of the elements.
    first
        Number of the first task that is handed over, a gate if there is one.
    parents
        In the order of :attr:`JobFacts.after`.
    folder
        Of the stand-ins, for gates that ask them.
    positions
        Position of each element in its job.
    """
    own = [task for kind, task in parents if kind == "aftercorr"]
    succeed = sorted({t for kind, t in parents if kind == "afterok" and t is not None})
    end = sorted({t for k, t in parents if k in ("afterany", "singleton") and t is not None})
    fail = [
        str(one.job + one.position)
        for one, (kind, task) in zip(facts.after, parents, strict=True)
        if kind == "afternotok" and task is not None
    ]
    failed = sorted({t for kind, t in parents if kind == "afternotok" and t is not None})
    gates: list[TaskSpec] = []
    many = len(specs) * max(len(succeed), len(end)) > MOST_EDGES
    if end and (succeed or own or fail or many):
        gates.append(TaskSpec(shell=":", after=tuple(end), needs="ended", label="afterany"))
        end = []
    if fail:
        words = (sys.executable, "-P", "-m", "bursar.slurm_shim", str(folder), AFTERNOTOK, *fail)
        gates.append(
            TaskSpec(command=words, after=tuple(failed), needs="ended", label="afternotok")
        )
    if many and succeed:
        gates.append(TaskSpec(shell=":", after=tuple(succeed), label="afterok"))
        succeed = []
    succeed += range(first, first + len(gates))
    found = []
    for position, spec in zip(positions, specs, strict=True):
        after = [*succeed, *end]
        if own and (parent := own[position]) is not None:
            after.append(parent)
        needs: Literal["ended"] | None = "ended" if end else None
        found.append(msgspec.structs.replace(spec, after=tuple(after), needs=needs))
    return gates, found
