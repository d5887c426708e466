"""Makes a task from the ad of a job in a JDL file."""

import glob
import math
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bursar.classad import ERROR, UNDEFINED, Ad, Expression, clauses, evaluate, parse_ad
from bursar.classad.ad import AttributeReference, ExpressionList, ExpressionNode, Literal, NestedAd
from bursar.classad.evaluation import followed
from bursar.formats.axes import find_files
from bursar.formats.file_text import read_text
from bursar.formats.units import parse_duration, parse_size
from bursar.model.errors import InputError, spelling_hint
from bursar.model.matching import CHOICES, Matching
from bursar.model.task import Copy, Exec, File, Redirect, Shell, Step, Task

# One ad of a JDL file: its attributes as values of the kinds that are asked for.

LARGEST_FILE = 1024 * 1024
"""Bytes; a job is described by a person."""


@dataclass(frozen=True, slots=True)
class JdlDescription:
    """
    The ad of a job, of a DAG node, or of a whole description.

    Parameters
    ----------
    ad
        Attributes, including those inherited from the enclosing ad.
    places
        File, line and column of each attribute, by its name in lower case.
    place
        File, line and column of the ad itself.
    """

    ad: Ad
    places: Mapping[str, str]
    place: str

    def __contains__(self, name: str) -> bool:
        return name in self.ad

    def error(self, name: str, message: str, *, hint: str | None = None) -> InputError:
        """Return an error at an attribute."""
        return InputError(f"{name} {message}", where=self.where(name), hint=hint)

    def where(self, name: str) -> str:
        """Return the place of an attribute, or of the ad if unknown."""
        return self.places.get(name.lower(), self.place)

    def value(self, name: str) -> Any:
        """Return the value of an attribute within the ad; None for a missing attribute."""
        if name not in self.ad:
            return None
        found = evaluate(self.ad.expression(name), self.ad)
        if found is UNDEFINED or found is ERROR:
            raise self.error(name, f"is {found.word}, expected a value", hint=_unquoted(self, name))
        return found

    def text(self, name: str) -> str | None:
        """Return a string that is not empty."""
        found = self.value(name)
        if found is None:
            return None
        if not isinstance(found, str) or not found.strip() or "\0" in found:
            raise self.error(name, f"is {shown(found)}, expected a string")
        return found

    def texts(self, name: str) -> list[str]:
        """Return a list of strings, or a single one; empty for a missing attribute."""
        found = self.value(name)
        items = [] if found is None else found if isinstance(found, list) else [found]
        for item in items:
            if not isinstance(item, str) or not item.strip() or "\0" in item:
                raise self.error(name, f"holds {shown(item)}, expected strings")
        return items

    def count(self, name: str, least: int) -> int | None:
        """Return a whole number that is not below the least."""
        found = self.value(name)
        if found is None:
            return None
        if type(found) is not int or not least <= found < 2**31:
            expected = f"expected a whole number of at least {least}"
            raise self.error(name, f"is {shown(found)}, {expected}")
        return found

    def share(self, name: str) -> float | None:
        """Return a number from 0 to 1."""
        found = self.value(name)
        if found is None:
            return None
        number = not isinstance(found, bool) and isinstance(found, int | float)
        if not number or math.isnan(found) or not 0 <= found <= 1:
            raise self.error(name, f"is {shown(found)}, expected a number between 0 and 1")
        return float(found)

    def flag(self, name: str) -> bool:
        """Return a Boolean attribute; a missing one counts as false."""
        found = self.value(name)
        if found is not None and not isinstance(found, bool):
            raise self.error(name, f"is {shown(found)}, expected true or false")
        return bool(found)

    def parts(self, name: str) -> list[ExpressionNode]:
        """Return the items of a list as written; a single item counts as a list."""
        root = self.ad.expression(name).root
        return list(root.items) if isinstance(root, ExpressionList) else [root]

    def inner(self, name: str, node: NestedAd) -> "JdlDescription":
        """Return an ad nested in an attribute."""
        ad = Ad.of(node)
        file = self.place
        places = {key.lower(): at(file, ad, key, self.places.get(name.lower(), file)) for key in ad}
        return JdlDescription(ad, places, self.places.get(name.lower(), file))


def at(file: str, ad: Ad, name: str, otherwise: str) -> str:
    """File, line and column of an attribute."""
    place = ad.place(name)
    return otherwise if place is None else f"{_file(file)}:{place[0]}:{place[1]}"


def _file(place: str) -> str:
    return re.sub(r":\d+:\d+$", "", place)


