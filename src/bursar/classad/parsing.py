"""Parses text into expressions and ads; errors name line and column."""

import math
import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from lark import Token, Transformer, v_args

from bursar.classad.ad import (
    DEEPEST,
    Ad,
    AttributeReference,
    BinaryOperation,
    ConditionalOperation,
    Constant,
    Expression,
    ExpressionList,
    ExpressionNode,
    FunctionCall,
    Literal,
    LogicalChain,
    NestedAd,
    SubscriptOperation,
    UnaryOperation,
)
from bursar.classad.operators import ERROR, UNDEFINED, fits, lower
from bursar.model.errors import InputError, spelling_hint

if TYPE_CHECKING:
    from lark import Lark


SIGNATURES: dict[str, tuple[int, int | None]] = {
    "isundefined": (1, 1),
    "iserror": (1, 1),
    "isstring": (1, 1),
    "isinteger": (1, 1),
    "isreal": (1, 1),
    "isboolean": (1, 1),
    "islist": (1, 1),
    "isclassad": (1, 1),
    "ifthenelse": (3, 3),
    "member": (2, 2),
    "identicalmember": (2, 2),
    "anycompare": (3, 3),
    "allcompare": (3, 3),
    "size": (1, 1),
    "sum": (1, 1),
    "avg": (1, 1),
    "min": (1, 1),
    "max": (1, 1),
    "strcat": (0, None),
    "substr": (2, 3),
    "toupper": (1, 1),
    "tolower": (1, 1),
    "strcmp": (2, 2),
    "stricmp": (2, 2),
    "regexp": (2, 3),
    "regexpmember": (2, 3),
    "split": (1, 2),
    "stringlistmember": (2, 3),
    "stringlistimember": (2, 3),
    "stringlistsize": (1, 2),
    "stringlistsum": (1, 2),
    "stringlistavg": (1, 2),
    "stringlistmin": (1, 2),
    "stringlistmax": (1, 2),
    "stringlistsintersect": (2, 3),
    "stringlistsubsetmatch": (2, 3),
    "stringlistisubsetmatch": (2, 3),
    "stringlist_regexpmember": (2, 4),
    "int": (1, 1),
    "real": (1, 1),
    "string": (1, 1),
    "bool": (1, 1),
    "floor": (1, 1),
    "ceil": (1, 1),
    "ceiling": (1, 1),
    "round": (1, 1),
    "pow": (2, 2),
    "quantize": (2, 2),
}
"""Functions in lower case, with the fewest and the most arguments; None: any number."""

_CLOCK = "the answer would change from one evaluation to the next"
_MACHINE = "expressions know nothing of the machine that evaluates them"

REFUSED = {
    "time": _CLOCK,
    "currenttime": _CLOCK,
    "daytime": _CLOCK,
    "random": _CLOCK,
    "timezoneoffset": _MACHINE,
    "userhome": _MACHINE,
    "usermap": _MACHINE,
    "eval": "no text is evaluated as an expression",
    "debug": "expressions write nothing",
}
"""Functions of HTCondor's that are left out on purpose, and why."""


LONGEST = 1024 * 1024
"""Characters of an expression or an ad."""

_WORDS: dict[str, Constant] = {"true": True, "false": False, "undefined": UNDEFINED, "error": ERROR}
_IN_WORDS = {"is": "=?=", "isnt": "=!="}
_ESCAPE = re.compile(r"\\([0-7]{1,3}|.)", re.DOTALL)
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}

# Tokens that can end what is written, as people write them; operators are one kind.
_CLOSERS = {
    "RPAR": '")"',
    "RBRACE": '"}"',
    "RSQB": '"]"',
    "COMMA": '","',
    "COLON": '":"',
    "_SEMICOLON": '";"',
    "$END": "the end",
}
_HINTS = {
    "=": "write == to compare",
    "and": "write && for and",
    "or": "write || for or",
    "not": "write ! for not",
    "in": "write member(value, list)",
    "===": "write =?= to compare kind and value",
    "!==": "write =!= to compare kind and value",
}


def parse(text: str, *, where: str = "") -> Expression:
    """
    Parse a text into an expression.

    Parameters
    ----------
    where
        File or field that holds it, for errors.

    Raises
    ------
    InputError
        What was found and what was expected; ``where`` is ``WHERE:line:column``.
    """
    try:
        return _expression(text)
    except InputError as error:
        raise _placed(error, where) from None


def parse_ad(text: str, *, where: str = "") -> Ad:
    """
    The ad in a text: ``[ a = 1; b = a + 1 ]``, or the same without brackets.

    An attribute that is written twice is an error.

    Parameters
    ----------
    where
        File or field that holds it, for errors.

    Raises
    ------
    InputError
        What was found and what was expected; ``where`` is ``WHERE:line:column``.
    """
    try:
        node = _parsed(text, "document")
        assert isinstance(node, NestedAd)
        return Ad.of(node)
    except InputError as error:
        raise _placed(error, where) from None


