"""
Time turned round: a schedule pushed as late as it can be, then early again.

Read from its end, a schedule is one of the reversed workflow on slots that begin
where they ended. Scheduling that, tasks that finish last first, closes gaps that
the forward schedule left; read forward again, its starts are an order of the
tasks that is seldom worse and often better (*forward-backward improvement*,
Tormos and Lova 2001, Annals of Operations Research 102: 65-81).
"""

import itertools
from dataclasses import replace

import numpy as np

from bursar.planning.kernels.availability import FloatArray, IntArray, SlotArrays
from bursar.planning.kernels.ranks import after_others
from bursar.planning.policy import PlacementPolicy
from bursar.planning.problem import OfferedSlots, PlanningProblem
from bursar.planning.schedulers import schedule


class TimeReversedProblem:
    """Schedules a problem backwards in time."""

    def __init__(self, problem: PlanningProblem) -> None:
        self._problem = problem
        self._back = problem.turned()

    def latest_starts(
        self, caps: IntArray, finish: FloatArray, makespan: float
    ) -> FloatArray | None:
        """
        Return the starts of the tasks pushed late, seconds, shape ``(n_tasks,)``.

        None where not all of them find a place when taken in this order; starts
        may be before 0.

        Parameters
        ----------
        caps
            Processors of each slot that may be used, shape ``(n_slots,)``.
        finish
            Finish of each task in the schedule to be pushed, seconds, shape ``(n_tasks,)``.
        makespan
            The moment that becomes 0, seconds.
        """
        back = self._back
        keys = after_others(-finish, back.order, back.parent_start, back.parent_index)
        priority = back.order[np.argsort(keys[back.order], kind="stable")]
        where, turned = self._turned(makespan)
        made = schedule(turned, caps[where], PlacementPolicy(scheduler="list"), priority=priority)
        return makespan - made.finish if made.complete else None

    def _turned(self, makespan: float) -> tuple[IntArray, PlanningProblem]:
        """Return the original index of each slot, and the problem with time reversed."""
        problem = self._problem
        slots = problem.offers.arrays
        # A slot that begins after the end of the schedule has no time left when time is turned
        # round.
        closed = slots.begin >= makespan
        begin = np.where(closed, 0.0, makespan - np.minimum(slots.last, makespan))
        last = np.where(closed, 0.0, makespan - slots.begin)
        spans = list(itertools.pairwise(slots.first))
        where = np.concatenate([a + np.argsort(begin[a:b], kind="stable") for a, b in spans])
        begin, last = begin[where], last[where]
        by_last = np.concatenate([a + np.argsort(last[a:b], kind="stable") for a, b in spans])
        arrays = SlotArrays(
            first=slots.first,
            site=slots.site,
            start=begin,
            begin=begin,
            end=last,
            last=last,
            by_last=by_last,
            processors=slots.processors[where],
            unit_price=slots.unit_price[where],
            fixed_price=slots.fixed_price[where],
            divisible=slots.divisible[where],
            leased=slots.leased[where],
        )
        offers = OfferedSlots(tuple(problem.offers.slots[i] for i in where), arrays)
        return where, replace(self._back, offers=offers)