def inheriting(
    outer: JdlDescription, inner: JdlDescription, leave: Iterable[str]
) -> JdlDescription:
    """Return an ad completed by the enclosing ad, except some attributes."""
    left = {name.lower() for name in leave}
    ad = {name: outer.ad[name] for name in outer.ad if name.lower() not in left}
    ad = {name: value for name, value in ad.items() if name not in inner.ad}
    return JdlDescription(
        Ad({**ad, **{name: inner.ad[name] for name in inner.ad}}),
        {**outer.places, **inner.places},
        inner.place,
    )


def read_description(path: Path) -> JdlDescription:
    """
    Read the ad that a file holds.

    Raises
    ------
    InputError
        When it cannot be read, or at line and column.
    """
    text = read_text(path, limit=LARGEST_FILE).replace("\r\n", "\n").replace("\r", "\n")
    # Comments of JDL that ClassAds do not have; columns and lines stay what they are.
    text = re.sub(r"^[ \t]*#[^\n]*", "", text, flags=re.MULTILINE)
    ad = parse_ad(text, where=str(path))
    places = {key.lower(): at(str(path), ad, key, str(path)) for key in ad}
    return JdlDescription(ad, places, str(path))


def name_of(node: ExpressionNode) -> str | None:
    """Return a name that is written bare or as a string; None for anything else."""
    if isinstance(node, AttributeReference) and node.of is None:
        return node.name
    if isinstance(node, Literal) and isinstance(node.value, str):
        return node.value
    return None


def shown(value: object) -> str:
    """Return a value within a message."""
    if isinstance(value, Ad | Expression):
        return "an ad"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = "".join(c if c.isprintable() else "?" for c in str(value))
    text = text if len(text) <= 40 else text[:40] + "..."
    return f'"{text}"' if isinstance(value, str) else text


def _unquoted(description: JdlDescription, name: str) -> str | None:
    """Hint at quotes where a bare word names no attribute: a common slip."""
    root = description.ad.expression(name).root
    if isinstance(root, AttributeReference) and root.of is None:
        return f'write "{root.name}" for a string'
    return None


# Makes a task from the ad of a job.

READ = (
    "Type", "JobType", "Executable", "Arguments", "StdInput", "StdOutput", "StdError",
    "InputSandbox", "OutputSandbox", "Environment", "Requirements", "Rank", "FuzzyRank",
    "SubmitTo", "InputData", "DataRequirements", "OutputData", "RetryCount",
    "ShallowRetryCount", "CpuNumber", "NodeNumber", "EstimatedRuntime", "WallLimit", "Memory",
    "Alpha", "Beta", "Choice", "Nodes", "Dependencies", "NodeName", "File", "Description",
)  # fmt: skip
"""Attributes with a meaning here; others stay in the job's ad."""

REFUSED = {
    "Prologue": "put it before the program, in a script",
    "Epilogue": "put it after the program, in a script",
    "Parameters": "write a campaign with [parameters], or a plan file",
    "JobSteps": "jobs with checkpoints are not read",
    "ListenerPort": "interactive jobs are not read",
}
"""Attributes that would change what runs, and what to do instead."""

_KINDS = ("normal", "mpich", "mpi")


@dataclass(frozen=True, slots=True)
class JdlNode:
    """
    A job's place among the jobs of the file.

    Parameters
    ----------
    folder
        Folder of the job's outputs within the run's files; empty: no folder of its own.
    after
        Ids of the jobs that must have succeeded before.
    """

    id: str
    root: Path
    folder: str = ""
    after: tuple[str, ...] = ()


def task_of(job: JdlDescription, place: JdlNode) -> Task:
    """
    Return the task that an ad describes.

    Raises
    ------
    InputError
        At the attribute that is wrong.
    """
    _check_kind(job)
    sandbox = _sandbox(job, place.root)
    outputs, registers = _outputs(job)
    made = {name: os.path.join(place.folder, name) for name in outputs}
    steps = [
        *(Copy(file, base, True, False) for file, base in sandbox.items() if file != base),
        *_program(job, sandbox),
        *(Copy(name, file, False, False) for name, file in made.items() if name != file),
    ]
    retries = [job.count(name, 0) for name in ("RetryCount", "ShallowRetryCount")]
    known = [count for count in retries if count is not None]
    processors = [job.count(name, 1) for name in ("CpuNumber", "NodeNumber")]
    wall_limit = _quantity(job, "WallLimit", parse_duration)
    if wall_limit == 0:
        raise job.error("WallLimit", "must be positive, got 0")
    return Task(
        id=place.id,
        name=os.path.basename(job.text("Executable") or ""),
        steps=tuple(steps),
        inputs=tuple(File(name) for name in sandbox),
        outputs=tuple(File(name) for name in made.values()),
        after=place.after,
        processors=next((count for count in processors if count is not None), 1),
        runtime=_quantity(job, "EstimatedRuntime", parse_duration),
        wall_limit=wall_limit,
        memory=_quantity(job, "Memory", parse_size),
        environment=_environment(job),
        matching=_matching(job),
        data=_data(job),
        registers={made[name]: logical for name, logical in registers.items()},
        retries=max(known) if known else None,
    )


