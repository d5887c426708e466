"""Buyers who trade at once with one owner, by all protocols, never get what another has bought."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.service.billing.billing_rig import MICROS, SITE, Shop

from bursar.market.agreement import DealTemplate
from bursar.market.purchasing import Negotiation, negotiate
from bursar.market.trade_manager import TradeLimits, TradeManager
from bursar.model.slot import ResourceProfile
from bursar.service.config import AuctionSettings, MarketSettings

CREDIT = 500.0


class Broker:
    """A buyer whose negotiation goes on by one message at a time, between those of others."""

    def __init__(self, shop: Shop, name: str, chance: random.Random) -> None:
        self.shop, self.name, self.chance = shop, name, chance
        self.manager = TradeManager(name)
        self.deals = 0
        self._negotiation: Negotiation | None = None
        self._outgoing: list = []

    def step(self) -> None:
        """Begin a purchase, say one thing, or hear what came of it."""
        if self._negotiation is None:
            self._begin()
        elif self._outgoing:
            message = self._outgoing.pop(self.chance.randrange(len(self._outgoing)))
            for answer in self.shop.billing.deliver(self.name, message):
                self._outgoing += self.manager.deliver(answer, self.shop.now)
        else:
            self._go_on()

    def _begin(self) -> None:
        now, chance = self.shop.now, self.chance
        start = now + chance.choice((0.0, 100.0, 200.0))
        seconds = chance.choice((50.0, 100.0, 300.0))
        self.deals += 1
        self._negotiation = negotiate(
            self.manager,
            f"{self.name}-{self.deals}",
            chance.choice(("posted", "bargain", "tender")),
            ["uni"],
            DealTemplate(
                processors=chance.randint(1, SITE.processors),
                seconds=seconds,
                earliest=start,
                latest=start + seconds + chance.choice((0.0, 500.0)),
            ),
            TradeLimits(most=chance.choice((None, 30 * MICROS, 200 * MICROS))),
            lambda: self.shop.now,
        )
        self._outgoing = list(next(self._negotiation).messages)

    def _go_on(self) -> None:
        assert self._negotiation is not None
        try:
            step = self._negotiation.send(frozenset())
        except StopIteration:
            self._negotiation = None
            return
        if step.until is not None:
            self._outgoing = list(self.manager.tick(step.until))
        else:
            self._outgoing = list(step.messages)


@pytest.mark.parametrize("buyers", [2, 5, 20])
@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), holds=st.booleans())
def test_no_processor_is_sold_twice(buyers: int, seed: int, holds: bool) -> None:
    """
    Whatever is said in whatever order: at no moment more is agreed on than there is, nobody spends
    more than the account has, and the books are in order, before and after a restart.
    """
    chance = random.Random(seed)
    auction = AuctionSettings(
        rule="vickrey", processors=2, duration=100.0, every=400.0, lasts=100.0
    )
    shop = Shop(selling=MarketSettings(credit=CREDIT, holds=holds, auctions=(auction,)))
    brokers = [Broker(shop, f"buyer-{n}", chance) for n in range(buyers)]
    for _ in range(60 * buyers // 2):
        chance.choice(brokers).step()
        if chance.random() < 0.05:
            shop.wait(chance.choice((1.0, 30.0)))
    assert violations(shop, brokers) == []
    shop.journal.commit()
    shop.crash()
    assert violations(shop, brokers) == []


def violations(shop: Shop, brokers: list[Broker]) -> list[str]:
    """Hold the owner's agreements with all buyers against its processors and their money."""
    rectangles = []
    found = shop.billing.faults()
    for broker in brokers:
        account = shop.billing.accounts.account(broker.name)
        if account.balance < 0 or account.balance + account.held + account.spent != CREDIT * MICROS:
            found.append(f"{broker.name}: {account}")
        for deal in shop.billing.agreements(broker.name).agreements:
            end = deal.start + deal.seconds if deal.ended is None else deal.ended
            if deal.state != "cancelled" and end > deal.start:
                rectangles.append((deal.start, end, deal.processors))
    busy = ResourceProfile.summed(rectangles, 0)
    found += [f"{n} sold from {s}" for s, _, n in busy.steps() if n > SITE.processors]
    return found
