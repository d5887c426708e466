"""Statuses, questions and answers survive the wire, and what is none is said to be none."""

import json
import math
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.directory.sites import Clock, said
from tests.broker.directory.test_impossible_status import GOOD, NOW

from bursar.broker.directory.index_messages import (
    LARGEST_PUBLISH,
    Answer,
    IndexMessage,
    Publish,
    Query,
    answer_query,
    decode,
    encode,
    publish_message,
    status_of,
)
from bursar.broker.directory.information_index import InformationIndex
from bursar.model.errors import InputError

PUBLISH = publish_message(GOOD, NOW)
EACH = [
    PUBLISH,
    publish_message(said("a"), 0.0),
    Query(),
    Query(sites=("a", "b"), version=7),
    Answer(version=7),
    Answer(version=7, known=(PUBLISH, PUBLISH)),
]


@pytest.mark.parametrize("message", EACH, ids=lambda message: type(message).__name__)
def test_every_message_survives_the_wire(message: IndexMessage) -> None:
    assert decode(encode(message), type(message)) == message


def test_ages_cross_the_wire_and_moments_do_not() -> None:
    """The receiver's clock is 1,000 s ahead of the sender's, and it does not matter."""
    received = status_of(decode(encode(PUBLISH), Publish), NOW + 1000)
    assert received == replace(GOOD, at=GOOD.at + 1000)


def edited(**fields: object) -> bytes:
    return json.dumps(json.loads(encode(PUBLISH)) | fields).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"\xff"',
        b"[" * 10_000,
        b" " * (LARGEST_PUBLISH + 1),
        encode(Query()),
        edited(kind="gift"),
        edited(age=-1),
        edited(age=None),
        edited(age=1e300),
        edited(age="now"),
        edited(site=None),
        edited(free_processors=1.5),
        edited(free_processors="5"),
        edited(free_processors=True),
        edited(traversal_time="soon"),
        edited(attributes=[]),
        edited(attributes={"x": [1]}),
        edited(attributes={"x": None}),
        edited(more=1),
        encode(PUBLISH).replace(b"99.5", b"1e999").replace(b"0.5", b"NaN"),
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(InputError, match=r"^message: .+"):
        decode(data, Publish)


@pytest.mark.parametrize(
    "status", [replace(GOOD, traversal_time=math.inf), replace(GOOD, attributes={"x": math.nan})]
)
def test_a_number_that_json_does_not_have_is_not_sent_as_none(status: object) -> None:
    with pytest.raises(InputError, match="expected a finite number"):
        encode(publish_message(status, NOW))  # type: ignore[arg-type]


@given(st.binary(max_size=300), st.integers(0, 200), st.sampled_from([Publish, Query, Answer]))
@settings(max_examples=300)
def test_noise_is_refused_and_nothing_else(noise: bytes, at: int, kind: type[IndexMessage]) -> None:
    """Alone, and in the middle of what would be a message."""
    whole = encode(EACH[-1])
    for data in (noise, whole[:at] + noise + whole[at:]):
        with suppress(InputError):
            assert isinstance(decode(data, kind), kind)


def test_an_index_says_what_it_knows_and_nothing_where_that_is_known() -> None:
    clock = Clock()
    directory = InformationIndex(clock=clock)
    for site in "ab":
        directory.publish(said(site))
    clock.now = 5.0

    first = answer_query(Query(), directory)
    assert [(one.site, one.age) for one in first.known or ()] == [("a", 5.0), ("b", 5.0)]
    assert answer_query(Query(version=first.version), directory).known is None
    some = answer_query(Query(sites=("b", "c"), version=first.version - 1), directory)
    assert [one.site for one in some.known or ()] == ["b"]
