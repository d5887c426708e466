"""What an owner's rules let a service sell, to whom and for how much, over kills too."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.service.billing.billing_rig import MICROS, SITE, Shop

from bursar.market.agreement import Agreement, DealTemplate
from bursar.market.trade_messages import Accept, Confirm, Offer, Reject, RequestQuote, TradeMessage
from bursar.model.money import Adjusting, Demand, Loyalty, Pricing
from bursar.model.site import SiteFacts
from bursar.service.config import MarketSettings, SaleQuota, UserSettings

PHYSICS = {name: UserSettings(groups=frozenset({"physics"})) for name in ("ann", "bob")}

HOUR = 3_600.0


def selling(**rules: object) -> MarketSettings:
    return MarketSettings(credit=100_000.0, **rules)


def refusal(answer: Agreement | TradeMessage) -> str:
    assert isinstance(answer, Reject), answer
    return answer.reason


def priced(*rules: object) -> SiteFacts:
    return replace(SITE, pricing=Pricing(0.5, tuple(rules)))


# Who may buy, and how much.


def test_only_listed_buyers_and_members_of_groups_buy() -> None:
    """Others are refused with a reason, and see prices all the same."""
    shop = Shop(
        selling=selling(buyers=frozenset({"eve"}), buyer_groups=frozenset({"physics"})),
        users=PHYSICS,
    )
    for buyer in ("ann", "bob", "eve"):
        shop.bought(buyer)
    assert "is no customer" in refusal(shop.buy("mallory"))
    assert shop.billing.posted("mallory", shop.now) == 0.5


def test_a_user_gets_no_more_processors_at_once_than_the_rule_says() -> None:
    """Three of five at once; the others are for somebody else, or for later."""
    shop = Shop(selling=selling(processors=5, processors_per_user=3))
    shop.bought("ann", 2, 100.0)
    assert "3 processors at once" in refusal(shop.buy("ann", 2, 100.0))
    shop.bought("ann", 1, 100.0)
    shop.bought("ann", 3, 100.0, start=100.0)
    shop.bought("bob", 2, 100.0)
    assert "no processors free" in refusal(shop.buy("eve", 1, 100.0))
    assert "at once" in refusal(shop.buy("eve", 4, 100.0, start=1_000.0))
    assert "has 5 processors" in refusal(shop.buy("eve", 6, 100.0, start=1_000.0))


def test_two_quotes_do_not_get_around_a_limit() -> None:
    """Checked again when a deal is made: both quotes were within the limit."""
    shop = Shop(selling=selling(processors_per_user=2))
    about = [{"deal": deal, "sender": "ann", "to": "uni"} for deal in ("a", "b")]
    template = DealTemplate(processors=2, seconds=100.0, earliest=shop.now)
    quotes = [shop.say("ann", RequestQuote(**one, number=1, template=template)) for one in about]
    answers = [
        shop.say("ann", Accept(**one, number=2, of=quote.number))
        for one, quote in zip(about, quotes, strict=True)
    ]
    assert [type(answer) for answer in answers] == [Confirm, Reject]


def test_a_quota_is_for_a_period() -> None:
    """1,000 processor-seconds an hour, each user alone; what ends early counts as it was."""
    shop = Shop(selling=selling(quotas=(SaleQuota(amount=1_000.0, every=HOUR),)))
    shop.wait(HOUR - shop.now % HOUR)
    first = shop.bought("ann", 8, 100.0)
    assert "has 200 processor-seconds left of 1000" in refusal(shop.buy("ann", 3, 100.0, 200.0))
    shop.bought("bob", 8, 100.0, start=200.0)
    shop.bought("ann", 8, 100.0, start=HOUR)
    shop.wait(50.0)
    shop.billing.cancel("ann", first)
    shop.bought("ann", 6, 100.0, start=400.0)
    assert "left of 1000" in refusal(shop.buy("ann", 1, 100.0, start=600.0))


def test_a_group_has_its_quota_together() -> None:
    """And a user outside of the group has no part in it."""
    quota = SaleQuota(amount=1_000.0, every=HOUR, groups=frozenset({"physics"}))
    shop = Shop(selling=selling(quotas=(quota,)), users=PHYSICS)
    shop.wait(HOUR - shop.now % HOUR)
    shop.bought("ann", 8, 100.0)
    assert "left of 1000" in refusal(shop.buy("bob", 3, 100.0, start=200.0))
    shop.bought("bob", 2, 100.0, start=200.0)
    shop.bought("eve", 8, 500.0, start=400.0)


def test_limits_hold_after_a_kill() -> None:
    """They follow from the agreements in the journal, ended ones too."""
    quota = SaleQuota(amount=1_000.0, every=HOUR)
    shop = Shop(selling=selling(quotas=(quota,), processors_per_user=4))
    shop.wait(HOUR - shop.now % HOUR)
    shop.bought("ann", 4, 200.0)
    shop.wait(250.0)
    shop.journal.commit()
    shop.crash(away=10.0)
    assert "has 200 processor-seconds left" in refusal(shop.buy("ann", 3, 100.0))
    shop.bought("ann", 2, 100.0)
    shop.journal.commit()
    shop.crash()
    assert "left of 1000" in refusal(shop.buy("ann", 1, 100.0))


# What is asked.


def test_nothing_is_sold_below_the_reserve() -> None:
    """Neither by a rule, nor by bargaining, whose floor would be half of the price."""
    low = Demand(points=((0.0, 0.1), (1.0, 1.0)))
    shop = Shop(priced(low), selling(reserve=(0.2, None), floor=0.5))
    assert shop.billing.posted("ann", shop.now) == 0.2
    agreement = shop.buy("ann", 1, 100.0)
    assert isinstance(agreement, Agreement)
    assert agreement.terms.amount == 20 * MICROS
    template = DealTemplate(
        processors=1, seconds=100.0, earliest=shop.now, latest=shop.now + 1_000.0
    )
    about = {"deal": "bargain", "sender": "ann", "to": "uni"}
    offers = [
        shop.say(
            "ann", Offer(**about, number=n, template=template, amount=19 * MICROS, currency="SU")
        )
        for n in range(1, 4)
    ]
    assert all(not isinstance(answer, Confirm) for answer in offers)
    amounts = [answer.amount for answer in offers if hasattr(answer, "amount")]
    assert amounts
    assert min(amounts) >= 20 * MICROS


ADJUSTING = Adjusting(target=0.5, gain=0.2, least=0.2, most=3.0, every=600.0)


def test_what_supply_and_demand_have_made_of_the_price_outlives_a_kill() -> None:
    """Full for two periods, then killed: the price goes on from where it was."""
    shop = Shop(priced(ADJUSTING), selling())
    shop.bought("ann", 8, 1_200.0)
    shop.wait(1_200.0)
    before = shop.billing.posted("ann", shop.now)
    assert before > 0.5
    shop.journal.commit()
    shop.crash()
    assert shop.billing.posted("ann", shop.now) == before


def test_loyalty_outlives_a_kill() -> None:
    """It is what the ledger says was paid."""
    shop = Shop(priced(Loyalty(steps=((100 * MICROS, 0.5),))), selling())
    name = shop.bought("ann", 4, 100.0)
    shop.billing.admission.ready(name, 4)
    shop.wait(100.0)
    assert shop.billing.posted("ann", shop.now) == 0.25
    shop.journal.commit()
    shop.crash()
    assert shop.billing.posted("ann", shop.now) == 0.25
    assert shop.billing.posted("bob", shop.now) == 0.5


def test_a_new_rule_of_supply_and_demand_begins_anew() -> None:
    """A new base price alone does not; nor does reading the same configuration again."""
    shop = Shop(priced(ADJUSTING), selling())
    shop.bought("ann", 8, 1_200.0)
    shop.wait(1_200.0)
    before = shop.billing.posted("ann", shop.now)
    shop.billing.reconfigure(Pricing(0.5, (ADJUSTING,)))
    assert shop.billing.posted("ann", shop.now) == before
    shop.billing.reprice(Pricing(1.0, (ADJUSTING,)))
    assert shop.billing.posted("ann", shop.now) == 2 * before
    other = Adjusting(target=0.5, gain=0.1, least=0.2, most=3.0, every=600.0)
    shop.billing.reprice(Pricing(1.0, (other,)))
    assert shop.billing.posted("ann", shop.now) == 1.0
    shop.journal.commit()
    shop.crash()
    assert shop.billing.posted("ann", shop.now) == 1.0


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["ann", "bob"]),
        st.integers(1, 8),
        st.floats(10.0, 900.0),
        st.floats(0.0, 2_000.0),
    ),
    max_size=12,
)


@given(events=EVENTS, kills=st.randoms(use_true_random=False))
def test_killed_or_not_an_owner_asks_and_sells_the_same(
    events: list[tuple[str, int, float, float]], kills: random.Random
) -> None:
    """One owner is killed and restarted at random, durable each time; its twin never is."""
    rules = selling(
        processors_per_user=6, quotas=(SaleQuota(amount=9_000.0, every=HOUR),), reserve=(0.1, None)
    )
    loyal = Loyalty(steps=((50 * MICROS, 0.7), (500 * MICROS, 0.4)))

    def made() -> Shop:
        return Shop(priced(ADJUSTING, loyal), rules, PHYSICS)

    killed, twin = made(), made()
    for user, processors, seconds, pause in events:
        outcomes = []
        for shop in (killed, twin):
            sold = shop.buy(user, processors, seconds)
            outcomes.append(sold.terms if isinstance(sold, Agreement) else type(sold))
            shop.wait(pause)
        assert outcomes[0] == outcomes[1]
        if kills.random() < 0.5:
            killed.journal.commit()
            killed.crash()
        for name in ("ann", "bob"):
            ours, theirs = (shop.billing.posted(name, shop.now) for shop in (killed, twin))
            assert ours == pytest.approx(theirs, abs=0)
    assert killed.billing.faults() == twin.billing.faults() == []
