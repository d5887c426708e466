"""The staff on virtual time, beside a site, a hub, a desk and a journal that are made up."""

import asyncio
import math
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from bursar.dispatch.credential import PilotTerms
from bursar.engine.lease_admission import LeaseAdmission
from bursar.model.allocation import Allocation, AllocationLoss, AllocationRequest
from bursar.model.errors import SiteError
from bursar.model.matching import SiteStatus
from bursar.model.provisioning import AcquisitionPolicy, ProcessorDemand
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.provisioning.pool_snapshot import PoolDecision, PoolSite
from bursar.service.interfaces import ServiceError, WorkerDemand
from bursar.service.provisioner.lease_policies import (
    ClusterLeasePolicy,
    LeasePolicy,
    MachineLeasePolicy,
    ProvisioningView,
)
from bursar.service.provisioner.worker_provisioner import ProvisionerSettings, WorkerProvisioner
from bursar.simulation.virtual_loop import VirtualLoop
from bursar.sites.protocol import HeldProcessors, PilotBeginListener
from bursar.store import Position, RecordOwner
from bursar.worker.launch import Endpoint


@dataclass
class Load:
    ready: int
    busy: int = 0
    idle_since: float | None = 0.0


@dataclass
class Hub:
    """Workers join when they are told to, and those that are let go leave at once."""

    there: dict[str, Load] = field(default_factory=dict)
    expected: dict[str, str] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    on_change: Callable[[], None] = lambda: None
    admission: LeaseAdmission = field(default_factory=LeaseAdmission)

    def gathered(self) -> None:
        self.said.append("gathered")

    def expect(self, lease: str, *, pool: str, site: str, processors: int) -> str:
        self.expected[lease] = pool
        return f"token of {lease}"

    def dismiss(self, lease: str) -> None:
        self.said.append(f"dismiss {lease}")
        load = self.there.get(lease)
        if load is not None and not load.busy:
            self.leave(lease)

    def revoke(self, lease: str) -> None:
        if self.expected.pop(lease, None) is not None:
            self.leave(lease)

    async def credential(self, terms: PilotTerms) -> bytes:
        raise NotImplementedError

    def leases(self) -> Mapping[str, Load]:
        return self.there

    def join(self, lease: str, processors: int) -> None:
        self.there[lease] = Load(processors)
        self.on_change()

    def leave(self, lease: str) -> None:
        if self.there.pop(lease, None) is not None:
            self.on_change()


@dataclass
class Processors:
    """Held at the site."""

    site: "Place"
    pilot: Allocation
    gone: "asyncio.Future[tuple[AllocationLoss, str]]"
    workers: int = 1

    async def lost(self) -> tuple[AllocationLoss, str]:
        return await asyncio.shield(self.gone)

    async def release(self) -> None:
        self.site.held.pop(self.pilot.name, None)


@dataclass
class Place:
    """A site whose workers join after a while, or that fails, or has them wait, for a while."""

    worker_server: Hub
    size: int = 4
    starting: float = 0.5
    fails_until: float = -1.0
    queue: asyncio.Event | None = None
    on_adopt: Callable[[], None] = lambda: None
    held: dict[str, Processors] = field(default_factory=dict)
    tried: list[float] = field(default_factory=list)
    left: bool = False

    @property
    def facts(self) -> SiteFacts:
        return SiteFacts(name="here", processors=self.size)

    def offers(self) -> tuple[Slot, ...]:
        return ()

    def status(self, seconds: float | None = None) -> SiteStatus:
        raise NotImplementedError

    def view(self) -> PoolSite:
        raise NotImplementedError

    async def reserve(self, pilots: Sequence[Allocation]) -> float:
        return 0.0

    async def acquire(
        self,
        pilot: Allocation,
        endpoint: Endpoint,
        *,
        rigid: bool,
        begin: PilotBeginListener,
        on_event: Callable[[str], None],
    ) -> Processors:
        now = asyncio.get_running_loop().time()
        self.tried.append(now)
        if now < self.fails_until:
            raise SiteError("here: no", transient=True)
        assert endpoint.token == f"token of {pilot.name}"
        held = self.hold(pilot)
        if self.queue is not None:
            await self.queue.wait()
        begin()
        assert sum(one.pilot.processors for one in self.held.values()) <= self.size
        asyncio.get_running_loop().call_later(self.starting, self.join, pilot)
        return held

    def hold(self, pilot: Allocation) -> Processors:
        gone = asyncio.get_running_loop().create_future()
        self.held[pilot.name] = Processors(self, pilot, gone)
        return self.held[pilot.name]

    def join(self, pilot: Allocation) -> None:
        if pilot.name in self.held and pilot.name in self.worker_server.expected:
            self.worker_server.join(pilot.name, pilot.processors)

    async def adopt(
        self,
        pilots: Sequence[Allocation],
        endpoints: Mapping[str, Endpoint],
        say: Callable[[str], None],
    ) -> dict[str, Processors]:
        await asyncio.sleep(0)
        self.on_adopt()
        return {p.name: self.held[p.name] for p in pilots if p.name in self.held}

    async def leave(self) -> None:
        self.left = True

    async def end_others(self, pilots: Collection[str]) -> None:
        for name in self.held.keys() - set(pilots):
            del self.held[name]


