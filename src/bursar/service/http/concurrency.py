"""Limits of how many items, or how many bytes, one user may hold at a time."""

from collections.abc import Mapping
from types import MappingProxyType


class ConcurrencyLimit:
    """
    Limits how many items (requests, connections) each holder may have at a time.

    Parameters
    ----------
    most
        Items of each holder.
    own
        Limits of holders for whom ``most`` does not apply, by name.
    """

    def __init__(self, most: int, own: Mapping[str, int] = MappingProxyType({})) -> None:
        self._most = most
        self._own = own
        self._taken: dict[str, int] = {}

    def set_most(self, most: int, own: Mapping[str, int]) -> None:
        """Set the limits; a holder above the new limit keeps its items until it leaves."""
        self._most, self._own = most, own

    def enter(self, who: str) -> bool:
        """Take an item if the limit allows, until :meth:`leave`; return whether it was taken."""
        taken = self._taken.get(who, 0)
        if taken >= self._own.get(who, self._most):
            return False
        self._taken[who] = taken + 1
        return True

    def leave(self, who: str) -> None:
        """Give back one item."""
        taken = self._taken[who] - 1
        if taken:
            self._taken[who] = taken
        else:
            del self._taken[who]


class DynamicThreshold:
    """
    A shared capacity of which each holder may take as much as then stays free.

    No holder alone can take all of it, and the more holders take much, the less each may have
    (dynamic thresholds: Choudhury and Hahne, 1998).

    Parameters
    ----------
    most
        Capacity of all holders together, in bytes.
    """

    def __init__(self, most: int) -> None:
        self._free = most
        self._taken: dict[str, int] = {}

    def take(self, who: str, size: int, *, lone: bool = False) -> bool:
        """
        Take ``size`` bytes if they are allowed, until :meth:`give_back`; return whether they are.

        Parameters
        ----------
        lone
            Whether a holder that has nothing yet may take one piece of any size.
        """
        taken = self._taken.get(who, 0) + size
        if taken > self._free - size and not (lone and taken == size):
            return False
        self._taken[who] = taken
        self._free -= size
        return True

    def give_back(self, who: str, size: int) -> None:
        """Give back ``size`` bytes."""
        self._free += size
        left = self._taken.get(who, 0) - size
        if left:
            self._taken[who] = left
        else:
            self._taken.pop(who, None)
