"""The higher the index, the older what is read there."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.directory.sites import Clock, Site
from tests.thoroughness import examples

from bursar.broker.status_feeds import IndexHierarchy, IndexLevel, build_hierarchy
from bursar.model.errors import InputError

LEVELS = (
    IndexLevel(every=10.0, delay=1.0),
    IndexLevel(every=30.0, delay=2.0),
    IndexLevel(every=60.0, delay=4.0),
)
PLACES = {"bari": ("bari", "italy"), "pisa": ("pisa", "italy"), "lyon": ("lyon", "france")}


def _grid(clock: Clock, **more: object) -> tuple[IndexHierarchy, dict[str, Site]]:
    sites = {name: Site(name, clock) for name in PLACES}
    return build_hierarchy(LEVELS, sites, clock=clock, places=PLACES, **more), sites  # type: ignore[arg-type]


def _turn_to(made: IndexHierarchy, clock: Clock, until: float) -> None:
    """The clock goes on from round to round."""
    while made.top.next_due <= until:
        clock.now = made.top.next_due
        made.top.refresh(clock.now)
    clock.now = until


def test_ages_add_up_on_the_way_to_the_top() -> None:
    """
    By hand, at second 100. A site was asked at 90, seen a second later: 10 s old. A country
    copied that at 90, when it still knew what had been said at 80, and shows it since 92:
    20 s. The top copied from it at 60; then a country knew what it had taken at 30, which a
    site had said at 20: 80 s.
    """
    clock = Clock()
    made, _ = _grid(clock)

    _turn_to(made, clock, 100.0)

    ages = [
        {name: {s: r.age for s, r in index.read().items()} for name, index in level.items()}
        for level in made.levels
    ]
    assert ages == [
        {"bari": {"bari": 10.0}, "pisa": {"pisa": 10.0}, "lyon": {"lyon": 10.0}},
        {"italy": {"bari": 20.0, "pisa": 20.0}, "france": {"lyon": 20.0}},
        {"": {"bari": 80.0, "pisa": 80.0, "lyon": 80.0}},
    ]
    assert [next(iter(level.values())).oldest for level in made.levels] == [11.0, 43.0, 107.0]


def test_a_dead_site_goes_from_all_levels_at_once() -> None:
    """An entry expires by what the site said last, however long it took to get there."""
    clock = Clock()
    told = []
    made, sites = _grid(
        clock, expiry=120.0, on_fault=lambda site, reason: told.append((site, reason))
    )
    _turn_to(made, clock, 200.0)
    sites["bari"].dead = True

    _turn_to(made, clock, 320.0)
    assert "bari" in made.levels[0]["bari"].read()
    _turn_to(made, clock, 320.5)

    for index in (made.levels[0]["bari"], made.levels[1]["italy"], made.top):
        assert "bari" not in index.read()
    assert set(made.top.read()) == {"pisa", "lyon"}
    assert told == [("bari", "bari: is not there")]


DURATION = st.integers(1, 20)


@given(
    levels=st.lists(st.tuples(DURATION, st.integers(0, 15), st.integers(0, 10)), min_size=1),
    looks=st.lists(st.integers(0, 300), min_size=1, max_size=30),
)
@settings(max_examples=examples(150))
def test_an_age_is_at_least_the_delays_and_at_most_these_and_the_intervals(
    levels: list[tuple[int, int, int]], looks: list[int]
) -> None:
    """On every level, at whatever moment; and none is younger than on the level below."""
    clock = Clock()
    made = build_hierarchy(
        [IndexLevel(every=every, delay=delay, first=first) for every, delay, first in levels],
        {"a": Site("a", clock)},
        clock=clock,
        expiry=math.inf,
    )
    for now in sorted(looks):
        _turn_to(made, clock, float(now))
        below, delays = 0.0, 0
        for index, (_, delay, _) in zip((level[""] for level in made.levels), levels, strict=True):
            delays += delay
            reading = index.read().get("a")
            if reading is None:
                break
            assert max(below, delays) <= reading.age <= index.oldest
            below = reading.age


def test_equal_worlds_give_equal_traces() -> None:
    def trace() -> list[tuple[float, str, float, int]]:
        clock = Clock()
        made, sites = _grid(clock)
        found = []
        for now in range(0, 400, 7):
            for number, site in enumerate(sites.values()):
                site.free = (now * (number + 3)) % 11
            _turn_to(made, clock, float(now))
            found += [
                (clock.now, site, reading.age, reading.status.free_processors)
                for site, reading in made.top.read().items()
            ]
        return found

    assert trace() == trace()


def test_sites_without_places_have_one_index_on_each_level() -> None:
    clock = Clock()
    made = build_hierarchy(LEVELS[:2], {"a": Site("a", clock), "b": Site("b", clock)}, clock=clock)
    assert [set(level) for level in made.levels] == [{""}, {""}]


@pytest.mark.parametrize(
    ("places", "problem"),
    [
        ({}, "bari: has no place"),
        (PLACES | {"pisa": ("pisa",)}, "pisa: expected a place on 2 levels, got 1"),
        (PLACES | {"pisa": ("bari", "france")}, '"bari" belongs to "italy" and "france"'),
    ],
)
def test_a_place_that_is_none_is_refused(places: dict, problem: str) -> None:
    clock = Clock()
    sites = {name: Site(name, clock) for name in PLACES}
    with pytest.raises(InputError, match=problem):
        build_hierarchy(LEVELS, sites, clock=clock, places=places)


def test_a_hierarchy_of_nothing_is_refused() -> None:
    clock = Clock()
    for levels, sites in ((LEVELS, {}), ((), {"a": Site("a", clock)})):
        with pytest.raises(InputError, match="at least one"):
            build_hierarchy(levels, sites, clock=clock)


def test_levels_whose_entries_would_expire_under_way_are_refused() -> None:
    with pytest.raises(InputError, match="up to 107 s old, got 100 s"):
        _grid(Clock(), expiry=100.0)
