"""A pilot of a cloud, with the machine that is bought for it and what its callers wait for."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bursar.model.allocation import Allocation, AllocationLoss
from bursar.sites.cloud.machine_choice import MachineOffer
from bursar.sites.protocol import PilotBeginListener


def _future() -> "asyncio.Future[Any]":
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True, eq=False)
class MachinePilot:
    """
    A pilot and the machine that is bought for it.

    ``left`` is when its worker left, loop time, and None while one is connected or none has come.
    ``begun`` is done when a worker has joined, and fails when none will; ``lost`` is done when the
    machine is gone by itself.
    """

    pilot: Allocation
    offer: MachineOffer
    begin: PilotBeginListener
    notify: Callable[[str], None]
    script: str = ""
    is_released: bool = False
    has_joined: bool = False
    left: float | None = None
    begun: asyncio.Future[None] = field(default_factory=_future)
    lost: asyncio.Future[tuple[AllocationLoss, str]] = field(default_factory=_future)

    def fail(self, error: Exception) -> None:
        if not self.begun.done():
            self.begun.set_exception(error)
            self.begun.exception()  # whoever waits gets it; asyncio warns where nobody does
