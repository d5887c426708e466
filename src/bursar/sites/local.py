"""This machine as a site."""

import os
from collections.abc import Callable, Sequence

from bursar.broker.pilots import Pilot
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

    @property
    def facts(self) -> SiteFacts:
        """What is known of it."""
        return self._facts

    def offers(self) -> tuple[Slot, ...]:
        """All its processors, from now on, without end."""
        return self._facts.offers

    async def reserve(self, windows: Sequence[tuple[float, float, int]]) -> None:
        """Nothing to do: nobody else sells its processors."""

    async def acquire(
        self,
        pilot: Pilot,
        endpoint: Endpoint,
        *,
        rigid: bool,
        begin: Callable[[], None],
        on_event: Callable[[str], None],
    ) -> "LocalWorkers":
        """Starts worker processes; see :class:`bursar.sites.protocol.Site`."""
        begin()
        workers = LocalWorkers(
            self._facts.name, pilot.name, pilot.processors, rigid=rigid, on_event=on_event
        )
        try:
            await workers.start(endpoint)
        except BaseException:
            await workers.release()
            raise
        return workers
