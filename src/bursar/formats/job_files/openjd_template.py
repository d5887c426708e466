"""
Job templates of Open Job Description (OpenJD), in JSON or YAML, as campaigns.

Each step's tasks run the step's command in a folder of their own, where the files that are embedded
in the step lie. ``docs/guides/openjd.md`` says what is lost in translation.

References
----------
.. [1] Open Job Description. Template Schemas, version 2023-09,
   https://github.com/OpenJobDescription/openjd-specifications/wiki/2023-09-Template-Schemas
"""

import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta, field

from bursar.formats.decoding import TomlTable, decode
from bursar.formats.file_text import json_error, read_text
from bursar.formats.job_files.slurm_script import escaped
from bursar.model.campaign import Campaign, Workflow
from bursar.model.errors import InputError, errors_within
from bursar.model.task import GPU, Exec, Step, Task, Write

VERSION = "jobtemplate-2023-09"

MOST_TASKS = 1_000_000
"""Tasks of a step, at most: more is a mistake in a range."""

_RUN = r"""
here=$PWD
for word do shift; eval "set -- \"\$@\" \"$word\""; done
exec "$@"
"""
"""Runs a command whose words may name the task's folder, ``$here``."""

Scalar = str | int | float


class TemplateTable(TomlTable, frozen=True, rename="camel"):
    """A table of a template, whose keys are as OpenJD spells them."""


class ParameterDefinition(TemplateTable, frozen=True):
    """A parameter of the job, which has its default here."""

    name: str
    type: Literal["STRING", "PATH", "INT", "FLOAT"]
    description: str = ""
    default: Scalar | None = None
    allowed_values: tuple[Scalar, ...] | None = None
    min_length: int | None = None
    max_length: int | None = None
    min_value: Scalar | None = None
    max_value: Scalar | None = None
    object_type: str = ""
    data_flow: str = ""
    user_interface: Any = None


class TaskParameter(TemplateTable, frozen=True):
    """A parameter of a step's tasks, and its values."""

    name: str
    type: Literal["STRING", "PATH", "INT", "FLOAT"]
    range: str | tuple[Scalar, ...]


class ParameterSpace(TemplateTable, frozen=True):
    """How values of parameters make tasks."""

    task_parameter_definitions: Annotated[tuple[TaskParameter, ...], Meta(min_length=1)]
    combination: str = ""


class TemplateAction(TemplateTable, frozen=True):
    """A command, its arguments and its time limit."""

    command: Annotated[str, Meta(min_length=1)]
    args: tuple[Scalar, ...] = ()
    timeout: Annotated[int, Meta(gt=0)] | None = None
    cancelation: Any = None


class StepActions(TemplateTable, frozen=True):
    """Actions of a step's tasks."""

    on_run: TemplateAction


class EmbeddedFile(TemplateTable, frozen=True):
    """A file that lies in a task's folder."""

    name: str
    type: Literal["TEXT"]
    data: str
    filename: str = ""
    runnable: bool = False
    end_of_line: str = ""


class StepScript(TemplateTable, frozen=True):
    """The script of a step."""

    actions: StepActions
    embedded_files: tuple[EmbeddedFile, ...] = ()


class Environment(TemplateTable, frozen=True):
    """Variables of tasks."""

    name: str
    description: str = ""
    script: Any = None
    variables: dict[str, str] = field(default_factory=dict)


class AmountRequirement(TemplateTable, frozen=True):
    """How much of something a task holds."""

    name: str
    min: float | None = None
    max: float | None = None


class AttributeRequirement(TemplateTable, frozen=True):
    """A property that a machine must have."""

    name: str
    any_of: tuple[str, ...] = ()
    all_of: tuple[str, ...] = ()


class HostRequirements(TemplateTable, frozen=True):
    """Amounts and properties that a machine must have."""

    amounts: tuple[AmountRequirement, ...] = ()
    attributes: tuple[AttributeRequirement, ...] = ()


class StepDependency(TemplateTable, frozen=True):
    """A step that has to succeed before."""

    depends_on: str


class StepTemplate(TemplateTable, frozen=True):
    """A step of the job, with the parameters of its tasks."""

    needed: ClassVar = {"script": "is missing: expected what the tasks of the step run"}

    name: Annotated[str, Meta(min_length=1)]
    script: StepScript
    description: str = ""
    dependencies: tuple[StepDependency, ...] = ()
    step_environments: tuple[Environment, ...] = ()
    host_requirements: HostRequirements = HostRequirements()
    parameter_space: ParameterSpace | None = None


