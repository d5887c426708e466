"""This machine as a site."""

import math
import os
from collections.abc import Callable

from bursar.dispatch.launch import Endpoint, LocalWorkers
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot


def this_machine() -> SiteFacts:
    """
    The site there is when no sites file is given.

    It counts in service units at their definition, 1 SU a processor-hour, so
    that a campaign has a price even where nobody set one.
    """
    return SiteFacts(
        name="local",
        kind="local",
        processors=len(os.sched_getaffinity(0)),
        speed=1.0,
        unit_price=1 / 3600,
        fixed_price=0.0,
        currency="SU",
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )


class LocalSite:
    """
    Processors of this machine, as its facts describe them.

    Parameters
    ----------
    facts
        Of the site.
    """

    def __init__(self, facts: SiteFacts) -> None:
        self._facts = facts
        self._workers: LocalWorkers | None = None

    @property
    def facts(self) -> SiteFacts:
        """What is known of it."""
        return self._facts

    def offer(self) -> Slot:
        """All its processors, from now on, without end."""
        facts = self._facts
        return Slot(
            site=facts.name,
            start=0.0,
            duration=math.inf,
            processors=facts.processors,
            unit_price=facts.unit_price,
            fixed_price=facts.fixed_price,
            divisible=True,
            extensible=True,
        )

    async def acquire(
        self, processors: int, endpoint: Endpoint, *, rigid: bool, on_event: Callable[[str], None]
    ) -> None:
        """Starts worker processes; see :class:`bursar.sites.protocol.Site`."""
        self._workers = LocalWorkers(self._facts.name, processors, rigid=rigid, on_event=on_event)
        await self._workers.start(endpoint)

    @property
    def workers(self) -> int:
        """Workers that are there, or will be again."""
        return 0 if self._workers is None else self._workers.alive

    async def release(self) -> None:
        """Ends the worker processes."""
        if self._workers is not None:
            await self._workers.stop()
