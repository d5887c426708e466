"""The ledger is balanced whatever is asked of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.market.ledger import OWNER, WALLET, Ledger, held_for, paid_to
from bursar.model.errors import InputError
from bursar.model.money import Refusal, Transfer

amounts = st.integers(min_value=1, max_value=1_000)
leases = st.sampled_from(["lease-1", "lease-2"])
requests = st.one_of(
    st.tuples(st.sampled_from(["fund", "withdraw"]), amounts),
    st.tuples(st.sampled_from(["hold", "release", "settle"]), amounts, leases),
)


def ask(ledger: Ledger, request: tuple) -> Transfer | Refusal:
    verb, amount, *lease = request
    if verb == "fund":
        return ledger.fund(0.0, amount)
    if verb == "withdraw":
        return ledger.withdraw(0.0, amount)
    if verb == "settle":
        return ledger.settle(0.0, lease[0], "local", amount)
    return getattr(ledger, verb)(0.0, lease[0], amount)


@given(st.lists(requests, max_size=60))
def test_money_is_conserved(history: list[tuple]) -> None:
    """Balances sum to zero, only the owner is below it, and a refusal moves nothing."""
    ledger = Ledger()
    for request in history:
        before = ledger.balances
        answer = ask(ledger, request)

        if isinstance(answer, Refusal):
            assert ledger.balances == before
        assert sum(ledger.balances.values()) == 0
        assert all(b >= 0 for account, b in ledger.balances.items() if account != OWNER)
        assert ledger.funded == ledger.free + ledger.held + ledger.spent


@given(st.lists(requests, max_size=60), st.data())
def test_every_prefix_of_the_rows_is_a_ledger(history: list[tuple], data: st.DataObject) -> None:
    """The rows alone give the balances back, also when the last of them are lost."""
    ledger = Ledger()
    for request in history:
        ask(ledger, request)
    kept = data.draw(st.integers(min_value=0, max_value=len(ledger)))

    assert Ledger(ledger.rows).balances == ledger.balances
    part = Ledger(ledger.rows[:kept])
    assert sum(part.balances.values()) == 0
    assert part.rows + ledger.rows_from(kept) == ledger.rows


def test_a_hold_beyond_the_budget_is_an_answer() -> None:
    """Refusal, not an exception, and the money stays where it was."""
    ledger = Ledger()
    ledger.fund(0.0, 100)

    assert ledger.hold(1.0, "lease-1", 101) == Refusal(
        "101 micro-units to hold, 100 are free", final=False
    )
    assert ledger.balances == {OWNER: -100, WALLET: 100}


def test_a_hold_pays_a_site_and_gives_the_rest_back() -> None:
    """The usual way of money: 100 granted, 60 held, 45 paid, 15 back."""
    ledger = Ledger()
    ledger.fund(0.0, 100)
    ledger.hold(0.0, "lease-1", 60)
    ledger.settle(5.0, "lease-1", "local", 45)
    ledger.release(5.0, "lease-1", 15)

    assert ledger.balances == {
        OWNER: -100,
        WALLET: 55,
        held_for("lease-1"): 0,
        paid_to("local"): 45,
    }
    assert ledger.settled() == {"lease-1": 45}


def test_rows_out_of_order_are_refused_by_number() -> None:
    """A damaged journal is named, not silently taken for money."""
    ledger = Ledger()
    ledger.fund(0.0, 100)
    ledger.hold(0.0, "lease-1", 60)

    with pytest.raises(InputError, match='ledger row 1: transfer of 60 from "budget"'):
        Ledger(ledger.rows[1:])
