"""An owner that does not deliver what it sold pays the penalty that it agreed to."""

from hypothesis import given
from hypothesis import strategies as st
from tests.service.billing.billing_rig import MICROS, Shop

from bursar.market.agreement import Agreement
from bursar.service.config import MarketSettings

SELLING = MarketSettings(credit=1_000.0, penalty=0.5)
"""Half of the price of what is missing; the site asks half a SU for a processor-second."""

GRACE = 60.0


def bought(shop: Shop, processors: int = 2, seconds: float = 1_000.0) -> Agreement:
    agreement = shop.buy("ann", processors=processors, seconds=seconds)
    assert isinstance(agreement, Agreement)
    return agreement


def test_the_penalty_is_part_of_the_agreement() -> None:
    """The customer sees it before accepting; an owner without one promises none."""
    assert bought(Shop(selling=SELLING)).terms.penalty == 0.5
    assert bought(Shop()).terms.penalty == 0.0


def test_who_gets_nothing_is_paid_the_penalty() -> None:
    """Beyond a minute of grace: 2 x 940 s x 0.5 SU x 0.5 = 470 SU, more than was ever charged."""
    shop = Shop(selling=SELLING)
    agreement = bought(shop)
    shop.wait(2_000.0)
    (info,) = shop.billing.agreements("ann").agreements
    assert (info.state, info.charged, info.penalty) == ("over", 0, 470 * MICROS)
    assert shop.billing.accounts.account("ann").balance == 1_470 * MICROS
    assert shop.billing.faults() == []
    assert shop.billing.agreement("ann", agreement.id).held == 0


def test_a_penalty_comes_off_what_was_delivered() -> None:
    """Half of the time both: 500 SU; then 500 s nothing: 2 x (1000 - 60 - 500) x 0.25 = 220 SU."""
    shop = Shop(selling=SELLING)
    agreement = bought(shop)
    shop.billing.admission.ready(agreement.id, 2)
    shop.wait(500.0)
    shop.billing.admission.ready(agreement.id, 0)
    shop.wait(600.0)
    (info,) = shop.billing.agreements("ann").agreements
    assert (info.charged, info.penalty) == (280 * MICROS, 220 * MICROS)
    assert shop.billing.accounts.account("ann").balance == 720 * MICROS
    (line,) = shop.billing.accounts.invoice("ann").lines
    assert line.amount == 280 * MICROS
    assert shop.billing.faults() == []


def test_what_the_customer_gives_back_is_not_missing() -> None:
    """Nor is a start that is a little late."""
    shop = Shop(selling=SELLING)
    agreement = bought(shop)
    shop.wait(GRACE)
    shop.billing.admission.ready(agreement.id, 2)
    shop.wait(100.0)
    info = shop.billing.cancel("ann", agreement.id)
    assert (info.charged, info.penalty) == (100 * MICROS, 0)


def test_an_owner_that_is_away_pays_too() -> None:
    """The service was killed and came back after the end; a second restart changes nothing."""
    shop = Shop(selling=SELLING)
    agreement = bought(shop)
    shop.billing.admission.ready(agreement.id, 2)
    shop.wait(100.0)
    shop.journal.commit()
    shop.crash(away=5_000.0)
    (info,) = shop.billing.agreements("ann").agreements
    delivered = info.charged + info.penalty
    assert 60 * MICROS <= delivered <= 100 * MICROS + 470 * MICROS
    assert info.penalty > 400 * MICROS
    balance = shop.billing.accounts.account("ann").balance
    shop.journal.commit()
    shop.crash()
    assert shop.billing.accounts.account("ann").balance == balance
    assert shop.billing.faults() == []


