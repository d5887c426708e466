"""Handling of signals that end a run, before the begin and afterwards."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import (
    suppress,
)

from bursar.runs.execution import RunExecution


def end_by_signals() -> None:
    """
    End the present task by the signals that would else kill the process.

    A run may wait for hours before it begins, with money set aside that is to be given back.
    Once the run has begun, :class:`RunSignals` takes over.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    with suppress(ValueError, RuntimeError):  # not the main thread: a notebook, a server
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, task.cancel)


class RunSignals:
    """
    Handlers of the signals that stop a run: the first stops in order, the second kills all tasks.

    They stay until the processors are given back, which takes a while at a batch scheduler: a
    process that a signal ended in the middle would leave jobs behind, which run on and are paid.
    There the first signal only tells, and the second cancels the task that installed the handlers.

    Parameters
    ----------
    notify
        Called with one line for people.
    """

    _NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self, execution: RunExecution, notify: Callable[[str], None]) -> None:
        self._execution = execution
        self._notify = notify
        self._asked = 0
        self._is_ending = False
        self._task: asyncio.Task[object] | None = None

    def install(self) -> None:
        """Install the handlers; do nothing outside of the main thread: a notebook, a server."""
        loop = asyncio.get_running_loop()
        with suppress(ValueError, RuntimeError):
            for number in self._NUMBERS:
                loop.add_signal_handler(number, self._on_signal)
            self._task = asyncio.current_task()

    def tasks_ended(self) -> None:
        """Note that no task runs any more: from here on processors are given back."""
        self._is_ending, self._asked = True, 0

    def remove(self) -> None:
        """Let signals end the process again."""
        if self._task is not None:
            loop = asyncio.get_running_loop()
            for number in self._NUMBERS:
                loop.remove_signal_handler(number)
            self._task = None

    def _on_signal(self) -> None:
        self._asked += 1
        is_first = self._asked == 1
        if not self._is_ending:
            if is_first:
                why = "stopping: running tasks are asked to end; once more kills them"
                self._execution.stop("user", why)
            else:
                self._execution.stop("user", "killing what runs", grace=0.0)
        elif is_first:
            self._notify("processors are being given back; once more leaves them behind")
        elif self._task is not None:
            self._task.cancel()
