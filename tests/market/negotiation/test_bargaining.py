"""Bargaining ends with a deal exactly when there is one to make."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.market.trading import NOW, WANTED, Shop, only
from tests.thoroughness import examples

from bursar.market.negotiation.bilateral import BargainingBuyer, BargainingOwner, Concession
from bursar.market.trade_messages import CounterOffer, FinalOffer, Offer, Reject, TradeMessage

amounts = st.integers(0, 1_000_000)
rounds = st.integers(2, 12)
betas = st.sampled_from([0.2, 1.0, 4.0])


def sides(owner: Concession, buyer: Concession) -> tuple[BargainingOwner, BargainingBuyer]:
    return (
        BargainingOwner(Shop(5), "d", "ann", concession=lambda terms: owner, patience=60.0),
        BargainingBuyer("ann", "d", "uni", WANTED, concession=buyer),
    )


def talk(owner: BargainingOwner, buyer: BargainingBuyer) -> list[TradeMessage]:
    """All they say to each other."""
    said = list(buyer.open(NOW))
    for message in said:
        said.extend((owner if message.to == "uni" else buyer).receive(message, NOW))
    return said


@given(amounts, amounts, amounts, amounts, rounds, rounds, betas, betas)
@settings(max_examples=examples(100))
def test_it_ends_with_a_deal_exactly_when_the_reserves_overlap(
    list_price: int,
    least: int,
    opening: int,
    most: int,
    owners_rounds: int,
    buyers_rounds: int,
    owners_beta: float,
    buyers_beta: float,
) -> None:
    """And then at a price that both reserves allow."""
    owner, buyer = sides(
        Concession(
            first=max(least, list_price), reserve=least, rounds=owners_rounds, beta=owners_beta
        ),
        Concession(first=min(most, opening), reserve=most, rounds=buyers_rounds, beta=buyers_beta),
    )

    talk(owner, buyer)

    assert owner.agreement == buyer.agreement
    assert (buyer.agreement is not None) == (least <= most)
    if buyer.agreement is not None:
        assert least <= buyer.agreement.terms.amount <= most
    else:
        assert (owner.state, buyer.state) == ("ended", "ended")


@given(amounts, amounts, rounds, betas)
def test_offers_move_steadily_from_the_first_to_the_reserve(
    first: int, reserve: int, count: int, beta: float
) -> None:
    concession = Concession(first=first, reserve=reserve, rounds=count, beta=beta)
    offers = [concession.offer(turn) for turn in range(count)]

    assert (offers[0], offers[-1]) == (first, reserve)
    assert offers == sorted(offers, reverse=first > reserve)


def test_a_boulware_concedes_later_than_a_conceder() -> None:
    """Half way the linear one is at 50; beta 0.5 at 25 (0.5 squared); beta 2 at 70 (root)."""
    half_way = [
        Concession(first=0, reserve=100, rounds=3, beta=beta).offer(1) for beta in (0.5, 1.0, 2.0)
    ]

    assert half_way == [25, 50, 70]


def opened() -> BargainingOwner:
    """An owner who asks 100 after an offer of 0, and goes down to 50."""
    owner, buyer = sides(
        Concession(first=100, reserve=50, rounds=3), Concession(first=0, reserve=200, rounds=3)
    )
    assert only(owner.receive(only(buyer.open(NOW)), NOW)).amount == 100
    return owner


HEAD = {"deal": "d", "sender": "ann", "to": "uni"}


@pytest.mark.parametrize(
    ("message", "now"),
    [
        (CounterOffer(**HEAD, number=2, amount=200, currency="EUR"), NOW),
        (CounterOffer(**HEAD, number=3, amount=200, currency="SU"), NOW),
        (FinalOffer(**HEAD, number=2, amount=200, currency="SU"), NOW + 60),
        (Offer(**HEAD, number=2, amount=200, currency="SU", template=WANTED), NOW),
    ],
    ids=["another currency", "out of order", "late", "opened twice"],
)
def test_an_offer_that_cannot_be_taken_leaves_the_owner_where_it_was(
    message: TradeMessage, now: float
) -> None:
    owner = opened()

    answer = only(owner.receive(message, now))

    assert isinstance(answer, Reject)
    assert (owner.state, owner.agreement) == ("offered", None)
    number = 2 if answer.number == 0 else 3
    counter = CounterOffer(**HEAD, number=number, amount=1, currency="SU")
    if now == NOW:
        assert only(owner.receive(counter, NOW)).amount == 75


def test_an_owner_says_once_when_it_bargains_no_more() -> None:
    owner = opened()

    assert owner.next_tick() == NOW + 60
    assert len(owner.tick(NOW + 60)) == 1
    assert owner.tick(NOW + 61) == ()
    assert owner.next_tick() == math.inf
