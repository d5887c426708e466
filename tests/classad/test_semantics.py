"""The language by table: what HTCondor's manual says, and what is different here."""

import math
from typing import Any

import pytest
from tests.classad.equality import is_same

from bursar.classad import (
    ERROR,
    UNDEFINED,
    Ad,
    Expression,
    Table,
    compiled,
    evaluate,
    parse,
    parse_ad,
)

U, E = UNDEFINED, ERROR


def value(text: str, my: str = "", target: str | None = None) -> Any:
    """What an expression comes to; the compiled function must say the same."""
    own = parse_ad(my)
    other = None if target is None else parse_ad(target)
    found = evaluate(parse(text), own, other)
    if other is not None:
        assert compiled(parse(text), own)(other) == found
    return found


@pytest.mark.parametrize(
    ("left", "conjunction", "disjunction"),
    [
        # Each against true, false, undefined, error.
        ("true", [True, False, U, E], [True, True, True, True]),
        ("false", [False, False, False, False], [True, False, U, E]),
        ("undefined", [U, False, U, E], [True, U, U, E]),
        ("error", [E, E, E, E], [E, E, E, E]),
        ("1", [True, False, U, E], [True, True, True, True]),
        ("0.0", [False, False, False, False], [True, False, U, E]),
        ('"true"', [E, E, E, E], [E, E, E, E]),
    ],
)
def test_logic_has_three_values_and_error(
    left: str, conjunction: list[Any], disjunction: list[Any]
) -> None:
    """Undefined gives way to what decides; an error on the left does not."""
    right = ["true", "false", "undefined", "error"]

    assert [value(f"{left} && {other}") for other in right] == conjunction
    assert [value(f"{left} || {other}") for other in right] == disjunction


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("!undefined", U), ("!error", E), ("!0", True), ('!"a"', E),
        ("undefined ? 1 : 2", U), ("error ? 1 : 2", E), ("0.5 ? 1 : 2", 1), ('"a" ? 1 : 2', E),
        ("false ? error : 2", 2), ("undefined ?: 3", 3), ("error ?: 3", E), ("false ?: 3", False),
        ("1 + undefined", U), ("undefined + error", E), ('"a" + "b"', E), ("{1} + 1", E),
        ("undefined == undefined", U), ("error == error", E), ("undefined < 1", U),
        ('1 < "a"', E), ("{1} == {1}", E), ('true == "true"', E), ("true == 1", True),
    ],
)  # fmt: skip
def test_undefined_and_error_pass_through(text: str, expected: Any) -> None:
    assert value(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"Linux" == "LINUX"', True), ('"Linux" =?= "LINUX"', False), ('"a" is "a"', True),
        ("1 == 1.0", True), ("1 =?= 1.0", False), ("true =?= 1", False), ("1 isnt true", True),
        ("undefined =?= undefined", True), ("error =?= error", True), ("undefined =!= 1", True),
        ("x is undefined", True), ("1/0 is error", True), ("undefined =?= error", False),
        ("{1} is {1}", E), ("{1} is 1", False), ('"a" < "B"', True), ('"É" == "é"', False),
    ],
)  # fmt: skip
def test_meta_operators_compare_kind_and_value(text: str, expected: Any) -> None:
    """``==`` ignores the case of strings, A to Z alone, and the kind of numbers."""
    assert value(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-7 / 2", -3), ("-7 % 3", -1), ("7 % -3", 1), ("7.5 / 2", 3.75), ("1 % 0.5", E),
        ("1 / 0", E), ("1 % 0", E), ("1.0 / 0", E), ("-1 / 0.0", -math.inf), ("true + 1", 2),
        ("1 + 2 * 3", 7), ("(1 + 2) * 3", 9), ("1 << 2 + 1", 8), ("1 & 3 | 4", 5), ("~1", -2),
        ("-8 >> 1", -4), ("-1 >>> 60", 15), ("1 < 2 == true", True), ("1.5 & 1", E),
        # Not as HTCondor, which wraps round or says 0 or -2^63:
        ("9223372036854775807 + 1", E), ("9223372036854775807 * 2", E), ("1 << 64", E),
        ("-(-9223372036854775807 - 1)", E), ("int(1e300)", E), 
        (f'int("0x{"F" * 400}")', E), ("pow(2, 63)", E),
        ("pow(2, 1000000000)", E), ("pow(-2, 3)", -8), ("floor(real(\"nan\"))", E),
        ("1e308 * 10", E), ("-1e308 * 10", -math.inf), ("0xFF", 255),
    ],
)  # fmt: skip
def test_arithmetic(text: str, expected: Any) -> None:
    found = value(text)

    assert found == expected
    assert type(found) is type(expected)


