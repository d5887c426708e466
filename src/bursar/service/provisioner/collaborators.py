"""Protocols of the parts of the service that the worker provisioner uses."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

from bursar.model.allocation import Allocation, AllocationLoad
from bursar.model.provisioning import ProcessorDemand
from bursar.service.interfaces import (
    WorkerDemand,
)
from bursar.sites.protocol import HeldProcessors
from bursar.worker.launch import Endpoint, PilotAdmission


class WorkerAdmission(PilotAdmission, Protocol):
    """Admits workers by lease; the worker server implements this protocol."""

    def expect(self, lease: str, *, pool: str, site: str, processors: int) -> str:
        """Admit a lease's workers from now on; return their token, the same each time."""

    def gathered(self) -> None:
        """Note that all restored leases have been announced by :meth:`expect`."""

    def dismiss(self, lease: str) -> None:
        """Give no more tasks to a lease's workers, and let each leave when no task is left."""

    def leases(self) -> Mapping[str, AllocationLoad]:
        """Return the occupancy of connected workers by lease."""


class TaskDemand(Protocol):
    """Demand of waiting and running tasks for processors."""

    def demand(self) -> Mapping[str, ProcessorDemand]:
        """Return the demand of tasks for processors, by pool."""


class AgreementDemand(Protocol):
    """Demand of agreements for workers."""

    def pools(self, now: float) -> Mapping[str, WorkerDemand]:
        """Return the workers that agreements want now or soon, by pool."""

    def ready(self, pool: str, processors: int) -> None:
        """Note how many processors of an agreement have workers now."""


@runtime_checkable
class ReattachableSite(Protocol):
    """A site whose processors outlive the service and can be adopted after a restart."""

    async def adopt(
        self,
        pilots: Sequence[Allocation],
        endpoints: Mapping[str, Endpoint],
        notify: Callable[[str], None],
    ) -> Mapping[str, HeldProcessors]:
        """
        Reattach processors held before a restart; return the reattached ones by pilot name.

        Parameters
        ----------
        pilots
            Pilots that were held before the restart.
        endpoints
            Addresses to which their workers connect, by the names of the pilots.
        notify
            Called with one line for people on what becomes of each pilot.

        Raises
        ------
        SiteError
            When the site cannot be asked.
        """

    async def end_others(self, pilots: Collection[str]) -> None:
        """End all processors held before the restart, except for the named pilots."""

    async def leave(self) -> None:
        """Detach from the held processors, which stay as the service stops."""
