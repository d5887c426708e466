"""The board keeps the last status of each site in columns, ads and a table that agree."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.broker.matchmaking.broker_rig import site, status

from bursar.broker.information_index import StatusReadings
from bursar.broker.matchmaking.status_table import SiteRegistry, SiteStatusTable
from bursar.classad import UNDEFINED, parse
from bursar.classad.evaluation import EVERYTHING
from bursar.model.matching import SiteStatus, StatusReading

SITES = (
    site("a", 4, attributes={"color": "red", "requirements": "other.memory < 5"}),
    site("b", 8, attributes={"color": "blue", "waiting": 77}),
)


def board() -> SiteStatusTable:
    return SiteStatusTable(SiteRegistry(SITES))


def columns(found: SiteStatusTable) -> list[tuple[float, ...]]:
    return [tuple(float(value) for value in row) for row in zip(*found.published, strict=True)]


def test_nothing_is_known_at_first() -> None:
    found = board()
    assert found.statuses == [None, None]
    assert not found.is_open.any()
    assert (found.openings, found.tick) == (0, 0)
    assert columns(found)[0][0] == -math.inf
    assert math.isnan(columns(found)[0][1])
    assert columns(found)[0][2:] == (0.0, 0.0)


def test_columns_hold_what_each_site_said_last() -> None:
    """And nothing of a site that is known no more; the other's stay."""
    found = board()
    found.put(0, status("a", 30.0, 3, 12.0, waiting=5))
    found.put(1, status("b", 0.0, 1, 13.0, waiting=6))
    assert columns(found) == [(12.0, 30.0, 3.0, 5.0), (13.0, 0.0, 1.0, 6.0)]
    found.put(0, None)
    at, wait, free, _ = columns(found)[0]
    assert (at, free) == (-math.inf, 0.0)
    assert math.isnan(wait)
    assert columns(found)[1] == (13.0, 0.0, 1.0, 6.0)
    assert found.statuses[0] is None


@pytest.mark.parametrize("wait", [None, -1.0, math.nan])
def test_what_is_no_wait_is_an_unknown_one(wait: float | None) -> None:
    found = board()
    found.put(0, status("a", wait, 3))
    assert math.isnan(found.published.wait[0])


def test_a_site_is_open_while_it_is_in_production() -> None:
    """Each change is counted once, and nothing else is."""
    found = board()
    told = [
        (0, status("a"), [True, False], 1),
        (0, status("a", 9.0), [True, False], 1),
        (1, status("b", state="PRODUCTION"), [True, True], 2),
        (0, status("a", state="Draining"), [False, True], 3),
        (0, status("a", state="Closed"), [False, True], 3),
        (1, None, [False, False], 4),
        (0, None, [False, False], 4),
    ]
    for i, said, is_open, openings in told:
        found.put(i, said)
        assert found.is_open.tolist() == is_open
        assert found.openings == openings
    assert found.tick == len(told)


def test_the_same_status_again_is_no_change() -> None:
    found = board()
    said = status("a")
    found.put(0, said)
    found.put(0, said)
    assert found.tick == 1
    found.put(0, replace(said))  # another one, which says the same
    assert found.tick == 2
    assert found.openings == 1


@pytest.mark.parametrize("own", [True, False])
def test_an_index_takes_the_place_of_what_was_known(own: bool) -> None:
    """Our own index, or any mapping; sites that it does not know are gone, others are not ours."""

    def readings(*said: SiteStatus) -> StatusReadings | dict[str, StatusReading]:
        by_name = {each.site: each for each in said}
        if own:
            return StatusReadings(by_name, 0.0)
        return {name: StatusReading(each, 1.0) for name, each in by_name.items()}

    found = board()
    a, b = status("a", 1.0), status("b", 2.0)
    found.learn(readings(a, b, status("z")))
    assert found.statuses == [a, b]
    assert found.tick == 2
    found.learn(readings(b))
    assert found.statuses == [None, b]
    assert found.tick == 3
    assert found.is_open.tolist() == [False, True]


