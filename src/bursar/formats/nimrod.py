"""
Nimrod plan files, the old syntax and the new one, as campaigns.

Sources: the Nimrod Portal manual and the EnFuzion manual (old), the wiki and the grammar of nimrodg
(new). ``docs/reference/nimrod.md`` describes what is read and what each command does here.
"""

import itertools
import math
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bursar.formats.file_text import read_bytes
from bursar.formats.nimrod_domains import MOST_VALUES, as_text, check_type, values_of
from bursar.formats.nimrod_syntax import (
    NimrodPlan,
    NimrodTemplate,
    ParameterName,
    PlanCommand,
    PlanParameter,
    at,
    parse_expression,
    parse_string,
    parse_text,
    parse_word,
)
from bursar.model.campaign import Campaign, Workflow
from bursar.model.errors import InputError, spelling_hint
from bursar.model.matching import Matching
from bursar.model.results import ResultColumn, ResultForm
from bursar.model.task import Copy, Exec, OnError, Redirect, Shell, Step, Substitute, Task, Value

if TYPE_CHECKING:
    from lark import Token, Tree


# Makes the tasks of a campaign from the statements of a plan file.

JOB_NAMES = ("jobindex", "nimrod_jobindex", "jobname")
"""Variables set for every job besides the plan's parameters."""

Values = Mapping[str, str]
Maker = Callable[[Values], Step]


def tasks_of(plan: NimrodPlan, folder: Path) -> tuple[Task, ...]:
    """
    Make a task for each job, and one each for ``rootstart`` and ``rootfinish`` if stated.

    Parameters
    ----------
    folder
        Folder of the plan file, to which file patterns are relative.

    Raises
    ------
    InputError
        At line and column, when a value, a name or a command does not fit, or
        there are more than ten million jobs.
    """
    space = _ParameterSpace(plan.parameters, folder)
    for name, token in plan.declared.items():
        if name in space.names:
            raise at(token, f'"{name}" is a parameter; choose another name for the output')
    steps = _steps_maker(_job(plan, space))
    before, after = [_root_task(block, plan, space) for block in ("rootstart", "rootfinish")]
    first = (before.id,) if before else ()
    matching = _matching(plan)
    jobs = []
    for index, point in enumerate(space.points(), 1):
        name = f"job{index}"
        texts = {key: as_text(value) for key, value in point.items()}
        texts |= {"jobindex": str(index), "nimrod_jobindex": str(index), "jobname": name}
        jobs.append(
            Task(
                id=name,
                name="main",
                steps=steps(texts),
                after=first,
                matching=matching,
                parameters=point,
            )
        )
    tasks = [before] if before else []
    tasks += jobs
    if after:
        tasks.append(_after_all(after, jobs))
    return tuple(tasks)


def _matching(plan: NimrodPlan) -> Matching:
    """Return the requirements and rank of every job; the expressions are parsed here."""
    from bursar.classad.parsing import parse

    texts: dict[str, str] = {}
    for word, token in plan.asked.items():
        template = _placed(token, partial(parse_string, str(token)))
        if template.names:
            raise at(token, f"holds the parameter ${template.names[0]}, expected none")
        texts[word] = template.fill({})
        try:
            parse(texts[word])
        except InputError as error:
            raise _within_string(error, token) from None
    return Matching(requirements=texts.get("requirements"), rank=texts.get("rank"))


def _within_string(error: InputError, token: "Token") -> InputError:
    """Return an error of an expression with the place in the plan."""
    line, _, column = error.where.partition(":")
    if "\\" in token or line != "1":  # escapes: what is written is longer than what it means
        return at(token, f"column {column} of the expression: {error.message}", hint=error.hint)
    where = f"{token.line}:{(token.column or 1) + int(column)}"
    return InputError(error.message, where=where, hint=error.hint)


def _job(plan: NimrodPlan, space: "_ParameterSpace") -> list[Maker]:
    """Return the makers of a job's steps: preparation of the node, the job, clearing up."""
    makers: list[Maker] = []
    before: list[PlanCommand] = []
    for block in ("nodestart", "main", "nodefinish"):
        commands = plan.tasks.get(block)
        if commands:
            # Each block begins as if it were alone: redirections and ignored errors of the block
            # before do not last.
            makers += _undo(before)
            makers += [_maker(command, space.names, space.why_unknown) for command in commands]
            before = commands
    return makers


