"""
Job files of HyperQueue (TOML) as campaigns.

Tasks run as under HyperQueue: in the folder of the file (or ``cwd``), with the variables ``HQ_...``
of a task, and print into the files that ``stdout`` and ``stderr`` name.
``docs/guides/hyperqueue.md`` says what is lost in translation.

References
----------
.. [1] IT4Innovations. Job Definition File. HyperQueue, version 0.21,
   https://it4innovations.github.io/hyperqueue/stable/jobs/jobfile/
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, field

from bursar.formats.decoding import TomlTable, decode
from bursar.formats.file_text import plain_name
from bursar.formats.job_files.sbatch_options import parse_array
from bursar.formats.job_files.slurm_script import escaped
from bursar.formats.units import parse_duration
from bursar.model.campaign import Campaign, Workflow
from bursar.model.errors import InputError
from bursar.model.task import GPU, Exec, Step, Task, Write

TaskId = Annotated[int, Meta(ge=0, lt=1 << 32)]

STDIN = "hq-stdin"
"""File in a task's folder that holds what the task reads."""

_RUN_TASK = r"""
place=$PWD; folder=$1; output=$2; error=$3; input=$4; keeps=$5; own=$6; shift 6
run=$(printf %.6s "$BURSAR_RUN"); J=$((0x${run:-0} % 60000000 + 1))
eval "folder=\"$folder\""; mkdir -p "$folder" && cd "$folder" || exit 1; CWD=$folder
eval "output=\"$output\" error=\"$error\""
for file in "$output" "$error"; do
  case $file in ?*/*) mkdir -p "${file%/*}" ;; esac
  : > "$file" || exit 1
done
export HQ_JOB_ID=$J
[ -z "$own" ] || export HQ_TASK_DIR="$place" HQ_ERROR_FILENAME="$place/hq-error"
# In a subshell: what this shell says of a signal must not go into the task's file.
(exec env "$@" < "${input:+$place/}${input:-/dev/null}" >> "$output" 2>> "$error")
status=$?
[ ! -f "$output" ] || cat "$output"
[ ! -f "$error" ] || cat "$error" >&2
[ $status = 0 ] || [ ! -f "$place/hq-error" ] || cat "$place/hq-error" >&2
if [ $status = 0 ]; then
  case $keeps in *output*) rm -f "$output" ;; esac
  case $keeps in *error*) rm -f "$error" ;; esac
fi
exit $status
"""
"""
Runs a task, and prints what it has printed into its files once it has ended, so that the task's own
output has it, too. The number of the job is made of the run's identity.
"""

_GPUS = ("gpus", "gpus/nvidia", "gpus/amd")
"""Names of GPUs among the resources."""

_MEMORY = "mem"
"""Name of the memory among the resources, counted in MiB."""

_PLACEHOLDERS = {"JOB_ID": "${J}", "CWD": "${CWD}", "INSTANCE_ID": "0", "SERVER_UID": "bursar"}
"""Placeholders of paths that are known when the task runs, as a shell's text."""


class OutputTable(TomlTable, frozen=True):
    """Where a stream goes, and whether the file stays when the task went well."""

    path: str = ""
    mode: Literal["rm-if-finished", "none", ""] = ""


class RequestTable(TomlTable, frozen=True):
    """Resources that a task holds."""

    resources: dict[str, int | float | str] = field(default_factory=dict)
    time_request: str | int | float | None = None
    n_nodes: Annotated[int, Meta(ge=0)] = 0


class TaskKeys(TomlTable, frozen=True):
    """Keys that tasks and arrays of tasks state."""

    needed: ClassVar = {"command": "is missing: expected the program and its arguments"}

    command: Annotated[tuple[str, ...], Meta(min_length=1)]
    name: str = ""
    env: dict[str, str] = field(default_factory=dict)
    stdout: str | OutputTable = ""
    stderr: str | OutputTable = ""
    stdin: str | None = None
    cwd: str = ""
    pin: Literal["none", "taskset", "omp"] = "none"
    task_dir: bool = False
    time_limit: str | int | float | None = None
    priority: int = 0
    crash_limit: int | str = 0
    request: tuple[RequestTable, ...] = ()


class HyperQueueTask(TaskKeys, frozen=True):
    """A task of a job file."""

    id: TaskId | None = None
    deps: tuple[TaskId, ...] = ()
    data_deps: tuple[Any, ...] = ()


class HyperQueueArray(TaskKeys, frozen=True):
    """Tasks that differ in their number and their entry only."""

    ids: str | None = None
    entries: tuple[str, ...] | None = None


