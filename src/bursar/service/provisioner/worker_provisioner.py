"""The worker provisioner: opens and closes leases by a policy, and restores them after a crash."""

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from bursar.model.allocation import Allocation, AllocationLoad, AllocationLoss
from bursar.model.errors import BursarError, SiteError
from bursar.service.interfaces import (
    PROVISIONER_KINDS,
    SHARED,
    Clock,
    Entropy,
    ServiceError,
    ServiceJournal,
    is_shared,
)
from bursar.service.provisioner.active_lease import ActiveLease, LeaseRecord
from bursar.service.provisioner.collaborators import (
    AgreementDemand,
    ReattachableSite,
    TaskDemand,
    WorkerAdmission,
)
from bursar.service.provisioner.lease_policy import LeasePolicy
from bursar.service.provisioner.pool_backoffs import SHORTEST_PAUSE, PoolBackoffs
from bursar.service.provisioner.provisioning_view import (
    CloseLease,
    LeaseView,
    OpenLease,
    ProvisioningView,
)
from bursar.sites.protocol import HeldProcessors, Site
from bursar.store import Position
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
    workers
        The worker server, which admits workers.
    journal
        Journal that keeps the leases.
    clock
        Returns seconds since the epoch.
    entropy
        Returns random bytes, for names of leases.
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
        billing: AgreementDemand,
        engine: TaskDemand,
        workers: WorkerAdmission,
        journal: ServiceJournal,
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
        self._leases: dict[str, ActiveLease] = {}
        self._before: dict[Position, LeaseRecord] = {}  # of an earlier life
        self._backoffs = PoolBackoffs(self._has_workers, notify)
        self._reported: dict[str, int] = {}  # processors that billing was told of, by pool
        self._kept: dict[str, float] = {}  # leases for which the site was asked to keep processors
        self._review_due = asyncio.Event()
        self._decided = -math.inf  # when, seconds since the epoch
        self._fault: BaseException | None = None
        self._tasks = TaskSupervisor(self._on_failure)  # one for each lease
        journal.register(PROVISIONER_KINDS, self)

    # As an owner of records; see bursar.store.RecordOwner.

    def restore(self, kind: int, position: Position, payload: bytes) -> None:
        """Take in the record of a lease from before the restart."""
        self._before[position] = msgspec.msgpack.decode(payload, type=LeaseRecord)

    # Its life.

    async def open(self) -> None:
        """Adopt the leases from before the restart that still exist, and end the others."""
        by_account: dict[str, list[LeaseRecord]] = {"": []}
        for record in self._before.values():
            by_account.setdefault(record.account, []).append(record)
        for account, records in by_account.items():
            held = await self._adopted(account, records)
            positions = {record.name: position for position, record in self._before.items()}
            for record in records:
                position = positions[record.name]
                if record.name not in held:
                    # It ended meanwhile: its workers, if any come back, are told to leave.
                    self._workers.revoke(record.name)
                    self._journal.kill(position)
                    continue
                lease = ActiveLease(record, position, held=held[record.name])
                self._leases[record.name] = lease
                self._rules.opened(record.name, record.opened(), record.asked)
                if record.began is not None:
                    # Released as idle, its worker would lose a task on the way back.
                    lease.expected = self._clock() + RETURNING
                    self._rules.began(record.name, record.began)
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
            self._tasks.start(self._keep(lease))

    async def _adopted(
        self, account: str, records: Sequence[LeaseRecord]
    ) -> Mapping[str, HeldProcessors]:
        """Return the adopted processors of an account by lease."""
        try:
            site = self._sites(account)
            if not isinstance(site, ReattachableSite):
                return {}
            endpoints = {record.name: self._endpoint(record) for record in records}
            pilots = [self._pilot(record) for record in records]
            return await site.adopt(pilots, endpoints, self._notify)
        except SiteError as error:  # the account may be gone, too
            self._notify(str(error))
            return {}

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
        for account in dict.fromkeys(lease.record.account for lease in self._leases.values()):
            site = self._sites(account)
            if isinstance(site, ReattachableSite):
                await site.leave()
        await self._tasks.close()

    def review(self) -> None:
        """Decide soon: tasks wait, a worker has come or gone, or an agreement has changed."""
        self._review_due.set()
        for lease in self._leases.values():
            if lease.leaving:  # its worker may be the one that is gone
                lease.changed.set()

    def review_idle(self) -> None:
        """Decide soon if a worker has become idle since the last decision."""
        since = (load.idle_since for load in self._workers.leases().values())
        if any(moment is not None and moment >= self._decided for moment in since):
            self._review_due.set()

    # What it says of itself.

    @property
    def free(self) -> int:
        """Processors that no lease holds for an agreement, and that no task holds."""
        loads = self._workers.leases()
        taken = 0
        for name, lease in self._leases.items():
            load = loads.get(name)
            if not is_shared(lease.record.pool):
                taken += lease.record.processors
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
        self._report_ready_processors()
        for name, lease in list(self._leases.items()):
            if lease.held is not None and not lease.held.workers and not lease.leaving:
                self._pause(lease.record, "its workers are gone")
                self._close(CloseLease(name=name, reason="its workers are gone", at_once=True))
            # The site tells nobody of it: the first worker shows that the job has left the queue.
            elif lease.held is not None and lease.record.began is None and self._is_there(name):
                self._begin(lease, None, None)  # it was still in the queue when it was adopted
        view = self._view(now)
        self._backoffs.review(now)
        opened: list[ActiveLease] = []
        for decision in self._rules.decide(view):
            match decision:
                case CloseLease():
                    self._close(decision)
                case OpenLease() if self._backoffs.allows(decision.pool, now):
                    opened += self._open(decision, now)
        # Durable before the site is asked: no crash leaves processors of which nobody knows.
        if not opened:
            return
        try:
            await self._journal.durable()
        except ServiceError as error:
            self._notify(f"no workers are asked for: {error.detail}")
            for lease in opened:
                self._end(lease, "unreachable", error.detail)
            return
        await self._keep_processors()
        for lease in opened:
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

    def _open(self, decision: OpenLease, now: float) -> list[ActiveLease]:
        """Write a lease to the journal, and return the lease; none if the disk is full."""
        record = LeaseRecord(
            name=f"lease-{self._entropy(_NAME).hex()}",
            pool=decision.pool,
            processors=decision.processors,
            asked=now,
            account=self._account_of(decision.pool, now),
            start=decision.start,
            until=None if math.isinf(decision.until) else decision.until,
        )
        try:
            position = self._journal.append(LEASE, msgspec.msgpack.encode(record), essential=False)
        except ServiceError as error:
            self._pause(record, "")  # that is no account's fault
            self._notify(f"no workers are asked for: {error.detail}")
            return []
        lease = self._leases[record.name] = ActiveLease(record, position)
        self._rules.opened(record.name, decision, now)
        return [lease]

    def _account_of(self, pool: str, now: float) -> str:
        """Return the local account under which a pool's tasks run."""
        if is_shared(pool):
            return self._account(pool.removeprefix(SHARED).removeprefix(":"))
        wanted = self._billing.pools(now).get(pool)
        return self._account(wanted.user) if wanted is not None else ""

    def _close(self, decision: CloseLease) -> None:
        lease = self._leases.get(decision.name)
        if lease is None:
            return
        # Dismissed before anything waits: no task may be given to its workers from now on.
        if not lease.leaving:
            self._workers.dismiss(decision.name)
        if decision.at_once and not lease.stopped:
            self._workers.revoke(decision.name)
            lease.stopped = True
        lease.leaving = True
        lease.changed.set()

    def _pause(self, record: LeaseRecord, reason: str) -> None:
        self._backoffs.pause(record.pool, record.account, self._clock(), reason)

    def _is_there(self, name: str) -> bool:
        load = self._workers.leases().get(name)
        return load is not None and load.ready > 0

    def _has_workers(self, pool: str) -> bool:
        loads = self._workers.leases()
        return any(
            loads[name].ready
            for name, lease in self._leases.items()
            if lease.record.pool == pool and name in loads
        )

    def _report_ready_processors(self) -> None:
        loads = self._workers.leases()
        ready: dict[str, int] = {}
        for name, lease in self._leases.items():
            if not is_shared(lease.record.pool) and name in loads:
                ready[lease.record.pool] = ready.get(lease.record.pool, 0) + loads[name].ready
        for pool in sorted(self._reported.keys() | ready.keys()):
            count = ready.get(pool, 0)
            if self._reported.get(pool, 0) != count:
                self._billing.ready(pool, count)
        self._reported = ready

    async def _keep_processors(self) -> None:
        """Have the site reserve processors for leases that begin later, if the site can."""
        coming = [
            lease.record
            for lease in self._leases.values()
            if lease.record.start is not None and lease.held is None and not lease.leaving
        ]
        if {record.name for record in coming} == self._kept.keys():
            return
        site = self._sites("")
        try:
            lead = await site.reserve([self._pilot(record) for record in coming])
        except SiteError as error:
            self._notify(f"nothing is kept for agreements to come: {error}")
            lead = math.inf  # asked for at once, and it waits its turn
        self._kept = dict.fromkeys((record.name for record in coming), lead)

    # One lease.

    def _on_failure(self, error: BaseException) -> None:
        """Have :meth:`run` fail when a lease fails by a fault of ours."""
        self._fault = error
        self._review_due.set()

    async def _run_lease(self, lease: ActiveLease) -> None:
        """Carry one lease from opening to end: wait, request, hold, release."""
        record = lease.record
        try:
            await self._wait_for_start(lease)
            if lease.leaving:
                self._end(lease, "ended", "")
                return
            async with TaskSupervisor() as tasks:
                # It may wait in a queue for days, and not be wanted any more.
                asking = tasks.start(self._ask(lease))
                leaving = tasks.start(self._until_leaving(lease))
                await asyncio.wait({asking, leaving}, return_when=asyncio.FIRST_COMPLETED)
            # Granted just before it was cancelled, it counts: _keep() releases its processors.
            if asking.cancelled():
                self._end(lease, "ended", "")
                return
            lease.held = asking.result()
            with contextlib.suppress(ServiceError):  # then the next life takes it for waiting
                await self._journal.durable()
        except (BursarError, OSError) as error:
            self._notify(f"{record.name}: {error}")
            self._pause(record, str(error))
            # A policy asks again after a passing failure, not for the same after a refusal.
            is_passing = isinstance(error, OSError) or error.transient
            self._end(lease, "unreachable" if is_passing else "refused", str(error))
            return
        await self._keep(lease)

    async def _keep(self, lease: ActiveLease) -> None:
        """Hold a lease's processors until these are lost or the lease is to end."""
        assert lease.held is not None
        name = lease.record.name
        self._review_due.set()
        async with TaskSupervisor() as tasks:
            lost = tasks.start(lease.held.lost())
            lost.add_done_callback(lambda _: lease.changed.set())
            while not lost.done():
                if lease.stopped or (lease.leaving and self._is_empty(lease)):
                    break
                lease.changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._left(lease)):
                        await lease.changed.wait()
                if self._clock() >= lease.record.ends and not lease.stopped:
                    self._close(CloseLease(name=name, reason="its time is over", at_once=True))
            loss, reason = lost.result() if lost.done() else ("ended", "")
        # Before the release: no worker may be given a task on processors that go back.
        self._workers.revoke(name)
        try:
            await lease.held.release()
        except (SiteError, OSError) as error:
            self._notify(f"{name}: {error}")
        if loss == "lost":
            self._notify(f"{name}: {reason}")
        self._end(lease, loss, reason)

    def _is_empty(self, lease: ActiveLease) -> bool:
        """Whether a lease has no worker, and none that may come back with tasks is awaited."""
        load = self._workers.leases().get(lease.record.name)
        if load is not None and load.ready:
            lease.expected = None
            return False
        return lease.expected is None or self._clock() >= lease.expected

    def _end(self, lease: ActiveLease, loss: AllocationLoss, reason: str) -> None:
        """Remove a lease that has ended, and kill the record."""
        self._leases.pop(lease.record.name, None)
        self._workers.revoke(lease.record.name)
        self._rules.pilot_ended(lease.record.name, self._clock(), loss, reason)
        self._journal.kill(lease.position)  # if that is lost, its workers will not be there
        self._review_due.set()

    async def _ask(self, lease: ActiveLease) -> HeldProcessors:
        record = lease.record
        return await self._sites(record.account).acquire(
            self._pilot(record),
            self._endpoint(record),
            rigid=True,
            begin=lambda processors=None, seconds=None: self._begin(lease, processors, seconds),
            on_event=self._notify,
        )

    def _begin(self, lease: ActiveLease, processors: int | None, seconds: float | None) -> None:
        """Note that the site has granted processors, how many, and for how many seconds."""
        now = self._clock()
        before = lease.record
        record = msgspec.structs.replace(before, began=now)
        if processors is not None and processors != before.processors:
            record = msgspec.structs.replace(record, processors=processors)
            self._endpoint(record)  # so many are let in
        if is_shared(before.pool) and before.until is not None:
            # It may have waited in a queue for longer than it is: its time begins now.
            least = before.until - before.asked if seconds is None else seconds
            record = msgspec.structs.replace(record, until=now + least)
        position = self._journal.append(LEASE, msgspec.msgpack.encode(record), essential=True)
        self._journal.kill(lease.position)
        lease.record, lease.position = record, position
        self._rules.began(record.name, now)
        lease.changed.set()
        self._review_due.set()

    def _endpoint(self, record: LeaseRecord) -> Endpoint:
        token = self._workers.expect(
            record.name,
            pool=record.pool,
            site=self._sites(record.account).facts.name,
            processors=record.processors,
        )
        return Endpoint(
            address=self._settings.address,
            token=token,
            run=self._settings.run,
            admission=self._workers,
        )

    def _pilot(self, record: LeaseRecord) -> Allocation:
        return record.pilot(self._sites(record.account).facts.name, self._clock())

    async def _wait_for_start(self, lease: ActiveLease) -> None:
        start = lease.record.start
        if start is None:
            return
        due = start - self._kept.get(lease.record.name, 0.0)
        while not lease.leaving and self._clock() < due:
            lease.changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(due - self._clock()):
                    await lease.changed.wait()

    async def _until_leaving(self, lease: ActiveLease) -> None:
        while not lease.leaving:
            lease.changed.clear()
            await lease.changed.wait()

    def _left(self, lease: ActiveLease) -> float | None:
        """Return the seconds until a lease is due for a change by time alone; None: never."""
        moments = [] if lease.stopped else [lease.record.ends]
        if lease.leaving and lease.expected is not None:
            moments.append(lease.expected)
        seconds = min(moments, default=math.inf) - self._clock()
        return None if math.isinf(seconds) else max(0.0, seconds)


def _seen(lease: ActiveLease, load: AllocationLoad | None, now: float) -> LeaseView:
    record = lease.record
    ready, busy, idle_since = 0, 0, None
    if load is not None and load.ready:
        lease.expected = None
        ready, busy, idle_since = load.ready, load.busy, load.idle_since
    elif lease.expected is not None and now < lease.expected:
        # Its worker may come back with tasks: taken to be idle, the lease would be released.
        busy = record.processors
    return LeaseView(
        name=record.name,
        pool=record.pool,
        processors=record.processors,
        asked=record.asked,
        began=record.began,
        until=record.end,
        ready=ready,
        busy=busy,
        idle_since=idle_since,
        leaving=lease.leaving,
        stopped=lease.stopped,
    )
