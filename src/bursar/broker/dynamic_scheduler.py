"""The protocol of schedulers that bring tasks to sites one by one, and the simplest of them."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from bursar.model.allocation import Allocation
from bursar.model.campaign import Goal, Workflow
from bursar.model.errors import BudgetStop
from bursar.model.site import SiteFacts
from bursar.model.task import Outcome, Status

# The protocol of schedulers that bring tasks to sites one by one while a run goes on.

SchedulerEvent = tuple[str, str]
"""Kind and text of an event for the journal; ``"message"`` is also told to people."""


Ended = tuple[Outcome, bool]
"""Outcome of an attempt, and whether the task needs no further attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeState:
    """
    State of a run at the start of an incarnation.

    Parameters
    ----------
    succeeded
        Tasks that have succeeded; part of ``ended``.
    attempts
        Outcome of every attempt so far, with its site.
    pilots
        Number of pilots so far; names go on from there.
    clock
        Clock of the run: seconds since its first start.
    epoch
        Time of the first start, seconds since the epoch.
    spent
        Currency units, accrued charges included.
    bookings
        Events of kind :data:`~bursar.broker.decision_reasons.BOOKING` whose leases are kept: they
        had not begun when the last incarnation ended.
    alert
        Called by the scheduler when its :attr:`DynamicScheduler.wake` has come nearer, outside of
        any call of the run's.
    """

    ended: frozenset[int]
    succeeded: frozenset[int]
    attempts: Sequence[tuple[Outcome, str]]
    pilots: int
    clock: Callable[[], float]
    spent: Callable[[], float]
    epoch: float = 0.0
    bookings: Sequence[str] = ()
    alert: Callable[[], None] = lambda: None


def release_children(
    children: Sequence[Collection[int]], missing: list[int], task: int
) -> list[int]:
    """Count a task's children down; return those that wait for no other parent any more."""
    ready = []
    for child in children[task]:
        missing[child] -= 1
        if not missing[child]:
            ready.append(child)
    return ready


class DynamicScheduler(Protocol):
    """
    Requests pilots as tasks end.

    A pilot that is there already is asked for again with the task it runs next.
    """

    def begin(self, past: ResumeState) -> list[Allocation]:
        """Return pilots for tasks that can start at once."""

    def ended(self, outcomes: Sequence[Ended]) -> list[Allocation]:
        """Return pilots for tasks that can start after attempts that ended together."""

    def holds(self, lease: str) -> bool:
        """Whether the scheduler still needs an existing pilot, which must not be released yet."""

    def lost(self, pilot: Allocation, reason: str) -> list[Allocation] | None:
        """
        Return pilots in place of one that came to nothing.

        None where the scheduler cannot go on without the pilot; the run then ends.
        """

    def short(self, pilot: Allocation) -> None:
        """Unbind the new tasks of a pilot that cannot be paid now."""

    def amend(self, goal: Goal) -> list[Allocation]:
        """Take in a changed goal; return the pilots that the new goal asks for."""

    def poll(self) -> list[Allocation]:
        """
        Return pilots for tasks that can start now that time has passed; called at :attr:`wake`.
        """

    @property
    def wake(self) -> float:
        """Time of the next :meth:`poll`, seconds on the run's clock; infinite for never."""

    def routed(self, pilot: Allocation) -> Allocation:
        """Choose the pilot's site; called on sending, since each pilot sent changes the queues."""

    def take_events(self) -> list[SchedulerEvent]:
        """Return and clear the events for the journal since the last call."""

    @property
    def verdict(self) -> str:
        """Why no more pilots will be requested though tasks are left; empty while more will be."""


# Best effort: each task goes to a queue when those before it have ended (HPDC'07 section 5).

Choose = Callable[[int], tuple[SiteFacts, float]]
"""Returns the site for a task sent now, and the seconds to request there."""


class JustInTimeScheduler:
    """
    Requests one pilot for each task, as soon as the task could start.

    Parameters
    ----------
    choose
        Called when a task is sent; returns its site and the seconds to request.
    """

    def __init__(self, workflow: Workflow, choose: Choose) -> None:
        self._workflow = workflow
        self._choose = choose
        self._children = workflow.children
        self._missing = [len(parents) for parents in workflow.parents]
        self._sent = 0
        self._cuts: dict[int, int] = {}  # how often the time of a task was over before it ended

    def begin(self, past: ResumeState) -> list[Allocation]:
        """Return pilots for tasks that can start at once."""
        self._sent = past.pilots
        succeeded = past.succeeded
        for task in succeeded:
            release_children(self._children, self._missing, task)
        return [
            self._pilot(task)
            for task, missing in enumerate(self._missing)
            if not missing and task not in succeeded
        ]

    def ended(self, outcomes: Sequence[Ended]) -> list[Allocation]:
        """Return pilots for tasks that can start after attempts, by task number."""
        ready: list[int] = []
        for outcome, final in outcomes:
            if not final:
                if outcome.status is Status.CANCELLED:  # its time was over
                    self._cuts[outcome.task] = self._cuts.get(outcome.task, 0) + 1
                ready.append(outcome.task)
            elif outcome.status is Status.SUCCEEDED:
                ready.extend(release_children(self._children, self._missing, outcome.task))
        return [self._pilot(task) for task in sorted(ready)]

    def holds(self, lease: str) -> bool:
        """Return False: a pilot serves one attempt only."""
        return False

    def lost(self, pilot: Allocation, reason: str) -> None:
        """Return None, which ends the run: best effort has no other place for a task."""

    def short(self, pilot: Allocation) -> None:
        """Stop the run, since this scheduler does not handle a lack of money."""
        raise BudgetStop(f"{pilot.site}: there is no money for {pilot.name}")

    def amend(self, goal: Goal) -> list[Allocation]:
        """Ignore the new goal, since best effort has none."""
        return []

    def poll(self) -> list[Allocation]:
        """Return nothing: no decision depends on the time alone."""
        return []

    @property
    def wake(self) -> float:
        """Infinite: this scheduler has nothing to do without an event."""
        return math.inf

    def take_events(self) -> list[SchedulerEvent]:
        """Empty: this scheduler keeps no decisions."""
        return []

    @property
    def verdict(self) -> str:
        """Empty: best effort goes on to the end."""
        return ""

    def routed(self, pilot: Allocation) -> Allocation:
        """Choose the pilot's site; called on sending, since each pilot sent changes the queues."""
        (task,) = pilot.tasks
        site, seconds = self._choose(task)
        return replace(
            pilot,
            site=site.name,
            # A task whose time was over asks for twice as much: with the same time it would fail
            # for ever.
            duration=seconds * 2.0 ** self._cuts.get(task, 0),
            unit_price=site.unit_price,
            fixed_price=site.fixed_price,
        )

    def _pilot(self, task: int) -> Allocation:
        self._sent += 1
        width = self._workflow.tasks[task].processors
        return Allocation(
            name=f"lease-{self._sent}",
            site="",
            processors=width,
            start=None,
            duration=math.inf,
            unit_price=None,
            fixed_price=None,
            tasks=(task,),
        )
