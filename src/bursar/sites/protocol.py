"""The interface between a run and the providers of processors."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from bursar.market.agreement import Agreement, Terms
from bursar.market.lease import Lease
from bursar.market.purchasing import MarketRecord
from bursar.model.allocation import Allocation, AllocationLoss
from bursar.model.matching import SiteStatus
from bursar.model.money import Micros
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.provisioning.pool_snapshot import PoolSite
from bursar.remote.service_trading import TradePartner
from bursar.sites.processor_shares import ShareDemand
from bursar.sites.shared_leases import RunningLease, SharedLeaseCharge
from bursar.worker.launch import Endpoint

if TYPE_CHECKING:  # arrays, which most sites do not need
    from bursar.provisioning.wait_forecast import WaitForecast


class PilotBeginListener(Protocol):
    """Callback for a pilot that has received processors."""

    def __call__(self, processors: int | None = None, seconds: float | None = None) -> None:
        """
        Handle the begin, before any worker is there; an exception gives the processors back at
        once.

        Parameters
        ----------
        processors, seconds
            Number of processors and their time; None: as requested. More time than requested is
            used if there is money for it.
        """


class HeldProcessors(Protocol):
    """Processors that a site holds for a pilot."""

    @property
    def workers(self) -> int:
        """Number of workers that are there or will return."""

    async def lost(self) -> tuple[AllocationLoss, str]:
        """
        Return when the processors are gone without a release.

        Returns
        -------
        tuple
            ``"ended"`` when their workers have left by themselves, ``"lost"`` when the site took
            them away or they broke down; and the site's own words.
        """

    async def release(self) -> None:
        """Give the processors back; nothing of the pilot is left at the site."""


@runtime_checkable
class QuittableProcessors(HeldProcessors, Protocol):
    """Processors whose site knows whether their workers ended by themselves."""

    @property
    def has_quit(self) -> bool:
        """Whether the last worker, or what started it, has ended while its node was there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeteredTime:
    """
    Time for which a pilot's processors were held, by the provider's count.

    Parameters
    ----------
    began
        Start, seconds since the epoch; None: the lease's own start holds.
    seconds
        Seconds for which each processor was held; None: they were never there.
    is_recorded
        Whether the provider has a record; otherwise the time is an upper bound.
    unit_price, fixed_price
        Prices that were paid in the end, currency units per processor-second and for all of it;
        None: those of the lease.
    charged
        What the provider charged in all, micro-units; None: what the time and the prices come to.
    """

    began: float | None = None
    seconds: float | None
    is_recorded: bool = True
    unit_price: float | None = None
    fixed_price: float | None = None
    charged: Micros | None = None


@runtime_checkable
class MeteringSite(Protocol):
    """A site whose provider counts and charges the time for which processors were held."""

    @property
    def unwatched(self) -> float:
        """
        Seconds for which a pilot may hold processors after the run was killed.

        Money for that time is set aside before a pilot is requested. 0: pilots end with the run.
        """

    async def meter(self, lease: Lease, watched: float | None) -> MeteredTime | None:
        """
        Return the time for which a lease's processors were held, once that time is known.

        Whatever the lease still holds is ended, and the provider is asked until the answer is
        final.

        Parameters
        ----------
        lease
            Lease that was given back, by this process of the run or an earlier one.
        watched
            Last time at which the process that held the lease is known to have run,
            seconds since the epoch; None: this process held the lease.

        Returns
        -------
        MeteredTime or None
            None: the provider does not count, and our own clock holds.
        """


@runtime_checkable
class NegotiatingSite(Protocol):
    """A site that may negotiate the price of what it acquires, and tells what came of it."""

    on_deal: Callable[[MarketRecord], None]
    """Called with each negotiation, successful or not, and with each bill that is wrong."""

    @property
    def facts(self) -> SiteFacts:
        """Facts of the site, with the rules by which it is bought from."""


class RequestQueue(Protocol):
    """A queue in which requests for a site's processors wait."""

    def expected_wait(self, pilot: str) -> "WaitForecast | None":
        """
        Return how long a pilot should wait from its request on; None: nothing is known.

        May be called in any thread, and may take seconds.
        """

    def wait_forecast(self, processors: int, seconds: float) -> "WaitForecast | None":
        """Return how long a request of this size should wait that is made now, likewise."""


@runtime_checkable
class QueuedSite(Protocol):
    """A site whose processors come out of a queue."""

    @property
    def queue(self) -> RequestQueue:
        """The queue, and what is known of its waits."""


@runtime_checkable
class LotSite(Protocol):
    """A site whose processors come in lots, each as a whole."""

    until: float
    """When lots are of no use any more, seconds since the epoch."""

    @property
    def facts(self) -> SiteFacts:
        """Facts of the site, with the rules by which it is bought from."""


@runtime_checkable
class BiddingSite(Protocol):
    """A site whose owner, another program, can be called for bids together with other owners."""

    async def bidder(self) -> TradePartner:
        """
        Return the owner's side of a negotiation.

        Raises
        ------
        SiteError
            When the owner does not answer.
        """

    def expect(self, pilot: Allocation, terms: Terms, deal: str) -> None:
        """
        Note, durably, that a deal is about to be awarded to the site for a pilot.

        Parameters
        ----------
        terms
            Terms that it can come to at the most.
        """

    def agreed(self, pilot: str, agreement: Agreement) -> None:
        """Take over an expected deal; the pilot is acquired by this agreement."""

    def refused(self, pilot: str) -> None:
        """Note that an expected deal came to nothing."""


