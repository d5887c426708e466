"""
WfFormat: workflow executions as JSON, versions 1.5 and 1.6.

https://github.com/wfcommons/WfFormat. Version 1.6 adds optional summaries,
which are not read: they follow from the rest.
"""

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from bursar.formats.decoding import types_in_words
from bursar.formats.file_text import json_error, plain_name, read_bytes
from bursar.formats.recorded_tasks import RecordedTask, recorded_campaign
from bursar.model.campaign import Campaign, RecordedMachine, Recording
from bursar.model.errors import InputError, errors_within, spelling_hint
from bursar.model.task import Task

VERSIONS = ("1.5", "1.6")

MOST_PROCESSORS = 10_000_000
"""More for one task is a mistake in the file: the largest machines have about as many."""


_NUMBER = re.compile(r"_ID\d+$")


class _Camel(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Fields as WfFormat spells them; fields we do not need are skipped."""


class _Spec(_Camel, frozen=True):
    name: str
    id: str
    parents: list[str]
    children: list[str]
    input_files: list[str] = []
    output_files: list[str] = []


class _File(_Camel, frozen=True):
    id: str
    size_in_bytes: int


class _Specification(_Camel, frozen=True):
    tasks: list[_Spec]
    files: list[_File] = []


class _Command(_Camel, frozen=True):
    program: str = ""


class _RecordedExecution(_Camel, frozen=True):
    id: str
    runtime_in_seconds: float
    core_count: float = 1.0
    memory_in_bytes: float | None = None
    machines: list[str] = []
    command: _Command | None = None


class _Cpu(_Camel, frozen=True):
    core_count: int | None = None
    speed_in_m_hz: float | None = msgspec.field(name="speedInMHz", default=None)


class _Machine(_Camel, frozen=True):
    node_name: str
    system: str = ""
    architecture: str = ""
    memory_in_bytes: int | None = None
    cpu: _Cpu = _Cpu()


class _Execution(_Camel, frozen=True):
    makespan_in_seconds: float
    tasks: list[_RecordedExecution]
    machines: list[_Machine] = []
    executed_at: str = ""


class _Workflow(_Camel, frozen=True):
    specification: _Specification
    execution: _Execution | None = None


class _Instance(_Camel, frozen=True):
    name: str
    schema_version: str
    workflow: _Workflow


class _Version(_Camel, frozen=True):
    schema_version: str


def read_wfformat(path: Path) -> Campaign:
    """
    Read the recorded workflow in a WfFormat file, plain, ``.gz`` or ``.xz``.

    A fractional ``coreCount`` is a utilisation; the task is given the next whole number of
    processors. A task without an execution record has no runtime.

    Raises
    ------
    InputError
        Naming the field or task at fault: not JSON, another version, a missing or mistyped field, a
        duplicate id, an unknown parent, child or file, a negative runtime or size, a cycle.
    """
    path = Path(path)
    data = read_bytes(path)
    with errors_within(str(path)):
        return _campaign(path, _decode(data))


def _decode(data: bytes) -> _Instance:
    try:
        # The version first: a file of another one should be refused for that, not for a field that
        # moved.
        version = msgspec.json.decode(data, type=_Version).schema_version
        if version not in VERSIONS:
            raise InputError(
                f'version "{version}" is not supported, expected {" or ".join(VERSIONS)}',
                where="schemaVersion",
                hint="WfCommons' wfcommons-migrate-instance.py converts older files",
            )
        return msgspec.json.decode(data, type=_Instance)
    except msgspec.ValidationError as error:
        raise _field_error(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise json_error(str(error), data) from None
    except RecursionError:
        raise InputError("is nested too deeply to be a workflow") from None


def _field_error(message: str) -> InputError:
    """``Expected `str`, got `int` - at `$.name` `` as a message at a field."""
    text, _, place = message.partition(" - at `$")
    if text == "Number out of range":
        return json_error(text, b"")
    field = place.rstrip("`").lstrip(".")
    if match := re.fullmatch(r"Expected `(.+)`, got `(.+)`", text):
        wanted, found = map(types_in_words, match.groups())
        return InputError(f"expected {wanted}, got {found}", where=field)
    text = text.replace("`", '"').replace("Object missing required field", "missing field")
    return InputError(text[0].lower() + text[1:], where=field)


def _campaign(path: Path, instance: _Instance) -> Campaign:
    specification = instance.workflow.specification
    execution = instance.workflow.execution
    _check_ids(specification.tasks)
    _check_children(specification.tasks)
    sizes = _sizes(specification.files)
    runs = _runs(execution.tasks if execution else [], {s.id for s in specification.tasks})
    records = [_record(spec, runs.get(spec.id), sizes) for spec in specification.tasks]
    name = instance.name or plain_name(path)
    return recorded_campaign(path, name, records, sizes, _recording(execution))


def _check_ids(specs: Sequence[_Spec]) -> None:
    where = "workflow.specification.tasks"
    if not specs:
        raise InputError("is empty, expected at least one task", where=where)
    seen: set[str] = set()
    for i, spec in enumerate(specs):
        if not spec.id:
            raise InputError("id must not be empty", where=f"{where}[{i}]")
        if spec.id in seen:
            raise InputError(f'duplicate task id "{spec.id}"', where=f"{where}[{i}]")
        seen.add(spec.id)


def _check_children(specs: Sequence[_Spec]) -> None:
    """Check that each task's parents and children agree with the other tasks'."""
    parents = {spec.id: set(spec.parents) for spec in specs}
    children = {spec.id: set(spec.children) for spec in specs}
    for spec in specs:
        for child in spec.children:
            if child not in parents:
                raise InputError(
                    f'unknown child "{child}"',
                    where=f"task {spec.id}",
                    hint=spelling_hint(child, parents),
                )
            if spec.id not in parents[child]:
                raise InputError(
                    f'has "{child}" as child, which does not have it as parent',
                    where=f"task {spec.id}",
                )
        for parent in spec.parents:
            if parent not in children:
                raise InputError(
                    f'unknown parent "{parent}"',
                    where=f"task {spec.id}",
                    hint=spelling_hint(parent, children),
                )
            if spec.id not in children[parent]:
                raise InputError(
                    f'has "{parent}" as parent, which does not have it as child',
                    where=f"task {spec.id}",
                )


def _sizes(files: Sequence[_File]) -> dict[str, int | None]:
    sizes: dict[str, int | None] = {}
    for file in files:
        if file.id in sizes:
            raise InputError(f'duplicate file id "{file.id}"', where=f"file {file.id}")
        if not (0 <= file.size_in_bytes < 2**63):
            raise InputError(
                f"sizeInBytes must not be negative, got {file.size_in_bytes}"
                if file.size_in_bytes < 0
                else f"sizeInBytes is out of range: {file.size_in_bytes}",
                where=f"file {file.id}",
            )
        sizes[file.id] = file.size_in_bytes
    return sizes


def _runs(runs: Sequence[_RecordedExecution], known: set[str]) -> dict[str, _RecordedExecution]:
    found: dict[str, _RecordedExecution] = {}
    for run in runs:
        where = f"workflow.execution.tasks: task {run.id}"
        if run.id not in known:
            raise InputError(
                "has no task of this id in the specification",
                where=where,
                hint=spelling_hint(run.id, known),
            )
        if run.id in found:
            raise InputError(f'duplicate task id "{run.id}"', where=where)
        if not run.runtime_in_seconds >= 0:
            raise InputError(
                f"runtimeInSeconds must not be negative, got {run.runtime_in_seconds:g}",
                where=where,
            )
        if not 0 < run.core_count <= MOST_PROCESSORS:
            raise InputError(
                f"coreCount must be positive and at most {MOST_PROCESSORS:,}, "
                f"got {run.core_count:g}",
                where=where,
            )
        if run.memory_in_bytes is not None and not (0 <= run.memory_in_bytes < 2**63):
            raise InputError(
                f"memoryInBytes must not be negative, got {run.memory_in_bytes:g}", where=where
            )
        found[run.id] = run
    return found


def _record(
    spec: _Spec, run: _RecordedExecution | None, sizes: Mapping[str, int | None]
) -> RecordedTask:
    for file in (*spec.input_files, *spec.output_files):
        if file not in sizes:
            raise InputError(
                f'unknown file "{file}": it is not in workflow.specification.files',
                where=f"task {spec.id}",
                hint=spelling_hint(file, sizes),
            )
    facts: dict[str, Any] = {}
    if run is not None:
        facts["runtime"] = run.runtime_in_seconds
        # A utilisation of 1.0000000001 is one processor.
        facts["processors"] = max(1, math.ceil(run.core_count - 1e-9))
        if run.memory_in_bytes is not None:
            facts["memory"] = int(run.memory_in_bytes)
    try:
        # WfCommons numbers the tasks of a kind.
        task = Task(id=spec.id, name=_NUMBER.sub("", spec.name) or spec.name, **facts)
    except ValueError as error:
        raise InputError(str(error), where=f"task {spec.id}") from None
    return RecordedTask(
        task, tuple(spec.input_files), tuple(spec.output_files), tuple(spec.parents)
    )


def _recording(execution: _Execution | None) -> Recording:
    if execution is None:
        return Recording()
    try:
        return Recording(
            makespan=execution.makespan_in_seconds,
            machines=tuple(
                RecordedMachine(
                    name=machine.node_name,
                    processors=machine.cpu.core_count,
                    megahertz=machine.cpu.speed_in_m_hz,
                    memory=machine.memory_in_bytes,
                    architecture=machine.architecture,
                    system=machine.system,
                )
                for machine in execution.machines
            ),
            machine_of={run.id: tuple(run.machines) for run in execution.tasks if run.machines},
            programs={
                run.id: run.command.program
                for run in execution.tasks
                if run.command is not None and run.command.program
            },
            begun=_moment(execution.executed_at),
        )
    except ValueError as error:
        raise InputError(str(error), where="workflow.execution") from None


_DATES = ("%Y%m%dT%H%M%S%z", "%m-%d-%yT%H:%M:%SZ")
"""Notations in real recordings besides ISO 8601, which the format asks for."""


def _moment(text: str) -> float | None:
    """Return a date as seconds since the epoch, UTC where it names no zone; None: unreadable."""
    found = None
    with contextlib.suppress(ValueError):
        found = datetime.fromisoformat(text)
    for notation in _DATES:
        if found is None:
            with contextlib.suppress(ValueError):
                found = datetime.strptime(text, notation)
    if found is None:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
