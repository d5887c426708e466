"""The interface between a run and the providers of processors."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from bursar.broker.pilot_plan import Pilot
from bursar.market.lease import Lease
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.model.status import SiteStatus
from bursar.provisioning.pool_snapshot import AllocationLoss, PoolSite
from bursar.worker.launch import Endpoint


class PilotBeginListener(Protocol):
    """Callback for a pilot that has its processors."""

    def __call__(self, processors: int | None = None, seconds: float | None = None) -> None:
        """
        Handle the begin, before any worker is there; an exception gives the processors back at
        once.

        Parameters
        ----------
        processors, seconds
            How many there are, and for how long; None: as it asked for. Of more time than that
            use is made if there is money for it.
        """


class HeldProcessors(Protocol):
    """Processors that a site holds for a pilot."""

    @property
    def workers(self) -> int:
        """Workers that are there, or will be again."""

    async def lost(self) -> tuple[AllocationLoss, str]:
        """
        Returns when the processors are gone although they were not released.

        Returns
        -------
        tuple
            ``"ended"`` when their workers have left by themselves, ``"lost"`` when the site took
            them away or they broke down; and the site's own words.
        """

    async def release(self) -> None:
        """Gives the processors back; nothing of the pilot is left behind there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeteredTime:
    """
    How long a pilot's processors were held, as their provider counts it.

    Parameters
    ----------
    began
        Start, seconds since the epoch; None: the lease's own start holds.
    seconds
        Seconds for which each processor was held; None: they were never there.
    is_recorded
        Whether the provider has a record; otherwise this is the most that may have been held.
    """

    began: float | None = None
    seconds: float | None
    is_recorded: bool = True


@runtime_checkable
class MeteringSite(Protocol):
    """A site whose provider itself counts how long processors were held, and charges that."""

    @property
    def unwatched(self) -> float:
        """
        Seconds for which a pilot may hold its processors after its run was killed.

        Money for them is set aside before a pilot is asked for. 0: they end with the run.
        """

    async def meter(self, lease: Lease, watched: float | None) -> MeteredTime | None:
        """
        Returns when it is known from when to when a lease's processors were held.

        It ends what the lease still holds there, and asks its provider again and again until
        the answer is final.

        Parameters
        ----------
        lease
            Lease that was given back, by this process of the run or an earlier one.
        watched
            Last time at which the process that held the lease is known to have run,
            seconds since the epoch; None: it is this one.

        Returns
        -------
        Metering or None
            None: the provider does not count, and our own clock holds.
        """


@runtime_checkable
class SharedSite(Protocol):
    """A site whose processors are shared with other runs on this machine."""

    async def take(self, pilots: Sequence[Pilot], notify: Callable[[str], None]) -> None:
        """
        Hold processors for all pilots of a plan, once so many are free.

        Until then it waits. What was held before is replaced; ``reserve(())`` gives it back.

        Parameters
        ----------
        notify
            Told, in one line for people, who has the processors meanwhile.
        """


@runtime_checkable
class OpenableSite(Protocol):
    """A site that must be open while it is used."""

    def opened(self) -> AbstractAsyncContextManager[None]:
        """Ready while the context lasts; nothing of ours is left there after it."""


class Site(Protocol):
    """A provider of processors."""

    @property
    def facts(self) -> SiteFacts:
        """Facts of the site."""

    def offers(self) -> tuple[Slot, ...]:
        """Slots that can be bought now; starts are seconds from now."""

    def status(self, seconds: float | None = None) -> SiteStatus:
        """
        Status that the site reports, without waiting; its time is on the running loop's clock.

        Parameters
        ----------
        seconds
            That jobs run for which its traversal time is asked, where that matters to its
            scheduler; None: as long as those that are there.

        Raises
        ------
        SiteError
            When it cannot say.
        """

    def view(self) -> PoolSite:
        """The site as a pool sees it that acquires and releases processors there; does not wait."""

    async def reserve(self, pilots: Sequence[Pilot]) -> float:
        """
        Keeps processors for pilots to come, in place of what was kept before.

        Parameters
        ----------
        pilots
            Their starts are seconds from now. With none, what was kept and is not in use yet
            goes back.

        Returns
        -------
        float
            Seconds before its start that each is to be acquired: 0 where it has its processors
            at once then; infinite where they must be asked for ahead.

        Raises
        ------
        SiteError
            When something of it is not free; nothing is kept then.
        """

    async def acquire(
        self,
        pilot: Pilot,
        endpoint: Endpoint,
        *,
        rigid: bool,
        begin: PilotBeginListener,
        on_event: Callable[[str], None],
    ) -> HeldProcessors:
        """
        Starts workers that share a pilot's processors and report to the endpoint.

        It takes as long as the site lets it wait: one with a start, which is now or so many
        seconds ahead, has its processors by an offer or a reservation; one without is put in
        the queue.

        Parameters
        ----------
        rigid
            Whether some task holds more than one processor, which must then be
            in the hands of one worker.
        begin
            Called once, see :class:`PilotBeginListener`.
        on_event
            Told, in one line for people, of workers that die or are replaced.

        Raises
        ------
        SiteError
            When it cannot.
        """
