"""Check whether a campaign still fits its goal, and estimate when it ends at the present pace."""

import math
from dataclasses import dataclass, replace

from bursar.broker.adviser import SchedulingSnapshot, bookable_processors, price_intervals
from bursar.broker.packing import JobPacking, PackingResult
from bursar.model.campaign import UnreachableTasks, Workflow
from bursar.model.plan import Plan
from bursar.model.task import Outcome, Status
from bursar.planning.plan_choice import GoalCounterOffer

# Check whether the rest of a campaign fits the goal, and compute the alternatives if not.


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalFeasibility:
    """
    The part of a goal that is still within reach.

    Parameters
    ----------
    left
        Number of jobs that have not been sent.
    fit
        Number of these that can be done in time and within the budget.
    cost
        The least that all of them cost in time, currency units; None: not all can be done in time.
    counter_offers
        Offers for the whole campaign instead; empty where all jobs fit.
    """

    left: int
    fit: int
    cost: float | None
    counter_offers: tuple[GoalCounterOffer, ...] = ()

    @property
    def feasible(self) -> bool:
        """Whether all jobs can be done."""
        return self.fit >= self.left

    def __str__(self) -> str:
        if self.feasible:
            return f"all {self.left} jobs left fit into the deadline and the budget"
        words = [f"{self.fit} of {self.left} jobs left fit into the deadline and the budget"]
        for offer in self.counter_offers:
            what = f"{offer.makespan:.6g} s for {offer.cost:.6g}"
            if offer.kind == "time":
                words.append(f"all in {what}")
            elif offer.kind == "budget":
                words.append(f"in time for {offer.cost:.6g}")
        return "; ".join(words)


def assess_feasibility(
    situation: SchedulingSnapshot, now: float = 0.0, paid: float = 0.0
) -> GoalFeasibility | None:
    """
    Assess what can still be done; None while job runtimes are unknown.

    No margin is kept: what is told to be out of reach is so unless jobs turn out shorter.

    Parameters
    ----------
    now
        Seconds since the begin, for the counter-offers.
    paid
        Currency units spent and promised for running jobs.
    """
    if not situation.estimates.is_known:
        return None
    sizes, time, money = situation.sizes, situation.time_left, situation.money_left
    filling = _filling(situation)
    whole = filling.by(time)
    if whole.is_whole and whole.cost <= money * (1 + _CLOSE) + _CLOSE:
        return GoalFeasibility(left=sizes.jobs, fit=sizes.jobs, cost=whole.cost)
    most = filling.within(time, max(0.0, money))
    if most.is_whole:  # small jobs first may cost less
        return GoalFeasibility(left=sizes.jobs, fit=sizes.jobs, cost=most.cost)
    fit, gone = int(most.given.sum()), situation.jobs - sizes.jobs
    offers = []

    def offer(kind: str, jobs: int, seconds: float, filled: PackingResult) -> None:
        offers.append(
            GoalCounterOffer(
                kind=kind,  # type: ignore[arg-type]
                makespan=now + seconds,
                cost=paid + filled.cost,
                tasks=gone + jobs,
                share=(gone + jobs) / max(1, situation.jobs),
            )
        )

    if not math.isinf(time):
        # More time may bring other prices, too.
        later = _filling(replace(situation, time_left=math.inf))
        seconds = later.earliest(money)
        if seconds is not None:
            offer("time", sizes.jobs, seconds, later.by(seconds))
    if whole.is_whole:
        soonest = filling.earliest(whole.cost, time)
        offer("budget", sizes.jobs, time if soonest is None else soonest, whole)
    if fit:
        offer("share", fit, min(time, filling.ends(most)), most)
    return GoalFeasibility(
        left=sizes.jobs,
        fit=fit,
        cost=whole.cost if whole.is_whole else None,
        counter_offers=tuple(offers),
    )


def _filling(situation: SchedulingSnapshot) -> JobPacking:
    """Return the packing with bookings, or without where only that meets the goal."""
    filling = JobPacking([part.pool for part in price_intervals(situation)], situation.sizes)
    most = bookable_processors(situation)
    if most and not _fits(filling.by(situation.time_left), situation):
        parts = price_intervals(situation, at_once=most)
        return JobPacking([part.pool for part in parts], situation.sizes)
    return filling


def _fits(filled: PackingResult, situation: SchedulingSnapshot) -> bool:
    return filled.is_whole and filled.cost <= situation.money_left * (1 + _CLOSE) + _CLOSE


_CLOSE = 1e-9


# Estimate when the campaign will end at the present pace.


class PaceEstimate:
    """
    Predicts the end from what is left and how long tasks have really taken.

    What is left is counted in processor-seconds by the tasks' estimates, scaled by how far the
    estimates have been off so far; a task without an estimate counts as the mean of those that have
    ended. The plan says how much of the processors' time the order of the tasks lets be used.

    Each outcome is taken in once, at a constant cost.
    """

    def __init__(self, workflow: Workflow, plan: Plan) -> None:
        self._tasks = tasks = workflow.tasks
        self._unreachable = UnreachableTasks(workflow)
        self._plan = plan
        self._known_left = sum((t.runtime or 0.0) * t.processors for t in tasks)
        self._left_unknown = sum(t.processors for t in tasks if t.runtime is None)
        self._estimated = 0.0
        self._actual = 0.0
        self._unknown_actual = 0.0
        self._unknown_width = 0
        self._left = len(tasks)
        self._ended = bytearray(len(tasks))

    def learn(self, outcome: Outcome, final: bool) -> None:
        """Record the end of an attempt; skip the successors of a task that finally failed."""
        if not final:
            return
        self._drop(outcome.task)
        task = self._tasks[outcome.task]
        if outcome.status is not Status.SUCCEEDED:
            for child in self._unreachable.end(outcome.task):
                self._drop(child)
            return
        seconds = (outcome.end - outcome.start) * task.processors
        if task.runtime is None:
            self._unknown_actual += seconds
            self._unknown_width += task.processors
        elif task.runtime > 0:
            self._estimated += task.runtime * task.processors
            self._actual += seconds

    def _drop(self, number: int) -> None:
        """Take a task that will not run any more out of what is left."""
        if self._ended[number]:
            return
        self._ended[number] = True
        self._left -= 1
        task = self._tasks[number]
        if task.runtime is None:
            self._left_unknown -= task.processors
        else:
            self._known_left -= task.runtime * task.processors

    def follow(self, plan: Plan) -> None:
        """Follow another plan for what is left."""
        self._plan = plan

    @property
    def stretch(self) -> float:
        """Seconds taken for each second estimated; 1 before anything is known."""
        return self._actual / self._estimated if self._estimated > 0 else 1.0

    def left(self) -> float | None:
        """Processor-seconds still to do; None when nothing is known of some task."""
        left = max(0.0, self._known_left) * self.stretch
        if self._left_unknown > 0:
            if not self._unknown_width:
                return None
            # Tasks without an estimate are taken to last as long as such tasks did so far.
            left += self._left_unknown * self._unknown_actual / self._unknown_width
        return left

    def finish(self, elapsed: float, held: int = 0) -> float | None:
        """
        Return when the last task will end, seconds from the begin; None when unknown.

        Parameters
        ----------
        elapsed
            Seconds since the begin.
        held
            Processors that are held now, for where the plan bought none.
        """
        if self._left <= 0:
            return elapsed
        left = self.left()
        if left is None:
            return None
        processors = max(1, self._plan.processors or held)
        used = self._plan.utilisation or 1.0
        return elapsed + left / (processors * used)
