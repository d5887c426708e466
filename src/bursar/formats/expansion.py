"""Expands task sets into tasks: a task for each point of a sweep, with dependencies."""

import fnmatch
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bursar.formats.axes import find_files, read_sweep
from bursar.formats.file_text import joined
from bursar.formats.sweep import ONE_POINT, Sweep, Template, rendered_at
from bursar.formats.task_set import (
    CompiledTaskSet,
    FilePattern,
    InputSource,
    TaskSet,
    Values,
    compile_set,
)
from bursar.model.errors import InputError, errors_within, spelling_hint
from bursar.model.surroundings import Surrounding
from bursar.model.task import (
    Exec,
    File,
    Inherit,
    OnError,
    Secret,
    Shell,
    StandardInput,
    Step,
    Task,
    Value,
)

MOST_LINKS = 10_000_000
"""Largest number of dependencies; refused before memory runs out."""

LONGEST_ARGUMENT = 131_071
"""Bytes in one argument of a program, and so in a line for the shell, on Linux."""


@dataclass(slots=True)
class _TaskDraft:
    """A task whose inputs are not yet known."""

    id: str
    index: int
    values: dict[str, Value]
    outputs: tuple[File, ...]


@dataclass(slots=True)
class _ExpandedTaskSet:
    """A task set with a draft for each point of the sweep."""

    compiled: CompiledTaskSet
    parameters: tuple[str, ...]
    drafts: list[_TaskDraft]

    @property
    def name(self) -> str:
        return self.compiled.source.name


def expand(sets: Sequence[TaskSet], sweep: Sweep | None, root: Path) -> list[Task]:
    """
    Make the tasks of all sets, set by set in the order of the file.

    Parameters
    ----------
    sets
        At least one, names unique.
    sweep
        The campaign's points, or None.
    root
        The campaign's folder, for patterns of files.

    Raises
    ------
    InputError
        At the setting that is wrong.
    """
    expanded = []
    for task_set in sets:
        compiled = compile_set(task_set)
        points = sweep_of(compiled, sweep, root)
        compiled.check(points.parameters)
        expanded.append(_ExpandedTaskSet(compiled, points.parameters, _drafts(compiled, points)))
    links = _DependencyResolver(expanded, root)
    return [_task(part, draft, links) for part in expanded for draft in part.drafts]


def _drafts(compiled: CompiledTaskSet, points: Sweep) -> list[_TaskDraft]:
    source = compiled.source
    # Made once where no value enters: sweeps have millions of points.
    outputs = _constant_files(compiled.outputs)
    drafts = []
    for index, point in enumerate(points.points):
        values = dict(zip(points.parameters, point, strict=True))
        at_point: Values = {**values, "index": index}
        task_id = _id(compiled, at_point, alone=len(points.points) == 1)
        if outputs is None:
            at_point = {**at_point, "id": task_id}
            files = tuple(_file(pattern, at_point) for pattern in compiled.outputs)
        else:
            files = outputs
        drafts.append(_TaskDraft(task_id, index, values, files))
    if not all(draft.id and "\0" not in draft.id for draft in drafts):
        raise InputError("a task's id must not be empty", where=source.at("id"))
    return drafts


def _id(compiled: CompiledTaskSet, values: Values, *, alone: bool) -> str:
    template = compiled.id
    if template is not None and template.names:
        return rendered_at(template, values, compiled.source.at("id"))
    name = compiled.source.name if template is None else template.render(values)
    return name if alone else f"{name}-{values['index']}"


def _constant_files(patterns: Sequence[FilePattern]) -> tuple[File, ...] | None:
    """Return the files of patterns without values, the same at every point; else None."""
    if any(p.name.names or p.size.template for p in patterns):
        return None
    return tuple(_file(pattern, {}) for pattern in patterns)


def _file(pattern: FilePattern, values: Values) -> File:
    name = rendered_at(pattern.name, values, pattern.place)
    try:
        return File(_normal(name), pattern.size.value(values))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(str(error), where=pattern.place) from None


