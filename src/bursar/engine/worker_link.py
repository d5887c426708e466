"""The two ends between the engine and a worker, whether a socket lies between them or not."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from bursar.dispatch.wire import Hello, Welcome, WireJob
from bursar.model.task import Outcome


class WorkerLink(Protocol):
    """
    Delivers the engine's orders to one worker, in the order of the calls.

    No call blocks, and none calls the engine back before it returns. Orders to a worker that is
    gone are dropped.
    """

    def welcome(self, welcome: Welcome) -> None:
        """Accept the worker; the first order of all."""

    def give(self, jobs: Iterable[WireJob]) -> None:
        """Give jobs, to be begun in this order as processors come free."""

    def give_encoded(self, jobs: Iterable[bytes]) -> None:
        """Give jobs, each an encoded :class:`bursar.dispatch.wire.WireJob`."""

    def recall(self, count: int) -> None:
        """Ask for up to ``count`` jobs back that have not started, the last first."""

    def cancel(self, tasks: Sequence[int], grace: float, reason: str) -> None:
        """Stop tasks (none: all); see :class:`bursar.dispatch.wire.CancelTasks`."""

    def acknowledge(self, count: int) -> None:
        """Tell the worker that so many further outcomes that came this way are durable."""

    def leave(self) -> None:
        """Order the worker to end."""

    def hang_up(self) -> None:
        """End the link once all orders are delivered."""

    def abort(self) -> None:
        """End the link at once; orders may be lost."""


class ClosedLink:
    """Drops all orders: the link of a worker that is disconnected."""

    def welcome(self, welcome: Welcome) -> None:
        """Drop it."""

    def give(self, jobs: Iterable[WireJob]) -> None:
        """Drop them."""

    def give_encoded(self, jobs: Iterable[bytes]) -> None:
        """Drop them."""

    def recall(self, count: int) -> None:
        """Drop it."""

    def cancel(self, tasks: Sequence[int], grace: float, reason: str) -> None:
        """Drop it."""

    def acknowledge(self, count: int) -> None:
        """Drop it."""

    def leave(self) -> None:
        """Drop it."""

    def hang_up(self) -> None:
        """Do nothing."""

    def abort(self) -> None:
        """Do nothing."""


NO_LINK = ClosedLink()
"""Link of every worker that is not connected."""


class EngineLink(Protocol):
    """Delivers one worker's reports to the engine, in the order of the calls."""

    def take_followers(self) -> None:
        """
        Let the worker have tasks whose parents it has, before these have ended.

        The worker starts each after the tasks in :attr:`bursar.dispatch.wire.WireJob.after`, and
        reports or returns it after their outcomes.
        """

    def report(self, outcomes: Sequence[Outcome]) -> None:
        """Report attempts that have ended."""

    def hand_back(self, jobs: Sequence[tuple[int, int]]) -> None:
        """Return jobs, each a task and an attempt, that have not started, the last first."""

    def lose(self) -> None:
        """Report that the worker is gone; its tasks are lost."""


class WorkerEntrance(Protocol):
    """Lets workers of this process join the engine without a socket."""

    def connect(self, hello: Hello, link: WorkerLink) -> EngineLink:
        """
        Let a worker join.

        Raises
        ------
        SiteError
            When the engine is closing, or a worker of that name is there.
        """
