"""The interpreter, the compiled function and the table say the same."""

import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.classad.expressions import NAMES, ads, expressions, plain_ads

from bursar.classad import Ad, Table, compiled, evaluate, parse, parse_ad, references


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if type(one) is float and math.isnan(one):
        return type(other) is float and math.isnan(other)
    return type(one) is type(other) and bool(one == other)


@given(expression=expressions, my=ads, target=ads)
@settings(deadline=None, max_examples=300)
def test_the_compiled_function_gives_what_evaluation_gives(
    expression: str, my: str, target: str
) -> None:
    parsed, own, other = parse(expression), parse_ad(my), parse_ad(target)

    assert _same(compiled(parsed, own)(other), evaluate(parsed, own, other))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, bool | int | float) else math.nan


@given(expression=expressions, my=ads, targets=st.lists(st.one_of(plain_ads, ads), max_size=6))
@settings(deadline=None, max_examples=250)
def test_the_table_gives_what_the_compiled_function_gives(
    expression: str, my: str, targets: list[str]
) -> None:
    parsed, own = parse(expression), parse_ad(my)
    others = [parse_ad(target) for target in targets]
    run = compiled(parsed, own)
    table = Table(others)

    assert list(table.holds(parsed, own)) == [run(other) is True for other in others]
    numbers = table.values(parsed, own)
    assert all(_same(float(n), _number(run(o))) for n, o in zip(numbers, others, strict=True))


changes = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 2), st.sampled_from([1, 2.5, "x", True])),
    max_size=5,
)


@given(expression=expressions, targets=st.lists(plain_ads, min_size=3, max_size=3), made=changes)
@settings(deadline=None, max_examples=150)
def test_a_changed_table_is_as_one_made_anew(
    expression: str, targets: list[str], made: list[tuple[str, int, Any]]
) -> None:
    """A change reaches columns that are there, and those that are made later."""
    parsed, own = parse(expression), Ad()
    table = Table([parse_ad(target) for target in targets])
    for name, index, value in made:
        table.holds(parsed, own)
        table.set(name, index, value)

    assert list(table.holds(parsed, own)) == list(Table(table.ads).holds(parsed, own))


@given(expression=expressions, my=ads, target=plain_ads, name=st.sampled_from(NAMES))
@settings(deadline=None, max_examples=200)
def test_what_is_not_among_the_references_makes_no_difference(
    expression: str, my: str, target: str, name: str
) -> None:
    """So that jobs, or sites, that agree on the references can be matched once."""
    parsed, own, other = parse(expression), parse_ad(my), parse_ad(target)
    if {name.lower(), "*"} & references(parsed, own):
        return

    changed = other.with_attribute(name, "changed")
    assert _same(evaluate(parsed, own, changed), evaluate(parsed, own, other))


@given(expression=expressions)
@settings(deadline=None, max_examples=300)
def test_an_expression_printed_parses_back(expression: str) -> None:
    parsed = parse(expression)

    again = parse(str(parsed))
    assert again == parsed
    assert again.root == parsed.root
    assert hash(again) == hash(parsed)
