"""The interface of the policies by which the provisioner opens and closes leases."""

from typing import Protocol

from bursar.model.allocation import AllocationLoss, AllocationRequest
from bursar.provisioning.pool_snapshot import PoolDecision
from bursar.service.provisioner.provisioning_view import ProvisioningView


class LeasePolicy(Protocol):
    """Decides which leases to open and close; keeps no clock and does no I/O."""

    def decide(self, view: ProvisioningView) -> list[PoolDecision]:
        """Return the leases to open and to close now; nothing while the view is unchanged."""

    @property
    def wake(self) -> float:
        """Time of the next decision without an event, seconds since the epoch; infinite: never."""

    def opened(self, name: str, lease: AllocationRequest, now: float) -> None:
        """Note that a lease was requested, and the name of the lease."""

    def began(self, name: str, now: float) -> None:
        """Note that the site has granted the processors of a lease."""

    def pilot_ended(self, name: str, now: float, loss: AllocationLoss, reason: str) -> None:
        """Note that a lease has ended or was refused."""
