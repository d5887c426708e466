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
    Once the run has begun, :func:`install_signal_handlers` takes over.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    with suppress(ValueError, RuntimeError):  # not the main thread: a notebook, a server
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, task.cancel)


def install_signal_handlers(execution: RunExecution) -> Callable[[], None]:
    """Install handlers: the first signal stops a run in order, the second kills all tasks."""
    loop = asyncio.get_running_loop()
    asked = 0

    def stop() -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            execution.stop("user", "stopping: running tasks are asked to end; once more kills them")
        else:
            execution.stop("user", "killing what runs", grace=0.0)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    try:
        for number in numbers:
            loop.add_signal_handler(number, stop)
    except (ValueError, RuntimeError):  # not the main thread: a notebook, a server
        return lambda: None

    def forget() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)

    return forget
