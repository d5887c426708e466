"""What an owner would ask in the hours to come is what it asks when these hours have come."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.market.trading import server

from bursar.market.agreement import DealTemplate
from bursar.market.price_forecast import HourlyPrice, forecast_prices
from bursar.market.trade_messages import PriceQuote, Reject, RequestQuote
from bursar.market.trade_server import BargainingRules, TradeServer
from bursar.model.money import (
    Adjusting,
    Advance,
    Bulk,
    Calendar,
    Demand,
    ForGroup,
    Loyalty,
    Pricing,
    Refusal,
)

HOUR = 3_600.0
NOW = 1_795_737_600.0 + 600.0
EVERY_DAY = frozenset(range(7))

RULES = (
    Calendar(zone="Europe/Rome", days=EVERY_DAY, begin=9 * HOUR, end=18 * HOUR, factor=2.0),
    Demand(points=((0.0, 0.5), (1.0, 3.0))),
    Adjusting(target=0.5, gain=0.2, least=0.5, most=2.0, every=1_800.0),
    Bulk(steps=((7_200.0, 0.9),)),
    Loyalty(steps=((100.0, 0.8),)),
    Advance(steps=((7_200.0, 0.7),)),
    ForGroup(groups=frozenset({"physics"}), factor=0.6),
)


class NoNights:
    """Refuses one customer what begins within a second stretch of six hours."""

    def refuse(self, customer: str, processors: int, start: float, end: float) -> Refusal | None:
        night = customer == "bob" and NOW + 6 * HOUR <= start < NOW + 12 * HOUR
        return Refusal("sells nothing to bob at night", final=False) if night else None


def owner_with(
    rules: list, sold: list[tuple[int, int, int]], paid: int, reserve: float, *, holds: bool
) -> TradeServer:
    """Return an owner of four processors; what is sold is hour, length and processors."""
    owner = server(
        validity=600.0,
        holds=holds,
        groups={"ann": frozenset({"physics"})},
        customers={"ann", "bob"},
        bargaining=BargainingRules(reserve=reserve),
    )
    owner.reprice(Pricing(1.0, tuple(rules)))
    owner.limits = NoNights()
    if paid:
        owner.note_payment("ann", paid)
    for number, (begin, hours, processors) in enumerate(sold):
        start = NOW + begin * HOUR
        owner.capacity.commit(f"sold-{number}", processors, start, start + hours * HOUR)
    # The owner's price moves from its first message on.
    ask(owner, "bob", 1, HOUR, NOW, deal="first")
    return owner


def ask(
    owner: TradeServer,
    customer: str,
    processors: int,
    seconds: float,
    start: float,
    *,
    now: float = NOW,
    deal: str = "d",
) -> PriceQuote | Reject:
    wanted = DealTemplate(
        processors=processors, seconds=seconds, earliest=start, latest=start + seconds
    )
    (answer,) = owner.deliver(
        RequestQuote(deal=deal, sender=customer, to="uni", number=1, template=wanted), now
    )
    return answer


SOLD = st.lists(st.tuples(st.integers(-2, 20), st.integers(1, 8), st.integers(1, 2)), max_size=4)


@given(
    rules=st.lists(st.sampled_from(RULES), unique_by=type, max_size=7),
    sold=SOLD,
    paid=st.sampled_from([0, 50, 500]),
    reserve=st.sampled_from([0.0, 0.9]),
    holds=st.booleans(),
    customer=st.sampled_from(["ann", "bob", "eve"]),
    processors=st.integers(1, 3),
    row=st.integers(0, 23),
)
def test_a_quote_taken_at_that_time_agrees(
    rules: list,
    sold: list[tuple[int, int, int]],
    paid: int,
    reserve: float,
    holds: bool,
    customer: str,
    processors: int,
    row: int,
) -> None:
    """Price, amount and refusal are those of a real quote, if nobody buys until then."""
    owner = owner_with(rules, sold, paid, reserve, holds=holds)
    forecast = forecast_prices(
        owner, customer, processors=processors, seconds=HOUR, since=NOW, count=24, now=NOW
    )
    told = forecast[row]

    booked = ask(owner, customer, processors, HOUR, told.start, deal="booked")
    if isinstance(booked, PriceQuote):
        assert booked.terms.unit_price == told.booked
        owner.let_go("booked", customer)
    else:
        assert told.booked is None
    answer = ask(owner, customer, processors, HOUR, told.start, now=told.start)
    if isinstance(answer, PriceQuote):
        assert (answer.terms.unit_price, answer.terms.amount, "") == (
            told.unit_price,
            told.amount,
            told.reason,
        )
    else:
        assert (answer.reason, None) == (told.reason, told.unit_price)


def test_asking_changes_nothing_at_the_owner() -> None:
    """A look ahead over a day moves neither its clock nor its price, and holds nothing."""
    owner = owner_with(list(RULES), [(1, 2, 2)], 500, 0.0, holds=True)
    before = owner.state, owner.capacity.commitments, owner.adjusted
    for _ in range(2):
        forecast_prices(owner, "ann", processors=1, seconds=HOUR, since=NOW, count=24, now=NOW)
    assert (owner.state, owner.capacity.commitments, owner.adjusted) == before


def test_the_hours_are_full_hours_after_the_first_time() -> None:
    found = forecast_prices(
        server(), "ann", processors=1, seconds=60.0, since=NOW, count=3, now=NOW
    )
    assert [price.start for price in found] == [NOW, NOW + 3_000.0, NOW + 6_600.0]


def test_the_reserve_and_who_may_buy_are_told() -> None:
    owner = owner_with([Calendar(zone="UTC", days=EVERY_DAY, factor=0.5)], [], 0, 0.8, holds=False)

    def first(customer: str, processors: int = 1) -> HourlyPrice:
        (found,) = forecast_prices(
            owner, customer, processors=processors, seconds=HOUR, since=NOW, count=1, now=NOW
        )
        return msgspec.structs.replace(found, start=0.0)

    amount = 2_880_000_000  # 3600 s at the reserve of 0.8
    expected = HourlyPrice(start=0.0, unit_price=0.8, amount=amount, booked=0.8, at_reserve=True)
    assert first("ann") == expected
    assert first("eve").reason == "eve is no customer"
    assert first("ann", 5).reason == "has 4 processors"