def test_nan_is_not_equal_to_itself() -> None:
    assert value('real("nan") == real("nan")') is False
    assert value('real("nan") =?= real("nan")') is False
    assert value('real("nan") < 1') is False


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", 1), ("A", 1), ("b", 7), ("MY.b", U), ("my.A", 1), ("TARGET.a", 5), ("other.B", 7),
        ("self.a", 1), ("target.absent", U), ("absent", U), ("c", 6), ("other.d", 12),
        ("target.e", 5), ("n.x", 1), ("n.y", 3), ("n.z", 1), ("parent.a", U), ('n["x"]', 1),
        ('n["q"]', U), ("l[1]", 20), ("l[2]", E), ("l[-1]", E), ('l["a"]', E), ("l[true]", E),
        ("undefined[0]", U), ("{n, n}.y", [3, 3]), ("MY", None), ("size(MY)", 6),
        ("isClassad(target)", True), ("1 .a", None),
    ],
)  # fmt: skip
def test_names_are_looked_up_in_ones_own_ad_then_in_the_other(text: str, expected: Any) -> None:
    """Upper and lower case are the same; an ad within sees what is around it."""
    my = "a = 1; c = target.a + 1; n = [ x = a; y = 3; z = parent.x ]; l = {10, 20}; x = 1; m = n"
    target = "a = 5; b = 7; d = a + B; e = TARGET.c - 1"
    if text == "1 .a":
        assert evaluate(parse("(1).a"), parse_ad(my), parse_ad(target)) is ERROR
    elif expected is None:
        assert isinstance(evaluate(parse(text), parse_ad(my), parse_ad(target)), Ad)
    else:
        assert value(text, my, target) == expected


def test_without_another_ad_what_is_asked_of_it_is_undefined() -> None:
    assert value("target.a") is UNDEFINED
    assert value("TARGET") is UNDEFINED
    assert value("a") is UNDEFINED


@pytest.mark.parametrize(
    ("ad", "text", "expected"),
    [
        ("a = a", "a", U), ("a = b; b = a", "a", U), ("a = a + 1", "a", U),
        ("a = target.b", "a", U), ("a = isUndefined(a)", "a", True),
        ("a = isUndefined(b) ? 1 : 2; b = isUndefined(a) ? 3 : 4", "a", 2),
        ("a = {a}; b = size(a)", "b", 1), ("a = [ b = a.b ]", "a.b", U),
    ],
)  # fmt: skip
def test_an_attribute_that_needs_itself_is_undefined(ad: str, text: str, expected: Any) -> None:
    """As in HTCondor; across two ads as well."""
    assert value(text, ad, "b = target.a") == expected


def test_long_ways_end_in_an_error() -> None:
    """Neither the stack nor the time runs out."""
    chain = "; ".join(f"a{i} = a{i + 1}" for i in range(5000)) + "; a5000 = 1"
    assert value("a0", chain) is ERROR
    assert value("a4900", chain) == 1

    # Each doubles the work of the one after it: 2^60 in all.
    doubling = "; ".join(f"a{i} = a{i + 1} + a{i + 1}" for i in range(60)) + "; a60 = target.x"
    assert value("a0", doubling, "x = 1") is ERROR
    assert value("other.a0", "x = 1", doubling) is ERROR


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('member("CMS", {"atlas", "cms"})', True), ("member(1, {1.0})", True),
        ("member(1, {})", False), ("member(undefined, {1})", U), ("member(1, 1)", E),
        ('identicalMember("CMS", {"cms"})', False), ('anyCompare("<", {1, 5}, 2)', True),
        ('allCompare(">=", {1, 5}, 2)', False), ('anyCompare("=?=", {1}, 1)', E),
        ("size({1, 2})", 2), ('size("abc")', 3), ("size(1)", E), ("sum({1, 2.5})", 3.5),
        ("sum({})", 0), ("avg({1, 2})", 1.5), ("avg({})", 0), ("min({})", U),
        ("max({1, 2.0})", 2.0),
        ('strcat("a", 1, true)', "a1true"), ('strcat("a", undefined)', U),
        ('substr("abcdef", 2, 2)', "cd"), ('substr("abcdef", -2)', "ef"),
        ('substr("abcdef", 1, -2)', "bcd"), ('toUpper("aé")', "Aé"), ('toLower("A")', "a"),
        ('strcmp("a", "B")', 1), ('stricmp("a", "B")', -1), ('split("a, b c")', ["a", "b", "c"]),
        ('stringListMember("b", "a, b")', True), ('stringListIMember("B", "a, b")', True),
        ('stringListMember("b", undefined)', False), ('stringListSize("a,,b")', 2),
        ('stringListSum("1, 2")', 3), ('stringListAvg("1, 2.5")', 1.75), ('stringListMin("")', U),
        ('stringListMax("1, 3")', 3), ('stringListsIntersect("a,b", "b;c", ",;")', True),
        ('stringListSubsetMatch("a", "b, a")', True), ('stringListISubsetMatch("A", "a")', True),
        ('stringList_regexpMember("^c", "a, cms")', True), ('regexp("^C", "cms")', False),
        ('regexp("^C", "cms", "i")', True), ('regexp("(", "cms")', E),
        ('regexp("a", undefined)', U),
        ('regexpMember("^c", {"a", "cms"})', True), ('int("3.7")', 3), ('int("x")', E),
        ('real("1e2")', 100.0), ("string(1.5)", "1.500000000000000E+00"), ('bool("TRUE")', True),
        ('bool("x")', U), ("floor(-1.5)", -2), ("ceil(1.2)", 2), ("ceiling(1.2)", 2),
        ("round(2.5)", 2), ("pow(2, 10)", 1024), ("pow(2, -1)", 0.5), ("quantize(9, 8)", 16),
        ("quantize(9, {4, 12})", 12), ("quantize(3, 2.5)", 5.0),
        ("ifThenElse(undefined, 1, 2)", U),
        ("isInteger(1.0)", False), ("isReal(1.0)", True), ("isList({})", True),
        ("isError(1/0)", True),
        ("ISUNDEFINED(x)", True), ('isString("")', True), ("isBoolean(true)", True),
    ],
)  # fmt: skip
def test_functions(text: str, expected: Any) -> None:
    found = value(text)

    assert found == expected
    assert type(found) is type(expected)


