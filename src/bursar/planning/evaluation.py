"""Many purchases scheduled and paid, on all processors of this machine."""

import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from bursar.planning.kernels.availability import BoolArray, FloatArray, IntArray
from bursar.planning.policy import PlacementPolicy, Scheduler
from bursar.planning.problem import PlanningProblem
from bursar.planning.schedulers import by_site, priority_of, run


@dataclass(frozen=True, slots=True, eq=False)
class PurchaseScores:
    """
    Makespan and cost of purchases.

    Parameters
    ----------
    makespan
        Seconds, shape ``(n,)``; infinite where a task fits nowhere.
    cost
        Currency units, shape ``(n,)``; infinite where a task fits nowhere, NaN
        where a price is unknown.
    used
        Slots in which something runs, shape ``(n, n_slots)``.
    area
        Processor-seconds in use of each slot, shape ``(n, n_slots)``.
    """

    makespan: FloatArray
    cost: FloatArray
    used: BoolArray
    area: FloatArray

    @property
    def feasible(self) -> BoolArray:
        """Where every task is placed, shape ``(n,)``."""
        return np.isfinite(self.makespan)


class PurchaseEvaluator:
    """
    Schedules purchases and computes their makespans and costs.

    The kernels let go of the interpreter, so a batch is shared among threads; what a purchase comes
    to depends on nothing else, so their number changes nothing.

    Parameters
    ----------
    policy
        How tasks are placed.
    whole
        HPDC'07's own accounting: indivisible slots of a purchase are paid even where nothing runs
        in them. False: they are not bought then (the scheduled slots of e-Science'06).
    threads
        None: as many as this process may use processors.
    """

    def __init__(
        self,
        problem: PlanningProblem,
        policy: PlacementPolicy,
        *,
        whole: bool = False,
        threads: int | None = None,
    ) -> None:
        self.problem = problem
        self.policy = policy
        self.whole = whole
        self.threads = threads or len(os.sched_getaffinity(0))
        self.count = 0
        """Schedules made so far."""
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="bursar-planning")
        self._priorities: dict[tuple[Scheduler, bytes], IntArray] = {}

    def priority(self, caps: IntArray, policy: PlacementPolicy) -> IntArray:
        """The policy's order of the tasks for a purchase, shape ``(n_tasks,)``."""
        bought = by_site(self.problem, caps)
        widest = int(self.problem.widths.max())
        # More than the widest task needs changes no average.
        key = (policy.scheduler, np.minimum(bought, widest).tobytes())
        if key not in self._priorities:
            self._priorities[key] = priority_of(self.problem, caps, policy.scheduler)
        return self._priorities[key]

    def evaluate(
        self,
        caps: IntArray,
        *,
        priorities: IntArray | None = None,
    ) -> PurchaseScores:
        """
        Compute makespan and cost of each of many purchases.

        Parameters
        ----------
        caps
            Processors of each slot that may be used, shape ``(n, n_slots)``.
        priorities
            Tasks in the order to take them, shape ``(n, n_tasks)``; None: the policy's.
        """
        n = len(caps)
        self.count += n
        used = np.zeros(caps.shape, dtype=np.bool_)
        scores = PurchaseScores(np.empty(n), np.empty(n), used, np.zeros(caps.shape))
        groups = self._by_priority(caps) if priorities is None else [(np.arange(n), priorities)]
        parts = [
            (rows[part], priority if len(priority) == 1 else priority[part])
            for rows, priority in groups
            for part in self._parts(len(rows))
        ]

        def work(share: tuple[IntArray, IntArray]) -> None:
            rows, priority = share
            shape = (len(rows), caps.shape[1])
            makespan, cost = np.empty(len(rows)), np.empty(len(rows))
            used, area = np.zeros(shape, dtype=np.bool_), np.zeros(shape)
            outputs = (makespan, cost, used, area)
            run(self.problem, caps[rows], self.policy, priority, self.whole, outputs)
            scores.makespan[rows], scores.cost[rows] = makespan, cost
            scores.used[rows], scores.area[rows] = used, area

        if len(parts) == 1:
            work(parts[0])
        else:
            list(self._pool.map(work, parts))
        return scores

    def _by_priority(self, caps: IntArray) -> list[tuple[IntArray, IntArray]]:
        """Rows of the purchases whose tasks are taken in one order, and the order, for each."""
        groups: dict[int, tuple[list[int], IntArray]] = {}
        for i, row in enumerate(caps):
            priority = self.priority(row, self.policy)
            groups.setdefault(id(priority), ([], priority))[0].append(i)
        return [(np.array(rows), priority[None, :]) for rows, priority in groups.values()]

    def _parts(self, count: int) -> list[slice]:
        """Split so many purchases among the threads; no part is empty."""
        bounds = [count * k // self.threads for k in range(self.threads + 1)]
        return [slice(a, b) for a, b in itertools.pairwise(bounds) if b > a]
