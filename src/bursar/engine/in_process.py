"""A worker of the engine's own process: reports reach the engine without a socket."""

from collections.abc import Callable, Sequence
from functools import partial

from bursar.engine import reactor
from bursar.engine.core import EngineCore
from bursar.engine.task_queue import RunTasks
from bursar.engine.worker_slots import WorkerSlot
from bursar.model.task import Outcome


class InProcessEngineLink:
    """
    Delivers the reports of one worker, each in a callback of the loop.

    A worker may report while an order is being delivered to it: the engine must have finished
    with the cause of that order first.
    """

    def __init__(self, core: EngineCore, worker: WorkerSlot[RunTasks]) -> None:
        self._core = core
        self._worker = worker

    def take_followers(self) -> None:
        """Let the worker have tasks whose parents it has, before these have ended."""
        self._worker.takes_followers = True

    def report(self, outcomes: Sequence[Outcome]) -> None:
        """Report outcomes of attempts, in the next turn of the loop."""
        self._soon(partial(reactor.outcomes_reported, self._core, self._worker, outcomes))

    def hand_back(self, jobs: Sequence[tuple[int, int]]) -> None:
        """Return jobs that have not started, in the next turn of the loop."""
        self._soon(partial(reactor.tasks_returned, self._core, self._worker, jobs))

    def lose(self) -> None:
        """Report that the worker is gone, in the next turn of the loop."""
        self._soon(partial(reactor.worker_lost, self._core, self._worker))

    def _soon(self, reaction: Callable[[], None]) -> None:
        self._core.clock.soon(partial(self._react, reaction))

    def _react(self, reaction: Callable[[], None]) -> None:
        # Whatever it reports after its end concerns tasks that were given to others.
        if self._core.workers.get(self._worker.name) is not self._worker:
            return
        try:
            reaction()
        except Exception as error:  # in a callback of the loop nobody else would hear of it
            self._core.store.fail(error)
