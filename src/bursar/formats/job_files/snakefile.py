"""
Reads the jobs of a Snakemake workflow that are to run, as Snakemake itself finds them.

Snakemake runs as a program of its own (:mod:`bursar.formats.job_files.snakemake_dag`), in the
Python that has Snakemake, which need not be Bursar's.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from bursar.formats.job_files import snakemake_dag
from bursar.formats.recorded_tasks import RecordedTask, recorded_campaign
from bursar.model.campaign import Campaign, EarlierJob, Recording
from bursar.model.errors import InputError
from bursar.model.task import GPU, Task, Value

NAMES = frozenset({"snakefile"})
"""Names of files, in lower case, that are workflows of Snakemake."""

SUFFIXES = frozenset({".smk", ".snakefile"})
"""Suffixes of such files."""

GPUS = ("gpu", "gpus", "nvidia_gpu")
"""Resources of rules that mean GPUs."""

UNDERSTOOD = frozenset({*GPUS, "tmpdir", "runtime"}) | {
    name + unit for name in ("mem", "disk") for unit in ("", "_mb", "_mib", "_mb_per_cpu")
}
"""Resources that are planned with, or that no site counts."""

LONGEST_MESSAGE = 400
"""Characters of Snakemake's own message, at most, in a line of Bursar's."""

_INTERPRETER = re.compile(rb"""(?:^#!|''' ?)\s*"?(/[^"\n]*?python[^"\s]*)""", re.MULTILINE)
_TALK = re.compile(r"Building DAG|Assuming unrestricted|host: |Using (profile|workflow)")
_INNER = re.compile(r'  File "|    ')
_FRAME = re.compile(r'\s*File ".*", line \d+, in |Traceback:$')


class _Job(msgspec.Struct, frozen=True, kw_only=True):
    rule: str
    wildcards: dict[str, str]
    command: str
    parents: list[int]
    needed: bool
    empty: bool
    checkpoint: bool
    group: str | None
    threads: int
    resources: dict[str, int | float | bool | str]
    inputs: list[tuple[str, int | None]]
    outputs: list[tuple[str, int | None]]
    benchmark: str | None
    started: float | None
    ended: float | None
    recorded_threads: int | None = None
    recorded_inputs: int | None = None


class _Jobs(msgspec.Struct, frozen=True):
    folder: str
    jobs: list[_Job]


def is_snakefile(path: Path) -> bool:
    """Return whether a file is a workflow of Snakemake, by its name."""
    return path.name.lower() in NAMES or path.suffix.lower() in SUFFIXES


def read_snakefile(path: Path, arguments: str = "") -> Campaign:
    """
    Read the jobs that ``snakemake --snakefile PATH`` would run in the present folder.

    The tasks have no programs: such a campaign can be planned, and Snakemake carries it out.

    Parameters
    ----------
    arguments
        Further arguments of ``snakemake``, as typed in a shell: targets, ``--configfile``,
        ``--forceall`` and others.

    Raises
    ------
    InputError
        When Snakemake is absent, refuses the workflow, or has nothing to do.
    """
    path = Path(path)
    return _campaign_of(_ask_snakemake(path, arguments), path)


def campaign_of_described(described: Any, path: Path) -> tuple[Campaign, list[str]]:
    """
    Return the jobs that are to run as a campaign, and the id of each described job's task.

    Parameters
    ----------
    described
        Description of the jobs (:func:`bursar.formats.job_files.snakemake_dag.described`).
    path
        The Snakefile.

    Raises
    ------
    InputError
        When nothing is to be done, or the description has another form.
    """
    try:
        found = msgspec.convert(described, type=_Jobs)
    except msgspec.ValidationError as error:
        raise _unreadable(error, path) from None
    return _campaign_of(found, path), _task_ids(found.jobs)


def _campaign_of(found: _Jobs, path: Path) -> Campaign:
    named = _task_ids(found.jobs)
    wanted = [number for number, job in enumerate(found.jobs) if job.needed and not job.empty]
    if not wanted:
        raise InputError(
            "nothing is to be done: the outputs of all jobs are there",
            where=str(path),
            hint='--snakemake "--forceall" plans all jobs anew',
        )
    folder = Path(found.folder)
    sizes: dict[str, int | None] = {}
    records = []
    for number in wanted:
        job = found.jobs[number]
        reads, writes = (
            tuple(_campaign_name(name, folder) for name, _ in files)
            for files in (job.inputs, job.outputs)
        )
        for name, size in (*job.inputs, *job.outputs):
            sizes.setdefault(_campaign_name(name, folder), size)
        parents = _parents(found.jobs, number)
        task = _task(job, named[number])
        records.append(RecordedTask(task, reads, writes, tuple(named[at] for at in parents)))
    made = recorded_campaign(path, folder.name or "workflow", records, sizes, Recording())
    jobs = [found.jobs[number] for number in wanted]
    return replace(
        made,
        root=folder,
        remarks=tuple(_remarks(jobs)),
        templates={job.rule: job.command for job in jobs if job.command},
        earlier=tuple(
            _earlier(job, named[number], folder)
            for number, job in enumerate(found.jobs)
            if not job.empty and (job.started is not None or job.benchmark is not None)
        ),
    )


# Asks Snakemake.


def _ask_snakemake(path: Path, arguments: str) -> _Jobs:
    try:
        further = shlex.split(arguments)
    except ValueError as error:
        raise InputError(
            f"expected arguments as in a shell: {error}", where="--snakemake"
        ) from None
    interpreter = _interpreter()
    with tempfile.TemporaryDirectory(prefix="bursar-") as scratch:
        result = Path(scratch, "jobs.json")
        # -P: modules beside that file shall not stand in for those that Snakemake imports.
        begin = [interpreter, "-P", snakemake_dag.__file__, str(result)]
        try:
            asked = subprocess.run(
                [*begin, "--snakefile", str(path), "--dag", "dot", *further],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
            )
        except OSError as error:
            raise InputError(
                f"the Python of Snakemake, {interpreter}, cannot be started: {error.strerror}"
            ) from None
        if not result.exists():
            said = _in_one_line(asked.stdout.decode(errors="replace"))
            said = said or f"it ended with exit status {asked.returncode} and said nothing"
            raise InputError(f"Snakemake refuses the workflow: {said}", where=str(path))
        data = result.read_bytes()
    try:
        return msgspec.json.decode(data, type=_Jobs)
    except msgspec.MsgspecError as error:
        raise _unreadable(error, path) from None


def _unreadable(error: Exception, path: Path) -> InputError:
    return InputError(
        f"this Snakemake describes its jobs otherwise than version 9: {error}", where=str(path)
    )


def _interpreter() -> str:
    """Return the Python that has Snakemake: that of ``snakemake`` on PATH, or beside Bursar's."""
    beside = Path(sys.executable).with_name("snakemake")
    for program in (shutil.which("snakemake"), str(beside)):
        if program is not None and os.path.isfile(program):
            with open(program, "rb") as stream:
                stated = _INTERPRETER.search(stream.read(4096))
            if stated is not None:
                named = os.fsdecode(stated[1]).removeprefix("/usr/bin/env ")
                return shutil.which(named) or named
    raise InputError(
        "there is no program snakemake on PATH, which reads workflows of Snakemake",
        hint="pip install snakemake (version 9), or activate the environment that has it",
    )


def _in_one_line(text: str) -> str:
    """Return what Snakemake said, without usage, traceback and talk about progress; or nothing."""
    _, usage, fault = text.rpartition("snakemake_dag.py: error: ")
    lines = (fault if usage else text).splitlines()
    if any(line.startswith("Traceback (") for line in lines):
        # A traceback is indented, and the error that it ends with is not.
        inner = [at for at, line in enumerate(lines) if _INNER.match(line)]
        lines = lines[inner[-1] + 1 :] if inner else lines
    kept = (line.strip() for line in lines if not _TALK.match(line) and not _FRAME.match(line))
    said = " ".join(line for line in kept if line).removesuffix(": None")
    if len(said) > LONGEST_MESSAGE:
        said = said[:LONGEST_MESSAGE] + " ..."
    return said


# Jobs as tasks.


def _task_ids(jobs: Sequence[_Job]) -> list[str]:
    """Return an id for each job: rule and wildcards, with a number where these are not unique."""
    seen: dict[str, int] = {}
    found = []
    for job in jobs:
        values = ",".join(f"{name}={value}" for name, value in job.wildcards.items())
        name = f"{job.rule}[{values}]" if values else job.rule
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return found


def _parents(jobs: Sequence[_Job], number: int) -> list[int]:
    """Return the jobs to wait for, through jobs that run nothing."""
    found, seen, left = [], {number}, list(jobs[number].parents)
    while left:
        at = left.pop()
        if at in seen or not jobs[at].needed:
            continue
        seen.add(at)
        if jobs[at].empty:
            left.extend(jobs[at].parents)
        else:
            found.append(at)
    return sorted(found)


def _campaign_name(name: str, folder: Path) -> str:
    """Return a file's name below the folder; files elsewhere go below ``outside``."""
    whole = os.path.normpath(folder / name)
    inside = os.path.relpath(whole, folder)
    return inside if not inside.startswith("..") else f"outside{whole}"


def _task(job: _Job, named: str) -> Task:
    minutes = job.resources.get("runtime")
    return Task(
        id=named,
        name=job.rule,
        processors=max(1, job.threads),
        runtime=float(minutes) * 60 if isinstance(minutes, int | float) and minutes > 0 else None,
        memory=_memory(job),
        resources=_gpus(job.resources),
        parameters=dict(job.wildcards),
    )


def _memory(job: _Job) -> int | None:
    """Return the bytes that a job states; Snakemake counts in decimal megabytes."""
    for name, times in (("mem_mb", 1), ("mem_mb_per_cpu", max(1, job.threads))):
        megabytes = job.resources.get(name)
        if isinstance(megabytes, int | float) and megabytes > 0:
            return round(megabytes * times * 1_000_000)
    return None


def _gpus(resources: Mapping[str, Value]) -> dict[str, int]:
    counts = [resources.get(name) for name in GPUS]
    wanted = max((int(one) for one in counts if isinstance(one, int | float)), default=0)
    return {GPU: wanted} if wanted > 0 else {}


def _earlier(job: _Job, named: str, folder: Path) -> EarlierJob:
    sizes = [size for _, size in job.inputs]
    known = [size for size in sizes if size is not None]
    timed = job.started is not None and job.ended is not None and job.ended >= job.started
    return EarlierJob(
        task=named,
        kind=job.rule,
        template=job.command,
        parameters=dict(job.wildcards),
        input_bytes=sum(known) if known and len(known) == len(sizes) else None,
        processors=max(1, job.recorded_threads or job.threads),
        growth=len({name for name, _ in job.inputs}) / job.recorded_inputs
        if job.inputs and job.recorded_inputs
        else 1.0,
        began=job.started if timed else None,
        seconds=job.ended - job.started if timed and job.ended and job.started else None,
        benchmark=None if job.benchmark is None else str(folder / job.benchmark),
    )


def _remarks(jobs: Sequence[_Job]) -> list[str]:
    """Return what is planned otherwise than it will be, each in a line."""
    remarks = []
    if rules := sorted({job.rule for job in jobs if job.checkpoint}):
        remarks.append(f"jobs that follow checkpoints ({', '.join(rules)}) are not known yet")
    if groups := sorted({job.group for job in jobs if job.group is not None}):
        remarks.append(f"jobs of groups ({', '.join(groups)}) are planned one by one")
    others = {name for job in jobs for name in job.resources if name not in UNDERSTOOD}
    if others:
        remarks.append(f"resources are not planned with: {', '.join(sorted(others))}")
    return remarks
