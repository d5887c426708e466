"""Waiting of requests for a change of an instance."""

import asyncio

from bursar.service.engine.instance import Instance


class InstanceWaiters:
    """One event for each instance on whose change a request waits."""

    def __init__(self) -> None:
        self._waiters: dict[int, asyncio.Event] = {}

    async def wait(self, instance: Instance) -> None:
        """Wait for the next change of an instance."""
        await self._waiters.setdefault(instance.number, asyncio.Event()).wait()

    def wake(self, instance: Instance) -> None:
        """Wake all that wait for a change of an instance."""
        # Popped, so that whoever waits next gets a new event: one that stays set would make
        # waiters spin.
        event = self._waiters.pop(instance.number, None)
        if event is not None:
            event.set()
