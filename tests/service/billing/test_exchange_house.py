"""An exchange and a seller's service: orders, clearings and money, whenever anything is killed."""

import asyncio
import random
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.service.billing.billing_rig import MICROS, Shop
from tests.thoroughness import examples

from bursar.model.site import SiteFacts
from bursar.remote import market_messages as market
from bursar.remote.exchange_trading import sell_at
from bursar.remote.http_transport import RemoteProblem, ServiceUnreachable
from bursar.remote.messages import AgreementInfo, Problem
from bursar.service.billing.exchange_house import ExchangeHouse
from bursar.service.config import ExchangeSettings, MarketSettings
from bursar.service.interfaces import ServiceError

T = TypeVar("T")

EVERY, CONFIRM, SECONDS = 1_000.0, 100.0, 400.0
CREDIT = 1_000 * MICROS


def exchange_shop(rule: str = "double", credit: float | None = 1_000.0) -> Shop:
    held = ExchangeSettings(rule=rule, every=EVERY, confirm=CONFIRM, duration=SECONDS)
    return Shop(selling=MarketSettings(credit=credit, protocols=(), exchange=held))


def owner_shop(processors: int = 8) -> Shop:
    site = SiteFacts(name="uni", processors=processors, unit_price=0.5)
    return Shop(site=site, selling=MarketSettings(credit=0.0))


def wish(
    shop: Shop, side: str, processors: int, amount: int, key: str = "k", **more: Any
) -> market.NewOrder:
    info = shop.billing.exchange.info("anybody", shop.now)
    if side == "ask":
        more = {"service": "https://uni.example", **more}
    return market.NewOrder(
        key=key,
        side=side,  # type: ignore[arg-type]
        closes=info.closes,
        start=info.start,
        seconds=info.seconds,
        processors=processors,
        amount=amount,
        **more,
    )


def placed(shop: Shop, user: str, *words: Any, **more: Any) -> market.OrderInfo:
    return shop.billing.exchange.place(user, wish(shop, *words, **more), shop.now)


def cleared(shop: Shop) -> None:
    shop.wait(shop.billing.exchange.info("anybody", shop.now).closes - shop.now)


def stepped(shop: Shop, seller: str, step: str, **more: Any) -> None:
    for trade in shop.billing.exchange.trades(seller).trades:
        report = market.SellerReport(step=step, **more)  # type: ignore[arg-type]
        shop.billing.exchange.report(seller, trade.id, report, shop.now)


def money(shop: Shop, user: str) -> tuple[int, int, int]:
    account = shop.billing.accounts.account(user)
    return account.balance, account.held, account.spent


def refused(work: Callable[[], object]) -> ServiceError:
    with pytest.raises(ServiceError) as error:
        work()
    return error.value


def test_money_goes_from_the_buyer_to_the_seller_at_delivery() -> None:
    """Bid of 2 at 10, ask of 2 at 4: the price is the middle, 7; the rest is free at once."""
    shop = exchange_shop()
    placed(shop, "ann", "bid", 2, 10 * MICROS)
    placed(shop, "uni", "ask", 2, 4 * MICROS)
    assert money(shop, "ann") == (CREDIT - 20 * MICROS, 20 * MICROS, 0)
    cleared(shop)
    assert money(shop, "ann") == (CREDIT - 14 * MICROS, 14 * MICROS, 0)
    stepped(shop, "uni", "confirmed")
    assert shop.billing.exchange.info("uni", shop.now).earned == 0
    stepped(shop, "uni", "delivered", agreement="a1")
    assert money(shop, "ann") == (CREDIT - 14 * MICROS, 0, 14 * MICROS)
    assert shop.billing.exchange.info("uni", shop.now).earned == 14 * MICROS
    shop.journal.commit()
    shop.crash()
    assert shop.billing.exchange.info("uni", shop.now).earned == 14 * MICROS
    assert shop.billing.exchange.trades("ann").trades[0].agreement == "a1"
    assert shop.billing.faults() == []


@pytest.mark.parametrize(("step", "until"), [(None, CONFIRM), ("confirmed", CONFIRM + SECONDS)])
def test_money_comes_back_from_a_seller_that_is_silent(step: str | None, until: float) -> None:
    """At the start without a confirmation, at the end without a delivery; the seller is named."""
    shop = exchange_shop()
    placed(shop, "ann", "bid", 2, 10 * MICROS)
    placed(shop, "uni", "ask", 2, 4 * MICROS)
    cleared(shop)
    if step is not None:
        stepped(shop, "uni", step)
    shop.wait(until - 1)
    assert money(shop, "ann")[1] == 14 * MICROS
    shop.wait(1)
    assert money(shop, "ann") == (CREDIT, 0, 0)
    (trade,) = shop.billing.exchange.trades("ann").trades
    assert (trade.state, trade.seller) == ("undone", "uni")
    assert trade.reason.startswith("the seller")
    assert shop.billing.faults() == []


