"""Token buckets and rooms."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.service.http.api_rig import Clock

from bursar.dispatch.handshakes import subnet_of
from bursar.service.config import HttpLimits
from bursar.service.http.limiters import ConcurrencyLimit, DynamicThreshold, TokenBuckets


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    """
    Three at once, then one every half second; whoever waits as told gets one.
    """
    clock = Clock()
    buckets = TokenBuckets(lambda who: (2.0, 3.0), clock)

    assert [buckets.take("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert buckets.take("b") == 0.0
    clock.now += 0.25
    assert buckets.take("a") == pytest.approx(0.25)
    clock.now += 0.25
    assert buckets.take("a") == 0.0
    clock.now += 100.0
    assert [buckets.take("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]


@settings(derandomize=True)
@given(st.lists(st.floats(0, 3), max_size=60), st.floats(0.1, 5), st.floats(1, 5))
def test_no_time_sees_more_than_burst_and_rate_allow(
    pauses: list[float], rate: float, burst: float
) -> None:
    """
    The law of the bucket: in any time t no more than burst + rate * t tokens.
    """
    clock = Clock()
    buckets = TokenBuckets(lambda who: (rate, burst), clock)
    taken = []
    for pause in pauses:
        clock.now += pause
        if not buckets.take("a"):
            taken.append(clock.now)

    for first in range(len(taken)):
        for last in range(first, len(taken)):
            seconds = taken[last] - taken[first]
            assert last - first + 1 <= burst + rate * seconds + 1e-6


def test_the_longest_unused_bucket_is_forgotten() -> None:
    """
    Addresses of strangers do not fill the memory.
    """
    buckets = TokenBuckets(lambda who: (1.0, 1.0), Clock(), most=3)

    for who in ("a", "b", "c", "a", "d"):
        buckets.take(who)

    assert len(buckets) == 3
    assert buckets.take("a") > 0  # used since, so it was kept
    assert buckets.take("b") == 0  # forgotten, so it is full


def test_a_room_has_so_many_places_for_each() -> None:
    """
    One user's requests take no place of another's, and a place comes back once.
    """
    room = ConcurrencyLimit(lambda who: 2)

    assert [room.enter("a"), room.enter("a"), room.enter("a"), room.enter("b")] == [
        True,
        True,
        False,
        True,
    ]
    room.leave("a")
    assert room.enter("a")


def test_some_have_more_or_fewer_places() -> None:
    """
    Their own number counts; nobody else's changes by it.
    """
    room = ConcurrencyLimit(lambda who: {"few": 1, "many": 3}.get(who, 2))

    assert [room.enter("few") for _ in range(2)] == [True, False]
    assert [room.enter("many") for _ in range(4)] == [True, True, True, False]
    assert [room.enter("other") for _ in range(3)] == [True, True, False]


def test_a_pace_and_a_room_may_change() -> None:
    """
    For those who are there, too; what is taken stays taken.
    """
    clock = Clock()
    paces = {"a": (1.0, 3.0), "b": (1.0, 3.0)}
    most = {"a": 2, "b": 2}
    buckets, room = TokenBuckets(paces.__getitem__, clock), ConcurrencyLimit(most.__getitem__)
    assert [buckets.take(who) for who in ("a", "a", "b")] == [0.0] * 3
    assert [room.enter("a") for _ in range(2)] == [True, True]

    paces |= {"a": (0.5, 1.0), "b": (4.0, 5.0)}
    most["a"] = 1

    assert [buckets.take("a") for _ in range(2)] == [0.0, 2.0]
    clock.now += 10.0
    assert [buckets.take("b") for _ in range(6)] == [0.0] * 5 + [0.25]
    room.leave("a")
    assert [room.enter(who) for who in ("a", "b", "b", "b")] == [False, True, True, False]
    room.leave("a")
    assert room.enter("a")


def test_nobody_alone_takes_what_all_share() -> None:
    """
    One has half of it at most; others find room then, each as much as it leaves.
    """
    shares = DynamicThreshold(100)

    assert shares.take("a", 30)
    assert shares.take("a", 20)
    assert not shares.take("a", 1)
    assert shares.take("b", 25)
    assert not shares.take("b", 1)
    assert shares.take("c", 12)
    shares.give_back("a", 50)
    assert shares.take("b", 18)
    for who, size in (("b", 43), ("c", 12)):
        shares.give_back(who, size)
    assert shares.take("a", 50)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::2%eth0", "2001:db8::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("", ""),
    ],
)
def test_who_has_many_addresses_counts_once(address: str, expected: str) -> None:
    """
    A network of IPv6 has more addresses than there are buckets.
    """
    assert subnet_of(address) == expected


def test_limits_are_positive() -> None:
    """
    A limit of 0 would refuse everything, or nothing.
    """
    with pytest.raises(ValueError, match="rate must be positive"):
        HttpLimits(rate=0)