def _normal(name: str) -> str:
    """Return the one spelling of a file: no "./", no doubled or final "/"."""
    if "./" not in name and "//" not in name and not name.endswith(("/", "/.")):
        return name
    start = "/" if name.startswith("/") else ""
    return start + "/".join(part for part in name.split("/") if part not in ("", "."))


def _task(part: _ExpandedTaskSet, draft: _TaskDraft, links: "_DependencyResolver") -> Task:
    compiled = part.compiled
    table = compiled.source.table
    values: Values = {**draft.values, "index": draft.index, "id": draft.id}
    inputs = links.inputs(part, draft, values)
    late = values
    if inputs or draft.outputs or compiled.mentions_files:
        late = {
            **values,
            "inputs": tuple(file.name for file in inputs),
            "outputs": tuple(file.name for file in draft.outputs),
        }
    if compiled.stdin is not None:
        # Not among {inputs}: the command reads it without being told its name.
        read = _file(compiled.stdin, values)
        inputs += () if read.name in {file.name for file in inputs} else (read,)
    around = tuple(surrounding.at(values) for surrounding in compiled.surroundings)
    if around:
        inputs += links.made_of(compiled, around, inputs)
    processors = compiled.processors.value(values)
    assert processors is not None
    return Task(
        id=draft.id,
        name=compiled.source.name,
        steps=_steps(compiled, late, around),
        inputs=inputs,
        outputs=draft.outputs,
        after=links.after(part, draft, values),
        processors=processors,
        runtime=compiled.runtime.value(values),
        wall_limit=compiled.wall_limit.value(values),
        memory=compiled.memory.value(values),
        resources=_resources(compiled, values),
        environment=_environment(compiled, late),
        matching=compiled.matching.at(values),
        data=_data(compiled, values),
        registers=_registers(compiled, draft, values),
        retries=table.retries,
        needs=None if table.needs == 1 else table.needs,
        parameters=draft.values,
    )


def _resources(compiled: CompiledTaskSet, values: Values) -> dict[str, int]:
    found = {name: setting.value(values) for name, setting in compiled.resources}
    return {name: count for name, count in found.items() if count is not None}


def _steps(
    compiled: CompiledTaskSet, values: Values, around: tuple[Surrounding, ...]
) -> tuple[Step, ...]:
    """Return the command of one task, a shell line or an argument list, with its values."""
    place = compiled.source.at("command")
    program: Step
    if compiled.line is not None:
        line = rendered_at(compiled.line, values, place)
        _check_length(line, place)
        program = Shell(line)
    else:
        argv: list[str] = []
        for template in compiled.argv:
            whole = values.get(template.only_name or "")
            if isinstance(whole, tuple):
                argv += whole
            else:
                argv.append(rendered_at(template, values, place))
                _check_length(argv[-1], place)
        if not argv[0]:
            raise InputError("expected a program, got an empty text", where=place)
        program = Exec(tuple(argv))
    return (*_settings(compiled, values), *around, program)


def _settings(compiled: CompiledTaskSet, values: Values) -> list[Step]:
    """Return the steps that prepare a task's program."""
    table, at = compiled.source.table, compiled.source.at
    steps: list[Step] = []
    if table.on_error == "ignore":
        steps.append(OnError(ignore=True))
    if compiled.stdin is not None:
        steps.append(StandardInput(_file(compiled.stdin, values).name))
    elif compiled.stdin_text is not None:
        text = rendered_at(compiled.stdin_text, values, at("stdin_text"))
        steps.append(StandardInput(text=text))
    if table.inherit is not None:
        steps.append(Inherit(tuple(table.inherit)))
    if table.secret:
        steps.append(Secret(tuple(table.secret), compiled.source.secrets_file))
    return steps