def _undo(commands: Sequence[PlanCommand]) -> list[Maker]:
    """End what a block redirects or ignores where the block ends."""
    streams = dict.fromkeys(str(c.arguments[0]) for c in commands if c.kind == "redirect")
    makers: list[Maker] = [_ConstantStep(Redirect(stream, None)) for stream in streams]
    if any(command.kind == "onerror" for command in commands):
        makers.append(_ConstantStep(OnError(ignore=False)))
    return makers


def _after_all(task: Task, jobs: Sequence[Task]) -> Task:
    return Task(
        id=task.id,
        name=task.name,
        steps=task.steps,
        parameters=task.parameters,
        after=tuple(job.id for job in jobs),
    )


def _root_task(block: str, plan: NimrodPlan, space: "_ParameterSpace") -> Task | None:
    """Make the one task of a root block; only parameters with a single value are known there."""
    if not plan.tasks.get(block):
        return None
    point = space.constants()
    texts = {key: as_text(value) for key, value in point.items()} | {"jobname": block}

    def why(name: str) -> str:
        if name in space.names:
            return f'"{name}" has no value in {block}, which runs once for all jobs'
        return space.why_unknown(name)

    for command in plan.tasks[block]:
        if command.kind == "slurp":
            token: Any = command.arguments[0]
            raise at(token, f'"slurp" reads what a job made, found in {block}')
    makers = [_maker(command, texts, why) for command in plan.tasks[block]]
    return Task(id=block, name=block, steps=_steps_maker(makers)(texts), parameters=point)


class _ParameterSpace:
    """The points that the parameters span."""

    def __init__(self, parameters: Sequence[PlanParameter], folder: Path) -> None:
        self._listed: dict[str, list[Value]] = {}
        self._computed: list[tuple[PlanParameter, Tree[Token]]] = []
        for parameter in parameters:
            name = str(parameter.name)
            if name in JOB_NAMES:
                raise at(parameter.name, f'"{name}" is the plan\'s own; choose another name')
            if parameter.domain.data == "compute":
                self._computed.append((parameter, self._expression(parameter)))
            else:
                self._listed[name] = values_of(parameter, folder)
        self._order = [str(parameter.name) for parameter in parameters]
        self.names = {*self._order, *JOB_NAMES}
        count = math.prod(len(values) for values in self._listed.values())
        if count > MOST_VALUES:
            raise InputError(f"the plan has {count:,} jobs, at most {MOST_VALUES:,} are possible")

    def _expression(self, parameter: PlanParameter) -> "Tree[Token]":
        from bursar.formats.nimrod_syntax import check, names_in

        token: Any = parameter.domain.children[0]
        if parameter.type == "files":
            raise at(parameter.name, "a files parameter cannot be computed")
        tree = parse_expression(token)
        known = [*self._listed, *(str(p.name) for p, _ in self._computed)]
        try:
            for name in names_in(tree):
                if name not in known:
                    raise InputError(
                        f'unknown parameter "{name}", expected one defined before',
                        hint=spelling_hint(name, known),
                    )
            check(tree)
        except InputError as error:
            raise at(token, error.message, hint=error.hint) from None
        return tree

    def why_unknown(self, name: str) -> str:
        return f'unknown parameter "{name}"'

    def points(self) -> Iterator[dict[str, Value]]:
        """Yield every combination; the last parameter changes fastest."""
        names = list(self._listed)
        for values in itertools.product(*self._listed.values()):
            point = dict(zip(names, values, strict=True))
            yield self._complete(point) if self._computed else point

    def constants(self) -> dict[str, Value]:
        """Return parameters with a single value, and parameters computed from these alone."""
        from bursar.formats.nimrod_syntax import names_in

        point = {name: values[0] for name, values in self._listed.items() if len(values) == 1}
        for parameter, tree in self._computed:
            if all(name in point for name in names_in(tree)):
                point[str(parameter.name)] = self._compute(parameter, tree, point)
        return point

    def _complete(self, point: dict[str, Value]) -> dict[str, Value]:
        for parameter, tree in self._computed:
            point[str(parameter.name)] = self._compute(parameter, tree, point)
        return {name: point[name] for name in self._order}

    def _compute(
        self, parameter: PlanParameter, tree: "Tree[Token]", point: Mapping[str, Value]
    ) -> Value:
        from bursar.formats.nimrod_syntax import evaluate

        try:
            return check_type(evaluate(tree, point), parameter)
        except InputError as error:
            at_ = ", ".join(f"{name} = {as_text(value)}" for name, value in point.items())
            message = f"{error.message} (where {at_})" if at_ else error.message
            raise at(parameter.name, message, hint=error.hint) from None


