"""A list of plain machines as a site: pilots are started there by ssh."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from bursar.model.allocation import Allocation, AllocationLoss
from bursar.model.errors import SiteError
from bursar.model.matching import HostStatus, SiteStatus
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.provisioning.host_pilot import HostReport
from bursar.provisioning.pool_snapshot import PoolSite, view_at_once
from bursar.sites.pilot_job import pilot_terms
from bursar.sites.protocol import PilotBeginListener
from bursar.sites.ssh_hosts import LOST, ConnectionSockets, HostLink, HostPilot, with_port
from bursar.supervisor import TaskSupervisor
from bursar.worker.launch import Endpoint, PilotAdmission

CHECK_INTERVAL = 1.0
"""Seconds between two looks at which hosts are to be asked and which pilots lack processors."""

FIRST_PAUSE = 5.0
"""Seconds after which a host that failed is asked again; twice as many each further time."""

LONGEST_PAUSE = 300.0
"""Seconds between two questions to a host that fails, at the most."""

PROVEN = 60.0
"""Seconds after which a pilot proves that its host works: the next failure is a first one."""

MENDED_WITHIN = 10.0
"""Seconds without any processor after which a pilot counts as lost."""


def choose_hosts(free: Mapping[str, int], processors: int) -> list[tuple[str, int]]:
    """
    Choose hosts for a pilot: as few as possible, and the narrowest that holds the rest.

    Parameters
    ----------
    free
        Free processors by host.

    Returns
    -------
    list
        Hosts with the processors to take there; together fewer than wanted where not all are free.
    """
    left = {host: count for host, count in free.items() if count > 0}
    chosen: list[tuple[str, int]] = []
    while processors > 0 and left:
        fitting = [host for host in left if left[host] >= processors]
        if fitting:
            host = min(fitting, key=lambda h: (left[h], h))
        else:
            host = min(left, key=lambda h: (-left[h], h))
        take = min(left.pop(host), processors)
        chosen.append((host, take))
        processors -= take
    return chosen


def next_pause(pause: float) -> float:
    """Return for how many seconds a host is left alone that failed again after ``pause``."""
    return min(max(2 * pause, FIRST_PAUSE), LONGEST_PAUSE)


@dataclass(slots=True, eq=False)
class _Host:
    """
    A host, as this process knows it.

    Parameters
    ----------
    report
        What it last said; None: it cannot be used now.
    capacity
        Processors there for this run, those in use included.
    held
        Processors that pilots of this run have.
    error
        Why it cannot be used.
    pause, due
        Seconds of the last pause, and when it is to be asked again, on the loop's clock.
    """

    link: HostLink
    report: HostReport | None = None
    capacity: int = 0
    held: int = 0
    error: SiteError | None = None
    pause: float = 0.0
    due: float = math.inf

    @property
    def free(self) -> int:
        return 0 if self.report is None else max(0, self.capacity - self.held)


@dataclass(slots=True, eq=False)
class _HostShare:
    """Processors of one host that a pilot of the run has, and the process that holds them."""

    host: _Host
    processors: int
    began: float = 0.0
    process: HostPilot | None = None
    is_ending: bool = False


class SshSite:
    """
    Provides processors of plain machines, on which pilots run for as long as their connection.

    Parameters
    ----------
    facts
        Facts of the site; they name its machines.
    run
        Identity of the run, by which what it left at the machines is recognised.
    folder
        Folder of the run, which the machines must see; empty: they need not.
    """

    def __init__(self, facts: SiteFacts, *, run: str, folder: str = "") -> None:
        if facts.ssh is None:
            raise ValueError(f"{facts.name} has no list of machines")
        self._facts = facts
        self._machines = facts.ssh
        self._mark = f"{run}@{facts.name}"
        self._folder = folder
        self._sockets = ConnectionSockets(self._mark)
        self._hosts = {
            host.label: _Host(HostLink(host, facts.ssh, self._sockets.path))
            for host in facts.ssh.hosts
        }
        self._held: list[HeldHosts] = []
        self._notify: Callable[[str], None] = lambda message: None
        self._tasks = TaskSupervisor(self._on_failure)

    @property
    def facts(self) -> SiteFacts:
        """Facts of the site; once :meth:`refresh` has asked the machines, with what they have."""
        return self._facts

    # Open and closed.

    def opened(self) -> AbstractAsyncContextManager[None]:
        """
        Return a context in which the machines are watched, and after which nothing is left there.

        What an earlier process of the run left is ended first.
        """
        return self._opened()

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[None]:
        async with self.connected():
            await self._ask(self._mark)
            try:
                async with TaskSupervisor(self._on_unwatched) as watching:
                    watching.start(self._watch())
                    yield
            finally:
                for held in list(self._held):
                    await held.release()

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Return a context after which no connection is left."""
        self._sockets.make()
        try:
            yield
        finally:
            await self._tasks.close()
            await asyncio.gather(*(host.link.close() for host in self._hosts.values()))
            self._sockets.remove()

    async def refresh(self) -> None:
        """
        Ask all machines what they have, and count it.

        Raises
        ------
        SiteError
            When none of them can be used.
        """
        await self._ask("")
        reports = {label: host.report for label, host in self._hosts.items()}
        there = [report for report in reports.values() if report is not None]
        counted = tuple(
            host
            if (found := reports[host.label]) is None
            # What is stated stays as it is.
            else replace(host, processors=found.processors, memory=host.memory or found.memory)
            for host in self._machines.hosts
        )
        memory = [host.memory for host in counted if host.memory and reports[host.label]]
        self._facts = replace(
            self._facts,
            processors=sum(report.processors for report in there),
            # A task's memory is on one machine.
            memory=self._facts.memory or max(memory, default=None),
            ssh=replace(self._machines, hosts=counted),
        )

    async def _ask(self, mark: str) -> None:
        await asyncio.gather(*(self._inspect(host, mark) for host in self._hosts.values()))
        errors = [host.error for host in self._hosts.values() if host.error is not None]
        if len(errors) == len(self._hosts):
            raise SiteError(
                "; ".join(f"{self._facts.name}: {error}" for error in errors),
                transient=any(error.transient for error in errors),
            )

    # What is there.

    def offers(self) -> tuple[Slot, ...]:
        """Return all processors of the site, from now on, without end."""
        return self._facts.offers

    def status(self, seconds: float | None = None) -> SiteStatus:
        """Return the free processors and memory of the machines by their last reports."""
        free = self._free
        return SiteStatus(
            site=self._facts.name,
            at=asyncio.get_running_loop().time(),
            free_processors=free,
            running=len(self._held),
            traversal_time=0.0 if free else None,
            free_memory=sum(h.free_memory or 0 for h in self._statuses()) or None,
            hosts=tuple(self._statuses()),
        )

    def _statuses(self) -> Sequence[HostStatus]:
        found = []
        for label, host in self._hosts.items():
            report = host.report
            if report is None:
                found.append(HostStatus(host=label, error=str(host.error or "was not asked")))
                continue
            found.append(
                HostStatus(
                    host=label,
                    processors=report.processors,
                    free=host.free,
                    memory=host.link.host.memory or report.memory,
                    free_memory=report.available,
                )
            )
        return found

    def view(self) -> PoolSite:
        """Return the site as a pool sees it: processors start at once and have no end."""
        there = [host.report.processors for host in self._hosts.values() if host.report is not None]
        return view_at_once(self._facts, self._free, max(there, default=None))

    @property
    def _free(self) -> int:
        held = sum(host.held for host in self._hosts.values())
        free = sum(host.free for host in self._hosts.values())
        return max(0, min(self._facts.processors - held, free))

    async def reserve(self, pilots: Sequence[Allocation]) -> float:
        """Do nothing: the processors are there at once."""
        return 0.0

    # Pilots.

    async def acquire(
        self,
        pilot: Allocation,
        endpoint: Endpoint,
        *,
        rigid: bool,
        begin: PilotBeginListener,
        on_event: Callable[[str], None],
    ) -> "HeldHosts":
        """
        Start pilots at some machines, and wait until the first worker reports.

        Where runs keep processors from each other, wait for those that others hold.
        """
        admission = endpoint.admission
        if admission is None:
            raise SiteError(f"{self._facts.name}: nobody listens for pilots from elsewhere")
        if self._notify is not on_event:
            self._notify = on_event
            for host in self._hosts.values():
                if host.error is not None:
                    self._notify(f"{self._facts.name}: {host.error}")
        await self._wait_until_free(pilot.processors)
        joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_join() -> None:
            if not joined.done():
                joined.set_result(None)

        reach = "127.0.0.1" if self._machines.reverse else self._machines.reach
        held = HeldHosts(pilot, admission, self._held, self._release_shares)
        try:
            terms = pilot_terms(self._facts, pilot, reach=reach, on_join=on_join)
            held.credential = await admission.credential(terms)
            self._mend(held)
            futures: tuple[asyncio.Future[Any], ...] = (joined, held.ending)
            await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
            if not joined.done():
                raise SiteError(f"{self._facts.name}: {held.reason}", transient=True)
            begin()
        except BaseException:
            await held.release()
            raise
        return held

    async def _wait_until_free(self, processors: int) -> None:
        """
        Wait for processors that other runs keep.

        Raises
        ------
        SiteError
            When the machines that can be used have too few processors, or this run has them.
        """
        is_told = False
        while (lacking := processors - self._free) > 0:
            kept = sum(
                host.report.processors - host.capacity
                for host in self._hosts.values()
                if host.report is not None
            )
            if kept < lacking:
                errors = [str(host.error) for host in self._hosts.values() if host.error]
                if errors and self._free:  # what is missing joins when its machine answers again
                    return
                raise SiteError(
                    "; ".join([f"{self._facts.name}: lacks {lacking} processors", *errors]),
                    transient=True,
                )
            if not is_told:
                is_told = True
                self._notify(
                    f"{self._facts.name}: other runs hold {kept} processors; this run waits for "
                    f"{lacking}"
                )
            await asyncio.sleep(CHECK_INTERVAL)
            up = [host for host in self._hosts.values() if host.report is not None]
            await asyncio.gather(*(self._inspect(host, "") for host in up))

    def _mend(self, held: "HeldHosts") -> None:
        """Start what a pilot lacks of its processors, where some are free."""
        lacking = held.wanted - held.processors
        if lacking <= 0 or held.is_over or not held.credential:
            return
        free = {label: host.free for label, host in self._hosts.items()}
        for label, processors in choose_hosts(free, min(lacking, self._free)):
            share = _HostShare(self._hosts[label], processors, asyncio.get_running_loop().time())
            share.host.held += processors
            held.shares.append(share)
            self._tasks.start(self._carry(held, share))

    async def _carry(self, held: "HeldHosts", share: _HostShare) -> None:
        """Run a pilot at a host until it ends, and note how."""
        status, words, host = LOST, "is not asked any more", share.host
        try:
            credential = held.credential
            if self._machines.reverse:
                port = msgspec.json.decode(credential)["port"]
                credential = with_port(credential, await host.link.forward(port))
            total = 0
            if not self._machines.shared and host.report is not None:
                total = host.report.processors
            process = await host.link.start(
                credential, share.processors, mark=self._mark, total=total
            )
            share.process = process
            if share.is_ending:  # given back meanwhile
                await process.end()
            status, words = await process.wait()
        except (SiteError, OSError) as error:
            words = str(error)
        finally:
            if share.process is not None:
                share.process.kill()
            host.held -= share.processors
            held.shares.remove(share)
            if not share.is_ending:
                self._on_share_end(held, share, status, words)
            held.changed.set()

    def _on_share_end(self, held: "HeldHosts", share: _HostShare, status: int, words: str) -> None:
        """Handle a pilot that has ended by itself."""
        if status == 0:  # it was let go, or was idle for long enough
            held.wanted -= share.processors
            if held.wanted <= 0:
                held.lose("ended", "its workers have left")
            return
        host = share.host
        if asyncio.get_running_loop().time() - share.began >= PROVEN:
            host.pause = 0.0
        if status == LOST:
            words = f"the connection is lost: {words}"
        problem = host.link.explained(words)
        held.reason = problem
        self._fail(host, SiteError(problem, transient=True))

    # Machines.

    async def _inspect(self, host: _Host, mark: str) -> None:
        """Ask a machine what it has; what this run left there is ended where it has no pilots."""
        host.due = math.inf
        held = host.held
        try:
            report = await host.link.inspect("" if held else mark, self._folder)
        except SiteError as error:
            self._fail(host, error)
            return
        if host.error is not None and mark:
            self._notify(f"{self._facts.name}: {host.link.host.label} is there again")
        host.report, host.error = report, None
        # Pilots of this run are among those that keep processors from others.
        host.capacity = report.processors if self._machines.shared else report.free + held

    def _fail(self, host: _Host, error: SiteError) -> None:
        """Leave a machine alone for a while, longer each time, and tell of it."""
        if str(error) != str(host.error):
            self._notify(f"{self._facts.name}: {error}")
        host.report, host.error = None, error
        host.pause = next_pause(host.pause)
        host.due = asyncio.get_running_loop().time() + host.pause

    async def _watch(self) -> None:
        """Ask machines again that failed, and mend pilots, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(CHECK_INTERVAL)
            for host in self._hosts.values():
                if host.due <= loop.time():
                    host.due = math.inf
                    self._tasks.start(self._inspect(host, self._mark))
            for held in list(self._held):
                self._mend(held)
                held.poll(loop.time())

    async def _release_shares(self, held: "HeldHosts") -> None:
        """End the pilots of an allocation, and wait until they are gone."""
        for share in held.shares:
            share.is_ending = True
        ending = [share.process.end() for share in held.shares if share.process is not None]
        await asyncio.gather(*ending)
        while held.shares:
            held.changed.clear()
            await held.changed.wait()

    def _on_failure(self, error: BaseException) -> None:
        self._notify(f"{self._facts.name}: {type(error).__name__}: {error}")

    def _on_unwatched(self, error: BaseException) -> None:
        """Give up all pilots: whether they lose their machines is not seen any more."""
        for held in list(self._held):
            held.lose("lost", f"is not watched any more: {type(error).__name__}: {error}")


class HeldHosts:
    """
    Handle of the processors of machines that a pilot holds.

    Parameters
    ----------
    among
        All pilots of the site, from which a release removes this one.
    release
        Ends what runs for it at the machines.

    Attributes
    ----------
    wanted
        Processors that it should have.
    reason
        Why the last of its machines was lost.
    ending
        Done when the processors are gone without a release.
    """

    def __init__(
        self,
        pilot: Allocation,
        admission: PilotAdmission,
        among: "list[HeldHosts]",
        release: Callable[["HeldHosts"], Awaitable[None]],
    ) -> None:
        self.wanted = pilot.processors
        self.credential = b""
        self.shares: list[_HostShare] = []
        self.changed = asyncio.Event()
        self.reason = "no machine could be used"
        self._name = pilot.name
        self._admission = admission
        self._among = among
        self._release = release
        self._empty_since: float | None = None
        self.ending: asyncio.Future[tuple[AllocationLoss, str]] = (
            asyncio.get_running_loop().create_future()
        )
        among.append(self)

    @property
    def processors(self) -> int:
        """Number of processors held now."""
        return sum(share.processors for share in self.shares)

    @property
    def workers(self) -> int:
        """Number of machines; one while replacements are awaited, zero once lost."""
        return 0 if self.is_over else max(1, len(self.shares))

    @property
    def is_over(self) -> bool:
        """Whether the processors were lost or given back."""
        return self.ending.done() or self not in self._among

    def poll(self, now: float) -> None:
        """Count the processors as lost once none has been there for some seconds."""
        if self.shares:
            self._empty_since = None
        elif self._empty_since is None:
            self._empty_since = now
        if self._empty_since is not None and now - self._empty_since >= MENDED_WITHIN:
            self.lose("lost", self.reason)

    def lose(self, loss: AllocationLoss, why: str) -> None:
        """Report the processors as gone; a second call changes nothing."""
        if not self.ending.done():
            self.ending.set_result((loss, why))

    async def lost(self) -> tuple[AllocationLoss, str]:
        """Wait until the machines are gone without replacement; return the loss and the reason."""
        return await asyncio.shield(self.ending)

    async def release(self) -> None:
        """End the pilots; nothing of them is left at the machines."""
        if self in self._among:
            self._among.remove(self)
        self._admission.revoke(self._name)
        await self._release(self)
