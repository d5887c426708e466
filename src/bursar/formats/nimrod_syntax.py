"""Parses the text of a plan file: statements, templates, and the arithmetic after ``compute``."""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from lark import Token, Tree

from bursar.model.errors import InputError, spelling_hint
from bursar.model.task import Value

if TYPE_CHECKING:
    from lark import Lark, Token, Tree


# Parses the text of a plan file into statements; errors name line and column.

TASKS = ("main", "nodestart", "nodefinish", "rootstart", "rootfinish")

# What people call the tokens of the grammar; those left out are never the point.
_WORDS = {
    "_PARAMETER": "parameter",
    "ASKED": "requirements, rank",
    "OUTPUT": "output, result",
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
    "SLURP": "slurp",
    "FORMAT": "json, xml, regex, csv, hcsv",
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


_STATEMENTS = ("parameter", "asked", "declared", "task")


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

    ``asked`` are the strings after ``requirements`` and ``rank``, ``declared`` the names after
    ``output`` and ``result``.
    """

    parameters: list[PlanParameter] = field(default_factory=list)
    tasks: dict[str, list[PlanCommand]] = field(default_factory=dict)
    asked: "dict[str, Token]" = field(default_factory=dict)
    declared: "dict[str, Token]" = field(default_factory=dict)


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
    for statement in tree.find_pred(lambda node: node.data in _STATEMENTS):
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
        elif statement.data == "declared":
            name = children[1]
            if name in plan.declared:
                line = plan.declared[name].line
                raise at(name, f'output "{name}" is already declared in line {line}')
            plan.declared[str(name)] = name
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


# Templates: text of a plan file with references to parameters.

_NAME = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})", re.ASCII)
_ESCAPE = re.compile(
    r"\\(?:\n|([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL
)
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_PLAIN = "\\\"'?$"


class ParameterName(str):
    """
    The name of a parameter whose value stands here.

    Attributes
    ----------
    written
        Whole reference as written, ``$name`` or ``${name}``.
    """

    __slots__ = ("written",)

    written: str


def _name(match: re.Match[str]) -> ParameterName:
    name = ParameterName(match[1] or match[2])
    name.written = match[0]
    return name


class NimrodTemplate:
    """
    A text of literal pieces and names of values.

    Parameters
    ----------
    parts
        Parts in order; a :class:`ParameterName` stands for the parameter's value.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[str]) -> None:
        self.parts = tuple(parts)

    @property
    def names(self) -> list[str]:
        """Return the names of the values that the template needs."""
        return [part for part in self.parts if isinstance(part, ParameterName)]

    def fill(self, values: Mapping[str, str]) -> str:
        """Return the text with every name replaced by the value."""
        return "".join([values[p] if isinstance(p, ParameterName) else p for p in self.parts])

    def keep_unknown(self, known: Callable[[str], bool]) -> "NimrodTemplate":
        """Return the template with unknown names as plain text: the shell may know them."""
        return NimrodTemplate(
            [p.written if isinstance(p, ParameterName) and not known(p) else p for p in self.parts]
        )


def parse_text(text: str) -> NimrodTemplate:
    """Parse raw text, in which ``$name`` and ``${name}`` are parameters."""
    parts: list[str] = []
    end = 0
    for match in _NAME.finditer(text):
        if match.start() > end:
            parts.append(text[end : match.start()])
        parts.append(_name(match))
        end = match.end()
    if end < len(text):
        parts.append(text[end:])
    return NimrodTemplate(parts)


def parse_string(quoted: str) -> NimrodTemplate:
    """
    Parse a string in double quotes, with C's escapes; parameters as in :func:`parse_text`.

    ``\\$`` is a dollar sign that begins no parameter, a backslash before the
    end of the line joins the lines, and one before any other character that
    C does not know stays with it.

    Raises
    ------
    InputError
        For a character that no text may hold.
    """
    parts: list[str] = []
    inner = quoted[1:-1]
    end = 0
    for match in _ESCAPE.finditer(inner):
        parts += parse_text(inner[end : match.start()]).parts
        parts.append(_unescaped(match))
        end = match.end()
    parts += parse_text(inner[end:]).parts
    return NimrodTemplate(parts)


def parse_word(word: str) -> NimrodTemplate:
    """Parse a word of a command: raw text and strings, without a space between them."""
    parts: list[str] = []
    for piece in re.split(r'("(?:[^"\\]|\\.)*")', word, flags=re.DOTALL):
        parts += (parse_string(piece) if piece.startswith('"') else parse_text(piece)).parts
    return NimrodTemplate(parts)


def _unescaped(match: re.Match[str]) -> str:
    octal, two, four, eight, other = match.groups()
    if other is not None:
        if other in _PLAIN:
            return other
        return _CONTROL.get(other, "\\" + other)
    digits, base = (octal, 8) if octal else (two or four or eight, 16)
    if digits is None:
        return ""  # the end of a line
    code = int(digits, base)
    # NUL ends an argument of a program, and surrogates cannot be encoded.
    if code == 0 or code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise InputError(f'"{match[0]}" is no character that a text may hold')
    return chr(code)


# The arithmetic after ``compute``: parsed by the grammar, evaluated without ``eval``.

Number = int | float

LARGEST = 2**63
"""Results are smaller than this."""

FUNCTIONS: dict[str, tuple[Callable[..., Number], int, int | None]] = {
    "abs": (abs, 1, 1),
    "ceil": (math.ceil, 1, 1),
    "cos": (math.cos, 1, 1),
    "exp": (math.exp, 1, 1),
    "float": (float, 1, 1),
    "floor": (math.floor, 1, 1),
    "int": (int, 1, 1),
    "log": (math.log, 1, 1),
    "log10": (math.log10, 1, 1),
    "max": (max, 1, None),
    "min": (min, 1, None),
    "pow": (lambda a, b: _power(a, b), 2, 2),
    "round": (round, 1, 1),
    "sin": (math.sin, 1, 1),
    "sqrt": (math.sqrt, 1, 1),
    "tan": (math.tan, 1, 1),
}
"""Functions by name, with the fewest and the most arguments; None: no limit."""


def names_in(tree: "Tree[Token]") -> list[Token]:
    """Return the parameters that an expression uses."""
    return [name for node in tree.find_data("name") for name in _tokens(node)]


def check(tree: "Tree[Token]") -> None:
    """
    Refuses functions that do not exist or are given too few or many arguments.

    Raises
    ------
    InputError
        Naming the function.
    """
    for node in tree.find_data("call"):
        name = _function(node)
        if name not in FUNCTIONS:
            raise InputError(
                f'unknown function "{name}", expected one of {", ".join(FUNCTIONS)}',
                hint=spelling_hint(name, FUNCTIONS),
            )
        _, fewest, most = FUNCTIONS[name]
        given = len(node.children) - 1
        if given < fewest or (most is not None and given > most):
            raise InputError(f'"{name}" takes {fewest} argument(s), got {given}')


def evaluate(tree: "Tree[Token]", values: Mapping[str, Value]) -> Number:
    """
    Evaluate a checked expression.

    Parameters
    ----------
    values
        Value of every parameter named in the expression.

    Raises
    ------
    InputError
        When a value is no number, or the result is none: a division by zero,
        a root of a negative number, an overflow.
    """
    try:
        result = _evaluate(tree, values)
    except (ArithmeticError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot be computed: {error}") from None
    except RecursionError:
        raise InputError("the expression is nested too deeply") from None
    if not -LARGEST < result < LARGEST:
        raise InputError("cannot be computed: the result is out of range")
    return result


def _evaluate(node: Any, values: Mapping[str, Value]) -> Number:
    match node.data:
        case "expression":
            return _evaluate(node.children[0], values)
        case "number":
            text = str(node.children[0])
            # Whole numbers stay whole, so that job indices and counts print without a point.
            return int(text) if text.isdigit() else float(text)
        case "name":
            return _value(node.children[0], values)
        case "negative":
            return -_evaluate(node.children[0], values)
        case "call":
            function = FUNCTIONS[_function(node)][0]
            return function(*[_evaluate(child, values) for child in node.children[1:]])
    left, right = (_evaluate(child, values) for child in node.children)
    return _OPERATORS[node.data](left, right)


def _value(name: str, values: Mapping[str, Value]) -> Number:
    value = values[name]
    if isinstance(value, str):
        raise InputError(f'"{name}" is the text "{value}", expected a number')
    return value


def _divide(left: Number, right: Number) -> Number:
    """Divide; two integers without a remainder give an integer, as ``6 / 2``."""
    if isinstance(left, int) and isinstance(right, int) and right and left % right == 0:
        return left // right
    return left / right


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and exponent >= 0:
        # Refused before it is computed: 10 ** 10 ** 10 takes all memory and time, and the result
        # could not pass LARGEST.
        if abs(base) > 1 and exponent > 64:
            raise OverflowError("the power is out of range")
        return int(base**exponent)
    return math.pow(base, exponent)


_OPERATORS: dict[str, Callable[[Number, Number], Number]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": _divide,
    "remainder": operator.mod,
    "power": _power,
}


def _function(call: Any) -> str:
    return str(call.children[0])[:-1].rstrip()


def _tokens(node: "Tree[Token]") -> list[Token]:
    return [child for child in node.children if isinstance(child, Token)]