def test_an_attribute_has_the_tick_at_which_it_changed_last() -> None:
    """At any site; to another value or another type; not where it stays as it was."""
    found = board()
    assert found.stamp(["waiting"]) == 0
    found.put(0, status("a", waiting=1, running=1))
    assert found.stamp(["waiting"]) == 1
    found.put(1, status("b", waiting=1, running=1))
    assert found.stamp(["waiting"]) == 2
    found.put(0, status("a", waiting=2, running=1))
    assert (found.stamp(["waiting"]), found.stamp(["running"])) == (3, 2)
    assert found.stamp(["running", "waiting"]) == found.stamp(["waiting", "running"]) == 3
    assert found.stamp(["color"]) == found.stamp([]) == 0
    found.put(0, status("a", waiting=2, running=1, attributes={"color": 1}))
    assert found.stamp(["color"]) == 4
    found.put(0, status("a", waiting=2, running=1, attributes={"color": True}))
    assert found.stamp(["color"]) == 5
    found.put(0, status("a", waiting=2, running=1, attributes={"color": True}))
    assert found.stamp(["color"]) == 5
    assert found.stamp([EVERYTHING]) == found.stamp(["color", EVERYTHING]) == 6
    found.put(0, None)
    assert found.stamp(["color"]) == found.stamp(["waiting"]) == 7


def test_an_ad_is_what_stays_what_changes_and_what_a_site_asks() -> None:
    found = board()
    found.put(0, status("a", 5.0, waiting=3, attributes={"Color": "green"}))
    one, other = found.ad(0), found.ad(1)
    assert one["color"] == "green"
    assert one["waiting"] == 3
    assert one["processors"] == 4
    assert one["requirements"] == parse("other.memory < 5")
    assert other["color"] == "blue"
    assert other["waiting"] == 77
    assert "requirements" not in other
    found.put(0, None)
    assert found.ad(0)["color"] == "red"
    assert "waiting" not in found.ad(0)


def row(found: SiteStatusTable, name: str) -> list[object]:
    """What the table has of an attribute, by site."""
    table = found.table({name})
    return [table.ads[i].get(name, UNDEFINED) for i in range(len(SITES))]


def test_the_table_follows_what_is_looked_at() -> None:
    """An attribute that is not said any more is the site's own, or none."""
    found = board()
    assert row(found, "color") == ["red", "blue"]
    found.put(0, status("a", waiting=3, attributes={"color": "green"}))
    found.put(1, status("b", waiting=4, running=9))
    assert row(found, "waiting") == [3, 4]
    assert row(found, "color") == ["green", "blue"]
    assert row(found, "running") == [0, 9]
    found.put(1, None)
    found.put(0, status("a", waiting=6))
    assert row(found, "waiting") == [6, 77]
    assert row(found, "color") == ["red", "blue"]
    assert row(found, "running") == [0, UNDEFINED]


@pytest.mark.parametrize("name", [EVERYTHING, "requirements"])
@pytest.mark.parametrize("before", ["waiting", EVERYTHING, "requirements"])
def test_a_table_for_everything_is_up_to_date_in_all(before: str, name: str) -> None:
    """Whether it was made for one attribute, or for all."""
    found = board()
    found.put(0, status("a", waiting=1))
    first = found.table({before})
    found.put(0, status("a", waiting=2, running=5, free=3))
    table = found.table({name})
    assert table is first
    ad = table.ads[0]
    assert (ad["waiting"], ad["running"], ad["freeprocessors"]) == (2, 5, 3)


def test_a_table_that_is_made_late_has_what_was_said_before() -> None:
    found = board()
    found.put(1, status("b", waiting=4))
    assert row(found, "waiting") == [UNDEFINED, 4]
    assert np.isnan(found.published.wait[0])
