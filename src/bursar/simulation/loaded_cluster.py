"""
Simulates a batch cluster under the load of a trace, and workflows on such a cluster.

HPDC'07 sections 4 and 5: the cluster runs its own jobs, advertises what its
schedule leaves free, takes reservations, and runs a workflow's tasks just in time
(*best effort*): each is submitted to the queue when its parents have ended.
"""

import heapq
import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bursar.cluster.job_table import Early, Policy
from bursar.cluster.machine import Machine, Reservation
from bursar.cluster.slots import offered_slots
from bursar.model.campaign import Workflow
from bursar.model.errors import InputError
from bursar.model.money import Refusal
from bursar.model.site import SiteFacts
from bursar.model.trace import Trace
from bursar.planning.problem import PlanningProblem
from bursar.planning.schedule import Schedule
from bursar.profile_kernel import merged, summed
from bursar.simulation.workloads import WEEK

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

SU = 1 / 3600
"""Service units of a processor-second."""
ROUNDING = 1e-6
"""Seconds by which windows that follow one another are kept apart."""
USUAL = 3600.0
"""Seconds that a job is assumed to ask for where no job is present."""
SHORTEST = 1e-3
"""Seconds. A free slot shorter than this is not worth a line in an advertisement."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkflowExecution:
    """
    Holds the times of a workflow that was run.

    Parameters
    ----------
    submit, start, finish
        Times of each task, seconds since the first submission, shape ``(n_tasks,)``.
    """

    submit: FloatArray
    start: FloatArray
    finish: FloatArray

    @property
    def makespan(self) -> float:
        """Seconds from the first submission to the last end."""
        return float(self.finish.max())


class LoadedCluster:
    """
    A machine that runs the jobs of a trace, at some moment of the trace.

    Parameters
    ----------
    trace
        Jobs of the cluster's own users; jobs wider than the machine are left out.
    at
        Moment to begin at, seconds on the trace's clock.
    policy, early
        See :class:`bursar.cluster.machine.Machine`.
    looseness
        Users ask for their job's run time times this; None: for what they asked in the log.
    """

    def __init__(
        self,
        trace: Trace,
        processors: int,
        *,
        at: float,
        policy: Policy = "conservative",
        early: Early = "keep",
        looseness: float | None = 1.0,
    ) -> None:
        if looseness is not None and not 1.0 <= looseness < math.inf:
            raise InputError(f"jobs cannot ask for less than they take, got {looseness} times it")
        fits = trace.processors <= processors
        self._submit = trace.submit[fits]
        self._width = trace.processors[fits]
        self._runtime = trace.runtime[fits]
        asked = trace.estimate if looseness is None else trace.runtime * looseness
        self._estimate = asked[fits]
        self._next = 0
        self._own = np.zeros(0, dtype=np.int64)  # numbers of the trace's jobs on the machine
        # The machine begins empty with the log and is moved to `at`: by then it is as full as the
        # log's own history makes it.
        first = min(at, float(self._submit[0])) if len(self._submit) else at
        self.machine = Machine(processors, policy, early=early, now=first)
        self.advance(at)

    @property
    def now(self) -> float:
        """Seconds on the trace's clock."""
        return self.machine.now

    def copy(self) -> "LoadedCluster":
        """Return an independent cluster in the same state."""
        twin = object.__new__(LoadedCluster)
        # Arrays are replaced, never changed in place, so that both may share them.
        twin.__dict__.update(self.__dict__)
        twin.machine = self.machine.copy()
        return twin

    def as_expected(self, times: int) -> "LoadedCluster":
        """
        Return a copy in which the jobs of the past week come again as future jobs, several times.

        Less comes again where the log is younger. What one can know of the future: what runs and
        waits now, and what users usually send.
        """
        twin = self.copy()
        past = self._submit[: self._next]
        span = min(WEEK, self.now - float(past[0])) if len(past) else 0.0
        again = np.flatnonzero(past > self.now - span)
        if not len(again):
            times = 0
        shift = np.repeat(span * np.arange(1, times + 1), len(again))
        chosen = np.concatenate((np.arange(self._next), np.tile(again, times)))
        shifts = np.concatenate((np.zeros(self._next), shift))
        twin._submit = self._submit[chosen] + shifts
        twin._width = self._width[chosen]
        twin._runtime = self._runtime[chosen]
        twin._estimate = self._estimate[chosen]
        return twin

    @property
    def has_jobs(self) -> bool:
        """Whether the trace has any jobs."""
        return len(self._submit) > 0

    def advance(self, until: float) -> None:
        """Move the clock, and submit the trace's jobs of that time."""
        end = int(np.searchsorted(self._submit, until, side="right"))
        first, jobs = self._next, slice(self._next, end)
        if end > first:
            number = len(self.machine.jobs.submitted)
            self.machine.submit_all(
                self._submit[jobs], self._width[jobs], self._estimate[jobs], self._runtime[jobs]
            )
            self._own = np.concatenate((self._own, np.arange(number, number + end - first)))
            self._next = end
        self.machine.advance(until)

    @property
    def next_event(self) -> float:
        """Time of the next event, seconds; infinite when none is due."""
        coming = float(self._submit[self._next]) if self._next < len(self._submit) else math.inf
        return min(self.machine.next_event, coming)

    def traversal_time(self, processors: int = 1, seconds: float | None = None) -> float:
        """
        Return the wait of a job submitted now if all ran as long as estimated, seconds.

        The *estimated traversal time* of the queue (Cavalieri et al. 2003, section 2.1), under
        any policy.

        Parameters
        ----------
        seconds
            Seconds for which the job asks; None: the mean of the jobs present.

        Raises
        ------
        InputError
            When no such job can run.
        """
        seconds = self._usual() if seconds is None else seconds
        return self.machine.expected_start(processors, seconds) - self.now

    def _usual(self) -> float:
        """Return the mean seconds for which the running and waiting jobs ask."""
        here = np.concatenate((self.machine.running, self.machine.waiting))
        asked = self.machine.jobs.estimates[here]
        return float(asked.mean()) if len(asked) else USUAL

    # Provisioned.

    def facts(self, name: str = "cluster", *, unit_price: float = SU) -> SiteFacts:
        """
        Return what the cluster advertises now: free slots (HPDC'07 section 4), in seconds from now.

        Parameters
        ----------
        unit_price
            SU per processor-second.
        """
        return SiteFacts(
            name=name,
            kind="advertised",
            processors=self.machine.processors,
            slots=tuple(
                slot
                for slot in offered_slots(
                    self.machine, since=self.now, site=name, unit_price=unit_price
                )
                if slot.duration >= SHORTEST
            ),
        )

    def provision(self, problem: PlanningProblem, schedule: Schedule) -> list[Reservation]:
        """
        Reserve the slots that a schedule over the advertised slots pays.

        Raises
        ------
        InputError
            When something of it is not free; nothing is reserved then.
        """
        answer = self.reserve(reserved_windows(problem, schedule))
        if isinstance(answer, Refusal):
            raise InputError(f"the plan cannot be reserved: {answer.reason}")
        return answer

    def reserve(self, asked: Iterable[tuple[float, float, int]]) -> list[Reservation] | Refusal:
        """
        Reserve processors for windows, for all windows or for none.

        Parameters
        ----------
        asked
            Start (seconds from now), duration and processors of each.
        """
        made: list[Reservation] = []
        for start, duration, processors in asked:
            if duration <= ROUNDING:
                continue
            answer = self.machine.reserve(self.now + start, duration - ROUNDING, processors)
            if isinstance(answer, Refusal):
                # All or none: what was reserved before the refusal must not stay behind.
                for reservation in made:
                    self.machine.release(reservation)
                return answer
            made.append(answer)
        return made

    # Best effort.

    def run(self, workflow: Workflow) -> WorkflowExecution:
        """
        Run a workflow just in time; afterwards the clock is at the workflow's end.

        Tasks that become free at one moment are sent by their numbers.

        Raises
        ------
        InputError
            When a runtime is unknown or a task is wider than the machine.
        """
        if any(task.runtime is None for task in workflow.tasks):
            raise InputError("a task of unknown runtime cannot be simulated")
        n = len(workflow.tasks)
        submit, finish = np.zeros(n), np.zeros(n)
        runtimes = np.array([task.runtime for task in workflow.tasks], dtype=np.float64)
        waits_for = [len(parents) for parents in workflow.parents]
        children = workflow.children
        began = self.now
        jobs, tasks = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        ready = [i for i in range(n) if not waits_for[i]]
        left = n
        while True:
            submitted: list[tuple[int, int]] = []
            while ready:
                task = heapq.heappop(ready)
                submit[task] = self.now
                if runtimes[task] > 0:
                    width = workflow.tasks[task].processors
                    job = self.machine.submit(width, float(runtimes[task]))
                    submitted.append((job, task))
                else:
                    finish[task] = self.now
                    left -= 1
                    _release(task, children, waits_for, ready)
            if submitted:
                added = np.array(submitted, dtype=np.int64)
                jobs = np.concatenate((jobs, added[:, 0]))
                tasks = np.concatenate((tasks, added[:, 1]))
                # Jobs that are sent at one moment are submitted together before the policy acts,
                # once.
                self.advance(self.now)
            if not left:
                break
            self.advance(self.next_event)
            over = self.machine.jobs.ended(jobs, self.machine.now)
            for task in tasks[over].tolist():
                finish[task] = self.now
                left -= 1
                _release(task, children, waits_for, ready)
            jobs, tasks = jobs[~over], tasks[~over]
        return WorkflowExecution(
            # The jobs' estimates are their run times, so that a start follows from the end.
            submit=submit - began,
            start=finish - runtimes - began,
            finish=finish - began,
        )

    # The others.

    def waits(self, first: float, last: float) -> FloatArray:
        """
        Return the waits of the trace's jobs submitted from ``first`` to ``last``, seconds.

        The clock is at the start of the last of them afterwards, or later.
        """
        self.advance(max(self.now, last))
        submitted = self.machine.jobs.submitted[self._own]
        asked = self._own[(submitted >= first) & (submitted < last)]
        while True:
            start, *_ = self.machine.jobs.outcome()
            if not np.isnan(start[asked]).any():
                return np.asarray(start[asked] - self.machine.jobs.submitted[asked])
            # Day by day: the last of them may wait for long, and the machine should not run
            # further than needed.
            self.advance(self.now + 86_400.0)