def _placed(error: InputError, where: str) -> InputError:
    place = f"{where}:{error.where}" if where else error.where
    return InputError(error.message, where=place, hint=error.hint)


@lru_cache(maxsize=4096)
def _expression(text: str) -> Expression:
    """Remembered, because all tasks of a sweep carry the same text."""
    return Expression(_parsed(text, "expression"))


def _parsed(text: str, start: str) -> ExpressionNode:
    from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

    if len(text) > LONGEST:
        raise InputError(f"has more than {LONGEST:,} characters", where="1:1")
    try:
        # Lark is typed as giving a tree; with a transformer it gives what that makes.
        node: Any = _parser().parse(text, start=start)
    except UnexpectedToken as error:
        at_end = error.token.type == "$END"
        position = len(text.rstrip()) if at_end else error.token.start_pos or 0
        raise _unexpected(text, position, set(error.accepts or error.expected)) from None
    except UnexpectedCharacters as error:
        raise _no_token(text, error.pos_in_stream or 0) from None
    except UnexpectedInput:
        raise _unexpected(text, len(text.rstrip()), set()) from None
    # Python's own recursion limit must never be met by whoever goes through the tree.
    if node.depth > DEEPEST:
        raise InputError(f"is nested more than {DEEPEST} levels deep", where="1:1")
    assert isinstance(node, ExpressionNode)
    return node


@cache
def _parser() -> "Lark":
    from lark import Lark

    return Lark.open(
        "classad.lark",
        rel_to=__file__,
        parser="lalr",
        lexer="basic",
        start=["expression", "document"],
        transformer=_Builder(),
        maybe_placeholders=False,
    )


def _place(text: str, position: int) -> str:
    before = text[:position]
    return f"{before.count(chr(10)) + 1}:{position - before.rfind(chr(10))}"


def _unexpected(text: str, position: int, expected: set[str]) -> InputError:
    comment = text.find("/*", max(0, position - 1), position + 2)
    if comment >= 0:
        return InputError('the comment "/*" is not closed', where=_place(text, comment))
    match = re.compile(r'"[^"\n]*"|\w+|[=!<>&|?:]+|\S').match(text, position)
    found = "the end" if match is None else _shown(match[0])
    closers = [word for name, word in _CLOSERS.items() if name in expected]
    wanted = []
    if "STRING" in expected and "INTEGER" in expected:
        wanted = ["a value"]
    elif "NAME" in expected:
        wanted = ["a name"]
    elif "EQUALITY" in expected:
        wanted = ["an operator"]
    elif "_ASSIGN" in expected:
        wanted = ['"="']
    wanted += [word for word in closers if word != found]
    message = f"found {found}"
    if wanted:
        message += f", expected {' or '.join(filter(None, [', '.join(wanted[:-1]), wanted[-1]]))}"
    hint = None if match is None else _HINTS.get(match[0].lower())
    return InputError(message, where=_place(text, position), hint=hint)


def _no_token(text: str, position: int) -> InputError:
    """Return the error for text that begins no token of the language."""
    where = _place(text, position)
    start = text[position]
    if start in "\"'":
        what = "string" if start == '"' else "quoted name"
        return InputError(f"the {what} is not closed by the end of the line", where=where)
    if text.startswith("/*", position):
        return InputError('the comment "/*" is not closed', where=where)
    number = re.compile(r"[\d.][\w.]*").match(text, position)
    if number:
        hint = None
        if re.fullmatch(r"0\d+", number[0]):
            hint = "a number begins with 0 only if it is 0, 0.5 or 0xFF"
        elif re.fullmatch(r"[\d.]+[bkmgtBKMGT]", number[0]):
            hint = "numbers take no unit: write 2 * 1024 for 2K"
        return InputError(f"{_shown(number[0])} is no number", where=where, hint=hint)
    hint = "write == to compare" if start == "=" else None
    return InputError(f"{_shown(start)} means nothing here", where=where, hint=hint)


def _shown(text: str) -> str:
    clean = "".join(c if c.isprintable() else "?" for c in text)
    if clean.startswith('"'):
        return clean if len(clean) <= 40 else clean[:40] + '..."'
    return f'"{clean}"' if len(clean) <= 40 else f'"{clean[:40]}..."'


def _at(token: Token, message: str, hint: str | None = None) -> NoReturn:
    raise InputError(message, where=f"{token.line}:{token.column}", hint=hint)