def _check_length(text: str, place: str) -> None:
    # A character takes at most four bytes: short texts, which most are, need not be encoded.
    if len(text) * 4 > LONGEST_ARGUMENT and len(text.encode()) > LONGEST_ARGUMENT:
        raise InputError(
            f"becomes {len(text.encode()):,} bytes long, the system takes {LONGEST_ARGUMENT:,}",
            where=place,
            hint="let the shell list the files by a pattern such as part-*.csv",
        )


def _environment(compiled: CompiledTaskSet, values: Values) -> dict[str, str]:
    if not compiled.environment:
        return {}
    place = compiled.source.at("environment")
    found = {}
    for key, template in compiled.environment:
        found[key] = rendered_at(template, values, joined(place, key))
        _check_length(key + "=" + found[key], joined(place, key))
    return found


def _data(compiled: CompiledTaskSet, values: Values) -> tuple[str, ...]:
    if not compiled.data:
        return ()
    place = compiled.source.at("data")
    found = [_logical(t, values, joined(place, i)) for i, t in enumerate(compiled.data)]
    return tuple(dict.fromkeys(found))


def _registers(compiled: CompiledTaskSet, draft: _TaskDraft, values: Values) -> dict[str, str]:
    """Return the logical name under which each output is registered, by the output's path."""
    found: dict[str, str] = {}
    if not compiled.register:
        return found
    made = [file.name for file in draft.outputs]
    for output, logical in compiled.register:
        place = joined(compiled.source.at("register"), output.text)
        name = _normal(rendered_at(output, values, place))
        if name not in made:
            raise InputError(
                f'"{name}" is no output of the task', where=place, hint=spelling_hint(name, made)
            )
        found[name] = _logical(logical, values, place)
    return found


def _logical(template: Template, values: Values, place: str) -> str:
    """Return a logical name, which is a relative path like the name of any file."""
    try:
        return File(rendered_at(template, values, place)).name
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(str(error), where=place) from None


