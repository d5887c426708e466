"""What pricing policies come to, also where clocks change."""

import math
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.market.pricing import PriceQuery, adjusted, next_change, unit_price
from bursar.model.money import (
    Adjusting,
    Advance,
    Bulk,
    Calendar,
    Demand,
    ForGroup,
    Loyalty,
    Pricing,
    Rule,
)

MELBOURNE = "Australia/Melbourne"
EVERY_DAY = frozenset(range(7))
WEEKDAYS = frozenset(range(5))


def at(text: str, zone: str = MELBOURNE) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def price(*rules: Rule, start: float = 0.0, **asked) -> float:
    defaults = {"processors": 1, "seconds": 1.0, "now": 0.0, **asked}
    return unit_price(Pricing(1.0, rules), PriceQuery(start=start, **defaults))


PEAK = Calendar(zone=MELBOURNE, days=WEEKDAYS, begin=9 * 3600, end=18 * 3600, factor=2.0)


def test_peak_hours_are_those_of_the_owners_clock() -> None:
    """2026-01-14 is a Wednesday, 2026-01-17 a Saturday."""
    assert price(PEAK, start=at("2026-01-14T08:59:59")) == 1.0
    assert price(PEAK, start=at("2026-01-14T09:00")) == 2.0
    assert price(PEAK, start=at("2026-01-14T17:59:59")) == 2.0
    assert price(PEAK, start=at("2026-01-14T18:00")) == 1.0
    assert price(PEAK, start=at("2026-01-17T12:00")) == 1.0


def test_hours_over_midnight_belong_to_the_day_they_begin_on() -> None:
    """Friday night reaches into Saturday; Sunday night is not among the days."""
    night = Calendar(zone=MELBOURNE, days=WEEKDAYS, begin=22 * 3600, end=6 * 3600, factor=0.5)

    assert price(night, start=at("2026-01-16T23:00")) == 0.5
    assert price(night, start=at("2026-01-17T05:59")) == 0.5
    assert price(night, start=at("2026-01-17T06:00")) == 1.0
    assert price(night, start=at("2026-01-19T05:00")) == 1.0


def test_peak_hours_follow_the_change_of_the_clock() -> None:
    """On 2026-04-05 at 3:00 Melbourne goes from UTC+11 to UTC+10: nine is an hour later in UTC."""
    sundays = Calendar(zone=MELBOURNE, days=EVERY_DAY, begin=9 * 3600, end=18 * 3600, factor=2.0)
    saturday = next_change(Pricing(1.0, (sundays,)), at("2026-04-04T08:00"))
    sunday = next_change(Pricing(1.0, (sundays,)), at("2026-04-05T08:00"))

    assert sunday - saturday == 25 * 3600
    assert saturday == at("2026-04-04T09:00")


def test_hours_that_begin_in_the_hour_left_out_begin_when_the_clock_jumps() -> None:
    """On 2026-10-04 Melbourne goes from 2:00 to 3:00; half past two never comes."""
    rule = Calendar(zone=MELBOURNE, days=EVERY_DAY, begin=9_000, end=12_600, factor=2.0)
    jump = at("2026-10-04T03:00")

    assert next_change(Pricing(1.0, (rule,)), at("2026-10-04T01:00")) == jump
    assert price(rule, start=jump - 1) == 1.0
    assert price(rule, start=jump) == 2.0
    assert next_change(Pricing(1.0, (rule,)), jump) == jump + 1_800


def test_hours_that_begin_in_the_hour_that_comes_twice_begin_twice() -> None:
    """On 2026-04-05 at 3:00 Melbourne goes back to 2:00; half past two comes twice."""
    rule = Calendar(zone=MELBOURNE, days=EVERY_DAY, begin=9_000, end=12_600, factor=2.0)
    pricing = Pricing(1.0, (rule,))
    first = next_change(pricing, at("2026-04-05T01:00"))
    back = next_change(pricing, first)
    second = next_change(pricing, back)

    assert [first, back, second] == [first, first + 1_800, first + 3_600]
    assert next_change(pricing, second) == at("2026-04-05T03:30")