def test_the_book_is_sealed() -> None:
    """Others see neither orders nor that there are any; afterwards price and sums, not who."""
    shop = exchange_shop()
    before = shop.billing.exchange.info("eve", shop.now)
    placed(shop, "ann", "bid", 2, 10 * MICROS)
    placed(shop, "uni", "ask", 2, 4 * MICROS)
    assert shop.billing.exchange.info("eve", shop.now) == before
    assert shop.billing.exchange.orders("eve").orders == []
    cleared(shop)
    assert shop.billing.exchange.trades("eve").trades == []
    (clearing,) = shop.billing.exchange.info("eve", shop.now).clearings
    assert (clearing.price, clearing.processors) == (7 * MICROS, 2)
    # The other's limit is told to nobody, not even to who trades.
    (trade,) = shop.billing.exchange.trades("ann").trades
    assert trade.amount == 14 * MICROS


def test_an_order_with_its_key_is_placed_once() -> None:
    """Also after its clearing; with another wish, the key is refused."""
    shop = exchange_shop()
    asked = wish(shop, "bid", 2, 10 * MICROS)
    first = shop.billing.exchange.place("ann", asked, shop.now)
    assert shop.billing.exchange.place("ann", asked, shop.now) == first
    assert money(shop, "ann")[1] == 20 * MICROS
    assert refused(lambda: placed(shop, "ann", "bid", 3, 10 * MICROS)).status == 409
    cleared(shop)
    assert shop.billing.exchange.place("ann", asked, shop.now).state == "cleared"
    assert money(shop, "ann") == (CREDIT, 0, 0)
    # The same key of another user is another order.
    assert placed(shop, "bob", "bid", 2, 10 * MICROS).id != first.id


def test_an_order_is_withdrawn_until_it_is_cleared() -> None:
    shop = exchange_shop()
    order = placed(shop, "ann", "bid", 2, 10 * MICROS)
    exchange = shop.billing.exchange
    assert refused(lambda: exchange.withdraw("bob", order.id, shop.now)).status == 404
    for _ in range(2):
        assert exchange.withdraw("ann", order.id, shop.now).state == "withdrawn"
    assert money(shop, "ann") == (CREDIT, 0, 0)
    late = placed(shop, "ann", "bid", 1, MICROS, key="k2")
    cleared(shop)
    assert refused(lambda: exchange.withdraw("ann", late.id, shop.now)).status == 409


@pytest.mark.parametrize(
    ("rule", "side", "processors", "amount", "more", "where"),
    [
        ("double", "bid", 0, 5, {}, "processors"),
        ("double", "ask", 0, 5, {}, "processors"),
        ("double", "bid", 1, 0, {}, "amount"),
        ("double", "bid", 10**6, 10**15, {}, "amount"),
        ("double", "ask", 1, 5, {"service": ""}, "service"),
        ("double", "bid", 1, 5, {"service": "x"}, "service"),
        ("double", "bid", 1, 5, {"customer": "a\nb"}, "customer"),
        ("share", "bid", 1, 5, {}, "processors"),
        ("share", "ask", 1, 5, {}, "amount"),
        ("share", "ask", 0, 0, {}, "processors"),
        ("double", "bid", 1, 5, {"closes": 5.0}, "closes"),
    ],
)
def test_orders_that_do_not_fit_are_refused_by_field(
    rule: str, side: str, processors: int, amount: int, more: dict[str, Any], where: str
) -> None:
    shop = exchange_shop(rule)
    asked = wish(shop, side, processors, amount)
    asked = market.NewOrder(**{f: getattr(asked, f) for f in asked.__struct_fields__} | more)
    assert refused(lambda: shop.billing.exchange.place("ann", asked, shop.now)).where == where
    assert shop.billing.faults() == []


