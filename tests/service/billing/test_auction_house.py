"""Auctions that a service holds by its owner's rules, with bidders who ask what they were told."""

from typing import Any

import pytest
from tests.service.billing.billing_rig import MICROS, SITE, Shop

from bursar.market.agreement import Agreement, DealTemplate
from bursar.market.trade_manager import TradeManager
from bursar.market.trade_messages import Bid, RejectBid, RequestQuote, TradeMessage
from bursar.remote.market_messages import LotInfo
from bursar.service.config import AuctionSettings, MarketSettings
from bursar.service.interfaces import ServiceError

HOUR = 3_600.0


def shop_with(rule: str, credit: float | None = 1_000.0, **more: Any) -> Shop:
    """Four processors for 100 s, each hour: the floor is 400 x 0.5 x 0.8 = 160 SU."""
    given = {"processors": 4, "duration": 100.0, "every": HOUR, "lasts": 100.0, **more}
    auction = AuctionSettings(rule=rule, **given)
    return Shop(selling=MarketSettings(credit=credit, auctions=(auction,)))


class BiddingUser:
    """A user who bids up to a value, and asks the service now and then what it was told."""

    def __init__(self, shop: Shop, name: str, lot: LotInfo, value: float) -> None:
        self.shop, self.name, self.lot = shop, name, lot
        self.manager = TradeManager(name)
        wanted = DealTemplate(
            processors=lot.processors,
            seconds=lot.seconds,
            earliest=lot.start,
            latest=lot.start + lot.seconds,
        )
        self.send(self.manager.bid(lot.id, "uni", wanted, round(value * MICROS)))

    def send(self, messages: tuple[TradeMessage, ...]) -> None:
        for message in messages:
            self.shop.billing.deliver(self.name, message)

    def look(self) -> None:
        """Take in what was told since, and say what follows from it."""
        while told := self.shop.billing.heard(
            self.name, self.lot.id, self.manager.heard(self.lot.id, "uni")
        ):
            for message in told:
                self.send(self.manager.deliver(message, self.shop.now))

    @property
    def agreement(self) -> Agreement | None:
        return next(iter(self.manager.agreements), None)


def opened(shop: Shop) -> LotInfo:
    """The next auction, once it is open."""
    (ahead,) = shop.billing.auctions().auctions
    assert ahead.state == "announced"
    shop.wait(ahead.opens - shop.now)
    lot = shop.billing.auctions().auctions[0]
    assert (lot.id, lot.state) == (ahead.id, "open")
    return lot


def held(rule: str, values: dict[str, float], **more: Any) -> tuple[Shop, dict[str, BiddingUser]]:
    """An auction to its end, with looks of all each second; nothing is inconsistent at the end."""
    shop = shop_with(rule, **more)
    lot = opened(shop)
    users = {name: BiddingUser(shop, name, lot, value) for name, value in values.items()}
    for _ in range(100):
        for user in users.values():
            user.look()
        shop.wait(1.0)
    for user in users.values():
        user.look()
    assert shop.billing.faults() == []
    return shop, users


@pytest.mark.parametrize(
    ("rule", "least", "most"),
    [
        # Ann values the lot 300, Bob 250; the reserve is 160, a step 8.
        ("first-price", 300, 300),
        ("vickrey", 250, 250),
        ("english", 242, 258),  # the second value, within a step
        ("dutch", 292, 300),  # the first price on the clock that Ann accepts: a step below at most
    ],
)
def test_the_highest_bidder_wins_at_the_price_of_the_rule(
    rule: str, least: float, most: float
) -> None:
    """And is bound by an agreement that begins at the close; the others keep their money."""
    shop, users = held(rule, {"bob": 250.0, "ann": 300.0})
    agreement = users["ann"].agreement
    assert agreement is not None
    assert least * MICROS <= agreement.terms.amount <= most * MICROS
    assert (agreement.processors, agreement.seconds) == (4, 100.0)
    assert users["bob"].agreement is None
    assert shop.billing.accounts.account("bob").balance in (0, 1_000 * MICROS)
    (known,) = shop.billing.agreements("ann").agreements
    assert (known.deal, known.start) == (users["ann"].lot.id, agreement.start)
    sold = shop.billing.auctions().auctions[0]
    assert (sold.state, sold.price) == ("sold", agreement.terms.amount)