class JobTemplate(TemplateTable, frozen=True):
    """The template as a whole."""

    specification_version: str
    name: Annotated[str, Meta(min_length=1)]
    steps: Annotated[tuple[StepTemplate, ...], Meta(min_length=1)]
    schema: str = field(default="", name="$schema")
    description: str = ""
    extensions: tuple[str, ...] = ()
    parameter_definitions: tuple[ParameterDefinition, ...] = ()
    job_environments: tuple[Environment, ...] = ()


def is_openjd_template(path: Path) -> bool:
    """Whether a file in JSON or YAML is a template, by its ``specificationVersion``."""
    try:
        with path.open("rb") as file:
            head = file.read(65536)
    except OSError:
        return False
    return re.search(rb'"?specificationVersion"?\s*:', head) is not None


def read_openjd_template(path: Path) -> Campaign:
    """
    Read a template; parameters of the job have their defaults.

    Raises
    ------
    InputError
        At the place in the document, when a key is unknown, wrong or not honoured.
    """
    text = read_text(path)
    with errors_within(str(path)):
        document = _document(text, is_json=path.suffix.lower() == ".json")
        if not isinstance(document, dict):
            raise InputError("expected a mapping with steps")
        if (version := document.get("specificationVersion")) != VERSION:
            raise InputError(f'expected "{VERSION}", got "{version}"', where="specificationVersion")
        return _campaign(decode(document, JobTemplate), path)


def _document(text: str, *, is_json: bool) -> Any:
    if is_json:
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise json_error(str(error), text.encode()) from None
        except RecursionError:
            raise InputError("is nested too deeply") from None
    try:
        import yaml  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        raise InputError(
            "templates in YAML need PyYAML", hint="pip install pyyaml, or write it as JSON"
        ) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f"{mark.line + 1}:{mark.column + 1}"
        said = getattr(error, "problem", None) or str(error).split("\n", 1)[0]
        raise InputError(f"is not YAML: {said}", where=where) from None
    except (RecursionError, ValueError) as error:  # dates that are none
        raise InputError(f"is not YAML: {error}") from None


def _campaign(job: JobTemplate, path: Path) -> Campaign:
    if job.extensions:
        raise InputError(f"{job.extensions[0]} is not honoured", where="extensions[0]")
    root = Path(os.path.abspath(path)).parent
    values: dict[str, str] = {}
    for number, definition in enumerate(job.parameter_definitions):
        with errors_within(f"parameterDefinitions[{number}]"):
            value = _default(definition, root)
        values[f"Param.{definition.name}"] = values[f"RawParam.{definition.name}"] = value
    ends: dict[str, tuple[str, ...]] = {}
    tasks: list[Task] = []
    for number, step in enumerate(_in_order(job.steps)):
        with errors_within(f"step {step.name}"):
            if number and step.name in ends:
                raise InputError("there are two steps of this name")
            after = tuple(task for one in step.dependencies for task in ends[one.depends_on])
            made = list(_tasks(step, job.job_environments, values, after, root))
        ends[step.name] = tuple(task.id for task in made)
        tasks += made
    name = _formatted(job.name, values, "name")
    return Campaign(name=name, workflow=Workflow(tuple(tasks)), root=root, source=path)


def _default(definition: ParameterDefinition, root: Path) -> str:
    if definition.default is None:
        raise InputError(
            f'"{definition.name}" has no default', hint="a template runs with its defaults"
        )
    value = str(definition.default)
    if definition.type in ("INT", "FLOAT"):
        _number(value, definition.type)
    allowed = definition.allowed_values
    if allowed is not None and value not in {str(one) for one in allowed}:
        raise InputError(f'"{value}" is none of the allowed values', where="default")
    return str(root / value) if definition.type == "PATH" and value else value


def _number(text: str, kind: str) -> float:
    try:
        return int(text) if kind == "INT" else float(text)
    except ValueError:
        raise InputError(f'expected a number of type {kind}, got "{text}"') from None


def _in_order(steps: Sequence[StepTemplate]) -> list[StepTemplate]:
    """Return the steps, each behind those that it depends on."""
    by_name = {step.name: step for step in steps}
    if len(by_name) < len(steps):
        twice = next(s.name for n, s in enumerate(steps) if s.name in {x.name for x in steps[:n]})
        raise InputError(f'two steps have the name "{twice}"', where="steps")
    found: dict[str, StepTemplate] = {}
    waiting = list(steps)
    while waiting:
        ready = [s for s in waiting if all(one.depends_on in found for one in s.dependencies)]
        for step in waiting:
            for one in step.dependencies:
                if one.depends_on not in by_name:
                    raise InputError(
                        f'there is no step "{one.depends_on}"', where=f"step {step.name}"
                    )
        if not ready:
            names = ", ".join(step.name for step in waiting)
            raise InputError(f"steps depend on each other in a cycle: {names}", where="steps")
        found |= {step.name: step for step in ready}
        waiting = [step for step in waiting if step.name not in found]
    return list(found.values())