def test_nobody_bids_without_money_or_on_both_sides() -> None:
    shop = exchange_shop()
    poor = refused(lambda: placed(shop, "ann", "bid", 2, CREDIT))
    assert (poor.status, poor.detail) == (402, "costs 2000 SU, the account has 1000 SU")
    placed(shop, "ann", "bid", 1, MICROS)
    assert refused(lambda: placed(shop, "ann", "ask", 1, MICROS, key="k2")).where == "side"
    assert refused(lambda: placed(shop, "x (seller)", "bid", 1, MICROS)).status == 400


def test_a_service_without_an_exchange_says_so() -> None:
    shop = Shop()
    assert refused(lambda: shop.billing.exchange.info("ann", shop.now)).status == 404


def test_a_clearing_that_was_missed_is_made_up_for_or_given_up() -> None:
    """Back before the start it is cleared; back after it, all get their money."""
    for away, state in ((EVERY, "matched"), (EVERY + CONFIRM, None)):
        shop = exchange_shop()
        placed(shop, "ann", "bid", 2, 10 * MICROS)
        placed(shop, "uni", "ask", 2, 4 * MICROS)
        shop.journal.commit()
        shop.crash(away=away - shop.now % EVERY)
        assert [t.state for t in shop.billing.exchange.trades("ann").trades] == [state] * bool(
            state
        )
        assert money(shop, "ann")[1] == (14 * MICROS if state else 0)
        assert shop.billing.faults() == []


def test_an_exchange_that_is_given_up_clears_what_it_has() -> None:
    """The service's file has none any more; orders that stand are cleared, new ones refused."""
    shop = exchange_shop()
    placed(shop, "ann", "bid", 2, 10 * MICROS)
    placed(shop, "uni", "ask", 2, 4 * MICROS)
    asked = wish(shop, "bid", 1, MICROS, key="late")
    closes = shop.billing.exchange.info("ann", shop.now).closes
    shop.journal.commit()
    shop.sell_by(MarketSettings(credit=1_000.0))
    shop.crash()
    assert refused(lambda: shop.billing.exchange.place("ann", asked, shop.now)).status == 404
    shop.wait(closes - shop.now)
    assert [t.state for t in shop.billing.exchange.trades("ann").trades] == ["matched"]
    assert shop.billing.faults() == []


def test_orders_and_trades_are_asked_for_one_by_one() -> None:
    """By key and by order; those of others are not found."""
    shop = exchange_shop()
    for key in ("one", "two"):
        placed(shop, "ann", "bid", 1, 10 * MICROS, key=key)
    placed(shop, "uni", "ask", 2, 4 * MICROS)
    cleared(shop)
    exchange = shop.billing.exchange
    first, second = exchange.orders("ann").orders
    assert exchange.orders("ann", "two").orders == [second]
    assert exchange.orders("bob", "two").orders == []
    (trade,) = exchange.trades("ann", first.id).trades
    assert trade.order == first.id
    assert exchange.trades("uni", first.id).trades == []
    assert len(exchange.trades("uni").trades) == len(exchange.trades("ann").trades) == 2


# What owners set aside.


def reserved(shop: Shop, processors: int, name: str = "r") -> str:
    asked = market.NewReservation(
        deal=name, processors=processors, start=shop.now + 100, seconds=SECONDS
    )
    return shop.billing.reservations.reserve("owner", asked, shop.now)


def handed(shop: Shop, reservation: str, *parts: tuple[str, str, int, int]) -> list[Any]:
    wanted = [
        market.HandedPart(deal=deal, customer=customer, processors=count, amount=amount)
        for deal, customer, count, amount in parts
    ]
    given = shop.billing.reservations.hand_over(
        "owner", reservation, market.HandOver(parts=wanted), shop.now
    )
    return given.parts


def test_what_is_set_aside_is_nobody_elses_and_goes_to_who_paid() -> None:
    """Customers have no other money here; the agreement holds what they paid elsewhere."""
    shop = owner_shop(4)
    name = reserved(shop, 4)
    assert refused(lambda: reserved(shop, 1, "other")).status == 409
    assert reserved(shop, 4) == name
    parts = (("t1", "ann", 1, 5 * MICROS), ("t2", "bob", 2, 7 * MICROS))
    first = handed(shop, name, *parts)
    assert [part.reason for part in first] == ["", ""]
    assert handed(shop, name, *parts) == first
    assert money(shop, "ann") == (0, 5 * MICROS, 0)
    assert money(shop, "bob") == (0, 7 * MICROS, 0)
    # One processor was not sold, and is free again.
    reserved(shop, 1, "rest")
    assert shop.billing.faults() == []
    shop.journal.commit()
    shop.crash()
    assert handed(shop, name, *parts) == first
    assert shop.billing.faults() == []


