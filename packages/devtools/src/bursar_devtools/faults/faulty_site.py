"""Simulates the service's machine, whose workers outlive the service."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

from bursar.model.allocation import Allocation, AllocationLoss
from bursar.model.errors import SiteError
from bursar.model.matching import SiteStatus
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.provisioning.pool_snapshot import PoolSite, view_at_once
from bursar.sites.protocol import PilotBeginListener
from bursar.worker.launch import Endpoint
from bursar_devtools.faults.fault_injector import FaultInjector
from bursar_devtools.faults.faulty_worker import FaultyWorker, WorkerAssignment

StartWorker = Callable[[WorkerAssignment], FaultyWorker]
"""Starts a worker, which connects by itself."""


class SimulatedHost:
    """
    Holds the workers of the machine across restarts of the service.

    Parameters
    ----------
    on_over
        Called with the assignment of a worker whose lease has ended for good.

    Attributes
    ----------
    is_down
        Whether the machine has no processors for anybody now.
    mending
        Seconds after which a worker that died is replaced.
    """

    def __init__(
        self,
        facts: SiteFacts,
        hire: StartWorker,
        on_over: Callable[[WorkerAssignment], None] = lambda post: None,
    ) -> None:
        self.facts = facts
        self.hire = hire
        self.on_over = on_over
        self.workers: dict[str, FaultyWorker] = {}  # by lease
        self.is_down = False
        self.mending = 0.1
        self._hired = 0

    async def break_down(self, mean: float, trouble: FaultInjector) -> None:
        """
        Take all processors away for some minutes, again and again while faults are on.

        Parameters
        ----------
        mean
            Mean seconds from the end of one outage to the next; 0: there are none.
        """
        if mean:
            self.mending = trouble.chance.uniform(0.1, 60.0)
        while mean:
            await asyncio.sleep(trouble.chance.expovariate(1 / mean))
            if not trouble.is_on:
                return
            self.is_down = True
            for worker in self.living():
                worker.process.kill()
            await asyncio.sleep(trouble.chance.uniform(60.0, 240.0))
            self.is_down = False

    def start(self, pilot: Allocation, endpoint: Endpoint, deaths: int) -> FaultyWorker:
        """Start one worker with all processors of a lease, after so many that died there."""
        self._hired += 1
        post = WorkerAssignment(
            name=f"{pilot.site}-{pilot.name}-{self._hired}",
            site=pilot.site,
            lease=pilot.name,
            processors=pilot.processors,
            token=endpoint.token,
            deaths=deaths,
        )
        worker = self.workers[pilot.name] = self.hire(post)
        return worker

    def living(self) -> list[FaultyWorker]:
        """Return the workers that are alive."""
        return [worker for worker in self.workers.values() if worker.process.is_alive]


class FaultySite:
    """
    Gives one process of the service access to the machine; see :class:`bursar.sites.protocol.Site`.

    Parameters
    ----------
    machine
        Machine with the workers.
    """

    def __init__(self, machine: SimulatedHost) -> None:
        self._machine = machine

    @property
    def facts(self) -> SiteFacts:
        """Description of the site."""
        return self._machine.facts

    def offers(self) -> tuple[Slot, ...]:
        """Return one offer of all processors, from now on without an end."""
        return self._machine.facts.offers

    def status(self, seconds: float | None = None) -> SiteStatus:
        """Return the status of the site now."""
        return SiteStatus(
            site=self.facts.name,
            at=asyncio.get_running_loop().time(),
            free_processors=self._free,
            running=len(self._machine.living()),
            traversal_time=0.0 if self._free else None,
        )

    def view(self) -> PoolSite:
        """Return the site as a pool sees it."""
        return view_at_once(self.facts, self._free)

    async def reserve(self, pilots: Sequence[Allocation]) -> float:
        """Return no wait: processors are available at once."""
        return 0.0

    async def acquire(
        self,
        pilot: Allocation,
        endpoint: Endpoint,
        *,
        rigid: bool,
        begin: PilotBeginListener,
        on_event: Callable[[str], None],
    ) -> "FaultySiteAllocation":
        """
        Start one worker for a pilot.

        Raises
        ------
        SiteError
            When too few processors are free, or the machine is down.
        """
        if self._machine.is_down:
            raise SiteError(f"{self.facts.name}: is down")
        if pilot.processors > self._free:
            raise SiteError(f"{self.facts.name}: {pilot.processors} processors are not free")
        begin()
        return FaultySiteAllocation(self._machine, pilot, endpoint)

    async def adopt(
        self,
        pilots: Sequence[Allocation],
        endpoints: Mapping[str, Endpoint],
        say: Callable[[str], None],
    ) -> Mapping[str, "FaultySiteAllocation"]:
        """Take over the allocations whose workers are still alive."""
        return {
            pilot.name: FaultySiteAllocation(self._machine, pilot, endpoints[pilot.name])
            for pilot in pilots
            if (worker := self._machine.workers.get(pilot.name)) and worker.process.is_alive
        }

    async def end_others(self, pilots: Collection[str]) -> None:
        """Kill the workers of all other leases."""
        for lease, worker in self._machine.workers.items():
            if lease not in pilots:
                worker.process.kill()

    async def leave(self) -> None:
        """Do nothing: workers outlive the service."""

    @property
    def _free(self) -> int:
        taken = sum(worker.post.processors for worker in self._machine.living())
        return max(0, self.facts.processors - taken)


class FaultySiteAllocation:
    """Holds a lease on the machine; replaces a worker that died, but not one that left."""

    def __init__(self, machine: SimulatedHost, pilot: Allocation, endpoint: Endpoint) -> None:
        self._machine = machine
        self._pilot = pilot
        self._endpoint = endpoint
        self._deaths = 0
        worker = machine.workers.get(pilot.name)
        self._worker = worker if worker and worker.process.is_alive else self._hire()
        self._over = False

    @property
    def workers(self) -> int:
        """Number of workers: 1 until the allocation ends or its worker leaves."""
        return int(not self._over and not self._worker.has_left)

    async def lost(self) -> tuple[AllocationLoss, str]:
        """Wait until the worker has left."""
        while True:
            await self._death(self._worker)
            if self._worker.has_left:
                return "ended", "its worker has left"
            if self._machine.is_down:
                return "lost", "its machine is down"
            await asyncio.sleep(self._machine.mending)
            # A worker that died is replaced, as on a real machine; one that left had been told to,
            # or had nothing to do.
            if not self._over:
                self._deaths += 1
                self._worker = self._hire()

    async def release(self) -> None:
        """Kill the worker and its tasks."""
        self._over = True
        self._worker.process.kill()
        self._machine.on_over(self._worker.post)

    def _hire(self) -> FaultyWorker:
        return self._machine.start(self._pilot, self._endpoint, self._deaths)

    @staticmethod
    async def _death(worker: FaultyWorker) -> None:
        died = asyncio.Event()
        worker.process.on_death(died.set)
        if worker.process.is_alive:
            await died.wait()
