"""Bounds of the market's rules: the last that is allowed, and the first that is not."""

import math

import msgspec
import pytest
from tests.market.trading import NOW, UNITS, WANTED, Shop, manager, only, server

from bursar.market.agreement import LARGEST, LATEST, DealTemplate, Terms, check_moment
from bursar.market.guard import BudgetThresholds, BudgetWarning
from bursar.market.negotiation.auctioneers import EnglishAuctioneer, ShareAuctioneer
from bursar.market.negotiation.bilateral import BargainingBuyer, Concession
from bursar.market.trade_manager import TradeManager
from bursar.market.trade_messages import Ask, CallForBids, FinalOffer, MessageExchange, Reject
from bursar.model.money import Refusal


def test_moments_are_from_0_to_the_latest() -> None:
    check_moment("it", 0)
    check_moment("it", LATEST)
    for wrong in (-1e-9, math.nextafter(LATEST, math.inf), math.nan):
        with pytest.raises(ValueError, match="it must be seconds since the epoch"):
            check_moment("it", wrong)


def lot(processors: int, seconds: float = 1.0) -> DealTemplate:
    return DealTemplate(processors=processors, seconds=seconds, earliest=0.0, latest=LATEST)


def test_lots_have_from_1_to_a_billion_processors_and_a_length() -> None:
    for good in (1, 10**9):
        assert lot(good).processors == good
    for wrong in (0, 10**9 + 1):
        with pytest.raises(ValueError, match="processors must be at least 1"):
            lot(wrong)
    assert lot(1, LATEST).seconds == LATEST
    for seconds in (0.0, math.nextafter(LATEST, math.inf)):
        with pytest.raises(ValueError, match="seconds must be positive"):
            lot(1, seconds)


def ask(processors: int | None) -> Ask:
    return Ask(
        deal="d", sender="uni", to="ann", number=1, amount=5, currency="SU", processors=processors
    )


def test_orders_are_of_1_to_a_billion_processors() -> None:
    for good in (None, 1, 10**9):
        assert ask(good).processors == good
    for wrong in (0, 10**9 + 1):
        with pytest.raises(ValueError, match="processors must be at least 1"):
            ask(wrong)


def test_shares_of_the_budget_are_told_in_per_cent_from_one_per_cent_on() -> None:
    due = BudgetThresholds(1_000, {0.004: "warn", 0.01: "warn", 0.25: "warn"})
    assert due.next_due == pytest.approx(4)
    assert due.due(3) == []
    assert due.due(4) == [BudgetWarning("0.004 of the budget is spent")]
    assert due.due(250) == [
        BudgetWarning("1% of the budget is spent"),
        BudgetWarning("25% of the budget is spent"),
    ]
    assert due.next_due == 1_000  # then everything stops, whatever was asked for


def test_a_quote_is_accepted_before_it_expires_and_only_the_one_that_was_made() -> None:
    exchange = MessageExchange([server(), ann := manager()])
    exchange.deliver(ann.ask("d", ["uni"], WANTED, NOW), NOW)
    quote = only(ann.quotes("d", NOW))
    assert ann.quotes("d", math.nextafter(quote.expires, 0.0)) == (quote,)
    assert ann.quotes("d", quote.expires) == ()
    other = msgspec.structs.replace(quote, number=quote.number + 1)
    assert ann.accept(other, NOW) == ()
    assert ann.accept(quote, NOW)


def test_a_deal_is_begun_once_with_each_party() -> None:
    ann = manager()
    ann.ask("d", ["uni", "lab"], WANTED, NOW)
    with pytest.raises(ValueError, match='"d" is a deal with lab already'):
        ann.call("d", ["lab"], WANTED, NOW + 60, NOW)


def test_agreements_are_numbered_from_1() -> None:
    exchange = MessageExchange([owner := server(processors=8), ann := manager()])
    for deal in ("d", "e"):
        exchange.deliver(ann.ask(deal, ["uni"], WANTED, NOW), NOW)
        exchange.deliver(ann.accept(only(ann.quotes(deal, NOW)), NOW), NOW)
    assert [agreement.id for agreement in owner.agreements] == ["uni-1", "uni-2"]