def test_a_part_that_comes_late_costs_less_and_the_rest_is_the_customers() -> None:
    """Half of the time is over: half of the amount is set aside, the other half is free."""
    shop = owner_shop()
    name = reserved(shop, 2)
    shop.wait(100 + SECONDS / 2)
    (part,) = handed(shop, name, ("t1", "ann", 2, 8 * MICROS))
    assert part.agreement
    assert money(shop, "ann") == (4 * MICROS, 4 * MICROS, 0)
    shop.wait(SECONDS)
    assert handed(shop, name, ("t2", "ann", 1, MICROS))[0].reason == "the reserved time is over"
    assert money(shop, "ann")[0] == 8 * MICROS  # nothing was delivered
    assert shop.billing.faults() == []


def test_wrong_reservations_and_parts_are_refused() -> None:
    shop = owner_shop(4)
    name = reserved(shop, 2)
    assert refused(lambda: handed(shop, name, ("t", "ann", 3, 1))).where == "parts"
    assert refused(lambda: handed(shop, "nothing", ("t", "ann", 1, 1))).status == 404
    assert refused(lambda: reserved(shop, 9, "big")).where == "processors"
    assert refused(lambda: reserved(shop, 3)).where == "deal"
    assert handed(shop, name, ("t", "x (seller)", 1, 1))[0].agreement == ""
    assert shop.billing.faults() == []


# Everything is killed at any time.


class FlakyClient:
    """
    What a seller's command says to a service, where either may die before or after each request.

    A request whose answer is lost raises; what the service had not made durable is gone with it.
    """

    def __init__(self, shop: Shop, user: str, chance: random.Random, rate: float) -> None:
        self.shop, self.user, self.chance, self.rate = shop, user, chance, rate

    def asked(self, work: Callable[[], T]) -> T:
        if self.chance.random() < self.rate:
            self.shop.crash()
            raise ServiceUnreachable("killed before it had the request")
        try:
            answer = work()
        except ServiceError as error:
            problem = Problem(
                type="", title="", status=error.status, detail=error.detail, where=error.where
            )
            raise RemoteProblem("there", problem) from None
        fate = self.chance.random()
        if fate < self.rate:
            self.shop.crash()
            raise ServiceUnreachable("killed before it was durable")
        self.shop.journal.commit()
        if fate < 2 * self.rate:
            self.shop.crash()
            raise ServiceUnreachable("killed before it was answered")
        return answer

    @property
    def house(self) -> ExchangeHouse:
        return self.shop.billing.exchange

    async def place_order(self, order: market.NewOrder) -> market.OrderInfo:
        return self.asked(lambda: self.house.place(self.user, order, self.shop.now))

    async def exchange_orders(self, key: str) -> list[market.OrderInfo]:
        # Time passes while one waits for the clearing.
        found = self.asked(lambda: self.house.orders(self.user, key).orders)
        if any(order.state == "open" for order in found):
            self.shop.wait(max(0.0, found[-1].closes - self.shop.now))
        return found

    async def exchange_trades(self, order: str) -> list[market.TradeInfo]:
        return self.asked(lambda: self.house.trades(self.user, order).trades)

    async def report_trade(self, trade: str, said: market.SellerReport) -> market.TradeInfo:
        return self.asked(lambda: self.house.report(self.user, trade, said, self.shop.now))

    async def reserve(self, asked: market.NewReservation) -> AgreementInfo:
        def work() -> AgreementInfo:
            billing = self.shop.billing
            name = billing.reservations.reserve(self.user, asked, self.shop.now)
            return billing.agreement(self.user, name)

        return self.asked(work)

    async def hand_over(self, name: str, parts: list[market.HandedPart]) -> list[Any]:
        wanted = market.HandOver(parts=parts)

        def work() -> list[Any]:
            reservations = self.shop.billing.reservations
            return reservations.hand_over(self.user, name, wanted, self.shop.now).parts

        return self.asked(work)

    async def cancel_agreement(self, name: str) -> AgreementInfo:
        return self.asked(lambda: self.shop.billing.cancel(self.user, name))


