"""A list of plain machines as a site: pilots are started there by ssh."""

import asyncio
import math
import os
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from bursar.model.allocation import Allocation
from bursar.model.errors import SiteError
from bursar.model.matching import HostStatus, SiteStatus
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.provisioning.pool_snapshot import PoolSite, view_at_once
from bursar.sites.carrying_executor import CarryingExecutor
from bursar.sites.pilot_job import pilot_terms
from bursar.sites.protocol import PilotBeginListener
from bursar.sites.proxy_worker import ProxyWorker
from bursar.sites.ssh_held import HeldHosts, HostShare, HostState
from bursar.sites.ssh_hosts import LOST, ConnectionSockets, HostLink, HostPilot, with_port
from bursar.supervisor import TaskSupervisor
from bursar.worker.launch import Endpoint

CHECK_INTERVAL = 1.0
"""Seconds between two looks at which hosts are to be asked and which pilots lack processors."""

FIRST_PAUSE = 5.0
"""Seconds after which a host that failed is asked again; twice as many each further time."""

LONGEST_PAUSE = 300.0
"""Seconds between two questions to a host that fails, at the most."""

PROVEN = 60.0
"""Seconds after which a pilot proves that its host works: the next failure is a first one."""


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
        Folder of the run; empty: nothing is run. Files are carried to and from machines that do not
        see it.
    """

    def __init__(self, facts: SiteFacts, *, run: str, folder: str = "") -> None:
        if facts.ssh is None:
            raise ValueError(f"{facts.name} has no list of machines")
        self._facts = facts
        self._machines = facts.ssh
        self._mark = f"{run}@{facts.name}"
        self._folder = folder
        self._token = ""
        self._sockets = ConnectionSockets(self._mark)
        self._hosts = {
            host.label: HostState(HostLink(host, facts.ssh, self._sockets.path))
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
            self._token = self._make_token()
            await self._ask(self._mark)
            try:
                async with TaskSupervisor(self._on_unwatched) as watching:
                    watching.start(self._watch())
                    yield
            finally:
                for held in list(self._held):
                    await held.release()
                self._remove_tokens()

    def _make_token(self) -> str:
        """Make the file by which machines find out whether they see the run's folder."""
        if not self._folder:
            return ""
        self._remove_tokens()
        # Another name each time: a folder of the same path elsewhere may be a copy.
        token = Path(self._folder, f".{self._sockets.path.name}-{secrets.token_hex(8)}")
        try:
            token.touch()
        except OSError as error:
            raise SiteError(f"{self._facts.name}: {token}: {error.strerror}") from None
        return str(token)

    def _remove_tokens(self) -> None:
        for token in Path(self._folder or os.devnull).glob(f".{self._sockets.path.name}-*"):
            token.unlink(missing_ok=True)

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
    ) -> HeldHosts:
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
                elif not host.sees_folder and self._machines.shared_folder is None:
                    self._notify(
                        f"{self._facts.name}: {host.link.host.label} does not see the run's "
                        "folder; files are carried"
                    )
        await self._wait_until_free(pilot.processors)
        joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_join() -> None:
            if not joined.done():
                joined.set_result(None)

        reach = "127.0.0.1" if self._machines.reverse else self._machines.reach
        terms = pilot_terms(self._facts, pilot, reach=reach, on_join=on_join)
        held = HeldHosts(terms, endpoint, admission, self._held, self._release_shares)
        try:
            if any(host.report is not None and host.sees_folder for host in self._hosts.values()):
                # Before any machine is used: that nobody can listen is no machine's fault.
                await held.credential()
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

    def _mend(self, held: HeldHosts) -> None:
        """Start what a pilot lacks of its processors, where some are free."""
        lacking = held.wanted - held.processors
        if lacking <= 0 or held.is_over:
            return
        free = {label: host.free for label, host in self._hosts.items()}
        for label, processors in choose_hosts(free, min(lacking, self._free)):
            share = HostShare(self._hosts[label], processors, asyncio.get_running_loop().time())
            share.host.held += processors
            held.shares.append(share)
            self._tasks.start(self._carry(held, share))

    async def _carry(self, held: HeldHosts, share: HostShare) -> None:
        """Run a pilot at a host until it ends, and note how."""
        status, words, host = LOST, "is not asked any more", share.host
        try:
            total = 0
            if not self._machines.shared and host.report is not None:
                total = host.report.processors
            if host.sees_folder:
                process = await self._start(held, share, total)
            else:
                process = await host.link.start_carrying(
                    share.processors, mark=self._mark, total=total
                )
            share.process = process
            if share.is_ending:  # given back meanwhile
                await process.end()
            elif not host.sees_folder:
                await self._join(held, share, process)
            status, words = await process.wait()
        except (SiteError, OSError) as error:
            words = str(error)
        finally:
            if share.process is not None:
                share.process.kill()
            if share.worker is not None:
                share.worker.close()
            if share.executor is not None:
                await share.executor.stop()
            host.held -= share.processors
            held.shares.remove(share)
            if not share.is_ending:
                self._on_share_end(held, share, status, words)
            held.changed.set()

    async def _start(self, held: HeldHosts, share: HostShare, total: int) -> HostPilot:
        """Start a pilot at a machine that sees the run's folder."""
        link = share.host.link
        credential = await held.credential()
        if self._machines.reverse:
            port = msgspec.json.decode(credential)["port"]
            credential = with_port(credential, await link.forward(port))
        return await link.start(credential, share.processors, mark=self._mark, total=total)

    async def _join(self, held: HeldHosts, share: HostShare, process: HostPilot) -> None:
        """Let a pilot that carries files join the run as a worker of this process."""
        host = share.host
        source, target = await process.streams()
        terms = held.terms
        held.joined += 1
        name = f"{terms.site}-{terms.lease}-carried-{held.joined}"

        def on_broken(why: str) -> None:
            self._notify(f"{self._facts.name}: {host.link.host.label}: {why}")
            process.kill()

        share.executor = executor = CarryingExecutor(
            name,
            source,
            target,
            report=lambda outcomes: worker.report(outcomes),
            hand_back=lambda jobs: worker.hand_back(jobs),
            on_broken=on_broken,
        )
        worker = ProxyWorker(
            held.endpoint,
            executor,
            name=name,
            site=terms.site,
            lease=terms.lease,
            processors=share.processors,
            on_end=target.close,  # upon which the pilot ends
            host=host.link.host.label,
            memory=host.link.host.memory or (host.report.memory if host.report else None),
        )
        worker.open()
        share.worker = worker
        if terms.on_join is not None:
            terms.on_join()

    def _on_share_end(self, held: HeldHosts, share: HostShare, status: int, words: str) -> None:
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

    async def _inspect(self, host: HostState, mark: str) -> None:
        """Ask a machine what it has; what this run left there is ended where it has no pilots."""
        host.due = math.inf
        held = host.held
        try:
            report = await host.link.inspect("" if held else mark, self._token)
            if self._machines.shared_folder and not report.sees_folder:
                raise SiteError(
                    f"{host.link.host.label}: does not see {self._folder}, as shared_folder = true "
                    "says; put the runs where all hosts see them under the same name, or leave it "
                    "out"
                )
        except SiteError as error:
            self._fail(host, error)
            return
        if host.error is not None and mark:
            self._notify(f"{self._facts.name}: {host.link.host.label} is there again")
        host.report, host.error = report, None
        host.sees_folder = report.sees_folder and self._machines.shared_folder is not False
        # Pilots of this run are among those that keep processors from others.
        host.capacity = report.processors if self._machines.shared else report.free + held

    def _fail(self, host: HostState, error: SiteError) -> None:
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

    async def _release_shares(self, held: HeldHosts) -> None:
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
