"""Planning of the rest of a run."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from bursar.api.planning import plan as make_plan
from bursar.model.campaign import Campaign, Goal, Workflow
from bursar.model.plan import Placement, Plan
from bursar.model.site import SiteFacts
from bursar.model.task import Task
from bursar.planning.policy import Method, Scheduler
from bursar.runs.supply import Replan, RunSnapshot

_LONGER = 2.0
"""Expected duration of a task that was cut off, as a multiple of the work done by then."""


def replanner(
    campaign: Campaign,
    offers: Callable[[], Sequence[SiteFacts]],
    *,
    method: Method = "auto",
    scheduler: Scheduler = "heft",
) -> Replan:
    """
    Return a function that plans the rest of a run on present offers, within the rest of the goal.

    Parameters
    ----------
    campaign
        The whole campaign.
    offers
        Returns the sites with present offers; starts are seconds from now.
    method, scheduler
        See :func:`bursar.plan`.
    """

    async def replan(snapshot: RunSnapshot) -> Plan:
        tasks = campaign.workflow.tasks
        left = [i for i in range(len(tasks)) if i not in snapshot.ended]
        workflow = _what_is_left(tasks, left, snapshot.cut, snapshot.stretch)
        rest = replace(campaign, workflow=workflow, goal=_goal_left(snapshot), recording=None)
        # In a thread: planning takes seconds, and workers want answers meanwhile.
        proposed = await asyncio.to_thread(
            make_plan, rest, tuple(offers()), method=method, scheduler=scheduler
        )
        # A run that cannot meet its goal any more goes on as well as it can.
        plan = proposed.chosen or proposed.nearest()
        return replace(
            plan,
            placements=tuple(
                Placement(left[p.task], p.site, p.start, p.finish, p.processors)
                for p in plan.placements
            ),
        )

    return replan


def _what_is_left(
    tasks: Sequence[Task], left: Sequence[int], cut: Mapping[int, float], stretch: float
) -> Workflow:
    """Return a workflow of the remaining tasks, with longer runtimes for interrupted ones."""
    ids = {tasks[i].id for i in left}
    return Workflow(
        tuple(
            replace(
                tasks[i],
                after=tuple(a for a in tasks[i].after if a in ids),
                runtime=_expected(tasks[i].runtime, cut.get(i, 0.0), stretch),
            )
            for i in left
        )
    )


def _expected(runtime: float | None, cut: float, stretch: float) -> float | None:
    if runtime is None:
        return _LONGER * cut if cut else None
    # A task that was cut off has shown that it takes longer than it had; doubling what it needs
    # keeps the number of such surprises small.
    return max(runtime * stretch, _LONGER * cut)


def _goal_left(snapshot: RunSnapshot) -> Goal:
    goal = snapshot.goal
    deadline, budget = goal.deadline, goal.budget
    return replace(
        goal,
        deadline=None if deadline is None else max(deadline - snapshot.elapsed, 1e-3),
        budget=None if budget is None else max(budget - snapshot.spent, 0.0),
        # Thresholds are shares of the whole budget; the run's own guard watches them.
        on_budget={},
    )
