"""
The execution service: construction, start and stop of all parts.

An execution service opens no sockets: its runner listens for clients and passes their requests to
``app``, and for workers and passes their connections to ``worker_server``. So the simulation of
faults and the real command run the same service.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from bursar.engine.fair_turns import ProjectTurns
from bursar.model.money import Pricing
from bursar.model.site import SiteFacts
from bursar.remote import messages as api
from bursar.service.billing import ServiceBilling
from bursar.service.config import ServiceConfig
from bursar.service.engine.engine import ServiceEngine
from bursar.service.engine.instance_homes import InstanceHomes
from bursar.service.http.app import ServiceApi
from bursar.service.http.dependencies import ApiDependencies
from bursar.service.identity.authentication import Authenticator, JournalTokenStore
from bursar.service.identity.tls import TrustFiles
from bursar.service.interfaces import Clock, Entropy, ServiceError
from bursar.service.logs import LOGGER
from bursar.service.provisioner.lease_policies import (
    ClusterLeasePolicy,
    LeasePolicy,
    MachineLeasePolicy,
)
from bursar.service.provisioner.worker_provisioner import ProvisionerSettings, WorkerProvisioner
from bursar.service.service_manager import ServiceManager
from bursar.service.startup import ServiceIdentity
from bursar.service.workers import WorkerServer
from bursar.service.workers.connection import SealKeyFile
from bursar.sites.protocol import OpenableSite, Site
from bursar.store import ASK_AGAIN, Disk, DiskBroken, DiskFull, RecordStore
from bursar.supervisor import TaskSupervisor
from bursar.worker.accounts import find_account
from bursar.worker.launch import MOST_SPAWNERS

log = logging.getLogger(f"{LOGGER}.service")

HOMES = "instances"
"""Name of the folder, in the service's folder, with the homes of instances."""

LOG_SIZE = 16 << 20
"""Bytes of the store's write-ahead log after which it is merged into the database."""

_ROOM = 4
"""Times the size of the log that are reserved for when the disk is full, and kept free beside."""

TICK = 1.0
"""Seconds between two checks for what is due by time alone."""

_FULL = 5.0  # seconds after which what the disk had no room for is tried again
_LEAST = 0.01  # least number of seconds between two ticks of billing
_POLL_INTERVAL = 0.05  # seconds between two looks at what still runs