def _check_kind(job: JdlDescription) -> None:
    for name, why in REFUSED.items():
        if name in job:
            raise job.error(name, "is not carried out here", hint=why)
    for kind in job.texts("JobType"):
        if kind.lower() not in _KINDS:
            raise job.error(
                "JobType", f'is {shown(kind)}, expected "Normal" or "MPICH"',
                hint=spelling_hint(kind, ("Normal", "MPICH")),
            )  # fmt: skip


def _quantity(job: JdlDescription, name: str, parse: Callable[[object], Any]) -> Any:
    """Seconds or bytes, as a number or as text with a unit."""
    value = job.value(name)
    if value is None:
        return None
    try:
        return parse(value)
    except InputError as error:
        message = f"{name}: {error.message}"
        raise InputError(message, where=job.where(name), hint=error.hint) from None


def _program(job: JdlDescription, sandbox: Mapping[str, str]) -> list[Step]:
    program = job.text("Executable")
    if program is None:
        raise job.error("Executable", "is missing, expected the program that runs")
    steps: list[Step] = []
    brought = {base: file for file, base in sandbox.items()}
    if not os.path.isabs(program) and os.path.basename(program) in brought:
        # Sent along, perhaps without the right to be executed. Inputs are links to the
        # user's files, so it is a copy that gets it.
        base = os.path.basename(program)
        program = f"./{base}"
        steps += [Copy(brought[base], base, True, False), Exec(("chmod", "+x", program))]
    try:
        arguments = shlex.split(job.text("Arguments") or "")
    except ValueError as error:
        raise job.error("Arguments", f"cannot be split into words: {error}") from None
    argv = (program, *arguments)
    redirected = [
        Redirect(stream, file)
        for stream, name in (("stdout", "StdOutput"), ("stderr", "StdError"))
        if (file := _file_name(job, name)) is not None
    ]
    if len(redirected) == 2 and redirected[0].path == redirected[1].path:
        redirected[1] = Redirect("stderr", redirected[1].path, append=True)
    steps += redirected
    source = job.text("StdInput")
    if source is None:
        steps.append(Exec(argv))
    else:
        name = os.path.basename(source)
        if name not in brought:
            raise job.error("StdInput", f"{shown(source)} is not in the InputSandbox")
        steps.append(Shell(f"exec {shlex.join(argv)} < {shlex.quote(name)}"))
    return [*steps, *(Redirect(redirect.stream, None) for redirect in redirected)]


def _file_name(job: JdlDescription, name: str) -> str | None:
    text = job.text(name)
    return None if text is None else _relative(job, name, text)


def _relative(job: JdlDescription, name: str, text: str) -> str:
    """Return the name of a file within the job's working directory."""
    try:
        return File(text).name
    except ValueError:
        expected = "expected a file within the job's directory"
        raise job.error(name, f"holds {shown(text)}, {expected}") from None


def _sandbox(job: JdlDescription, root: Path) -> dict[str, str]:
    """Return the files that the user sends along, with the names in the working directory."""
    found: dict[str, str] = {}
    for entry in job.texts("InputSandbox"):
        path = entry.removeprefix("file://")
        if "://" in path:
            raise job.error(
                "InputSandbox", f"holds {shown(entry)}, expected a file beside the JDL file",
                hint="name files that lie elsewhere in InputData",
            )  # fmt: skip
        if os.path.isabs(path):
            path = os.path.relpath(os.path.realpath(path), root)
        if path.startswith("../") or path == "..":
            raise job.error(
                "InputSandbox", f"holds {shown(entry)}, which is outside of {root}",
                hint="move the file beside the JDL file",
            )  # fmt: skip
        if glob.has_magic(path):
            try:
                names = find_files(path, "", root)
            except InputError as error:
                raise job.error("InputSandbox", f"holds {shown(entry)}: {error.message}") from None
        else:
            names = [_relative(job, "InputSandbox", path)]
        for name in names:
            base = os.path.basename(name)
            if name not in found and base in found.values():
                raise job.error("InputSandbox", f"holds two files of the name {shown(base)}")
            found[name] = base
    return found


