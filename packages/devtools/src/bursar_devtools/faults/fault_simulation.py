"""Simulates one seed: faults for a while, then a calm phase in which all work must complete."""

import asyncio
import contextlib
import random
import traceback
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bursar.remote.access import Access
from bursar.remote.admin_messages import NewToken
from bursar.remote.async_client import AsyncServiceClient
from bursar.remote.connection import ServiceConnection
from bursar.service.interfaces import Clock, Scope, ServiceError
from bursar.supervisor import TaskSupervisor
from bursar_devtools.faults.agreement_checker import AgreementChecker
from bursar_devtools.faults.campaign_client import CampaignClient
from bursar_devtools.faults.client_campaign import draw_campaign
from bursar_devtools.faults.event_trace import EventTrace
from bursar_devtools.faults.expiring_instance import ExpiringInstanceUser
from bursar_devtools.faults.fault_injector import FaultInjector
from bursar_devtools.faults.fault_plan import UNIT_PRICE, FaultPlan, seeded_random, site_facts_of
from bursar_devtools.faults.fault_targeting import FaultTargeting, fault_target_of
from bursar_devtools.faults.faulty_cluster import FaultyCluster
from bursar_devtools.faults.faulty_connection import FaultyListener
from bursar_devtools.faults.faulty_http import FaultyHttpTransport, SimulatedEndpoint
from bursar_devtools.faults.faulty_network import FaultyNetwork
from bursar_devtools.faults.faulty_site import SimulatedHost
from bursar_devtools.faults.faulty_worker import FaultyWorker, WorkerAssignment
from bursar_devtools.faults.final_audit import FinalAudit
from bursar_devtools.faults.invariant_checker import InvariantChecker
from bursar_devtools.faults.restarting_service import JUMP, OWNER, PARTY, RestartingService
from bursar_devtools.faults.service_owner import USER_SCOPES, ServiceOwner, StaleTokenUser
from bursar_devtools.faults.simulated_disk import SimulatedStorage
from bursar_devtools.faults.simulated_homes import SimulatedInstanceHomes
from bursar_devtools.faults.simulated_process import ProcessLoop, SimulatedProcess
from bursar_devtools.faults.skewed_clock import skewed_clock
from bursar_devtools.faults.unauthenticated_clients import UnauthenticatedClients

EXPIRING_USER = "brief-user"
"""User whose instance expires soon."""

URL = "http://127.0.0.1:7480"

PATIENCE = 1e6
"""Seconds for which a client retries; practically without end."""

SETTLED = 3600.0
"""Seconds after the last fault in which all work must end, beside the work's own time."""

TRIES = 12
"""Allowed factor on the time of all work, for slow workers and repeated attempts."""

MONEY = 10**12
"""Micro-units that each user gets, in two deposits."""

LEFT_BEHIND = 900.0
"""Seconds after the audit in which a batch site's pilot jobs must have ended."""

_LOOK = 10.0
"""Seconds between two checks of the service's accounts."""

LARGEST_JOURNAL = 8 * 1024 * 1024
"""Allowed size of the journal in bytes, far more than any of these simulations needs."""