class _DependencyResolver:
    """
    Finds the tasks and files that each task depends on; remembers answers that many tasks need.
    """

    def __init__(self, sets: Sequence[_ExpandedTaskSet], root: Path) -> None:
        self._sets = {part.name: part for part in sets}
        self._root = root
        self._ids = {draft.id for part in sets for draft in part.drafts}
        self._groups: dict[
            tuple[str, tuple[str, ...]], dict[tuple[Value, ...], list[_TaskDraft]]
        ] = {}
        self._answers: dict[tuple[object, ...], tuple[File, ...]] = {}
        self._after: dict[tuple[object, ...], tuple[str, ...]] = {}
        self._count = 0
        self._compared = 0

    def inputs(self, part: _ExpandedTaskSet, draft: _TaskDraft, values: Values) -> tuple[File, ...]:
        """Return the files that the task reads, each once."""
        patterns = part.compiled.inputs
        if not patterns:
            return ()
        found: dict[str, File] = {}
        for pattern in patterns:
            if isinstance(pattern, FilePattern):
                files: tuple[File, ...] = (_file(pattern, values),)
            elif pattern.task_set is not None:
                files = self._from_set(part, draft, pattern, values)
            else:
                files = self._by_pattern(part, pattern, values)
            for file in files:
                found.setdefault(file.name, file)
        self._add(len(found), part.compiled.source.at("inputs"))
        return tuple(found.values())

    def made_of(
        self, compiled: CompiledTaskSet, around: Sequence[Surrounding], inputs: Sequence[File]
    ) -> tuple[File, ...]:
        """
        Return the files that say what a task runs in, without those among its inputs.

        They are inputs, so that they go wherever the task goes and a change of them is noticed.
        """
        known = {file.name for file in inputs}
        found = []
        for step in around:
            key = type(step).__struct_config__.tag
            for number, name in enumerate(step.files):
                # Of a project only the first file has to be there.
                if name in known or (number and not (self._root / name).exists()):
                    continue
                known.add(name)
                with errors_within(compiled.source.at(str(key))):
                    try:
                        found.append(File(name))
                    except ValueError as error:
                        raise InputError(str(error)) from None
        self._add(len(found), compiled.source.at("inputs"))
        return tuple(found)

    def after(self, part: _ExpandedTaskSet, draft: _TaskDraft, values: Values) -> tuple[str, ...]:
        """Return ids of the tasks in ``after``, besides the makers of the inputs."""
        if not part.compiled.after:
            return ()
        found: dict[str, None] = {}
        single: tuple[str, ...] = ()
        for i, template in enumerate(part.compiled.after):
            place = joined(part.compiled.source.at("after"), i)
            if template.text in self._sets:
                other = self._sets[template.text]
                # Points that agree on the shared parameters wait for the same tasks: one tuple
                # serves them all.
                key = (part.name, other.name, *self._shared(part, other, draft))
                if key not in self._after:
                    drafts = self._agreeing(part, other, draft, place)
                    self._after[key] = tuple(d.id for d in drafts)
                single = self._after[key]
            else:
                name = rendered_at(template, values, place)
                if name not in self._ids:
                    raise self._unknown(name, place)
                single = (name,)
            found.update(dict.fromkeys(single))
        self._add(len(found), part.compiled.source.at("after"))
        return single if len(part.compiled.after) == 1 else tuple(found)

    def _unknown(self, name: str, place: str) -> InputError:
        some = [*self._sets, *list(self._ids)[:1000]]
        return InputError(
            f'unknown parent "{name}", expected a task or a set of tasks',
            where=place,
            hint=spelling_hint(name, some),
        )

    def _add(self, count: int, place: str) -> None:
        # Counted while they are made: the limit has to stop a pattern over all outputs before
        # memory runs out.
        self._count += count
        if self._count > MOST_LINKS:
            raise InputError(f"the tasks have more than {MOST_LINKS:,} dependencies", where=place)

    def _shared(
        self, part: _ExpandedTaskSet, other: _ExpandedTaskSet, draft: _TaskDraft
    ) -> tuple[Value, ...]:
        return tuple(draft.values[p] for p in part.parameters if p in other.parameters)

    def _agreeing(
        self, part: _ExpandedTaskSet, other: _ExpandedTaskSet, draft: _TaskDraft, place: str
    ) -> list[_TaskDraft]:
        """Return the tasks of the other set that agree on every common parameter."""
        if other is part:
            raise InputError(f'"{part.name}" cannot wait for itself', where=place)
        shared = tuple(p for p in part.parameters if p in other.parameters)
        groups = self._groups.get((other.name, shared))
        if groups is None:
            groups = {}
            for theirs in other.drafts:
                key = tuple(theirs.values[p] for p in shared)
                groups.setdefault(key, []).append(theirs)
            self._groups[other.name, shared] = groups
        drafts = groups.get(self._shared(part, other, draft))
        if drafts is None:
            point = ", ".join(f"{p} = {draft.values[p]}" for p in shared)
            raise InputError(f'no task of "{other.name}" has {point}', where=place)
        return drafts

    def _from_set(
        self, part: _ExpandedTaskSet, draft: _TaskDraft, source: InputSource, values: Values
    ) -> tuple[File, ...]:
        assert source.task_set is not None
        place = joined(source.place, "from")
        other = self._sets.get(source.task_set)
        if other is None:
            raise InputError(
                f'unknown task "{source.task_set}", expected one of {", ".join(self._sets)}',
                where=place,
                hint=spelling_hint(source.task_set, self._sets),
            )
        pattern = None if source.files is None else rendered_at(source.files, values, source.place)
        key = (part.name, other.name, pattern, *self._shared(part, other, draft))
        if key not in self._answers:
            drafts = self._agreeing(part, other, draft, place)
            made = [file for theirs in drafts for file in theirs.outputs]
            if not made:
                raise InputError(f'"{other.name}" has no outputs', where=place)
            self._answers[key] = self._those_matching(pattern, made, joined(source.place, "files"))
            if not self._answers[key]:
                raise InputError(
                    f'no output of "{other.name}" matches "{pattern}"',
                    where=joined(source.place, "files"),
                )
        return self._answers[key]

    def _by_pattern(
        self, part: _ExpandedTaskSet, source: InputSource, values: Values
    ) -> tuple[File, ...]:
        assert source.files is not None
        place = joined(source.place, "files")
        pattern = rendered_at(source.files, values, place)
        key = (part.name, pattern)
        if key not in self._answers:
            made = [
                file
                for other in self._sets.values()
                if other is not part
                for draft in other.drafts
                for file in draft.outputs
            ]
            files = {f.name: f for f in self._those_matching(pattern, made, place)}
            try:
                there = find_files(pattern, place, self._root)
            except InputError:
                if not files:
                    raise
                there = []
            for name in there:
                files.setdefault(name, File(name))
            self._answers[key] = tuple(files.values())
        return self._answers[key]

    def _those_matching(
        self, pattern: str | None, files: Iterable[File], place: str
    ) -> tuple[File, ...]:
        if pattern is None:
            return tuple(files)
        by_name = {file.name: file for file in files}
        # Each task may ask with a pattern of its own: tasks times files grows without any
        # dependency being made.
        self._compared += len(by_name)
        if self._compared > MOST_LINKS:
            raise InputError(
                f"asks for more than {MOST_LINKS:,} comparisons of names",
                where=place,
                hint='take the outputs of a set by { from = "NAME" }',
            )
        with errors_within(place):
            return tuple(by_name[name] for name in matching(pattern, by_name))


