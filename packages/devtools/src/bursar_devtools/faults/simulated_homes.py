"""Simulates the folders of instances, of which only the names exist."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from bursar.service.engine.instance_homes import InstanceHomes

FOLDER = Path("/simulated")
"""Path that the service takes for its folder; nothing is ever written there."""


class SimulatedInstanceHomes(InstanceHomes):
    """
    Keeps the names of instance folders while the service is killed and restarted.

    See :class:`bursar.service.engine.instance_homes.InstanceHomes`.
    """

    def __init__(self) -> None:
        super().__init__(FOLDER)
        self.names: set[str] = set()

    def make(self, name: str, user: str) -> None:
        """Add an instance's folder."""
        self.names.add(name)

    def remove(self, name: str) -> None:
        """Remove an instance's folder."""
        self.names.discard(name)

    def remove_logs(self, name: str, logs: Iterable[str]) -> None:
        """Do nothing: simulated tasks write no logs."""

    def restore(self, users: Mapping[str, str], dying: Collection[str]) -> None:
        """Add the missing folders of live instances, and remove folders of unknown ones."""
        self.names = set(users) | (self.names & set(dying))
