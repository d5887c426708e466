"""One checked entry of a campaign file: texts split at the places for values, and keys on sites."""

import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from bursar.classad.ad import Ad
from bursar.formats.file_text import joined
from bursar.formats.sweep import Template, as_text, rendered_at, template_at
from bursar.formats.tables import ContainerTable, FileTable, InputTable, TaskTable, UvTable
from bursar.formats.units import parse_duration, parse_size
from bursar.model.errors import InputError, errors_within, spelling_hint
from bursar.model.matching import CHOICES, Fact, Matching
from bursar.model.surroundings import (
    CondaEnvironment,
    Container,
    Modules,
    Surrounding,
    UvEnvironment,
    check_words,
)
from bursar.model.task import GPU, Value

# The keys of a campaign file by which tasks choose sites.


@dataclass(frozen=True, slots=True)
class MatchingKeys:
    """
    The checked keys of a task set from which the :class:`Matching` is made.

    Parameters
    ----------
    table
        The set's settings; its expressions have been parsed.
    site
        Name of a site; may hold parameters.
    attributes
        Of the job's ad; text may hold parameters.
    site_place, place
        Paths of ``site`` and of ``attributes``.
    """

    table: TaskTable
    site: Template | None
    attributes: tuple[tuple[str, Fact | Template], ...]
    site_place: str
    place: str
    _constant: list[Matching] = field(default_factory=list)

    def templates(self) -> list[tuple[str, Template]]:
        """Return the texts with places for values, each with the path of its key."""
        found = [] if self.site is None else [(self.site_place, self.site)]
        texts = [(k, v) for k, v in self.attributes if isinstance(v, Template)]
        return found + [(joined(self.place, key), template) for key, template in texts]

    def at(self, values: Mapping[str, Value | tuple[str, ...]]) -> Matching:
        """Return what is asked at a point of the sweep; one object where nothing varies."""
        if self._constant:
            return self._constant[0]
        site = None
        if self.site is not None:
            site = rendered_at(self.site, values, self.site_place)
            if not site:
                raise InputError("expected the name of a site", where=self.site_place)
        ad = Ad({name: self._value(name, value, values) for name, value in self.attributes})
        matching = Matching(
            requirements=self.table.requirements,
            rank=self.table.rank,
            site=site,
            alpha=self.table.alpha,
            beta=self.table.beta,
            choice=self.table.choice,
            attributes={name: str(ad.expression(name)) for name in ad},
        )
        if not any(template.names for _, template in self.templates()):
            self._constant.append(matching)
        return matching

    def _value(
        self, name: str, value: Fact | Template, values: Mapping[str, Value | tuple[str, ...]]
    ) -> object:
        if not isinstance(value, Template):
            return value
        alone = value.only_name
        if alone is not None and value.text == f"{{{alone}}}":
            return values[alone]  # a parameter by itself keeps its kind
        return rendered_at(value, values, joined(self.place, name))


def matching_keys(table: TaskTable, at: Any) -> MatchingKeys:
    """
    Return the keys of a set, checked.

    Parameters
    ----------
    at
        Gives the path of a setting.

    Raises
    ------
    InputError
        At the key that is wrong; within an expression, at its column.
    """
    for key in ("requirements", "rank"):
        text = getattr(table, key)
        if text is not None:
            check_expression(text, at(key))
    for key in ("alpha", "beta"):
        weight = getattr(table, key)
        if weight is not None and math.isnan(weight):
            raise InputError("expected a number between 0 and 1", where=at(key))
    if table.choice is not None and table.choice not in CHOICES:
        raise InputError(
            f'expected one of {", ".join(CHOICES)}, got "{table.choice[:40]}"',
            where=at("choice"),
            hint=spelling_hint(table.choice, CHOICES),
        )
    return MatchingKeys(
        table,
        None if table.site is None else template_at(table.site, at("site")),
        tuple(_attribute(k, v, at("attributes")) for k, v in (table.attributes or {}).items()),
        at("site"),
        at("attributes"),
    )


def check_expression(text: str, place: str) -> None:
    """
    Check that a text is an expression.

    Raises
    ------
    InputError
        At the place, with the column, when the text is no expression.
    """
    from bursar.classad.parsing import parse

    try:
        parse(text)
    except InputError as error:
        line, _, column = error.where.partition(":")
        within = f"column {column}" if "\n" not in text else f"line {line}, column {column}"
        raise InputError(f"{within}: {error.message}", where=place, hint=error.hint) from None


def _attribute(name: str, value: Fact, place: str) -> tuple[str, Fact | Template]:
    if not name or "\0" in name:
        raise InputError("expected a name", where=joined(place, name))
    return name, template_at(value, joined(place, name)) if isinstance(value, str) else value


# One checked entry of a campaign file, with texts split at the places for values.

