"""What sites say is believed where it can be true."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.directory.sites import said

from bursar.broker.information_index import LARGEST, validate_status
from bursar.model.matching import SiteStatus
from bursar.model.money import Refusal

NOW = 100.0
GOOD = SiteStatus(
    site="a",
    at=99.5,
    free_processors=3,
    running=1,
    waiting=2,
    traversal_time=0.0,
    free_memory=10**12,
    attributes={"OpSys": "LINUX", "Load": 0.5, "Nodes": 12, "Shared": True},
)


@pytest.mark.parametrize("number", [LARGEST, -LARGEST])
def test_whole_numbers_are_believed_as_far_as_computing_with_them_is_exact(number: int) -> None:
    status = replace(GOOD, attributes={"files": number})
    beyond = replace(GOOD, attributes={"files": number + (1 if number > 0 else -1)})

    assert validate_status(status, site="a", now=NOW) is status
    assert isinstance(validate_status(beyond, site="a", now=NOW), Refusal)


@pytest.mark.parametrize("status", [GOOD, said("a"), replace(GOOD, at=NOW, traversal_time=7)])
def test_what_can_be_true_is_believed_as_it_is(status: SiteStatus) -> None:
    assert validate_status(status, site="a", now=NOW) is status


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"site": "b"}, "speaks for 'b'"),
        ({"site": None}, "speaks for a NoneType"),
        ({"at": math.nan}, "names no moment, but nan"),
        ({"at": "noon"}, "names no moment, but 'noon'"),
        ({"at": 130.0}, "speaks of a time 30 s ahead"),
        ({"free_processors": -1}, "free_processors: expected a count, got -1"),
        ({"free_processors": 1.5}, "free_processors: expected a count, got 1.5"),
        ({"free_processors": True}, "free_processors: expected a count, got True"),
        ({"free_processors": 10**400}, "free_processors: expected a count, got a number too large"),
        ({"free_processors": 17}, "free_processors: it has 16, got 17"),
        ({"running": "many"}, "running: expected a count, got 'many'"),
        ({"waiting": None}, "waiting: expected a count, got a NoneType"),
        ({"traversal_time": -0.1}, "traversal_time: expected seconds, got -0.1"),
        ({"traversal_time": math.inf}, "traversal_time: expected seconds, got inf"),
        ({"traversal_time": math.nan}, "traversal_time: expected seconds, got nan"),
        ({"traversal_time": True}, "traversal_time: expected seconds, got True"),
        ({"traversal_time": 10**400}, "traversal_time: expected seconds, got a number too large"),
        ({"free_memory": -5}, "free_memory: expected bytes, got -5"),
        ({"state": 7}, "state: expected a text, got 7"),
        ({"attributes": [1]}, "attributes: expected names and values, got a list"),
        ({"attributes": {"a b": 1}}, "attributes: 'a b' is not a name"),
        ({"attributes": {1: 1}}, "attributes: 1 is not a name"),
        ({"attributes": {"Mpi": 1, "MPI": 2}}, "attributes: 'MPI' is there twice"),
        ({"attributes": {"load": math.nan}}, "attributes.load: expected a finite value, got nan"),
        ({"attributes": {"load": [1]}}, "attributes.load: expected a finite value, got a list"),
        ({"attributes": {"x": "y" * 2000}}, "attributes.x: expected a finite value, got 'yyy"),
        ({"attributes": {f"x{i}": i for i in range(300)}}, "attributes: expected at most 256"),
    ],
    ids=str,
)
def test_what_cannot_be_true_is_refused_in_one_short_line(
    changes: dict[str, Any], reason: str
) -> None:
    answer = validate_status(replace(GOOD, **changes), site="a", now=NOW, processors=16)
    assert isinstance(answer, Refusal)
    assert answer.reason.startswith(reason)
    assert len(answer.reason) < 120
    assert answer.reason.isprintable()


@pytest.mark.parametrize("answer", [None, 5, "idle", {"site": "a"}, math.nan, GOOD.__class__])
def test_what_is_no_status_is_refused(answer: object) -> None:
    assert isinstance(validate_status(answer, site="a", now=NOW), Refusal)


ANY = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.lists(st.none()),
)


@given(
    st.fixed_dictionaries(
        {name: ANY | st.just(getattr(GOOD, name)) for name in SiteStatus.__dataclass_fields__}
        | {"attributes": ANY | st.dictionaries(st.text(max_size=3), ANY, max_size=3)}
    )
)
def test_whatever_it_is_it_is_sound_or_refused(fields: dict[str, Any]) -> None:
    """And what is sound can be counted and computed with."""
    answer = validate_status(SiteStatus(**fields), site="a", now=NOW)
    if isinstance(answer, SiteStatus):
        numbers = [answer.at, answer.free_processors, answer.running, answer.waiting]
        numbers += [answer.traversal_time or 0, answer.free_memory or 0]
        assert np.isfinite(np.array(numbers, dtype=np.float64)).all()
        assert all(0 <= number <= LARGEST for number in numbers[1:4])
    else:
        assert answer.reason.isprintable()
