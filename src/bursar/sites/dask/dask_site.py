"""
An existing Dask cluster as a site.

Each Dask worker whose processors are held is one worker towards the dispatcher, so that who runs
where is the dispatcher's decision: Dask carries, starts and watches, and never runs a task again
by itself.
"""

import asyncio
import contextlib
import logging
import math
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from bursar.model.allocation import Allocation
from bursar.model.errors import InputError, SiteError
from bursar.model.matching import SiteStatus
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.provisioning.pool_snapshot import PoolSite, view_at_once
from bursar.sites.dask.held import HeldThreads
from bursar.sites.dask.job_executor import PATIENCE, DaskWorker
from bursar.sites.dask.sidecar_registry import end_run, inspect_process, record_heartbeat
from bursar.sites.protocol import PilotBeginListener
from bursar.supervisor import TaskSupervisor
from bursar.version import VERSION
from bursar.worker.launch import Endpoint

CONNECT = 10.0
"""Seconds in which the scheduler, and a worker, must answer."""

CHECK_INTERVAL = 1.0
"""Seconds between two looks at which workers are there."""

SHUNNED = 10.0
"""Seconds without jobs for a worker that did not answer as expected."""


class DaskSite:
    """
    Provides processors (threads of workers) of an existing Dask cluster.

    Parameters
    ----------
    facts
        Facts of the site; they say how its Dask scheduler is reached.
    run
        Identity of the run among those of this machine.
    folder
        Folder of the run, by which each Dask worker is tested for a shared file system.
    """

    def __init__(self, facts: SiteFacts, run: str, folder: Path) -> None:
        if facts.dask is None:
            raise ValueError(f"{facts.name} has no Dask")
        self._facts = facts
        self._run = f"{socket.gethostname()}-{os.getuid()}-{run}"
        self._folder = folder
        self._dask = facts.dask
        self._client: Any = None
        self._workers: dict[str, DaskWorker] = {}  # that are there and fit, by address
        self._shunned: dict[str, float] = {}  # until when, by address
        self._held: list[HeldThreads] = []

    @property
    def facts(self) -> SiteFacts:
        """Facts of the site."""
        return self._facts

    def opened(self) -> AbstractAsyncContextManager[None]:
        """Return a context in which the site is connected to the scheduler."""
        return self._opened()

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[None]:
        with _quiet():
            self._client = await self._connected()
            try:
                try:
                    await self._watch_connection()
                except OSError as error:
                    raise self._silent(error) from None
                if not self._workers:
                    raise SiteError(
                        f"{self._facts.name}: the Dask cluster at {self._dask.scheduler} has no "
                        "workers",
                        transient=True,
                    )
                await self._clear_up()  # of an earlier process of the run
                async with TaskSupervisor(self._on_unwatched) as watching:
                    watching.start(self._watch_runs())
                    yield
            finally:
                await self._clear_up()
                with contextlib.suppress(Exception):
                    async with asyncio.timeout(CONNECT):
                        await self._client.close()
                self._client = None

    def offers(self) -> tuple[Slot, ...]:
        """Return all processors of the site, from now on, without end."""
        return self._facts.offers

    def status(self, seconds: float | None = None) -> SiteStatus:
        """Return the threads that no pilot of ours holds; other users' load is unknown."""
        free = self._free
        return SiteStatus(
            site=self._facts.name,
            at=asyncio.get_running_loop().time(),
            free_processors=free,
            running=len(self._held),
            traversal_time=0.0 if free else None,
        )

    def view(self) -> PoolSite:
        """Return the site as a pool sees it: processors start at once and have no end."""
        widest = max((worker.threads for worker in self._workers.values()), default=None)
        return view_at_once(self._facts, self._free, widest)

    async def reserve(self, pilots: Sequence[Allocation]) -> float:
        """Do nothing: the processors are not for sale."""
        return 0.0

    async def acquire(
        self,
        pilot: Allocation,
        endpoint: Endpoint,
        *,
        rigid: bool,
        begin: PilotBeginListener,
        on_event: Callable[[str], None],
    ) -> HeldThreads:
        """Take threads of Dask workers; see :class:`bursar.sites.protocol.Site`."""
        shares = self._shares(pilot.processors)
        lacking = pilot.processors - sum(threads for _, threads in shares)
        if lacking:
            raise SiteError(
                f"{self._facts.name}: the Dask workers lack {lacking} processors", transient=True
            )
        begin()
        held = HeldThreads(
            self._client,
            self._run,
            pilot,
            endpoint,
            among=self._held,
            notify=on_event,
            on_broken=self._shun,
        )
        try:
            held.join(shares)
        except BaseException:
            await held.release()
            raise
        return held

    @property
    def _free(self) -> int:
        threads = sum(worker.threads for worker in self._workers.values())
        taken = sum(held.wanted for held in self._held)
        return max(0, min(self._facts.processors, threads) - taken)

    def _shares(self, processors: int) -> list[tuple[DaskWorker, int]]:
        """
        Choose the threads to take of each Dask worker, workers with most threads left first.

        As few workers as possible then share a pilot, and wide tasks find room.
        """
        left = {
            address: worker.threads - sum(held.threads_of(address) for held in self._held)
            for address, worker in self._workers.items()
        }
        shares: list[tuple[DaskWorker, int]] = []
        for address in sorted(left, key=lambda a: (-left[a], a)):
            take = min(left[address], processors)
            if take > 0:
                shares.append((self._workers[address], take))
                processors -= take
        return shares

    # Dask.

    async def _connected(self) -> Any:
        distributed = _distributed()
        security = None
        if self._dask.scheduler.startswith("tls:"):
            security = distributed.Security(
                tls_ca_file=self._dask.ca,
                tls_client_cert=self._dask.certificate,
                tls_client_key=self._dask.key,
                require_encryption=True,
            )
        try:
            return await distributed.Client(
                self._dask.scheduler,
                asynchronous=True,
                timeout=CONNECT,
                security=security,
                set_as_default=False,
            )
        except (OSError, TimeoutError, ValueError) as error:
            raise self._silent(error) from None

    def _silent(self, error: Exception) -> SiteError:
        """Return the error for a Dask scheduler that does not answer; it may do so later."""
        return SiteError(
            f"{self._facts.name}: the Dask scheduler at {self._dask.scheduler} does not answer: "
            f"{_line(error)}",
            transient=True,
        )

    async def _clear_up(self) -> None:
        """End everything of the run at the workers that can be reached."""
        if self._client.status != "running":
            return
        with contextlib.suppress(Exception):  # the scheduler may be gone
            async with asyncio.timeout(CONNECT):
                await self._client.run(end_run, self._run, on_error="ignore")

    async def _watch_connection(self) -> None:
        """
        Find out which workers are there.

        Raises
        ------
        SiteError
            When none of them can be used, and why.
        OSError
            When the scheduler does not answer.
        """
        if self._client.status != "running":
            raise OSError("the connection to the scheduler is lost")
        async with asyncio.timeout(CONNECT):
            threads: dict[str, int] = await self._client.nthreads()
        for address in [a for a in (*self._workers, *self._shunned) if a not in threads]:
            self._worker_lost(address, "is gone")
        now = asyncio.get_running_loop().time()
        new = [
            address
            for address in threads
            if address not in self._workers and self._shunned.get(address, 0.0) <= now
        ]
        if new:
            await self._meet({address: threads[address] for address in new}, now)

    async def _meet(self, threads: dict[str, int], now: float) -> None:
        """
        Find out whether workers have this package, and share our file system.

        Raises
        ------
        SiteError
            When none is fit, nor was one before.
        """
        with tempfile.NamedTemporaryFile(dir=self._folder, prefix=".seen-") as probe:
            async with asyncio.timeout(CONNECT):
                answers = await self._client.run(
                    inspect_process, probe.name, workers=list(threads), on_error="return"
                )
        unfit = ""
        for address, answer in answers.items():
            if isinstance(answer, Exception):
                unfit = f"cannot load bursar {VERSION}: {_line(answer)}"
            elif answer[0] != VERSION:
                unfit = f"have bursar {answer[0]}, expected {VERSION}"
            else:
                self._workers[address] = DaskWorker(
                    address=address,
                    identity=answer[1],
                    threads=threads[address],
                    sees_files=answer[2],
                )
                continue
            self._shunned[address] = now + SHUNNED
        if unfit and not self._workers:
            raise SiteError(f"{self._facts.name}: the Dask workers {unfit}")

    async def _watch_runs(self) -> None:
        """Watch workers come and go, and send heartbeats, until cancelled."""
        silent_since = math.inf
        loop = asyncio.get_running_loop()
        last_contact = -math.inf
        while True:
            await asyncio.sleep(CHECK_INTERVAL)
            try:
                await self._watch_connection()
                # Several heartbeats within the workers' patience: one that is lost must not end the
                # run there.
                if loop.time() - last_contact >= PATIENCE / 6:
                    last_contact = loop.time()
                    async with asyncio.timeout(CONNECT):
                        await self._client.run(record_heartbeat, self._run, on_error="ignore")
                silent_since = math.inf
            except (OSError, TimeoutError, SiteError):
                silent_since = min(silent_since, loop.time())
                if loop.time() - silent_since >= CONNECT:
                    for address in list(self._workers):
                        self._worker_lost(address, "cannot be reached")
            for held in list(self._held):
                self._mend(held)

    def _on_unwatched(self, error: BaseException) -> None:
        """Give up all threads: whether their workers are there is not known any more."""
        why = f"is not watched any more: {type(error).__name__}: {error}"
        for address in list(self._workers):
            self._worker_lost(address, why)
        for held in list(self._held):
            held.lose(f"its Dask cluster {why}")

    def _mend(self, held: HeldThreads) -> None:
        """Replace a pilot's lost workers; report the pilot as lost after a while without any."""
        with contextlib.suppress(SiteError):  # the dispatcher is gone
            held.join(self._shares(held.wanted - held.processors))
        held.poll(CONNECT)

    def _shun(self, address: str) -> None:
        """Send nothing for a while to a worker that did not answer as expected."""
        self._workers.pop(address, None)
        self._shunned[address] = asyncio.get_running_loop().time() + SHUNNED

    def _worker_lost(self, address: str, why: str) -> None:
        for held in list(self._held):
            held.worker_lost(address, why)
        self._workers.pop(address, None)
        self._shunned.pop(address, None)  # who comes with that address is another one


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence Dask's own messages on stderr: lost connections are reported by this site."""
    log = logging.getLogger("distributed")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def _distributed() -> Any:
    try:
        import distributed
    except ImportError:
        raise InputError(
            'a site of kind "dask" needs the package distributed',
            hint="pip install 'bursar[dask]'",
        ) from None
    return distributed


def _line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
