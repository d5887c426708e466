"""What is read as an expression or an ad, and what is refused where."""

import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.classad import ERROR, UNDEFINED, Ad, Expression, clauses, parse, parse_ad, references
from bursar.classad.functions import FUNCTIONS
from bursar.classad.parsing import REFUSED, SIGNATURES
from bursar.model.errors import InputError


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("1+2*3", "1 + 2 * 3"),
        ("(1+2)*3", "(1 + 2) * 3"),
        ("1-(2-3)", "1 - (2 - 3)"),
        ("a&&b||!c", "a && b || !c"),
        ("a && (b || c)", "a && (b || c)"),
        ("x is undefined", "x =?= undefined"),
        ("x ISNT y", "x =!= y"),
        ("a?b:c?d:e", "a ? b : c ? d : e"),
        ("(a?b:c)?d:e", "(a ? b : c) ? d : e"),
        ("-x ?: 2", "-x ?: 2"),
        ("(-x) ?: 2", "(-x) ?: 2"),
        ("'an attribute'.b", "'an attribute'.b"),
        ('"a" " b"', '"a b"'),
        (r'"\"\n\101"', r'"\"\nA"'),
        ("{1,{}}", "{ 1, { } }"),
        ("[a=1;b=[];]", "[ a = 1; b = [ ] ]"),
        ("a[1].b", "a[1].b"),
        ("/* one */ 1 // two", "1"),
        ("- 1", "-1"),
        ("1--1", "1 - -1"),
    ],
)
def test_what_is_read_is_printed(text: str, printed: str) -> None:
    """Operators bind as in C; ``?:`` binds tighter than a sign, as in HTCondor."""
    assert str(parse(text)) == printed
    assert parse(printed) == parse(text)


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("", "1:1", "found the end, expected a value"),
        ("1 +", "1:4", "found the end, expected a value"),
        ("a &&\n  && b", "2:3", 'found "&&", expected a value'),
        ("a = 1", "1:3", 'found "=", expected an operator or the end'),
        ("a and b", "1:3", 'found "and", expected an operator or the end'),
        ("(1", "1:3", 'found the end, expected ")"'),
        ("{1, ", "1:4", "found the end, expected a value"),
        ("a.1", "1:2", 'found ".", expected an operator or the end'),
        ("foo(1)", "1:1", 'unknown function "foo"'),
        ("substr(1)", "1:1", '"substr" takes 2 to 3 arguments, got 1'),
        ("1 < time()", "1:5", '"time" is not read here: the answer would change from one '
         "evaluation to the next"),
        ('1 < "abc', "1:5", "the string is not closed by the end of the line"),
        ("1 /* 2", "1:3", 'the comment "/*" is not closed'),
        ("1K", "1:1", '"1K" is no number'),
        ("017", "1:1", '"017" is no number'),
        ("9223372036854775808", "1:1", '"9223372036854775808" is too large for a whole number of '
         "64 bits"),
        ("1e999", "1:1", '"1e999" is too large for a number'),
        ("9" * 10_000, "1:1", f'"{"9" * 40}..." is too large for a whole number of 64 bits'),
        ("a # b", "1:3", '"#" means nothing here'),
        ("-" * 5000 + "1", "1:1", None),
        ("!" * 5000 + "a", "1:1", "is nested more than 100 levels deep"),
        ("a." * 5000 + "a", "1:1", "is nested more than 100 levels deep"),
        ('"\\0"', "1:1", '"\\0" is no character that a string may hold'),
    ],
)  # fmt: skip
def test_a_broken_expression_is_refused_at_its_column(
    text: str, where: str, message: str | None
) -> None:
    """One line that says what was found and what was expected."""
    if message is None:
        assert str(parse(text)) == "1"  # signs of a number are part of it
        return
    with pytest.raises(InputError) as caught:
        parse(text, where="job.jdl")

    assert caught.value.where == f"job.jdl:{where}"
    assert caught.value.message == message


def test_parentheses_may_be_as_many_as_there_are() -> None:
    assert str(parse("(" * 10_000 + "1" + ")" * 10_000)) == "1"


