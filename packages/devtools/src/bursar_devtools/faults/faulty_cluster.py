"""
Simulates a cluster behind a batch scheduler as the service's site.

The adapter is the real :class:`bursar.sites.batch.BatchSite`; the scheduler is simulated. Its
controller is slow, has outages, and may carry out a request whose answer is lost. Pilots wait in
its queue behind other users' jobs, end at their walltime limit, and are found again by the next
process of the service.
"""

import asyncio
import random
import re
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bursar.dispatch.credential import decode_credential
from bursar.dispatch.worker_listener import WorkerListener
from bursar.model.errors import SiteError
from bursar.model.site import SiteFacts
from bursar.provisioning.lrm.command_runner import CommandResult, CommandRunner
from bursar.provisioning.lrm.resource_manager import (
    JobReport,
    JobRequest,
    JobUsage,
    ManagerCapabilities,
    QueueState,
)
from bursar.service.workers.worker_server import WorkerServer
from bursar.sites.batch import BatchSite
from bursar_devtools.faults.event_trace import EventTrace
from bursar_devtools.faults.fault_plan import FaultPlan
from bursar_devtools.faults.faulty_worker import FaultyWorker, WorkerAssignment
from bursar_devtools.faults.simulated_process import ProcessLoop, SimulatedProcess
from bursar_devtools.simulated_jobs import (
    SchedulerLatency,
    SimulatedJob,
    cluster_with_timetable,
)
from bursar_devtools.simulated_manager import SimulatedResourceManager

Result = TypeVar("Result")

OTHERS_SECONDS = 55.0
"""Seconds for which a job may hold processors without a worker that is let in, where the service
and the controller are there: then its worker gives up, and what it held was for nobody."""

AWAY = 20.0
"""Mean seconds of an outage of the controller."""

HEEDLESS = 30.0
"""Seconds, in which the controller answers everything, after which the service must have ended the
jobs of leases that it has given back, and must know of jobs that have ended."""

_PARTY = "cluster"
_RUN = "bursar"
_THERE = ("pending", "held", "running")
_WARNED = 15.0
"""Seconds before its wall-clock limit at which a pilot is told to end, if it is."""

_SILENT = 3600.0  # seconds after which a machine that does not answer is taken to be gone