@dataclass
class Journal:
    """Keeps records in memory; what was killed is gone."""

    records: dict[Position, tuple[int, bytes]] = field(default_factory=dict)
    participant: RecordOwner | None = None
    full: bool = False
    count: int = 0

    def register(self, kinds: Sequence[int], participant: RecordOwner) -> None:
        self.participant = participant

    async def open(self) -> list[str]:
        assert self.participant is not None
        for position, (kind, payload) in list(self.records.items()):
            self.participant.restore(kind, position, payload)
        return []

    def append(self, kind: int, payload: bytes, *, essential: bool) -> Position:
        if self.full and not essential:
            raise ServiceError("disk-full", 507, "no room")
        self.count += 1
        self.records[self.count] = (kind, payload)
        return self.count

    async def durable(self) -> None:
        await asyncio.sleep(0.001)

    async def read(self, position: Position) -> bytes:
        return self.records[position][1]

    def kill(self, position: Position) -> None:
        self.records.pop(position, None)

    async def failed(self) -> str:
        raise NotImplementedError

    @property
    def size(self) -> int:
        return 0

    @property
    def problem(self) -> str:
        return ""

    async def close(self) -> None:
        pass


@dataclass
class Desk:
    wanted: dict[str, WorkerDemand] = field(default_factory=dict)
    told: list[tuple[str, int]] = field(default_factory=list)
    excuses: list[int] = field(default_factory=list)

    def pools(self, now: float) -> Mapping[str, WorkerDemand]:
        return {pool: w for pool, w in self.wanted.items() if now < w.until}

    def ready(
        self, pool: str, processors: int, *, excused: int = 0, excused_before: int = 0
    ) -> None:
        self.told.append((pool, processors))
        self.excuses.append(excused)


@dataclass
class Engine:
    waiting: dict[str, ProcessorDemand] = field(default_factory=dict)

    def demand(self) -> Mapping[str, ProcessorDemand]:
        return self.waiting


