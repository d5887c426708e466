"""
Amounts of money, and the policies by which owners set prices.

An amount is an integer, in micro-units of a currency.

Prices stay floats (currency units per processor-second); an *amount* is
rounded once, when a charge is made, and is exact from there on.

What a policy comes to for one customer and job is worked out in the market.
"""

import math
import re
from dataclasses import dataclass
from zoneinfo import ZoneInfo

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


GIGABYTE = 1_000_000_000


class DataPrices(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    Prices of data that go into a site and come out of it, as the sites file states them.

    Parameters
    ----------
    into, out
        Currency units per GB (10^9 bytes). Not negative.
    date
        Date of the figures, ``YYYY-MM-DD``; empty: not stated.
    """

    into: float = 0.0
    out: float = 0.0
    date: str = ""

    def charge(self, bytes_in: int, bytes_out: int) -> Micros:
        """Return the price of so many bytes, rounded up once."""
        return to_micros((bytes_in * self.into + bytes_out * self.out) / GIGABYTE)

    def __str__(self) -> str:
        return "the sites file" + (f" of {self.date}" if self.date else "")


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
        ``"grant"`` (in a run ``"fund"``), ``"lapse"``, ``"transfer"``, ``"hold"``, ``"release"``,
        ``"settle"`` or ``"refund"``.
    source, target
        Accounts from and to which the amount moves: ``"budget"``, ``"user:ann"``,
        ``"held:lease-1"``, ``"site:local"``.
    amount
        Micro-units. Positive.
    agreement
        Agreement, or lease of a run, that the amount belongs to; of a grant, the period in which
        it may be spent; of a lapse, the key of the grant; empty for none.
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


class ExchangeRate(msgspec.Struct, frozen=True, kw_only=True):
    """
    Worth of a currency in another one, by which prices were changed.

    Parameters
    ----------
    currency
        Currency in which a site states its prices.
    rate
        Units of the other currency for one unit of it.
    since
        Day from which the rate holds, ``"2026-11-01"``.
    """

    currency: str
    rate: float
    since: str


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


# Owners' pricing policies: a base price and rules, each a factor on it.

DAY = 86_400
"""Seconds of a local day, as the clock on the wall shows them."""


class Calendar(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="calendar"):
    """
    A factor at some hours of some days, as peak and off-peak.

    Parameters
    ----------
    zone
        Whose clock counts, as ``"Australia/Melbourne"``.
    days
        0 (Monday) to 6.
    begin, end
        Seconds of the local day, as its clock shows them. With the end before the
        beginning, the hours go on into the next day and belong to the day they begin on.
    factor
        On the price. Not negative.

    Raises
    ------
    ValueError
        When a value is out of range, or the zone is not known.
    """

    zone: str
    days: frozenset[int]
    begin: int = 0
    end: int = DAY
    factor: float

    def __post_init__(self) -> None:
        try:
            ZoneInfo(self.zone)
        except (KeyError, ValueError, OSError):
            raise ValueError(f'unknown time zone "{self.zone}"') from None
        if not self.days or not self.days <= frozenset(range(7)):
            raise ValueError(f"days must be of 0 to 6, got {sorted(self.days)}")
        if not (0 <= self.begin < DAY and 0 < self.end <= DAY and self.begin != self.end):
            raise ValueError(f"hours must lie within a day, got {self.begin} to {self.end} s")
        _check_factor(self.factor)


class Demand(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="demand"):
    """
    A factor by how much of the machine is sold.

    Parameters
    ----------
    points
        Utilisation (0 to 1, ascending) and factor; straight between them, level outside.

    Raises
    ------
    ValueError
        When a value is out of range.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        if not self.points:
            raise ValueError("points must not be empty")
        _check_steps("points", self.points)
        if self.points[-1][0] > 1:
            raise ValueError(f"utilisation must be 0 to 1, got {self.points[-1][0]}")


class Adjusting(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="adjusting"):
    """
    A factor that follows supply and demand, one step each period.

    Parameters
    ----------
    target
        Utilisation, 0 to 1, at which the factor stays.
    gain
        What the factor moves by for a whole machine too much or too little. Not negative.
    least, most
        Bounds of the factor, around 1.
    every
        Period, seconds. Positive.

    Raises
    ------
    ValueError
        When a value is out of range.
    """

    target: float
    gain: float
    least: float
    most: float
    every: float

    def __post_init__(self) -> None:
        if not 0 <= self.target <= 1:
            raise ValueError(f"target must be 0 to 1, got {self.target}")
        if not 0 <= self.gain < math.inf:
            raise ValueError(f"gain must not be negative, got {self.gain}")
        if not 0 <= self.least <= 1 <= self.most < math.inf:
            raise ValueError(f"least and most must lie around 1, got {self.least}, {self.most}")
        if not 0 < self.every < math.inf:
            raise ValueError(f"every must be positive, got {self.every}")


class Bulk(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="bulk"):
    """
    A factor by the size of the purchase.

    Parameters
    ----------
    steps
        Processor-seconds from which, and the factor; ascending. 1 below the first.

    Raises
    ------
    ValueError
        When a value is out of range.
    """

    steps: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        _check_steps("steps", self.steps)


class Loyalty(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="loyalty"):
    """
    A factor by what the customer has paid this owner so far.

    Parameters
    ----------
    steps
        Micro-units from which, and the factor; ascending. 1 below the first.

    Raises
    ------
    ValueError
        When a value is out of range.
    """

    steps: tuple[tuple[Micros, float], ...]

    def __post_init__(self) -> None:
        _check_steps("steps", self.steps)


class Advance(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="advance"):
    """
    A factor by how long ahead of its start a job is booked.

    Parameters
    ----------
    steps
        Seconds from which, and the factor; ascending. 1 below the first.

    Raises
    ------
    ValueError
        When a value is out of range.
    """

    steps: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        _check_steps("steps", self.steps)


class ForGroup(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="group"):
    """
    A factor for customers of certain groups.

    Parameters
    ----------
    groups
        Their names; one in common is enough.
    factor
        On the price. Not negative.

    Raises
    ------
    ValueError
        When a value is out of range.
    """

    groups: frozenset[str]
    factor: float

    def __post_init__(self) -> None:
        if not self.groups:
            raise ValueError("groups must not be empty")
        _check_factor(self.factor)


Rule = Calendar | Demand | Adjusting | Bulk | Loyalty | Advance | ForGroup


@dataclass(frozen=True, slots=True)
class Pricing:
    """
    Prices that an owner asks.

    Parameters
    ----------
    base
        Currency units per processor-second. Not negative.
    rules
        Factors on it, multiplied in this order. At most one is :class:`Adjusting`.

    Raises
    ------
    ValueError
        When a value is out of range.
    """

    base: float
    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.base < math.inf:
            raise ValueError(f"base must not be negative, got {self.base}")
        if sum(isinstance(rule, Adjusting) for rule in self.rules) > 1:
            raise ValueError("at most one rule may be adjusting")

    @property
    def adjusting(self) -> Adjusting | None:
        """The rule that follows supply and demand, if there is one."""
        return next((rule for rule in self.rules if isinstance(rule, Adjusting)), None)


def _check_factor(factor: float) -> None:
    if not 0 <= factor < math.inf:
        raise ValueError(f"factor must not be negative, got {factor}")


def _check_steps(what: str, steps: tuple[tuple[float, float], ...]) -> None:
    before = -1.0
    for bound, factor in steps:
        if not (0 <= bound < math.inf and bound > before):
            raise ValueError(f"{what} must ascend from 0, got {bound}")
        before = bound
        _check_factor(factor)
