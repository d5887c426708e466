"""By which rules leases are opened and closed, and who carries them is told."""

from typing import Protocol

from bursar.provisioning.pool_snapshot import AllocationLoss
from bursar.service.provisioner.provisioning_view import LeaseDecision, OpenLease, ProvisioningView


class LeasePolicy(Protocol):
    """Decides; keeps no clock and does nothing."""

    def decide(self, view: ProvisioningView) -> list[LeaseDecision]:
        """What is to be done now; nothing, as long as things stay as they are."""

    @property
    def wake(self) -> float:
        """When a decision may be due though nothing has happened; infinite: never."""

    def opened(self, name: str, lease: OpenLease, now: float) -> None:
        """A lease is asked for, under a name."""

    def began(self, name: str, now: float) -> None:
        """It has its processors."""

    def gone(self, name: str, now: float, loss: AllocationLoss, reason: str) -> None:
        """It is no more, or was not to be had."""
