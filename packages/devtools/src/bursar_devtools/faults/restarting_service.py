"""Simulates the service's machine, which restarts the service from disk after every end."""

import math
import random
from collections.abc import Callable
from functools import cache

from bursar.model.site import SiteFacts
from bursar.service.config import MarketSettings, ServiceConfig, TaskSettings
from bursar.service.execution_service import ExecutionService
from bursar.service.interfaces import Clock, ServiceError
from bursar.service.startup import load_identity
from bursar.sites.protocol import Site
from bursar.store import DiskBroken, DiskFull
from bursar_devtools.faults.event_trace import EventTrace
from bursar_devtools.faults.fault_plan import FaultPlan, seeded_random
from bursar_devtools.faults.faulty_cluster import FaultyCluster
from bursar_devtools.faults.faulty_connection import FaultyListener
from bursar_devtools.faults.faulty_http import SimulatedEndpoint
from bursar_devtools.faults.faulty_site import FaultySite, SimulatedHost
from bursar_devtools.faults.simulated_disk import SimulatedDisk, SimulatedStorage
from bursar_devtools.faults.simulated_homes import FOLDER, SimulatedInstanceHomes
from bursar_devtools.faults.simulated_process import ProcessLoop, SimulatedProcess
from bursar_devtools.faults.skewed_clock import skewed_clock

PARTY = "server"

OWNER = "site"
"""Name of the site, and of the owner in its deals."""

JUMP = 2.0
"""Largest change of the service's clock at a restart, seconds."""

_DISK = "the journal cannot be written"
"""Beginning of the only reason for which the service may stop by itself."""

_ADDRESS = ("127.0.0.1", 1)

InjectFaults = Callable[[SimulatedProcess], None]
"""Called with each new process of the service, to schedule its end."""


class RestartingService:
    """
    Runs the service in one simulated process after another.

    Parameters
    ----------
    seed
        Seed of all random choices of the service.
    plan
        Settings of the market, and faults of the clock.
    storage, homes, service, door, machine
        Parts that outlive a process: disk, instance folders, addresses for clients and workers,
        processors.
    cluster
        Cluster that replaces the machine's processors; None to use the machine.
    damage
        Callback for new processes, see :data:`InjectFaults`.
    wrong
        Called with a party and the rule that was violated.
    """

    def __init__(
        self,
        loop: ProcessLoop,
        seed: int,
        plan: FaultPlan,
        *,
        storage: SimulatedStorage,
        homes: SimulatedInstanceHomes,
        service: SimulatedEndpoint,
        door: FaultyListener,
        machine: SimulatedHost,
        cluster: FaultyCluster | None,
        trace: EventTrace,
        damage: InjectFaults,
        wrong: Callable[[str, str], None],
    ) -> None:
        self.service: ExecutionService | None = None
        self.process: SimulatedProcess | None = None
        self.lives = 0
        self.up_since = math.inf
        self._loop = loop
        self._seed = seed
        self._plan = plan
        self._cluster = cluster
        self._config = _service_config(plan, machine.facts if cluster is None else cluster.facts)
        self._storage = storage
        self._homes = homes
        self._service = service
        self._door = door
        self._machine = machine
        self._trace = trace
        self._damage = damage
        self._wrong = wrong
        self._supervisor = SimulatedProcess(loop, "supervisor")
        self._chance = seeded_random(seed, "supervisor")
        self._now = skewed_clock(loop.time, self._chance, skew=plan.skew, drift=plan.drift)
        self._clock = self._now

    def clock(self) -> float:
        """Return the time by the clock of the present process, or else of the last one."""
        return self._clock()

    @property
    def is_up(self) -> bool:
        """Whether the service takes requests."""
        return self.service is not None and self.process is not None and self.process.is_alive

    def start(self) -> None:
        """Start a new process of the service."""
        process = self.process = SimulatedProcess(self._loop, PARTY)
        self.service = None
        self.lives += 1
        self._clock = self._clock_of_a_life()
        process.on_death(self._ended)
        self._trace.note(PARTY, f"starts, life {self.lives}")
        self._damage(process)
        process.spawn(self._live(process, random.Random(f"{self._seed} entropy {self.lives}")))

    async def drain(self) -> None:
        """Drain and close the service, as a step of the service's process."""
        if self.service is not None and self.process is not None:
            self._trace.fault("drain", PARTY, "is told to end")
            try:
                await self.service.drain()
                await self.service.close()
                self._trace.note(PARTY, "has ended in good order")
            except ServiceError as error:
                self._trace.note(PARTY, f"ends: {error}")
            self.process.kill()

    def _clock_of_a_life(self) -> Clock:
        # Drawn for each process: within one life the clock runs smoothly, as the service may
        # assume.
        jump = self._chance.uniform(-JUMP, JUMP) if self._plan.skew else 0.0
        clock = self._now
        return lambda: clock() + jump

    async def _live(self, process: SimulatedProcess, random_bytes: random.Random) -> None:
        disk = SimulatedDisk(self._storage, process)

        @cache
        def site() -> Site:
            cluster = self._cluster
            return (
                FaultySite(self._machine)
                if cluster is None
                else cluster.site(service.worker_server)
            )

        try:
            identity = await load_identity(disk, random_bytes.randbytes)
            service = ExecutionService(
                self._config,
                identity=identity,
                disk=disk,
                clock=self._clock,
                entropy=random_bytes.randbytes,
                sites=lambda account: site(),
                address=_ADDRESS,
                log_size=self._plan.log,
                homes=self._homes,
            )
            await service.open()
            self.service = service
            self._service.serve(process, service.app)
            self._door.listen(process, service.worker_server.protocol)
            self.up_since = self._loop.time()
            self._trace.note(PARTY, "is open")
            # Waits for as long as the service runs; a kill ends this task with the process.
            reason = await service.failed()
            self._trace.note(PARTY, f"ends by itself: {reason}")
            if not reason.startswith(_DISK):  # a broken disk is not the service's error
                self._wrong(PARTY, reason)
        # Faults of the disk may keep a service from starting; the next life tries again.
        except (DiskFull, DiskBroken, ServiceError) as error:
            self._trace.note(PARTY, f"cannot start: {error}")
        except Exception as error:
            self._wrong(PARTY, f"cannot start: {type(error).__name__}: {error}")
        process.kill()

    def _ended(self) -> None:
        self.service = None
        self.up_since = math.inf
        self._supervisor.call_later(self._chance.uniform(0.05, 10.0), self.start)


def _service_config(plan: FaultPlan, facts: SiteFacts) -> ServiceConfig:
    return ServiceConfig(
        name=OWNER,
        folder=FOLDER,
        site=facts,
        selling=MarketSettings(
            must_buy=plan.must_buy,
            price_shared=plan.price_shared,
            credit=0.0,
            validity=300.0,
            penalty=plan.penalty,
        ),
        tasks=TaskSettings(outlives=300.0),
    )