def test_workers_that_the_customer_ended_cost_no_penalty_and_no_money() -> None:
    """Ready for 400 s, ended by a task for 500, and lost by the owner for the last 100."""
    shop = Shop(selling=SELLING)
    agreement = bought(shop)
    admission = shop.billing.admission
    admission.ready(agreement.id, 2)
    shop.wait(400.0)
    admission.ready(agreement.id, 0, excused=2)
    shop.wait(500.0)
    admission.ready(agreement.id, 0)
    shop.wait(600.0)
    (info,) = shop.billing.agreements("ann").agreements
    # 400 s delivered: 400 SU; missing by the owner: 2 x (100 - 60) s x 0.5 SU x 0.5 = 20 SU.
    assert (info.charged, info.penalty) == (380 * MICROS, 20 * MICROS)
    records = [signed.record for signed in shop.billing.accounts.usage("ann")]
    assert [(r.status, r.delivered, r.owed) for r in records] == [
        ("succeeded", 800.0, 800.0),
        ("excused", 1_000.0, 0.0),
    ]
    (line,) = shop.billing.accounts.invoice("ann").lines
    assert line.processor_seconds == 800.0
    assert shop.billing.faults() == []


def test_what_is_excused_in_hindsight_is_not_missing() -> None:
    """The worker that comes back says why it was away; a kill and a restart change nothing."""
    shop = Shop(selling=SELLING)
    agreement = bought(shop)
    admission = shop.billing.admission
    admission.ready(agreement.id, 2)
    shop.wait(100.0)
    admission.ready(agreement.id, 1)
    shop.wait(800.0)
    admission.ready(agreement.id, 2, excused_before=1)
    shop.journal.commit()
    shop.crash()
    shop.billing.admission.ready(agreement.id, 2)
    shop.wait(600.0)
    (info,) = shop.billing.agreements("ann").agreements
    assert info.penalty == 0
    assert info.charged == (200 + 800 + 200) * MICROS // 2
    assert shop.billing.faults() == []


def test_time_that_is_excused_is_never_paid_though_nothing_else_came() -> None:
    """Not even the price that is due once."""
    shop = Shop(selling=SELLING)
    agreement = bought(shop)
    shop.billing.admission.ready(agreement.id, 0, excused=2)
    shop.wait(2_000.0)
    info = shop.billing.agreement("ann", agreement.id)
    assert (info.state, info.charged, info.penalty) == ("over", 0, 0)


@given(
    penalty=st.floats(0, 1),
    spans=st.lists(st.tuples(st.integers(0, 3), st.floats(1, 400)), max_size=6),
    cancelled=st.booleans(),
)
def test_money_is_conserved_whatever_is_delivered(
    penalty: float, spans: list[tuple[int, float]], cancelled: bool
) -> None:
    """
    The customer ends with its credit less the charge plus the penalty, to the micro-unit, and the
    penalty is never more than its share of what was missing.
    """
    shop = Shop(selling=MarketSettings(credit=10_000.0, penalty=penalty))
    agreement = bought(shop, processors=3)
    delivered = 0.0
    at = 0.0
    for processors, seconds in spans:
        shop.billing.admission.ready(agreement.id, processors)
        shop.wait(seconds)
        delivered += processors * max(0.0, min(at + seconds, 1_000.0) - min(at, 1_000.0))
        at += seconds
    shop.billing.admission.ready(agreement.id, 0)
    if cancelled:
        shop.billing.cancel("ann", agreement.id)
    else:
        shop.wait(2_000.0)
    (info,) = shop.billing.agreements("ann").agreements
    terms = agreement.terms
    gross = terms.charge(delivered) if delivered else 0
    assert abs(max(0, gross - info.penalty) - info.charged) <= 2
    due = 3 * min(at if cancelled else 1_000.0, 1_000.0)
    most = penalty * terms.unit_price * max(0.0, due - delivered) * MICROS
    assert 0 <= info.penalty <= most + 1
    balance = shop.billing.accounts.account("ann").balance
    assert abs(balance - (10_000 * MICROS - gross + info.penalty)) <= 2
    assert shop.billing.faults() == []
