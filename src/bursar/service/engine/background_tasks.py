"""Background work that goes on although the request that started it may have ended."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from bursar.service.interfaces import ServiceError


class BackgroundTasks:
    """
    Keeps asyncio tasks that nobody awaits, and reports their errors.

    Parameters
    ----------
    on_fault
        Told of every error but a :class:`ServiceError`, which whoever waits is told.
    """

    def __init__(self, on_fault: Callable[[BaseException], None]) -> None:
        self._on_fault = on_fault
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start a coroutine in the background."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    async def close(self) -> None:
        """Cancel all background tasks."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            error = task.exception()
            if error is not None and not isinstance(error, ServiceError):
                self._on_fault(error)