class FaultSimulation:
    """
    Connects all parties of one seed's simulation.

    Parameters
    ----------
    loop
        Loop with the virtual time.
    seed, plan
        Seed of all random choices, and the faults to inject.
    """

    def __init__(self, loop: ProcessLoop, seed: int, plan: FaultPlan, trace: EventTrace) -> None:
        self._loop = loop
        self._seed = seed
        self._plan = plan
        self._trace = trace
        self._chaos = seeded_random(seed, "chaos")
        self._nature = SimulatedProcess(loop, "nature")
        self._network = FaultyNetwork(loop, seeded_random(seed, "network"), trace)
        self._network.on_half_open = lambda party: self.checker.wrong(
            party, "leaves a connection open that the other end has finished"
        )
        self._storage = SimulatedStorage(seeded_random(seed, "disk"), trace)
        self._targeting = FaultTargeting(
            plan,
            seeded_random(seed, "aims"),
            nature=self._nature,
            network=self._network,
            trace=trace,
            server=lambda: self.server.process,
            workers=lambda: [worker.post.name for worker in self._living()],
        )
        self._door = FaultyListener(self._network)
        self._storage.on_merge = lambda: self._targeting.at("merge")
        facts = site_facts_of(plan, OWNER)
        self._folder = TemporaryDirectory(prefix="bursar-dst-") if plan.batch else None
        self._cluster: FaultyCluster | None = None
        if self._folder is not None:
            self._cluster = FaultyCluster(
                loop,
                plan,
                facts,
                self._hire,
                chance=seeded_random(seed, "cluster"),
                folder=Path(self._folder.name),
                asked=lambda: self._targeting.at("job"),
                was_there=self._was_there,
                wrong=lambda party, what: self.checker.wrong(party, what),
                trace=trace,
            )
        self._trouble = FaultInjector(
            plan,
            self._chaos,
            nature=self._nature,
            network=self._network,
            storage=self._storage,
            targeting=self._targeting,
            trace=trace,
            parties=self._parties,
            door=self._door,
            evict=self._evict,
            unauthenticated=lambda: self._nobody.crowd(),
            cluster=self._cluster,
        )
        self._prompt = not (plan.partitions or plan.cuts)
        self.checker = InvariantChecker(
            trace,
            server_clock=lambda: self.server.clock(),
            pool_of=self._pool_of,
            holder_of=self._holder_of,
            late_until=lambda worker: self._network.late_until(worker, PARTY),
            contracts=AgreementChecker(
                processors=plan.processors,
                price=UNIT_PRICE,
                penalty=plan.penalty,
                now=loop.time,
                up_since=lambda: self.server.up_since,
                wrong=lambda party, what: self.checker.wrong(party, what),
            ),
            now=loop.time,
            prompt=self._prompt,
            calm=self._is_kind_to_workers(plan),
            same_time=not (plan.skew or plan.drift),
            has_succeeded=self._has_succeeded,
        )
        self._service = SimulatedEndpoint(
            lambda what: self.checker.wrong(PARTY, what), self._on_request, self._is_struck
        )
        self._nobody = UnauthenticatedClients(
            loop,
            self._network,
            self._door,
            trace,
            chance=seeded_random(seed, "strangers"),
            server=lambda: self.server.process,
            wrong=self.checker.wrong,
        )
        self._homes = SimulatedInstanceHomes()
        self._machine = SimulatedHost(
            facts, self._hire, self._nobody.come_late if plan.expires else lambda post: None
        )
        self.server = RestartingService(
            loop,
            seed,
            plan,
            homes=self._homes,
            storage=self._storage,
            service=self._service,
            door=self._door,
            machine=self._machine,
            cluster=self._cluster,
            trace=trace,
            damage=self._damage_server,
            wrong=self.checker.wrong,
        )
        self._tokens: dict[str, str] = {}
        self._customers: dict[str, SimulatedProcess] = {}
        self._open: set[str] = set()
        self._all_done = asyncio.Event()
        self._owner: ServiceOwner | None = None
        self._stale_users: list[StaleTokenUser] = []
        loop.set_exception_handler(self._on_exception)

    async def run(self) -> str:
        """Run the simulation, and return the first violation; empty when there was none."""
        with contextlib.ExitStack() as stack:
            if self._folder is not None:
                stack.enter_context(self._folder)
            return await self._run()

    async def _run(self) -> str:
        narrative = self._nature.spawn(self._story())
        await asyncio.wait({narrative, self.checker.failed}, return_when=asyncio.FIRST_COMPLETED)
        if self.checker.failed.done():
            return self.checker.failed.result()
        try:
            narrative.result()
        except Exception as error:  # such as a token that no longer works
            self._tell(error)
            return f"all: cannot go on: {_describe_innermost(error)}"
        return ""

    async def _story(self) -> None:
        self.server.start()
        await self._until_up()
        await self._let_in()
        watch = TaskSupervisor(lambda error: self.checker.wrong("all", f"not watched: {error!r}"))
        watch.start(self._watch())
        self._trouble.begin()
        self._nature.spawn(self._machine.break_down(self._plan.outages, self._trouble))
        assert self.server.process is not None
        self._damage_server(self.server.process)
        does = [self._nature.spawn(self._deposit_more())]
        if self._plan.reprices:
            does.append(self._nature.spawn(self._reprice()))
        for number in range(self._plan.users):
            user = f"user-{number}"
            chance = seeded_random(self._seed, user)
            edges = seeded_random(self._seed, f"{user} dependencies")
            for count in range(self._plan.campaigns):
                self.checker.wants(draw_campaign(user, count, self._plan, chance, edges))
            self._open.add(user)
            self._start_customer(user)
            if self._plan.rotates:
                does.append(self._nature.spawn(self._rotate(user)))
            if self._plan.expires:
                does.append(self._nature.spawn(self._wear_out(user)))
        if self._plan.expires and not self._plan.must_buy:
            does.append(self._nature.spawn(self._be_brief()))
        await asyncio.sleep(self._plan.trouble)
        self._end_trouble()
        patience = SETTLED + TRIES * self.checker.work / self._plan.processors
        try:
            async with asyncio.timeout(patience):
                await self._all_done.wait()
                await asyncio.gather(*does)
                self._look()
                for stale_user in self._stale_users:
                    await stale_user.try_it()
                await self._audit().run()
                await self._until_jobs_are_gone()
        except TimeoutError:
            self.checker.wrong("all", f"not settled {patience:g} s after the last fault")
        await watch.close()

    async def _until_jobs_are_gone(self) -> None:
        """Wait until idle pilots have ended, and report jobs that remain."""
        if self._cluster is None:
            return
        last = self._loop.time() + LEFT_BEHIND
        while self._cluster.jobs and self._loop.time() < last:
            await asyncio.sleep(_LOOK)
        for job in self._cluster.jobs:
            self.checker.wrong(PARTY, f"leaves job {job.id} behind: {job.state}")

    def _was_there(self, worker: str, seconds: float) -> bool:
        """Whether a worker could reach the service during all of the last seconds."""
        late = self._network.late_until(worker, PARTY)
        since = max(self.server.up_since, late, self._door.certificate_expired_until)
        return self._loop.time() - since > seconds

    def _living(self) -> list[FaultyWorker]:
        """Return the workers that are alive."""
        return self._machine.living() if self._cluster is None else self._cluster.living()

    def _audit(self) -> FinalAudit:
        def client(user: str) -> AsyncServiceClient:
            return self._client(
                user, SimulatedProcess(self._loop, f"{user}-audit"), f"audit {user}"
            )

        share = 1e6 if self._plan.price_shared else 0.0
        return FinalAudit(
            self.checker,
            self._homes,
            list(self._customers),
            client,
            money=MONEY,
            prices=[share * price for price in self.checker.contracts.prices],
            jump=2 * JUMP if self._plan.skew else 0.0,
        )

    @staticmethod
    def _is_kind_to_workers(plan: FaultPlan) -> bool:
        conditions = plan.conditions
        harm = (
            plan.worker_life
            or plan.partitions
            or plan.cuts
            or plan.buys
            or plan.evictions
            or plan.certificate
            or plan.nodes
            or plan.outages
            or plan.warns
            or plan.longest < 36_000.0
            or conditions.breaks
            or conditions.handshakes
            or conditions.half_closes
            or conditions.tears
        )
        return not harm

    def _on_request(self, method: str, path: str) -> None:
        moment = fault_target_of(method, path)
        if moment is not None:
            self._targeting.at(moment)

    def _is_struck(self, method: str, path: str) -> bool:
        moment = fault_target_of(method, path)
        return moment is not None and self._targeting.hits(moment)

    def _end_trouble(self) -> None:
        self._trouble.end()
        self.checker.calm_since = self._loop.time()
        for process in self._loop.lives:
            process.spare()
        for user in sorted(self._open):
            if not self._customers[user].is_alive:
                self._start_customer(user)

    def _parties(self) -> list[str]:
        workers = [worker.post.name for worker in self._living()]
        return [PARTY, *self._customers, *workers]

    def _damage_server(self, process: SimulatedProcess) -> None:
        if not self._trouble.is_on:
            return
        self._trouble.doom(process, self._plan.server_life)
        process.on_death(lambda: self._trouble.end_of_server(PARTY))
        if self._chaos.random() < self._plan.drains:
            seconds = self._chaos.uniform(0.1, 60.0)
            process.call_later(seconds, lambda: process.spawn(self.server.drain()))

    # Parties.

    def _hire(self, post: WorkerAssignment) -> FaultyWorker:
        process = SimulatedProcess(self._loop, post.name)
        chance = seeded_random(self._seed, post.name)
        worker = FaultyWorker(
            post,
            process,
            self._door,
            clock=self._clock_of(chance),
            chance=chance,
            checker=self.checker,
            trace=self._trace,
            says_returns_again=self._plan.repeats_returns,
        )
        self._trace.note(post.name, f"starts on {post.processors} processors")
        self._trouble.doom(process, self._plan.worker_life)
        process.on_death(lambda: self._worker_died(worker))
        process.spawn(worker.run())
        return worker

    def _worker_died(self, worker: FaultyWorker) -> None:
        if not worker.has_left:
            self._trace.fault("worker killed", worker.post.name, "with all it has")

    def _start_customer(self, user: str) -> None:
        process = self._customers[user] = SimulatedProcess(self._loop, user)
        chance = seeded_random(self._seed, f"{user} {len(self._loop.lives)}")
        customer = CampaignClient(
            user,
            OWNER,
            self._client(user, process, f"{user} client {len(self._loop.lives)}"),
            clock=self._clock_of(chance),
            checker=self.checker,
            trace=self._trace,
        )
        self._trace.note(user, "starts")
        self._trouble.doom(process, self._plan.client_life)
        process.on_death(lambda: self._customer_died(user))
        process.spawn(self._serve_customer(user, customer))

    async def _serve_customer(self, user: str, customer: CampaignClient) -> None:
        try:
            await customer.run(self.checker.campaigns_of(user))
        except Exception as error:
            self._tell(error)
            self.checker.wrong(user, f"cannot go on: {_describe_innermost(error)}")
            return
        self._trace.note(user, "has all it wanted")
        self._open.discard(user)
        if not self._open:
            self._all_done.set()

    def _customer_died(self, user: str) -> None:
        if user in self._open and self._trouble.is_on:
            self._trace.fault("client killed", user, "knows what it has noted")
            self._nature.call_later(self._chaos.uniform(0.1, 20.0), self._start_again, user)

    def _start_again(self, user: str) -> None:
        if user in self._open and not self._customers[user].is_alive:
            self._start_customer(user)

    def _client(
        self, user: str, process: SimulatedProcess, concern: str, token: str = ""
    ) -> AsyncServiceClient:
        return AsyncServiceClient(
            Access(url=URL, token=token or self._tokens[user]),
            transport=FaultyHttpTransport(self._network, process, self._service),
            patience=PATIENCE,
            entropy=seeded_random(self._seed, concern).randbytes,
        )

    def _clock_of(self, chance: random.Random) -> Clock:
        return skewed_clock(self._loop.time, chance, skew=self._plan.skew, drift=self._plan.drift)

    def _pool_of(self, worker: str) -> str:
        service = self.server.service
        if service is None:
            return ""
        pools = (w.pool for w in service.engine.dispatching.workers() if w.name == worker)
        return next(pools, "")

    def _holder_of(self, piece: str) -> str:
        holders = (w.post.name for w in self._living() if w.has_here(piece))
        return next(holders, "")

    def _has_succeeded(self, user: str, handle: str, task: int) -> bool | None:
        """Whether a task's success is durable; None: nobody knows, or the instance is gone."""
        if self.server.service is None or not self.server.is_up:
            return None
        try:
            found = self.server.service.engine.tasks(user, handle, task, 1).tasks
        except ServiceError:
            return None
        return bool(found) and found[0].state == "succeeded"

    # Preparation.

    async def _until_up(self) -> None:
        while not self.server.is_up:
            await asyncio.sleep(0.1)

    async def _let_in(self) -> None:
        """Create tokens and make the first deposits for all users."""
        service = self.server.service
        assert service is not None
        users = [f"user-{n}" for n in range(self._plan.users)]
        for user in ("admin", EXPIRING_USER, *users):
            scopes: list[Scope] = ["admin", "sell"] if user == "admin" else USER_SCOPES
            made = service.tokens.create(NewToken(user=user, scopes=scopes))
            self._tokens[user] = made.token
        await service.journal.durable()
        process = SimulatedProcess(self._loop, "admin")
        self._owner = ServiceOwner(
            self._client("admin", process, "admin"),
            ServiceConnection(
                Access(url=URL, token=self._tokens["admin"]),
                transport=FaultyHttpTransport(self._network, process, self._service),
                patience=PATIENCE,
                entropy=seeded_random(self._seed, "admin prices").randbytes,
            ),
            chance=seeded_random(self._seed, "prices"),
            contracts=self.checker.contracts,
            trace=self._trace,
        )
        await self._deposit("first")

    # Actions of the owner during the faults.

    async def _some_time(self) -> None:
        await asyncio.sleep(self._chaos.uniform(0, self._plan.trouble))

    async def _deposit_more(self) -> None:
        await self._some_time()
        await self._deposit("second")

    async def _deposit(self, key: str) -> None:
        assert self._owner is not None
        for number in range(self._plan.users):
            await self._owner.deposit(f"user-{number}", MONEY // 2, key)
        await self._owner.deposit(EXPIRING_USER, MONEY // 2, key)

    async def _reprice(self) -> None:
        assert self._owner is not None
        await self._some_time()
        await self._owner.reprice()

    async def _rotate(self, user: str) -> None:
        """Replace a user's token, while another client goes on to use the old one."""
        assert self._owner is not None
        old = self._tokens[user]
        process = SimulatedProcess(self._loop, f"{user}-stranger")
        stale_user = StaleTokenUser(
            user,
            self._client(user, process, f"{user} stranger", old),
            now=self._loop.time,
            chance=seeded_random(self._seed, f"{user} stranger times"),
            checker=self.checker,
            prompt=self._prompt,
            server_clock=self.server.clock,
        )
        campaign = self.checker.campaigns_of(user)[0]
        process.spawn(stale_user.listen(lambda: campaign.handle))
        await self._some_time()
        self._tokens[user] = (await self._owner.make_token(user)).token
        self._customers[user].kill()
        if not self._trouble.is_on:
            self._start_again(user)
        await self._owner.revoke(old)
        stale_user.revoked()
        self._trace.note("admin", f"has revoked the token of {user}")
        self._stale_users.append(stale_user)
        process.spawn(stale_user.insist())

    async def _wear_out(self, user: str) -> None:
        """Create a short-lived token, which is used until after the expiry."""
        assert self._owner is not None
        await self._some_time()
        chance = seeded_random(self._seed, f"{user} brief token")
        made = await self._owner.make_token(user, chance.uniform(5.0, 90.0))
        holder = StaleTokenUser(
            user,
            self._client(
                user, SimulatedProcess(self._loop, f"{user}-brief"), f"{user} brief", made.token
            ),
            now=self._loop.time,
            chance=chance,
            checker=self.checker,
            prompt=self._prompt,
            server_clock=self.server.clock,
        )
        await holder.wear_out(made.expires)

    async def _be_brief(self) -> None:
        """Run a user whose instance expires soon."""
        chance = seeded_random(self._seed, "brief instance")
        # cancels=1.0 draws some tasks that take longer than the instance is kept.
        simple = replace(
            self._plan, buys=0.0, cancels=1.0, destroys=0.0, pieces=4, seals=0.0, bursts=0.0
        )
        edges = seeded_random(self._seed, "brief dependencies")
        campaign = draw_campaign(EXPIRING_USER, 0, simple, chance, edges)
        self.checker.wants(campaign)
        await self._some_time()
        process = SimulatedProcess(self._loop, EXPIRING_USER)
        user = ExpiringInstanceUser(
            self._client(EXPIRING_USER, process, EXPIRING_USER),
            campaign,
            chance.uniform(5.0, 60.0),
            server_clock=self.server.clock,
            up_since=lambda: self.server.up_since,
            now=self._loop.time,
            checker=self.checker,
            trace=self._trace,
        )
        await user.run()

    def _evict(self) -> None:
        if workers := self._living():
            worker = self._chaos.choice(workers)
            worker.process.call(worker.evict)

    async def _watch(self) -> None:
        """Check the service's accounts periodically."""
        while True:
            await asyncio.sleep(_LOOK)
            self._look()

    def _look(self) -> None:
        if (service := self.server.service) is None or not self.server.is_up:
            return
        for fault in service.billing.faults():
            self.checker.wrong(PARTY, f"the books: {fault}")
        if service.journal.size > LARGEST_JOURNAL:
            self.checker.wrong(PARTY, f"the journal has grown to {service.journal.size} bytes")
        self.checker.look_at_parents()
        if self._cluster is not None:
            self._cluster.judge(service.worker_server.admission.leases, self.server.up_since)

    def _on_exception(self, loop: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        what = context.get("message", "") if error is None else f"{type(error).__name__}: {error}"
        if error is not None:
            self._tell(error)
        self.checker.wrong("all", f"nobody handles {what}")

    def _tell(self, error: BaseException) -> None:
        for line in traceback.format_exception(error):
            self._trace.tell("all", line.rstrip())


def _describe_innermost(error: BaseException) -> str:
    """Describe the first leaf of a group of errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