T = TypeVar("T")

Values = Mapping[str, Value | tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSet:
    """
    Settings of one task, or of all tasks of a sweep.

    Parameters
    ----------
    name
        Unique in the campaign.
    table
        Settings of the task set, including those inherited from ``[task]``.
    place
        Path of the task set's table in the file.
    places
        Path of single settings that were written elsewhere.
    swept
        True when it runs over the campaign's sweep even if it mentions none of its parameters.
    secrets_file
        Path of the file with values of secret variables; empty: none.
    """

    name: str
    table: TaskTable
    place: str
    places: Mapping[str, str] = field(default_factory=dict)
    swept: bool = False
    secrets_file: str = ""

    def at(self, key: str) -> str:
        """Path of a setting."""
        return self.places.get(key) or joined(self.place, key)


@dataclass(frozen=True, slots=True)
class TaskSetting(Generic[T]):
    """A value that is the same at every point, or has to be worked out there."""

    constant: T | None
    template: Template | None
    parse: Callable[[object], T]
    place: str

    def value(self, values: Values) -> T | None:
        """Return the value at a point of the sweep."""
        if self.template is None:
            return self.constant
        try:
            return self.parse(self.template.render(values))
        except InputError as error:
            raise error.within(self.place) from None


@dataclass(frozen=True, slots=True)
class FilePattern:
    """A file whose name and size may depend on the point."""

    name: Template
    size: TaskSetting[int]
    place: str


@dataclass(frozen=True, slots=True)
class InputSource:
    """Inputs that are looked up: outputs of a set, or whatever matches."""

    task_set: str | None
    files: Template | None
    place: str


@dataclass(frozen=True, slots=True)
class SurroundingTemplate:
    """
    A container or an environment whose texts may depend on the point.

    Parameters
    ----------
    texts
        The texts, each with its place.
    make
        Makes the step of the texts with values.
    """

    texts: tuple[tuple[str, Template], ...]
    make: Callable[[Sequence[str]], Surrounding]
    _constant: list[Surrounding] = field(default_factory=list)

    def at(self, values: Values) -> Surrounding:
        """
        Return the step at a point of the sweep.

        Raises
        ------
        InputError
            At the setting that is wrong.
        """
        if self._constant:
            return self._constant[0]
        texts = [rendered_at(template, values, place) for place, template in self.texts]
        with errors_within(self.texts[0][0]):
            step = self.make(texts)
            check_words(step)
        if not any(template.names for _, template in self.texts):
            self._constant.append(step)
        return step


@dataclass(frozen=True, slots=True)
class CompiledTaskSet:
    """A task set with every text parsed into a template."""

    source: TaskSet
    id: Template | None
    line: Template | None
    argv: tuple[Template, ...]
    inputs: tuple[FilePattern | InputSource, ...]
    outputs: tuple[FilePattern, ...]
    after: tuple[Template, ...]
    environment: tuple[tuple[str, Template], ...]
    stdin: FilePattern | None
    stdin_text: Template | None
    processors: TaskSetting[int]
    runtime: TaskSetting[float]
    wall_limit: TaskSetting[float]
    memory: TaskSetting[int]
    resources: tuple[tuple[str, TaskSetting[int]], ...]
    surroundings: tuple[SurroundingTemplate, ...]
    matching: MatchingKeys
    data: tuple[Template, ...]
    register: tuple[tuple[Template, Template], ...]
    mentions_files: bool
    """Whether the command or the environment names the task's inputs or outputs."""

    def mentioned(self) -> set[str]:
        """Return every name used in braces in the task set."""
        return {name for _, template in self.templates() for name in template.names}

    def templates(self) -> list[tuple[str, Template]]:
        """Return all templates, each with the place."""
        at = self.source.at
        found: list[tuple[str, Template | None]] = [("id", self.id), ("command", self.line)]
        found = [(at(key), template) for key, template in found]
        found += [(joined(at("command"), i), t) for i, t in enumerate(self.argv)]
        found += [(joined(at("after"), i), t) for i, t in enumerate(self.after)]
        found += [(joined(at("environment"), key), t) for key, t in self.environment]
        found.append((at("stdin_text"), self.stdin_text))
        if self.stdin is not None:
            found.append((self.stdin.place, self.stdin.name))
        for surrounding in self.surroundings:
            found += surrounding.texts
        found += self.matching.templates()
        found += [(joined(at("data"), i), t) for i, t in enumerate(self.data)]
        for output, logical in self.register:
            found += [(joined(at("register"), output.text), t) for t in (output, logical)]
        for file in (*self.inputs, *self.outputs):
            if isinstance(file, InputSource):
                found.append((file.place, file.files))
            else:
                found += [(file.place, file.name), (file.place, file.size.template)]
        for setting in (self.processors, self.runtime, self.wall_limit, self.memory):
            found.append((setting.place, setting.template))
        found += [(count.place, count.template) for _, count in self.resources]
        return [(place, template) for place, template in found if template is not None]

    def check(self, parameters: Collection[str]) -> None:
        """
        Check that every name in braces means something there.

        Raises
        ------
        InputError
            Where a name stands in braces that means nothing there.
        """
        late = (self.source.at("command"), self.source.at("environment"))
        for place, template in self.templates():
            known = [*parameters, "index"]
            # An id cannot be made of itself.
            if place != self.source.at("id"):
                known.append("id")
            # Inputs and outputs are known only when all sets are expanded, which commands and
            # environments wait for.
            if place.startswith(late):
                known += ["inputs", "outputs"]
            with errors_within(place):
                template.check(known)


def compile_set(source: TaskSet) -> CompiledTaskSet:
    """
    Parse the texts of a set into templates, and parse the plain values.

    Raises
    ------
    InputError
        At the setting that is wrong.
    """
    table, at = source.table, source.at
    command = table.command
    argv: tuple[Template, ...] = ()
    line = None
    if isinstance(command, str):
        if not command.strip():
            raise InputError("expected a command, got an empty text", where=at("command"))
        line = template_at(command, at("command"), shell=True)
    else:
        argv = tuple(
            template_at(word, joined(at("command"), i)) for i, word in enumerate(command or ())
        )
        if not argv or not argv[0].text:
            raise InputError("expected a program, then its arguments", where=at("command"))
    environment = tuple(_environment(table.environment or {}, at("environment")))
    _check_variables(table, at)
    late = [line, *argv, *(template for _, template in environment)]
    return CompiledTaskSet(
        source=source,
        id=None if table.id is None else template_at(table.id, at("id")),
        line=line,
        argv=argv,
        inputs=tuple(
            _input(entry, joined(at("inputs"), i)) for i, entry in enumerate(table.inputs or ())
        ),
        outputs=tuple(
            _file(entry, joined(at("outputs"), i)) for i, entry in enumerate(table.outputs or ())
        ),
        after=tuple(
            template_at(name, joined(at("after"), i)) for i, name in enumerate(table.after or ())
        ),
        environment=environment,
        stdin=None if table.stdin is None else _file(table.stdin, at("stdin")),
        stdin_text=None
        if table.stdin_text is None
        else template_at(table.stdin_text, at("stdin_text")),
        processors=_setting(
            1 if table.processors is None else table.processors, _count, at("processors")
        ),
        runtime=_setting(table.runtime, parse_duration, at("runtime")),
        wall_limit=_setting(table.wall_limit, _positive_duration, at("wall_limit")),
        memory=_setting(table.memory, parse_size, at("memory")),
        resources=_resources(table, at),
        surroundings=tuple(_surroundings(table, at)),
        matching=matching_keys(table, at),
        data=tuple(
            template_at(name, joined(at("data"), i)) for i, name in enumerate(table.data or ())
        ),
        register=tuple(
            (template_at(output, place), template_at(logical, place))
            for output, logical in (table.register or {}).items()
            for place in (joined(at("register"), output),)
        ),
        mentions_files=any(t.names & {"inputs", "outputs"} for t in late if t is not None),
    )


def _check_variables(table: TaskTable, at: Callable[[str], str]) -> None:
    for key in ("inherit", "secret"):
        for i, name in enumerate(getattr(table, key) or ()):
            if not name or "=" in name or "\0" in name:
                raise InputError('expected a name without "="', where=joined(at(key), i))
    for i, name in enumerate(table.secret or ()):
        if name in (table.environment or {}):
            raise InputError(f'"{name}" stands in environment, too', where=joined(at("secret"), i))


def _resources(
    table: TaskTable, at: Callable[[str], str]
) -> tuple[tuple[str, TaskSetting[int]], ...]:
    found = []
    for name, count in (table.resources or {}).items():
        if not name.strip() or not name.isprintable():
            raise InputError("expected the name of a resource", where=joined(at("resources"), name))
        found.append((name, _setting(count, _count, joined(at("resources"), name))))
    if table.gpus is not None:
        found.append((GPU, _setting(table.gpus, _count, at("gpus"))))
    return tuple(found)


NONE = "none"
"""Has a task run in no container and no environment, whatever [task] says."""


def _surroundings(table: TaskTable, at: Callable[[str], str]) -> Iterator[SurroundingTemplate]:
    """Yield what the command runs in; modules first, which may bring the others' commands."""
    if table.modules:
        yield _of_texts(table.modules, at("modules"), lambda names: Modules(tuple(names)))
    container, uv = table.container, table.uv
    if isinstance(container, str) and container != NONE:
        yield _of_texts([container], at("container"), lambda texts: Container(_path(texts[0])))
    elif isinstance(container, ContainerTable):
        options, binds = container.options or [], container.binds or []
        runtime, gpu = container.runtime or "", container.gpu

        def make(texts: Sequence[str]) -> Container:
            own, mounted = texts[1 : 1 + len(options)], texts[1 + len(options) :]
            return Container(
                _path(texts[0]), runtime, tuple(own), tuple(map(os.path.expanduser, mounted)), gpu
            )

        yield _of_texts([container.image, *options, *binds], at("container"), make)
    if table.conda is not None and table.conda != NONE:
        yield _of_texts([table.conda], at("conda"), lambda texts: _conda(texts[0]))
    if isinstance(uv, str) and uv != NONE:
        yield _of_texts([uv], at("uv"), lambda texts: _uv(texts[0]))
    elif isinstance(uv, list):
        yield _of_texts(uv, at("uv"), lambda texts: UvEnvironment(packages=tuple(texts)))
    elif isinstance(uv, UvTable):
        python = uv.python or ""
        if uv.packages is not None:
            packages = [*uv.packages, python]
            yield _of_texts(
                packages,
                at("uv"),
                lambda texts: UvEnvironment(packages=tuple(texts[:-1]), python=texts[-1]),
            )
        elif uv.project is not None:
            yield _of_texts(
                [uv.project, python],
                at("uv"),
                lambda texts: UvEnvironment(project=texts[0], python=texts[1]),
            )
        else:
            yield _of_texts(
                [uv.requirements or "", python],
                at("uv"),
                lambda texts: UvEnvironment(requirements=texts[0], python=texts[1]),
            )


def _of_texts(
    texts: Sequence[str], place: str, make: Callable[[Sequence[str]], Surrounding]
) -> SurroundingTemplate:
    return SurroundingTemplate(tuple((place, template_at(text, place)) for text in texts), make)


def _path(text: str) -> str:
    """Return an image; the path of a file in its shortest form."""
    text = os.path.expanduser(text)
    return os.path.normpath(text) if text.startswith((".", "/")) else text


def _conda(text: str) -> CondaEnvironment:
    if text.endswith((".yml", ".yaml", ".txt")):
        return CondaEnvironment(file=text)
    if "/" in text:
        prefix = os.path.expanduser(text)
        if not prefix.startswith("/"):
            raise InputError(f'expected an absolute path of an environment, got "{text[:80]}"')
        return CondaEnvironment(prefix=prefix)
    return CondaEnvironment(name=text)


def _uv(text: str) -> UvEnvironment:
    if text.endswith((".txt", ".in")):
        return UvEnvironment(requirements=text)
    return UvEnvironment(project=text.removesuffix("pyproject.toml").rstrip("/") or ".")


def _setting(raw: Any, parse: Callable[[object], T], place: str) -> TaskSetting[T]:
    if raw is None:
        return TaskSetting(None, None, parse, place)
    # A plain value is parsed once here, not again at each point of a sweep.
    if isinstance(raw, str) and ("{" in raw or "}" in raw):
        return TaskSetting(None, template_at(raw, place), parse, place)
    with errors_within(place):
        return TaskSetting(parse(raw), None, parse, place)


def _count(value: object) -> int:
    expected = "expected a whole number of at least 1"
    if isinstance(value, str) and re.fullmatch(r"\d{1,10}", value.strip(), re.ASCII):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f'{expected}, got "{str(value)[:40]}"')
    if not 1 <= value < 2**31:
        raise InputError(f"{expected}, got {value}")
    return value


def _positive_duration(value: object) -> float:
    seconds = parse_duration(value)
    if seconds == 0:
        raise InputError("must be positive, got 0")
    return seconds


def _file(entry: str | FileTable | InputTable, place: str) -> FilePattern:
    name = entry if isinstance(entry, str) else entry.name
    size = None if isinstance(entry, str) else entry.size
    assert name is not None
    return FilePattern(
        template_at(name, place), _setting(size, parse_size, joined(place, "size")), place
    )


def _input(entry: str | InputTable, place: str) -> FilePattern | InputSource:
    if isinstance(entry, str):
        return _file(entry, place)
    if entry.name is not None:
        return _file(entry, place)
    files = None
    if entry.files is not None:
        files = template_at(entry.files, joined(place, "files"))
    return InputSource(entry.from_, files, place)


def _environment(
    raw: Mapping[str, str | int | float | bool], place: str
) -> list[tuple[str, Template]]:
    found = []
    for key, value in raw.items():
        if not key or "=" in key or "\0" in key:
            raise InputError('expected a name without "="', where=joined(place, key))
        if isinstance(value, str):
            found.append((key, template_at(value, joined(place, key))))
        else:
            text = as_text(value)
            found.append((key, Template(text, (text,))))
    return found
