"""The interpreter, the compiled function and the table say the same."""

import math
import random
from functools import partial
from typing import Any

import pytest
from tests.classad.equality import is_same
from tests.classad.expressions import NAMES, Generator, smallest, world

from bursar.classad import Ad, Table, compiled, evaluate, parse, parse_ad, references


@pytest.mark.parametrize(
    ("first", "worlds"),
    [
        (0, 50),
        pytest.param(50, 110, marks=pytest.mark.ci),
        pytest.param(1_000_000, 4_000, marks=pytest.mark.long),
    ],
)
def test_interpreter_compiled_function_and_table_agree(first: int, worlds: int) -> None:
    """25 expressions a seed, each against four ads one by one and side by side."""
    for seed in range(first, first + worlds):
        given = world(seed)
        my, others = parse_ad(given.my), [parse_ad(target) for target in given.targets]
        table = Table(others)
        for text in given.expressions:
            find = partial(_disagreement, my=my, others=others, table=table)
            if find(text) is not None:
                part = smallest(text, find)
                pytest.fail(f"seed {seed}: {part}: {find(part)}")


def _disagreement(text: str, my: Ad, others: list[Ad], table: Table) -> str | None:
    """What differs between the three, in one line; None when nothing does."""
    parsed = parse(text)
    values = [evaluate(parsed, my, other) for other in others]
    run = compiled(parsed, my)
    given = [run(other) for other in others]
    numbers = [float(n) for n in table.values(parsed, my)]
    holds = list(table.holds(parsed, my))
    for other, value, one, number, held in zip(others, values, given, numbers, holds, strict=True):
        if not is_same(one, value):
            return f"compiled {one!r}, evaluated {value!r} | {my} | {other}"
        if not is_same(number, _number(value)) or held != (value is True):
            return f"the table {number}, {held}, evaluated {value!r} | {my} | {other}"
    return None


def _number(value: Any) -> float:
    return float(value) if isinstance(value, bool | int | float) else math.nan


@pytest.mark.parametrize(
    ("first", "rounds"), [(0, 150), pytest.param(1_000_000, 10_000, marks=pytest.mark.long)]
)
def test_a_changed_table_is_as_one_made_anew(first: int, rounds: int) -> None:
    """A change reaches columns that are there, and those that are made later."""
    for seed in range(first, first + rounds):
        generator, rng = Generator(seed), random.Random(seed)
        parsed, own = parse(generator.expression()), Ad()
        table = Table([parse_ad(generator.plain_ad()) for _ in range(3)])
        for _ in range(rng.randint(0, 5)):
            table.holds(parsed, own)
            table.set(rng.choice(NAMES), rng.randrange(3), rng.choice([1, 2.5, "x", True]))

        assert list(table.holds(parsed, own)) == list(Table(table.ads).holds(parsed, own)), seed


@pytest.mark.parametrize(
    ("first", "rounds"), [(0, 250), pytest.param(1_000_000, 10_000, marks=pytest.mark.long)]
)
def test_what_is_not_among_the_references_makes_no_difference(first: int, rounds: int) -> None:
    """So that jobs, or sites, that agree on the references can be matched once."""
    tried = 0
    for seed in range(first, first + rounds):
        generator = Generator(seed)
        parsed, own = parse(generator.expression()), parse_ad(generator.ad())
        other = parse_ad(generator.plain_ad())
        for name in NAMES:
            if {name.lower(), "*"} & references(parsed, own):
                continue
            tried += 1
            changed = other.with_attribute(name, "changed")
            assert is_same(evaluate(parsed, own, changed), evaluate(parsed, own, other)), seed
    assert tried > rounds


def test_an_expression_printed_parses_back() -> None:
    for seed in range(400):
        parsed = parse(Generator(seed).expression())

        again = parse(str(parsed))
        assert again == parsed, seed
        assert again.root == parsed.root
        assert hash(again) == hash(parsed)


def test_results_kept_for_functions_follow_changes_of_ads_and_differ_by_literal() -> None:
    """
    A table that has answered many jobs says what a new one says.

    Results of functions are kept for later jobs. An attribute that changed, an own attribute of
    the same name, a literal that only Python takes for equal, and rows that did not matter to an
    earlier job must not bring back an old result.
    """
    sites = [Ad({"n": i % 4, "s": f"site{i % 5}", "l": ["a", "b"][: i % 3]}) for i in range(20)]
    table = Table(sites)
    owners = [Ad({}), Ad({"s": "site1"}), parse_ad("s = other.n")]
    texts = [
        'n < 2 && regexp("[12]", s)',
        'regexp("[12]", s)',
        'member("a", other.l) || n > 2',
        'strcat(n, "x") == "1x"',
        *(f'strcat({one}, s) == "{one}site1"' for one in ("1", "1.0", "true")),
        *(f'strcat(s, "{n}") == "site2{n}"' for n in range(70)),
    ]
    for change in range(3):
        for own in owners:
            for text in (*texts, *texts[:8]):
                expression = parse(text)
                expected = [evaluate(expression, own, ad) is True for ad in table.ads]
                assert list(table.holds(expression, own)) == expected, (change, own, text)
        table.set("s", change, "site2")
        table.set("l", change, ["b", "a"])
