"""Messages survive the wire, and what is none is said to be none."""

import contextlib
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.market.trading import WANTED

from bursar.market import trade_messages as m
from bursar.market.agreement import LARGEST, Agreement, DealTemplate, Terms
from bursar.market.trade_messages import decode, encode
from bursar.model.errors import InputError

HEAD = {"deal": "d", "sender": "ann", "to": "uni", "number": 1}
TERMS = Terms(processors=4, start=5_000.0, seconds=100.0, unit_price=0.25, fixed_price=2.0)
AGREEMENT = Agreement(id="uni-1", owner="uni", customer="ann", terms=TERMS, signed_at=7.5)
EACH = [
    m.RequestQuote(**HEAD, template=WANTED),
    m.PriceQuote(**HEAD, terms=TERMS, expires=60.0),
    m.Offer(**HEAD, amount=5, currency="SU", template=WANTED),
    m.CounterOffer(**HEAD, amount=5, currency="SU"),
    m.FinalOffer(**HEAD, amount=5, currency="SU"),
    m.Accept(**HEAD, of=3),
    m.Reject(**HEAD, reason="no", of=3),
    m.Expire(**HEAD, of=3),
    m.Confirm(**HEAD, agreement=AGREEMENT),
    m.Cancel(**HEAD),
    m.CallForBids(**HEAD, template=WANTED, rule="vickrey", closes=9.0, price=7, reverse=True),
    m.Bid(**HEAD, amount=TERMS.amount, currency="SU", terms=TERMS, expires=9.0),
    m.Ask(**HEAD, amount=5, currency="SU", leading=True, processors=2),
    m.RejectBid(**HEAD, reason="too low", of=2),
    m.InformOutcome(
        **HEAD,
        won=True,
        currency="SU",
        amount=5,
        trades=(m.Trade(buyer="ann", owner="uni", processors=2, amount=10),),
    ),
]


@pytest.mark.parametrize("message", EACH, ids=lambda message: type(message).__name__)
def test_every_message_survives_the_wire(message: m.TradeMessage) -> None:
    assert decode(encode(message)) == message


def edited(**fields: object) -> bytes:
    return json.dumps(json.loads(encode(EACH[2])) | fields).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"\xff"',
        b"[" * 10_000,
        b" " * 100_000,
        edited(kind="gift"),
        edited(amount=-1),
        edited(amount=1.5),
        edited(amount="5"),
        edited(amount=None),
        edited(amount=LARGEST + 1),
        edited(amount=10**400),
        edited(currency=""),
        edited(number=0),
        edited(number=True),
        edited(sender=""),
        edited(to="a\nb"),
        edited(deal="d" * 201),
        edited(more=1),
        edited(template={"processors": 0, "seconds": 1}),
        edited(template={"processors": 1, "seconds": 0}),
        edited(template={"processors": 1, "seconds": 9, "earliest": 5, "latest": 10}),
        edited(template={"processors": 1}),
        b'{"kind":"offer","amount":1e999}',
        b'{"kind":"offer","amount":NaN}',
    ],
)
def test_what_is_no_message_is_wrong_input_on_one_line(data: bytes) -> None:
    with pytest.raises(InputError) as caught:
        decode(data)

    assert str(caught.value).startswith("message: ")
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=300), st.integers(0, 200), st.sampled_from(EACH))
def test_damaged_bytes_are_a_message_or_wrong_input(
    noise: bytes, place: int, message: m.TradeMessage
) -> None:
    data = encode(message)
    for damaged in (noise, data[:place] + noise + data[place:], data[:place]):
        with contextlib.suppress(InputError):
            assert isinstance(decode(damaged), m.TradeMessage)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0])
def test_prices_and_times_that_are_no_numbers_or_negative_are_refused(wrong: float) -> None:
    lot = {"processors": 1, "seconds": 1.0, "start": 0.0, "unit_price": 1.0}
    for field in ("seconds", "start", "unit_price", "fixed_price"):
        with pytest.raises(ValueError, match=field):
            Terms(**lot | {field: wrong})
    with pytest.raises(ValueError, match="expires"):
        m.PriceQuote(**HEAD, terms=TERMS, expires=wrong)
    with pytest.raises(ValueError, match="amount"):
        m.CounterOffer(**HEAD, amount=wrong, currency="SU")


@given(st.integers(0, LARGEST), st.integers(1, 10**6), st.floats(0.001, 1e8))
def test_a_negotiated_amount_comes_back_from_its_unit_price(
    amount: int, processors: int, seconds: float
) -> None:
    """To the micro-unit, up to the largest amount."""
    wanted = DealTemplate(processors=processors, seconds=seconds)

    assert Terms.of_amount(wanted, 0.0, amount).amount == amount
