"""A site that runs workers on this machine."""

import asyncio
import math
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from bursar.dispatch.linux_processes import kill_leftovers, traces_of, workers_of
from bursar.model.allocation import Allocation, AllocationLoss
from bursar.model.errors import SiteError
from bursar.model.matching import SiteStatus
from bursar.model.site import SiteFacts
from bursar.model.slot import ResourceProfile, Slot
from bursar.provisioning.pool_snapshot import PoolSite, view_at_once
from bursar.sites.processor_shares import ShareDemand
from bursar.sites.protocol import PilotBeginListener
from bursar.sites.shared_leases import RunningLease, SharedLeaseCharge
from bursar.worker.detached_workers import DetachedStarter
from bursar.worker.launch import Endpoint, LocalWorkers
from bursar.worker.worker_memory import available_memory, memory_limit

if TYPE_CHECKING:  # a run that shares nothing starts sooner without its database
    from bursar.sites.owners import OwnersBook


def this_machine() -> SiteFacts:
    """
    Return the site that is used without a sites file.

    Its currency is the service unit by definition, 1 SU a processor-hour, so
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
        memory=memory_limit()[0],
    )


PLAN = "plan"
"""Name under which a plan's processors are held."""


class LocalSite:
    """
    Provides processors of this machine, as described by the site's facts.

    Parameters
    ----------
    clock
        The present time, seconds: that of asyncio's loops.
    workers
        Makes workers; None: workers that end with this process.
    run
        Identity by which workers of an earlier process are recognised; empty: there are none.
    places
        Record of the processors that each run uses; None: no other run uses them.
    starter
        Starts workers that may go on when this process is killed; None: they end with it.
    by_task
        Whether pilots begin at once and their tasks share the processors with other runs, where
        the site is shared; otherwise each pilot waits for processors of its own.
    """

    def __init__(
        self,
        facts: SiteFacts,
        clock: Callable[[], float] = time.monotonic,
        workers: Callable[..., LocalWorkers] | None = None,
        run: str = "",
        places: "OwnersBook | None" = None,
        by_task: bool = True,
        starter: DetachedStarter | None = None,
    ) -> None:
        # Of shared processors no pilot holds any: tasks do, see share().
        self._shares = places if by_task and facts.is_divided else None
        self._places = None if self._shares is not None else places
        self._facts = facts
        self._clock = clock
        self._starter = starter
        self._workers = workers
        self._run = run
        self._held: list[HeldWorkers] = []

    @property
    def facts(self) -> SiteFacts:
        """Facts of the site."""
        return self._facts

    def offers(self) -> tuple[Slot, ...]:
        """Return all processors of the site, from now on, without end."""
        return self._facts.offers

    def status(self, seconds: float | None = None) -> SiteStatus:
        """
        Return the processors that no pilot holds, and the available memory.

        There is no queue: a job starts at once while a processor is free; otherwise nobody
        knows when.
        """
        held = sum(held.processors for held in self._held)
        claims = self._places or self._shares
        if claims is not None:
            held += claims.others(self._facts)
        free = max(0, self._facts.processors - held)
        memory = available_memory()
        if memory is not None and self._facts.memory is not None:
            memory = min(memory, self._facts.memory)
        return SiteStatus(
            site=self._facts.name,
            at=self._clock(),
            free_processors=free,
            running=len(self._held),
            traversal_time=0.0 if free else None,
            free_memory=memory,
        )

    def view(self) -> PoolSite:
        """Return the site as a pool sees it: processors start at once and have no end."""
        held = sum(held.processors for held in self._held)
        return view_at_once(self._facts, max(0, self._facts.processors - held))

    def share(self, demand: ShareDemand, leases: Mapping[str, RunningLease]) -> int | None:
        """Return the processors that tasks may use now; see :class:`TaskSharingSite`."""
        return None if self._shares is None else self._shares.share(self._facts, demand, leases)

    def lent(self) -> Mapping[str, float]:
        """Return what other runs pay of each lease; see :class:`TaskSharingSite`."""
        return {} if self._shares is None else self._shares.lent(self._facts)

    def end_lease(self, lease: str, seconds: float) -> SharedLeaseCharge | None:
        """Return what a lease came to; see :class:`TaskSharingSite`."""
        if self._shares is None:
            return None
        return self._shares.end_lease(self._facts, lease, seconds)

    async def take(self, pilots: Sequence[Allocation], notify: Callable[[str], None]) -> None:
        """Hold the most that the pilots of a plan have at a time; see :class:`SharedSite`."""
        if self._places is not None:
            most = most_at_once(pilots)
            await self._places.take(self._facts, PLAN, min(most, self._facts.processors), notify)

    async def reserve(self, pilots: Sequence[Allocation]) -> float:
        """Give back what a plan held if there are no pilots; otherwise do nothing."""
        if self._places is not None and not pilots:
            self._places.give(self._facts, PLAN)
        return 0.0

    async def acquire(
        self,
        pilot: Allocation,
        endpoint: Endpoint,
        *,
        rigid: bool,
        begin: PilotBeginListener,
        on_event: Callable[[str], None],
    ) -> "HeldWorkers":
        """
        Start worker processes; see :class:`bursar.sites.protocol.Site`.

        A plan's pilot uses processors held by :meth:`take`; any other pilot waits for its own.
        """
        if self._shares is not None:
            self._shares.mark(endpoint.run)
        places = self._places
        own = None if places is None or pilot.start is not None else places
        if places is not None:
            # Before any worker starts: if this process is killed, others find its tasks by the
            # mark.
            places.mark(endpoint.run)
        if own is not None:
            await own.take(self._facts, pilot.name, pilot.processors, on_event)

        def give() -> None:
            if own is not None:
                own.give(self._facts, pilot.name)

        try:
            begin()
            workers = self._make(pilot, rigid=rigid, on_event=on_event)
        except BaseException:
            give()
            raise
        held = HeldWorkers(workers, pilot.processors, self._held, give)
        try:
            await workers.start(endpoint)
        except BaseException:
            await held.release()
            raise
        return held

    async def adopt(
        self,
        pilots: Sequence[Allocation],
        endpoints: Mapping[str, Endpoint],
        notify: Callable[[str], None],
    ) -> "dict[str, HeldWorkers]":
        """
        Take over pilots of an earlier process; return the pilots regained, by name.

        Workers that are gone are started again, after the processes they left were killed.

        Parameters
        ----------
        endpoints
            Where the workers of each pilot report, by pilot name.
        notify
            Called with a line for people on what becomes of a pilot.
        """
        await asyncio.to_thread(_end_orphans, self._run)
        held: dict[str, HeldWorkers] = {}
        for pilot in pilots:
            try:
                held[pilot.name] = await self.acquire(
                    pilot, endpoints[pilot.name], rigid=True, begin=_begun, on_event=notify
                )
            except SiteError as error:
                notify(str(error))
        return held

    @property
    def is_lasting(self) -> bool:
        """Whether workers may go on when this process is killed; see :class:`LastingSite`."""
        return self._starter is not None

    def expect(self, run: str, living: Mapping[str, int], leases: Collection[str]) -> None:
        """Adopt workers of an earlier process of a run; see :class:`LastingSite`."""
        if self._starter is not None:
            self._starter.expect(living)
        # What that process held is not another run's.
        if self._shares is not None:
            self._shares.go_on(run, leases)
        elif self._places is not None:
            self._places.mark(run)

    def kill_workers(self) -> None:
        """Kill the workers that were not given back; see :class:`LastingSite`."""
        for held in self._held:
            held.kill()

    async def end_others(self, pilots: Collection[str]) -> None:
        """End workers of an earlier process that belong to none of these pilots."""
        kept = tuple(f"{self._facts.name}-{name}-" for name in pilots)
        for name in workers_of(self._run) if self._run else ():
            if not name.startswith(kept):
                await asyncio.to_thread(kill_leftovers, self._run, name)

    async def leave(self) -> None:
        """Leave the workers running; lasting workers go on until another process adopts them."""
        for held in list(self._held):
            await held.leave_running()

    def _make(
        self, pilot: Allocation, *, rigid: bool, on_event: Callable[[str], None]
    ) -> LocalWorkers:
        make = self._workers or partial(LocalWorkers, starter=self._starter)
        return make(self._facts.name, pilot.name, pilot.processors, rigid=rigid, on_event=on_event)