@runtime_checkable
class SellingSite(Protocol):
    """A site that sells processors in units of its own, such as whole machines."""

    def sold(self, pilot: Allocation, money: float | None = None) -> Allocation:
        """
        Return a pilot as the site would sell it, with the number of processors and the price.

        Asked before money is set aside, so that the price is the highest that may be asked. The
        pilot of the same name gets the same answer until the site is asked to reserve others.

        Parameters
        ----------
        money
            Currency units that may be set aside for it: where the site's choice may cost more, a
            smaller unit that costs no more is sold, if there is any. None: no limit.

        Raises
        ------
        SiteError
            When the site has nothing of the kind left.
        """


@runtime_checkable
class SharedSite(Protocol):
    """A site whose processors are shared with other runs on this machine."""

    async def take(self, pilots: Sequence[Allocation], notify: Callable[[str], None]) -> None:
        """
        Wait for enough free processors for all pilots of a plan, then hold all at once.

        Processors held before are replaced; ``reserve(())`` gives them back.

        Parameters
        ----------
        notify
            Called with a line for people on who has the processors meanwhile.
        """


@runtime_checkable
class TaskSharingSite(Protocol):
    """A site of whose processors each run uses a share, which changes as runs come and go."""

    def share(self, demand: ShareDemand, leases: Mapping[str, RunningLease]) -> int | None:
        """
        Tell other runs what this one could use, and return what this one may use now.

        Parameters
        ----------
        leases
            Leases of the run there that cost something, and have begun.

        Returns
        -------
        int or None
            Processors on which tasks may be started, those of running tasks included. None: all
            that the run holds.
        """

    def lent(self) -> Mapping[str, float]:
        """Return the processor-seconds of each open lease that other runs pay for."""

    def end_lease(self, lease: str, seconds: float) -> SharedLeaseCharge | None:
        """
        End the payment of a lease, which a run does once more after a kill.

        Parameters
        ----------
        seconds
            Length of the lease by the run's clock.

        Returns
        -------
        SharedLeaseCharge or None
            None: the run pays for all its processors.
        """


@runtime_checkable
class LastingSite(Protocol):
    """A site of this machine whose workers may go on when the run's process is killed."""

    @property
    def is_lasting(self) -> bool:
        """Whether they do, for allocations without an end."""

    def expect(self, run: str, living: Mapping[str, int], leases: Collection[str]) -> None:
        """
        Adopt workers of an earlier process of a run when their allocations are acquired.

        Parameters
        ----------
        living
            Processes by the worker's name.
        leases
            Leases of the run that go on.
        """

    def kill_workers(self) -> None:
        """Kill workers that were not given back, as this process ends in a hurry."""


@runtime_checkable
class OpenableSite(Protocol):
    """A site that must be opened before use."""

    def opened(self) -> AbstractAsyncContextManager[None]:
        """Return a context in which the site is usable and after which nothing of ours is left."""


class Site(Protocol):
    """A provider of processors."""

    @property
    def facts(self) -> SiteFacts:
        """Facts of the site."""

    def offers(self) -> tuple[Slot, ...]:
        """Return the slots that can be bought now; starts are seconds from now."""

    def status(self, seconds: float | None = None) -> SiteStatus:
        """
        Return the site's last status without waiting; times are on the running loop's clock.

        Parameters
        ----------
        seconds
            Runtime for which the traversal time is wanted, where the scheduler considers it;
            None: that of the jobs in the queue.

        Raises
        ------
        SiteError
            When the status is unknown.
        """

    def view(self) -> PoolSite:
        """Return the site as an acquiring pool sees it, without waiting."""

    async def reserve(self, pilots: Sequence[Allocation]) -> float:
        """
        Keep processors for later pilots, in place of processors kept before.

        Parameters
        ----------
        pilots
            Pilots with starts in seconds from now. Without pilots, kept processors that are not
            in use yet go back.

        Returns
        -------
        float
            Seconds before its start at which each pilot is to be acquired: 0 where processors
            are there at once; infinite where they must be requested now.

        Raises
        ------
        SiteError
            When not all processors are free; nothing is kept then.
        """

    async def acquire(
        self,
        pilot: Allocation,
        endpoint: Endpoint,
        *,
        rigid: bool,
        begin: PilotBeginListener,
        on_event: Callable[[str], None],
    ) -> HeldProcessors:
        """
        Start workers that share a pilot's processors and report to the endpoint.

        The call lasts as long as the site lets the pilot wait. A pilot with a start, now or
        some seconds ahead, has processors by an offer or a reservation; one without a start
        joins the queue.

        Parameters
        ----------
        rigid
            Whether some task holds more than one processor, which must then be
            in the hands of one worker.
        on_event
            Called with a line for people when workers die or are replaced.

        Raises
        ------
        SiteError
            When the site cannot provide the processors.
        """


def as_sold(sites: Mapping[str, Site], pilot: Allocation, money: float | None = None) -> Allocation:
    """Return a pilot in the units, and at the highest price, of its site; see SellingSite."""
    site = sites.get(pilot.site)
    return site.sold(pilot, money) if isinstance(site, SellingSite) else pilot
