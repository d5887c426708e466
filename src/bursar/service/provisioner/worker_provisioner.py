"""The worker provisioner: opens and closes leases by a policy, and restores them after a crash."""

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from bursar.model.allocation import NO_LOAD, Allocation, AllocationLoad, AllocationRequest
from bursar.model.errors import BursarError, SiteError
from bursar.provisioning.allocation_life import AllocationLife
from bursar.provisioning.pool_snapshot import AllocationRelease
from bursar.service.billing.pool_admission import PoolAdmission
from bursar.service.engine.engine import ServiceEngine
from bursar.service.interfaces import (
    PROVISIONER_KINDS,
    SHARED,
    Clock,
    Entropy,
    ReattachableSite,
    ServiceError,
    is_shared,
)
from bursar.service.provisioner.lease_policies import LeasePolicy, ProvisioningView
from bursar.service.provisioner.pool_backoffs import SHORTEST_PAUSE, PoolBackoffs
from bursar.service.provisioner.worker_absences import WorkerAbsences
from bursar.service.workers import WorkerServer
from bursar.sites.allocation_keeper import AllocationKeeper
from bursar.sites.protocol import HeldProcessors, QuittableProcessors, Site
from bursar.store import Position, RecordStore
from bursar.supervisor import TaskSupervisor
from bursar.worker.launch import Endpoint

LEASE = PROVISIONER_KINDS[0]
"""Kind of the journal's records; there is one for each lease that is not gone."""

PAUSE = 0.05
"""Least number of seconds between two decisions, so that bursts of events make few."""

RETURNING = 30.0
"""Seconds after a restart in which workers that have not come back are taken to be busy."""

_NAME = 6  # random bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisionerSettings:
    """
    Size of the site, and where the workers report.

    Parameters
    ----------
    processors
        Number of processors that leases may hold in all.
    address
        Host and port to which workers on this machine connect.
    run
        Identity of the service, by which its processes are recognised.
    """

    processors: int
    address: tuple[str, int]
    run: str


