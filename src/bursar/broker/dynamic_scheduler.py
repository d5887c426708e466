"""What brings tasks to sites one by one, as the run goes on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from bursar.broker.pilot_plan import Pilot
from bursar.model.goal import Goal
from bursar.model.outcome import Outcome

News = tuple[str, str]
"""Kind and text of an event for the journal; ``"message"`` is also told to people."""


Ended = tuple[Outcome, bool]
"""How an attempt ended, and whether its task is at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeState:
    """
    How a run stands when a life of it begins.

    Parameters
    ----------
    ended
        Tasks at their end.
    succeeded
        Of these, such as succeeded.
    attempts
        Every attempt there was, and its site.
    pilots
        That there were: names go on from there.
    clock
        Seconds since the run's first life began.
    epoch
        When that was, seconds since the epoch.
    spent
        Currency units, accrued charges included.
    bookings
        Events of kind :data:`bursar.broker.booking.BOOKING` whose leases are kept: they had
        not begun when the life before ended.
    alert
        To be called when the supply wants to be asked: its :attr:`DynamicScheduler.wake` has come
        nearer, outside of any call of the run's.
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
    Asks for pilots as tasks come to their ends.

    A pilot that is there already is asked for again with the task it runs next.
    """

    def begin(self, past: ResumeState) -> list[Pilot]:
        """Pilots for what can start at once."""

    def ended(self, outcomes: Sequence[Ended]) -> list[Pilot]:
        """Pilots for what can start after attempts that ended at one moment."""

    def holds(self, lease: str) -> bool:
        """Whether it counts on a pilot that is there: it must not go back yet."""

    def lost(self, pilot: Pilot, reason: str) -> list[Pilot] | None:
        """
        A pilot came to nothing: pilots in its place.

        None where it cannot do without; the run then ends.
        """

    def short(self, pilot: Pilot) -> None:
        """There is no money for a pilot now; its new tasks are not bound to it."""

    def amend(self, goal: Goal) -> list[Pilot]:
        """The goal has changed: pilots that it asks for."""

    def look(self) -> list[Pilot]:
        """Pilots for what can start now that time has passed; asked at :attr:`wake`."""

    @property
    def wake(self) -> float:
        """Seconds on its clock at which it wants to be asked; infinite for never."""

    def routed(self, pilot: Pilot) -> Pilot:
        """The pilot with its site: asked when it is sent, since each changes the queues."""

    def news(self) -> list[News]:
        """What is worth keeping since last asked."""

    @property
    def verdict(self) -> str:
        """Why nothing will be asked for any more though tasks are left; empty while more will."""