def _outputs(job: JdlDescription) -> tuple[list[str], dict[str, str]]:
    """Return the files that the job must have made, and the logical names to be registered."""
    names = [_relative(job, "OutputSandbox", name) for name in job.texts("OutputSandbox")]
    for name in names:
        if glob.has_magic(name):
            raise job.error("OutputSandbox", f"holds {shown(name)}, expected names, no patterns")
    registers: dict[str, str] = {}
    for node in job.parts("OutputData") if "OutputData" in job else []:
        if not isinstance(node, NestedAd):
            raise job.error("OutputData", "expected a list of ads, each with an OutputFile")
        entry = job.inner("OutputData", node)
        file = _file_name(entry, "OutputFile")
        if file is None:
            raise job.error("OutputData", "holds an ad without an OutputFile")
        registers[file] = _logical(entry, "LogicalFileName", entry.text("LogicalFileName") or file)
    return list(dict.fromkeys([*names, *registers])), registers


def _environment(job: JdlDescription) -> Mapping[str, str]:
    found = {}
    for entry in job.texts("Environment"):
        name, sign, value = entry.partition("=")
        if not sign or not name.strip():
            raise job.error("Environment", f'holds {shown(entry)}, expected "NAME=value"')
        found[name.strip()] = value
    return found


def _data(job: JdlDescription) -> tuple[str, ...]:
    names = [_logical(job, "InputData", name) for name in job.texts("InputData")]
    for node in job.parts("DataRequirements") if "DataRequirements" in job else []:
        if not isinstance(node, NestedAd):
            raise job.error("DataRequirements", "expected a list of ads, each with InputData")
        entry = job.inner("DataRequirements", node)
        names += [_logical(entry, "InputData", name) for name in entry.texts("InputData")]
    return tuple(dict.fromkeys(names))


def _logical(job: JdlDescription, name: str, text: str) -> str:
    """Return a logical name without the prefix that marks logical names."""
    kind, colon, rest = text.partition(":")
    if colon and kind.lower() in ("guid", "si-lfn", "si-guid", "query"):
        raise job.error(name, f'holds {shown(text)}, expected a logical name, "lfn:NAME"')
    plain = rest if colon and kind.lower() in ("lf", "lfn") else text
    try:
        return File(plain.strip().lstrip("/")).name
    except ValueError:
        raise job.error(name, f"holds {shown(text)}, which is no logical name") from None


def _matching(job: JdlDescription) -> Matching:
    choice = job.text("Choice")
    if choice is not None and choice not in CHOICES:
        raise job.error(
            "Choice", f"is {shown(choice)}, expected one of {', '.join(CHOICES)}",
            hint=spelling_hint(choice, CHOICES),
        )  # fmt: skip
    if choice is None and job.flag("FuzzyRank"):
        choice = "stochastic"
    requirements = _expression(job, "Requirements", (bool,), "true or false")
    rank = _expression(job, "Rank", (bool, int, float), "a number")
    return Matching(
        requirements=None if requirements is None else str(requirements),
        rank=None if rank is None else str(rank),
        site=job.text("SubmitTo"),
        alpha=job.share("Alpha"),
        beta=job.share("Beta"),
        choice=choice,
        attributes=_attributes(job, [e for e in (requirements, rank) if e is not None]),
    )


def _expression(
    job: JdlDescription, name: str, kinds: tuple[type, ...], what: str
) -> Expression | None:
    """
    Return an expression that may come to a value of these kinds, as far as can be told by now.
    """
    if name not in job:
        return None
    expression = job.ad.expression(name)
    for clause in clauses(expression):
        root = clause.root
        if isinstance(root, Literal) and type(root.value) not in kinds:
            found = shown(root.value) if isinstance(root.value, str) else str(clause)
            raise job.error(name, f"holds {found}, expected an expression that is {what}")
    return expression


def _attributes(job: JdlDescription, used: list[Expression]) -> Mapping[str, str]:
    """
    Return the attributes that Bursar does not interpret, and others that expressions refer to.
    """
    read = {name.lower() for name in READ}
    others = [name for name in job.ad if name.lower() not in read]
    expressions = [*used, *(job.ad.expression(name) for name in others)]
    wanted = {key for expression in expressions for key in followed(expression, job.ad)}
    kept = [name for name in job.ad if name in others or name.lower() in wanted]
    return {name: str(job.ad.expression(name)) for name in kept}
