"""How many, or how much, of something somebody may have at a time."""

from collections.abc import Mapping
from types import MappingProxyType


class ConcurrencyLimit:
    """
    How many of something each may have at a time.

    Parameters
    ----------
    most
        Of each.
    own
        Of those who may have more or fewer.
    """

    def __init__(self, most: int, own: Mapping[str, int] = MappingProxyType({})) -> None:
        self._most = most
        self._own = own
        self._taken: dict[str, int] = {}

    def set_most(self, most: int, own: Mapping[str, int]) -> None:
        """What holds from now on; whoever has more keeps it until it leaves."""
        self._most, self._own = most, own

    def enter(self, who: str) -> bool:
        """Whether there is room for one more; then it is taken until :meth:`leave`."""
        taken = self._taken.get(who, 0)
        if taken >= self._own.get(who, self._most):
            return False
        self._taken[who] = taken + 1
        return True

    def leave(self, who: str) -> None:
        """One is gone."""
        taken = self._taken[who] - 1
        if taken:
            self._taken[who] = taken
        else:
            del self._taken[who]


class DynamicThreshold:
    """
    Room for all, of which each may take as much as then stays free.

    So nobody alone can take it all, and the more there are who take a lot, the less each may
    (dynamic thresholds: Choudhury and Hahne, 1998).

    Parameters
    ----------
    most
        Of all together.
    """

    def __init__(self, most: int) -> None:
        self._free = most
        self._taken: dict[str, int] = {}

    def take(self, who: str, size: int, *, lone: bool = False) -> bool:
        """
        Whether there is room for so much more; then it is taken until :meth:`give_back`.

        Parameters
        ----------
        lone
            There is for one piece of each, whatever its size.
        """
        taken = self._taken.get(who, 0) + size
        if taken > self._free - size and not (lone and taken == size):
            return False
        self._taken[who] = taken
        self._free -= size
        return True

    def give_back(self, who: str, size: int) -> None:
        """So much is free again."""
        self._free += size
        left = self._taken.get(who, 0) - size
        if left:
            self._taken[who] = left
        else:
            self._taken.pop(who, None)
