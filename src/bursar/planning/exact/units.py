"""Whole numbers of time and of money, which is what the solver computes with."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from bursar.planning.exact.placement_modes import PlacementMode, delays
from bursar.planning.exact.solver_query import SAME
from bursar.planning.kernels.availability import SlotArrays
from bursar.planning.problem import PlanningProblem

LONGEST = 2**30
"""Steps of time up to the horizon, of a step that divides all times."""


COARSE, MIDDLE, FINE = 2**13, 2**16, 2**22
"""Steps of time up to the horizon where no step divides all times; of fewer the
solver makes more. Coarse is for run times that are whole steps."""


FINEST = 2**46
"""Units of money in the dearest plan where no unit divides all prices."""


EASE = 1e-6
"""Steps by which sums of floats may pass an end."""


@dataclass(frozen=True, slots=True)
class TimeGrid:
    """
    Times as whole steps.

    Parameters
    ----------
    step
        Seconds, a power of two.
    horizon
        No task needs to end later, seconds.
    up
        Round so that what fits the grid fits the clock; else the other way about.
    """

    step: float
    horizon: float
    up: bool

    def begin(self, moment: float) -> int:
        """The step at which something may begin."""
        return math.ceil(moment / self.step) if self.up else math.floor(moment / self.step)

    def end(self, moment: float) -> int:
        """The step by which something must end."""
        last = min(moment, self.horizon) / self.step
        return math.floor(last if self.up else last + EASE)

    def span(self, duration: float) -> int:
        """Steps that something takes."""
        return self.begin(duration)

    def paid_from(self, moment: float) -> int:
        """The step from which time is paid."""
        return math.floor(moment / self.step) if self.up else math.ceil(moment / self.step)


@dataclass(frozen=True, slots=True)
class MoneyGrid:
    """Amounts as whole units, rounded as the grid is; ``whole``: no rounding is needed."""

    unit: float
    whole: bool
    up: bool

    def of(self, amount: float) -> int:
        if self.whole:
            return round(amount / self.unit)
        return math.ceil(amount / self.unit) if self.up else math.floor(amount / self.unit)


def grid_for(
    problem: PlanningProblem, ways: list[PlacementMode], horizon: float, fineness: int
) -> TimeGrid:
    """
    The coarsest step that divides all times; if that is too fine, one that does not.

    Parameters
    ----------
    fineness
        0: coarse steps, better searched; 1: finer ones; 2: and rounded so that all
        ends are kept.
    """
    slots = problem.offers.arrays
    lengths = {way.duration for way in ways} | {delay for *_, delay in delays(problem)}
    instants = set(lengths)
    for j in {j for way in ways for j in way.slots}:
        instants.update(float(t[j]) for t in (slots.start, slots.begin, slots.end, slots.last))
    instants.discard(math.inf)
    step = 1.0
    # Powers of two: dividing by them loses no bit, so a time on the grid is exact.
    while horizon / step < LONGEST:
        if _divides(step, instants):
            return TimeGrid(step, horizon, up=fineness == 2)
        step /= 2
    if fineness > 0:
        return TimeGrid(_step(horizon, FINE), horizon, up=fineness == 2)
    step = _step(horizon, COARSE)
    # Where only slots' begins and ends are rounded, what is lost does not add up.
    while not _divides(step, lengths) and step > _step(horizon, MIDDLE):
        step /= 2
    return TimeGrid(step, horizon, up=False)


def _step(horizon: float, steps: int) -> float:
    """The finest power of two, seconds, with at most so many steps to the horizon."""
    return float(2.0 ** math.ceil(math.log2(max(horizon, 1e-9) / steps)))


def _divides(step: float, instants: Iterable[float]) -> bool:
    return all((moment / step).is_integer() for moment in instants)


def money_for(problem: PlanningProblem, ways: list[PlacementMode], grid: TimeGrid) -> MoneyGrid:
    """The coarsest unit that divides all payments; if that is too fine, one that does not."""
    slots = problem.offers.arrays
    amounts: set[float] = set()
    for way in ways:
        amounts.update(
            float(slots.unit_price[j]) * way.duration for j in way.slots if slots.divisible[j]
        )
    total = 0.0
    for j in sorted({j for way in ways for j in way.slots}):
        unit, n, fixed = prices_of(slots, j)
        start, end = float(slots.start[j]), float(slots.end[j])
        amounts.add(fixed)
        if slots.leased[j] or (not slots.divisible[j] and slots.last[j] > end):
            amounts.add(unit * grid.step)
        if not slots.divisible[j]:
            amounts.add(unit * n * (end - start))
        last = grid.horizon if slots.divisible[j] else max(grid.horizon, end)
        total += fixed + unit * n * max(last - start, 0.0)
    # Prices are mostly written in decimals, so a power of ten makes them whole.
    for digits in range(7):
        unit = 10.0**-digits
        if total / unit < FINEST and all(
            abs(a / unit - round(a / unit)) <= SAME * max(1.0, a / unit) for a in amounts
        ):
            return MoneyGrid(unit, True, grid.up)
    return MoneyGrid(2.0 ** math.ceil(math.log2(total / FINEST)), False, grid.up)


def prices_of(slots: SlotArrays, j: int) -> tuple[float, int, float]:
    """Unit price, processors and fixed price of a slot."""
    return float(slots.unit_price[j]), int(slots.processors[j]), float(slots.fixed_price[j])
