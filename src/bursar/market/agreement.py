"""Defines what is traded: the deal template, the terms of a deal, and the agreement."""

import hashlib
import math

import msgspec

from bursar.model.money import Micros, check_currency, from_micros, rental_charge

LARGEST = 10**15
"""Largest amount of a deal, micro-units: up to here a unit price gives it back exactly."""

LATEST = 250_000_000_000.0
"""Last moment that can be agreed on, seconds since the epoch."""


class DealTemplate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Describes the wanted processors, over which both sides negotiate.

    Parameters
    ----------
    processors
        How many. Positive.
    seconds
        For how long. Positive.
    earliest
        Start at the earliest, seconds since the epoch.
    latest
        End at the latest, seconds since the epoch; None for no deadline.
    customer
        Who buys; empty: whoever is awarded it.
    currency
        Of every price in the conversation.
    price
        Offered for all of it, micro-units; None for no offer yet.

    Raises
    ------
    ValueError
        When a value is out of range.
    """

    processors: int
    seconds: float
    earliest: float = 0.0
    latest: float | None = None
    customer: str = ""
    currency: str = "SU"
    price: Micros | None = None

    def __post_init__(self) -> None:
        _check_lot(self.processors, self.seconds, self.earliest)
        if self.latest is not None and not self.earliest + self.seconds <= self.latest <= LATEST:
            raise ValueError(f"latest must leave {self.seconds:g} s, got {self.latest}")
        check_currency(self.currency)
        if self.price is not None:
            check_amount("price", self.price)

    def holds(self, terms: "Terms") -> bool:
        """Whether terms satisfy the template, whatever their price."""
        return (
            terms.processors == self.processors
            and terms.seconds == self.seconds
            and terms.currency == self.currency
            and terms.start >= self.earliest
            and (self.latest is None or terms.start <= self.latest - self.seconds)
        )


class Terms(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """
    Holds the processors, time and prices of a deal.

    Parameters
    ----------
    processors
        How many. Positive.
    start
        Seconds since the epoch.
    seconds
        For how long. Positive.
    unit_price
        Currency units per processor-second. Not negative.
    fixed_price
        Currency units charged once. Not negative.
    currency
        Of both prices.
    penalty
        What the owner pays for agreed time that it does not deliver, as a share of the price of
        that time, 0 to 1.

    Raises
    ------
    ValueError
        When a value is out of range.
    """

    processors: int
    start: float
    seconds: float
    unit_price: float
    fixed_price: float = 0.0
    currency: str = "SU"
    penalty: float = 0.0

    def __post_init__(self) -> None:
        _check_lot(self.processors, self.seconds, self.start)
        for what, price in (("unit_price", self.unit_price), ("fixed_price", self.fixed_price)):
            if not 0 <= price < math.inf:
                raise ValueError(f"{what} must not be negative, got {price}")
        check_currency(self.currency)
        if not 0 <= self.penalty <= 1:
            raise ValueError(f"penalty must be 0 to 1, got {self.penalty}")
        units = self.unit_price * self.processors * self.seconds + self.fixed_price
        if not math.isfinite(units) or self.amount > LARGEST:
            raise ValueError(f"a deal of {units:g} {self.currency} is too large")

    @classmethod
    def of_amount(cls, wanted: DealTemplate, start: float, amount: Micros) -> "Terms":
        """
        Return terms whose total price is a negotiated amount.

        It becomes a unit price, so that what is given back early need not be paid;
        kept to the end, it comes to that amount, to the micro-unit.
        """
        check_amount("amount", amount)
        return cls(
            processors=wanted.processors,
            start=start,
            seconds=wanted.seconds,
            unit_price=from_micros(amount) / (wanted.processors * wanted.seconds),
            currency=wanted.currency,
        )

    @property
    def end(self) -> float:
        """End of the deal, seconds since the epoch."""
        return self.start + self.seconds

    @property
    def amount(self) -> Micros:
        """Total price in micro-units."""
        return self.charge(self.processors * self.seconds)

    def charge(self, processor_seconds: float) -> Micros:
        """Return the charge for so many processor-seconds under these terms, micro-units."""
        return rental_charge(processor_seconds, self.unit_price, self.fixed_price)


class Agreement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Records a binding deal, whose prices later changes of prices do not affect.

    Parameters
    ----------
    id
        Unique at its owner.
    owner, customer
        Who sells, who buys.
    terms
        What, when and for how much.
    signed_at
        Seconds since the epoch.
    """

    id: str
    owner: str
    customer: str
    terms: Terms
    signed_at: float

    def __post_init__(self) -> None:
        for what in ("id", "owner", "customer"):
            check_name(what, getattr(self, what))
        check_moment("signed_at", self.signed_at)

    @property
    def processors(self) -> int:
        """Number of processors."""
        return self.terms.processors

    @property
    def start(self) -> float:
        """Start, seconds since the epoch."""
        return self.terms.start

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return self.terms.seconds

    @property
    def unit_price(self) -> float:
        """Price in currency units per processor-second."""
        return self.terms.unit_price

    @property
    def fixed_price(self) -> float:
        """Price in currency units that is charged once."""
        return self.terms.fixed_price

    @property
    def currency(self) -> str:
        """Currency of both prices."""
        return self.terms.currency