def test_shares_follow_the_bids() -> None:
    """Four processors, bids of 3 to 1; each pays its bid."""
    _, users = held("share", {"ann": 30.0, "bob": 10.0})
    got = {name: user.agreement for name, user in users.items()}
    assert {n: a.processors for n, a in got.items() if a} == {"ann": 3, "bob": 1}
    assert {n: a.terms.amount for n, a in got.items() if a} == {
        "ann": 30 * MICROS,
        "bob": 10 * MICROS,
    }


@pytest.mark.parametrize("rule", ["first-price", "vickrey", "english", "dutch"])
def test_nothing_is_sold_below_the_reserve(rule: str) -> None:
    """The lot is free again afterwards."""
    shop, users = held(rule, {"ann": 150.0})
    assert users["ann"].agreement is None
    assert shop.billing.auctions().auctions[0].state == "unsold"
    assert isinstance(shop.buy("ann", processors=8), Agreement)


def test_the_lot_is_set_aside_while_bids_are_taken() -> None:
    """Nobody buys at the posted price what is being auctioned for the same time."""
    shop = shop_with("vickrey")
    lot = opened(shop)
    ahead = lot.start - shop.now
    assert not isinstance(shop.buy("ann", processors=5, start=ahead), Agreement)
    assert isinstance(shop.buy("ann", processors=4, start=ahead), Agreement)


def test_who_cannot_pay_may_not_bid() -> None:
    """Else a bid that nobody honours would keep the lot from those who can."""
    shop = shop_with("first-price", credit=200.0)
    lot = opened(shop)
    rich = BiddingUser(shop, "ann", lot, 190.0)
    poor = BiddingUser(shop, "bob", lot, 500.0)
    rich.look(), poor.look()
    told = shop.billing.heard("bob", lot.id, 0)
    assert any(isinstance(m, RejectBid) and "the account has 200 SU" in m.reason for m in told)
    shop.wait(110.0)
    rich.look(), poor.look()
    assert rich.agreement is not None
    assert poor.agreement is None


def test_bids_are_sealed_and_told_to_their_bidders_only() -> None:
    """What one bids no other can ask for, and nobody asks who does not bid."""
    shop = shop_with("first-price")
    lot = opened(shop)
    assert lot.price is None
    BiddingUser(shop, "ann", lot, 200.0).look()
    with pytest.raises(ServiceError, match="no auction"):
        shop.billing.heard("bob", lot.id, 0)
    with pytest.raises(ServiceError, match="no auction"):
        shop.billing.heard("ann", "auction-9-1", 0)
    assert "200" not in repr(shop.billing.auctions().auctions)


def test_a_bid_of_a_stranger_and_a_late_one_are_refused() -> None:
    shop = shop_with("english")
    lot = opened(shop)
    bid = Bid(deal=lot.id, sender="eve", to="uni", number=1, amount=10**9, currency="SU")
    refused = shop.say("eve", bid)
    assert getattr(refused, "reason", "") == "is no bidder of this auction"
    shop.wait(200.0)
    ask = RequestQuote(
        deal=lot.id,
        sender="eve",
        to="uni",
        number=1,
        template=DealTemplate(processors=4, seconds=100.0),
    )
    assert getattr(shop.say("eve", ask), "reason", "") == "bids are closed"


def test_an_auction_that_a_restart_breaks_off_sells_nothing() -> None:
    """An agreement that was made is kept; an auction that was open is not held again."""
    shop = shop_with("vickrey")
    lot = opened(shop)
    user = BiddingUser(shop, "ann", lot, 300.0)
    user.look()
    shop.journal.commit()
    shop.crash()
    assert [one.state for one in shop.billing.auctions().auctions] == ["announced"]
    with pytest.raises(ServiceError, match="no auction"):
        shop.billing.heard("ann", lot.id, 0)
    shop.wait(2 * HOUR)
    assert shop.billing.agreements("ann").agreements == []
    again, users = held("vickrey", {"ann": 300.0})
    again.journal.commit()
    again.crash()
    (kept,) = again.billing.agreements("ann").agreements
    assert kept.deal == users["ann"].lot.id
    assert again.billing.faults() == []


def test_auctions_that_were_long_ago_are_forgotten() -> None:
    """The list does not grow."""
    shop = shop_with("english")
    shop.wait(10 * HOUR)
    assert len(shop.billing.auctions().auctions) <= 3
    assert SITE.processors == 8