def test_deep_expressions_within_deep_expressions_do_not_end_the_interpreter() -> None:
    """Whoever calls may be deep in calls already."""
    inner = "-(" * 90 + "{}" + ")" * 90
    ad = "; ".join(f"a{i} = {inner.format(f'a{i + 1}')}" for i in range(20)) + "; a20 = target.x"
    own, other = parse_ad(ad), parse_ad(f"x = 1; {ad.replace('target.x', '1')}")

    def call(depth: int) -> None:
        if depth:
            call(depth - 1)
            return
        for text in ("a0", "target.a0", inner.format("a0"), inner.format("target.a0")):
            expression = parse(text)
            assert evaluate(expression, own, other) is ERROR
            assert compiled(expression, own)(other) is ERROR
            assert not Table([other]).holds(expression, own).any()

    call(100)


def test_a_list_that_is_given_is_the_callers() -> None:
    """Changing it changes nothing."""
    run = compiled(parse("{1, 2}"), Ad())
    run(Ad()).append(3)

    assert run(Ad()) == [1, 2]


def test_undefined_and_error_are_false_in_python() -> None:
    assert not UNDEFINED
    assert not ERROR
    assert isinstance(parse("1"), Expression)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("regexpMember(3, undefined)", U), ("regexpMember(error, undefined)", E),
        ("regexpMember(3, {})", E), ('regexpMember("a", {}, 3)', E),
        ('allCompare(7, undefined, 1)', E), ('allCompare("q", undefined, 1)', E),
        ('anyCompare(undefined, error, 1)', U), ('anyCompare("<", undefined, 1)', U),
        ('stringListSubsetMatch("", "a")', True), ('stringListSubsetMatch(" ", "a")', False),
        ('stringListSubsetMatch(",", ",")', False), ('stringListSubsetMatch(undefined, "a")', True),
        ('stringListISubsetMatch("A\\nb", "a, B")', True),
        ('stringListMember("a", "a b", undefined)', True),
        ('stringListMember("b", "a\\tb")', True), ('stringListMember("b", "a\\tb", " ")', False),
        ('stringListMember(undefined, "a", 3)', E),
        ("stringListMember(undefined, undefined, 3)", E),
        ('stringListsIntersect(3, "a", undefined)', U),
        ('stringListsIntersect(error, "a", undefined)', E),
        ('stringList_regexpMember("a", "\\t")', U), ('stringList_regexpMember("(", "\\t")', E),
        ("quantize(1e308, 0.5)", math.inf), ("quantize(-2.5, 3)", -0.0),
        ("quantize(-0.0, 100)", -0.0),
        ("quantize(0.0, -100)", 0.0), ("avg({-0.0})", -0.0), ("x ?: -7", -7), ("x ?: -0.5", -0.5),
    ],
)  # fmt: skip
def test_odd_arguments_give_what_htcondor_gives(text: str, expected: Any) -> None:
    """Values of its library, release 25; the sign of zero counts."""
    assert is_same(value(text, target=""), expected)


def test_an_error_is_the_same_as_another_in_a_table_whatever_it_was_made_of() -> None:
    """The column of ``-true`` is an error everywhere; the number below it must not show."""
    expression = parse("-(a == 1) =?= error")

    assert Table([parse_ad("a = 1"), parse_ad("a = 2")]).holds(expression, Ad()).all()
