"""Pricing rules in sites files: what they mean, and errors at their fields."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from bursar.formats.decoding import decode
from bursar.formats.offer_tables import parse_days, parse_hours
from bursar.formats.site_tables import LocalSiteTable
from bursar.formats.units import parse_use
from bursar.model.errors import InputError
from bursar.model.money import (
    Adjusting,
    Advance,
    Bulk,
    Calendar,
    Demand,
    ForGroup,
    Loyalty,
    Pricing,
)

TEXT = """
[[site.uni.price]]
kind = "calendar"
zone = "Australia/Melbourne"
days = "Mon-Fri"
hours = "09:00-18:00"
factor = 2.0

[[site.uni.price]]
kind = "demand"
points = [[0.0, 0.8], ["50%", 1.0], [1.0, 2.0]]

[[site.uni.price]]
kind = "adjusting"
target = 0.7
gain = 0.5
least = 0.5
most = 2
every = "10 min"

[[site.uni.price]]
kind = "bulk"
steps = [["100 core-hours", 0.9], [720000, 0.8]]

[[site.uni.price]]
kind = "loyalty"
steps = [[1000, 0.95]]

[[site.uni.price]]
kind = "advance"
steps = [["1d", 0.9], ["7d", 0.8]]

[[site.uni.price]]
kind = "group"
groups = ["physics"]
factor = 0.5
"""


def priced(tables: list[Any], unit_price: float = 1.0) -> Pricing | None:
    """Return the pricing of a site with these rules."""
    raw = {"kind": "local", "processors": 1, "unit_price": unit_price, "price": tables}
    return decode(raw, LocalSiteTable, "site.uni").facts("uni", Path()).pricing


def test_each_kind_means_its_rule() -> None:
    tables = tomllib.loads(TEXT)["site"]["uni"]["price"]

    assert priced(tables, 1.5) == Pricing(
        1.5,
        (
            Calendar(
                zone="Australia/Melbourne",
                days=frozenset(range(5)),
                begin=32_400,
                end=64_800,
                factor=2.0,
            ),
            Demand(points=((0.0, 0.8), (0.5, 1.0), (1.0, 2.0))),
            Adjusting(target=0.7, gain=0.5, least=0.5, most=2.0, every=600.0),
            Bulk(steps=((360_000.0, 0.9), (720_000.0, 0.8))),
            Loyalty(steps=((1_000_000_000, 0.95),)),
            Advance(steps=((86_400.0, 0.9), (604_800.0, 0.8))),
            ForGroup(groups=frozenset({"physics"}), factor=0.5),
        ),
    )


def test_days_and_hours_have_the_whole_week_as_default() -> None:
    rule = Calendar(zone="UTC", days=frozenset(range(7)), factor=2.0)

    assert priced([{"kind": "calendar", "zone": "UTC", "factor": 2.0}]) == Pricing(1.0, (rule,))


@pytest.mark.parametrize(
    ("text", "days"),
    [("Sat,Sun", {5, 6}), ("Mon,Wed-Fri", {0, 2, 3, 4}), ("fri - mon", {4, 5, 6, 0}), ("Tue", {1})],
)
def test_days_are_named_or_spanned(text: str, days: set[int]) -> None:
    assert parse_days(text) == days


def test_hours_may_go_over_midnight_and_to_the_days_end() -> None:
    assert parse_hours("22:00-06:30") == (79_200, 23_400)
    assert parse_hours("00:00 - 24:00") == (0, 86_400)


def test_use_is_processor_seconds_or_says_its_unit() -> None:
    assert [parse_use(v) for v in (90, "2 core-hours", "1.5 cpu-day")] == [90, 7_200, 129_600]


CALENDAR = {"kind": "calendar", "zone": "UTC", "factor": 2.0}


@pytest.mark.parametrize(
    ("table", "where"),
    [
        (3, "site.uni.price[0]"),
        ({}, "site.uni.price[0].kind"),
        ({"kind": "calender"}, "site.uni.price[0].kind"),
        ({"kind": ["calendar"]}, "site.uni.price[0].kind"),
        (CALENDAR | {"zone": "Mars/Olympus"}, "site.uni.price[0].zone"),
        (CALENDAR | {"days": "Mo"}, "site.uni.price[0].days"),
        (CALENDAR | {"days": "Mon-Wed-Fri"}, "site.uni.price[0].days"),
        (CALENDAR | {"hours": "9-17"}, "site.uni.price[0].hours"),
        (CALENDAR | {"hours": "09:00-09:00"}, "site.uni.price[0].hours"),
        (CALENDAR | {"hours": "09:61-10:00"}, "site.uni.price[0].hours"),
        (CALENDAR | {"hours": "24:00-25:00"}, "site.uni.price[0].hours"),
        (CALENDAR | {"factor": -1.0}, "site.uni.price[0].factor"),
        (CALENDAR | {"factor": float("nan")}, "site.uni.price[0].factor"),
        (CALENDAR | {"factor": float("inf")}, "site.uni.price[0].factor"),
        (CALENDAR | {"colour": 1}, "site.uni.price[0].colour"),
        ({"kind": "demand", "points": []}, "site.uni.price[0].points"),
        ({"kind": "demand", "points": [[2.0, 1.0]]}, "site.uni.price[0].points[0][0]"),
        ({"kind": "bulk", "steps": [["1 mile", 0.9]]}, "site.uni.price[0].steps[0][0]"),
        ({"kind": "bulk", "steps": [[5, 0.9], [3, 0.8]]}, "site.uni.price[0].steps"),
        ({"kind": "advance", "steps": [["soon", 0.9]]}, "site.uni.price[0].steps[0][0]"),
        ({"kind": "loyalty", "steps": [[-1, 0.9]]}, "site.uni.price[0].steps[0][0]"),
        ({"kind": "group", "groups": [], "factor": 0.5}, "site.uni.price[0].groups"),
        (
            {"kind": "adjusting", "target": 2, "gain": 1, "least": 0, "most": 2, "every": 9},
            "site.uni.price[0].target",
        ),
        (
            {"kind": "adjusting", "target": 1, "gain": 1, "least": 0, "most": 2, "every": 0},
            "site.uni.price[0].every",
        ),
    ],
)
def test_an_error_is_told_at_its_field(table: Any, where: str) -> None:
    with pytest.raises(InputError) as caught:
        priced([table])

    assert caught.value.where == where
    assert "\n" not in caught.value.message


def test_a_second_adjusting_rule_is_refused() -> None:
    rule = {"kind": "adjusting", "target": 1, "gain": 1, "least": 0, "most": 2, "every": 9}

    with pytest.raises(InputError, match="at most one") as caught:
        priced([rule, rule])
    assert caught.value.where == "site.uni.price"