class HeldWorkers:
    """
    Handle of a pilot on this machine.

    Parameters
    ----------
    among
        All pilots of the site, from which a release removes this one.
    give
        Called when the pilot's processors are free.
    """

    def __init__(
        self,
        workers: LocalWorkers,
        processors: int,
        among: "list[HeldWorkers]",
        give: Callable[[], None],
    ) -> None:
        self.processors = processors
        self._give = give
        self._workers = workers
        self._among = among
        among.append(self)

    @property
    def workers(self) -> int:
        """Workers that are there or will be again."""
        return self._workers.workers

    @property
    def has_quit(self) -> bool:
        """Whether all workers have ended: this machine is there, or nobody could say so."""
        return not self._workers.workers

    async def lost(self) -> tuple[AllocationLoss, str]:
        """Wait for ever: no other party can take this machine's processors away."""
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    def kill(self) -> None:
        """Kill the workers and all that they run."""
        self._workers.kill()

    async def leave_running(self) -> None:
        """Leave the workers running."""
        await self._workers.leave_running()

    async def release(self) -> None:
        """Stop the workers, by force if need be; then the processors are free."""
        try:
            await self._workers.release()
        finally:
            if self in self._among:
                self._among.remove(self)
                self._give()


def most_at_once(pilots: Sequence[Allocation]) -> int:
    """Return the most processors that pilots pay for at the same time; at least 1."""
    left = ResourceProfile.summed(
        (pilot.start or 0.0, pilot.latest_end, -pilot.paid) for pilot in pilots
    )
    return max(1, -left.least_free(-math.inf, math.inf))


def _begun(processors: int | None = None, seconds: float | None = None) -> None:
    """Do nothing: adopted processors have been there before."""


def _end_orphans(run: str) -> None:
    """Kill processes that were started by workers that are gone."""
    if run:
        for name in traces_of(run) - workers_of(run).keys():
            kill_leftovers(run, name)
