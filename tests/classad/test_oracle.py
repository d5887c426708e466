"""Expressions held against HTCondor's own library."""

import math
from typing import Any

import pytest
from hypothesis import assume, given, settings
from tests.classad.expressions import ads, expressions

from bursar.classad import ERROR, UNDEFINED, Ad, evaluate, parse, parse_ad

pytest.importorskip("htcondor2", reason="HTCondor's library is for Linux only")
classad2 = pytest.importorskip("classad2", reason="HTCondor's library is for Linux only")


def _theirs(expression: str, my: str, target: str) -> Any:
    tree = classad2.ExprTree(expression)
    return _plain(tree.eval(classad2.ClassAd(my), classad2.ClassAd(target)))


def _plain(value: Any) -> Any:
    if value == classad2.Value.Undefined and isinstance(value, classad2.Value):
        return UNDEFINED
    if value == classad2.Value.Error and isinstance(value, classad2.Value):
        return ERROR
    if isinstance(value, list):  # of expressions, unless all its items are constants
        return "a list", len(value)
    return "an ad" if isinstance(value, classad2.ClassAd) else value


def _ours(expression: str, my: str, target: str) -> Any:
    value = evaluate(parse(expression), parse_ad(my), parse_ad(target))
    if isinstance(value, list):
        return "a list", len(value)
    return "an ad" if isinstance(value, Ad) else value


def _same(one: Any, other: Any) -> bool:
    if type(one) is float and type(other) is float and math.isnan(one):
        return math.isnan(other)
    return type(one) is type(other) and bool(one == other)


@given(expression=expressions, my=ads, target=ads)
@settings(deadline=None, max_examples=700)
def test_random_expressions_are_what_htcondor_says(expression: str, my: str, target: str) -> None:
    try:
        theirs = _theirs(expression, my, target)
    except classad2.ClassAdException:
        assume(False)  # cannot be shown as a Python value
    ours = _ours(expression, my, target)

    assert _same(ours, theirs), f"{expression} | {my} | {target}: {ours!r}, HTCondor {theirs!r}"