def test_a_long_chain_is_not_deep() -> None:
    """Generated requirements list hundreds of sites."""
    text = " || ".join(f'other.Name == "site{i}"' for i in range(2000))
    assert parse(str(parse(text))) == parse(text)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a = 1; A = 2", "1:8"), ("a", "1:2"), ("a = ", "1:4"), ("[ a = 1", "1:8"),
        ("1 = a", "1:1"), ("a = 1 b = 2", "1:7"),
    ],
)  # fmt: skip
def test_a_broken_ad_is_refused_at_its_column(text: str, where: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_ad(text)

    assert caught.value.where == where


def test_an_ad_knows_its_attributes_by_any_case() -> None:
    ad = parse_ad('[ Alpha = 1; b = alpha + 1; c = {1, "x"}; d = [ e = 2 ]; f = undefined ]')

    assert ad["ALPHA"] == 1
    assert ad["B"] == parse("alpha + 1")
    assert ad["c"] == [1, "x"]
    assert ad["d"] == Ad({"E": 2})
    assert ad["f"] is UNDEFINED
    assert "absent" not in ad
    assert list(ad) == ["Alpha", "b", "c", "d", "f"]
    assert ad.place("C") == (1, 29)
    assert parse_ad(str(ad)) == ad
    assert hash(parse_ad(str(ad))) == hash(ad)


def test_an_ad_takes_values_of_python() -> None:
    """What is too large for an integer becomes a real number: a site may say anything."""
    ad = Ad({"a": [1, Ad({"b": 2})], "c": 10**30, "d": (True, "x"), "e": parse("a[1].b")})

    assert ad["c"] == 1e30
    assert ad["d"] == [True, "x"]
    assert str(ad) == '[ a = { 1, [ b = 2 ] }; c = 1e+30; d = { true, "x" }; e = a[1].b ]'
    with pytest.raises(TypeError, match="x: no value of an ad"):
        Ad({"x": object()})
    with pytest.raises(TypeError, match="x: no value of an ad"):
        Ad({"x": None})


def test_values_that_differ_in_kind_are_different_expressions() -> None:
    """Python says that 1, 1.0 and True are the same."""
    assert len({parse("1"), parse("1.0"), parse("true")}) == 3
    assert Ad({"a": 1}) != Ad({"a": True})


def test_expressions_and_the_two_values_can_be_sent_to_other_processes() -> None:
    for thing in (parse("a + 1"), Ad({"a": 1}), UNDEFINED, ERROR):
        assert pickle.loads(pickle.dumps(thing)) == thing
    assert pickle.loads(pickle.dumps(UNDEFINED)) is UNDEFINED


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("other.A > 1 && b", {"a", "b"}), ("my.c", {"x", "y"}), ("c + d", {"x", "y"}), ("1", set()),
        ("target", {"*"}), ('other["x"]', {"*"}), ("member(1, TARGET.L)", {"l"}), ("e", set()),
        ('MY["d"]', {"x", "y", "z"}), ("absent.a", {"absent", "a"}),
    ],
)  # fmt: skip
def test_references_follow_ones_own_attributes(text: str, names: set[str]) -> None:
    my = parse_ad("c = d * 2; d = other.x + Y; e = e; f = [ g = target.z ]")

    assert references(parse(text), my) == names


def test_clauses_are_the_conjuncts() -> None:
    found = clauses(parse("a && (b || c) && (d && e)"))

    assert [str(clause) for clause in found] == ["a", "b || c", "d", "e"]
    assert clauses(parse("a || b")) == (parse("a || b"),)


@given(text=st.text(alphabet="ab1.\"'(){}[]=<>!&|?:+-*/ \n;,\\%~^", max_size=30))
@settings(max_examples=examples(400))
def test_any_text_is_an_expression_or_an_error(text: str) -> None:
    for read in (parse, parse_ad):
        try:
            found: Expression | Ad | InputError = read(text)
        except InputError as error:
            found = error
        if isinstance(found, InputError):
            assert "\n" not in found.message
            assert found.where
        else:
            assert read(str(found)) == found


def test_the_page_names_every_function() -> None:
    """And those that are refused."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "classad.md").read_text().lower()

    assert [name for name in (*SIGNATURES, *REFUSED) if f"{name}" not in page] == []
    assert set(SIGNATURES) == set(FUNCTIONS)
