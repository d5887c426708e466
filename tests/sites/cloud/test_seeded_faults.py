"""
Whole runs on a cloud whose answers are lost, whose machines die and whose clock is wrong.

Run, engine, journal, guard, settlement and the cloud site are the real ones; time is virtual, the
cloud is simulated, and workers run nothing.
"""

import asyncio
import math
import random
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import bursar
from bursar.api.planning import plan as make_plan
from bursar.api.planning import replanner
from bursar.broker.policy_choice import SupplyPolicy
from bursar.dispatch.credential import PilotTerms
from bursar.dispatch.journal import read_journal
from bursar.market.ledger import Ledger
from bursar.model.allocation import Allocation
from bursar.model.cloud import (
    HOUR,
    BillingRules,
    CloudEndpoint,
    MachinePrice,
    MachineType,
    SpotTerms,
)
from bursar.model.errors import BursarError
from bursar.model.plan import Plan
from bursar.model.provisioning import PATIENCE, AcquisitionPolicy
from bursar.model.task import Status
from bursar.provisioning.pool import PilotPool
from bursar.runs.campaign_run import execute_campaign
from bursar.runs.environment import RunEnvironment
from bursar.runs.folder import RunFolder
from bursar.runs.plan_file import write_plan
from bursar.runs.pool_controller import PoolController
from bursar.runs.supply import PlannedSupply
from bursar.simulation.execution_model import ExecutionModel
from bursar.simulation.simulated_site import SimulatedWorker
from bursar.simulation.virtual_loop import VirtualLoop
from bursar.sites.cloud.cloud_site import CloudSite
from bursar.sites.cloud.machine_choice import machine_slots
from bursar.sites.cloud.provider import SpotPrice
from bursar.worker.launch import Endpoint
from bursar_devtools.clouds.simulated_cloud import CloudFaults, SimulatedCloud, SimulatedMachine

EPOCH = 1_700_000_000.0

SMALL = MachineType(name="small", processors=2, most=6, price=MachinePrice(hourly=0.36))
LARGE = MachineType(
    name="large",
    processors=8,
    most=3,
    price=MachinePrice(hourly=1.2),
    spot=SpotTerms(ceiling=0.9, price=MachinePrice(hourly=0.5, source="provider"), base=1),
)


class Admission:
    """Lets the workers of machines in, as the run's listener for pilots does."""

    def __init__(self) -> None:
        self.terms: dict[str, PilotTerms] = {}

    async def credential(self, terms: PilotTerms) -> bytes:
        self.terms[terms.lease] = terms
        return b"{}"

    def revoke(self, lease: str) -> None:
        self.terms.pop(lease, None)


class Boot:
    """Starts a worker on each machine that boots, which ends the machine when it leaves."""

    def __init__(self) -> None:
        self.cloud: SimulatedCloud
        self.world: ExecutionModel
        self.endpoint: Endpoint
        self.admission = Admission()
        # At some providers a machine that shuts down only stops, and has to be ended.
        self.pilots_end = True

    def __call__(self, machine: SimulatedMachine) -> Callable[[], None]:
        label = machine.order.label
        terms = self.admission.terms.get(label.lease)
        loop = asyncio.get_running_loop()
        if terms is None:  # nobody lets its pilot in: it ends the machine after a while
            loop.call_later(PATIENCE, self.cloud.end, machine)
            return lambda: None
        worker = LeavingWorker(
            self.world,
            self.endpoint,
            name=f"{terms.site}-{label.lease}-{machine.id}",
            site=terms.site,
            lease=label.lease,
            processors=terms.processors,
        )
        worker.terms = terms
        worker.ends = partial(self.cloud.end, machine) if self.pilots_end else lambda: None

        async def connect() -> None:
            await loop.create_connection(lambda: worker, *self.endpoint.address)

        worker.connecting = loop.create_task(connect())
        return worker.killed


class LeavingWorker(SimulatedWorker):
    """A worker whose pilot ends its machine when it is let go."""

    terms: PilotTerms
    ends: Callable[[], None]
    connecting: asyncio.Task[None]
    is_killed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.terms.on_join is not None
        self.terms.on_join()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        assert self.terms.on_leave is not None
        self.terms.on_leave()
        if not self.is_killed:
            asyncio.get_running_loop().call_later(1.0, self.ends)

    def killed(self) -> None:
        self.is_killed = True
        self.leave()


class VirtualCloudSite(CloudSite):
    """A cloud site whose workers come over the network in memory, without TLS."""

    boot: Boot

    async def acquire(self, pilot: Allocation, endpoint: Endpoint, **how: Any) -> Any:
        self.boot.endpoint = endpoint
        return await super().acquire(pilot, replace(endpoint, admission=self.boot.admission), **how)


