"""Tenders go to the best bid that its owner can keep."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.market.trading import NOW, UNITS, WANTED, manager, only, server
from tests.thoroughness import examples

from bursar.market.agreement import Terms
from bursar.market.negotiation.tender import TenderBuyer
from bursar.market.trade_messages import (
    Bid,
    Cancel,
    InformOutcome,
    MessageExchange,
    RejectBid,
    TradeMessage,
)

CLOSES = NOW + 60


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 4_000))
@settings(max_examples=examples(30))
def test_the_cheapest_owner_within_the_limit_gets_it_and_all_know(
    prices: list[int], limit: int
) -> None:
    """A unit price of p is p x 400 for 400 processor-seconds."""
    owners = [server(f"u{i}", base=price) for i, price in enumerate(prices)]
    exchange = MessageExchange([ann := manager(), *owners])

    exchange.deliver(
        ann.call("d", [o.name for o in owners], WANTED, CLOSES, NOW, limit=limit * UNITS), NOW
    )
    exchange.tick(CLOSES)

    best = min(prices)
    sold = [owner.agreements for owner in owners]
    if best * 400 > limit:
        assert ann.agreements == ()
        assert not any(sold)
        return
    (agreement,) = ann.agreements
    assert agreement.terms.amount == best * 400 * UNITS
    assert sold.index((agreement,)) == prices.index(best)
    assert sum(map(len, sold)) == 1
    told = [m.to for m in exchange.delivered if isinstance(m, InformOutcome)]
    assert sorted([*told, agreement.owner]) == sorted(o.name for o in owners)


def test_an_award_its_owner_cannot_keep_goes_to_the_next() -> None:
    """The cheapest sells its processors to somebody else between bid and award."""
    cheap, dear = server("cheap", base=1.0), server("dear", base=2.0)
    ann, bob = manager("ann"), manager("bob")
    exchange = MessageExchange([ann, bob, cheap, dear])
    narrow = type(WANTED)(processors=4, seconds=100.0, earliest=5_000.0, latest=5_100.0)
    called = ann.call("d", ["cheap", "dear", "nobody"], narrow, CLOSES, NOW)
    exchange.deliver(called, NOW)  # waits for the one who never answers

    exchange.deliver(bob.ask("b", ["cheap"], narrow, NOW), NOW)
    exchange.deliver(bob.accept(bob.quotes("b", NOW)[0], NOW), NOW)
    exchange.tick(CLOSES)

    (agreement,) = ann.agreements
    assert (agreement.owner, cheap.agreements) == ("dear", bob.agreements)


def test_quotes_that_set_processors_aside_are_always_kept() -> None:
    owner = server("cheap", holds=True)
    ann, bob = manager("ann"), manager("bob")
    exchange = MessageExchange([ann, bob, owner])
    narrow = type(WANTED)(processors=4, seconds=100.0, earliest=5_000.0, latest=5_100.0)
    exchange.deliver(ann.ask("d", ["cheap"], narrow, NOW), NOW)

    exchange.deliver(bob.ask("b", ["cheap"], narrow, NOW), NOW)
    assert bob.quotes("b", NOW) == ()
    exchange.deliver(ann.accept(ann.quotes("d", NOW)[0], NOW + 599), NOW + 599)

    assert len(ann.agreements) == 1


TERMS = Terms.of_amount(WANTED, 5_000.0, 5)
HEAD = {"deal": "d", "sender": "uni", "to": "ann"}


def bid(number: int = 1, amount: int = 5, **fields) -> Bid:
    terms = Terms.of_amount(WANTED, 5_000.0, amount)
    return Bid(
        **HEAD | {"number": number, "amount": amount, "currency": "SU", "terms": terms} | fields
    )


EUROS = Terms(processors=4, start=5_000.0, seconds=100.0, unit_price=0.0, currency="EUR")
EARLY = Terms(processors=4, start=4_000.0, seconds=100.0, unit_price=0.0)


@pytest.mark.parametrize(
    ("message", "now"),
    [
        (bid(sender="eve"), NOW),
        (bid(number=2), NOW),
        (bid(), CLOSES),
        (bid(amount=0, currency="EUR", terms=EUROS), NOW),
        (bid(amount=0, terms=EARLY), NOW),
        (bid(terms=None), NOW),
        (bid(amount=11), NOW),
    ],
    ids=["stranger", "out of order", "late", "currency", "too early", "no terms", "too dear"],
)
def test_a_bid_that_cannot_be_taken_leaves_the_call_where_it_was(
    message: TradeMessage, now: float
) -> None:
    buyer = TenderBuyer("ann", "d", ("uni", "lab"), WANTED, closes=CLOSES, limit=10)
    buyer.open(NOW)

    answer = only(buyer.receive(message, now))

    assert answer.reason
    assert (buyer.state, buyer.bids) == ("called", ())


def test_an_owner_bids_once_for_a_call() -> None:
    buyer = TenderBuyer("ann", "d", ("uni", "lab"), WANTED, closes=CLOSES)
    buyer.open(NOW)
    buyer.receive(bid(), NOW)

    assert isinstance(only(buyer.receive(bid(number=2, amount=4), NOW)), RejectBid)
    assert [b.amount for b in buyer.bids] == [5]


def test_only_the_winner_can_call_an_agreement_off() -> None:
    """Before an award, and from others after it, the word is heard and nothing follows."""
    owners = [server("cheap", base=1.0), server("dear", base=2.0)]
    exchange = MessageExchange([ann := manager(), *owners])
    buyer = TenderBuyer("ann", "d", ("uni", "lab"), WANTED, closes=CLOSES)
    buyer.open(NOW)
    assert buyer.receive(Cancel(**HEAD, number=1), NOW) == ()
    assert buyer.state == "called"

    exchange.deliver(ann.call("e", ["cheap", "dear"], WANTED, CLOSES, NOW), NOW)
    assert ann.states("e") == {"cheap": "agreed", "dear": "agreed"}
    for name, state in (("dear", "agreed"), ("cheap", "cancelled")):
        number = max(m.number for m in exchange.delivered if m.sender == name) + 1
        ann.deliver(Cancel(deal="e", sender=name, to="ann", number=number), NOW)
        assert set(ann.states("e").values()) == {state}