def check_name(what: str, name: str) -> None:
    """Raise ValueError unless a name is one to 200 printable characters."""
    if not 0 < len(name) <= 200 or not name.isprintable():
        raise ValueError(f"{what} must be 1 to 200 printable characters")


def check_amount(what: str, amount: Micros) -> None:
    """Raise ValueError unless an amount is in a deal's range."""
    if isinstance(amount, float) or not 0 <= amount <= LARGEST:
        raise ValueError(f"{what} must be micro-units from 0 to {LARGEST:.0e}, got {amount}")


def check_moment(what: str, moment: float) -> None:
    """Raise ValueError unless a value can be seconds since the epoch."""
    if not 0 <= moment <= LATEST:
        raise ValueError(f"{what} must be seconds since the epoch, got {moment}")


def _check_lot(processors: int, seconds: float, start: float) -> None:
    if not 1 <= processors <= 10**9:
        raise ValueError(f"processors must be at least 1, got {processors}")
    if not 0 < seconds <= LATEST:
        raise ValueError(f"seconds must be positive, got {seconds}")
    check_moment("start", start)


# What was delivered under an agreement.

_PURPOSE = b"bursar usage record 1\n"
"""Prefix of the signed bytes, so that a signature serves for nothing else."""


EXCUSED = "excused"
"""
Status of a record of time in which processors had no workers by the customer's own doing: nothing
is paid for it, and no penalty is owed.
"""


class UsageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """
    Processors that one job held under an agreement.

    Parameters
    ----------
    agreement
        Under which it ran.
    provider, customer
        Who delivered, who pays.
    job
        Task, job or lease; unique within the agreement.
    start, end
        Seconds since the epoch.
    processors
        How many it held. Positive.
    cpu_seconds
        Processor time its processes used.
    status
        How it ended, as :class:`bursar.model.task.Status` has it, or ``"excused"``.
    agreed
        Processor-seconds agreed on for it; None: what it takes.

    Raises
    ------
    ValueError
        When a value is out of range.
    """

    agreement: str
    provider: str
    customer: str
    job: str
    start: float
    end: float
    processors: int = 1
    cpu_seconds: float = 0.0
    status: str = "succeeded"
    agreed: float | None = None

    def __post_init__(self) -> None:
        if not (-math.inf < self.start <= self.end < math.inf):
            raise ValueError(f"end must not be before start, got {self.start} to {self.end}")
        if self.processors < 1:
            raise ValueError(f"processors must be at least 1, got {self.processors}")
        if not 0 <= self.cpu_seconds < math.inf:
            raise ValueError(f"cpu_seconds must not be negative, got {self.cpu_seconds}")
        if self.agreed is not None and not 0 <= self.agreed < math.inf:
            raise ValueError(f"agreed must not be negative, got {self.agreed}")

    @property
    def delivered(self) -> float:
        """Processor-seconds held."""
        return self.processors * (self.end - self.start)

    @property
    def owed(self) -> float:
        """Processor-seconds to be paid: what was delivered, at most what was agreed on."""
        return self.delivered if self.agreed is None else min(self.delivered, self.agreed)

    @property
    def missing(self) -> float:
        """Processor-seconds that were agreed on and not delivered."""
        return 0.0 if self.agreed is None else max(0.0, self.agreed - self.delivered)


class SignedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """
    Holds a usage record with its provider's signature.

    Parameters
    ----------
    record
        The usage.
    number
        1 for the first of a chain.
    previous
        Hash of the one before, in hexadecimal; empty for the first.
    signature
        Of all the above.
    """

    record: UsageRecord
    number: int = 1
    previous: str = ""
    signature: bytes = b""

    @property
    def digest(self) -> str:
        """SHA-256 digest of record and signature; the next record of the chain holds it."""
        return hashlib.sha256(signed_bytes(self) + self.signature).hexdigest()


def signed_bytes(signed: SignedRecord) -> bytes:
    """Return the signed bytes, equal for equal records however these were transported."""
    r = signed.record
    return _PURPOSE + msgspec.msgpack.encode(
        (
            signed.number,
            signed.previous,
            r.agreement,
            r.provider,
            r.customer,
            r.job,
            float(r.start),  # JSON gives 0 back as 0.0
            float(r.end),
            r.processors,
            float(r.cpu_seconds),
            r.status,
            None if r.agreed is None else float(r.agreed),
        )
    )