def _tasks(
    step: StepTemplate,
    environments: Sequence[Environment],
    job_values: Mapping[str, str],
    after: tuple[str, ...],
    root: Path,
) -> Iterator[Task]:
    needs = _needs(step.host_requirements)
    action = step.script.actions.on_run
    space = step.parameter_space
    for number, point in enumerate(_points(space, job_values, root) if space else [{}]):
        if number >= MOST_TASKS:
            raise InputError(f"makes more than {MOST_TASKS:,} tasks", where="parameterSpace")
        values = dict(job_values)
        for name, value in point.items():
            values[f"Task.Param.{name}"] = values[f"Task.RawParam.{name}"] = value
        files: list[Step] = []
        # In a file's text the folder is not known: names relative to it, which the command sees.
        beside = {**values, "Session.WorkingDirectory": "."}
        beside |= {f"Task.File.{one.name}": _file_name(one) for one in step.script.embedded_files}
        in_folder = {name: escaped(value) for name, value in values.items()}
        in_folder["Session.WorkingDirectory"] = "$here"
        for one in step.script.embedded_files:
            files.append(Write(_file_name(one), _formatted(one.data, beside, one.name)))
            if one.runnable:
                files.append(Exec(("/bin/chmod", "u+x", _file_name(one))))
            in_folder[f"Task.File.{one.name}"] = f"$here/{escaped(_file_name(one))}"
        variables: dict[str, str] = {}
        for environment in (*environments, *step.step_environments):
            if environment.script is not None:
                raise InputError(
                    "scripts of environments are not honoured", where=f"{environment.name}.script"
                )
            for name, text in environment.variables.items():
                variables[name] = _formatted(text, beside, environment.name)
        words = [
            _formatted(str(word), in_folder, "script", escaped)
            for word in (action.command, *action.args)
        ]
        label = ",".join(f"{name}={value}" for name, value in point.items())
        yield Task(
            id=f"{step.name}[{label}]" if label else step.name,
            name=step.name,
            steps=(*files, Exec(("/bin/sh", "-c", _RUN, "openjd", *words))),
            environment=variables,
            wall_limit=None if action.timeout is None else float(action.timeout),
            after=after,
            parameters=dict(point),
            **needs,
        )


def _file_name(one: EmbeddedFile) -> str:
    name = one.filename or one.name
    if "/" in name or name in ("", ".", ".."):
        raise InputError(f'expected the name of a file, got "{name}"', where="embeddedFiles")
    return name


