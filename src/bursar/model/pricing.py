"""
Owners' pricing policies: a base price and rules, each a factor on it.

What a policy comes to for one customer and job is worked out in the market.
"""

import math
from dataclasses import dataclass
from zoneinfo import ZoneInfo

import msgspec

from bursar.model.money import Micros

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
    What an owner asks.

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
