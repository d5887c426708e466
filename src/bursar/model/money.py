"""
Money: amounts as the ledger holds them, transfers, accounts, and why something is not paid.

An amount is an integer, in micro-units of a currency.

Prices stay floats (currency units per processor-second); an *amount* is
rounded once, when a charge is made, and is exact from there on.
"""

import math
import re
from dataclasses import dataclass

import msgspec

# Money: amounts as the ledger holds them, transfers between accounts, the account that pays.

Micros = int
"""An amount: millionths of a currency unit."""

MICROS = 1_000_000

CURRENCY = r"[A-Za-z][A-Za-z0-9@._$-]{0,31}"
"""Regular expression of a currency's name: ``SU``, ``EUR``, ``G$``."""

_CURRENCY = re.compile(CURRENCY)


def check_currency(name: str) -> str:
    """
    Return the name of a currency unchanged, if valid.

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
    # 0.1 * 3 is a little more than 0.3: rounded up as it is it would cost one micro-unit more.
    nearest = round(exact)
    return nearest if abs(exact - nearest) <= 1e-12 * max(1.0, abs(exact)) else math.ceil(exact)


def rental_charge(processor_seconds: float, unit_price: float, fixed_price: float) -> Micros:
    """
    Return the charge n d c + f for rented processors (HPDC'07 section 2).

    Each part is rounded up once for the whole agreement or lease, never for each task, so that
    neither side gains by the number of tasks.

    Parameters
    ----------
    processor_seconds
        Processors x seconds that are paid (n d). May be infinite where they are free.
    unit_price
        Currency units per processor-second (c).
    fixed_price
        Currency units, once (f).
    """
    # Free for ever is free, and 0 times infinity is no number.
    use = to_micros(unit_price * processor_seconds) if unit_price else 0
    return use + to_micros(fixed_price) if fixed_price else use


def from_micros(amount: Micros) -> float:
    """Convert micro-units to currency units, for display and comparison."""
    return amount / MICROS


def format_amount(amount: Micros, currency: str) -> str:
    """Write an amount with all digits, but no trailing zeros: ``"12.5 SU"``."""
    # By whole numbers: a float would not show all digits of a large amount.
    sign = "-" if amount < 0 else ""
    whole, rest = divmod(abs(amount), MICROS)
    digits = f"{rest:06d}".rstrip("0")
    return f"{sign}{whole}{'.' + digits if digits else ''} {currency}"


class Transfer(msgspec.Struct, frozen=True, gc=False):
    """
    A double entry by which ``amount`` leaves ``source`` and enters ``target``.

    Parameters
    ----------
    number
        Position in the ledger, from 1; 0 before the ledger is known.
    time
        Seconds since the epoch.
    key
        Identity of the movement, unique in a ledger: a movement that is asked for again with its
        key is made once. Empty where a journal writes the movement with its cause.
    kind
        ``"grant"`` (in a run ``"fund"``), ``"transfer"``, ``"hold"``, ``"release"``,
        ``"settle"`` or ``"refund"``.
    source, target
        Accounts from and to which the amount moves: ``"budget"``, ``"user:ann"``,
        ``"held:lease-1"``, ``"site:local"``.
    amount
        Micro-units. Positive.
    agreement
        Agreement, or lease of a run, that the amount belongs to; empty for none.
    memo
        One line for people.
    """

    # The names and the order of the fields are the columns of books and what their chain of hashes
    # is made of: they never change.
    number: int
    time: float
    key: str
    kind: str
    source: str
    target: str
    amount: Micros
    agreement: str = ""
    memo: str = ""


class Payer(msgspec.Struct, frozen=True, kw_only=True):
    """
    A user's account in a book, which pays for a run.

    Parameters
    ----------
    account
        Name of a user of the book.
    book
        Absolute path of the book's file.
    budget
        Currency units that the user allows the run in all, besides what the account allows;
        None: no further limit.
    """

    account: str
    book: str
    budget: float | None = None


# The answer when work may not start.


@dataclass(frozen=True, slots=True)
class Refusal:
    """
    Why something may not start or be paid now.

    Parameters
    ----------
    reason
        One line for people.
    final
        True when asking again later cannot help, short of a larger budget.
    """

    reason: str
    final: bool
