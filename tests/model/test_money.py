"""Amounts are exact and never too small."""

from hypothesis import given
from hypothesis import strategies as st

from bursar.model.money import MICROS, format_amount, from_micros, to_micros


@given(st.floats(min_value=0, max_value=1e9))
def test_an_amount_never_falls_short(units: float) -> None:
    """A hold covers its charge to within the float's own error, and by less than a micro-unit."""
    amount = to_micros(units)

    assert -1e-12 * max(1.0, units * MICROS) <= amount - units * MICROS < 1 + 1e-6


def test_decimal_fractions_are_not_pushed_up() -> None:
    """0.07 is 70,000 micro-units although 0.07 * 10^6 is a little above."""
    assert to_micros(0.07) == 70_000
    assert to_micros(1 / 3) == 333_334


def test_amounts_print_all_digits() -> None:
    """A bill shows what the ledger holds, to the unit."""
    assert format_amount(12_500_000, "SU") == "12.5 SU"
    assert format_amount(-1, "USD") == "-0.000001 USD"
    assert format_amount(0, "SU") == "0 SU"
    assert from_micros(2_500_000) == 2.5
