"""Processors of a service that a pilot holds."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from bursar.dispatch.wire import WireJob
from bursar.market.agreement import Terms
from bursar.model.allocation import Allocation, AllocationLoss
from bursar.model.errors import SiteError
from bursar.model.money import Micros
from bursar.model.site import Trust
from bursar.model.task import Outcome
from bursar.remote.async_client import AsyncSession
from bursar.remote.http_transport import RemoteProblem
from bursar.sites.proxy_worker import ProxyWorker
from bursar.sites.remote.remote_executor import RemoteJobExecutor
from bursar.sites.remote.remote_files import InstanceFileIndex
from bursar.supervisor import TaskSupervisor
from bursar.worker.launch import Endpoint

CHECK_INTERVAL = 2.0
"""Seconds between two checks that an instance's processors are still ours."""

InstanceCheck = Callable[["HeldInstance"], Awaitable[tuple[AllocationLoss, str] | None]]
"""Returns how the processors were lost, and the service's words; None: they are still ours."""


class HeldInstance:
    """
    An instance at a service that runs a pilot's jobs.

    Parameters
    ----------
    siblings
        Index of the run's files that instances of the service have.
    release
        Ends the instance, and the agreement bought for the instance.
    trust
        Form in which calls send their results: data, or pickles of a trusted service.

    Attributes
    ----------
    since, seen
        When it first existed, and when the service last answered, by ``time.monotonic()``.
    early
        Processor-seconds for which some processors waited for the others before ``since``.
    seconds
        Seconds to pay for each processor, at the agreed price; None: the service has not said, and
        our own clock counts.
    terms
        Terms at which ``seconds`` are paid; None: at the price that the pilot expects.
    charged
        What the service charged in all, micro-units; None: it has not said.
    spent
        Cost of tasks on shared processors at the last look, micro-units.
    """

    def __init__(
        self,
        pilot: Allocation,
        session: AsyncSession,
        siblings: InstanceFileIndex,
        check: InstanceCheck,
        release: Callable[["HeldInstance"], Awaitable[None]],
        trust: Trust,
    ) -> None:
        self.pilot = pilot
        self.session = session
        self.since = self.seen = time.monotonic()
        self.early = 0.0
        self.seconds: float | None = None
        self.terms: Terms | None = None
        self.charged: Micros | None = None
        self.spent = 0
        self._check = check
        self._release = release
        self._executor = RemoteJobExecutor(
            session,
            siblings,
            report=self._report,
            hand_back=self._hand_back,
            on_lost=lambda why: self._lose("lost", why),
            trust=trust,
        )
        self._bridge: ProxyWorker | None = None
        self._lost: asyncio.Future[tuple[AllocationLoss, str]] = (
            asyncio.get_running_loop().create_future()
        )
        self._watching = TaskSupervisor(self._on_unwatched)

    def open(self, endpoint: Endpoint) -> None:
        """
        Join the engine as a worker.

        Raises
        ------
        SiteError
            When the engine takes no workers of this process, or is closing.
        """
        self._bridge = ProxyWorker(
            endpoint,
            self._executor,
            name=f"{self.pilot.site}-{self.pilot.name}",
            site=self.pilot.site,
            lease=self.pilot.name,
            processors=self.pilot.processors,
            on_end=lambda: None,
            takes_followers=True,
        )
        self._bridge.open()
        self._watching.start(self._watch())

    @property
    def workers(self) -> int:
        """One while the instance is ours, else zero."""
        return int(not self._lost.done())

    async def lost(self) -> tuple[AllocationLoss, str]:
        """
        Return when the processors are gone.

        See :class:`bursar.sites.protocol.HeldProcessors`.
        """
        return await asyncio.shield(self._lost)

    async def release(self) -> None:
        """End the instance, and leave nothing behind at the service."""
        await self.leave()
        await self._release(self)

    def _report(self, outcomes: Sequence[Outcome]) -> None:
        if self._bridge is not None:
            self._bridge.report(outcomes)

    def _hand_back(self, jobs: Sequence[WireJob]) -> None:
        if self._bridge is not None:
            self._bridge.hand_back(jobs)

    async def _watch(self) -> None:
        """Check now and then, so that a silent service is noticed even when nothing runs."""
        while (gone := await self._check(self)) is None:
            self.seen = time.monotonic()
            await asyncio.sleep(CHECK_INTERVAL)
        self._lose(*gone)

    def _on_unwatched(self, error: BaseException) -> None:
        """Give up the processors: the service does not answer, or not as expected."""
        is_expected = isinstance(error, RemoteProblem | SiteError)
        self._lose("lost", str(error) if is_expected else f"{type(error).__name__}: {error}")

    def _lose(self, loss: AllocationLoss, why: str) -> None:
        if self._lost.done():
            return
        self._lost.set_result((loss, why.removeprefix(f"{self.pilot.site}: ")))
        if self._bridge is not None:
            self._bridge.close()  # the dispatcher then starts its jobs elsewhere

    async def leave(self) -> None:
        """Stop sending jobs to the instance, and stop watching the instance."""
        if self._bridge is not None:
            self._bridge.close()
        await self._watching.close()
        await self._executor.stop()