@given(
    st.integers(0, 95),
    st.integers(1, 96),
    st.sets(st.integers(0, 6), min_size=1),
    st.sampled_from([MELBOURNE, "Europe/Berlin", "America/New_York", "UTC"]),
    st.sampled_from(["2026-03-06", "2026-03-27", "2026-04-03", "2026-10-02", "2026-10-30"]),
    st.integers(0, 400),
)
@settings(max_examples=examples(40))
def test_the_price_stays_until_the_next_change_and_changes_then(
    begin: int, end: int, days: set[int], zone: str, day: str, quarter: int
) -> None:
    """Against a look at every quarter of an hour, around changes of the clock."""
    if begin == end:
        end = begin + 1
    rule = Calendar(zone=zone, days=frozenset(days), begin=begin * 900, end=end * 900, factor=3.0)
    now = at(day, "UTC") + quarter * 900
    change = next_change(Pricing(1.0, (rule,)), now)
    until = now + 9 * 86_400 if math.isinf(change) else change

    present = price(rule, start=now)
    moment = now
    while moment < until:
        assert price(rule, start=moment) == present
        moment += 900
    if math.isfinite(change):
        assert price(rule, start=change) != present


def test_a_rule_for_all_hours_never_changes() -> None:
    always = Calendar(zone=MELBOURNE, days=EVERY_DAY, factor=2.0)

    assert next_change(Pricing(1.0, (always,)), at("2026-04-01T00:00")) == math.inf
    assert next_change(Pricing(1.0), 0.0) == math.inf


def test_demand_is_straight_between_its_points_and_level_outside() -> None:
    demand = Demand(points=((0.2, 0.8), (0.6, 1.0), (1.0, 2.0)))

    assert price(demand, utilisation=0.0) == 0.8
    assert price(demand, utilisation=0.4) == pytest.approx(0.9)
    assert price(demand, utilisation=0.6) == 1.0
    assert price(demand, utilisation=0.8) == pytest.approx(1.5)
    assert price(demand, utilisation=1.0) == 2.0


def test_steps_hold_from_their_bound_on() -> None:
    bulk = Bulk(steps=((100.0, 0.9), (1_000.0, 0.8)))
    loyalty = Loyalty(steps=((10, 0.5),))
    advance = Advance(steps=((60.0, 0.7),))

    assert price(bulk, processors=9, seconds=11.0) == 1.0
    assert price(bulk, processors=10, seconds=10.0) == 0.9
    assert price(bulk, processors=10, seconds=100.0) == 0.8
    assert [price(loyalty, paid=paid) for paid in (9, 10)] == [1.0, 0.5]
    assert [price(advance, start=start) for start in (59.0, 60.0)] == [1.0, 0.7]


def test_a_group_in_common_is_enough() -> None:
    rule = ForGroup(groups=frozenset({"physics", "maths"}), factor=0.5)

    assert price(rule, groups=frozenset({"maths", "law"})) == 0.5
    assert price(rule, groups=frozenset({"law"})) == 1.0
    assert price(rule) == 1.0


def test_rules_multiply() -> None:
    """2.0 (peak) x 0.9 (bulk) x 0.5 (group) = 0.9."""
    rules = (
        PEAK,
        Bulk(steps=((1.0, 0.9),)),
        ForGroup(groups=frozenset({"a"}), factor=0.5),
    )

    assert price(*rules, start=at("2026-01-14T12:00"), groups=frozenset({"a"})) == pytest.approx(
        0.9
    )


@given(st.lists(st.floats(0, 1), max_size=50), st.floats(0, 5))
def test_supply_and_demand_stay_within_their_bounds(used: list[float], gain: float) -> None:
    """Above the target the factor never falls, below it never rises."""
    rule = Adjusting(target=0.7, gain=gain, least=0.5, most=3.0, every=600.0)
    factor = 1.0
    for utilisation in used:
        after = adjusted(rule, factor, utilisation)
        assert 0.5 <= after <= 3.0
        assert after >= factor if utilisation >= 0.7 else after <= factor
        factor = after
    assert price(rule, adjusted=factor) == factor


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf])
def test_a_price_or_factor_that_is_no_number_or_negative_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        Pricing(wrong)
    with pytest.raises(ValueError, match="must not be negative"):
        Calendar(zone="UTC", days=EVERY_DAY, factor=wrong)
    with pytest.raises(ValueError, match="must not be negative"):
        Bulk(steps=((1.0, wrong),))
    with pytest.raises(ValueError, match="must ascend"):
        Advance(steps=((wrong, 1.0),))
    with pytest.raises(ValueError, match="utilisation"):
        PriceQuery(processors=1, seconds=1.0, start=0.0, now=0.0, utilisation=wrong)


def test_an_unknown_zone_is_refused() -> None:
    for zone in ("Mars/Olympus", "", "Australia", "../etc/passwd"):
        with pytest.raises(ValueError, match="unknown time zone"):
            Calendar(zone=zone, days=EVERY_DAY, factor=1.0)
