"""Machines that a cloud sells: types, prices with source and date, and how they are billed."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from bursar.model.money import DataPrices
from bursar.model.provisioning import ENDING, PATIENCE, LearnedStartUp

PriceSource = Literal["provider", "table", "user"]
"""Source of a price: the provider's own answer, the dated tables of apache-libcloud, or the sites
file."""

START_UP = 90.0
"""Seconds from the purchase of a machine until its workers take tasks, where nothing is known."""

GRACE = 10.0
"""Seconds that tasks have after SIGTERM before the machine goes: GCE and Azure give 30 s in all."""

HOUR = 3600.0

LISTED = "USD"
"""Currency in which providers and apache-libcloud state prices, and in which bids are made."""


def plain_word(text: str, length: int = 24) -> str:
    """Return text in the letters that tags, names and files of all providers may have."""
    return re.sub(r"[^a-z0-9_]", "_", text.lower())[:length] or "_"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinePrice:
    """
    States the price of one machine, with the source and the date of the figure.

    Parameters
    ----------
    hourly
        Currency units per machine-hour. Not negative.
    source
        See :data:`PriceSource`.
    date
        Date of the figure, ``YYYY-MM-DD``; empty: not stated.
    """

    hourly: float
    source: PriceSource = "user"
    date: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.hourly < math.inf:
            raise ValueError(f"hourly must not be negative, got {self.hourly}")

    def __str__(self) -> str:
        names = {"provider": "the provider", "table": "libcloud's table", "user": "the sites file"}
        return f"{names[self.source]}" + (f" of {self.date}" if self.date else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotTerms:
    """
    Terms on which machines are bought that the provider may take back.

    Parameters
    ----------
    ceiling
        Most that is paid, currency units per machine-hour; the bid where the provider takes bids.
    price
        Price expected; None: not known yet, and then the ceiling counts.
    odds
        Odds that a machine is interrupted within an hour, 0 to 1; None: unknown.
    base
        Machines of the type that are bought on demand before any is bought as spot.
    """

    ceiling: float
    price: MachinePrice | None = None
    odds: float | None = None
    base: int = 0

    @property
    def expected(self) -> float:
        """Price to plan with, currency units per machine-hour; no more than the ceiling."""
        return self.ceiling if self.price is None else min(self.price.hourly, self.ceiling)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineType:
    """
    A kind of machine that a cloud sells.

    Parameters
    ----------
    name
        The provider's name of the type.
    processors
        Processors of one machine. Positive.
    memory
        Memory of one machine, bytes; None when unknown.
    gpus
        GPUs of one machine.
    most
        Machines of the type that may be held at a time. Positive.
    price
        Price on demand; None when unknown.
    spot
        Terms of machines that may be interrupted; None: none are bought.
    learned
        How long machines of the type took to start in earlier runs; None: unknown.
    """

    name: str
    processors: int
    memory: int | None = None
    gpus: int = 0
    most: int = 1
    price: MachinePrice | None = None
    spot: SpotTerms | None = None
    learned: LearnedStartUp | None = None

    def __post_init__(self) -> None:
        if self.processors < 1 or self.most < 1 or self.gpus < 0:
            raise ValueError(f"{self.name}: processors and most must be at least 1, gpus 0")

    def hourly(self, *, spot: bool = False) -> float | None:
        """Return the expected price of a machine-hour, currency units; None when unknown."""
        if spot:
            return None if self.spot is None else self.spot.expected
        return None if self.price is None else self.price.hourly

    def unit_price(self, *, spot: bool = False) -> float | None:
        """Return the expected price of a processor-second, currency units; None when unknown."""
        hourly = self.hourly(spot=spot)
        return None if hourly is None else hourly / (HOUR * self.processors)


@dataclass(frozen=True, slots=True, kw_only=True)
class BillingRules:
    """
    How a provider turns the life of a machine into time that is paid.

    Parameters
    ----------
    minimum
        Seconds that are paid for each machine at the least.
    unit
        Seconds to which longer times are rounded up. Positive.
    """

    minimum: float = 60.0
    unit: float = 1.0

    def __post_init__(self) -> None:
        if not (self.minimum >= 0 and self.unit > 0):
            raise ValueError("minimum must not be negative, unit must be positive")

    @property
    def least(self) -> float:
        """Seconds paid for a machine that is ended at once."""
        return self.billed(0.0)

    def billed(self, seconds: float) -> float:
        """
        Return the seconds that are paid for a machine that existed for some seconds.

        At least one unit is paid, and the minimum where that is longer.
        """
        seconds = max(seconds, self.minimum)
        # A nanosecond of rounding in clocks must not begin another unit.
        return max(1, math.ceil(seconds / self.unit - 1e-9)) * self.unit


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudEndpoint:
    """
    Describes a cloud, the account there, and the machines that may be bought.

    Parameters
    ----------
    provider
        Name of the provider in apache-libcloud, such as ``"ec2"``.
    region
        Region in the provider's words; empty: the driver's own choice.
    options
        Further arguments of the libcloud driver; no secrets.
    key_variable, secret_variable
        Environment variables with the two parts of the credentials; empty: none.
    credentials_file
        File with the credentials, which only its owner may read; empty: none.
    image
        Identity of the image that machines start.
    machines
        Types of machine that may be bought, in the order of the file.
    billing
        How machines are billed.
    start_up
        Seconds from a purchase until the machine's workers take tasks, estimated.
    start_limit
        Seconds after which a machine without workers is given up and ended.
    reach
        Host or address by which machines find this one; None: this machine's name.
    python
        Interpreter of the image that has Bursar.
    setup
        Lines of shell that a machine runs first.
    on_notice
        Lines of shell that a spot machine runs when the provider has announced to take it back.
    grace
        Seconds between SIGTERM and SIGKILL for tasks whose machine is taken back.
    owner
        Value of the tag by which machines of ours are found; empty: user and host.
    prices
        Sources of prices in the order in which they are asked.
    data_prices
        Prices of what tasks bring to machines and send back; None: that costs nothing.
    """

    provider: str
    region: str = ""
    options: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    key_variable: str = ""
    secret_variable: str = ""
    credentials_file: str = ""
    image: str = ""
    machines: tuple[MachineType, ...] = ()
    billing: BillingRules = field(default_factory=BillingRules)
    start_up: float = START_UP
    start_limit: float = 600.0
    reach: str | None = None
    python: str = "python3"
    setup: tuple[str, ...] = ()
    on_notice: tuple[str, ...] = ()
    grace: float = GRACE
    owner: str = ""
    prices: tuple[PriceSource, ...] = ("provider", "table", "user")
    data_prices: DataPrices | None = None

    def starts_in(self, machine: MachineType) -> float:
        """Return the expected seconds until a machine's workers take tasks: learned, or stated."""
        return self.start_up if machine.learned is None else machine.learned.median

    @property
    def late(self) -> float:
        """Seconds by which one start of ten is later than expected, at the most; 0: unknown."""
        learned = [machine.learned for machine in self.machines if machine.learned is not None]
        return max((one.high - one.median for one in learned), default=0.0)

    @property
    def processors(self) -> int:
        """Most processors that may be held at a time, of all types together."""
        return sum(machine.processors * machine.most for machine in self.machines)

    @property
    def least_unit_price(self) -> float | None:
        """Lowest price of a processor-second, currency units; None while none is known."""
        prices = [m.unit_price(spot=spot) for m in self.machines for spot in (False, True)]
        return min((price for price in prices if price is not None), default=None)

    @property
    def unwatched(self) -> float:
        """
        Seconds that a machine may cost beyond those in which a run uses it.

        The start, the time in which a pilot looks for a run that was killed, and what the billing
        rounds up.
        """
        return self.billing.billed(self.start_limit + PATIENCE + ENDING) + self.billing.unit