def test_who_has_paid_nothing_has_paid_nothing() -> None:
    owner = server()
    asked = owner.asked("ann", 4, 100.0, 5_000.0, NOW)
    assert (asked.paid, asked.customer, asked.utilisation) == (0, "ann", 0.0)
    owner.note_payment("ann", 7)
    owner.note_payment("ann", 5)
    assert owner.asked("ann", 4, 100.0, 5_000.0, NOW).paid == 12
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="amount must be positive"):
            owner.note_payment("ann", wrong)
    owner.note_payment("bob", 1)
    assert owner.state.paid == {"ann": 12, "bob": 1}


def bargaining(last: int) -> BargainingBuyer:
    """A buyer who offers 100 and would give 200, after an owner's last word."""
    buyer = BargainingBuyer(
        "ann", "d", "uni", WANTED, concession=Concession(first=100, reserve=200, rounds=4)
    )
    buyer.open(NOW)
    word = FinalOffer(deal="d", sender="uni", to="ann", number=1, amount=last, currency="SU")
    buyer.receive(word, NOW)
    return buyer


def test_a_last_word_is_taken_up_to_the_reserve() -> None:
    assert bargaining(200).state == "accepted"
    assert bargaining(201).state == "ended"
    assert bargaining(201).reason == "the owner's last word is too dear"


def test_a_rejection_ends_what_it_is_about_and_nothing_else() -> None:
    buyer = BargainingBuyer(
        "ann", "d", "uni", WANTED, concession=Concession(first=100, reserve=200, rounds=4)
    )
    (offer,) = buyer.open(NOW)
    head = {"deal": "d", "sender": "uni", "to": "ann", "reason": "no"}
    buyer.receive(Reject(**head, number=1, of=offer.number + 1), NOW)
    assert buyer.state == "offered"
    buyer.receive(Reject(**head, number=2, of=offer.number), NOW)
    assert (buyer.state, buyer.reason) == ("ended", "no")


def test_shares_go_by_bids_and_who_bids_nothing_gets_nothing() -> None:
    auctioneer = ShareAuctioneer("uni", "d", ["ann", "bob", "eve"], WANTED, closes=NOW + 60)
    names = {"ann": 30, "bob": 10}
    buyers = [TradeManager(name) for name in (*names, "eve")]
    for buyer in buyers:
        buyer.join("d", "uni", names.get(buyer.name, 0) * UNITS)
    exchange = MessageExchange([owner := server(), *buyers])
    opened = owner.auction(auctioneer, NOW)
    assert not isinstance(opened, Refusal)
    exchange.deliver(opened, NOW)
    exchange.tick(NOW + 60)
    assert auctioneer.shared == {"ann": 3, "bob": 1, "eve": 0} or auctioneer.shared == {
        "ann": 3,
        "bob": 1,
    }
    assert auctioneer.state == "sold"
    assert [len(buyer.agreements) for buyer in buyers] == [1, 1, 0]


def test_an_english_auction_ends_where_nothing_better_can_be_said() -> None:
    """A bid of the largest amount there is; in reverse one of nothing."""
    for reverse, best in ((False, LARGEST), (True, 0)):
        me = "ann" if reverse else "uni"
        auctioneer = EnglishAuctioneer(
            me, "d", ["p0", "p1"], WANTED, reserve=5 if reverse else 0, increment=5, quiet=9.0,
            opened=NOW, reverse=reverse,
        )  # fmt: skip
        calls = auctioneer.open(NOW)
        assert [type(call) for call in calls] == [CallForBids, CallForBids]
        assert auctioneer.asked == (5 if reverse else 0)
        auctioneer.standing, auctioneer.leader = best, "p0"
        assert auctioneer.asked == (-5 if reverse else LARGEST + 5)


def test_a_tender_that_nobody_answers_is_unmet_when_it_closes() -> None:
    ann = manager()
    ann.call("d", ["uni"], WANTED, NOW + 60, NOW)
    assert ann.next_tick() == NOW + 60
    assert ann.tick(NOW + 59.9) == ()
    ann.tick(NOW + 60)
    assert ann.states("d") == {"uni": "unmet"}
    assert ann.forget("d") == ()
    assert ann.states("d") == {}
    assert ann.next_tick() == math.inf


def test_terms_of_an_amount_come_to_it() -> None:
    terms = Terms.of_amount(WANTED, 5_000.0, 400 * UNITS)
    assert (terms.amount, terms.end) == (400 * UNITS, 5_100.0)
    assert Shop(5).terms("d", "ann", WANTED, NOW).amount == 5
