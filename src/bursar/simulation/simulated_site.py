"""Simulates a site, a cluster under background load or just processors, and its workers."""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from bursar.broker.pilot_plan import pilot_windows
from bursar.cluster.machine import Machine, Reservation
from bursar.dispatch.journal_records import epoch_of
from bursar.dispatch.prefetch import SOONEST, WaitLimit
from bursar.dispatch.wire import (
    CancelTasks,
    FrameDecoder,
    FromServer,
    Hello,
    JobAssignment,
    JobRecall,
    LeaveOrder,
    OutcomeReport,
    ReturnedJobs,
    Welcome,
    WireJob,
    frame,
)
from bursar.engine.ready_tasks import MASK
from bursar.market.lease import Lease
from bursar.model.allocation import Allocation, AllocationLoss
from bursar.model.errors import InputError, SiteError
from bursar.model.matching import SiteStatus
from bursar.model.money import Refusal
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.model.task import Outcome, Status
from bursar.provisioning.pool_snapshot import PoolSite
from bursar.simulation.execution_model import ExecutionModel
from bursar.simulation.loaded_cluster import LoadedCluster
from bursar.sites.protocol import MeteredTime, PilotBeginListener
from bursar.sites.queue_observer import backfill_windows_of
from bursar.worker.launch import Endpoint

# Simulates a worker on virtual time, which speaks the real protocol and runs nothing.


class SimulatedWorker(asyncio.Protocol):
    """
    Runs jobs in order as processors come free, for as long as the execution model says.

    Parameters
    ----------
    world
        Asked how long an attempt takes.
    endpoint
        Address and token of the dispatcher.
    name
        Unique in the run.
    """

    def __init__(
        self,
        world: ExecutionModel,
        endpoint: Endpoint,
        *,
        name: str,
        site: str,
        lease: str,
        processors: int,
    ) -> None:
        self._world = world
        self._hello = Hello(endpoint.token, name, site, processors, lease)
        self._site = site
        self._free = processors
        self._loop = asyncio.get_running_loop()
        self._epoch = epoch_of(self._loop)
        self._frames = FrameDecoder()
        self._decode = msgspec.msgpack.Decoder(FromServer).decode
        self._decode_job = msgspec.msgpack.Decoder(WireJob).decode
        self._queue: deque[WireJob] = deque()
        self._running: dict[int, tuple[WireJob, float, asyncio.TimerHandle]] = {}
        self._done: list[Outcome] = []
        self._transport: asyncio.Transport | None = None
        self._began = self._loop.time()  # a job; the last of them
        self._wait_limit = WaitLimit()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_there(self) -> bool:
        """Whether the worker is connected."""
        return self._transport is not None

    def leave(self) -> None:
        """Disconnect; running attempts are lost."""
        for _, _, timer in self._running.values():
            timer.cancel()
        self._running.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the hello."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(frame(self._hello))

    def connection_lost(self, exc: Exception | None) -> None:
        """Do nothing."""
        self._transport = None
        self.leave()

    def data_received(self, data: bytes) -> None:
        """Process jobs and orders."""
        for body in self._frames.feed(data):
            self._on_message(self._decode(body))

    def _on_message(self, message: FromServer) -> None:
        match message:
            case JobAssignment(jobs):
                self._queue.extend(self._decode_job(job) for job in jobs)
                self._fill()
            case JobRecall(count):
                since = self._loop.time() - self._began
                self._give_back(self._wait_limit.to_return(len(self._queue), count, since))
            case CancelTasks(tasks, _, reason):
                self._cancel(set(tasks) or None, reason)
            case LeaveOrder():
                self.leave()
            case Welcome():
                pass

    def _give_back(self, count: int) -> None:
        # From the end: what was given last would begin last.
        returned = [self._queue.pop() for _ in range(count)]
        if self._done:
            self._flush()  # what ended before goes first
        self._report(ReturnedJobs([(job.task, job.attempt) for job in returned]))

    def _check_waiting(self) -> None:
        """Return all jobs that wait when none has begun for as long as a real worker waits."""
        self._timer = None
        if not self._queue:
            return
        now, due = self._loop.time(), self._began + self._wait_limit.seconds
        if now < due:
            # Not later than the limit may become meanwhile, as tasks end.
            self._timer = self._loop.call_at(min(due, now + SOONEST), self._check_waiting)
        else:
            self._give_back(len(self._queue))

    def _fill(self) -> None:
        before = len(self._queue)
        while self._queue and self._queue[0].processors <= self._free:
            job = self._queue.popleft()
            self._free -= job.processors
            now = self._epoch + self._loop.time()
            task = job.task & MASK  # of a copy, too
            start = max(now, self._world.data_at(task, self._site))
            seconds, succeeds = self._world.attempt(task, job.attempt, self._site)
            status = Status.SUCCEEDED if succeeds else Status.FAILED
            if job.limit and seconds > job.limit:
                seconds, status = job.limit, Status.TIMED_OUT
            timer = self._loop.call_at(
                start + seconds - self._epoch, self._finish, job, start, start + seconds, status
            )
            self._running[job.task] = (job, start, timer)
        if len(self._queue) < before:
            self._began = self._loop.time()
        if self._queue and self._timer is None:
            self._check_waiting()

    def _finish(self, job: WireJob, start: float, end: float, status: Status) -> None:
        del self._running[job.task]
        self._free += job.processors
        self._wait_limit.learn(end - start)
        succeeded = status is Status.SUCCEEDED
        if succeeded:
            self._world.succeeded(job.task & MASK, self._site, end)
        self._report_outcome(
            Outcome(
                task=job.task,
                attempt=job.attempt,
                status=status,
                exit_code=0 if succeeded else 1 if status is Status.FAILED else None,
                start=start,
                end=end,
                user_seconds=(end - start) * job.processors,
                reason="" if succeeded else _REASONS[status],
            )
        )
        self._fill()

    def _cancel(self, tasks: set[int] | None, reason: str) -> None:
        now = self._epoch + self._loop.time()
        waiting = [job for job in self._queue if tasks is None or job.task in tasks]
        self._queue = deque(job for job in self._queue if job not in waiting)
        for job in waiting:
            self._report_outcome(_cancelled(job, now, now, reason))
        for job, start, timer in list(self._running.values()):
            if tasks is None or job.task in tasks:
                timer.cancel()
                del self._running[job.task]
                self._free += job.processors
                # A task whose files were still on their way has a start that lies ahead.
                self._report_outcome(_cancelled(job, min(start, now), now, reason))
        self._fill()

    def _report_outcome(self, outcome: Outcome) -> None:
        """Report an outcome, in one frame with all others of this moment."""
        if not self._done:
            # After all that ends at this moment, so that thousands of outcomes are not as many
            # frames.
            self._loop.call_soon(self._flush)
        self._done.append(outcome)

    def _flush(self) -> None:
        outcomes, self._done = self._done, []
        if outcomes:
            self._report(OutcomeReport(outcomes))

    def _report(self, message: OutcomeReport | ReturnedJobs) -> None:
        if self._transport is not None:
            self._transport.write(frame(message))


