"""Processors by a plan: what the plan buys is agreed on at once, and planned again if need be."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from bursar.broker.pilot_plan import plan_pilots
from bursar.dispatch.journal_records import AttemptRecord
from bursar.model.allocation import Allocation
from bursar.model.campaign import Goal
from bursar.model.errors import BursarError
from bursar.model.plan import Plan
from bursar.model.task import Status
from bursar.runs.supply import UNSENT, Supply


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot:
    """
    State of a run when the remaining tasks are planned again.

    Parameters
    ----------
    ended
        Tasks at their end.
    cut
        Work that tasks had done when they were stopped, seconds at speed 1, the most of
        all their attempts: they need more.
    elapsed, spent
        Seconds, currency units.
    goal
        The present goal.
    stretch
        Seconds that tasks take for each that was estimated.
    """

    ended: frozenset[int]
    cut: Mapping[int, float]
    elapsed: float
    spent: float
    goal: Goal
    stretch: float = 1.0


Replan = Callable[[RunSnapshot], Awaitable[Plan]]
"""Function that plans the remaining tasks of a run."""


class PlannedSupply(Supply):
    """
    Agrees with the sites on the processors of a plan, which come and go as the plan says.

    Parameters
    ----------
    plan
        Plan with purchases, and the place and order of tasks.
    replan
        Makes another plan when processors went back before their tasks were done; None: the
        run then stops.
    """

    def __init__(self, plan: Plan, replan: Replan | None = None) -> None:
        self.plan = plan
        self.replan = replan
        self._replanning: asyncio.Task[None] | None = None
        self._stretch = 1.0
        self._pilots = 0
        self._cut: dict[int, float] = {}

    @property
    def is_planning(self) -> bool:
        """Whether the remaining tasks are being planned again."""
        return self._replanning is not None

    async def begin(self) -> None:
        """Agree on all purchases of the plan; see :class:`bursar.runs.supply.Supply`."""
        self._pilots = self.run.state.pilots
        await self._sign(self.plan)

    def on_outcome(self, record: AttemptRecord, lease: str | None) -> None:
        """Note what a task that was cut off had done, and give idle processors back."""
        outcome = record.outcome
        if not record.final and outcome.status is Status.CANCELLED:
            done = (outcome.end - outcome.start) * self.run.bindings.speed_of(lease or "")
            # The most of all attempts, not their sum: each began anew.
            self._cut[outcome.task] = max(done, self._cut.get(outcome.task, 0.0))
        super().on_outcome(record, lease)

    def on_left_over(self, allocation: Allocation) -> None:
        """Plan the remaining tasks again, or end the run where that cannot be done."""
        if self._replanning is not None:
            return
        if self.replan is None:
            super().on_left_over(allocation)
        else:
            self._start_replanning(self.replan)

    async def end(self) -> None:
        """Plan nothing any more."""
        if self._replanning is not None:
            self._replanning.cancel()

    async def sketch(self, stretch: float) -> Plan | None:
        """Make a plan of the remaining tasks for information; None where there can be none."""
        return None if self.replan is None else await self.replan(self._snapshot(stretch))

    def plan_again(self, reason: str, stretch: float) -> None:
        """
        Let running tasks end, and have the remaining ones planned anew.

        Parameters
        ----------
        reason
            Line for people.
        stretch
            See :class:`RunSnapshot`.
        """
        if self.replan is None or self._replanning is not None or self.run.is_stopping():
            return
        self.run.notify(reason)
        self._stretch = stretch
        # Bound to a lease that nobody has, so that nothing new begins while the plan is made.
        ended = self.run.dispatcher.figures.ended
        left = [i for i in range(len(self.run.bindings.tasks)) if i not in ended]
        self.run.bind(dict.fromkeys(left, UNSENT), {task: task for task in left})
        self._start_replanning(self.replan)

    def _start_replanning(self, replan: Replan) -> None:
        self._replanning = self.run.background.start(
            self._plan_again(replan), on_failure=self._on_replan_failure
        )

    async def _plan_again(self, replan: Replan) -> None:
        """Wait for running tasks, give the processors back, and sign a plan for the other tasks."""
        # Busy pilots stay until their tasks have ended: what is paid for by now is not thrown away.
        while not await self.run.provision.give_back():
            await self.run.dispatcher.change()
        self.run.notify("what is left is planned again")
        plan = await replan(self._snapshot(self._stretch))
        # Before signing, so that a pilot which ends too early from now on can ask for yet another
        # plan.
        self._replanning = None
        self.plan = plan
        await self._sign(plan)

    def _on_replan_failure(self, error: BaseException) -> None:
        if not isinstance(error, BursarError):
            error = BursarError(f"planning again failed: {type(error).__name__}: {error}")
        self.run.fail(error)

    def _snapshot(self, stretch: float) -> RunSnapshot:
        return RunSnapshot(
            ended=self.run.dispatcher.figures.ended,
            cut=self._cut,
            elapsed=self.run.state.clock(),
            spent=self.run.state.spent(),
            goal=self.run.goal(),
            stretch=stretch,
        )

    async def _sign(self, plan: Plan) -> None:
        """Agree with the sites on the purchases of a plan, and bind the tasks to the purchases."""
        run = self.run
        pilots = plan_pilots(plan, run.bindings.tasks, self._pilots)
        self._pilots += len(pilots)
        order = {placement.task: i for i, placement in enumerate(plan.placements)}
        if len(pilots) == 1 and math.isinf(pilots[0].duration):
            pilots = [replace(pilots[0], tasks=())]  # the only ones there are
            placed = dict.fromkeys(order, "")
        else:
            placed = {task: pilot.name for pilot in pilots for task in pilot.tasks}
        # Where some have an end, what is late at one site misses its time at another.
        ends = any(math.isfinite(pilot.duration) for pilot in pilots)
        timed = [pilot.name for pilot in pilots] if ends else []
        run.bindings.site_of.update((pilot.name, pilot.site) for pilot in pilots)
        run.bind(placed, order, timed)
        # Before any processor is paid for: such a task would wait until the money is gone.
        ended = set(run.dispatcher.figures.ended)
        run.bindings.check_widths(placed, {pilot.site for pilot in pilots}, ended)
        left = run.dispatcher.figures.left
        # Without pilots all of whose tasks were done in an earlier incarnation.
        await run.provision.sign([p for p in pilots if p.whole or not p.tasks or left(p.name)])