class FaultyCluster:
    """
    Holds the scheduler and its jobs, which outlive the service.

    Parameters
    ----------
    hire
        Starts workers, as job scripts do.
    chance
        Random source of latencies, lost answers and other users' jobs.
    folder
        Folder in which the adapter keeps its record of jobs.
    asked
        Called when a submission or cancellation begins, and again when it was carried out.
    was_there
        Whether a worker could reach the service during all of the last seconds.
    wrong
        Called with the name of a party and the rule that was violated.
    """

    def __init__(
        self,
        loop: ProcessLoop,
        plan: FaultPlan,
        facts: SiteFacts,
        hire: Callable[[WorkerAssignment], FaultyWorker],
        *,
        chance: random.Random,
        folder: Path,
        asked: Callable[[], None],
        was_there: Callable[[str, float], bool],
        wrong: Callable[[str, str], None],
        trace: EventTrace,
    ) -> None:
        self.facts = facts
        self.files: dict[str, bytes] = {}
        self.forgets = 0.0
        """Probability that the answer to a request is lost."""
        self.asked_in_vain = 0.0
        """Probability that a submission or cancellation meets the begin of an outage."""
        self._loop = loop
        self._plan = plan
        self._hire = hire
        self._chance = chance
        self._folder = folder
        self._asked = asked
        self._was_there = was_there
        self._wrong = wrong
        self._trace = trace
        self._process = SimulatedProcess(loop, _PARTY)
        self._workers: list[FaultyWorker] = []
        self._hired = 0
        self._others = 0
        self._away_until = 0.0
        self._unanswered = 0.0  # when an answer was lost last
        self._given_back: dict[str, float] = {}  # jobs: since when nobody has their lease
        self._over: dict[str, float] = {}  # leases: since when their job has ended
        self._scheduler = SimulatedResourceManager(
            cluster_with_timetable(facts.processors, policy="easy"),
            self._launch,
            latency=SchedulerLatency(submission=0.05, start=0.2, spread=2.0),
            rng=np.random.default_rng(chance.getrandbits(64)),
            name="cluster",
        )

    def site(self, hub: WorkerServer) -> BatchSite:
        """
        Return the adapter for one process of the service, whose workers report to its worker
        server.
        """
        hub.use_listener(
            WorkerListener(hub.protocol, _SILENT, hub.failed), 1, "simulated certificate"
        )
        return BatchSite(
            self.facts,
            run=_RUN,
            folder=self._folder,
            manager=_UnreliableManager(self),
            shell=_SharedFilesystem(self.files),
            clock=self._loop.time,
            lasting=True,
        )

    def living(self) -> list[FaultyWorker]:
        """Return the workers that are alive."""
        self._workers = [worker for worker in self._workers if worker.process.is_alive]
        return list(self._workers)

    @property
    def jobs(self) -> list[SimulatedJob]:
        """Pilots' jobs that have not ended."""
        return [job for job in self._scheduler.jobs if job.state in _THERE and _is_pilot(job)]

    def judge(self, wanted: Collection[str], since: float) -> None:
        """
        Compare the jobs with the leases that the service has; called again and again.

        Parameters
        ----------
        wanted
            Leases whose workers the service accepts.
        since
            Virtual time at which the present process of the service was ready.
        """
        now = self._loop.time()
        # The time begins anew with whatever may have kept the service from knowing better.
        heard = max(since, self._away_until, self._unanswered)
        there = {job.id: job for job in self.jobs}
        leases = {job.id: _lease_of(job) for job in self._scheduler.jobs if _is_pilot(job)}
        given_back = {id for id in there if leases[id] not in wanted}
        over = {lease for id, lease in leases.items() if id not in there and lease in wanted}
        self._given_back = {id: self._given_back.get(id, now) for id in given_back}
        self._over = {lease: self._over.get(lease, now) for lease in over}
        for id, begun in self._given_back.items():
            if now - max(begun, heard) > HEEDLESS:
                state = there[id].state
                self._wrong(_PARTY, f"job {id} is {state}, and its lease was given back long ago")
        for lease, begun in self._over.items():
            if now - max(begun, heard) > HEEDLESS:
                self._wrong(_PARTY, f"{lease} is held, and its job has ended long ago")

    # Faults.

    def go_away(self, seconds: float) -> None:
        """Begin an outage of the controller; jobs run on."""
        self._trace.fault("controller away", _PARTY, f"for {seconds:.1f} s")
        self._away_until = max(self._away_until, self._loop.time() + seconds)

    def occupy(self, seconds: float) -> None:
        """Submit another user's job that takes most of the processors."""
        self._others += 1
        most = self.facts.processors
        wide = self._chance.randint(max(1, most - 1), most)
        self._trace.fault("others' job", _PARTY, f"{wide} processors for {seconds:.1f} s")
        request = JobRequest(
            name=f"others-{self._others}",
            processors=wide,
            seconds=seconds,
            script="",
            folder="",
        )
        self._process.spawn(self._scheduler.submit(request))

    def kill_job(self) -> None:
        """End a running job as by the loss of a node."""
        running = [job for job in self.jobs if job.state == "running"]
        if running:
            job = self._chance.choice(running)
            self._trace.fault("job killed", _PARTY, f"job {job.id}: its node is gone")
            self._process.call(self._scheduler.lose, job.id)

    def calm(self) -> None:
        """End all faults."""
        self._away_until = min(self._away_until, self._loop.time())
        self.forgets = self.asked_in_vain = 0.0

    # Requests to the controller.

    async def ask(self, work: Callable[[], Coroutine[Any, Any, Result]], what: str) -> Result:
        """Carry out a request as the scheduler's own step, with failures before or after."""
        matters = what in ("submit", "cancel")
        if matters:
            self._asked()
        await asyncio.sleep(self._chance.uniform(0.01, 0.3))
        goes = matters and self._chance.random() < self.asked_in_vain
        # Half of the outages begin before the command is carried out, half after it: the caller
        # cannot tell a job that was never made from one whose id it has not heard.
        is_too_late = goes and self._chance.random() < 0.5
        if goes and not is_too_late:
            self.go_away(self._chance.expovariate(1 / AWAY))
        self._must_answer()
        # As a step of the cluster, which goes on when the asking service is killed meanwhile.
        answer: Result = await self._process.spawn(work())
        if matters:
            self._asked()
        await asyncio.sleep(self._chance.uniform(0.01, 0.3))
        if is_too_late:
            self.go_away(self._chance.expovariate(1 / AWAY))
            self._must_answer()
        if self.forgets and self._chance.random() < self.forgets:
            self._trace.fault("scheduler's answer lost", _PARTY, what)
            self._unanswered = self._loop.time()
            raise SiteError("the scheduler's answer was lost", transient=True)
        return answer

    @property
    def scheduler(self) -> SimulatedResourceManager:
        """The simulated scheduler."""
        return self._scheduler

    def _must_answer(self) -> None:
        if self._loop.time() < self._away_until:
            raise SiteError("the controller gives no answer", transient=True)

    # Jobs.

    def _launch(self, job: SimulatedJob) -> Callable[[], None] | None:
        """Start a worker where a pilot's script begins; other users' jobs run to their limit."""
        if not _is_pilot(job):
            return None
        path = _credential_of(job)
        data = self.files.get(path)
        if data is None:  # removed when the pilot was released: the worker ends at once
            self._process.call(job.end, "failed")
            return None
        credential = decode_credential(data, path)
        self._hired += 1
        worker = self._hire(
            WorkerAssignment(
                name=f"{credential.site}-{credential.lease}-{self._hired}",
                site=credential.site,
                lease=credential.lease,
                processors=min(credential.processors, job.processors),
                token=credential.token,
                idle=credential.idle,
            )
        )
        self._workers.append(worker)
        begun = self._loop.time()
        worker.process.on_death(lambda: self._ended(job, worker, begun))
        if self._plan.warns:
            # As schedulers do on request: a signal some seconds before the limit.
            seconds = max(0.0, job.seconds - _WARNED)
            worker.process.call_later(seconds, worker.evict)
        return worker.process.kill

    def _ended(self, job: SimulatedJob, worker: FaultyWorker, begun: float) -> None:
        now = self._loop.time()
        unwanted = worker.has_left and not worker.was_welcome and now - begun > OTHERS_SECONDS
        if (
            unwanted
            and now - self._away_until > OTHERS_SECONDS
            and self._was_there(worker.post.name, OTHERS_SECONDS)
        ):
            self._wrong(_PARTY, f"job {job.id} ({job.request.name}) ran for nobody")
        self._process.call(job.end, "completed" if worker.has_left else "failed")


