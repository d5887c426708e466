"""The two ends between the engine and a worker, whether a socket lies between them or not."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from bursar.dispatch.wire import Hello, OutputPiece, OutputQuery, Welcome, WireJob
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

    def ask_output(self, query: OutputQuery, answer: Callable[[OutputPiece | None], None]) -> None:
        """
        Ask what an attempt has printed, and call ``answer`` with that, at once or later.

        With None where the worker is gone, or shows nothing before an attempt has ended.
        """

    def leave(self) -> None:
        """Order the worker to end."""

    def hang_up(self) -> None:
        """End the link once all orders are delivered."""

    def abort(self) -> None:
        """End the link at once; orders may be lost."""


class ClosedLink:
    """Drops all orders: the link of a worker that is disconnected."""

    def welcome(self, welcome: Welcome) -> None:
        """Drop the welcome."""

    def give(self, jobs: Iterable[WireJob]) -> None:
        """Drop the tasks."""

    def give_encoded(self, jobs: Iterable[bytes]) -> None:
        """Drop the tasks."""

    def recall(self, count: int) -> None:
        """Drop the order."""

    def cancel(self, tasks: Sequence[int], grace: float, reason: str) -> None:
        """Drop the order."""

    def acknowledge(self, count: int) -> None:
        """Drop the acknowledgement."""

    def ask_output(self, query: OutputQuery, answer: Callable[[OutputPiece | None], None]) -> None:
        """Answer with None: the worker is not there."""
        answer(None)

    def leave(self) -> None:
        """Drop the order."""

    def hang_up(self) -> None:
        """Do nothing: there is no connection."""

    def abort(self) -> None:
        """Do nothing: there is no connection."""


NO_LINK = ClosedLink()
"""Link of every worker that is not connected."""


SHOWING = 5.0
"""Seconds for a worker to say what an attempt has printed."""


async def read_output(
    link: WorkerLink, task: int, attempt: int, stream: int, offset: int, most: int
) -> OutputPiece | None:
    """
    Ask a worker what an attempt has printed; see :class:`bursar.dispatch.wire.OutputQuery`.

    Returns
    -------
    OutputPiece or None
        None where the worker is gone, stands still, or shows nothing before the end.
    """
    came: asyncio.Future[OutputPiece | None] = asyncio.get_running_loop().create_future()

    def take(piece: OutputPiece | None) -> None:
        if not came.done():
            came.set_result(piece)

    link.ask_output(OutputQuery(0, task, attempt, stream, offset, most), take)
    try:
        async with asyncio.timeout(SHOWING):
            return await came
    except TimeoutError:
        return None


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
