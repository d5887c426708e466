"""Threads of Dask workers that a pilot holds."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bursar.model.allocation import Allocation, AllocationLoss
from bursar.sites.dask.job_executor import DaskJobExecutor, DaskWorker
from bursar.sites.proxy_worker import ProxyWorker
from bursar.supervisor import TaskSupervisor
from bursar.worker.launch import Endpoint


class HeldThreads:
    """
    Handle of the threads of Dask workers that a pilot holds.

    Parameters
    ----------
    client
        An asynchronous ``distributed.Client``.
    run
        Identity of the run among all that use the Dask cluster.
    pilot, endpoint
        See :class:`bursar.sites.protocol.Site`.
    among
        All pilots of the site, from which a release removes this one.
    notify
        Called with a line for people when workers are gone.
    on_broken
        Called with the address of a worker that broke the protocol.
    """

    def __init__(
        self,
        client: Any,
        run: str,
        pilot: Allocation,
        endpoint: Endpoint,
        *,
        among: "list[HeldThreads]",
        notify: Callable[[str], None],
        on_broken: Callable[[str], None],
    ) -> None:
        self.wanted = pilot.processors
        self._client = client
        self._run = run
        self._pilot = pilot
        self._endpoint = endpoint
        self._among = among
        self._notify = notify
        self._on_broken = on_broken
        self._shares: list[_ThreadShare] = []
        self._joined = 0
        self._empty_since: float | None = None
        self._lost: asyncio.Future[tuple[AllocationLoss, str]] = (
            asyncio.get_running_loop().create_future()
        )
        self._stopping = TaskSupervisor(self._on_stop_failure)
        self._counted = asyncio.get_running_loop().time()
        self._had = 0.0  # processor-seconds
        among.append(self)

    @property
    def seconds(self) -> float:
        """
        Seconds to pay for each of the pilot's processors: the thread-seconds had, over their
        number.
        """
        self._count()
        return self._had / self._pilot.processors

    @property
    def processors(self) -> int:
        """Number of threads held now."""
        return sum(share.threads for share in self._shares)

    @property
    def workers(self) -> int:
        """Number of Dask workers; one while replacements are awaited, zero once lost."""
        return 0 if self._lost.done() else max(1, len(self._shares))

    def threads_of(self, address: str) -> int:
        """Return how many of the threads belong to a Dask worker."""
        return sum(share.threads for share in self._shares if share.address == address)

    def join(self, shares: Sequence[tuple[DaskWorker, int]]) -> None:
        """
        Take threads of Dask workers.

        Raises
        ------
        SiteError
            When the engine takes no workers of this process, or is closing.
        """
        made = [self._share(worker, threads) for worker, threads in shares]
        self._count()
        self._shares += made
        for share in made:
            try:
                share.bridge.open()
            except BaseException:
                for other in made:
                    self._drop(other)
                raise

    def worker_lost(self, address: str, why: str) -> None:
        """Give up the threads of a Dask worker that is gone."""
        for share in [share for share in self._shares if share.address == address]:
            self._broke(share, why)

    def poll(self, patience: float) -> None:
        """Count the threads as lost once none has been there for ``patience`` seconds."""
        now = asyncio.get_running_loop().time()
        if self._shares:
            self._empty_since = None
        elif self._empty_since is None:
            self._empty_since = now
        if self._empty_since is not None and now - self._empty_since >= patience:
            self.lose("its Dask workers are gone")

    def lose(self, why: str) -> None:
        """Report the threads as lost; a second call changes nothing."""
        if not self._lost.done():
            self._lost.set_result(("lost", why))

    async def lost(self) -> tuple[AllocationLoss, str]:
        """
        Wait until the Dask workers are gone without replacement; return the loss and the reason.
        """
        return await asyncio.shield(self._lost)

    async def release(self) -> None:
        """Give the threads back."""
        try:
            for share in list(self._shares):
                self._drop(share)
            await self._stopping.wait()
        finally:
            if self in self._among:
                self._among.remove(self)

    def _share(self, worker: DaskWorker, threads: int) -> "_ThreadShare":
        executor = DaskJobExecutor(
            self._client,
            worker,
            self._run,
            threads,
            report=lambda outcomes: bridge.report(outcomes),
            hand_back=lambda jobs: bridge.hand_back(jobs),
            on_broken=lambda why: self._broke(share, why),
        )
        bridge = ProxyWorker(
            self._endpoint,
            executor,
            name=f"{self._pilot.site}-{self._pilot.name}-{self._joined}",
            site=self._pilot.site,
            lease=self._pilot.name,
            processors=threads,
            on_end=lambda: self._let_go(share),
        )
        self._joined += 1
        share = _ThreadShare(worker.address, threads, bridge, executor)
        return share

    def _broke(self, share: "_ThreadShare", why: str) -> None:
        if self._drop(share):
            self._notify(f"{self._pilot.site}: the Dask worker at {share.address} {why}")
            self._on_broken(share.address)

    def _let_go(self, share: "_ThreadShare") -> None:
        """Handle that the engine dismisses a share, or is gone."""
        if self._drop(share):
            self.wanted -= share.threads

    def _drop(self, share: "_ThreadShare") -> bool:
        """Give up one worker's threads; return whether the threads were held."""
        if share not in self._shares:
            return False
        self._count()
        self._shares.remove(share)
        share.bridge.close()
        self._stopping.start(share.executor.stop())
        return True

    def _count(self) -> None:
        """Add up the thread-seconds so far; called before each change in the number of threads."""
        now = asyncio.get_running_loop().time()
        self._had += self.processors * (now - self._counted)
        self._counted = now

    def _on_stop_failure(self, error: BaseException) -> None:
        self._notify(
            f"{self._pilot.site}: jobs at a Dask worker may go on: {type(error).__name__}: {error}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class _ThreadShare:
    """Threads of one Dask worker that the pilot holds."""

    address: str
    threads: int
    bridge: ProxyWorker
    executor: DaskJobExecutor