class Seller:
    """A seller whose command is started again until it has ended."""

    def __init__(self, name: str, exchange: Shop, service: Shop, asked: market.NewOrder) -> None:
        self.name, self.exchange, self.service, self.asked = name, exchange, service, asked

    def place(self, chance: random.Random, rate: float) -> None:
        """The ask stands, and its processors are set aside; the command is killed then."""
        for _ in range(1_000):
            try:
                asyncio.run(self._placed(chance, rate))
            except ServiceUnreachable:
                continue
            return
        raise AssertionError("never placed")

    def finish(self, chance: random.Random, rate: float) -> None:
        for _ in range(1_000):
            self.service.now = self.exchange.now  # one clock for all
            try:
                asyncio.run(
                    sell_at(
                        self._client(self.exchange, chance, rate),
                        self._client(self.service, chance, rate),
                        self.asked,
                        again=True,
                        poll=0.0,
                    )
                )
            except ServiceUnreachable:
                continue
            return
        raise AssertionError("never finished")

    async def _placed(self, chance: random.Random, rate: float) -> None:
        class Placed(Exception):
            pass

        def stop(order: market.OrderInfo) -> None:
            raise Placed

        try:
            await sell_at(
                self._client(self.exchange, chance, rate),
                self._client(self.service, chance, rate),
                self.asked,
                placed=stop,
            )
        except Placed:
            return

    def _client(self, shop: Shop, chance: random.Random, rate: float) -> Any:
        return FlakyClient(shop, self.name, chance, rate)


limits = st.tuples(st.integers(1, 4), st.integers(1, 9))


@given(
    st.lists(limits, min_size=1, max_size=5),
    st.lists(limits, min_size=1, max_size=3),
    st.sampled_from(["double", "share"]),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.03, 0.08]),
    st.booleans(),
)
@settings(max_examples=examples(40), deadline=None)
def test_each_match_is_delivered_and_paid_once_whatever_is_killed(
    bids: list[tuple[int, int]],
    asks: list[tuple[int, int]],
    rule: str,
    seed: int,
    rate: float,
    silent: bool,
) -> None:
    """
    Buyers, sellers' commands, the exchange and the services are killed at random requests.

    In the end each trade is delivered, with one agreement of its amount at the seller's service,
    or undone, with none; the first seller may be away from the clearing on. Nothing was sold twice.
    """
    chance = random.Random(seed)
    exchange = exchange_shop(rule)
    sellers = []
    for number, (processors, amount) in enumerate(asks):
        given_amount = 0 if rule == "share" else amount * MICROS
        asked = wish(exchange, "ask", processors, given_amount)
        sellers.append(Seller(f"seller-{number}", exchange, owner_shop(4), asked))
        sellers[-1].place(chance, rate)
    for number, (processors, amount) in enumerate(bids):
        count = 0 if rule == "share" else processors
        asked = wish(exchange, "bid", count, amount * MICROS)
        buyer = FlakyClient(exchange, f"buyer-{number}", chance, rate)
        for _ in range(1_000):
            try:
                asyncio.run(buyer.place_order(asked))
            except ServiceUnreachable:
                continue
            break
    cleared(exchange)
    for seller in sellers[silent:]:
        seller.finish(chance, rate)
    exchange.journal.commit()
    exchange.crash(away=CONFIRM)
    if silent:  # it is told that it is too late
        sellers[0].finish(chance, rate)

    assert exchange.billing.faults() == []
    for number, seller in enumerate(sellers):
        trades = exchange.billing.exchange.trades(seller.name).trades
        assert {t.state for t in trades} <= {"undone" if silent and number == 0 else "delivered"}
        service = seller.service
        assert service.billing.faults() == []
        sold = service.billing.sales()
        deals = {
            deal.deal: (customer, deal.processors, deal.held, deal.id)
            for customer, listed in sold.items()
            for deal in listed.agreements
            if customer != seller.name
        }
        delivered = [t for t in trades if t.state == "delivered"]
        assert deals == {t.id: (t.customer, t.processors, t.amount, t.agreement) for t in delivered}
        assert sum(t.processors for t in delivered) <= asks[number][0]
        earned = exchange.billing.exchange.info(seller.name, exchange.now).earned
        assert earned == sum(held for _, _, held, _ in deals.values())
        # What was not sold is free again.
        own = sold.get(seller.name)
        assert all(deal.state in ("cancelled", "over") for deal in (own.agreements if own else []))
    spent = [money(exchange, f"buyer-{number}") for number in range(len(bids))]
    assert all(held == 0 and free + paid == CREDIT for free, held, paid in spent)
    earned_by_all = sum(
        exchange.billing.exchange.info(s.name, exchange.now).earned for s in sellers
    )
    assert sum(paid for _, _, paid in spent) == earned_by_all
    assert len(exchange.billing.exchange.info("x", exchange.now).clearings) == 1
