"""Expressions held against HTCondor's own library."""

import subprocess
import sys
from typing import Any

import pytest
from tests.classad import condor
from tests.classad.equality import is_same
from tests.classad.expressions import EXPRESSIONS, smallest, world

from bursar.classad import ERROR, UNDEFINED, Ad, Expression, evaluate, parse, parse_ad
from bursar.model.errors import InputError

pytest.importorskip("htcondor2", reason="HTCondor's library is for Linux only")
classad2 = pytest.importorskip("classad2", reason="HTCondor's library is for Linux only")


def _theirs(expression: Any, my: Any, target: Any) -> Any:
    value = expression.eval(my, target)
    if isinstance(value, classad2.Value):
        return UNDEFINED if value == classad2.Value.Undefined else ERROR
    if isinstance(value, list):  # of expressions, unless all its items are constants
        return "a list", len(value)
    return "an ad" if isinstance(value, classad2.ClassAd) else value


def _ours(expression: Expression, my: Ad, target: Ad) -> Any:
    value = evaluate(expression, my, target)
    if isinstance(value, list):
        return "a list", len(value)
    return "an ad" if isinstance(value, Ad) else value


@pytest.mark.parametrize(
    ("first", "worlds"),
    [
        (0, 50),
        pytest.param(50, 110, marks=pytest.mark.ci),
        pytest.param(1_000_000, 4_000, marks=pytest.mark.long),
    ],
)
def test_random_expressions_are_what_htcondor_says_but_for_what_the_docs_name(
    first: int, worlds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    25 expressions a seed, each against four ads; every documented difference is modelled.

    What is left out is the text of lists and ads: HTCondor writes items as they stand.
    """
    condor.put_in_place(monkeypatch)
    compared = left_out = 0
    for seed in range(first, first + worlds):
        given = world(seed)
        mine, my = parse_ad(given.my), classad2.ClassAd(given.my)
        others = [(t, parse_ad(t), classad2.ClassAd(t)) for t in given.targets]
        for text in given.expressions:
            parsed, tree = parse(text), classad2.ExprTree(text)
            for target, other, their in others:
                try:
                    ours = _ours(parsed, mine, other)
                except condor.NotComparableError:
                    left_out += 1
                    continue
                compared += 1
                theirs = _theirs(tree, my, their)
                if not is_same(ours, theirs):
                    _report(text, given.my, target, f"seed {seed}")

    assert compared + left_out == worlds * EXPRESSIONS * 4
    assert left_out < 0.05 * compared


def _report(text: str, my: str, target: str, where: str) -> None:
    ads = parse_ad(my), parse_ad(target)
    theirs = classad2.ClassAd(my), classad2.ClassAd(target)

    def values(part: str) -> tuple[Any, Any]:
        return _ours(parse(part), *ads), _theirs(classad2.ExprTree(part), *theirs)

    def differs(part: str) -> bool:
        try:
            return not is_same(*values(part))
        except (condor.NotComparableError, classad2.ClassAdException):
            return False

    part = smallest(text, differs)
    ours, their = values(part)
    pytest.fail(f"{where}: {part} | {my} | {target}: {ours!r}, HTCondor {their!r}, in {text}")


@pytest.mark.parametrize(
    ("text", "ours", "theirs"),
    [
        ("9223372036854775807 + 1", ERROR, -(2**63)), ("1 << 64", ERROR, 1),
        ("-7 >>> 0", -7, 0), ("floor(1e308)", ERROR, -(2**63)), ('int("x1")', ERROR, ERROR),
        ('int("9007199254740993")', 9007199254740993, 9007199254740992),
        ("pow(7, 22)", 3909821048582988049, 3909821048582988288),
        ('substr("1e3", 4294967297)', "", "e3"), ("{1, 2}[4294967297]", ERROR, 2),
        ('anyCompare("<", {undefined, 1}, 2)', True, False),
        ('regexpMember("(", {"a"})', ERROR, False), ('size(split("a,,b"))', 2, 3),
        ('stringListsIntersect("a; ", "b; ", ";")', False, True),
        ('stringListSum("1,2x")', ERROR, 3.0), ('stringListMax("-1.5")', -1.5, condor.FLT_MIN),
        ('string({1 + 1})', "{ 2 }", "{ 1 + 1 }"), ('size("é")', 1, 2),
        ("undefined ?: - 7", -7, None), ("0xFF", 255, None), ("-0xFF", -255, 0),
        ("017", None, None), ("-017", None, -17), ("-9223372036854775808", None, -(2**63)),
        ("undefined ?: -7", -7, -7), ("017.5", 17.5, 17.5),
    ],
)  # fmt: skip
def test_documented_differences_are_there(text: str, ours: Any, theirs: Any) -> None:
    """One example of each; None where the text is no expression. A point that has gone goes."""
    assert is_same(_read_here(text), ours)
    assert is_same(_read_there(text), theirs)


def _read_here(text: str) -> Any:
    try:
        return evaluate(parse(text), Ad())
    except InputError:
        return None


def _read_there(text: str) -> Any:
    try:
        return _theirs(classad2.ExprTree(text), classad2.ClassAd(), classad2.ClassAd())
    except classad2.ClassAdException:
        return None


def test_a_bare_name_is_sought_in_the_other_ad_as_htcondors_daemons_do() -> None:
    """
    Loading HTCondor's module makes its library look there, too; the library alone does not.
    """
    program = """
import classad2
b, my, target = classad2.ExprTree("b"), classad2.ClassAd("[a = 1]"), classad2.ClassAd("[b = 7]")
print(b.eval(my, target) == classad2.Value.Undefined)
import htcondor2
print(b.eval(my, target))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert run.stdout.split() == ["True", "7"], run.stderr
    assert evaluate(parse("b"), parse_ad("a = 1"), parse_ad("b = 7")) == 7
