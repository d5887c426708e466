"""Waiting for something of an instance to change; nothing is kept where nobody waits."""

import asyncio

from bursar.service.engine.instance import Instance


class Bells:
    """One bell for each instance that somebody waits for."""

    def __init__(self) -> None:
        self._bells: dict[int, asyncio.Event] = {}

    async def wait(self, instance: Instance) -> None:
        """Returns at the next change."""
        await self._bells.setdefault(instance.number, asyncio.Event()).wait()

    def ring(self, instance: Instance) -> None:
        """Something has changed."""
        bell = self._bells.pop(instance.number, None)
        if bell is not None:
            bell.set()