@dataclass(frozen=True, slots=True)
class _ConstantStep:
    """Makes the same step for every job, once."""

    step: Step

    def __call__(self, values: Values) -> Step:
        return self.step


def _steps_maker(makers: Sequence[Maker]) -> Callable[[Values], tuple[Step, ...]]:
    if all(isinstance(maker, _ConstantStep) for maker in makers):
        same = tuple(maker({}) for maker in makers)
        return lambda values: same
    return lambda values: tuple([maker(values) for maker in makers])


def _maker(
    command: PlanCommand, known: "Mapping[str, str] | set[str]", why: Callable[[str], str]
) -> Maker:
    tokens: list[Any] = list(command.arguments)

    def word(token: "Token", *, prefix: str = "") -> NimrodTemplate:
        text = str(token).removeprefix(prefix)
        if "'" in _outside_strings(text):
            raise at(token, "single quotes do not quote here", hint="use double quotes")
        template = _placed(token, lambda: parse_word(text))
        for name in template.names:
            if name not in known:
                raise at(token, why(name), hint=spelling_hint(name, known))
        return template

    match command.kind:
        case "onerror":
            return _ConstantStep(OnError(ignore=tokens[0] == "ignore"))
        case "redirect" if tokens[1] is not None and tokens[1].type == "OFF":
            return _ConstantStep(Redirect(str(tokens[0]), None))
        case "redirect":
            return _redirect(str(tokens[0]), tokens[1] is not None, word(tokens[2]))
        case "copy":
            source, target = tokens[1:]
            if _place(target) != "node:":
                _check_inside(target, word(target, prefix=_place(target)))
            return _copy(
                word(source, prefix=_place(source)),
                word(target, prefix=_place(target)),
                source_at_root=_place(source) != "node:",
                target_at_root=_place(target) != "node:",
            )
        case "substitute":
            for token in tokens[1:]:
                if _place(token) == "root:":
                    raise at(
                        token,
                        "substitute works on the node, found a file at the root",
                        hint="copy the template to the node before, and the result back after",
                    )
            return _substitute(*(word(token, prefix=_place(token)) for token in tokens[1:]))
        case "exec":
            return _exec([word(token) for token in tokens[1:]])
        case "lexec":
            # As execl: the second word is what the program is told it is called.
            return _exec([word(tokens[1]), *(word(token) for token in tokens[3:])])
        case "slurp":
            # The working directory ends with the job: what is read later is kept at the root.
            return _copy(
                word(tokens[2]),
                parse_text(_kept(tokens[0], "${jobname}")),
                source_at_root=False,
                target_at_root=True,
            )
        case "at_root":
            raise at(
                tokens[0],
                f'"{tokens[0]}" runs at the root, where nothing is run',
                hint="copy what it needs to the node, run it there, copy the result back",
            )
        case _:
            return _shell(command, tokens, known, why)


def _kept(statement: "Token", job: str) -> str:
    """Return the name at the root of what a ``slurp`` of a job reads."""
    return f"slurp/{job}/{statement.line}"