class WorkerProvisioner:
    """
    Opens and closes leases so that agreements and waiting tasks get workers.

    Parameters
    ----------
    sites
        Returns the site that starts workers of a local account; empty: the service's own account.
    rules
        Policy by which leases are opened and closed.
    settings
        Size of the site, and where workers report.
    account
        Returns the local account of a user's workers or, for an empty name, of those that several
        users share; empty: the service's own.
    billing, engine
        Demand of agreements, and of waiting tasks.
    notify
        Called with one line for people on each notable event.
    """

    def __init__(
        self,
        *,
        sites: Callable[[str], Site],
        rules: LeasePolicy,
        settings: ProvisionerSettings,
        account: Callable[[str], str],
        billing: PoolAdmission,
        engine: ServiceEngine,
        workers: WorkerServer,
        journal: RecordStore,
        clock: Clock,
        entropy: Entropy,
        notify: Callable[[str], None],
    ) -> None:
        self._sites = sites
        self._rules = rules
        self._settings = settings
        self._account = account
        self._billing = billing
        self._engine = engine
        self._workers = workers
        self._journal = journal
        self._clock = clock
        self._entropy = entropy
        self._notify = notify
        self._leases: dict[str, AllocationKeeper] = {}
        self._positions: dict[str, Position] = {}  # of their records in the journal
        self._before: dict[Position, Allocation] = {}  # of an earlier life
        self._backoffs = PoolBackoffs(self._has_workers, notify)
        self._absences = WorkerAbsences()
        # Ready and excused processors that billing was told of, by pool.
        self._reported: dict[str, tuple[int, int]] = {}
        self._kept: dict[str, float] = {}  # leases for which the site was asked to keep processors
        self._review_due = asyncio.Event()
        self._decided = -math.inf  # when, seconds since the epoch
        self._fault: BaseException | None = None
        self._tasks = TaskSupervisor(self._on_failure)  # one for each lease
        journal.register(PROVISIONER_KINDS, self)

    # As an owner of records; see bursar.store.RecordOwner.

    def restore(self, kind: int, position: Position, payload: bytes) -> None:
        """Take in the record of a lease from before the restart."""
        self._before[position] = _restored(payload)

    async def open(self) -> None:
        """Adopt the leases from before the restart that still exist, and end the others."""
        by_account: dict[str, list[Allocation]] = {"": []}
        for allocation in self._before.values():
            by_account.setdefault(allocation.account, []).append(allocation)
        positions = {known.name: position for position, known in self._before.items()}
        for account, allocations in by_account.items():
            adopted = await self._adopted(account, allocations)
            for known in allocations:
                if known.name not in adopted:
                    # It ended meanwhile: its workers, if any come back, are told to leave.
                    self._workers.revoke(known.name)
                    self._journal.kill(positions[known.name])
                    continue
                self._leases[known.name] = adopted[known.name]
                self._positions[known.name] = positions[known.name]
                self._rules.opened(known.name, known, known.asked)
                if known.granted is not None:
                    self._rules.began(known.name, known.granted)
        site = self._sites("")
        if isinstance(site, ReattachableSite):
            await site.end_others(self._leases.keys())
        # After all leases are announced: until then unknown workers are told to try again.
        self._workers.gathered()
        if self._before:
            self._notify(f"{len(self._leases)} of {len(self._before)} leases are still there")
            self._before.clear()
            with contextlib.suppress(ServiceError):  # what was not killed is looked for next time
                await self._journal.durable()
        for lease in self._leases.values():
            self._tasks.start(self._run_lease(lease))

    async def _adopted(
        self, account: str, allocations: Sequence[Allocation]
    ) -> dict[str, AllocationKeeper]:
        """Return the keepers of an account's allocations that are still there."""
        now = self._clock()
        try:
            site = self._sites(account)
            if not isinstance(site, ReattachableSite):
                return {}
            known = {a.name: replace(a, site=site.facts.name) for a in allocations}
            endpoints = {name: self._endpoint(a) for name, a in known.items()}
            wanted = [a.seen_from(now) for a in known.values()]
            held = await site.adopt(wanted, endpoints, self._notify)
        except SiteError as error:  # the account may be gone, too
            self._notify(str(error))
            return {}
        adopted = {}
        for name, processors in held.items():
            life = AllocationLife(known[name])
            # Released as idle, its worker would lose a task on the way back.
            life.adopt(self._clock(), self._clock() + RETURNING)
            adopted[name] = AllocationKeeper(life, self, processors)
        return adopted

    async def run(self) -> None:
        """
        Decide again and again, until cancelled.

        An internal error in the handling of a lease is raised here; failures of sites are not.
        """
        while True:
            # Cleared before the decision: what happens during it leads to another one.
            self._review_due.clear()
            if self._fault is not None:
                raise self._fault
            await self._decide()
            await asyncio.sleep(PAUSE)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._patience()):
                    await self._review_due.wait()

    async def close(self) -> None:
        """Detach from the workers: they go on, and the next start finds them."""
        self._tasks.cancel()
        # Before what the tasks asked for is given up: what waits in a queue is to stay there.
        for account in dict.fromkeys(lease.allocation.account for lease in self._leases.values()):
            site = self._sites(account)
            if isinstance(site, ReattachableSite):
                await site.leave()
        await self._tasks.close()

    def review(self) -> None:
        """Decide soon: tasks wait, a worker has come or gone, or an agreement has changed."""
        self._review_due.set()
        for lease in self._leases.values():
            if lease.allocation.leaving:  # its worker may be the one that is gone
                lease.wake()

    def review_idle(self) -> None:
        """Decide soon if a worker has become idle since the last decision."""
        since = (load.idle_since for load in self._workers.leases().values())
        if any(moment is not None and moment >= self._decided for moment in since):
            self._review_due.set()

    @property
    def free(self) -> int:
        """Processors that no lease holds for an agreement, and that no task holds."""
        loads = self._workers.leases()
        taken = 0
        for name, lease in self._leases.items():
            load = loads.get(name)
            if not is_shared(lease.allocation.pool):
                taken += lease.allocation.processors
            elif load is not None:
                taken += load.busy
        return max(0, self._settings.processors - taken)

    @property
    def ready(self) -> int:
        """Processors of the connected workers."""
        return sum(load.ready for load in self._workers.leases().values())

    @property
    def problem(self) -> str:
        """
        Why workers cannot be had; empty: they can, or cannot for users of other accounts than the
        common one only (see :attr:`failing`).
        """
        common = self._account("")
        theirs = self._backoffs.concerns(common)
        return "workers cannot be had" if theirs and not self.ready else ""

    @property
    def failing(self) -> Mapping[str, str]:
        """Why workers could not be had at least twice in a row, by local account."""
        return self._backoffs.failing(self._clock())

    # Deciding.

    def _patience(self) -> float | None:
        """Return the seconds until the next decision without an event; None: wait for an event."""
        now = self._clock()
        seconds = min(self._rules.wake, *self._backoffs.ends(now), math.inf) - now
        if any(demand.tasks for demand in self._engine.demand().values()):
            seconds = min(seconds, SHORTEST_PAUSE)
        return None if math.isinf(seconds) else max(0.0, seconds)

    async def _decide(self) -> None:
        now = self._decided = self._clock()
        # Billing hears at once of workers that came or went: deliveries are metered from then.
        self._report_ready_processors(now)
        for name, lease in list(self._leases.items()):
            if lease.held is None:
                continue
            if not lease.held.workers and not lease.allocation.leaving:
                self._pause(lease.allocation, "its workers are gone")
                gone = AllocationRelease(name=name, reason="its workers are gone", at_once=True)
                self._close(gone)
            # The site tells nobody of it: the first worker shows that the job has left the queue.
            elif lease.allocation.granted is None and self._is_there(name):
                self._on_granted(lease)  # it was still in the queue when it was adopted
        view = self._view(now)
        self._backoffs.review(now)
        opened: list[AllocationKeeper] = []
        for decision in self._rules.decide(view):
            match decision:
                case AllocationRelease():
                    self._close(decision)
                case AllocationRequest() if self._backoffs.allows(decision.pool, now):
                    opened += self._open(decision, now)
        # Durable before the site is asked: no crash leaves processors of which nobody knows.
        if not opened:
            return
        try:
            await self._journal.durable()
        except ServiceError as error:
            self._notify(f"no workers are asked for: {error.detail}")
            for lease in opened:
                lease.life.refuse(self._clock(), "unreachable", error.detail)
                self._end(lease)
            return
        await self._keep_processors()
        for lease in opened:
            if lease.allocation.start is not None:
                lead = self._kept.get(lease.name, 0.0)
                lease.life.due = lease.allocation.start - lead
            self._tasks.start(self._run_lease(lease))

    def _view(self, now: float) -> ProvisioningView:
        loads = self._workers.leases()
        return ProvisioningView(
            now=now,
            processors=self._settings.processors,
            wanted=self._billing.pools(now),
            demand=self._engine.demand(),
            leases=[_seen(lease, loads.get(name), now) for name, lease in self._leases.items()],
        )

    def _open(self, decision: AllocationRequest, now: float) -> list[AllocationKeeper]:
        """Write an allocation to the journal, and return its keeper; none if the disk is full."""
        account = self._account_of(decision.pool, now)
        allocation = Allocation(
            name=f"lease-{self._entropy(_NAME).hex()}",
            site=self._sites(account).facts.name,
            pool=decision.pool,
            processors=decision.processors,
            start=decision.start,
            duration=decision.duration,
            until=decision.until,
            account=account,
            asked=now,
        )
        try:
            position = self._journal.append(LEASE, _recorded(allocation), essential=False)
        except ServiceError as error:
            self._pause(allocation, "")  # that is no account's fault
            self._notify(f"no workers are asked for: {error.detail}")
            return []
        self._positions[allocation.name] = position
        lease = AllocationKeeper(AllocationLife(allocation), self)
        self._leases[allocation.name] = lease
        self._rules.opened(allocation.name, decision, now)
        return [lease]

    def _account_of(self, pool: str, now: float) -> str:
        """Return the local account under which a pool's tasks run."""
        if is_shared(pool):
            return self._account(pool.removeprefix(SHARED).removeprefix(":"))
        wanted = self._billing.pools(now).get(pool)
        return self._account(wanted.user) if wanted is not None else ""

    def _close(self, decision: AllocationRelease) -> None:
        lease = self._leases.get(decision.name)
        if lease is None:
            return
        # Dismissed before anything waits: no task may be given to its workers from now on.
        if not lease.allocation.leaving:
            self._workers.dismiss(decision.name)
        if decision.at_once and not lease.allocation.stopped:
            self._workers.revoke(decision.name)
        lease.finish(at_once=decision.at_once)

    def _pause(self, allocation: Allocation, reason: str) -> None:
        self._backoffs.pause(allocation.pool, allocation.account, self._clock(), reason)

    def _is_there(self, name: str) -> bool:
        load = self._workers.leases().get(name)
        return load is not None and load.ready > 0

    def _has_workers(self, pool: str) -> bool:
        loads = self._workers.leases()
        return any(
            loads[name].ready
            for name, lease in self._leases.items()
            if lease.allocation.pool == pool and name in loads
        )

    def _report_ready_processors(self, now: float) -> None:
        loads = self._workers.leases()
        ready: dict[str, int] = {}
        for name, lease in self._leases.items():
            a = lease.allocation
            if is_shared(a.pool):
                continue
            here = loads[name].ready if name in loads else 0
            if here:
                ready[a.pool] = ready.get(a.pool, 0) + here
            if a.granted is not None and not a.leaving:
                self._observe(lease, here, now)
        wanted = self._billing.pools(now)
        self._absences.keep(wanted)
        reported = {}
        for pool in sorted(self._reported.keys() | ready.keys() | wanted.keys()):
            count = ready.get(pool, 0)
            missing = wanted[pool].processors - count if pool in wanted else 0
            before, excused = self._absences.excused(pool, missing)
            if before or self._reported.get(pool, (0, 0)) != (count, excused):
                self._billing.ready(pool, count, excused=excused, excused_before=before)
            if count or excused:
                reported[pool] = count, excused
        self._reported = reported

    def _observe(self, lease: AllocationKeeper, ready: int, now: float) -> None:
        """Take in whether a lease of an agreement lacks workers, and by whose doing."""
        entry = self._workers.admission.leases.get(lease.name)
        self._absences.observe(
            lease.name,
            lease.allocation.pool,
            processors=lease.allocation.processors,
            ready=ready,
            replaced=0 if entry is None else entry.replaced,
            now=now,
        )
        if isinstance(lease.held, QuittableProcessors) and lease.held.has_quit:
            self._absences.quit(lease.name, now)

    async def _keep_processors(self) -> None:
        """Have the site reserve processors for leases that begin later, if the site can."""
        coming = [
            lease.allocation
            for lease in self._leases.values()
            if lease.allocation.start is not None
            and lease.held is None
            and not lease.allocation.leaving
        ]
        if {allocation.name for allocation in coming} == self._kept.keys():
            return
        site = self._sites("")
        try:
            lead = await site.reserve([a.seen_from(self._clock()) for a in coming])
        except SiteError as error:
            self._notify(f"nothing is kept for agreements to come: {error}")
            lead = math.inf  # asked for at once, and it waits its turn
        self._kept = dict.fromkeys((allocation.name for allocation in coming), lead)

    # One lease.

    def _on_failure(self, error: BaseException) -> None:
        """Have :meth:`run` fail when a lease fails by a fault of ours."""
        self._fault = error
        self._review_due.set()

    async def _run_lease(self, lease: AllocationKeeper) -> None:
        """Carry one lease from opening to end: wait, request, hold, release."""
        self._review_due.set()
        try:
            await lease.run()
        except (BursarError, OSError) as error:
            self._notify(f"{lease.name}: {error}")
            if lease.allocation.ready is None:  # nothing was given; otherwise it is over anyway
                self._pause(lease.allocation, str(error))
        a = lease.allocation
        if a.lost is not None:
            self._notify(f"{a.name}: {a.reason}")
        has_quit = isinstance(lease.held, QuittableProcessors) and lease.held.has_quit
        if has_quit and not a.leaving:
            self._absences.quit(a.name, self._clock())
        elif a.loss is not None:
            self._absences.failed(a.name, a.pool)
        self._end(lease)

    def _end(self, lease: AllocationKeeper) -> None:
        """Remove a lease that is over, and kill the record."""
        a, now = lease.allocation, self._clock()
        self._leases.pop(a.name, None)
        self._absences.over(a.name)
        self._workers.revoke(a.name)
        self._rules.pilot_ended(a.name, now, a.loss or "ended", a.reason)
        # If that is lost, its workers will not be there after a restart.
        self._journal.kill(self._positions.pop(a.name))
        lease.life.settle(now)  # billing charges for what was used
        self._review_due.set()

    # As the holder of allocations; see AllocationHolder.

    def now(self) -> float:
        """Return the present time, seconds since the epoch."""
        return self._clock()

    def present(self, keeper: AllocationKeeper) -> int:
        """Return the processors of a lease's connected workers."""
        load = self._workers.leases().get(keeper.name)
        if load is None or not load.ready:
            return 0
        keeper.life.returned()
        return load.ready

    async def acquire(self, keeper: AllocationKeeper) -> HeldProcessors:
        """Ask the site for the processors of a lease."""
        allocation = keeper.allocation
        return await self._sites(allocation.account).acquire(
            allocation.seen_from(self._clock()),
            self._endpoint(allocation),
            rigid=True,
            begin=partial(self._on_granted, keeper),
            on_event=self._notify,
        )

    async def begun(self, keeper: AllocationKeeper) -> None:
        """Wait until it is on disk that the workers of a lease were started."""
        with contextlib.suppress(ServiceError):  # then the next life takes it for waiting
            await self._journal.durable()
        self._review_due.set()

    async def expired(self, keeper: AllocationKeeper) -> None:
        """Stop the tasks of a lease whose time is over."""
        reason = "its time is over"
        self._close(AllocationRelease(name=keeper.name, reason=reason, at_once=True))

    def dismiss(self, keeper: AllocationKeeper) -> None:
        """Keep tasks from workers whose processors are about to go back."""
        self._workers.revoke(keeper.name)

    def _on_granted(
        self, lease: AllocationKeeper, processors: int | None = None, seconds: float | None = None
    ) -> None:
        """Note that the site has granted processors, how many, and for how many seconds."""
        now, before = self._clock(), lease.allocation.processors
        # A job may have waited in a queue for longer than it is: its time begins now.
        if not lease.life.grant(now, processors, seconds, may_be_longer=True):
            return
        allocation = lease.allocation
        if allocation.processors != before:
            self._endpoint(allocation)  # so many are let in
        position = self._journal.append(LEASE, _recorded(allocation), essential=True)
        self._journal.kill(self._positions[allocation.name])
        self._positions[allocation.name] = position
        self._rules.began(allocation.name, now)
        lease.wake()
        self._review_due.set()

    def _endpoint(self, allocation: Allocation) -> Endpoint:
        token = self._workers.expect(
            allocation.name,
            pool=allocation.pool,
            site=allocation.site,
            processors=allocation.processors,
        )
        return Endpoint(
            address=self._settings.address,
            token=token,
            run=self._settings.run,
            admission=self._workers,
        )


