"""Expressions and values as text that parses back."""

import math
import re

from bursar.classad.tree import (
    AttributeReference,
    BinaryOperation,
    ConditionalOperation,
    Constant,
    ExpressionList,
    ExpressionNode,
    FunctionCall,
    Literal,
    LogicalChain,
    NestedAd,
    SubscriptOperation,
    UnaryOperation,
)
from bursar.classad.values import MOST, Exceptional

RESERVED = frozenset({"true", "false", "undefined", "error", "is", "isnt"})
"""Words that name no attribute, unless quoted."""

# How tightly each operator binds; operators of one number group from the left.
_BINDING = {
    "?": 1,
    "||": 3,
    "&&": 4,
    "|": 5,
    "^": 6,
    "&": 7,
    **dict.fromkeys(("==", "!=", "=?=", "=!="), 8),
    **dict.fromkeys(("<", "<=", ">", ">="), 9),
    **dict.fromkeys(("<<", ">>", ">>>"), 10),
    **dict.fromkeys(("+", "-"), 11),
    **dict.fromkeys(("*", "/", "%"), 12),
}
_UNARY = 13
_ELVIS = 14
_POSTFIX = 15

_ESCAPES = {
    "\\": "\\\\",
    '"': '\\"',
    "\n": "\\n",
    "\t": "\\t",
    "\r": "\\r",
    "\b": "\\b",
    "\f": "\\f",
}


def written(node: ExpressionNode) -> str:
    """Return the text of an expression, with no more parentheses than needed."""
    return _within(node, 0)


def quoted(text: str) -> str:
    """A string in double quotes."""
    return f'"{_escaped(text)}"'


def name_written(name: str) -> str:
    """Return an attribute's name, in single quotes unless plain."""
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) and name.lower() not in RESERVED:
        return name
    return "'" + _escaped(name).replace('\\"', '"').replace("'", "\\'") + "'"


def _escaped(text: str) -> str:
    return "".join(
        _ESCAPES.get(c) or (f"\\{ord(c):03o}" if c < " " or c == "\x7f" else c) for c in text
    )


def _constant(value: Constant) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Exceptional):
        return value.word
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, int):
        # The smallest integer has no literal: the number after its minus is too large.
        return str(value) if value >= -MOST else f"({-MOST} - 1)"
    if math.isfinite(value):
        return repr(value)
    return 'real("NaN")' if math.isnan(value) else f'real("{"-" if value < 0 else ""}INF")'


def _within(node: ExpressionNode, binding: int) -> str:
    """Return the text of a node, in parentheses where the surroundings bind more tightly."""
    text, own = _text(node)
    return f"({text})" if own < binding else text


def _text(node: ExpressionNode) -> tuple[str, int]:
    """Return the text of a node, and how tightly the text binds."""
    match node:
        case Literal(value):
            text = _constant(value)
            return text, _UNARY if text.startswith("-") else _POSTFIX
        case AttributeReference(name, None):
            return name_written(name), _POSTFIX
        case AttributeReference(name, ExpressionNode() as of):
            return f"{_within(of, _POSTFIX)}.{name_written(name)}", _POSTFIX
        case SubscriptOperation(of, index):
            return f"{_within(of, _POSTFIX)}[{_within(index, 0)}]", _POSTFIX
        case UnaryOperation(sign, operand):
            inner = _within(operand, _UNARY)
            # "- 1" is an operator and its operand, "-1" a literal; "--" reads badly.
            gap = " " if sign in "+-" and inner[0] in "+-.0123456789" else ""
            return f"{sign}{gap}{inner}", _UNARY
        case LogicalChain(sign, operands):
            own = _BINDING[sign]
            return f" {sign} ".join(_within(part, own + 1) for part in operands), own
        case BinaryOperation(sign, left, right):
            own = _BINDING[sign]
            # Operators group to the left: a right operand of equal strength needs its
            # parentheses, a left one does not.
            return f"{_within(left, own)} {sign} {_within(right, own + 1)}", own
        case ConditionalOperation(test, None, otherwise):
            return f"{_within(test, _ELVIS)} ?: {_within(otherwise, _POSTFIX)}", _ELVIS
        case ConditionalOperation(test, ExpressionNode() as then, otherwise):
            own = _BINDING["?"]
            chosen = f"{_within(then, own)} : {_within(otherwise, own)}"
            return f"{_within(test, own + 1)} ? {chosen}", own
        case FunctionCall(name, arguments):
            return f"{name}({', '.join(_within(part, 0) for part in arguments)})", _POSTFIX
        case ExpressionList(items):
            inside = ", ".join(_within(part, 0) for part in items)
            return f"{{ {inside} }}" if inside else "{ }", _POSTFIX
        case NestedAd(fields):
            inside = "; ".join(f"{name_written(key)} = {_within(p, 0)}" for key, p in fields)
            return f"[ {inside} ]" if inside else "[ ]", _POSTFIX
    raise TypeError(f"no part of an expression: {node!r}")
