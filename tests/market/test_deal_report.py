"""What owners answered, as it follows from the messages; limits of a buyer."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from tests.market.trading import NOW, UNITS, WANTED, manager, server

from bursar.market.trade_manager import TradeLimits, next_best
from bursar.market.trade_messages import MessageExchange
from bursar.market.trade_server import BargainingRules


def test_the_answers_to_a_tender_say_who_won_and_who_refused() -> None:
    """The winner first, then the bids that lost, then the refusals with their reasons."""
    buyer = manager()
    owners = [server("a", 2.0), server("b", 1.0), server("c", 3.0), server("d", processors=1)]
    exchange = MessageExchange([buyer, *owners])
    limit = 1_000 * UNITS
    exchange.deliver(buyer.call("t", list("abcd"), WANTED, NOW + 9, NOW, limit=limit), NOW)
    rows = [(a.owner, a.state, a.price, a.reason) for a in buyer.answers("t")]
    assert rows == [
        ("b", "agreed", 400 * UNITS, ""),
        ("a", "offered", 800 * UNITS, ""),
        ("c", "refused", 1_200 * UNITS, "we refused: is too dear"),
        ("d", "refused", None, "has 1 processors"),
    ]
    best = next_best(buyer.answers("t"))
    assert best is not None
    assert best.owner == "a"


def test_an_owner_that_holds_its_bid_has_it_free_when_another_wins() -> None:
    """A call for tenders must not tie up what the losers have."""
    loser = server("a", 2.0, holds=True)
    buyer = manager()
    exchange = MessageExchange([buyer, loser, server("b", 1.0)])
    exchange.deliver(buyer.call("t", ["a", "b"], WANTED, NOW + 9, NOW), NOW)
    assert buyer.states("t")["b"] == "agreed"
    assert loser.capacity.free(WANTED.earliest, WANTED.earliest + 100) == 4


def test_a_quote_that_is_withdrawn_sets_nothing_aside() -> None:
    owner, buyer = server("a", holds=True), manager()
    exchange = MessageExchange([buyer, owner])
    exchange.deliver(buyer.ask("q", ["a"], WANTED, NOW), NOW)
    assert owner.capacity.free(WANTED.earliest, WANTED.earliest + 100) == 0
    exchange.deliver(buyer.cancel("q", "a", NOW), NOW)
    assert owner.capacity.free(WANTED.earliest, WANTED.earliest + 100) == 4


def test_silence_is_an_answer() -> None:
    """Of an owner that was asked and has not answered."""
    buyer = manager()
    buyer.ask("q", ["a"], WANTED, NOW)
    (answer,) = buyer.answers("q")
    assert (answer.state, answer.price) == ("silent", None)
    assert next_best([answer]) is None


@given(
    most=st.none() | st.integers(0, 10**12),
    posted=st.integers(1, 10**12),
    floor=st.floats(0, 1),
    rounds=st.integers(2, 20),
    beta=st.floats(0.1, 10),
)
def test_bargaining_keeps_the_limit_and_agrees_where_reserves_meet(
    most: int | None, posted: int, floor: float, rounds: int, beta: float
) -> None:
    """Never above the limit or the posted price; an agreement exactly if both reserves allow it."""
    unit = posted / 1e6 / 400
    owner = server("a", unit, bargaining=BargainingRules(floor=floor))
    buyer = manager()
    exchange = MessageExchange([buyer, owner])
    exchange.deliver(buyer.ask("q", ["a"], WANTED, NOW), NOW)
    (quote,) = buyer.answers("q")
    assert quote.price is not None
    concession = TradeLimits(most=most, rounds=rounds, beta=beta).concession(quote.price)
    assert concession is not None
    exchange.deliver(buyer.bargain("b", "a", WANTED, concession, NOW), NOW)
    (answer,) = buyer.answers("b")
    reserve = quote.price if most is None else min(most, quote.price)
    assert (answer.state == "agreed") == (reserve >= math.ceil(quote.price * floor))
    if answer.state == "agreed":
        assert answer.price is not None
        assert math.ceil(quote.price * floor) <= answer.price <= reserve
    assert structs.asdict(answer)["currency"] == "SU"


@pytest.mark.parametrize(
    "wrong",
    [
        {"patience": 0.0},
        {"patience": math.inf},
        {"most": 1, "first": 2},
        {"rounds": 1},
        {"beta": 0.0},
    ],
)
def test_limits_check_themselves(wrong: dict) -> None:
    with pytest.raises(ValueError, match=r"patience|first|rounds|beta"):
        TradeLimits(**wrong)


def test_without_a_limit_and_a_quote_there_is_nothing_to_start_from() -> None:
    assert TradeLimits().concession(None) is None