def _release(task: int, children: list[list[int]], waits_for: list[int], ready: list[int]) -> None:
    """Add to a heap the children that wait for nothing else."""
    for child in children[task]:
        waits_for[child] -= 1
        if not waits_for[child]:
            heapq.heappush(ready, child)


def reserved_windows(
    problem: PlanningProblem, schedule: Schedule
) -> list[tuple[float, float, int]]:
    """
    Return start, duration and processors of all slots, or parts, that a schedule holds.

    Of a slot paid whole, all of it, and of its extension what is used; of a divisible
    one what tasks use, in rectangles between the moments when that changes.
    """
    slots = problem.offers.arrays
    made: list[tuple[float, float, int]] = []
    task, slot, width = schedule.holdings
    for j in np.flatnonzero(schedule.used).tolist():
        begin = float(slots.begin[j])
        if not slots.divisible[j]:
            end = max(float(slots.end[j]), float(schedule.until[j]))
            made.append((begin, end - begin, int(slots.processors[j])))
            continue
        held = slot == j
        start, finish = schedule.start[task[held]], schedule.finish[task[held]]
        made.extend(_steps(start, finish, width[held]))
    return made


def _steps(
    start: FloatArray, finish: FloatArray, width: IntArray
) -> list[tuple[float, float, int]]:
    """Return the sum of rectangles as consecutive rectangles."""
    moments, heights = merged(*summed(start, finish, width))
    return [
        (a, b - a, height)
        for (a, b), height in zip(
            itertools.pairwise(moments.tolist()), heights[:-1].tolist(), strict=True
        )
        if height > 0
    ]