def _seen(lease: AllocationKeeper, load: AllocationLoad | None, now: float) -> Allocation:
    """Return an allocation with the load of its workers, as policies see it."""
    if load is not None and load.ready:
        lease.life.returned()
    elif lease.life.is_awaited(now):
        # Its worker may come back with tasks: taken to be idle, the lease would be released.
        load = AllocationLoad(busy=lease.allocation.processors)
    else:
        load = NO_LOAD
    return replace(lease.allocation, workload=load)


def _recorded(allocation: Allocation) -> bytes:
    """Return the journal's record of an allocation: what is needed to adopt it after a restart."""
    a = allocation
    until = a.asked + a.duration if math.isinf(a.until) else a.until
    values = {
        "name": a.name,
        "pool": a.pool,
        "processors": a.processors,
        "asked": a.asked,
        "account": a.account or None,
        "start": a.start,
        "until": None if math.isinf(until) else until,
        "began": a.granted,
    }
    return msgspec.msgpack.encode(
        {key: value for key, value in values.items() if value is not None}
    )


def _restored(payload: bytes) -> Allocation:
    """Return the allocation of a record, without a site."""
    known = msgspec.msgpack.decode(payload)
    granted, until = known.pop("began", None), known.pop("until", math.inf)
    # The time of shared processors counts from the grant, that of an agreement's ends with it.
    shared = is_shared(known["pool"])
    return Allocation(
        **known,
        duration=until - known["asked"] if shared else math.inf,
        until=math.inf if shared and granted is None else until,
        granted=granted,
        paid_from=granted,
    )
