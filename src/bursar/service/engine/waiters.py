"""Waiting for something of an instance to change; nothing is kept where nobody waits."""

import asyncio

from bursar.service.engine.instance import Instance


class InstanceWaiters:
    """One event for each instance that somebody waits for."""

    def __init__(self) -> None:
        self._waiters: dict[int, asyncio.Event] = {}

    async def wait(self, instance: Instance) -> None:
        """Returns at the next change."""
        await self._waiters.setdefault(instance.number, asyncio.Event()).wait()

    def wake(self, instance: Instance) -> None:
        """Something has changed; all that wait go on."""
        event = self._waiters.pop(instance.number, None)
        if event is not None:
            event.set()