class ExecutionService:
    """
    The whole execution service without sockets, TLS and signals.

    Parameters
    ----------
    identity
        Names and secrets that stay the same over restarts.
    sites
        Returns the site that starts workers of a local account; empty: the service's own.
    address
        Host and port to which workers on this machine connect.
    log_size
        Bytes of the store's write-ahead log after which it is merged into the database; four times
        as much is reserved for when the disk is full.
    homes
        Folders of instances; None: below the service's folder.
    trust
        Checks clients' certificates; None: clients show no certificates.
    seal
        PEM of the certificate to which tasks may be sealed; empty: no task may be sealed.
    certificate_ends
        Returns when the service's certificate ends, seconds since the epoch; None: there is none.

    Attributes
    ----------
    app
        ASGI application that handles requests of clients.
    worker_server
        Handles connections of workers.
    """

    def __init__(
        self,
        config: ServiceConfig,
        *,
        identity: ServiceIdentity,
        disk: Disk,
        clock: Clock,
        entropy: Entropy,
        sites: Callable[[str], Site],
        address: tuple[str, int],
        log_size: int = LOG_SIZE,
        homes: InstanceHomes | None = None,
        trust: TrustFiles | None = None,
        seal: str = "",
        certificate_ends: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._sites = sites
        self._open_sites = contextlib.AsyncExitStack()
        self._tasks = TaskSupervisor(self._on_failure)
        self._fault: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._is_open = self._is_draining = self._is_drained = False
        self._changed = asyncio.Event()
        self.journal: RecordStore = RecordStore(
            disk,
            log_size=log_size,
            reserve=_ROOM * log_size,
            least_free=_ROOM * log_size,
            translate=_problem_of,
        )
        self.tokens = JournalTokenStore(self.journal, clock=clock, entropy=entropy)
        self.billing = ServiceBilling(
            self.journal,
            site=config.site,
            selling=config.selling,
            users=config.users,
            clock=clock,
            entropy=entropy,
            on_change=self._deal_changed,
        )
        self.engine = ServiceEngine(
            self.journal,
            self.billing.admission,
            clock=clock,
            entropy=entropy,
            homes=homes or InstanceHomes(config.folder / HOMES, self._owner_of),
            limits=config.limits,
            own_limits=config.own_limits(),
            turns=partial(ProjectTurns, config.project_of) if config.groups else None,
            site=config.site,
            on_event=log_message,
        )
        self.worker_server = WorkerServer(
            self.engine,
            clock=clock,
            secret=identity.secret,
            run=identity.run,
            outlives=config.tasks.outlives,
            containers=config.tasks.containers,
            seal_key=_shared_seal_key(config),
        )
        self.provisioner = WorkerProvisioner(
            sites=sites,
            rules=self._rules(),
            settings=ProvisionerSettings(
                processors=config.site.processors, address=address, run=identity.run
            ),
            account=config.local_user,
            billing=self.billing.admission,
            engine=self.engine,
            workers=self.worker_server,
            journal=self.journal,
            clock=clock,
            entropy=entropy,
            notify=log_message,
        )
        self.worker_server.on_change = self.provisioner.review
        self.engine.dispatching.on_waiting = self.provisioner.review
        self.manager = ServiceManager(
            config,
            engine=self.engine,
            billing=self.billing,
            provisioner=self.provisioner,
            journal=self.journal,
            clock=clock,
            state=self.state,
            drain=self.begin_drain,
            seal=seal,
            certificate_ends=certificate_ends,
        )
        self.app = ServiceApi(
            ApiDependencies(
                engine=self.engine,
                billing=self.billing,
                tokens=self.tokens,
                authenticator=self._authenticator(trust),
                manager=self.manager,
                journal=self.journal,
                clock=clock,
                entropy=entropy,
                limits=config.http,
                own_limits=config.own_http(),
                names=frozenset(config.names),
                scrapers=config.scrapers,
            )
        )

    def _rules(self) -> LeasePolicy:
        facts = self._config.site
        if facts.kind == "batch":
            return ClusterLeasePolicy(lambda: self._sites("").view())
        return MachineLeasePolicy(
            # The narrowest workers of which MOST_SPAWNERS fill the site.
            unit=-(-facts.processors // MOST_SPAWNERS),
            warm=not self._config.selling.must_buy,
            idle=facts.acquiring.idle,
        )

    def _authenticator(self, trust: TrustFiles | None) -> Authenticator:
        return Authenticator(
            self._config.security,
            self.tokens,
            clients=trust,
            scopes_of=self._config.scopes_of,
            owner=self._config.owner,
        )

    def _owner_of(self, user: str) -> tuple[int, int] | None:
        """Return the user and group as which a user's tasks run; None: those of the service."""
        account = self._config.local_user(user)
        return find_account(account).owner if account else None

    async def open(self) -> list[str]:
        """
        Restore the state from the journal, and begin to work.

        Returns
        -------
        list of str
            What had to be repaired.

        Raises
        ------
        BursarError
            When the journal cannot be read: nothing of it is dropped.
        DiskFull, DiskBroken
        """
        # The journal restores the records of all; billing comes before the engine, which asks it
        # for the pools of instances, and the provisioner last, which asks both for demand.
        repaired = await self.journal.open()
        for line in repaired:
            log.warning("repaired: %s", line)
        self.billing.open()
        await self.engine.open()
        # Before the provisioner asks the site which processors are still held.
        site = self._sites("")
        if isinstance(site, OpenableSite):
            await self._open_sites.enter_async_context(site.opened())
        await self.provisioner.open()
        self._is_open = True
        self._tasks.start(self._watch(self.journal.failed(), "the journal cannot be written"))
        self._tasks.start(self._watch(self.engine.failed(), "the engine cannot go on"))
        self._tasks.start(self._keep_time())
        self._tasks.start(self._tick())
        self._tasks.start(self.provisioner.run())
        return repaired

    def begin_drain(self) -> None:
        """Accept no submissions and give out no tasks; running tasks go on."""
        if not self._is_draining:
            self._is_draining = True
            log.info("draining")
            self.engine.drain()

    async def drain(self, seconds: float = 0.0) -> int:
        """
        Drain, and wait for running tasks for at most some seconds.

        Returns
        -------
        int
            Tasks that still run, and are left with their workers.
        """
        self.begin_drain()
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while self.engine.running and loop.time() < end:
            await asyncio.sleep(min(_POLL_INTERVAL, end - loop.time()))
        self._end_drain()
        return self.engine.running

    def _end_drain(self) -> None:
        """Report once that draining has finished, and how many tasks still run."""
        if self._is_drained:
            return
        self._is_drained = True
        left = self.engine.running
        what = "no task runs any more"
        if left:
            what = f"{left} {'task goes' if left == 1 else 'tasks go'} on with the workers"
        log.info("drained: %s", what, extra={"fields": {"running": left}})

    def reprice(self, site: SiteFacts) -> None:
        """Apply the prices of a configuration that was read again; agreements keep their prices."""
        self.billing.reconfigure(site.pricing or Pricing(site.unit_price or 0.0))

    def relimit(self, config: ServiceConfig) -> None:
        """Change the limits of users from now on; users above a new limit keep what is there."""
        self.engine.relimit(config.limits, config.own_limits())
        self.app.relimit(config.http, config.own_http())

    async def close(self) -> None:
        """Stop the service; workers go on, and reconnect after the next start."""
        self.begin_drain()
        self._end_drain()
        # From the outside in: no requests, no decisions, no workers, then what has ended is
        # recorded; the journal last, as everything above may still write to it.
        self.app.close()
        await self._tasks.close()
        await self.provisioner.close()
        await self.worker_server.close()
        await self.engine.close()
        await self._open_sites.aclose()
        await self.journal.close()

    async def failed(self) -> str:
        """Wait until the service cannot go on and return the reason: it must end then."""
        return await asyncio.shield(self._fault)

    def state(self) -> api.Health:
        """Return whether the service accepts work, and why not."""
        problem = self.journal.problem or self.provisioner.problem
        if self._fault.done():
            return api.Health(status="failing", problem=self._fault.result())
        if self._is_draining:
            return api.Health(status="draining", problem="the service is draining")
        if not self._is_open:
            return api.Health(status="failing", problem="the service is starting")
        if problem:
            return api.Health(status="failing", problem=problem)
        # One user's account is no reason to keep the work of all others away.
        failing = len(self.provisioner.failing)
        accounts = "1 local account" if failing == 1 else f"{failing} local accounts"
        degraded = f"workers of {accounts} cannot be had" if failing else ""
        return api.Health(status="ok", degraded=degraded)

    def _on_failure(self, error: BaseException) -> None:
        """Fail the whole service after the failure of a background task."""
        log.error("internal fault", exc_info=error)
        self._fail(f"internal fault: {type(error).__name__}")

    def _fail(self, reason: str) -> None:
        if not self._fault.done():
            self._fault.set_result(reason)

    async def _watch(self, failed: Coroutine[Any, Any, str], what: str) -> None:
        self._fail(f"{what}: {await failed}")

    def _deal_changed(self, pool: str) -> None:
        self._changed.set()

    async def _keep_time(self) -> None:
        """Let billing handle what is due: quotes expire, agreements begin and end."""
        while True:
            # Cleared before the work: a deal that changes meanwhile is not missed.
            now = self._clock()
            self._changed.clear()
            self.billing.tick(now)
            self.provisioner.review()
            pause = self.billing.next_tick() - now
            try:
                await self.journal.durable()
            except ServiceError:  # the journal's problem says why
                pause = min(pause, _FULL)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if math.isinf(pause) else max(_LEAST, pause)):
                    await self._changed.wait()

    async def _tick(self) -> None:
        demanded = False, False
        while True:
            self.engine.tick()
            self.worker_server.tick()
            if self._is_draining and not self.engine.running:
                self._end_drain()
            # Tasks that wait may need a decision that no event asks for. So may their end: tasks
            # that were cancelled before they began leave requests in a scheduler's queue too many.
            # Otherwise only idle workers need one.
            demand = self.engine.demand().values()
            before, demanded = (
                demanded,
                (any(d.tasks for d in demand), any(d.later for d in demand)),
            )
            if demanded[0] or demanded != before:
                self.provisioner.review()
            else:
                self.provisioner.review_idle()
            await asyncio.sleep(TICK)


def _problem_of(error: DiskFull | DiskBroken) -> ServiceError:
    """Return what a client is told of the store's disk."""
    if isinstance(error, DiskFull):
        return ServiceError("disk-full", 507, str(error), retry_after=ASK_AGAIN)
    return ServiceError("disk-failed", 503, str(error))


def log_message(message: str) -> None:
    """Log a line for people."""
    log.info("%s", message)


def _shared_seal_key(config: ServiceConfig) -> SealKeyFile | None:
    """Return the seal key for workers whose accounts cannot read its file; None: none needs it."""
    accounts = [config.tasks.local_user, *(user.local_user for user in config.users.values())]
    if config.sealed is None or not any(accounts):
        return None
    return SealKeyFile(config.sealed.key)
