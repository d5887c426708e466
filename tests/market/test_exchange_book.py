"""An exchange's book: what is cleared follows from the orders, and suits everybody who trades."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.thoroughness import examples

from bursar.market.exchange_book import (
    NOT_CONFIRMED,
    NOT_DELIVERED,
    ExchangeLot,
    ExchangeOrder,
    ExchangeTrade,
    OrderSide,
    clear_book,
    lot_after,
    on_seller_step,
    on_time_passed,
)
from bursar.model.money import Refusal

LOT = ExchangeLot(closes=1_000.0, start=1_100.0, seconds=50.0, rule="double")
SHARED = replace(LOT, rule="share")


@st.composite
def books(draw: st.DrawFn) -> list[ExchangeOrder]:
    """Orders of a double auction, in the sequence of their numbers."""
    sides = draw(st.lists(st.sampled_from(["bid", "ask"]), max_size=10))
    return [
        order(number, side, draw(st.integers(1, 5)), draw(st.integers(1, 20)))
        for number, side in enumerate(sides, 1)
    ]


def order(
    number: int, side: OrderSide, processors: int, amount: int, lot: ExchangeLot = LOT
) -> ExchangeOrder:
    name = f"{side}{number}"
    return ExchangeOrder(
        id=name,
        number=number,
        user=f"user of {name}",
        key="k",
        side=side,
        lot=lot,
        processors=processors,
        amount=amount,
    )


@given(books(), st.floats(0, 1), st.randoms(use_true_random=False))
@settings(max_examples=examples(200))
def test_nobody_trades_beyond_a_limit_and_nothing_is_lost(
    book: list[ExchangeOrder], k: float, chance: random.Random
) -> None:
    """One price for all, within all limits that trade; the sequence of restored orders is none."""
    lot = replace(LOT, k=k)
    book = [replace(one, lot=lot) for one in book]
    record, trades = clear_book(lot, book, 1_000.0)
    known = {one.id: one for one in book}
    traded = dict.fromkeys(known, 0)
    for trade in trades:
        bid, ask = known[trade.bid], known[trade.ask]
        assert (bid.side, ask.side) == ("bid", "ask")
        assert (trade.buyer, trade.seller) == (bid.user, ask.user)
        assert record.price is not None
        assert ask.amount <= record.price <= bid.amount
        # What the buyer pays the seller gets: there is no other amount.
        assert trade.amount == record.price * trade.processors
        traded[bid.id] += trade.processors
        traded[ask.id] += trade.processors
    assert all(traded[name] <= one.processors for name, one in known.items())
    assert record.processors == sum(trade.processors for trade in trades)
    assert record.amount == sum(trade.amount for trade in trades)
    assert len({trade.id for trade in trades}) == len(trades)
    for one in book:  # what is set aside covers what is bought
        spent = sum(trade.amount for trade in trades if trade.bid == one.id)
        assert spent <= one.hold or one.side == "ask"
    shuffled = list(book)
    chance.shuffle(shuffled)
    assert clear_book(lot, shuffled, 1_000.0) == (record, trades)


@given(
    st.lists(st.integers(1, 10**9), max_size=6),
    st.lists(st.integers(1, 9), max_size=5),
)
@settings(max_examples=examples(200))
def test_shares_give_every_processor_away_and_conserve_money(
    bids: list[int], asks: list[int]
) -> None:
    """A buyer pays its whole bid or, without a processor, nothing; owners get what buyers pay."""
    book = [order(n, "bid", 0, amount, SHARED) for n, amount in enumerate(bids, 1)]
    book += [order(n, "ask", count, 0, SHARED) for n, count in enumerate(asks, len(bids) + 1)]
    record, trades = clear_book(SHARED, book, 1_000.0)
    assert record.processors == (sum(asks) if bids else 0)
    for one in book:
        mine = [t for t in trades if one.id in (t.bid, t.ask)]
        if one.side == "bid":
            assert sum(t.amount for t in mine) == (one.amount if mine else 0)
        else:
            assert sum(t.processors for t in mine) == (one.processors if bids else 0)
    if bids and asks:
        # In proportion, but for a whole processor of the largest remainders.
        for one in book[: len(bids)]:
            got = sum(t.processors for t in trades if t.bid == one.id)
            assert abs(got - sum(asks) * one.amount / sum(bids)) < 1


def test_withdrawn_orders_and_lots_that_have_begun_are_not_traded() -> None:
    bid, ask = order(1, "bid", 1, 5), order(2, "ask", 1, 3)
    assert len(clear_book(LOT, [bid, ask], 1_099.0)[1]) == 1
    assert clear_book(LOT, [bid, ask], 1_100.0)[1] == []
    assert clear_book(LOT, [replace(bid, state="withdrawn"), ask], 1_000.0)[1] == []


def test_clearings_are_at_multiples_of_the_period() -> None:
    lot = lot_after(7_200.0, every=3_600.0, confirm=600.0, seconds=60.0, rule="double", k=0.5)
    assert (lot.closes, lot.start, lot.end) == (10_800.0, 11_400.0, 11_460.0)


def matched() -> ExchangeTrade:
    (trade,) = clear_book(LOT, [order(1, "bid", 1, 5), order(2, "ask", 1, 3)], 1_000.0)[1]
    return trade


def test_a_trade_is_confirmed_delivered_and_paid_once() -> None:
    """Each step again changes nothing; steps out of order are refused."""
    trade = matched()
    assert isinstance(on_seller_step(trade, "delivered", 1_001.0, agreement="a"), Refusal)
    confirmed = on_seller_step(trade, "confirmed", 1_001.0)
    assert isinstance(confirmed, ExchangeTrade)
    assert on_seller_step(confirmed, "confirmed", 1_120.0) == confirmed
    assert confirmed.held == trade.amount
    delivered = on_seller_step(confirmed, "delivered", 1_120.0, agreement="a")
    assert isinstance(delivered, ExchangeTrade)
    assert (delivered.state, delivered.held) == ("delivered", 0)
    assert on_seller_step(delivered, "delivered", 2_000.0, agreement="a") == delivered
    for step, agreement in (("delivered", "b"), ("refused", "")):
        again = on_seller_step(delivered, step, 1_120.0, agreement=agreement)
        assert isinstance(again, Refusal)


def test_a_seller_that_is_late_loses_the_trade() -> None:
    """Unconfirmed at the start, undelivered at the end; what comes later is refused."""
    trade = matched()
    assert on_time_passed(trade, 1_099.0) == trade
    undone = on_time_passed(trade, 1_100.0)
    assert (undone.state, undone.reason, undone.held) == ("undone", NOT_CONFIRMED, 0)
    late = on_seller_step(trade, "confirmed", 1_100.0)
    assert late == Refusal(f"the trade is undone: {NOT_CONFIRMED}", final=True)
    confirmed = on_seller_step(trade, "confirmed", 1_001.0)
    assert isinstance(confirmed, ExchangeTrade)
    assert on_time_passed(confirmed, 1_149.0) == confirmed
    assert on_time_passed(confirmed, 1_150.0).reason == NOT_DELIVERED
