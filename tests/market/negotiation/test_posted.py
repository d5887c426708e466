"""Posted prices: a quote holds in time, and not after."""

import pytest
from tests.market.trading import NOW, UNITS, WANTED, Shop, only

from bursar.market.negotiation.bilateral import PostedBuyer, PostedOwner
from bursar.market.trade_messages import (
    Accept,
    Cancel,
    Confirm,
    Expire,
    PriceQuote,
    Reject,
    RequestQuote,
    TradeMessage,
)

HEAD = {"deal": "d", "sender": "ann", "to": "uni"}


def quoted(shop: Shop) -> tuple[PostedOwner, PostedBuyer]:
    """Both sides, with a quote between them."""
    owner = PostedOwner(shop, "d", "ann")
    buyer = PostedBuyer("ann", "d", "uni", WANTED)
    quote = only(owner.receive(only(buyer.open(NOW)), NOW))
    assert buyer.receive(quote, NOW) == ()
    return owner, buyer


def test_a_quote_accepted_in_time_is_a_deal_on_both_sides() -> None:
    shop = Shop(5 * UNITS)
    owner, buyer = quoted(shop)

    confirmed = only(owner.receive(only(buyer.accept(NOW + 599)), NOW + 599))
    buyer.receive(confirmed, NOW + 599)

    assert owner.agreement == buyer.agreement == shop.sold[0]
    assert buyer.agreement.terms.amount == 5 * UNITS


@pytest.mark.parametrize("ticked", [False, True])
def test_a_quote_accepted_after_its_expiry_is_refused(ticked: bool) -> None:
    shop = Shop(5)
    owner, buyer = quoted(shop)
    accept = only(buyer.accept(NOW + 599))
    if ticked:
        assert isinstance(only(owner.tick(NOW + 600)), Expire)
        assert owner.tick(NOW + 600) == ()

    answer = only(owner.receive(accept, NOW + 600))

    assert isinstance(answer, Reject)
    assert answer.reason == "the quote has expired"
    assert not shop.sold


def test_a_buyer_does_not_accept_a_quote_that_has_expired() -> None:
    _, buyer = quoted(Shop(5))

    assert buyer.accept(NOW + 600) == ()


def test_a_quote_can_be_asked_for_again_after_it_expired() -> None:
    owner, _ = quoted(Shop(5))
    owner.tick(NOW + 600)

    again = RequestQuote(**HEAD, number=2, template=WANTED)
    quote = only(owner.receive(again, NOW + 700))

    assert isinstance(quote, PriceQuote)
    assert quote.expires == NOW + 1_300
    assert isinstance(only(owner.receive(Accept(**HEAD, number=3, of=1), NOW + 701)), Reject)
    accept = Accept(**HEAD, number=4, of=quote.number)
    assert isinstance(only(owner.receive(accept, NOW + 702)), Confirm)


def test_a_repeat_is_answered_as_the_first_time_and_sells_once() -> None:
    shop = Shop(5)
    owner, buyer = quoted(shop)
    accept = only(buyer.accept(NOW))

    first = owner.receive(accept, NOW)

    assert owner.receive(accept, NOW + 10_000) == first
    assert len(shop.sold) == 1


@pytest.mark.parametrize(
    "message",
    [
        Accept(deal="d", sender="eve", to="uni", number=2, of=1),  # a stranger
        Accept(deal="e", sender="ann", to="uni", number=2, of=1),  # another deal
        Accept(deal="d", sender="ann", to="lab", number=2, of=1),  # for somebody else
        Accept(**HEAD, number=3, of=1),  # out of order
        Accept(**HEAD, number=1, of=1),  # a number already used
        Reject(**HEAD, number=0, reason="no"),
        Accept(**HEAD, number=2, of=2),  # of a quote that is none
        Confirm,
        RequestQuote(
            **HEAD, number=2, template=type(WANTED)(processors=1, seconds=1.0, currency="EUR")
        ),
    ],
)
def test_what_cannot_be_followed_leaves_the_owner_where_it_was(message: TradeMessage) -> None:
    shop = Shop(5)
    owner, _ = quoted(shop)
    if message is Confirm:
        sold = shop.sell("x", "ann", shop.terms("x", "ann", WANTED, NOW), NOW)
        shop.sold.clear()
        message = Confirm(**HEAD, number=2, agreement=sold)

    answer = owner.receive(message, NOW)

    assert all(isinstance(m, Reject) and m.reason for m in answer)
    assert (owner.state, owner.agreement, shop.sold) == ("quoted", None, [])
    number = 3 if answer and answer[0].number else 2
    accept = Accept(**HEAD, number=number, of=1)
    assert isinstance(only(owner.receive(accept, NOW)), Confirm)


def test_a_rejection_is_never_answered() -> None:
    """Or two parties would reject each other for ever."""
    owner, _ = quoted(Shop(5))

    for sender, number in (("ann", 0), ("ann", 2), ("ann", 9), ("eve", 1)):
        stray = Reject(deal="d", sender=sender, to="uni", number=number, reason="no")
        assert owner.receive(stray, NOW) == ()


def test_a_buyer_takes_no_agreement_but_the_one_it_accepted() -> None:
    shop = Shop(5)
    _, buyer = quoted(shop)
    buyer.accept(NOW)
    shop.amount = 6
    dearer = shop.sell("d", "ann", shop.terms("d", "ann", WANTED, NOW), NOW)

    answer = buyer.receive(
        Confirm(deal="d", sender="uni", to="ann", number=2, agreement=dearer), NOW
    )

    assert only(answer).reason == "is not what was accepted"
    assert buyer.agreement is None


def test_a_quote_above_the_buyers_limit_is_refused() -> None:
    owner = PostedOwner(Shop(5), "d", "ann")
    buyer = PostedBuyer("ann", "d", "uni", WANTED, limit=4)

    answer = buyer.receive(only(owner.receive(only(buyer.open(NOW)), NOW)), NOW)

    assert only(answer).reason == "is too dear"
    assert buyer.accept(NOW) == ()


def test_an_agreement_is_cancelled_when_the_owner_lets_go() -> None:
    shop = Shop(5)
    owner, buyer = quoted(shop)
    confirmed = only(owner.receive(only(buyer.accept(NOW)), NOW))

    withdrawn = only(buyer.cancel(NOW))  # crosses with the Confirm
    buyer.receive(confirmed, NOW)
    assert buyer.agreement is not None
    let_go = only(owner.receive(withdrawn, NOW))
    assert isinstance(let_go, Cancel)
    buyer.receive(let_go, NOW)

    assert (owner.state, buyer.state, shop.sold) == ("cancelled", "cancelled", [])
