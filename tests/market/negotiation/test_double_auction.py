"""The double auction makes every trade worth making, and balances its budget."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.market.trading import NOW, WANTED, only
from tests.thoroughness import examples

from bursar.market.negotiation.clearing import LimitOrder, clear
from bursar.market.trade_messages import Ask, Bid, InformOutcome, RejectBid, TradeMessage
from bursar_devtools.double_auction import DoubleAuctioneer

orders = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 30)), max_size=5)


def sides(bids: list[tuple[int, int]], asks: list[tuple[int, int]]) -> tuple[list, list]:
    return (
        [LimitOrder(f"b{i}", count, amount) for i, (count, amount) in enumerate(bids)],
        [LimitOrder(f"a{i}", count, amount) for i, (count, amount) in enumerate(asks)],
    )


@given(orders, orders, st.floats(0, 1))
@settings(max_examples=examples(100))
def test_trades_are_efficient_and_the_price_suits_everyone(
    bids: list, asks: list, k: float
) -> None:
    """Surplus is the most there is: units paired one by one, best with best."""
    wanted, offered = sides(bids, asks)
    clearing = clear(wanted, offered, k)
    value = {order.party: order.amount for order in (*wanted, *offered)}
    size = {order.party: order.processors for order in (*wanted, *offered)}

    high = sorted((a for n, a in bids for _ in range(n)), reverse=True)
    low = sorted(a for n, a in asks for _ in range(n))
    most = sum(max(0, b - a) for b, a in zip(high, low, strict=False))
    assert most == sum(t.processors * (value[t.buyer] - value[t.owner]) for t in clearing.trades)
    traded = dict.fromkeys(value, 0)
    for trade in clearing.trades:
        assert value[trade.owner] <= clearing.price <= value[trade.buyer]
        assert trade.amount == clearing.price * trade.processors
        traded[trade.owner] += trade.processors
        traded[trade.buyer] += trade.processors
    assert all(0 <= traded[party] <= size[party] for party in value)
    if clearing.price is not None:  # who is left over does not wish to trade at the price
        for order in wanted:
            assert traded[order.party] == order.processors or order.amount <= clearing.price
        for order in offered:
            assert traded[order.party] == order.processors or order.amount >= clearing.price


def test_k_moves_the_price_from_buyers_to_owners() -> None:
    """Bids 10, 8, 3 meet asks 2, 5, 9: two trade, any price from 5 to 8 clears."""
    wanted, offered = sides([(1, 10), (1, 8), (1, 3)], [(1, 2), (1, 5), (1, 9)])

    assert [clear(wanted, offered, k).price for k in (0.0, 0.5, 1.0)] == [5, 6, 8]


def test_of_equal_orders_the_first_received_trades() -> None:
    wanted, offered = sides([(1, 5), (1, 5)], [(1, 5)])

    assert [t.buyer for t in clear(wanted, offered).trades] == ["b0"]


def auctioneer() -> DoubleAuctioneer:
    one = DoubleAuctioneer("hall", "d", ["b0", "b1"], ["a0"], WANTED, closes=NOW + 60)
    one.open(NOW)
    return one


def order(kind: type, sender: str, amount: int, number: int = 1, **fields) -> TradeMessage:
    settings = {"processors": 2, "currency": "SU", **fields}
    return kind(deal="d", sender=sender, to="hall", number=number, amount=amount, **settings)


def test_each_party_is_told_its_own_trades() -> None:
    hall = auctioneer()
    for message in (order(Bid, "b0", 6), order(Ask, "a0", 4), order(Bid, "b1", 1)):
        assert hall.receive(message, NOW) == ()

    told = {m.to: m for m in hall.tick(NOW + 60)}

    assert {to: (m.won, m.amount, m.processors) for to, m in told.items()} == {
        "b0": (True, 5, 2),
        "b1": (False, 5, None),
        "a0": (True, 5, 2),
    }
    assert all(isinstance(m, InformOutcome) for m in told.values())
    assert told["b0"].trades == told["a0"].trades
    assert hall.tick(NOW + 61) == ()


@pytest.mark.parametrize(
    ("message", "now"),
    [
        (order(Ask, "b0", 4), NOW),
        (order(Bid, "a0", 4), NOW),
        (order(Bid, "b0", 4, currency="EUR"), NOW),
        (order(Bid, "b0", 4, processors=None), NOW),
        (order(Bid, "b0", 4), NOW + 60),
    ],
    ids=["a buyer asks", "an owner bids", "currency", "no processors", "late"],
)
def test_an_order_that_cannot_be_taken_is_left_out(message: TradeMessage, now: float) -> None:
    hall = auctioneer()

    assert isinstance(only(hall.receive(message, now)), RejectBid)
    hall.tick(NOW + 60)
    assert hall.clearing.trades == ()


def test_a_k_outside_its_range_is_refused() -> None:
    for k in itertools.chain((-0.1, 1.1), (float("nan"),)):
        with pytest.raises(ValueError, match="k must be 0 to 1"):
            clear([], [], k)
