"""The protocol of schedulers that bring tasks to sites one by one while a run goes on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from bursar.model.allocation import Allocation
from bursar.model.campaign import Goal
from bursar.model.task import Outcome

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
    ended
        Tasks that have ended.
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
        Events of kind :data:`bursar.broker.booking.BOOKING` whose leases are kept: they had not
        begun when the last incarnation ended.
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
        """
        Choose the pilot's site; called on sending, since each pilot sent changes the queues.
        """

    def take_events(self) -> list[SchedulerEvent]:
        """Return and clear the events for the journal since the last call."""

    @property
    def verdict(self) -> str:
        """Why no more pilots will be requested though tasks are left; empty while more will be."""
