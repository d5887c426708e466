"""Parses the text of a plan file into statements; errors name line and column."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from bursar.model.errors import InputError, spelling_hint

if TYPE_CHECKING:
    from lark import Lark, Token, Tree

TASKS = ("main", "nodestart", "nodefinish", "rootstart", "rootfinish")

# What people call the tokens of the grammar; those left out are never the point.
_WORDS = {
    "_PARAMETER": "parameter",
    "ASKED": "requirements, rank",
    "_LABEL": "label",
    "TYPE": "integer, float, text, files",
    "_DEFAULT": "default",
    "_RANGE": "range",
    "_RANDOM": "random",
    "_SELECT": "select",
    "_ANYOF": "anyof",
    "_ONEOF": "oneof",
    "_COMPUTE": "compute",
    "_FROM": "from",
    "_TO": "to",
    "STEP": "step",
    "POINTS": "points",
    "_POINTS": "points",
    "_TASK": "task",
    "TASKNAME": ", ".join(TASKS),
    "_ENDTASK": "endtask",
    "COPY": "copy",
    "EXEC": "exec",
    "SHEXEC": "shexec",
    "EXECUTE": "execute",
    "SUBSTITUTE": "substitute",
    "_REDIRECT": "redirect",
    "STREAM": "stdout, stderr",
    "OFF": "off",
    "APPEND": "append",
    "_ONERROR": "onerror",
    "ACTION": "fail, ignore",
    "NAME": "a name",
    "NUMBER": "a number",
    "STRING": "a string in double quotes",
    "VALUE": "a value",
    "WORD": "an argument",
    "EXPRESSION": "an expression",
    "_NEWLINE": "the end of the line",
    "AMOUNT": "a number",
    "FUNCTION": "a function",
    "LPAR": '"("',
    "RPAR": '")"',
    "PLUS": '"+"',
    "MINUS": '"-"',
    "STAR": '"*"',
    "SLASH": '"/"',
    "$END": "the end",
}

_UNSUPPORTED = {
    "variable": "this is a run file; read the plan file it was generated from",
    "jobs": "this is a run file; read the plan file it was generated from",
    "props": "resource properties of nimrodg are not read; leave the block out",
}


@dataclass(frozen=True, slots=True)
class PlanParameter:
    """A parameter statement; ``domain`` is the grammar's tree, named after the kind of domain."""

    name: "Token"
    type: str
    domain: "Tree[Token]"


@dataclass(frozen=True, slots=True)
class PlanCommand:
    """
    A command of a task.

    Parameters
    ----------
    kind
        The grammar's rule.
    arguments
        Tokens of the statement; None where an optional token is missing.
    line
        Statement's text after the first word, as one line for the shell.
    """

    kind: str
    arguments: "Sequence[Token | None]"
    line: str


@dataclass(frozen=True, slots=True)
class NimrodPlan:
    """
    Statements of a plan file, in order.

    ``asked`` are the strings after ``requirements`` and ``rank``.
    """

    parameters: list[PlanParameter] = field(default_factory=list)
    tasks: dict[str, list[PlanCommand]] = field(default_factory=dict)
    asked: "dict[str, Token]" = field(default_factory=dict)


def parse_plan(text: str) -> NimrodPlan:
    """
    Parse the statements of a plan file.

    Parameters
    ----------
    text
        Lines end with ``\\n``.

    Raises
    ------
    InputError
        ``where`` is ``line:column``; the message says what was found there
        and what was expected.
    """
    # The grammar ends every statement with a line end, which the last line of a file may lack.
    tree = _parse(text if text.endswith("\n") else text + "\n", "start", 1, 1)
    plan = NimrodPlan()
    seen: dict[str, Any] = {}
    for statement in tree.find_pred(lambda node: node.data in ("parameter", "asked", "task")):
        children: list[Any] = list(statement.children)
        if statement.data == "parameter":
            name, _label, kind, domain = children[:4]
            if name in seen:
                raise at(name, f'parameter "{name}" is already defined in line {seen[name].line}')
            seen[name] = name
            plan.parameters.append(PlanParameter(name, str(kind), domain))
        elif statement.data == "asked":
            word, string = children[:2]
            if word in plan.asked:
                line = plan.asked[word].line
                raise at(word, f'"{word}" is already stated in line {line}')
            plan.asked[str(word)] = string
        else:
            block, *commands = children
            if block in plan.tasks:
                raise at(block, f'task "{block}" is already defined')
            plan.tasks[str(block)] = [_command(text, node) for node in commands]
    if "main" not in plan.tasks:
        line = text.count("\n") + 1
        raise InputError('there is no "task main"', where=f"{line}:1")
    return plan


