"""Auctions come out as the textbook says, forward and in reverse."""

import math
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.market.trading import NOW, UNITS, WANTED, manager, only, server
from tests.thoroughness import examples

from bursar.market.negotiation.auction import Auctioneer
from bursar.market.negotiation.auctioneers import (
    DutchAuctioneer,
    EnglishAuctioneer,
    SealedAuctioneer,
)
from bursar.market.trade_messages import Bid, MessageExchange, RejectBid, TradeMessage
from bursar.market.trade_server import BargainingRules
from bursar.model.money import Refusal

SAME_TIME = msgspec.structs.replace(WANTED, latest=WANTED.earliest + WANTED.seconds)

valuations = st.lists(st.integers(0, 60), min_size=1, max_size=6)
reserves = st.integers(0, 40)


@dataclass
class Outcome:
    """Who won at which price, checked to be what every party knows."""

    winner: int | None
    price: int | None


def sold(auctioneer: Auctioneer, values: list[int]) -> Outcome:
    """An owner's auction among buyers with these valuations, in the order they are called."""
    owner = server()
    buyers = [manager(name) for name in auctioneer.parties]
    for buyer, value in zip(buyers, values, strict=True):
        buyer.join("lot", "uni", value)
    exchange = MessageExchange([owner, *buyers])
    opened = owner.auction(auctioneer, NOW)
    assert not isinstance(opened, Refusal)
    exchange.deliver(opened, NOW)
    while not auctioneer.is_over:
        exchange.tick(owner.next_tick())
    bought = [(i, a) for i, buyer in enumerate(buyers) for a in buyer.agreements]
    assert [a for _, a in bought] == list(owner.agreements)
    assert len(owner.capacity.commitments) == len(bought) <= 1
    for i, agreement in bought:
        assert agreement.terms.amount == auctioneer.price
        return Outcome(i, agreement.terms.amount)
    return Outcome(None, None)


def bought(auctioneer: Auctioneer, values: list[int]) -> Outcome:
    """A buyer's reverse auction among owners who would do it for these amounts at the least."""
    buyer = manager()
    # 400 processor-seconds at value / 400 micro-units each.
    owners = [
        server(name, base=value / 400 / UNITS, bargaining=BargainingRules(floor=1.0))
        for name, value in zip(auctioneer.parties, values, strict=True)
    ]
    exchange = MessageExchange([buyer, *owners])
    exchange.deliver(buyer.auction(auctioneer, NOW), NOW)
    while not auctioneer.is_over:
        exchange.tick(buyer.next_tick())
    deals = [(i, a) for i, owner in enumerate(owners) for a in owner.agreements]
    assert [a for _, a in deals] == list(buyer.agreements)
    for i, agreement in deals:
        assert agreement.terms.amount == auctioneer.price
        return Outcome(i, agreement.terms.amount)
    return Outcome(None, None)


def names(values: list[int]) -> list[str]:
    return [f"p{i}" for i in range(len(values))]


def sealed(values: list[int], reserve: int, **settings) -> SealedAuctioneer:
    me = "ann" if settings.get("reverse") else "uni"
    return SealedAuctioneer(
        me, "lot", names(values), WANTED, reserve=reserve, closes=NOW + 60, **settings
    )


@given(valuations, reserves)
@settings(max_examples=examples(30))
def test_first_price_goes_to_the_highest_bid_that_meets_the_reserve(
    values: list[int], reserve: int
) -> None:
    outcome = sold(sealed(values, reserve), values)

    best = max(values)
    expected = Outcome(values.index(best), best) if best >= reserve else Outcome(None, None)
    assert outcome == expected


@given(valuations, reserves)
@settings(max_examples=examples(30))
def test_vickreys_winner_pays_the_second_price(values: list[int], reserve: int) -> None:
    """Or the reserve, where that is more."""
    outcome = sold(sealed(values, reserve, second_price=True), values)

    best = max(values)
    second = sorted([reserve, *values])[-2]  # the best is one of the values, or nothing is sold
    expected = (
        Outcome(values.index(best), max(second, reserve))
        if best >= reserve
        else Outcome(None, None)
    )
    assert outcome == expected


@given(valuations, st.integers(0, 60), st.integers(0, 5), reserves)
@settings(max_examples=examples(40))
def test_nobody_gains_by_not_bidding_its_valuation_in_vickreys_auction(
    values: list[int], bid: int, who: int, reserve: int
) -> None:
    who %= len(values)

    def gain(bids: list[int]) -> int:
        outcome = sold(sealed(bids, reserve, second_price=True), bids)
        return values[who] - outcome.price if outcome.winner == who else 0

    assert gain([*values[:who], bid, *values[who + 1 :]]) <= gain(values)


@given(valuations, reserves)
@settings(max_examples=examples(40))
def test_sealed_reverse_auctions_go_to_the_lowest(values: list[int], reserve: int) -> None:
    best = min(values)
    first = bought(sealed(values, reserve, reverse=True), values)
    vickrey = bought(sealed(values, reserve, reverse=True, second_price=True), values)

    if best > reserve:
        assert first == vickrey == Outcome(None, None)
    else:
        assert first == Outcome(values.index(best), best)
        assert vickrey == Outcome(values.index(best), sorted([reserve, *values])[1])


