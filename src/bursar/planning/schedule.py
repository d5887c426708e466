"""A schedule: where and when each task of a planning problem runs."""

from dataclasses import dataclass

import numpy as np

from bursar.planning.kernels.availability import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """
    Where and when each task runs.

    Parameters
    ----------
    site
        Index into the problem's sites, shape ``(n_tasks,)``; -1 where the task is not placed.
    start, finish
        Seconds, shape ``(n_tasks,)``.
    held_first, held_count
        Holdings of task ``i`` begin at ``held_first[i]``, ``held_count[i]`` of them.
    held_slot, held_width
        Slot and number of its processors of each holding.
    used
        Slots in which something runs, shape ``(n_slots,)``.
    until
        Last finish in each slot, seconds, shape ``(n_slots,)``.
    peak
        Most processors of each slot in use at once, shape ``(n_slots,)``.
    paid
        Processor-seconds paid of each slot that is used, shape ``(n_slots,)``.
    """

    site: IntArray
    start: FloatArray
    finish: FloatArray
    held_first: IntArray
    held_count: IntArray
    held_slot: IntArray
    held_width: IntArray
    used: BoolArray
    until: FloatArray
    peak: IntArray
    paid: FloatArray

    @property
    def complete(self) -> bool:
        """Whether every task is placed."""
        return bool((self.site >= 0).all())

    @property
    def makespan(self) -> float:
        """Last finish of the tasks placed, seconds from 0."""
        return float(self.finish.max())

    @property
    def holdings(self) -> tuple[IntArray, IntArray, IntArray]:
        """Return task, slot and processors of each holding, by task, shape ``(n,)`` each."""
        counts = self.held_count
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        at = np.repeat(self.held_first, counts) + within
        task = np.repeat(np.arange(len(counts)), counts)
        return task, self.held_slot[at], self.held_width[at]