def _is_pilot(job: SimulatedJob) -> bool:
    """Whether a job belongs to the service rather than to another user."""
    return job.request.name.startswith(_RUN)


def _credential_of(job: SimulatedJob) -> str:
    """Return the path of the credential that a pilot's script names."""
    paths = re.findall(r"credential=(\S+)", job.request.script)
    return str(paths[job.element])


def _lease_of(job: SimulatedJob) -> str:
    """Return the lease for which a pilot's job was submitted."""
    return Path(_credential_of(job)).stem


class _UnreliableManager:
    """Gives one process of the service access to the scheduler; see :class:`ResourceManager`."""

    def __init__(self, cluster: FaultyCluster) -> None:
        self._cluster = cluster
        self._inner = cluster.scheduler

    @property
    def abilities(self) -> ManagerCapabilities:
        """Capabilities of the scheduler."""
        return self._inner.abilities

    async def submit(self, request: JobRequest) -> list[str]:
        """Submit jobs."""
        return await self._cluster.ask(lambda: self._inner.submit(request), "submit")

    async def cancel(self, ids: Sequence[str]) -> None:
        """Cancel jobs."""
        await self._cluster.ask(lambda: self._inner.cancel(ids), "cancel")

    async def poll(self, ids: Sequence[str]) -> Mapping[str, JobReport]:
        """Return the states of jobs."""
        return await self._cluster.ask(lambda: self._inner.poll(ids), "poll")

    async def usage(self, ids: Sequence[str]) -> Mapping[str, JobUsage]:
        """Return the resource usage of jobs."""
        return await self._cluster.ask(lambda: self._inner.usage(ids), "usage")

    async def queue(self) -> QueueState:
        """Return the state of the queue."""
        return await self._cluster.ask(self._inner.queue, "queue")

    async def expected_start(self, request: JobRequest) -> float | None:
        """Return the expected start of a request."""
        return await self._cluster.ask(lambda: self._inner.expected_start(request), "estimate")

    async def reserve(self, name: str, start: float, seconds: float, processors: int) -> None:
        """Reserve processors."""
        await self._cluster.ask(
            lambda: self._inner.reserve(name, start, seconds, processors), "reserve"
        )

    async def unreserve(self, name: str) -> None:
        """Cancel a reservation."""
        await self._cluster.ask(lambda: self._inner.unreserve(name), "unreserve")

    async def named(self, name: str) -> list[str]:
        """Find jobs by name."""

        async def find() -> list[str]:
            return [job.id for job in self._inner.jobs if job.request.name == name]

        return await self._cluster.ask(find, "named")


class _SharedFilesystem(CommandRunner):
    """Keeps the files of the cluster's shared file system in memory."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__()
        self._files = files

    async def run(self, command: Sequence[str], **_: Any) -> CommandResult:
        """Return "no such file": simulated pilots write no error files."""
        return CommandResult(status=1, stdout="", stderr="no such file")

    async def make_folder(self, path: str) -> None:
        """Do nothing: folders need not exist."""

    async def write(self, path: str, data: bytes) -> None:
        """Write a file."""
        await asyncio.sleep(0)
        self._files[path] = data

    async def remove(self, path: str) -> None:
        """Remove a file."""
        await asyncio.sleep(0)
        self._files.pop(path, None)