def parse_expression(expression: "Token") -> "Tree[Token]":
    """Parse the expression after ``compute``; errors name line and column in the plan file."""
    return _parse(
        str(expression).rstrip(), "expression", expression.line or 1, expression.column or 1
    )


def at(token: "Token", message: str, *, hint: str | None = None) -> InputError:
    """Return an error at a token."""
    return InputError(message, where=f"{token.line}:{token.column}", hint=hint)


def _command(text: str, node: "Tree[Token]") -> PlanCommand:
    arguments: list[Any] = list(node.children)
    words = [a for a in arguments if a is not None and a.type == "WORD"]
    pieces: list[str] = []
    for i, word in enumerate(words):
        if i:
            gap = text[words[i - 1].end_pos : word.start_pos]
            # A comment or a continued line is but a space to the shell.
            pieces.append(gap if gap.isspace() and "\n" not in gap else " ")
        pieces.append(word)
    return PlanCommand(str(node.data), arguments, "".join(pieces))


@cache
def _parser() -> "Lark":
    """Return the parser of plan files and of their expressions, made once for each process."""
    from lark import Lark

    return Lark.open(
        "nimrod.lark",
        rel_to=__file__,
        parser="lalr",
        start=["start", "expression"],
        maybe_placeholders=True,
        propagate_positions=False,
    )


def _parse(text: str, start: str, line: int, column: int) -> "Tree[Token]":
    from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

    try:
        return _parser().parse(text, start=start)
    except UnexpectedInput as error:
        if isinstance(error, UnexpectedToken):
            position = error.token.start_pos if error.token.type != "$END" else len(text)
            expected = error.accepts or error.expected
        elif isinstance(error, UnexpectedCharacters):
            position, expected = error.pos_in_stream, error.allowed or set()
        else:
            position, expected = len(text), set()
        raise _unexpected(text, position or 0, set(expected), line, column) from None


def _unexpected(text: str, position: int, expected: set[str], line: int, column: int) -> InputError:
    before = text[:position]
    row = before.count("\n")
    start = position - (before.rfind("\n") + 1)
    where = f"{line + row}:{start + (column if row == 0 else 1)}"
    words = [w for name in expected if name in _WORDS for w in _WORDS[name].split(", ")]
    words = sorted(set(words) - ({"the end of the line"} if len(words) > 1 else set()))
    match = re.compile(r'"[^"\n]*"?|[^\s"]+').match(text, position)
    if match is None:
        found = "the end of the line" if position < len(text.rstrip()) else "the end"
        if start == 0 and "\n" in text[position : position + 1]:
            found = "an empty line"
    elif match[0].startswith('"') and (len(match[0]) == 1 or not match[0].endswith('"')):
        return InputError("the string is not closed by the end of the line", where=where)
    elif text.startswith("/*", position) and text.find("*/", position) < 0:
        return InputError('the comment "/*" is not closed', where=where)
    elif match[0] in _UNSUPPORTED and "_PARAMETER" in expected:
        return InputError(f'found "{match[0]}": {_UNSUPPORTED[match[0]]}', where=where)
    else:
        found = f'"{match[0]}"' if len(match[0]) <= 40 else f'"{match[0][:40]}..."'
    message = f"found {found}"
    if words:
        message += (
            f", expected {' or '.join([', '.join(words[:-1]), words[-1]] if words[1:] else words)}"
        )
    hint = spelling_hint(match[0], words) if match is not None else None
    return InputError(message, where=where, hint=hint)