def _needs(stated: HostRequirements) -> dict[str, Any]:
    """Return processors, memory and resources of tasks."""
    found: dict[str, Any] = {"resources": {}}
    for one in stated.amounts:
        name, least = one.name.lower(), one.min or 0.0
        if least < 0 or least != least or least > 1e15:
            raise InputError(f"expected an amount, got {one.min}", where=one.name)
        if name == "amount.worker.vcpu":
            found["processors"] = max(1, -int(-least // 1))
        elif name == "amount.worker.memory":
            found["memory"] = int(least * 2**20) or None
        elif name == "amount.worker.gpu":
            if least:
                found["resources"][GPU] = -int(-least // 1)
        elif least:
            raise InputError("is not honoured", where=one.name)
    for attribute in stated.attributes:
        offered = {"attr.worker.os.family": "linux", "attr.worker.cpu.arch": "x86_64"}
        wanted = {word.lower() for word in (*attribute.any_of, *attribute.all_of)}
        if offered.get(attribute.name.lower()) not in wanted:
            raise InputError("is not honoured", where=attribute.name)
    return found


# The parameter space.


def _points(
    space: ParameterSpace, values: Mapping[str, str], root: Path
) -> Iterator[dict[str, str]]:
    """Yield the values of each task's parameters."""
    ranges: dict[str, list[str]] = {}
    for one in space.task_parameter_definitions:
        with errors_within(one.name):
            if one.name in ranges:
                raise InputError("two parameters have this name")
            ranges[one.name] = _range(one, values, root)
    text = space.combination or " * ".join(ranges)
    try:
        columns = _Combination(text, ranges).parse()
    except ValueError as error:
        raise InputError(str(error), where="combination") from None
    for row in columns:
        yield {name: row[name] for name in ranges}


def _range(one: TaskParameter, values: Mapping[str, str], root: Path) -> list[str]:
    if isinstance(one.range, str):
        if one.type != "INT":
            raise InputError("expected a list of values", where="range")
        return [str(number) for number in parse_int_range(_formatted(one.range, values, "range"))]
    found = [_formatted(str(value), values, "range") for value in one.range]
    if not found:
        raise InputError("expected at least one value", where="range")
    if one.type in ("INT", "FLOAT"):
        for value in found:
            _number(value, one.type)
    return [str(root / value) for value in found] if one.type == "PATH" else found


def parse_int_range(text: str) -> list[int]:
    """
    Parse a range expression such as ``1-10:2,20`` to ascending numbers.

    Raises
    ------
    InputError
        When it is none, or numbers occur twice.
    """
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(
            r"\s*(-?\d{1,12})(?:\s*-\s*(-?\d{1,12})(?:\s*:\s*(-?\d{1,9}))?)?\s*", part
        )
        if match is None or match[3] in ("0", "-0"):
            raise InputError(f'expected numbers such as 1-10:2,20, got "{text}"', where="range")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        several = range(first, last + (1 if step > 0 else -1), step) or [first]
        if len(several) + len(found) > MOST_TASKS:
            raise InputError(f"has more than {MOST_TASKS:,} values", where="range")
        found += several
    if len(set(found)) < len(found):
        raise InputError(f'ranges overlap: "{text}"', where="range")
    return sorted(found)


@dataclass(slots=True)
class _Combination:
    """A combination such as ``(A, B) * C``, parsed from left to right."""

    text: str
    ranges: Mapping[str, list[str]]

    def parse(self) -> Iterator[dict[str, str]]:
        words = re.findall(r"[A-Za-z_]\w*|\S", self.text)
        names = [word for word in words if re.match(r"[A-Za-z_]", word)]
        if sorted(names) != sorted(self.ranges):
            raise ValueError(f"expected each of {', '.join(self.ranges)} once: {self.text}")
        rows = self._product(words)
        if words:
            raise ValueError(f'unexpected "{words[0]}": {self.text}')
        return rows

    def _product(self, words: list[str]) -> Iterator[dict[str, str]]:
        factors = [self._factor(words)]
        while words[:1] == ["*"]:
            words.pop(0)
            factors.append(self._factor(words))
        if len(factors) == 1:
            return iter(factors[0])
        return (_joined(parts) for parts in itertools.product(*factors))

    def _factor(self, words: list[str]) -> list[dict[str, str]]:
        word = words.pop(0) if words else "the end"
        if word in self.ranges:
            return [{word: value} for value in self.ranges[word]]
        if word != "(":
            raise ValueError(f'expected a parameter or "(", got "{word}": {self.text}')
        several = [self._bounded(words)]
        while words[:1] == [","]:
            words.pop(0)
            several.append(self._bounded(words))
        if words[:1] != [")"]:
            raise ValueError(f'expected ")": {self.text}')
        words.pop(0)
        if len({len(rows) for rows in several}) > 1:
            raise ValueError(f"ranges within parentheses differ in length: {self.text}")
        return [_joined(parts) for parts in zip(*several, strict=True)]

    def _bounded(self, words: list[str]) -> list[dict[str, str]]:
        rows = list(itertools.islice(self._product(words), MOST_TASKS + 1))
        if len(rows) > MOST_TASKS:
            raise ValueError(f"makes more than {MOST_TASKS:,} tasks")
        return rows


def _joined(parts: Sequence[Mapping[str, str]]) -> dict[str, str]:
    return {name: value for part in parts for name, value in part.items()}


def _formatted(
    text: str,
    values: Mapping[str, str],
    where: str,
    plain: Callable[[str], str] = str,
) -> str:
    """Return a format string with its values; ``plain`` is done to the text between."""
    found = []
    for before, name in re.findall(r"((?:[^{]|\{(?!\{))+)|\{\{\s*([^}]*?)\s*\}\}", text):
        if before:
            found.append(plain(before))
        elif name in values:
            found.append(values[name])
        else:
            raise InputError(f'no value "{name}" is known', where=where)
    if text.count("{{") != sum(1 for _ in re.finditer(r"\{\{\s*[^}]*?\s*\}\}", text)):
        raise InputError("expected }} behind each {{", where=where)
    return "".join(found)