def drawn_faults(chance: random.Random) -> CloudFaults:
    """Each fault is absent in half of all worlds, so that single faults show, too."""

    def odds(most: float) -> float:
        return chance.choice((0.0, chance.uniform(0, most)))

    return CloudFaults(
        throttled=odds(0.4),
        full=odds(0.3),
        lost_before=odds(0.3),
        lost_after=odds(0.3),
        dead=odds(0.2),
        broken=odds(0.3),
        silent=odds(0.2),
        list_lag=odds(40.0),
        skew=chance.choice((0.0, chance.uniform(-3000, 3000))),
        keeps_tokens=chance.random() < 0.5,
    )


def spot_history(chance: random.Random) -> Sequence[SpotPrice]:
    """Prices that change every few minutes, and are above the ceiling now and then."""
    moment, prices = 0.0, [SpotPrice(0.0, 0.5)]
    while moment < 40 * HOUR:
        moment += chance.uniform(300, 3000)
        price = 1.1 if chance.random() < 0.1 else round(chance.uniform(0.3, 0.9), 3)
        prices.append(SpotPrice(moment, price))
    return prices


def sleepers(count: int, chance: random.Random) -> tuple[bursar.Task, ...]:
    return tuple(
        bursar.Task(
            id=f"t{i}",
            steps=(bursar.Shell("x"),),
            runtime=chance.uniform(20, 900),
            processors=chance.choice((1, 1, 1, 2)),
        )
        for i in range(count)
    )


class World:
    """One run of one seed."""

    def __init__(self, seed: int, folder: Path, faults: CloudFaults | None = None) -> None:
        chance = self.chance = random.Random(seed)
        billing = chance.choice(
            (BillingRules(), BillingRules(minimum=0.0, unit=60.0), BillingRules(unit=3600.0))
        )
        endpoint = CloudEndpoint(
            provider="ec2",
            image="i",
            machines=(SMALL, LARGE),
            billing=billing,
            start_up=60.0,
            start_limit=300.0,
            owner="me",
        )
        self.facts = bursar.SiteFacts(
            name="cloud",
            kind="cloud",
            processors=endpoint.processors,
            unit_price=endpoint.least_unit_price,
            currency="EUR",
            cloud=endpoint,
            acquiring=AcquisitionPolicy(),
        )
        # Above the worst case of one machine, 2 h at the ceiling of a large one: with less, a pool
        # waits for money for ever.
        self.budget = chance.choice((None, chance.uniform(2.0, 12.0)))
        goal = bursar.Goal(budget=self.budget)
        workflow = bursar.Workflow(sleepers(chance.randint(1, 24), chance))
        self.campaign = bursar.Campaign(name="c", workflow=workflow, goal=goal)
        self.boot = Boot()
        self.cloud = SimulatedCloud(
            self.boot,
            seed,
            drawn_faults(chance) if faults is None else faults,
            billing,
            {"small": 0.36, "large": 1.2},
            {"large": spot_history(chance)},
            start=(10.0, chance.uniform(20, 400)),
        )
        self.boot.cloud = self.cloud
        self.boot.pilots_end = faults is not None or chance.random() < 0.5
        self.boot.world = ExecutionModel(workflow, [self.facts])
        self.folder = folder
        self.by_plan: bool | None = None  # None: by chance

    def run(self) -> None:
        """Carry the campaign out, by a pool or a plan, however it ends."""
        slots = machine_slots("cloud", self.facts.cloud)  # type: ignore[arg-type]
        offered = replace(self.facts, slots=slots)
        by_plan = self.chance.random() < 0.5 if self.by_plan is None else self.by_plan
        quote = make_plan(replace(self.campaign, goal=bursar.Goal()), offered, method="heft")
        chosen: Plan = quote.chosen or quote.nearest()
        policy = SupplyPolicy(kind="planned" if by_plan else "pool")
        made = RunFolder.create(
            self.folder, self.campaign, (self.facts,), argv=[], name="r", policy=policy
        )
        with made as folder:
            write_plan(folder, quote.to_dict(), chosen)
        site = VirtualCloudSite(
            self.facts,
            run=folder.identity,
            folder=folder.pilots,
            provider=self.cloud,
            clock=lambda: EPOCH + asyncio.get_running_loop().time(),
        )
        site.boot = self.boot
        replan = replanner(
            self.campaign, lambda: [replace(self.facts, slots=site.offers())], method="heft"
        )
        supply = PlannedSupply(chosen, replan) if by_plan else PoolController(PilotPool())

        @asynccontextmanager
        async def lifespan() -> AsyncIterator[None]:
            async with asyncio.timeout(40 * HOUR), site.opened():
                yield
            self.seconds = asyncio.get_running_loop().time()

        environment = RunEnvironment(
            sites={"cloud": site},
            supply=supply,
            loop=partial(VirtualLoop, EPOCH),
            lifespan=lifespan,
            prefetch=False,
            tick=math.inf,
            durable=False,
            amendable=False,
        )
        self.error: BaseException | None = None
        self.seconds = math.inf
        try:
            execute_campaign(
                folder, self.campaign, chosen, environment=environment, written_up=False
            )
        except BursarError as error:
            self.error = error
        self.journal = read_journal(folder.journal_file)
        self.said = [event.text for event in self.journal.events if event.kind == "message"]
        self.succeeded = {
            record.outcome.task
            for record in self.journal.records
            if record.final and record.outcome.status is Status.SUCCEEDED
        }

    def check(self) -> None:
        """No machine is left, the bill is the provider's within a unit, the budget is kept."""
        assert [one.id for one in self.cloud.left] == []
        ledger = Ledger(self.journal.transfers)
        provider = sum(self.cloud.cost(one) for one in self.cloud.bought)
        unit = self.cloud.billing.unit
        rate = max(self.cloud.hourly.values()) / HOUR
        within = unit * rate * max(1, len(self.cloud.bought))
        # What is not settled when the run ends stays set aside, for the next life to settle.
        assert ledger.spent / 1e6 <= provider + within
        assert (ledger.spent + ledger.held) / 1e6 >= provider - within
        if self.budget is not None:
            assert ledger.spent <= self.budget * 1e6
            assert provider <= self.budget + 1e-6
        # A request is made again only after a clear refusal: one machine for a lease, never two.
        leases = [one.order.label.lease for one in self.cloud.bought]
        assert len(leases) == len(set(leases)), "a machine was bought twice"


