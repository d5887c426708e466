"""
Money as the ledger holds it: integers, in micro-units of a currency.

Prices stay floats (currency units per processor-second); an *amount* is
rounded once, when a charge is made, and is exact from there on.
"""

import math
import re

Micros = int
"""An amount: millionths of a currency unit."""

MICROS = 1_000_000

CURRENCY = r"[A-Za-z][A-Za-z0-9@._$-]{0,31}"
"""Regular expression of a currency's name: ``SU``, ``EUR``, ``G$``."""

_CURRENCY = re.compile(CURRENCY)


def check_currency(name: str) -> str:
    """
    Return the name of a currency unchanged, if it can be one.

    Every reader asks this function, so that a currency that sites count in can
    also be granted, budgeted and booked.

    Raises
    ------
    ValueError
        When it is no letter followed by up to 31 letters, digits, or ``@ . _ $ -``.
    """
    if not _CURRENCY.fullmatch(name):
        shown = "".join(c if c.isprintable() else "?" for c in name[:40])
        raise ValueError(
            "a currency is named by a letter and up to 31 letters, digits or @ . _ $ -, "
            f'such as SU, EUR or G$, got "{shown}"'
        )
    return name


def to_micros(units: float) -> Micros:
    """
    Amount of ``units`` currency units, rounded up: a hold never falls short.

    A float's own error (one part in 10^12) does not count as a fraction.
    """
    if not math.isfinite(units):
        raise ValueError(f"an amount must be finite, got {units}")
    exact = units * MICROS
    nearest = round(exact)
    return nearest if abs(exact - nearest) <= 1e-12 * max(1.0, abs(exact)) else math.ceil(exact)


def from_micros(amount: Micros) -> float:
    """Currency units, for display and comparison."""
    return amount / MICROS


def format_amount(amount: Micros, currency: str) -> str:
    """The amount with all its digits, no trailing zeros: ``"12.5 SU"``."""
    sign = "-" if amount < 0 else ""
    whole, rest = divmod(abs(amount), MICROS)
    digits = f"{rest:06d}".rstrip("0")
    return f"{sign}{whole}{'.' + digits if digits else ''} {currency}"
