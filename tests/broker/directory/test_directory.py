"""The information index: what is in it, how old it is, and when it goes."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.directory.sites import Clock, Site, said
from tests.thoroughness import examples

from bursar.broker.information_index import InformationIndex
from bursar.broker.matchmaking.broker_interfaces import IndexReader
from bursar.model.errors import InputError
from bursar.model.money import Refusal


def test_every_reading_says_how_old_it_is() -> None:
    clock = Clock()
    directory = InformationIndex(clock=clock)
    index: IndexReader = directory
    assert index.read() == {}
    directory.publish(said("a"))
    clock.now = 7.0
    directory.publish(said("b", at=5.0, free=3))

    readings = directory.read()
    clock.now = 100.0

    assert {site: reading.age for site, reading in readings.items()} == {"a": 7.0, "b": 2.0}
    assert readings["b"].status.free_processors == 3
    assert [r.age for r in directory.read().values()] == [100.0, 95.0]
    assert "c" not in readings
    assert len(readings) == 2


def test_the_version_changes_when_something_does_and_only_then() -> None:
    """Also when something expires, of which nobody tells."""
    clock = Clock()
    directory = InformationIndex(clock=clock, expiry=10.0)
    seen = [directory.version]
    for at, events in ((0.0, said("a")), (1.0, said("b", 1.0)), (2.0, said("a", 2.0))):
        clock.now = at
        directory.publish(events)
        directory.read()
        seen.append(directory.version)
        directory.publish(events)
        directory.publish(replace(events, at=events.at - 0.5))
        assert directory.version == seen[-1]
    clock.now = 11.0
    assert directory.version == seen[-1]
    assert set(directory.read()) == {"a", "b"}
    clock.now = 11.5
    seen.append(directory.version)
    assert set(directory.read()) == {"a"}
    clock.now = 20.0
    seen.append(directory.version)
    assert not directory.read()

    assert seen == sorted(set(seen))


def test_what_was_read_stays_as_it_was_read() -> None:
    clock = Clock()
    directory = InformationIndex(clock=clock)
    directory.publish(said("a"))
    before = directory.read()
    assert directory.read().statuses is before.statuses
    clock.now = 1.0
    directory.publish(said("a", 1.0, free=5))
    directory.publish(said("b", 1.0))

    assert {site: r.status.free_processors for site, r in before.items()} == {"a": 1}
    assert set(directory.read()) == {"a", "b"}


def test_what_was_said_later_stays() -> None:
    """Messages overtake each other; of one moment, the last that comes counts."""
    clock = Clock(10.0)
    directory = InformationIndex(clock=clock)
    for status in (said("a", 5.0, 5), said("a", 4.0, 4), said("a", 5.0, 6)):
        assert directory.publish(status) is None
    assert directory.read()["a"].status.free_processors == 6


def test_a_value_lives_until_it_is_asked_for_anew() -> None:
    """
    Asked every 60 s, it takes 5 s to be seen: by hand, what is read at some moments, of a site
    whose free processors are the seconds of its clock.
    """
    clock = Clock()
    site = Site("a", clock)
    directory = InformationIndex(clock=clock, sources={"a": site}, every=60.0, delay=5.0)

    read = {}
    for now in (0, 4, 5, 59, 60, 64, 65, 124, 125):
        clock.now = float(now)
        site.free = now
        directory.refresh(clock.now)
        reading = directory.read().get("a")
        read[now] = None if reading is None else (reading.status.free_processors, reading.age)

    assert site.asked == [0.0, 60.0, 124.0]
    assert read == {
        0: None,
        4: None,
        5: (0, 5.0),
        59: (0, 59.0),
        60: (0, 60.0),
        64: (0, 64.0),
        65: (60, 5.0),
        124: (60, 64.0),
        125: (60, 65.0),
    }
    assert directory.oldest == 65.0
    assert directory.next_due == 180.0  # the round of 120 was late, and moves no other


def test_a_dead_site_is_there_until_its_entry_expires_and_is_told_of_once() -> None:
    clock = Clock()
    told: list[tuple[str, str]] = []
    sites = {name: Site(name, clock) for name in "ab"}
    directory = InformationIndex(
        clock=clock,
        sources=sites,
        every=10.0,
        expiry=25.0,
        on_fault=lambda site, reason: told.append((site, reason)),
    )

    there = {}
    while clock.now <= 80.0:
        sites["a"].dead = 5.0 < clock.now < 55.0
        directory.refresh(clock.now)
        there[clock.now] = set(directory.read())
        clock.now += 5.0

    assert there[0.0] == there[25.0] == {"a", "b"}
    assert there[30.0] == there[55.0] == {"b"}
    assert there[60.0] == there[80.0] == {"a", "b"}
    assert told == [("a", "a: is not there")]
    assert not directory.faults
    sites["b"].dead = True
    clock.now = 90.0
    directory.refresh(90.0)
    assert told[1:] == [("b", "b: is not there")]
    assert directory.faults == {"b": "b: is not there"}


def test_a_source_that_says_garbage_or_nothing_is_as_good_as_dead() -> None:
    clock = Clock()
    answers = {"a": said("b"), "b": None, "c": said("c", math.nan), "d": said("d", 1.0)}
    told = []
    directory = InformationIndex(
        clock=clock,
        sources={name: lambda name=name: answers[name] for name in answers},  # type: ignore[misc]
        every=60.0,
        on_fault=lambda site, reason: told.append(f"{site} {reason}"),
    )
    directory.refresh(0.0)

    assert not directory.read()
    assert told == [
        "a speaks for 'b'",
        "b does not answer",
        "c names no moment, but nan",
        "d speaks of a time 1 s ahead",
    ]


def test_only_sites_that_are_known_may_publish_and_none_more_than_it_has() -> None:
    """Where it is said which there are."""
    directory = InformationIndex(clock=Clock(), processors={"a": 4})
    assert directory.publish(said("a", free=4)) is None
    for status in (said("b"), said("a", free=5), "a", None, said(["a"])):  # type: ignore[arg-type]
        assert isinstance(directory.publish(status), Refusal)
    assert directory.read()["a"].status.free_processors == 4
    assert list(directory.faults) == ["a"]


def test_an_index_that_nobody_reads_does_not_fill_up() -> None:
    clock = Clock()
    directory = InformationIndex(clock=clock, sources={"a": Site("a", clock)}, every=1.0, delay=3.0)
    for now in range(100):
        clock.now = float(now)
        directory.refresh(clock.now)
    assert len(directory._coming) == 3


@given(
    every=st.integers(1, 20),
    delay=st.integers(0, 30),
    silent=st.lists(st.tuples(st.integers(0, 100), st.integers(1, 60)), max_size=3),
    looks=st.lists(st.integers(0, 200), max_size=20),
)
@settings(max_examples=examples(200))
def test_no_age_is_below_the_delay_or_above_the_expiry(
    every: int, delay: int, silent: list[tuple[int, int]], looks: list[int]
) -> None:
    """And that of a site that answers all the time is at most interval and delay."""
    clock = Clock()
    sites = {"a": Site("a", clock), "b": Site("b", clock)}
    directory = InformationIndex(
        clock=clock, sources=sites, every=every, delay=delay, expiry=every + delay + 5.0
    )
    for now in sorted({*range(0, 200, every), *looks}):
        clock.now = float(now)
        sites["b"].dead = any(begin <= now < begin + length for begin, length in silent)
        directory.refresh(clock.now)
        readings = directory.read()
        assert all(delay <= r.age <= every + delay + 5 for r in readings.values())
        if now >= delay:
            assert readings["a"].age <= every + delay


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({"expiry": 0.0}, "expiry: must be positive"),
        ({"every": -1.0}, "every: must be positive"),
        ({"delay": math.inf}, "delay: must be finite"),
        ({"sources": {"a": said}, "every": 290.0, "delay": 11.0}, "up to 301 s old, got 300 s"),
    ],
)
def test_what_makes_no_sense_is_refused(values: dict, where: str) -> None:
    with pytest.raises(InputError, match=where):
        InformationIndex(clock=Clock(), **values)
