"""Simulates a site: a cluster under background load, or just processors."""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from bursar.broker.pilot_plan import Pilot, pilot_windows
from bursar.cluster.machine import Machine, Reservation
from bursar.market.lease import Lease
from bursar.model.admission import Refusal
from bursar.model.errors import InputError, SiteError
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.model.status import SiteStatus
from bursar.provisioning.pool_snapshot import AllocationLoss, PoolSite
from bursar.simulation.execution_model import ExecutionModel
from bursar.simulation.loaded_cluster import LoadedCluster
from bursar.simulation.simulated_worker import SimulatedWorker
from bursar.sites.projection import backfill_windows_of
from bursar.sites.protocol import MeteredTime, PilotBeginListener
from bursar.worker.launch import Endpoint


class SimulatedSite:
    """
    Simulates a site on virtual time.

    Parameters
    ----------
    facts
        Description of the site.
    world
        Tells how long tasks take.
    cluster
        Machine at the begin of the simulation, with other users' jobs; None: the
        processors are there as its slots say, and it has no queue.
    """

    def __init__(
        self, facts: SiteFacts, world: ExecutionModel, cluster: LoadedCluster | None = None
    ) -> None:
        self._facts = facts
        self._world = world
        self._cluster = cluster
        self._began = 0.0 if cluster is None else cluster.now
        self._kept: list[Reservation] = []
        self._queued: dict[int, asyncio.Future[None]] = {}
        self._waiting = np.zeros(0, dtype=np.int64)  # jobs of these
        self._timer: asyncio.TimerHandle | None = None
        self._pilots = 0  # that did not come through the queue
        self._bought = 0  # processors of these
        self._spans: dict[str, tuple[float, float]] = {}  # of pilots that are over, loop time

    @property
    def unwatched(self) -> float:
        """Seconds that processors may be held without a run: 0, as no simulated run is killed."""
        return 0.0

    async def meter(self, lease: Lease, watched: float | None) -> MeteredTime:
        """Return how long a lease's processors were held by the site's clock; see Settles."""
        span = self._spans.pop(lease.id, None)
        if span is None:
            return MeteredTime(seconds=None)
        # No more than agreed: the stop of a worker may take longer than its lease.
        agreed = math.inf if lease.until is None else lease.until - lease.start
        return MeteredTime(seconds=min(span[1] - span[0], agreed))

    @property
    def facts(self) -> SiteFacts:
        """Description of the site."""
        return self._facts

    @property
    def cluster(self) -> LoadedCluster | None:
        """Cluster of the site, moved to now; None for a site without a cluster."""
        if self._cluster is not None:
            self._go_on(self._cluster)
        return self._cluster

    @property
    def left_behind(self) -> LoadedCluster | None:
        """Cluster at the end of the simulation; None for a site without a cluster."""
        return self._cluster

    def offers(self) -> tuple[Slot, ...]:
        """Return the slots on offer now; for a cluster, what the schedule leaves free."""
        cluster = self.cluster
        if cluster is None or self._facts.slots is None:
            return tuple(_remaining_slots(self._facts.offers, asyncio.get_running_loop().time()))
        return advertised_slots(self._facts, cluster)

    def expected_wait(self, processors: int, seconds: float) -> float:
        """
        Return the seconds until a job submitted now would start, as far as is known now.

        Raises
        ------
        SiteError
            When it has no queue, or the job is wider than the machine.
        """
        try:
            return self._queue().traversal_time(processors, seconds)
        except InputError as error:
            raise SiteError(f"{self._facts.name}: {error.message}") from None

    def status(self, seconds: float | None = None) -> SiteStatus:
        """
        Return the machine's status, less the processors of pilots that are not jobs there.

        Without a machine it has no queue: a job waits for nothing while one of the processors
        that its slots offer is free, and otherwise nobody knows how long.
        """
        now = asyncio.get_running_loop().time()
        cluster = self.cluster
        if cluster is None:
            offered = sum(
                s.processors for s in _remaining_slots(self._facts.offers, now) if s.start <= 0
            )
            free = max(0, offered - self._bought)
            return SiteStatus(
                site=self._facts.name,
                at=now,
                free_processors=free,
                running=self._pilots,
                traversal_time=0.0 if free else None,
            )
        machine = cluster.machine
        # Reserved processors are no longer free on the machine; what pilots hold beyond them the
        # machine does not know.
        kept = sum(r.processors for r in machine.reservations if r.start <= machine.now)
        free = max(0, machine.free - max(0, self._bought - kept))
        is_known = free or machine.free == 0
        return SiteStatus(
            site=self._facts.name,
            at=now,
            free_processors=free,
            running=len(machine.running) + self._pilots,
            waiting=len(machine.waiting),
            traversal_time=cluster.traversal_time(1, seconds) if is_known else None,
        )

    def view(self) -> PoolSite:
        """
        Return the site as a pool sees it now, with its free processors.

        With a machine these are what its jobs and reservations leave, and ``waiting`` counts the
        queued jobs of others. Without one these are what no pilot holds, and there is no queue.
        """
        cluster = self.cluster
        facts = self._facts
        seen = PoolSite(
            name=facts.name,
            rules=facts.acquiring,
            processors=facts.processors,
            speed=facts.speed,
            unit_price=facts.unit_price,
            fixed_price=facts.fixed_price,
            batch=cluster is not None,
            free=max(0, facts.processors - self._bought),
        )
        if cluster is None:
            return seen
        machine = cluster.machine
        return replace(
            seen,
            free=machine.free,
            backfill_windows=backfill_windows_of(machine),
            waiting=len(machine.waiting) - len(self._waiting),
        )

    async def reserve(self, pilots: Sequence[Pilot]) -> float:
        """Keeps processors of the machine; see :class:`bursar.sites.protocol.Site`."""
        cluster = self.cluster
        if cluster is None:
            return 0.0
        machine = cluster.machine
        there = machine.reservations
        # Windows reserved before are given back first: a plan made anew may need the same
        # processors. Those that have ended are no longer known to the machine.
        for reservation in self._kept:
            if reservation in there:
                machine.release(reservation)
        self._kept = []
        answer = cluster.reserve(pilot_windows(pilots))
        if isinstance(answer, Refusal):
            raise SiteError(f"{self._facts.name}: the offer does not hold: {answer.reason}")
        self._kept = answer
        return 0.0

    async def acquire(
        self,
        pilot: Pilot,
        endpoint: Endpoint,
        *,
        rigid: bool,
        begin: PilotBeginListener,
        on_event: Callable[[str], None],
    ) -> "SimulatedAllocation":
        """Start one worker, at once or when the job leaves the queue; see the Site protocol."""
        job = await self._wait_in_queue(pilot) if pilot.start is None else None
        overhead = self._world.overhead(pilot.site)
        held = SimulatedAllocation(self, job, pilot, overhead.stopping)
        try:
            begin()
            if overhead.starting:
                await asyncio.sleep(overhead.starting)
            await held.start(
                SimulatedWorker(
                    self._world,
                    endpoint,
                    name=f"{pilot.site}-{pilot.name}",
                    site=pilot.site,
                    lease=pilot.name,
                    processors=pilot.processors,
                ),
                endpoint,
            )
        # Cancelled, too: the processors were handed over already and must be given back.
        except BaseException:
            await held.release()
            raise
        return held

    # The queue.

    async def _wait_in_queue(self, pilot: Pilot) -> int:
        machine = self._queue().machine
        seconds = _LONG if pilot.extensible else pilot.duration
        job = _submit_job(machine, pilot.processors, seconds, pilot.site)
        self._queued[job] = begun = asyncio.get_running_loop().create_future()
        self._waiting = np.append(self._waiting, job)
        try:
            self._check_queue()
            await begun
        # Who no longer wants the pilot must not leave a job in the queue that would start for
        # nobody.
        except asyncio.CancelledError:
            self._queued.pop(job, None)
            self._waiting = self._waiting[self._waiting != job]
            # Only after the job has left both tables: `_cancel` looks at those that wait.
            self._cancel(job)
            raise
        return job

    def _check_queue(self) -> None:
        """Wake the pilots whose jobs have started, and set a timer for the next event."""
        cluster = self._queue()
        started = cluster.machine.jobs.started(self._waiting, cluster.machine.now)
        for job in self._waiting[started].tolist():
            begun = self._queued.pop(job)
            if not begun.done():  # cancelled, and about to leave
                begun.set_result(None)
        self._waiting = self._waiting[~started]
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if len(self._waiting):
            moment = cluster.next_event - self._began
            # Nothing will happen by itself, so the simulation would stand still without a word.
            if math.isinf(moment):
                raise SiteError(f"{self._facts.name}: a job waits for ever")
            self._timer = asyncio.get_running_loop().call_at(moment, self._check_queue)

    def _cancel(self, job: int) -> None:
        """Cancel a job that runs or waits; others may start."""
        self._queue().machine.cancel(job)
        if len(self._waiting):
            self._check_queue()

    def _hold(self, processors: int) -> None:
        """Count processors taken, or given back, by a pilot that did not come through the queue."""
        self._bought += processors
        self._pilots += (processors > 0) - (processors < 0)

    def _queue(self) -> LoadedCluster:
        cluster = self.cluster
        if cluster is None:
            raise SiteError(
                f"{self._facts.name} is known by its slots only: there is no queue for best effort"
            )
        return cluster

    def _go_on(self, cluster: LoadedCluster) -> None:
        """Move the cluster's clock to the loop's time."""
        now = self._began + asyncio.get_running_loop().time()
        if now > cluster.now:
            cluster.advance(now)


