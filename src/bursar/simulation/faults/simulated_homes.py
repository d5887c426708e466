"""Folders of instances that are only names."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from bursar.service.engine.instance_homes import InstanceHomes

FOLDER = Path("/simulated")
"""Where the service believes that they are; nothing is ever there."""


class SimulatedInstanceHomes(InstanceHomes):
    """
    Keeps the homes of the service when the service is killed and started again.

    See :class:`bursar.service.engine.instance_homes.InstanceHomes`.
    """

    def __init__(self) -> None:
        super().__init__(FOLDER)
        self.names: set[str] = set()

    def make(self, name: str, user: str) -> None:
        """A home for a user."""
        self.names.add(name)

    def remove(self, name: str) -> None:
        """A home goes."""
        self.names.discard(name)

    def remove_logs(self, name: str, logs: Iterable[str]) -> None:
        """Nothing: no task prints much."""

    def restore(self, users: Mapping[str, str], dying: Collection[str]) -> None:
        """Homes that are missing are made, those that nobody knows go."""
        self.names = set(users) | (self.names & set(dying))
