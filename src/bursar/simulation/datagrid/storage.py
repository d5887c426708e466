"""Simulates storage elements and the replica catalogue."""

from collections.abc import Iterable

from bursar.model.replica import Replica
from bursar.simulation.datagrid.scenario import DataGrid


class ReplicaCatalogue:
    """
    Maps logical names to the sites that hold a copy, in memory.

    Parameters
    ----------
    replicas
        Copies at the beginning. One without a size counts as 0 bytes.
    """

    def __init__(self, replicas: Iterable[Replica]) -> None:
        self._sites: dict[str, dict[str, None]] = {}
        self._sizes: dict[str, int] = {}
        self.version = 0
        """Number that changes with every change of the catalogue."""
        for replica in replicas:
            self._sizes[replica.name] = replica.size or 0
            self.register(replica.name, replica.site)

    def register(self, name: str, site: str) -> None:
        """Register a copy."""
        self._sites.setdefault(name, {})[site] = None
        self.version += 1

    def forget(self, name: str, site: str) -> None:
        """Remove a copy that is gone or bad."""
        if self._sites.get(name, {}).pop(site, self) is None:
            self.version += 1

    def sites(self, name: str) -> Iterable[str]:
        """Return the sites that hold a copy, in the order of registration."""
        return self._sites.get(name, ())

    def size(self, name: str) -> int:
        """Return a file's registered bytes; 0 for an unknown file."""
        return self._sizes.get(name, 0)


class StorageElement:
    """
    The files at a site: its own, and copies that were brought and stay while there is room.

    Parameters
    ----------
    own
        Names of files that always stay.
    limit
        Bytes that copies may take; None: as many as there are.
    """

    def __init__(self, own: Iterable[str], limit: int | None) -> None:
        self._own = frozenset(own)
        self._limit = limit
        self._copies: dict[str, int] = {}  # the one longest unused first
        self._pins: dict[str, int] = {}
        self.used = 0
        """Bytes of copies."""

    def has(self, name: str) -> bool:
        """Whether the storage holds a file."""
        return name in self._own or name in self._copies

    def pin(self, name: str) -> None:
        """Pin a file that a job uses; pinned files are not evicted."""
        if name in self._copies:
            # Moved to the end of the dictionary, which thus stays in order of last use.
            self._copies[name] = self._copies.pop(name)
        self._pins[name] = self._pins.get(name, 0) + 1

    def release(self, name: str) -> None:
        """Unpin a file for a job."""
        left = self._pins[name] - 1
        if left:
            self._pins[name] = left
        else:
            del self._pins[name]

    def keep(self, name: str, size: int) -> list[str] | None:
        """
        Keep a copy, and evict the least recently used copies for room.

        Returns
        -------
        list or None
            Copies evicted; None when there is no room, and then nothing is evicted.
        """
        if self._limit is None:
            going: list[str] = []
        else:
            excess = self.used + size - self._limit
            going = []
            for other, taken in self._copies.items():
                if excess <= 0:
                    break
                # A file in use stays, however long ago it was asked for.
                if other not in self._pins:
                    going.append(other)
                    excess -= taken
            # Decided before anything goes: a copy that does not fit must not cost others their
            # place.
            if excess > 0:
                return None
        for other in going:
            self.used -= self._copies.pop(other)
        self._copies[name] = size
        self.used += size
        return going


def storages_of(grid: DataGrid) -> dict[str, StorageElement]:
    """The storage elements of a grid, by site."""
    limits = {site.name: site.storage_limit for site in grid.sites} | dict.fromkeys(grid.stores)
    own: dict[str, list[str]] = {name: [] for name in limits}
    for replica in grid.replicas:
        own[replica.site].append(replica.name)
    return {name: StorageElement(own[name], limit) for name, limit in limits.items()}