@given(valuations, reserves, st.integers(1, 15), st.booleans())
@settings(max_examples=examples(30))
def test_english_ends_at_most_one_increment_from_the_second_valuation(
    values: list[int], reserve: int, increment: int, reverse: bool
) -> None:
    """With one of the best within an increment; never beyond the reserve."""
    auctioneer = EnglishAuctioneer(
        "ann" if reverse else "uni",
        "lot",
        names(values),
        WANTED,
        reserve=reserve,
        increment=increment,
        quiet=30.0,
        opened=NOW,
        reverse=reverse,
    )
    outcome = (bought if reverse else sold)(auctioneer, values)

    sign = -1 if reverse else 1
    ranked = sorted((sign * value for value in values), reverse=True)
    least = sign * reserve
    if ranked[0] < least:
        assert outcome == Outcome(None, None)
        return
    price = sign * outcome.price
    second = max(least, ranked[1]) if len(ranked) > 1 else least
    assert least <= price <= sign * values[outcome.winner]
    assert price <= second + increment
    assert price > second - increment
    assert ranked[0] - sign * values[outcome.winner] < increment


def clock(*, step: int = 5, every: float = 10.0, opened: float = NOW) -> DutchAuctioneer:
    """A price that falls from 70 to 50."""
    return DutchAuctioneer(
        "uni", "lot", ["a"], WANTED, first=70, reserve=50, step=step, every=every, opened=opened
    )


@pytest.mark.parametrize(("step", "every"), [(0, 10.0), (5, 0.0), (5, math.nan)])
def test_a_clock_that_stands_still_is_refused(step: int, every: float) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        clock(step=step, every=every)


@pytest.mark.parametrize(("opened", "every", "periods"), [(0.0, 0.7, 3), (10.0, 0.3, 2)])
def test_the_price_falls_at_a_multiple_of_the_period_whatever_rounding_makes_of_it(
    opened: float, every: float, periods: int
) -> None:
    """The moment divided by the period is a little less than a whole number."""
    auctioneer = clock(every=every, opened=opened)

    assert auctioneer.price_at(opened + periods * every) == 70 - 5 * periods


@given(valuations, reserves, st.integers(1, 15), st.booleans())
@settings(max_examples=examples(30))
def test_dutch_ends_at_the_first_price_of_the_clock_that_somebody_takes(
    values: list[int], reserve: int, step: int, reverse: bool
) -> None:
    first = 0 if reverse else 70
    auctioneer = DutchAuctioneer(
        "ann" if reverse else "uni",
        "lot",
        names(values),
        WANTED,
        first=first,
        reserve=reserve,
        step=step,
        every=10.0,
        opened=NOW,
        reverse=reverse,
    )
    outcome = (bought if reverse else sold)(auctioneer, values)

    clock = (
        [*range(first, reserve, step), reserve]
        if reverse
        else [*range(first, reserve, -step), reserve]
    )

    def takes(value: int, price: int) -> bool:
        return value <= price if reverse else value >= price

    expected = Outcome(None, None)
    for price in clock:
        takers = [i for i, value in enumerate(values) if takes(value, price)]
        if takers:
            expected = Outcome(takers[0], price)
            break
    assert outcome == expected


def bid(number: int, amount: int, sender: str = "p0", currency: str = "SU") -> Bid:
    return Bid(deal="lot", sender=sender, to="uni", number=number, amount=amount, currency=currency)


@pytest.mark.parametrize(
    ("message", "now"),
    [
        (bid(1, 90, currency="EUR"), NOW),
        (bid(1, 90, sender="eve"), NOW),
        (bid(2, 90), NOW),
        (bid(1, 90), NOW + 60),
    ],
    ids=["another currency", "a stranger", "out of order", "late"],
)
def test_a_bid_that_cannot_be_taken_changes_nothing(message: TradeMessage, now: float) -> None:
    auctioneer = sealed([0, 0], 0)
    auctioneer.open(NOW)
    assert only(auctioneer.receive(bid(1, 5, sender="p1"), NOW) or (None,)) is None

    answer = only(auctioneer.receive(message, now))

    assert answer.reason
    auctioneer.tick(NOW + 60)
    assert (auctioneer.winner, auctioneer.price) == ("p1", 5)


def test_a_bidder_has_one_sealed_bid() -> None:
    auctioneer = sealed([0, 0], 0)
    auctioneer.open(NOW)
    auctioneer.receive(bid(1, 5), NOW)

    assert isinstance(only(auctioneer.receive(bid(2, 9), NOW)), RejectBid)
    auctioneer.tick(NOW + 60)
    assert auctioneer.price == 5


def test_an_auction_of_more_than_is_free_is_refused() -> None:
    owner = server(processors=3)

    assert isinstance(
        owner.auction(
            SealedAuctioneer("uni", "lot", ["p0"], WANTED, reserve=0, closes=NOW + 60), NOW
        ),
        Refusal,
    )


def test_what_is_auctioned_cannot_be_sold_elsewhere_until_it_is_over() -> None:
    owner = server(processors=4)
    owner.auction(sealed([0], 10), NOW)
    exchange = MessageExchange([owner, ann := manager()])

    exchange.deliver(ann.ask("d", ["uni"], SAME_TIME, NOW), NOW)
    assert ann.quotes("d", NOW) == ()
    owner.tick(NOW + 60)
    exchange.deliver(ann.ask("e", ["uni"], SAME_TIME, NOW + 60), NOW + 60)
    assert len(ann.quotes("e", NOW + 60)) == 1