_REASONS = {
    Status.FAILED: "failed, as it was to in this simulation",
    Status.TIMED_OUT: "killed at its wall-time limit",
}


def _cancelled(job: WireJob, start: float, end: float, reason: str) -> Outcome:
    return Outcome(
        task=job.task,
        attempt=job.attempt,
        status=Status.CANCELLED,
        start=start,
        end=end,
        reason=reason,
    )


# Simulates a site: a cluster under background load, or just processors.


class SimulatedSite:
    """
    Simulates a site on virtual time.

    Parameters
    ----------
    cluster
        Machine at the begin of the simulation, with other users' jobs; None: the
        processors are there as its slots say, and it has no queue.
    """

    def __init__(
        self, facts: SiteFacts, world: ExecutionModel, cluster: LoadedCluster | None = None
    ) -> None:
        self.facts = facts
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
        if cluster is None or self.facts.slots is None:
            return tuple(_remaining_slots(self.facts.offers, asyncio.get_running_loop().time()))
        return advertised_slots(self.facts, cluster)

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
            raise SiteError(f"{self.facts.name}: {error.message}") from None

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
                s.processors for s in _remaining_slots(self.facts.offers, now) if s.start <= 0
            )
            free = max(0, offered - self._bought)
            return SiteStatus(
                site=self.facts.name,
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
            site=self.facts.name,
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
        facts = self.facts
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

    async def reserve(self, pilots: Sequence[Allocation]) -> float:
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
            raise SiteError(f"{self.facts.name}: the offer does not hold: {answer.reason}")
        self._kept = answer
        return 0.0

    async def acquire(
        self,
        pilot: Allocation,
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

    async def _wait_in_queue(self, pilot: Allocation) -> int:
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
                raise SiteError(f"{self.facts.name}: a job waits for ever")
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
                f"{self.facts.name} is known by its slots only: there is no queue for best effort"
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
        self, site: SimulatedSite, job: int | None, pilot: Allocation, stopping: float = 0.0
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
        # The first release tells until when the processors were held; a second one changes nothing.
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