def _unescaped(token: Token) -> str:
    def character(match: re.Match[str]) -> str:
        escape = match[1]
        if escape[0] not in "01234567":
            return _CONTROL.get(escape, escape)
        code = int(escape, 8)
        if not 0 < code < 256:
            _at(token, f'"\\{escape}" is no character that a string may hold')
        return chr(code)

    if "\0" in token:
        _at(token, "a string must not hold the character NUL")
    return _ESCAPE.sub(character, token[1:-1])


@v_args(inline=True)
class _Builder(Transformer[Token, ExpressionNode]):
    """Builds the node of each grammar rule as soon as the parser has completed the rule."""

    def expression(self, node: ExpressionNode) -> ExpressionNode:
        return node

    def document(self, fields: NestedAd) -> ExpressionNode:
        return fields

    ad = document

    def fields(self, *pairs: tuple[Token, ExpressionNode]) -> NestedAd:
        seen: dict[str, Token] = {}
        for name, _ in pairs:
            first = seen.setdefault(lower(_named(name)), name)
            if first is not name:
                _at(name, f'"{_named(name)}" is already defined in line {first.line}')
        return NestedAd(
            tuple((_named(name), node) for name, node in pairs),
            tuple((name.line or 1, name.column or 1) for name, _ in pairs),
        )

    def field(self, name: Token, node: ExpressionNode) -> Any:
        return name, node

    def choice(
        self, test: ExpressionNode, then: ExpressionNode, otherwise: ExpressionNode
    ) -> ExpressionNode:
        return ConditionalOperation(test, then, otherwise)

    def elvis(self, test: ExpressionNode, otherwise: ExpressionNode) -> ExpressionNode:
        return ConditionalOperation(test, None, otherwise)

    def any(self, *operands: ExpressionNode) -> ExpressionNode:
        return LogicalChain("||", operands)

    def all(self, *operands: ExpressionNode) -> ExpressionNode:
        return LogicalChain("&&", operands)

    def equality(self, left: ExpressionNode, sign: Token, right: ExpressionNode) -> ExpressionNode:
        return BinaryOperation(_IN_WORDS.get(sign.lower(), str(sign)), left, right)

    def bits_or(self, left: ExpressionNode, sign: Token, right: ExpressionNode) -> ExpressionNode:
        return BinaryOperation(str(sign), left, right)

    bits_xor = bits_and = relation = shift = sum = product = bits_or

    def unary(self, sign: Token, operand: ExpressionNode) -> ExpressionNode:
        if sign == "-" and isinstance(operand, Literal):
            number = operand.value
            if isinstance(number, int | float) and not isinstance(number, bool):
                return Literal(-number)
        return UnaryOperation(str(sign), operand)

    negative = unary

    def select(self, of: ExpressionNode, name: Token) -> ExpressionNode:
        return AttributeReference(_named(name), of)

    def element(self, of: ExpressionNode, index: ExpressionNode) -> ExpressionNode:
        return SubscriptOperation(of, index)

    def integer(self, token: Token) -> ExpressionNode:
        return Literal(_integer(token, 10))

    def hexadecimal(self, token: Token) -> ExpressionNode:
        return Literal(_integer(token, 16))

    def real(self, token: Token) -> ExpressionNode:
        value = float(token)
        if math.isinf(value):
            _at(token, f"{_shown(token)} is too large for a number")
        return Literal(value)

    def text(self, *tokens: Token) -> ExpressionNode:
        return Literal("".join(_unescaped(token) for token in tokens))

    def word(self, token: Token) -> ExpressionNode:
        return Literal(_WORDS[token.lower()])

    def name(self, token: Token) -> ExpressionNode:
        return AttributeReference(_named(token))

    def call(self, name: Token, *arguments: ExpressionNode) -> ExpressionNode:
        key = lower(name)
        if key in REFUSED:
            _at(name, f'"{name}" is not read here: {REFUSED[key]}')
        if key not in SIGNATURES:
            _at(name, f'unknown function "{name}"', spelling_hint(key, SIGNATURES))
        fewest, most = SIGNATURES[key]
        if len(arguments) < fewest or (most is not None and len(arguments) > most):
            wanted = (
                f"{fewest}" if fewest == most else f"{fewest} to {most}" if most else f"{fewest}+"
            )
            plural = "" if most == 1 else "s"
            _at(name, f'"{name}" takes {wanted} argument{plural}, got {len(arguments)}')
        return FunctionCall(str(name), arguments)

    def list(self, *items: ExpressionNode) -> ExpressionNode:
        return ExpressionList(items)


def _named(token: Token) -> str:
    return _unescaped(token) if token.startswith("'") else str(token)


def _integer(token: Token, base: int) -> int:
    # Counted first: Python refuses to convert very many digits.
    value = int(token, base) if len(token) <= 40 else None
    if value is None or not fits(value):
        _at(token, f"{_shown(token)} is too large for a whole number of 64 bits")
    return value
