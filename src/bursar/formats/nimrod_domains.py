"""The values that parameters take."""

import glob
import math
import random
import re
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bursar.formats.nimrod_syntax import PlanParameter, at, parse_string
from bursar.model.errors import InputError
from bursar.model.task import Value

if TYPE_CHECKING:
    from lark import Token


MOST_VALUES = 10_000_000
"""Values of one parameter, and jobs of one plan, at most."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?")
_WHOLE = Decimal(1)
_LARGEST = Decimal(10) ** 18


def values_of(parameter: PlanParameter, folder: Path) -> list[Value]:
    """
    Return the values of a parameter that is not computed.

    Parameters
    ----------
    folder
        Folder to which globs of a ``files`` parameter are relative.

    Raises
    ------
    InputError
        At the line and column of what does not fit.
    """
    kind, children = parameter.domain.data, parameter.domain.children
    tokens: list[Any] = list(children)
    match kind:
        case "single":
            return _listed(parameter, tokens, folder)
        case "anyof":
            offered, preset = tokens
            return _chosen(parameter, offered.children, preset and preset.children, folder)
        case "oneof":
            offered, preset = tokens
            chosen = preset.children if preset else offered.children[:1]
            if len(chosen) > 1:
                raise at(chosen[1], "oneof takes one default, found a second")
            return _chosen(parameter, offered.children, chosen, folder)
    if parameter.type in ("text", "files"):
        raise at(parameter.name, f"a {parameter.type} parameter has no {kind}, only values")
    if kind == "range":
        return _range(parameter, *tokens)
    return _random(parameter, *tokens)


def as_text(value: Value) -> str:
    """Write a value for commands: ``1`` for 1.0, ``0.1`` for 0.1."""
    if isinstance(value, float):
        text = repr(value)
        return text[:-2] if text.endswith(".0") else text
    return str(value)


def _listed(parameter: PlanParameter, tokens: "Sequence[Token]", folder: Path) -> list[Value]:
    if parameter.type == "files":
        return [name for token in tokens for name in _files(token, folder)]
    return [_typed(parameter.type, token) for token in tokens]


def _chosen(
    parameter: PlanParameter,
    offered: "Sequence[Token]",
    preset: "Sequence[Token] | None",
    folder: Path,
) -> list[Value]:
    """Return the preset values, which must be among the offered; all where none is preset."""
    values = _listed(parameter, offered, folder)
    if not preset:
        return values
    for token in preset:
        for value in _listed(parameter, [token], folder):
            if value not in values:
                raise at(token, f"the default {token} is not among the values")
    return _listed(parameter, preset, folder)


def _range(
    parameter: PlanParameter,
    first: "Token",
    last: "Token",
    by: "Token | None",
    amount: "Token | None",
) -> list[Value]:
    # In decimal, so that a step such as 0.1 meets the end of the range.
    low, high = _number(first), _number(last)
    if low > high:
        raise at(last, f"the range goes from {first} to {last}: expected an end that is not less")
    if by is not None and by.type == "POINTS" and amount is not None:
        points = _points(amount)
        step = (high - low) / (points - 1) if points > 1 else Decimal(0)
    else:
        step = _WHOLE if amount is None else _number(amount)
        if step <= 0:
            raise at(amount or first, f"the step must be positive, got {amount}")
        if parameter.type == "integer" and step % 1:
            raise at(amount or first, f"the step of an integer parameter is whole, got {amount}")
        steps = (high - low) / step
        if steps >= MOST_VALUES:
            raise at(first, f"the range has more than {MOST_VALUES:,} values")
        points = math.floor(steps) + 1
    return [_value(parameter.type, low + i * step, first) for i in range(points)]


def _random(
    parameter: PlanParameter, first: "Token", last: "Token", amount: "Token | None"
) -> list[Value]:
    """Drawn by a generator seeded with the parameter's name: the same at every reading."""
    low, high = _number(first), _number(last)
    if low > high:
        raise at(last, f"random goes from {first} to {last}: expected an end that is not less")
    points = 1 if amount is None else _points(amount)
    generator = random.Random(str(parameter.name))
    if parameter.type == "integer":
        whole = [int(_value("integer", bound, at_)) for bound, at_ in ((low, first), (high, last))]
        return [generator.randint(*whole) for _ in range(points)]
    return [generator.uniform(float(low), float(high)) for _ in range(points)]


def _points(amount: "Token") -> int:
    points = _number(amount)
    if points < 1 or points % 1:
        raise at(amount, f"points must be a positive whole number, got {amount}")
    if points > MOST_VALUES:
        raise at(amount, f"points must be at most {MOST_VALUES:,}, got {amount}")
    return int(points)


def _typed(kind: str, token: "Token") -> Value:
    if kind == "text":
        return _text(token)
    return _value(kind, _number(token), token)


def _value(kind: str, number: Decimal, token: "Token") -> Value:
    if kind == "integer":
        if number % 1:
            raise at(
                token,
                f"{number.normalize():f} is not an integer",
                hint="make it a float parameter",
            )
        return int(number)
    return float(number)


def _number(token: "Token") -> Decimal:
    """Parse a number exactly, in decimal: 1.5 + 0.2 is 1.7, so the end of a range is met."""
    text = _text(token)
    if not _NUMBER.fullmatch(text):
        raise at(token, f"found {token}, expected a number")
    number = Decimal(text)
    if not abs(number) <= _LARGEST:
        raise at(token, f"{token} is out of range")
    return number


def _text(token: "Token") -> str:
    if token.type != "STRING":
        return str(token)
    template = parse_string(token)
    if template.names:
        raise at(token, f'a value cannot contain another parameter, found "{template.names[0]}"')
    return template.fill({})


def _files(token: "Token", folder: Path) -> list[str]:
    pattern = _text(token)
    if not pattern or "\0" in pattern:
        raise at(token, "expected the name of a file, or a pattern")
    try:
        found = sorted(glob.glob(pattern, root_dir=folder))
    except (OSError, ValueError, re.error) as error:
        raise at(token, f'"{pattern}" cannot be looked up: {error}') from None
    if not found:
        raise at(token, f'no file matches "{pattern}"', hint=f"looked in {folder}")
    return found


def check_type(value: Value, parameter: PlanParameter) -> Value:
    """
    Return a computed value in the parameter's type.

    Raises
    ------
    InputError
        When the parameter is an integer and the value is not.
    """
    if isinstance(value, str):
        return value
    if parameter.type == "integer":
        if value != int(value):
            raise InputError(
                f"{as_text(value)} is not an integer", hint="round(), floor() and ceil() make one"
            )
        return int(value)
    return float(value) if parameter.type == "float" else as_text(value)