class SimulatedAllocation:
    """
    Holds a pilot on a simulated site.

    Parameters
    ----------
    stopping
        Seconds until its processors are given back once it is released.
    """

    def __init__(
        self, site: SimulatedSite, job: int | None, pilot: Pilot, stopping: float = 0.0
    ) -> None:
        self._site = site
        self._stopping = stopping
        self._is_stopping = False
        self._job = job
        self._pilot = pilot.name
        self._since = asyncio.get_running_loop().time()
        self._bought = 0 if job is not None else pilot.processors
        site._hold(self._bought)
        self._worker: SimulatedWorker | None = None

    async def start(self, worker: SimulatedWorker, endpoint: Endpoint) -> None:
        """Connect the worker."""
        self._worker = worker
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: worker, *endpoint.address)

    @property
    def workers(self) -> int:
        """Number of workers: 1 until the release, then 0."""
        return int(self._worker is not None and (self._worker.is_there or self._is_stopping))

    async def lost(self) -> tuple[AllocationLoss, str]:
        """Never return: a simulated machine takes nothing away early."""
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    async def release(self) -> None:
        """Stop the worker and end the pilot's job."""
        if self._worker is not None:
            if self._stopping:
                self._is_stopping = True
                await asyncio.sleep(self._stopping)
                self._is_stopping = False
            self._worker.leave()
        now = asyncio.get_running_loop().time()
        # The first release tells until when the processors were held; a second one changes
        # nothing.
        self._site._spans.setdefault(self._pilot, (self._since, now))
        if self._job is not None:
            self._site._cancel(self._job)
            self._job = None
        self._site._hold(-self._bought)
        self._bought = 0


_LONG = 1e9
"""Seconds for which processors are kept that are given back when there is no more work."""


def advertised_slots(facts: SiteFacts, cluster: LoadedCluster) -> tuple[Slot, ...]:
    """A cluster's free slots now, at a site's prices; starts are seconds from now."""
    return tuple(
        replace(slot, unit_price=facts.unit_price, fixed_price=facts.fixed_price)
        for slot in cluster.facts(facts.name).slots or ()
    )


def _submit_job(machine: Machine, processors: int, seconds: float, site: str) -> int:
    try:
        job = machine.submit(processors, seconds)
    except InputError as error:
        raise SiteError(f"{site}: {error.message}") from None
    machine.advance(machine.now)
    return job


def _remaining_slots(slots: Sequence[Slot], now: float) -> list[Slot]:
    """Return what is left of slots from a moment on, with times counted from that moment."""
    left = []
    for slot in slots:
        start = max(0.0, slot.start - now)
        duration = slot.end - now - start
        if duration > 0:
            left.append(replace(slot, start=start, duration=duration))
    return left