def results_of(plan: NimrodPlan) -> tuple[ResultColumn, ...]:
    """
    Return a column for each declared output that a ``slurp`` fills, the last one that does.

    Raises
    ------
    InputError
        At line and column, when a name is not declared, or nothing can be found by what is stated.
    """
    found: dict[str, ResultColumn] = {}
    for block in ("nodestart", "main", "nodefinish"):
        for command in plan.tasks.get(block, ()):
            if command.kind == "slurp":
                found |= {column.name: column for column in _slurped(command, plan)}
    return tuple(found[name] for name in plan.declared if name in found)


_FORMS: dict[str, ResultForm] = {
    "json": "json",
    "xml": "xml",
    "regex": "regex",
    "csv": "csv",
    "hcsv": "csv",
}


def _slurped(command: PlanCommand, plan: NimrodPlan) -> Iterator[ResultColumn]:
    from bursar.formats.result_columns import FIRST_COLUMNS, check_where

    tokens: list[Any] = list(command.arguments)
    statement, kind, file, *rest = tokens
    form = _FORMS[str(kind)]
    pairs: list[tuple[Token, str, str | int]] = []
    if form == "regex":
        if len(rest) != 1:
            raise at(
                rest[1] if rest else kind,
                "expected one regular expression",
                hint="one that holds spaces stands in double quotes",
            )
        pattern = _constant(rest[0])
        _checked(rest[0], partial(check_where, form, pattern, ""))
        pairs = [(rest[0], name, pattern) for name in re.compile(pattern).groupindex]
        if not pairs:
            raise at(rest[0], "expected a named group for each output, such as (?P<x>[0-9]+)")
    elif not rest and kind == "hcsv":
        pairs = [(file, name, name) for name in plan.declared]
    elif not rest:
        raise at(kind, f"expected outputs, such as NAME:{'0' if kind == 'csv' else '/a/b'}")
    for token in rest if form != "regex" else ():
        name, colon, place = _constant(token).partition(":")
        if not colon:
            raise at(token, f'expected NAME:PLACE, found "{token}"')
        pairs.append((token, name, place))
    for token, name, where in pairs:
        if name not in plan.declared:
            hint = spelling_hint(name, plan.declared) or f'declare it by "output {name}"'
            raise at(token, f'unknown output "{name}"', hint=hint)
        if name in FIRST_COLUMNS:
            raise at(token, f'"{name}" is a column of every table; choose another name')
        if kind == "csv":
            if not re.fullmatch("[0-9]{1,6}", str(where)):
                raise at(token, f'expected the number of a field, from 0, found "{where}"')
            where = int(where)
        _checked(token, partial(check_where, form, where, ""))
        yield ResultColumn(
            name=name,
            form=form,
            where=where,
            source=_kept(statement, "{id}"),
            task="main",
            pick=0,
            separator="\t" if file.endswith(".tsv") else ",",
        )


def _checked(token: "Token", check: Callable[[], None]) -> None:
    try:
        check()
    except InputError as error:
        raise at(token, error.message, hint=error.hint) from None


def _constant(token: "Token") -> str:
    """Return the text of a word that holds no parameter."""
    template = _placed(token, partial(parse_word, str(token)))
    if template.names:
        raise at(token, f"holds the parameter ${template.names[0]}, expected none")
    return template.fill({})


def _check_inside(token: "Token", target: NimrodTemplate) -> None:
    """Refuse names outside the run's files for what is written at the root."""
    start = "".join("x" if isinstance(part, ParameterName) else part for part in target.parts)
    if start.startswith("/") or ".." in start.split("/"):
        raise at(
            token,
            f'"{token}" is outside the run\'s files',
            hint="expected a relative path without .. in it",
        )


def _outside_strings(word: str) -> str:
    return re.sub(r'"(?:[^"\\]|\\.)*"', "", word, flags=re.DOTALL)


def _place(token: "Token") -> str:
    return next((place for place in ("node:", "root:") if token.startswith(place)), "")


def _placed(token: "Token", parse: Callable[[], NimrodTemplate]) -> NimrodTemplate:
    try:
        return parse()
    except InputError as error:
        raise at(token, error.message) from None


def _made(template_names: Sequence[str], make: Maker) -> Maker:
    """Return the maker, or a constant step when no parameter is used."""
    return make if template_names else _ConstantStep(make({}))


