"""Proportional share gives out whole processors, as near to the bids as can be."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st
from tests.market.trading import NOW, UNITS, WANTED, manager, server

from bursar.market.negotiation.auctioneers import ShareAuctioneer, proportional_shares
from bursar.market.trade_messages import MessageExchange


@given(st.integers(0, 100), st.lists(st.integers(0, 10**15), max_size=8))
def test_shares_are_whole_and_within_one_of_the_proportion(
    processors: int, amounts: list[int]
) -> None:
    bids = {f"p{i}": amount for i, amount in enumerate(amounts)}
    given_out = proportional_shares(processors, bids)

    total = sum(amounts)
    assert sum(given_out.values()) == (processors if total else 0)
    for bidder, bid in bids.items():
        exact = Fraction(processors * bid, total or 1)
        assert abs(given_out[bidder] - exact) < 1
        assert bid > 0 or given_out[bidder] == 0


def test_what_is_left_over_goes_by_largest_remainders() -> None:
    """Of 10: 4.7, 3.2 and 2.1 are 4, 3 and 2; the one left goes to the remainder 0.7."""
    assert proportional_shares(10, {"a": 47, "b": 32, "c": 21}) == {"a": 5, "b": 3, "c": 2}


def test_of_equal_remainders_the_first_received_goes_first() -> None:
    assert proportional_shares(1, {"a": 5, "b": 5}) == {"a": 1, "b": 0}


def test_each_pays_its_bid_and_who_gets_nothing_pays_nothing() -> None:
    """4 processors by bids of 30, 9 and 1: 3, 0.9 and 0.1, so 3, 1 and 0."""
    owner = server()
    buyers = [manager(name) for name in ("p0", "p1", "p2")]
    for buyer, value in zip(buyers, (30, 9, 1), strict=True):
        buyer.join("lot", "uni", value * UNITS)
    exchange = MessageExchange([owner, *buyers])
    auctioneer = ShareAuctioneer("uni", "lot", ["p0", "p1", "p2"], WANTED, closes=NOW + 60)
    exchange.deliver(owner.auction(auctioneer, NOW), NOW)

    exchange.tick(NOW + 60)

    assert [[(a.processors, a.terms.amount) for a in buyer.agreements] for buyer in buyers] == [
        [(3, 30 * UNITS)],
        [(1, 9 * UNITS)],
        [],
    ]
    assert len(owner.agreements) == 2
    assert owner.capacity.used(5_000.0) == 4
