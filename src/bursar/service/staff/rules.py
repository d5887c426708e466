"""By which rules leases are opened and closed, and who carries them is told."""

from typing import Protocol

from bursar.provisioning.view import Loss
from bursar.service.staff.view import Decision, Open, StaffView


class Rules(Protocol):
    """Decides; keeps no clock and does nothing."""

    def decide(self, view: StaffView) -> list[Decision]:
        """What is to be done now; nothing, as long as things stay as they are."""

    @property
    def wake(self) -> float:
        """When a decision may be due though nothing has happened; infinite: never."""

    def opened(self, name: str, lease: Open, now: float) -> None:
        """A lease is asked for, under a name."""

    def began(self, name: str, now: float) -> None:
        """It has its processors."""

    def gone(self, name: str, now: float, loss: Loss, reason: str) -> None:
        """It is no more, or was not to be had."""