def plain_world(seed: int, folder: Path, faults: CloudFaults, *, by_plan: bool) -> World:
    """A world without drawn faults, budget and spot prices."""
    world = World(seed, folder, faults)
    world.by_plan = by_plan
    world.budget = None
    world.campaign = replace(world.campaign, goal=bursar.Goal())
    world.cloud.spot = {}
    return world


@pytest.mark.parametrize("by_plan", [pytest.param(True, marks=pytest.mark.ci), False])
def test_a_final_refusal_ends_the_run_with_the_providers_answer(
    by_plan: bool, tmp_path: Path
) -> None:
    """Site, type and answer are told, within a minute and not after another five."""
    faults = CloudFaults(unsold=frozenset(("small", "large")))
    world = plain_world(1, tmp_path, faults, by_plan=by_plan)
    world.run()

    pattern = r"cloud: no (small|large) can be bought: InvalidAMIID\.NotFound: no image i"
    assert any(re.fullmatch(pattern, line) for line in world.said), world.said
    assert world.error is None or re.fullmatch(pattern, str(world.error))
    assert world.seconds < 60
    assert world.cloud.bought == []


@pytest.mark.parametrize("by_plan", [True, pytest.param(False, marks=pytest.mark.ci)])
def test_a_type_that_is_refused_for_good_leaves_the_others(by_plan: bool, tmp_path: Path) -> None:
    faults = CloudFaults(unsold=frozenset(("large",)))
    world = plain_world(1, tmp_path, faults, by_plan=by_plan)
    world.run()

    assert world.error is None
    assert len(world.succeeded) == len(world.campaign.workflow.tasks)
    assert {one.order.type for one in world.cloud.bought} == {"small"}
    world.check()


@pytest.mark.ci
def test_a_machine_that_is_listed_after_it_was_given_up_is_ended(tmp_path: Path) -> None:
    """
    The answer is lost, and lists hold the machine only when nobody expects one any more.

    The run has nothing left to do by then, and waits for the machine all the same.
    """
    for seed in range(4):
        faults = CloudFaults(lost_after=0.5, list_lag=280.0)
        world = plain_world(seed, tmp_path / f"{seed}", faults, by_plan=seed % 2 == 0)
        world.run()

        assert [one.id for one in world.cloud.left] == []


@pytest.mark.ci
def test_a_run_without_faults_pays_to_the_unit(tmp_path: Path) -> None:
    """All tasks succeed, and the ledger has what the provider bills to the micro-unit."""
    for seed in range(6):
        world = World(seed, tmp_path / f"{seed}", CloudFaults())
        world.budget = None
        world.campaign = replace(world.campaign, goal=bursar.Goal())
        world.cloud.spot = {}
        world.cloud.hourly = {"small": 0.36, "large": 1.2}
        world.run()

        assert world.error is None
        assert len(world.succeeded) == len(world.campaign.workflow.tasks)
        world.check()


@pytest.mark.parametrize(
    "seed",
    [pytest.param(one, marks=[] if at < 4 else pytest.mark.ci) for at, one in enumerate(range(30))],
)
def test_faults_leave_no_machine_and_keep_the_budget(seed: int, tmp_path: Path) -> None:
    world = World(seed, tmp_path)
    world.run()
    world.check()
    assert all(one.ended is not None for one in world.cloud.bought)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(30, 500))
def test_more_faults_leave_no_machine_and_keep_the_budget(seed: int, tmp_path: Path) -> None:
    world = World(seed, tmp_path)
    world.run()
    world.check()
    assert all(one.ended is not None for one in world.cloud.bought)
