"""Processors of plain machines that a pilot holds."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bursar.dispatch.credential import PilotTerms
from bursar.model.allocation import AllocationLoss
from bursar.model.errors import SiteError
from bursar.provisioning.host_pilot import HostReport
from bursar.sites.carrying_executor import CarryingExecutor
from bursar.sites.proxy_worker import ProxyWorker
from bursar.sites.ssh_hosts import HostLink, HostPilot
from bursar.worker.launch import Endpoint, PilotAdmission

MENDED_WITHIN = 10.0
"""Seconds without any processor after which a pilot counts as lost."""


@dataclass(slots=True, eq=False)
class HostState:
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
    sees_folder
        Whether it sees the run's folder; files are carried to and from it else.
    pause, due
        Seconds of the last pause, and when it is to be asked again, on the loop's clock.
    """

    link: HostLink
    report: HostReport | None = None
    capacity: int = 0
    held: int = 0
    error: SiteError | None = None
    sees_folder: bool = True
    pause: float = 0.0
    due: float = math.inf

    @property
    def free(self) -> int:
        """Processors that no pilot of this run has."""
        return 0 if self.report is None else max(0, self.capacity - self.held)


@dataclass(slots=True, eq=False)
class HostShare:
    """Processors of one host that a pilot of the run has, and the process that holds them."""

    host: HostState
    processors: int
    began: float = 0.0
    process: HostPilot | None = None
    is_ending: bool = False
    worker: ProxyWorker | None = None  # where files are carried
    executor: CarryingExecutor | None = None


class HeldHosts:
    """
    Handle of the processors of machines that a pilot holds.

    Parameters
    ----------
    terms
        Terms on which its workers are let in.
    among
        All pilots of the site, from which a release removes this one.
    release
        Ends what runs for it at the machines.

    Attributes
    ----------
    wanted
        Processors that it should have.
    joined
        Number of workers of this process that have joined for it.
    reason
        Why the last of its machines was lost.
    ending
        Done when the processors are gone without a release.
    """

    def __init__(
        self,
        terms: PilotTerms,
        endpoint: Endpoint,
        admission: PilotAdmission,
        among: "list[HeldHosts]",
        release: Callable[["HeldHosts"], Awaitable[None]],
    ) -> None:
        self.terms = terms
        self.endpoint = endpoint
        self.wanted = terms.processors
        self.joined = 0
        self._credential = b""
        self._asking = asyncio.Lock()
        self.shares: list[HostShare] = []
        self.changed = asyncio.Event()
        self.reason = "no machine could be used"
        self._admission = admission
        self._among = among
        self._release = release
        self._empty_since: float | None = None
        self.ending: asyncio.Future[tuple[AllocationLoss, str]] = (
            asyncio.get_running_loop().create_future()
        )
        among.append(self)

    async def credential(self) -> bytes:
        """Return the credential of its pilots; errors of :class:`PilotAdmission`."""
        async with self._asking:
            if not self._credential:
                self._credential = await self._admission.credential(self.terms)
            return self._credential

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
        self._admission.revoke(self.terms.lease)
        await self._release(self)