class JobFile(TomlTable, frozen=True):
    """The file as a whole."""

    name: str = ""
    max_fails: int | None = None
    stream: str | None = None
    stream_log: str | None = None
    task: tuple[HyperQueueTask, ...] = ()
    array: tuple[HyperQueueArray, ...] = ()


def read_hyperqueue_job(document: Mapping[str, Any], path: Path) -> Campaign:
    """
    Read the job of a TOML document.

    Raises
    ------
    InputError
        At the place in the document, when a key is unknown, wrong or not honoured.
    """
    arrays = document.get("array")
    if isinstance(arrays, dict):  # one table is the newer form, a list of tables the older one
        document = {**document, "array": [arrays]}
    job = decode(dict(document), JobFile)
    if job.max_fails is not None:
        raise InputError(
            "is not honoured",
            where="max_fails",
            hint="a task that fails stops those that follow it",
        )
    for key, value in (("stream", job.stream), ("stream_log", job.stream_log)):
        if value is not None:
            raise InputError("is not honoured", where=key, hint="stdout and stderr name files")
    name = job.name or plain_name(path)
    root = Path(os.path.abspath(path)).parent
    found = list(_numbered(job))
    by_id = {one.id: one for one in found}
    if len(by_id) < len(found):
        twice = next(one for n, one in enumerate(found) if one.id in {x.id for x in found[:n]})
        raise InputError(f"two tasks have the id {twice.id}", where=twice.where)
    for one in found:
        for parent in one.deps:
            if parent not in by_id:
                raise InputError(f"there is no task {parent}", where=f"{one.where}.deps")
    remarks: dict[str, None] = {}
    tasks = tuple(_task(one, name, root, remarks) for one in found)
    return Campaign(
        name=name,
        workflow=Workflow(tasks),
        root=root,
        source=path,
        remarks=tuple(f"{path}: {remark}" for remark in remarks),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _NumberedTask:
    id: int
    table: TaskKeys
    where: str
    deps: tuple[int, ...] = ()
    entry: str | None = None


def _numbered(job: JobFile) -> Iterator[_NumberedTask]:
    """Yield the tasks with their ids; those without one follow the largest of all."""
    following = max((one.id + 1 for one in job.task if one.id is not None), default=0)
    for number, table in enumerate(job.task):
        where = f"task[{number}]"
        if table.data_deps:
            raise InputError("is not honoured", where=f"{where}.data_deps")
        own = following if table.id is None else table.id
        following = max(following, own + 1)
        yield _NumberedTask(id=own, table=table, where=where, deps=table.deps)
    for number, several in enumerate(job.array):
        where = f"array[{number}]"
        ids = _ids(several, where, following)
        entries = several.entries
        if entries is not None and len(entries) != len(ids):
            raise InputError(
                f"expected as many as ids, {len(ids)}, got {len(entries)}", where=f"{where}.entries"
            )
        for position, own in enumerate(ids):
            following = max(following, own + 1)
            yield _NumberedTask(
                id=own,
                table=several,
                where=where,
                entry=None if entries is None else entries[position],
            )


def _ids(table: HyperQueueArray, where: str, following: int) -> tuple[int, ...]:
    if table.ids is None:
        if table.entries is None:
            raise InputError("expected ids or entries", where=where)
        return tuple(range(following, following + len(table.entries)))
    try:
        found = parse_array(table.ids.replace("_", ""))
    except ValueError as error:
        raise InputError(str(error), where=f"{where}.ids") from None
    if found.at_once is not None:
        raise InputError(f'expected ids such as 1,2,5-9, got "{table.ids}"', where=f"{where}.ids")
    return found.indices


def _task(one: _NumberedTask, job: str, root: Path, remarks: dict[str, None]) -> Task:
    table, where = one.table, one.where
    request, resources = _request(table, where, remarks)
    for key, ignored in (
        ("priority", table.priority != 0),
        ("crash_limit", bool(table.crash_limit)),
        ("pin", table.pin != "none"),
    ):
        if ignored:
            remarks[f"{where.partition('[')[0]}.{key} changes nothing here"] = None
    variables = {
        "OMP_NUM_THREADS": str(resources.get("cpus", 1)),
        **table.env,
        # HyperQueue's own are stronger than those that the file states.
        "HQ_TASK_ID": str(one.id),
        "HQ_INSTANCE_ID": "0",
        "HQ_SUBMIT_DIR": str(root),
        **({} if one.entry is None else {"HQ_ENTRY": one.entry}),
        "HQ_RESOURCE_REQUEST_cpus": "1 compact",
        **{f"HQ_RESOURCE_REQUEST_{name}": amount for name, amount in request.items()},
    }
    for name in variables:
        if not re.fullmatch(r"[^=\0]+", name):
            raise InputError(f'expected names of variables, got "{name}"', where=f"{where}.env")
    paths = {**_PLACEHOLDERS, "TASK_ID": str(one.id), "SUBMIT_DIR": escaped(str(root))}
    folder = _filled(table.cwd or ".", paths, f"{where}.cwd")
    if not table.cwd.startswith(("/", "%{SUBMIT_DIR}")):
        folder = f"{escaped(str(root))}/{folder}"
    output, output_goes = _stream(table.stdout, "stdout", paths, where)
    error, error_goes = _stream(table.stderr, "stderr", paths, where)
    before: tuple[Step, ...] = () if table.stdin is None else (Write(STDIN, table.stdin),)
    goes = f"{'output' if output_goes else ''} {'error' if error_goes else ''}"
    command = Exec(
        (
            *("/bin/sh", "-c", _RUN_TASK, "hq", folder, output, error),
            *("" if table.stdin is None else STDIN, goes, "yes" if table.task_dir else ""),
            *(f"{name}={value}" for name, value in variables.items()),
            *table.command,
        )
    )
    try:
        limit = None if table.time_limit is None else parse_duration(_human(table.time_limit))
    except InputError as problem:
        raise problem.within(f"{where}.time_limit") from None
    return Task(
        id=str(one.id),
        name=table.name or job,
        steps=(*before, command),
        processors=resources.pop("cpus", 1),
        memory=(resources.pop(_MEMORY, 0) << 20) or None,
        resources=resources,
        wall_limit=limit or None,
        after=tuple(str(parent) for parent in dict.fromkeys(one.deps)),
        parameters={} if one.entry is None else {"entry": one.entry},
    )


def _human(value: str | float) -> str | float:
    """
    Return a time without the spaces that HyperQueue allows between its parts.

    Raises
    ------
    InputError
        When it has months: "M", which is a minute elsewhere.
    """
    if not isinstance(value, str):
        return value
    found = re.sub(r"\s+", "", value)
    if re.search(r"\dM(?![a-z])", found):
        raise InputError(f'expected a time without months, got "{value}"')
    return found


def _request(
    table: TaskKeys, where: str, remarks: dict[str, None]
) -> tuple[dict[str, str], dict[str, int]]:
    """Return what a task asks for in HyperQueue's words, and as counts."""
    if len(table.request) > 1:
        raise InputError("alternatives are not honoured: expected one", where=f"{where}.request")
    as_written: dict[str, str] = {}
    counts: dict[str, int] = {}
    for request in table.request:
        place = f"{where}.request[0]"
        if request.n_nodes:
            raise InputError(
                "is not honoured: a task runs on one machine", where=f"{place}.n_nodes"
            )
        if request.time_request is not None:
            remarks["request.time_request changes nothing here"] = None
        for name, value in request.resources.items():
            spot = f"{place}.resources.{name}"
            match = re.fullmatch(r"\s*(\d{1,7})(?:\.0+)?\s*(\w+!?)?\s*", str(value))
            if match is None or not int(match[1]):
                raise InputError(f'expected a whole number, got "{value}"', where=spot)
            if match[2]:
                remarks[f'the policy "{match[2]}" of a resource changes nothing here'] = None
            key = GPU if name in _GPUS else name
            if not re.fullmatch(r"[A-Za-z_][\w.@-]*", key):
                raise InputError(f'expected the name of a resource, got "{name}"', where=spot)
            if key in counts:
                raise InputError("GPUs of two makers are not honoured", where=spot)
            counts[key] = int(match[1])
            as_written[re.sub(r"\W", "_", name)] = f"{match[1]} {match[2] or 'compact'}"
    return as_written, counts


def _stream(
    stated: str | OutputTable, name: str, paths: Mapping[str, str], where: str
) -> tuple[str, bool]:
    """Return the path of a stream's file as a shell's text, and whether it goes at a good end."""
    table = OutputTable(path=stated) if isinstance(stated, str) else stated
    if stated == "none":
        return "/dev/null", False
    usual = f"job-%{{JOB_ID}}/%{{TASK_ID}}.{name}"
    text = _filled(table.path or usual, paths, f"{where}.{name}")
    return text, table.mode == "rm-if-finished"


def _filled(text: str, paths: Mapping[str, str], where: str) -> str:
    """Return a path with its placeholders as text for the inside of a shell's double quotes."""
    found = []
    for plain, name in re.findall(r"((?:[^%]|%(?!\{))+)|%\{([^}]*)\}?", text):
        if plain:
            found.append(escaped(plain))
        elif name in paths:
            found.append(paths[name])
        else:
            raise InputError(f'no placeholder "%{{{name}}}" is known', where=where)
    return "".join(found)