def _exec(words: Sequence[NimrodTemplate]) -> Maker:
    names = [name for word in words for name in word.names]
    return _made(names, lambda values: Exec(tuple([word.fill(values) for word in words])))


def _shell(
    command: PlanCommand,
    tokens: "Sequence[Token]",
    known: "Mapping[str, str] | set[str]",
    why: Callable[[str], str],
) -> Maker:
    is_string = _is_string(command)
    if is_string:
        line = _placed(tokens[1], lambda: parse_string(str(tokens[1])))
    else:
        line = parse_text(command.line)
    unknown = [name for name in line.names if name not in known]
    if unknown and is_string:
        name = unknown[0]
        raise at(
            tokens[1],
            why(name),
            hint=spelling_hint(name, known) or f"write \\${name} for the shell's own",
        )
    line = line.keep_unknown(lambda name: name in known)
    return _made(line.names, lambda values: Shell(line.fill(values)))


def remarks_of(plan: NimrodPlan) -> Iterator[str]:
    """
    Yield a warning for each name in unquoted shell lines that is no parameter, at line and column.

    The old dialect leaves such names to the shell; in the new one, whose lines stand in double
    quotes, they are refused.
    """
    known = {str(parameter.name) for parameter in plan.parameters} | {*JOB_NAMES}
    told: set[str] = set()
    for commands in plan.tasks.values():
        for command in commands:
            if command.kind not in ("shexec", "execute") or _is_string(command):
                continue
            for token in command.arguments[1:]:
                for name in parse_text(str(token)).names if token is not None else ():
                    if name not in known and name not in told:
                        told.add(name)
                        place = f"{token.line}:{token.column}" if token is not None else ""
                        yield f'{place}: "{name}" is no parameter and is left to the shell'


def _is_string(command: PlanCommand) -> bool:
    """Whether a shell line is one string in double quotes."""
    only = command.arguments[1] if len(command.arguments) == 2 else None
    return only is not None and only.startswith('"') and not _outside_strings(only)


def _redirect(stream: str, append: bool, path: NimrodTemplate) -> Maker:
    return _made(path.names, lambda values: Redirect(stream, path.fill(values), append))


def _substitute(source: NimrodTemplate, target: NimrodTemplate) -> Maker:
    return lambda values: Substitute(source.fill(values), target.fill(values), dict(values))


def _copy(
    source: NimrodTemplate, target: NimrodTemplate, *, source_at_root: bool, target_at_root: bool
) -> Maker:
    def make(values: Values) -> Step:
        path = source.fill(values)
        into = target.fill(values)
        name = posixpath.basename(path.rstrip("/"))
        if (into in ("", ".") or into.endswith("/")) and name not in ("", ".", ".."):
            into = posixpath.normpath(posixpath.join(into, name))
        return Copy(path, into, source_at_root, target_at_root)

    return _made([*source.names, *target.names], make)


LARGEST_FILE = 16 * 1024 * 1024
"""Bytes; a plan is written by a person."""


def read_plan_file(path: Path) -> Campaign:
    """
    Read the campaign that a plan file describes, every job spelt out.

    Parameters
    ----------
    path
        The file. Its folder is the campaign's root.

    Raises
    ------
    InputError
        At file, line and column: what was found and what was expected.
    """
    from bursar.formats.nimrod_syntax import parse_plan

    path = Path(path)
    data = read_bytes(path, limit=LARGEST_FILE)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InputError("is not a text in UTF-8", where=f"{path}:{line}") from None
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    try:
        if "\0" in text:
            line = text[: text.index("\0")].count("\n") + 1
            raise InputError("holds a NUL character", where=f"{line}:1")
        plan = parse_plan(text)
        tasks = tasks_of(plan, path.resolve().parent)
        results = results_of(plan)
        remarks = [f"{path}:{remark}" for remark in remarks_of(plan)]
    except InputError as error:
        where = f"{path}:{error.where}" if error.where else str(path)
        raise InputError(error.message, where=where, hint=error.hint) from None
    return Campaign(
        name=path.stem,
        workflow=Workflow(tasks),
        root=path.resolve().parent,
        source=path,
        results=results,
        remarks=tuple(remarks),
    )