def sweep_of(compiled: CompiledTaskSet, sweep: Sweep | None, root: Path) -> Sweep:
    """
    Return the points over which a set runs.

    The points are those of the set's own sweep; else the part of the campaign's sweep that ``over``
    names; else the campaign's sweep, if the set mentions any of its parameters; else one point.

    Raises
    ------
    InputError
        At ``parameters`` or ``over``.
    """
    source = compiled.source
    if source.table.parameters is not None:
        return read_sweep(source.table.parameters, source.at("parameters"), root)
    if source.table.over is not None:
        return _part(source.table.over, sweep, source.at("over"))
    if sweep is None:
        return ONE_POINT
    mentions = compiled.mentioned() & set(sweep.parameters)
    return sweep if source.swept or mentions else ONE_POINT


def _part(wanted: list[str], sweep: Sweep | None, place: str) -> Sweep:
    if sweep is None:
        raise InputError("needs [parameters]", where=place)
    for i, name in enumerate(wanted):
        if name not in sweep.parameters:
            raise InputError(
                f'unknown parameter "{name}", expected {", ".join(sweep.parameters)}',
                where=joined(place, i),
                hint=spelling_hint(name, sweep.parameters),
            )
        if name in wanted[:i]:
            raise InputError(f'"{name}" stands there twice', where=joined(place, i))
    return sweep.over([name for name in sweep.parameters if name in wanted])


MOST_DEPTHS = 3
"""``**`` in one pattern; each multiplies the ways to match."""

_Part = Callable[[str], object]


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """
    Return the names that match, in order; ``*`` stays within a part, ``**`` crosses parts.

    Raises
    ------
    InputError
        When it is no pattern.
    """
    parts: list[_Part | None] = []
    for part in pattern.split("/"):
        if part == "**":
            parts.append(None)
        else:
            try:
                parts.append(re.compile(fnmatch.translate(part)).match)
            except re.error as error:
                raise InputError(f"is no pattern: {error}") from None
    if parts.count(None) > MOST_DEPTHS:
        raise InputError(f'has "**" more than {MOST_DEPTHS} times')
    return [name for name in names if _matches(name.split("/"), parts)]


def _matches(words: Sequence[str], parts: Sequence[_Part | None]) -> bool:
    if not parts:
        return not words
    head, rest = parts[0], parts[1:]
    if head is None:
        return any(_matches(words[i:], rest) for i in range(len(words) + 1))
    return bool(words) and bool(head(words[0])) and _matches(words[1:], rest)