class World:
    """All of them together; the staff may be killed and come back."""

    def __init__(self, *, warm: bool = True, rules: LeasePolicy | None = None) -> None:
        self.rules = rules
        self.worker_server = Hub()
        self.place = Place(self.worker_server)
        self.journal = Journal()
        self.billing = Desk()
        self.engine = Engine()
        self.said: list[str] = []
        self.warm = warm
        self.names = 0
        self.accounts: dict[str, str] = {}  # local ones, by user

    async def start(self) -> None:
        self.provisioner = WorkerProvisioner(
            sites=lambda account: self.place,
            rules=self.rules or MachineLeasePolicy(unit=2, warm=self.warm),
            settings=ProvisionerSettings(
                processors=self.place.size, address=("127.0.0.1", 1), run="r"
            ),
            account=lambda user: self.accounts.get(user, ""),
            billing=self.billing,
            engine=self.engine,
            workers=self.worker_server,
            journal=self.journal,
            clock=asyncio.get_running_loop().time,
            entropy=self.entropy,
            notify=self.said.append,
        )
        self.worker_server.on_change = self.provisioner.review
        await self.journal.open()
        await self.provisioner.open()
        self.task = asyncio.create_task(self.provisioner.run())

    async def stop(self) -> None:
        """As a kill does, as far as anybody else sees."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.provisioner.close()

    def entropy(self, size: int) -> bytes:
        self.names += 1
        return self.names.to_bytes(size, "big")

    def pools(self) -> dict[str, int]:
        """Processors with workers, by pool."""
        found: dict[str, int] = {}
        for lease, load in self.worker_server.there.items():
            pool = self.worker_server.expected[lease]
            found[pool] = found.get(pool, 0) + load.ready
        return found


def on_virtual_time(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualLoop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def test_shared_workers_make_room_and_come_back() -> None:
    """An agreement has its processors at its start, to its end; the desk hears how many."""

    async def main() -> None:
        world = World()
        await world.start()
        await asyncio.sleep(5)
        assert world.pools() == {"shared": 4}
        world.billing.wanted["deal"] = WorkerDemand(
            user="ann", processors=3, start=20.0, until=50.0
        )
        world.provisioner.review()
        await asyncio.sleep(16)
        assert world.pools() == {"deal": 3, "shared": 1}
        assert world.billing.told == [("deal", 3)]
        await asyncio.sleep(30)
        assert world.pools() == {"shared": 4}
        assert world.billing.told[-1] == ("deal", 0)
        await world.stop()

    on_virtual_time(main)


def test_what_was_held_is_known_again() -> None:
    """Another life goes on with the leases that are still there, and opens what is missing."""

    async def main() -> None:
        world = World()
        await world.start()
        await asyncio.sleep(5)
        names = set(world.place.held)
        assert len(world.journal.records) == len(names) == 2
        await world.stop()
        assert set(world.place.held) == names  # nobody was let go
        lost = names.pop()
        del world.place.held[lost]
        world.worker_server.leave(lost)

        await world.start()
        await asyncio.sleep(5)
        assert names < set(world.place.held)
        assert lost not in world.place.held
        assert len(world.journal.records) == len(world.place.held) == 2
        assert world.said == ["1 of 2 leases are still there"]
        await world.stop()

    on_virtual_time(main)


class OneMinute(MachineLeasePolicy):
    """One lease at a time, of a minute."""

    def decide(self, view: ProvisioningView) -> list[PoolDecision]:
        if view.leases:
            return []
        return [AllocationRequest(pool="shared", processors=2, duration=60.0)]


@pytest.mark.parametrize("restarted", [False, True])
def test_the_time_of_processors_begins_when_they_are_there(restarted: bool) -> None:
    """However long they were waited for, in whatever life; and later lives know when they began."""

    async def main() -> None:
        world = World(rules=OneMinute())
        world.place.queue = asyncio.Event()
        await world.start()
        await asyncio.sleep(100)
        (name,) = world.place.held
        if restarted:
            await world.stop()
            await world.start()
        await asyncio.sleep(100)
        assert set(world.place.held) == {name}
        if restarted:
            world.place.join(world.place.held[name].pilot)
        world.place.queue.set()  # at 200 s
        await asyncio.sleep(30)
        assert set(world.place.held) == {name}
        assert len(world.journal.records) == 1
        await world.stop()
        await world.start()
        await asyncio.sleep(28)
        assert set(world.place.held) == {name}
        await asyncio.sleep(5)
        assert name not in world.place.held
        await world.stop()

    on_virtual_time(main)


def test_a_request_that_waits_outlasts_the_time_for_which_tasks_are_withheld() -> None:
    """After a restart a request keeps its place until it is known which tasks need processors."""

    def rules() -> ClusterLeasePolicy:
        policy = AcquisitionPolicy(idle=1.0, acquisition="one-at-a-time")
        return ClusterLeasePolicy(lambda: PoolSite(name="here", rules=policy, processors=4))

    async def main() -> None:
        world = World(rules=rules())
        world.place.queue = asyncio.Event()
        waiting = ProcessorDemand(tasks=2, processors=2, widest=1, work=20.0, longest=10.0)
        world.engine.waiting["shared"] = waiting
        await world.start()
        await asyncio.sleep(10)
        requests = set(world.place.held)
        assert len(requests) == 2

        await world.stop()
        world.rules = rules()
        world.engine.waiting["shared"] = ProcessorDemand(later=2, withheld=True)
        await world.start()
        await asyncio.sleep(29)
        assert set(world.place.held) == requests

        world.engine.waiting["shared"] = waiting
        world.provisioner.review()
        await asyncio.sleep(29)
        assert set(world.place.held) == requests
        assert len(world.place.tried) == 2

        # One task is over: the request that nobody needs any more is withdrawn, and only that.
        world.engine.waiting["shared"] = replace(waiting, tasks=1, processors=1, work=10.0)
        world.provisioner.review()
        await asyncio.sleep(29)
        assert len(world.place.held) == 1
        assert set(world.place.held) < requests
        assert len(world.place.tried) == 2
        await world.stop()

    on_virtual_time(main)


def test_who_may_still_run_something_is_waited_for() -> None:
    """A lease that is to go after a restart stays while its worker may be on the way back."""

    async def main() -> None:
        world = World()
        await world.start()
        await asyncio.sleep(5)
        await world.stop()
        world.worker_server.there.clear()
        first, second = world.place.held
        world.engine.waiting["shared"] = ProcessorDemand(tasks=1, processors=4, widest=4)

        await world.start()
        await asyncio.sleep(1)
        assert set(world.place.held) == {first, second}  # asked to leave, and may come to say so
        world.worker_server.join(first, 2)
        world.worker_server.there[first].busy = 2
        await asyncio.sleep(20)
        assert first in world.place.held
        world.worker_server.leave(first)
        await asyncio.sleep(2)
        assert set(world.place.held) == {second}
        await asyncio.sleep(20)
        assert [held.pilot.processors for held in world.place.held.values()] == [4]
        await world.stop()

    on_virtual_time(main)


def test_it_is_tried_ever_more_rarely_where_workers_cannot_be_had() -> None:
    """And succeeds soon after they can; meanwhile nothing is left in the journal."""

    async def main() -> None:
        world = World()
        world.place.fails_until = 100.0
        await world.start()
        await asyncio.sleep(99)
        assert 2 <= len(world.place.tried) <= 20
        assert not world.journal.records
        assert world.provisioner.problem
        await asyncio.sleep(100)
        assert world.pools() == {"shared": 4}
        assert not world.provisioner.problem
        await world.stop()

    on_virtual_time(main)


def test_an_account_whose_workers_cannot_be_had_does_not_shut_out_others() -> None:
    """It is named with the reason, told of once, and forgotten when it works again."""

    async def main() -> None:
        world = World(warm=False)
        world.accounts = {"ann": "annie"}
        world.place.fails_until = 100.0
        await world.start()
        world.engine.waiting["shared:ann"] = ProcessorDemand(tasks=1, processors=1, widest=1)
        world.provisioner.review()
        await asyncio.sleep(0.5)
        assert not world.provisioner.failing  # once may be by chance
        await asyncio.sleep(20)
        assert dict(world.provisioner.failing) == {"annie": "here: no"}
        assert not world.provisioner.problem
        await asyncio.sleep(200)
        assert not world.provisioner.failing
        await world.stop()
        told = [line for line in world.said if "annie" in line]
        assert told == [
            'workers of the account "annie" cannot be had: here: no',
            'workers of the account "annie" fail no longer',
        ]

    on_virtual_time(main)


def test_a_full_disk_is_waited_out() -> None:
    """No workers are asked for that nobody would know of after a crash."""

    async def main() -> None:
        world = World()
        world.journal.full = True
        await world.start()
        await asyncio.sleep(10)
        assert not world.place.tried
        world.journal.full = False
        await asyncio.sleep(20)
        assert world.pools() == {"shared": 4}
        await world.stop()

    on_virtual_time(main)


@pytest.mark.parametrize("loss", ["lost", "ended"])
def test_workers_that_are_gone_are_replaced(loss: AllocationLoss) -> None:
    """Whether the site says so, or they have died too often."""

    async def main() -> None:
        world = World()
        await world.start()
        await asyncio.sleep(5)
        first = next(iter(world.place.held.values()))
        first.gone.set_result((loss, "its node is down"))
        world.worker_server.leave(first.pilot.name)
        await asyncio.sleep(5)
        assert world.pools() == {"shared": 4}
        assert first.pilot.name not in world.place.held
        second = next(iter(world.place.held.values()))
        second.workers = 0
        world.worker_server.leave(second.pilot.name)
        await asyncio.sleep(10)
        assert world.pools() == {"shared": 4}
        assert second.pilot.name not in world.place.held
        await world.stop()

    on_virtual_time(main)


def test_a_task_that_waits_brings_a_worker() -> None:
    """Where none is kept warm; it goes again when it has been idle."""

    async def main() -> None:
        world = World(warm=False)
        await world.start()
        await asyncio.sleep(5)
        assert world.pools() == {}
        world.engine.waiting["shared:ann"] = ProcessorDemand(tasks=1, processors=1, widest=1)
        world.provisioner.review()
        await asyncio.sleep(2)
        assert world.pools() == {"shared:ann": 1}
        world.engine.waiting.clear()
        for load in world.worker_server.there.values():
            load.idle_since = asyncio.get_running_loop().time()
        world.provisioner.review()
        await asyncio.sleep(40)
        assert world.pools() == {}
        await world.stop()

    on_virtual_time(main)


def check_held(held: HeldProcessors) -> None:
    """Mypy sees that the stand-ins are what they stand for."""
    assert math.isfinite(held.workers)


def test_workers_that_become_idle_go_though_nothing_else_happens() -> None:
    """Their last task's end is no news of a worker that comes or goes; it is looked for."""

    async def main() -> None:
        world = World(warm=False)
        world.engine.waiting["shared"] = ProcessorDemand(tasks=1, processors=2, widest=2)
        await world.start()
        await asyncio.sleep(5)
        (lease,) = world.place.held
        load = world.worker_server.there[lease]
        load.busy, load.idle_since = 2, None
        world.engine.waiting["shared"] = ProcessorDemand(running=2)
        world.provisioner.review()
        await asyncio.sleep(100)
        load.busy, load.idle_since = 0, asyncio.get_running_loop().time()
        world.engine.waiting.clear()
        world.provisioner.review_idle()
        await asyncio.sleep(29)
        assert set(world.place.held) == {lease}
        await asyncio.sleep(2)
        assert not world.place.held
        await world.stop()

    on_virtual_time(main)
