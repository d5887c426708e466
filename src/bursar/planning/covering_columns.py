"""Columns of the covering programme: the slots, and parts of slots, that a plan can buy."""

from dataclasses import dataclass

import numpy as np

from bursar.planning.energetic_bound import TaskWindows
from bursar.planning.kernels.availability import BoolArray, FloatArray, IntArray
from bursar.planning.problem import PlanningProblem


@dataclass(frozen=True, slots=True, eq=False)
class CoveringColumns:
    """
    Holds the columns of one makespan: for each slot a share, and the parts paid beside the share.

    Parameters
    ----------
    slots
        Index of each slot that a task can use, shape ``(n,)``; the other arrays describe
        these slots.
    begin, end
        Time that is paid with the slot's share, seconds; empty where none is.
    part_begin, part_end
        Time of which only the part used is paid, seconds; empty where there is none.
    part_from
        When the rectangle that is paid for begins, seconds; minus infinity where only
        the processor time in use is paid.
    processors
        Processors of each slot.
    speed
        Speed of each slot's site.
    volume
        Processor-seconds that can be paid in addition to the share.
    leased
        Whether the slot is paid as a rectangle as wide as the tasks in it.
    price, part_price
        Price of the share and price of the whole volume, currency units.
    whole
        Whether the share is bought, 0 or 1; otherwise it costs nothing.
    """

    slots: IntArray
    begin: FloatArray
    end: FloatArray
    part_begin: FloatArray
    part_end: FloatArray
    part_from: FloatArray
    processors: IntArray
    speed: FloatArray
    volume: FloatArray
    leased: BoolArray
    price: FloatArray
    part_price: FloatArray
    whole: BoolArray

    @classmethod
    def of(
        cls, problem: PlanningProblem, windows: TaskWindows, makespan: float
    ) -> "CoveringColumns":
        """Return what can be bought of the slots in which some task can run by the makespan."""
        slots = problem.offers.arrays
        shortest = np.where(windows.possible & (problem.runtimes > 0), problem.runtimes, np.inf)
        room = np.minimum(slots.last, makespan) - slots.begin
        useful = np.flatnonzero(room > 0.999999 * shortest.min(axis=0)[slots.site])
        start, begin = slots.start[useful], slots.begin[useful]
        end = slots.end[useful]
        last = np.minimum(slots.last[useful], makespan)
        divisible, leased = slots.divisible[useful], slots.leased[useful]
        processors = slots.processors[useful]
        unit = np.nan_to_num(slots.unit_price[useful], nan=0.0)
        fixed = np.nan_to_num(slots.fixed_price[useful], nan=0.0)
        part_begin = np.where(divisible, begin, np.maximum(end, begin))
        part_from = np.where(leased, start, np.where(divisible, -np.inf, end))
        length = last - np.where(divisible & ~leased, begin, np.where(leased, start, end))
        volume = processors * np.maximum(length, 0.0)
        span = np.where(divisible, 0.0, end - start)
        return cls(
            slots=useful,
            begin=begin,
            end=np.where(divisible, begin, np.minimum(end, makespan)),
            part_begin=part_begin,
            part_end=np.maximum(last, part_begin),
            part_from=part_from,
            processors=processors,
            speed=problem.speeds[slots.site[useful]],
            volume=volume,
            leased=leased,
            price=fixed + processors * span * unit,
            part_price=volume * unit,
            whole=~divisible | (fixed > 0),
        )

    def __len__(self) -> int:
        return len(self.slots)

    def gives(self, opens: float, closes: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """
        Return processor-seconds that each slot gives within a window, shape ``(n,)`` each.

        The first are those of the time that the share pays; the second bound those of the
        part; the third bound them when the whole volume is paid.
        """
        whole = np.minimum(closes, self.end) - np.maximum(opens, self.begin)
        close = np.minimum(closes, self.part_end)
        part = np.maximum(close - np.maximum(opens, self.part_begin), 0.0)
        # A rectangle ending within the window is best when it ends at its close.
        length = np.where(np.isfinite(self.part_from) & (part > 0), close - self.part_from, 1.0)
        share = np.where(np.isfinite(self.part_from), part / length, part > 0)
        return (
            np.maximum(whole, 0.0) * self.processors,
            part * self.processors,
            share * self.volume,
        )
